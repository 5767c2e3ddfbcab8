import type { ServerResponse } from 'node:http';
import { afterAll, afterEach, describe, expect, test } from 'vitest';
import { startFaultyLink } from '../support/faulty-link.ts';
import { startLegacyUpstream } from '../support/legacy-upstream.ts';
import { manyClient } from '../support/many.ts';
import { textOf } from '../support/mcp-client.ts';
import { until } from '../support/until.ts';
import { startWorld } from '../support/world.ts';

// Upstreams that restart, close early, answer rubbish or not at all (issue 3, item 6; cases A5): what can be had is
// had, nothing runs twice, and what cannot be had is a prompt error for the id.

const frail = await startLegacyUpstream({ name: 'frail' });
const link = await startFaultyLink(frail.endpoint);
const world = await startWorld({
  workers: 0,
  plainUpstreams: ['plain'],
  prepare: () => undefined,
  config: {},
  upstream: { name: 'frail', url: link.url, connection: undefined },
});
afterAll(async () => {
  await world.stop();
  await link.stop();
  await frail.stop();
});
const plain = world.plain['plain']!;
afterEach(async () => {
  plain.intercept = undefined;
  await link.up();
});

const client = (user: string, version = '2025-11-25') =>
  world.client(user, { upstream: 'plain', version });

describe('an upstream that restarted', () => {
  test('[upstream.restart] ten requests race on two pods: one initialize, and each call runs once', async () => {
    const ann = await client('ann').initialize();
    const initialized = plain.initialized;
    const ran = plain.ran['count'] ?? 0;
    plain.forget();
    const answers = await Promise.all(
      Array.from({ length: 10 }, (_, i) => ann.callTool('count', { i }, { pod: i % 2 })),
    );
    expect(answers.map(textOf)).toEqual(Array(10).fill('counted'));
    expect(plain.initialized - initialized).toBe(1);
    expect(plain.ran['count']! - ran).toBe(10);
    const told = [...plain.sessions.values()].at(-1)!;
    expect(told.capabilities, 'the new session knows the client').toEqual(ann.capabilities);
  });

  test('[upstream.restart] ten first requests of a session on two pods: one initialize', async () => {
    const ann = manyClient(world, 'ann');
    await link.down(); // one upstream is away at initialize, and joins later
    await ann.initialize();
    await link.up();
    const initialized = frail.initialized;
    const answers = await Promise.all(
      Array.from({ length: 10 }, (_, i) => ann.callTool('frail__count', { i }, { pod: i % 2 })),
    );
    expect(answers.map(textOf)).toEqual(Array(10).fill('counted'));
    expect(frail.initialized - initialized).toBe(1);
  });

  test('[upstream.restart] the lists of the endpoint of many have it again, without a listening stream', async () => {
    const ann = await manyClient(world, 'ann').initialize();
    plain.forget();
    const { result } = await ann.listTools({ pod: 1 });
    expect(result?.tools?.map(({ name }) => name)).toContain('plain__echo');
  });

  test('[upstream.restart] what is only told it arrives, too', async () => {
    const ann = await manyClient(world, 'ann').initialize();
    plain.forget();
    const levels = plain.requests('logging/setLevel').length;
    const { result } = await ann.begin('logging/setLevel', { level: 'error' }).message();
    expect(result).toEqual({});
    const accepted = () =>
      plain
        .requests('logging/setLevel')
        .slice(levels)
        .some(({ headers }) => plain.sessions.has(String(headers['mcp-session-id'])));
    await until('the level is told to the new session', accepted);
    plain.forget();
    await ann.notify('notifications/roots/list_changed');
    await until('the notification arrives in a session that exists', () =>
      plain
        .requests('notifications/roots/list_changed')
        .some(({ headers }) => plain.sessions.has(String(headers['mcp-session-id']))),
    );
  });
});

