import { afterAll, describe, expect, test } from 'vitest';
import { textOf } from '../support/mcp-client.ts';
import { answering, inputRequired } from '../support/modern-client.ts';
import { startModernWorld } from '../support/modern-world.ts';
import type { Message } from '../support/net.ts';
import { says } from '../support/upstream-tools.ts';
import { until } from '../support/until.ts';

// The endpoint of many for modern clients, and headers that mirror arguments (issue 4, items 1 and 3; design,
// section 6; cases X6, A5, A7).

const at = await startModernWorld({ workers: 0 });
afterAll(() => at.stop());
const { alpha, beta, world } = at;
const all = at.client('ann', { upstream: '' });
const names = (message: Message) => message.result?.tools?.map(({ name }) => name) ?? [];

const LONG = `x_${'long'.repeat(40)}`;
alpha.tools[LONG] = {
  description: 'A name past 128 characters',
  run: (args) => says({ long: args }),
};
alpha.tools['region'] = {
  description: 'Mirrors',
  inputSchema: {
    type: 'object',
    properties: {
      region: { type: 'string', 'x-mcp-header': 'Region' },
      n: { type: 'integer', 'x-mcp-header': 'Count' },
    },
  },
  run: (args) => says(args),
};

describe('all upstreams in one', () => {
  test('[many.discover] says what they can together', async () => {
    const { result } = await all.call('server/discover');
    expect(result).toMatchObject({
      resultType: 'complete',
      capabilities: {
        tools: { listChanged: true },
        resources: { subscribe: true },
        completions: {},
      },
      cacheScope: 'private',
    });
    expect(result?.['instructions']).toContain('instructions of alpha');
    expect(result?.['instructions']).toContain('instructions of beta');
  });

  test('[many.names] names and URIs say whose they are, the same on both pods', async () => {
    const lists = await Promise.all([0, 1].map((pod) => all.call('tools/list', {}, { pod })));
    expect(names(lists[0]!)).toEqual(names(lists[1]!));
    expect(names(lists[0]!)).toContain('alpha__echo');
    expect(names(lists[0]!)).toContain('beta__echo');
    const resources = (await all.call('resources/list')).result?.['resources'];
    expect(resources).toContainEqual({ uri: 'alpha+res://doc/1', name: 'doc-1' });
    const templates = (await all.call('resources/templates/list')).result?.['resourceTemplates'];
    expect(templates).toContainEqual({ uriTemplate: 'beta+res://doc/{id}', name: 'doc' });
    const prompts = (await all.call('prompts/list')).result?.['prompts'];
    expect(prompts).toContainEqual({ name: 'alpha__greet', description: 'Greets' });
  });

  test('[many.calls] a call goes to the one that its name says, with that one’s own names', async () => {
    expect(textOf(await all.tool('beta__echo', { text: 'b' }))).toBe('{"text":"b"}');
    const sent = beta.calls('echo').at(-1)!;
    expect(sent.headers['mcp-name']).toBe('echo');
    const read = await all.call('resources/read', { uri: 'alpha+res://doc/1' });
    expect(read.result?.['contents']).toMatchObject([
      { uri: 'alpha+res://doc/1', text: 'alpha: res://doc/1' },
    ]);
    expect(alpha.requests('resources/read').at(-1)!.headers['mcp-name']).toBe('res://doc/1');
    const prompt = await all.call('prompts/get', { name: 'beta__greet' });
    expect(JSON.stringify(prompt.result)).toContain('Hello from beta');
    const ref = { type: 'ref/prompt', name: 'alpha__greet' };
    const done = await all.call('completion/complete', {
      ref,
      argument: { name: 'a', value: 'b' },
    });
    expect(done.result?.['completion']).toMatchObject({ values: ['alpha-done'] });
  });

  test('[many.cut] a name that was cut finds its tool, on a pod that never listed it', async () => {
    const cut = names(await all.call('tools/list', {}, { pod: 0 })).find((name) =>
      name.startsWith('alpha__x_long'),
    )!;
    expect(cut).toHaveLength(128);
    expect(textOf(await all.tool(cut, { a: 1 }, { pod: 1 }))).toBe('{"long":{"a":1}}');
    expect(alpha.calls(LONG)).toHaveLength(1);
  });

  test.for(['alpha__nothing', 'nobody__echo', 'echo', '__x', 'constructor__x'])(
    '[many.unknown] %s',
    async (name) => {
      expect((await all.tool(name)).error?.code).toBe(-32602);
    },
  );

  test.for(['nobody+res://x', 'res://x', '+x'])('[many.unknown] %s', async (uri) => {
    expect((await all.call('resources/read', { uri })).error?.code).toBe(-32602);
  });

  test('[many.rounds] rounds work there, too', async () => {
    const first = await all.tool('alpha__ask_form', { z: 1 }, { pod: 0 });
    expect(inputRequired(first).inputRequests).toBeDefined();
    const last = await all.tool(
      'alpha__ask_form',
      { z: 1 },
      { pod: 1, ...answering(first, () => ({ action: 'decline' })) },
    );
    expect(textOf(last)).toBe('{"action":"decline"}');
  });

  test('[many.pages] pages go on where each upstream left off, at any pod', async () => {
    alpha.pageSize = 3;
    beta.pageSize = 4;
    const seen: string[] = [];
    let cursor: unknown;
    for (let page = 0; page < 20; page++) {
      const { result } = await all.call('tools/list', cursor === undefined ? {} : { cursor }, {
        pod: page % 2,
      });
      seen.push(...(result?.tools ?? []).map(({ name }) => name));
      cursor = result?.['nextCursor'];
      if (cursor === undefined) break;
    }
    alpha.pageSize = beta.pageSize = 0;
    expect(seen.sort()).toEqual(names(await all.call('tools/list')).sort());
    expect((await all.call('tools/list', { cursor: 'made-up' })).error?.code).toBe(-32602);
  });

  test('[many.rights] what a caller may not call is not there, for it alone', async () => {
    const more = at.client('ben', {
      upstream: '',
      claims: { scope: 'mcp:tools reports:read', groups: ['counters'] },
    });
    const [few, many] = await Promise.all([all.call('tools/list'), more.call('tools/list')]);
    expect(names(few)).not.toContain('beta__secret_report');
    expect(names(many)).toEqual(expect.arrayContaining(['beta__secret_report', 'beta__count']));
    expect((await all.beginTool('beta__secret_report').http).status).toBe(403);
    expect((await all.tool('beta__count')).error?.code).toBe(-32602);
    expect(beta.ran['count'] ?? 0).toBe(0);
  });

  test('[many.slow] a dead upstream is left out', async () => {
    beta.intercept = () => true; // takes the request and never answers
    const listed = names(await all.call('tools/list'));
    expect(listed).toContain('alpha__echo');
    expect(listed.some((name) => name.startsWith('beta__'))).toBe(false);
    expect((await all.call('server/discover')).result?.['capabilities']).toBeDefined();
    expect(textOf(await all.tool('alpha__echo', { text: 'on' }))).toBe('{"text":"on"}');
    beta.intercept = undefined;
    expect(names(await all.call('tools/list'))).toContain('beta__echo');
  });
});

