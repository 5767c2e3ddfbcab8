import { afterAll, describe, expect, test } from 'vitest';
import { textOf } from '../support/mcp-client.ts';
import { startWorld } from '../support/world.ts';
import { until } from '../support/until.ts';

// Any pod serves any request of a session, and an unknown one is 404 on every method (invariant 1; cases S1, S2).

const world = await startWorld({ workers: 0, plainUpstreams: ['plain'] });
afterAll(() => world.stop());
const { stack } = world;
const plain = world.plain['plain']!;
const LIST = { jsonrpc: '2.0', id: 7, method: 'tools/list' };

describe('an unknown session', () => {
  test.for([
    ['00000000-0000-4000-8000-000000000000'],
    ['A'.repeat(22)],
    ['*'],
    ['x'],
    ['a:b'],
    ['%0d%0a'],
    ['../../etc'],
    ['x'.repeat(4_096)],
  ])('[S1] %s is 404 for POST, GET, DELETE and a notification, on both pods', async ([id]) => {
    const client = world.client('ann', { upstream: 'plain' });
    const headers = { 'Mcp-Session-Id': id, 'MCP-Protocol-Version': '2025-11-25' };
    for (const pod of [0, 1]) {
      const posted = await client.post(LIST, { pod, headers });
      expect(posted.status).toBe(404);
      expect(posted.json).toMatchObject({ jsonrpc: '2.0', id: 7, error: {} });
      expect((await client.get({ pod, headers })).status).toBe(404);
      expect((await client.end({ pod, headers })).status).toBe(404);
      expect(
        (await client.notify('notifications/initialized', undefined, { pod, headers })).status,
      ).toBe(404);
    }
  });

  test('[S1] without the header it is 400', async () => {
    const client = world.client('ann', { upstream: 'plain' });
    const posted = await client.post(LIST);
    expect(posted.status).toBe(400);
    expect(posted.json).toMatchObject({ jsonrpc: '2.0', id: 7, error: {} });
    expect((await client.get()).status).toBe(400);
    expect((await client.end()).status).toBe(400);
    expect((await client.notify('notifications/initialized')).status).toBe(400);
  });

  test('[S1] a session of one endpoint is unknown at another', async () => {
    const client = await world.client('ann', { upstream: 'plain' }).initialize();
    const elsewhere = client.as({ url: world.endpoint('files'), token: world.token('ann') });
    expect((await elsewhere.post(LIST)).status).toBe(404);
  });
});