describe('a stream that closes before its answer', () => {
  const RETRY_MS = 300;

  /** Answers the next call with these parts, one for each time that somebody asks. */
  function script(parts: ((response: ServerResponse, id: string) => void)[]): {
    asked: { atMs: number; lastEventId: string | undefined }[];
    closedAtMs: number[];
  } {
    const seen = {
      asked: [] as { atMs: number; lastEventId: string | undefined }[],
      closedAtMs: [] as number[],
    };
    let id = '';
    plain.intercept = ({ request, response }, { message }) => {
      const resumes = request.method === 'GET' && request.headers['last-event-id'] !== undefined;
      if (message?.method !== 'tools/call' && !resumes) return false;
      if (message) id = JSON.stringify(message.id);
      seen.asked.push({
        atMs: performance.now(),
        lastEventId: request.headers['last-event-id'] as string | undefined,
      });
      response.on('close', () => seen.closedAtMs.push(performance.now()));
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      parts.shift()?.(response, id);
      return true;
    };
    return seen;
  }
  const note = (n: number): string =>
    `data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":${n}}}\n\n`;
  const answer = (id: string): string =>
    `id: last\ndata: {"jsonrpc":"2.0","id":${id},"result":{"content":[{"type":"text","text":"at last"}]}}\n\n`;

  test.for(['ended', 'cut'] as const)(
    '[upstream.resume] %s after an event id: it is asked on with Last-Event-ID, after its retry',
    async (how) => {
      const seen = script([
        (response) => {
          response.write(`retry: ${RETRY_MS}\nid: e1\ndata:\n\nid: e2\n${note(1)}`);
          // what is written is out before the connection goes
          if (how === 'ended') response.end();
          else setImmediate(() => response.socket?.destroy());
        },
        (response) => response.end(`id: e3\n${note(2)}`),
        (response, id) => response.end(answer(id)),
      ]);
      const older = await client('ann', '2025-06-18').initialize();
      const call = older.beginTool('echo', {}, { pod: 0 });
      expect(textOf(await call.message())).toBe('at last');
      expect(seen.asked.map(({ lastEventId }) => lastEventId)).toEqual([undefined, 'e2', 'e3']);
      for (const i of [0, 1]) {
        const waited = seen.asked[i + 1]!.atMs - seen.closedAtMs[i]!;
        expect(waited, `pause ${i}`).toBeGreaterThanOrEqual(RETRY_MS - 20); // timers and clocks round
        expect(waited, `pause ${i}`).toBeLessThan(RETRY_MS + 2_000);
      }
      const { messages } = await call.stream();
      expect(messages.map(({ params }) => params?.['data'])).toEqual([1, 2, undefined]);
    },
  );

  test('[upstream.resume] a client of 2025-11-25 is polled in turn: told when to come back, closed, answered at the other pod', async () => {
    script([
      (response) => response.end(`retry: ${RETRY_MS}\nid: p1\ndata:\n\n`),
      (response, id) => response.end(answer(id)),
    ]);
    const ann = await client('ann').initialize();
    const call = ann.beginTool('echo', {}, { pod: 0 });
    const stream = await call.stream();
    await stream.ended();
    expect(stream.retryMs).toBe(RETRY_MS);
    expect(stream.messages).toEqual([]);
    const rest = await ann.listen({ pod: 1, lastEventId: stream.lastEventId! });
    const end = await rest.message('the answer', ({ id }) => id === call.id);
    expect(textOf(end)).toBe('at last');
    await rest.ended();
  });

  test('[upstream.resume] nor may the stream it is asked on with be refused: an error for the id', async () => {
    script([(response) => response.end(`retry: 50\nid: p1\ndata:\n\n`)]);
    const first = plain.intercept!;
    plain.intercept = (exchange, received) => {
      if (received.method !== 'GET') return first(exchange, received);
      exchange.response.writeHead(405).end();
      return true;
    };
    const older = await client('ann', '2025-06-18').initialize();
    const { error } = await older.callTool('echo', {}, { id: 'no-more' });
    expect(error?.data?.reason).toBe('upstream_refused');
  });

  test('[upstream.resume] without event ids the answer is lost, and that is told', async () => {
    script([(response) => response.end(note(1))]);
    const ann = await client('ann').initialize();
    const { id, error } = await ann.callTool('echo', {}, { id: 'lost' });
    expect(id).toBe('lost');
    expect(error?.data?.reason).toBe('upstream_invalid');
  });
});

