import { createHash } from 'node:crypto';
import { afterAll, afterEach, describe, expect, test } from 'vitest';
import type { EventStream } from '../support/event-stream.ts';
import { startFaultyLink } from '../support/faulty-link.ts';
import { startLegacyUpstream } from '../support/legacy-upstream.ts';
import { manyClient } from '../support/many.ts';
import { textOf, type McpClient } from '../support/mcp-client.ts';
import { sendJson, type Members, type Message } from '../support/net.ts';
import { never, until } from '../support/until.ts';
import { says } from '../support/upstream-tools.ts';
import { startWorld } from '../support/world.ts';

// One endpoint for many (issue 3, item 7; § 6; cases A3, A5, A7, E7): names that say whose they are, lists that are
// merged and go on at any pod, and an upstream in trouble that is nobody else's.

const frail = await startLegacyUpstream({ name: 'frail' });
const link = await startFaultyLink(frail.endpoint);
const world = await startWorld({
  workers: 0,
  plainUpstreams: ['u1', 'a', 'a-b'],
  upstream: { name: 'frail', url: link.url, connection: undefined },
  config: {},
});
afterAll(async () => {
  await world.stop();
  await link.stop();
  await frail.stop();
});
const { u1, a } = world.plain as Record<'u1' | 'a' | 'a-b', (typeof world.plain)[string]>;
const ab = world.plain['a-b']!;
afterEach(async () => {
  for (const upstream of [u1, a, ab, frail]) upstream.intercept = undefined;
  await link.up();
});

const names = (message: Message): string[] => message.result!.tools!.map(({ name }) => name);
const of = (upstream: string, message: Message): string[] =>
  names(message).filter((name) => name.startsWith(`${upstream}__`));
const qualified = (upstream: string, name: string): string => {
  const whole = `${upstream}__${name}`;
  const digits = createHash('sha256').update(whole).digest('hex').slice(0, 8);
  return whole.length <= 128 ? whole : `${whole.slice(0, 119)}_${digits}`;
};
const pages = async (client: McpClient, method = 'tools/list'): Promise<Message[]> => {
  const all: Message[] = [];
  let cursor: unknown;
  do {
    const params = cursor === undefined ? undefined : { cursor };
    all.push(await client.begin(method, params, { pod: all.length % 2 }).message());
    cursor = all.at(-1)!.result?.['nextCursor'];
  } while (cursor !== undefined && all.length < 50);
  return all;
};

describe('names', () => {
  const tool = (name: string) => ({ description: name, run: () => says(`this is ${name}`) });

  test('[aggregate.names] whatever upstreams call their tools, each name is one tool, on both pods', async () => {
    const own = ['b__c', '__', '_', 'x__y__z', 'dotted.name', 'dash-ed', 'UPPER', 'a__b__c', '0'];
    for (const upstream of [a, ab, u1]) {
      for (const name of own) upstream.tools[name] = tool(`${upstream.name} ${name}`);
    }
    const ann = await manyClient(world, 'ann').initialize();
    const lists = [await ann.listTools({ pod: 0 }), await ann.listTools({ pod: 1 })] as const;
    expect(names(lists[0])).toEqual(names(lists[1]));
    expect(new Set(names(lists[0])).size).toBe(names(lists[0]).length);
    for (const upstream of ['a', 'a-b', 'u1']) {
      for (const [i, name] of own.entries()) {
        const said = await ann.callTool(`${upstream}__${name}`, {}, { pod: i % 2 });
        expect(textOf(said), `${upstream}__${name}`).toBe(`this is ${upstream} ${name}`);
      }
    }
  });

  test('[aggregate.names] past 128 characters a name is cut and stays one tool, at a pod that never listed it', async () => {
    const long = ['x', 'y', 'z'].map((last) => `${'long_name.'.repeat(13)}${last}`);
    const exact = 'e'.repeat(128 - 'u1__'.length);
    const trap = `${'t'.repeat(115)}_0123abcd`; // looks cut, and is not
    for (const name of [...long, exact, trap]) u1.tools[name] = tool(name);
    const ann = await manyClient(world, 'ann').initialize({ pod: 0 });
    const listed = of('u1', await ann.listTools({ pod: 0 }));
    for (const name of [...long, exact, trap]) {
      expect(listed).toContain(qualified('u1', name));
      expect(qualified('u1', name).length).toBeLessThanOrEqual(128);
      const said = await ann.callTool(qualified('u1', name), {}, { pod: 1 });
      expect(textOf(said)).toBe(`this is ${name}`);
    }
    for (const name of [...long, exact, trap]) Reflect.deleteProperty(u1.tools, name);
  });

  test('[aggregate.names] what nobody offers is told so, and nobody is asked', async () => {
    const ann = await manyClient(world, 'ann').initialize();
    const before = u1.requests('tools/call').length;
    for (const name of [
      'echo',
      'nobody__echo',
      '__echo',
      'U1__echo',
      'u1_echo',
      '',
      'constructor__x',
    ]) {
      const { error } = await ann.callTool(name, {});
      expect(error?.code, name).toBe(-32602);
    }
    expect(u1.requests('tools/call').length).toBe(before);
  });
});

