import { afterAll, describe, expect, test } from 'vitest';
import type { Answer } from '../support/net.ts';
import { textOf } from '../support/mcp-client.ts';
import { startWorld } from '../support/world.ts';

// The four limits (design, section 5; issue 2, item 10): the same on all pods, 429 with Retry-After and a JSON-RPC
// body, never a 401. Each has a world of its own numbers, and a window longer than the test.

const PLENTY = { points: 100_000, seconds: 60 };
const limits = (own: Record<string, unknown>) => ({
  limits: { user: PLENTY, userTool: PLENTY, userElicitations: PLENTY, address: PLENTY, ...own },
});

function expectLimited(answer: Answer, id: unknown): void {
  expect(answer.status).toBe(429);
  expect(Number(answer.headers['retry-after'])).toBeGreaterThan(0);
  expect(answer.headers['ratelimit']).toBeTruthy();
  expect(answer.headers['ratelimit-policy']).toBeTruthy();
  expect(answer.headers['content-type']).toMatch(/^application\/json/);
  expect(answer.headers['www-authenticate']).toBeUndefined();
  expect(answer.json).toMatchObject({
    jsonrpc: '2.0',
    id,
    error: { code: expect.any(Number) as number },
  });
  expect(answer.json?.error?.data?.requestId).toBe(answer.headers['x-request-id']);
}

describe('user and userTool', async () => {
  const world = await startWorld({
    workers: 0,
    plainUpstreams: ['plain'],
    config: limits({ user: { points: 40, seconds: 300 }, userTool: { points: 10, seconds: 300 } }),
  });
  afterAll(() => world.stop());
  const plain = world.plain['plain']!;

  test('[limit.user-tool] the eleventh call of one tool is refused on both pods; another tool and another user go on', async () => {
    const ann = await world.client('ann', { upstream: 'plain' }).initialize({ pod: 0 });
    for (let i = 0; i < 10; i++) {
      expect(textOf(await ann.callTool('count', {}, { pod: i % 2 }))).toBe('counted');
    }
    for (const pod of [0, 1]) {
      const call = ann.beginTool('count', {}, { pod, id: `over-${pod}` });
      expectLimited(await call.http, `over-${pod}`);
    }
    expect(plain.ran['count']).toBe(10);
    expect(textOf(await ann.callTool('echo', { a: 1 }))).toBe('{"a":1}');
    const ben = await world.client('ben', { upstream: 'plain' }).initialize();
    expect(textOf(await ben.callTool('count', {}))).toBe('counted');
    const counted = await world.stack.metric('viaduct_rate_limited_total', { limit: 'userTool' });
    expect(counted).toBeGreaterThanOrEqual(2);
    expect(world.stack.audit('rate.limited').length).toBeGreaterThan(0);
  });

  test('[limit.user] requests count by user, whatever the client, session and pod', async () => {
    const sessions = [
      await world.client('cleo', { upstream: 'plain' }).initialize({ pod: 0 }),
      await world
        .client('cleo', { upstream: 'plain', claims: { client_id: 'other' } })
        .initialize({ pod: 1 }),
    ];
    let used = 4; // two initialize, two initialized
    let limited: Answer | undefined;
    for (; used < 60 && !limited; used++) {
      const answer = await sessions[used % 2]!.post(
        { jsonrpc: '2.0', id: used, method: 'tools/list' },
        { pod: used % 2 },
      );
      if (answer.status === 429) limited = answer;
      else expect(answer.status).toBe(200);
    }
    expect(used, 'one point more or less').toBeGreaterThanOrEqual(39);
    expect(used).toBeLessThanOrEqual(43);
    expectLimited(limited!, used - 1);
    const dan = await world.client('dan', { upstream: 'plain' }).initialize();
    expect((await dan.listTools()).result?.tools).toBeDefined();
    const health = await world.stack.pods[0]!.admin('/healthz/ready');
    expect(health.status).toBe(200);
  });
});