describe('a session on any pod', () => {
  test('[S2] a hundred sessions, each request on the next pod: everything works, and each opened one session upstream', async () => {
    const served = [...stack.roundRobin!.served];
    const before = { initialized: plain.initialized, ended: plain.ended };
    const run = async (i: number): Promise<void> => {
      const client = await world.client(`user-${i % 7}`, { upstream: 'plain' }).initialize();
      expect((await client.listTools()).result?.tools).toBeDefined();
      expect(textOf(await client.callTool('echo', { i }))).toBe(`{"i":${i}}`);
      expect((await client.end()).status).toBe(204);
      for (const pod of [0, 1]) {
        expect((await client.post(LIST, { pod })).status).toBe(404);
        expect((await client.get({ pod })).status).toBe(404);
      }
    };
    for (let batch = 0; batch < 10; batch++) {
      await Promise.all(Array.from({ length: 10 }, (_, i) => run(batch * 10 + i)));
    }
    expect(plain.initialized - before.initialized).toBe(100);
    await until('the upstream’s sessions are ended', () => plain.ended - before.ended === 100);
    const after = stack.roundRobin!.served;
    for (const pod of [0, 1]) expect(after[pod]! - served[pod]!).toBeGreaterThan(200);
  }, 60_000);

  test('[S2] initialized, called and asked on the pod that did not make it; the maker dies; DELETE ends it everywhere', async () => {
    const client = world.client('ben', { upstream: 'plain' });
    const initialized = await client.post(client.initializeMessage(), { pod: 0 });
    client.sessionId = initialized.headers['mcp-session-id'] as string;
    client.negotiated = initialized.json!.result!.protocolVersion;
    expect((await client.notify('notifications/initialized', undefined, { pod: 1 })).status).toBe(
      202,
    );
    expect(textOf(await client.callTool('echo', { a: 1 }, { pod: 1 }))).toBe('{"a":1}');

    const stream = await client.listen({ pod: 0 });
    plain.gate('s2').open();
    const steps = client.beginTool(
      'steps',
      { tag: 's2' },
      { pod: 1, meta: { progressToken: 'p' } },
    );
    expect(textOf(await steps.message())).toBe('s2 done');
    expect((await steps.stream()).named('notifications/progress')).toHaveLength(4);
    const asked = await client.callTool(
      'ask_form',
      {},
      { pod: 1, answerAt: 0, onAsk: () => ({ action: 'accept', content: { name: 'Ben' } }) },
    );
    expect(textOf(asked)).toContain('"name":"Ben"');
    expect(stream.named('notifications/progress'), 'each on its own stream').toEqual([]);
    expect(stream.named('elicitation/create')).toEqual([]);

    await stack.pods[0]!.child.kill();
    expect((await client.listTools({ pod: 1 })).result?.tools).toBeDefined();
    await stack.restart(stack.pods[0]!);
    expect((await client.end({ pod: 1 })).status).toBe(204);
    expect((await client.post(LIST, { pod: 0 })).status).toBe(404);
    const audit = stack.logs().filter((line) => line.audit?.type.includes('session'));
    expect(audit.length).toBeGreaterThan(0);
  });

  test('[S2] DELETE ends the streams that other pods hold', async () => {
    const client = await world.client('cleo', { upstream: 'plain' }).initialize({ pod: 0 });
    const stream = await client.listen({ pod: 0 });
    expect((await client.end({ pod: 1 })).status).toBe(204);
    await stream.ended();
    expect((await client.end({ pod: 0 })).status).toBe(404);
  });

  test('[S2] an upstream that forgot its session gets a new one, and the call runs once', async () => {
    const client = await world.client('dan', { upstream: 'plain' }).initialize();
    await client.callTool('count', {});
    const before = { ran: plain.ran['count']!, initialized: plain.initialized };
    plain.forget();
    const answers = await Promise.all(
      [0, 1, 0, 1].map((pod) => client.callTool('count', {}, { pod })),
    );
    for (const answer of answers) expect(textOf(answer), JSON.stringify(answer)).toBe('counted');
    expect(plain.ran['count']! - before.ran).toBe(4);
    expect(plain.initialized - before.initialized, 'one new session for all').toBe(1);
  });
});

describe('versions', () => {
  test.for([['2025-03-26'], ['2025-06-18'], ['2025-11-25']])(
    '[legacy.versions] %s is negotiated end to end',
    async ([version]) => {
      const client = await world
        .client('eva', { upstream: 'plain', version: version! })
        .initialize();
      expect(client.negotiated).toBe(version);
      expect(textOf(await client.callTool('echo', { v: version }))).toBe(`{"v":"${version}"}`);
      expect([...plain.sessions.values()].at(-1)?.version).toBe(version);
    },
  );

  test('[legacy.versions] an unknown one is answered with one that we speak; a wrong header is 400', async () => {
    const client = await world
      .client('fay', { upstream: 'plain', version: '2199-01-01' })
      .initialize();
    expect(client.negotiated).toBe('2025-11-25');
    const wrong = await client.post(LIST, { headers: { 'MCP-Protocol-Version': '1999-01-01' } });
    expect(wrong.status).toBe(400);
    const none = await client.post(LIST, { headers: { 'MCP-Protocol-Version': undefined } });
    expect(none.status).toBe(200);
  });
});