test('[A3] schemas pass unchanged, and nothing that they point to is fetched', async () => {
  const fetched = await startLegacyUpstream({ name: 'sink' });
  const schemas =
    '[{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","definitions":{"Item":{"type":"string"}},"properties":{"a":{"$ref":"#/definitions/Item"}}},' +
    '{"type":"object","$defs":{"n":{"type":"object","properties":{"next":{"$ref":"#/$defs/n"}}}},"oneOf":[{"required":["a"]},{"$dynamicRef":"#x"}],"if":true,"then":{},"prefixItems":[{"const":1.0}],"unevaluatedProperties":false,"x-foo":9007199254740993,"properties":{"$ref":{"type":"string"}},"required":[]},' +
    `{}, {"type":"object"},{"$ref":"${fetched.url}/x"},{"type":"object","allOf":[${'{"allOf":['.repeat(200)}{}${']}'.repeat(200)}]}]`;
  const list = (JSON.parse(schemas) as Members[]).length;
  const texts = [...Array(list).keys()].map(
    (i) => `{"name":"s${i}","inputSchema":${itemOf(schemas, i)}, "annotations":{"x":1E2}}`,
  );
  u1.intercept = ({ response }, { message }) => {
    if (message?.method !== 'tools/list') return false;
    const id = JSON.stringify(message.id);
    response
      .writeHead(200, { 'content-type': 'application/json' })
      .end(`{"jsonrpc":"2.0","id":${id},"result":{"tools":[${texts.join(' ,')}]}}`);
    return true;
  };
  const ann = await manyClient(world, 'ann').initialize();
  const raw = await ann.begin('tools/list', undefined).raw();
  for (const text of texts) expect(raw).toContain(text.replace('"name":"', '"name":"u1__'));
  const direct = await world.client('ann', { upstream: 'u1' }).initialize();
  expect(await direct.begin('tools/list', undefined).raw()).toContain(texts.join(' ,'));
  expect(fetched.received).toEqual([]);
  await fetched.stop();
});

/** The text of one item of a JSON array: parsed, it would not be the same. */
function itemOf(array: string, index: number): string {
  let depth = 0;
  let from = 1;
  let seen = 0;
  for (let i = 0; i < array.length; i++) {
    if ('[{'.includes(array[i]!)) depth += 1;
    if (']}'.includes(array[i]!)) depth -= 1;
    if ((array[i] === ',' && depth === 1) || (array[i] === ']' && depth === 0)) {
      if (seen === index) return array.slice(from, i).trim();
      seen += 1;
      from = i + 1;
    }
  }
  throw new Error('no such item');
}