describe('userElicitations', async () => {
  const world = await startWorld({
    workers: 0,
    config: limits({ userElicitations: { points: 2, seconds: 300 } }),
  });
  afterAll(() => world.stop());

  test('[limit.elicitations] a third link is refused; the open ones are still told', async () => {
    const clients = [];
    for (let i = 0; i < 3; i++) clients.push(await world.client('eva').initialize({ pod: i % 2 }));
    const first = await world.askForLink(clients[0]!, { pod: 0 });
    await world.askForLink(clients[1]!, { pod: 1 });
    const call = clients[2]!.beginTool('echo', {}, { pod: 0, id: 'third' });
    expectLimited(await call.http, 'third');
    const again = await world.askForLink(clients[0]!, { pod: 1 });
    expect(again.elicitationId).toBe(first.elicitationId);
    await world.askForLink(await world.client('fay').initialize());
  });
});

describe('address', async () => {
  const world = await startWorld({
    workers: 0,
    plainUpstreams: ['plain'],
    config: limits({ address: { points: 10, seconds: 300 } }),
  });
  afterAll(() => world.stop());

  test('[limit.address] requests without a valid token count by address over both pods; a valid token does not', async () => {
    const nobody = world.client('x', { token: null, upstream: 'plain' });
    const statuses = [];
    for (let i = 0; i < 14; i++) {
      const at = { pod: i % 2, headers: { 'X-Forwarded-For': '203.0.113.7' } };
      const answer = await nobody.post({ jsonrpc: '2.0', id: i, method: 'tools/list' }, at);
      statuses.push(answer.status);
      if (answer.status === 429) expectLimited(answer, i);
    }
    expect(statuses.filter((status) => status === 401).length).toBeGreaterThanOrEqual(9);
    expect(statuses.filter((status) => status === 401).length).toBeLessThanOrEqual(11);
    expect(statuses.at(-1)).toBe(429);

    // what the client wrote before the trusted hop does not count
    const spoofed = await nobody.post(
      { jsonrpc: '2.0', id: 's', method: 'tools/list' },
      { pod: 0, headers: { 'X-Forwarded-For': '198.51.100.1, 203.0.113.7' } },
    );
    expect(spoofed.status).toBe(429);
    const neighbour = await nobody.post(
      { jsonrpc: '2.0', id: 'n', method: 'tools/list' },
      { pod: 0, headers: { 'X-Forwarded-For': '203.0.113.8' } },
    );
    expect(neighbour.status).toBe(401);

    const gil = world.client('gil', { upstream: 'plain' });
    const initialized = await gil.post(gil.initializeMessage(), {
      pod: 1,
      headers: { 'X-Forwarded-For': '203.0.113.7' },
    });
    expect(initialized.status).toBe(200);
  });
});

describe('pages', async () => {
  const world = await startWorld({
    pods: 1,
    config: limits({ user: { points: 8, seconds: 300 } }),
  });
  afterAll(() => world.stop());

  test('[limit.pages] looking at a link and deciding about it are limited, and audited; other people go on', async () => {
    const client = await world.client('ann').initialize();
    const asked = await world.askForLink(client);
    const browser = world.browser('ann');
    const page = await browser.open(asked.url);
    for (let look = 0; look < 7; look++) expect((await browser.open(asked.url)).status).toBe(200);
    const refused = await browser.open(asked.url);
    expect(refused.status).toBe(429);
    expect(Number(refused.headers['retry-after'])).toBeGreaterThan(0);
    // the form is there still, and its POST counts like a look
    browser.page = page;
    const decided = await browser.submit({ decision: 'approve' });
    expect(decided.status).toBe(429);
    expect(world.acme.authorizations).toHaveLength(0);
    expect(world.stack.audit('rate.limited').map(({ audit }) => audit!['userId'])).toEqual([
      world.userId('ann'),
      world.userId('ann'),
    ]);
    await world.connect(await world.client('ben').initialize(), 'ben');
  });
});