describe('an upstream that answers rubbish', () => {
  const answers: Record<string, (response: ServerResponse, id: string) => void> = {
    'an empty 200': (response) => response.writeHead(200).end(),
    'an empty JSON': (response) => json(response, ''),
    null: (response) => json(response, 'null'),
    'an array': (response) => json(response, '[]'),
    'half a message': (response) => json(response, '{"jsonrpc":"2.0","id"'),
    'another id': (response) => json(response, '{"jsonrpc":"2.0","id":"else","result":{}}'),
    'neither result nor error': (response, id) => json(response, `{"jsonrpc":"2.0","id":${id}}`),
    'its request': (response, id) => json(response, `{"jsonrpc":"2.0","id":${id},"method":"x"}`),
    'HTML with 200': (response) =>
      response.writeHead(200, { 'content-type': 'text/html' }).end('<h1>oops</h1>'),
    'HTML with 502': (response) =>
      response.writeHead(502, { 'content-type': 'text/html' }).end('<h1>oops</h1>'),
    'a redirect': (response) => response.writeHead(307, { location: 'http://127.0.0.1:9/' }).end(),
    '202 to a request': (response) => response.writeHead(202).end(),
    '401 without reason': (response) => response.writeHead(401).end(),
    '403': (response) => response.writeHead(403).end(),
    '429': (response) => response.writeHead(429, { 'retry-after': '7' }).end(),
    'a stream of nonsense': (response) => events(response, 'data: <h1>oops</h1>\n\n'),
    'a stream without an answer': (response) => events(response, ': hello\n\n'),
    'a length that is none': (response) => {
      response.writeHead(200, { 'content-type': 'application/json', 'content-length': '1000' });
      response.write('{"jsonrpc":"2.0"');
      setImmediate(() => response.socket?.destroy());
    },
  };
  const json = (response: ServerResponse, text: string) =>
    response.writeHead(200, { 'content-type': 'application/json' }).end(text);
  const events = (response: ServerResponse, text: string) =>
    response.writeHead(200, { 'content-type': 'text/event-stream' }).end(text);

  test.for(Object.keys(answers))(
    '[upstream.garbage] %s is a prompt error for the id',
    async (what) => {
      const ann = await client('ann').initialize();
      plain.intercept = ({ response }, { message }) => {
        if (message?.method !== 'tools/call') return false;
        answers[what]!(response, JSON.stringify(message.id));
        return true;
      };
      const call = ann.beginTool('echo', {}, { id: `the id of ${what}` });
      const message = await call.message();
      expect(message.id).toBe(call.id);
      expect(message.error?.code).toEqual(expect.any(Number));
      expect(message.error?.data?.requestId).toEqual(expect.any(String));
      expect(JSON.stringify(message)).not.toMatch(/<h1>|127\.0\.0\.1|ECONN|at .*\.js/);
      expect([200, 502, 503, 504], 'not the gateway’s own fault, nor the client’s').toContain(
        (await call.http).status,
      );
      plain.intercept = undefined;
      expect(textOf(await ann.callTool('echo', { ok: 1 }))).toBe('{"ok":1}');
    },
  );
});

describe('an upstream that is gone', () => {
  const frailClient = (user: string) => world.client(user, { upstream: 'frail' });

  test('[upstream.dead] calls and initialize fail promptly, and work when it is back', async () => {
    const ann = await frailClient('ann').initialize();
    await link.down();
    for (let i = 0; i < 6; i++) {
      const { id, error } = await ann.callTool('echo', {}, { id: `gone-${i}`, pod: i % 2 });
      expect(id).toBe(`gone-${i}`);
      expect(error?.data?.reason).toBe('upstream_unavailable');
    }
    const fresh = frailClient('bob');
    const refused = await fresh.post(fresh.initializeMessage('hello'));
    expect(refused.json).toMatchObject({
      id: 'hello',
      error: { code: expect.any(Number) as number },
    });
    await link.up();
    await until('it works again', async () => (await ann.callTool('echo', { ok: 1 })).result);
    await fresh.initialize();
  });

  test('[upstream.dead] when it is back, a slow call does not keep the others waiting', async () => {
    const ann = await frailClient('ann').initialize();
    await link.down();
    for (let i = 0; i < 4; i++) await ann.callTool('echo', {}, { pod: 0 });
    await link.up();
    // the first that goes through takes its time, without as much as a header
    const slow = frail.gate('slow');
    let call = ann.beginTool('hold', { gate: 'slow' }, { pod: 0, timeoutMs: 30_000 });
    await until('a call goes through', async () => {
      if (slow.arrived > 0) return true;
      const tried = await Promise.race([call.message(), until('', () => slow.arrived)]);
      if (tried !== 1)
        call = ann.beginTool('hold', { gate: 'slow' }, { pod: 0, timeoutMs: 30_000 });
      return false;
    });
    const { result, error } = await ann.callTool('echo', { quick: 1 }, { pod: 0 });
    expect(error).toBeUndefined();
    expect(result?.content?.[0]?.text).toBe('{"quick":1}');
    slow.open();
    expect(textOf(await call.message())).toBe('held slow');
  });
});