describe('pages', () => {
  /** Pages of three, with a cursor that only this upstream understands. */
  const paged =
    (all: string[]) =>
    (
      exchange: { response: Parameters<typeof sendJson>[0] },
      { message }: { message: Message | undefined },
    ): boolean => {
      if (message?.method !== 'tools/list') return false;
      const at = Number(
        (message.params?.['cursor'] as string | undefined)?.slice('at '.length) ?? 0,
      );
      if (Number.isNaN(at)) {
        const error = { code: -32602, message: 'no cursor of mine' };
        sendJson(exchange.response, 200, { jsonrpc: '2.0', id: message.id, error });
        return true;
      }
      const tools = all
        .slice(at, at + 3)
        .map((name) => ({ name, inputSchema: { type: 'object' } }));
      const nextCursor = at + 3 < all.length ? { nextCursor: `at ${at + 3}` } : {};
      sendJson(exchange.response, 200, {
        jsonrpc: '2.0',
        id: message.id,
        result: { tools, ...nextCursor },
      });
      return true;
    };

  test('[aggregate.pages] cursors are good at any pod, and each tool comes once', async () => {
    const seven = Array.from({ length: 7 }, (_, i) => `t${i}`);
    const four = ['p', 'q', 'r', 's'];
    u1.intercept = paged(seven);
    a.intercept = paged(four);
    const ann = await manyClient(world, 'ann').initialize();
    const all = await pages(ann);
    expect(all.length).toBe(3);
    const listed = all.flatMap(names);
    expect(new Set(listed).size).toBe(listed.length);
    expect(listed.filter((name) => name.startsWith('u1__'))).toEqual(seven.map((t) => `u1__${t}`));
    expect(listed.filter((name) => name.startsWith('a__'))).toEqual(four.map((t) => `a__${t}`));
  });

  test('[aggregate.pages] a cursor of nobody’s is the client’s fault', async () => {
    const ann = await manyClient(world, 'ann').initialize();
    const foreign = Buffer.from('{"nobody":"1"}').toString('base64url');
    for (const cursor of ['x', '', 'e30', foreign]) {
      const { error, result } = await ann.begin('tools/list', { cursor }).message();
      if (error) expect(error.code).toBe(-32602);
      else expect(result?.tools, cursor).toEqual([]);
    }
  });
});