describe('headers that mirror arguments (X6)', () => {
  const mirrored = { 'Mcp-Param-Region': 'eu', 'Mcp-Param-Count': '42' };

  test('[params.forward] they reach the upstream, known or not', async () => {
    const client = at.client('ann');
    expect(
      textOf(await client.tool('region', { region: 'eu', n: 42 }, { headers: mirrored })),
    ).toBeDefined();
    await client.call('tools/list');
    expect(
      textOf(await client.tool('region', { region: 'eu', n: 42 }, { headers: mirrored })),
    ).toBeDefined();
    expect(alpha.calls('region').at(-1)!.headers).toMatchObject({
      'mcp-param-region': 'eu',
      'mcp-param-count': '42',
    });
    const odd = { 'Mcp-Param-Region': '=?base64?w7xiZXI=?=' };
    expect(textOf(await client.tool('region', { region: 'über' }, { headers: odd }))).toBe(
      '{"region":"über"}',
    );
  });

  test.for([
    ['another value', { region: 'us', n: 42 }],
    ['no argument', { n: 42 }],
    ['null', { region: null, n: 42 }],
    ['another number', { region: 'eu', n: 43 }],
  ] as const)('[params.check] %s: 400, -32020, the upstream untouched', async ([, args]) => {
    const client = at.client('ann');
    await Promise.all([0, 1].map((pod) => client.call('tools/list', {}, { pod })));
    const before = alpha.calls('region').length;
    const call = client.beginTool('region', args, { headers: mirrored });
    expect([(await call.message()).error?.code, (await call.http).status]).toEqual([-32020, 400]);
    const bare = client.beginTool('region', { region: 'eu', n: 42 });
    expect((await bare.message()).error?.code).toBe(-32020);
    expect(alpha.calls('region')).toHaveLength(before);
  });

  test('[params.changed] a definition that has changed since is looked at again', async () => {
    alpha.tools['moving'] = { ...alpha.tools['region']! };
    const client = at.client('ann');
    await client.call('tools/list', {}, { pod: 0 });
    alpha.tools['moving'] = { ...alpha.tools['region']!, inputSchema: { type: 'object' } };
    await until('what was learned is older than two seconds', async () => {
      const { result } = await client.tool('moving', { region: 'eu' }, { pod: 0 });
      return result !== undefined;
    });
  });

  test('[params.hidden] a tool that breaks the rules is hidden, at both endpoints, and reported', async () => {
    alpha.tools['bad'] = {
      description: 'Mirrors a number',
      inputSchema: { type: 'object', properties: { x: { type: 'number', 'x-mcp-header': 'X' } } },
      run: () => says('ran'),
    };
    expect(names(await at.client('ann').call('tools/list'))).not.toContain('bad');
    expect(names(await all.call('tools/list'))).not.toContain('alpha__bad');
    expect(names(await all.call('tools/list'))).toContain('alpha__echo');
    const reports = world.stack.audit('tool.hidden');
    expect(reports[0]?.audit).toMatchObject({ upstream: 'alpha', tool: 'bad' });
    expect(reports.length, 'once per pod').toBeLessThanOrEqual(2);
  });
});