describe('an upstream in trouble', () => {
  const listChanged = 'notifications/tools/list_changed';
  type Trouble = { name: string; begin: () => Promise<void> | void; heals?: boolean };
  const hangs = (method: string | undefined): boolean => method !== undefined;
  const troubles: Trouble[] = [
    { name: 'refuses connections', begin: () => link.down() },
    { name: 'never answers', begin: () => link.hang() },
    {
      name: 'answers 502 in HTML',
      begin: () => {
        frail.intercept = ({ response }) => {
          response.writeHead(502, { 'content-type': 'text/html' }).end('<h1>Bad Gateway</h1>');
          return true;
        };
      },
    },
    {
      name: 'answers 401',
      begin: () => {
        frail.intercept = ({ response }) => {
          response.writeHead(401).end();
          return true;
        };
      },
    },
    {
      name: 'gives a byte now and then',
      begin: () => {
        frail.intercept = ({ response }, { message }) => {
          if (!hangs(message?.method)) return false;
          response.writeHead(200, { 'content-type': 'application/json' });
          const drip = setInterval(() => response.write(' '), 200);
          response.on('close', () => clearInterval(drip));
          return true;
        };
      },
    },
  ];

  test.for(troubles)(
    '[A5] $name: the rest is served meanwhile, and list_changed follows when it heals',
    { timeout: 60_000 },
    async ({ begin }) => {
      await begin();
      const eve = manyClient(world, 'eve');
      await eve.initialize();
      const stream: EventStream = await eve.listen({ pod: 0 });
      const list = await eve.listTools({ pod: 1 });
      expect(of('u1', list)).toContain('u1__echo');
      expect(of('frail', list)).toEqual([]);
      const calls = Array.from({ length: 50 }, (_, i) =>
        eve.callTool('u1__echo', { i }, { pod: i % 2 }),
      );
      expect((await Promise.all(calls)).map(textOf)).toEqual(calls.map((_, i) => `{"i":${i}}`));
      expect(stream.named(listChanged)).toEqual([]);

      frail.intercept = undefined;
      await link.up();
      await stream.notification(listChanged, 25_000);
      expect(of('frail', await eve.listTools({ pod: 1 }))).toContain('frail__echo');
      stream.close();
    },
  );

  test('[A5] one that is only slow to say hello is announced when it has', async () => {
    const hello = frail.gate('hello');
    frail.intercept = async (_exchange, { message }) => {
      if (message?.method === 'initialize') await hello.pass();
      return false;
    };
    const eve = await manyClient(world, 'eve').initialize();
    const stream = await eve.listen({ pod: 0 });
    expect(of('frail', await eve.listTools({ pod: 1 }))).toEqual([]);
    hello.open();
    await stream.notification(listChanged, 15_000);
    expect(of('frail', await eve.listTools({ pod: 1 }))).toContain('frail__echo');
    stream.close();
  });

  test('[A5] so is one that has no listening stream to offer', async () => {
    await link.down();
    frail.intercept = ({ request, response }) => {
      if (request.method !== 'GET') return false;
      response.writeHead(405).end();
      return true;
    };
    const eve = await manyClient(world, 'eve').initialize();
    const stream = await eve.listen({ pod: 0 });
    expect(of('frail', await eve.listTools({ pod: 1 }))).toEqual([]);
    await link.up();
    await stream.notification(listChanged, 15_000);
    stream.close();
  });

  test('[A5] a dead one is not stormed: the pauses between attempts grow', async () => {
    await link.hang();
    const eve = await manyClient(world, 'eve').initialize();
    const stream = await eve.listen({ pod: 0 });
    const before = link.connections;
    await never('a storm', () => link.connections - before > 15, { forMs: 3_000, everyMs: 100 });
    stream.close();
  });

  test('[A5] a notification waits for nobody', async () => {
    const eve = await manyClient(world, 'eve').initialize();
    await link.hang();
    frail.forget();
    expect((await eve.notify('notifications/roots/list_changed')).status).toBe(202);
  });

  test('[A5] a call of a dead one is an error, and of a hanging one nobody else’s trouble', async () => {
    const eve = await manyClient(world, 'eve').initialize();
    await link.down();
    const { id, error } = await eve.callTool('frail__echo', {}, { id: 'dead' });
    expect([id, error?.data?.reason]).toEqual(['dead', 'upstream_unavailable']);
  });
});

describe('whose list it is', () => {
  test('[A7] lists are per caller: order, pods and races make no difference', async () => {
    // what this upstream shows depends on who has called it
    const seen = new Map<string, string>();
    u1.intercept = ({ request, response }, { message }) => {
      if (message?.method !== 'tools/list') return false;
      const session = u1.sessions.get(String(request.headers['mcp-session-id']))!;
      const user = (session.clientInfo as { name: string }).name;
      seen.set(session.id, user);
      const tools = ['common', ...(user === 'admin' ? ['only-admin', 'danger'] : [])].map(
        (name) => ({
          name,
          inputSchema: { type: 'object' },
        }),
      );
      const result = { tools, ttlMs: 60_000, cacheScope: 'public' };
      sendJson(response, 200, { jsonrpc: '2.0', id: message.id, result });
      return true;
    };
    const client = (user: string) => manyClient(world, user, { name: user }).initialize();
    const [admin, reader] = [await client('admin'), await client('reader')];
    const expected = new Map([
      [admin, ['u1__common', 'u1__only-admin', 'u1__danger']],
      [reader, ['u1__common']],
    ]);
    for (const order of [
      [admin, reader],
      [reader, admin],
    ]) {
      for (const who of order) {
        for (const pod of [0, 1]) {
          const answer = await who.post({ jsonrpc: '2.0', id: 1, method: 'tools/list' }, { pod });
          expect(of('u1', answer.json!)).toEqual(expected.get(who));
          expect(answer.headers['cache-control']).toMatch(/no-store|private/);
        }
      }
    }
    const races = Array.from({ length: 20 }, (_, i) => (i % 3 === 0 ? admin : reader));
    const lists = await Promise.all(races.map((who, i) => who.listTools({ pod: i % 2 })));
    expect(lists.map((list) => of('u1', list))).toEqual(races.map((who) => expected.get(who)));
  });

  test('[aggregate.hidden] what scopes and groups forbid is not listed, and calling it tells nothing', async () => {
    const guarded = await startWorld({
      workers: 0,
      config: {
        upstreams: [
          {
            name: 'open',
            url: u1.endpoint,
            allowPrivateNetwork: true,
            tools: { 'coun*': { groups: ['admins'] }, fail: { scopes: ['files:write'] } },
          },
          { name: 'shut', url: a.endpoint, allowPrivateNetwork: true, scopes: ['shut:read'] },
        ],
      },
    });
    try {
      const as = (user: string, claims: Members) =>
        manyClient(guarded, user, { claims }).initialize();
      const weak = await as('weak', { scope: 'mcp:tools' });
      const admin = await as('admin', {
        scope: 'mcp:tools files:write shut:read',
        groups: ['admins'],
      });
      for (const pod of [0, 1]) {
        const [little, much] = [await weak.listTools({ pod }), await admin.listTools({ pod })];
        expect(names(little)).toContain('open__echo');
        expect(names(little)).not.toContain('open__count');
        expect(names(little)).not.toContain('open__fail');
        expect(of('shut', little)).toEqual([]);
        expect(names(much)).toEqual(
          expect.arrayContaining(['open__count', 'open__fail', 'shut__echo']),
        );
      }
      const ran = { ...u1.ran };
      const hidden = await weak.callTool('open__count', {});
      const missing = await weak.callTool('open__no-such', {});
      expect(hidden.error?.code).toBe(missing.error?.code);
      for (const name of ['open__fail', 'shut__echo']) {
        const call = weak.beginTool(name, {});
        expect((await call.http).status, name).toBe(403);
      }
      expect(u1.ran).toEqual(ran);
      // the same session with a token that may less
      const narrowed = admin.as({ token: weak.token });
      narrowed.token = guarded.token('admin', {
        aud: `${guarded.publicUrl}/mcp`,
        scope: 'mcp:tools',
      });
      expect(names(await narrowed.listTools())).not.toContain('open__count');
    } finally {
      await guarded.stop();
    }
  });
});

test('[aggregate.hello] each upstream is told once that the client is ready', async () => {
  const before = u1.requests('notifications/initialized').length;
  await manyClient(world, 'ann').initialize();
  expect(u1.requests('notifications/initialized').length - before).toBe(1);
});

test('[E7] each listening client has one copy of a change, whichever pod it is on, and lists the new tool', async () => {
  const users = ['fay', 'gus'];
  const clients = await Promise.all(
    users.map((name, pod) => manyClient(world, name, { name }).initialize({ pod })),
  );
  const streams = await Promise.all(clients.map((client, i) => client.listen({ pod: 1 - i })));
  const sessions = users.map((user) =>
    [...u1.sessions.values()].find(
      ({ clientInfo }) => (clientInfo as { name: string }).name === user,
    )!,
  );
  await until('both listen at the upstream', () => sessions.every(({ listening }) => listening));
  u1.tools['brand_new'] = { description: 'new', run: () => says('new') };
  u1.notify('notifications/tools/list_changed');
  for (const [i, stream] of streams.entries()) {
    await stream.notification('notifications/tools/list_changed');
    expect(names(await clients[i]!.listTools({ pod: i }))).toContain('u1__brand_new');
  }
  await never('a second copy', () =>
    streams.some((stream) => stream.named('notifications/tools/list_changed').length > 1),
  );
  u1.notify('notifications/resources/updated', { uri: 'file:///a?b=1' }, sessions[0]);
  const updated = await streams[0]!.notification('notifications/resources/updated');
  expect(updated.params).toEqual({ uri: 'u1+file:///a?b=1' });
  await never(
    'the other hears of it',
    () => streams[1]!.named('notifications/resources/updated').length > 0,
  );
});
