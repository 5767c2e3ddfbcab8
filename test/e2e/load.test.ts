import { afterAll, expect, test } from 'vitest';
import { INSPECTED, keepBusy } from '../support/heap.ts';
import { textOf } from '../support/mcp-client.ts';
import { ModernClient } from '../support/modern-client.ts';
import { until } from '../support/until.ts';
import { startWorld } from '../support/world.ts';

// What may be open at once (issue 7, item 1): by user 429, by pod 503, by a late event loop 503, and it frees itself.

const PLENTY = { points: 100_000, seconds: 60 };
const world = await startWorld({
  pods: 1,
  workers: 0,
  env: INSPECTED,
  plainUpstreams: ['plain'],
  config: {
    limits: {
      user: PLENTY,
      userTool: PLENTY,
      address: PLENTY,
      concurrent: { perUser: 3, perPod: 5, maxEventLoopDelayMs: 100 },
    },
  },
});
afterAll(() => world.stop());
const plain = world.plain['plain']!;
const list = (id: string) => ({ jsonrpc: '2.0', id, method: 'tools/list' });

test('[limit.concurrent-user] what one user holds open is capped; others and the same user later go on', async () => {
  const ann = await world.client('ann', { upstream: 'plain' }).initialize();
  const calls = ['a', 'b', 'c'].map((id) => ann.beginTool('hold', { gate: 'user' }, { id }));
  await until('three calls run', () => plain.ran['hold'] === 3);
  const refused = await ann.post(list('over'));
  expect(refused.status).toBe(429);
  expect(refused.headers['retry-after']).toBe('1');
  expect(refused.json).toMatchObject({ id: 'over', error: { data: { limit: 'concurrentUser' } } });
  const ben = await world.client('ben', { upstream: 'plain' }).initialize();
  expect((await ben.post(list('ben'))).status).toBe(200);
  plain.gate('user').open();
  for (const call of calls) expect(textOf(await call.message())).toBe('held user');
  await until('there is room again', async () => (await ann.post(list('x'))).status === 200);
});

test('[limit.concurrent-user] streams count like calls, and both eras together', async () => {
  const fay = await world.client('fay', { upstream: 'plain' }).initialize();
  const modern = new ModernClient({ url: `${world.publicUrl}/mcp/plain`, token: fay.token! });
  const stream = await fay.listen();
  const subscription = await modern.listen({ toolsListChanged: true });
  const ran = plain.ran['hold']!;
  const call = modern.beginTool('hold', { gate: 'eras' });
  await until('the call runs', () => plain.ran['hold'] === ran + 1);
  for (const refused of [
    await fay.post(list('over')),
    await modern.post(modern.body('tools/list', {}, { id: 'over' })),
  ]) {
    expect(refused.status).toBe(429);
    expect(refused.json).toMatchObject({
      id: 'over',
      error: { data: { limit: 'concurrentUser' } },
    });
  }
  stream.close();
  await until('there is room again', async () => (await fay.post(list('x'))).status === 200);
  plain.gate('eras').open();
  expect(textOf(await call.message())).toBe('held eras');
  subscription.stream.close();
});

test('[limit.concurrent-pod] a full pod answers 503; what is open goes on', async () => {
  const ran = plain.ran['hold']!;
  const [cleo, dan] = [
    await world.client('cleo', { upstream: 'plain' }).initialize(),
    await world.client('dan', { upstream: 'plain' }).initialize(),
  ];
  const calls = [
    ...['a', 'b', 'c'].map((id) => cleo.beginTool('hold', { gate: 'pod' }, { id })),
    ...['d', 'e'].map((id) => dan.beginTool('hold', { gate: 'pod' }, { id })),
  ];
  await until('five calls run', () => plain.ran['hold'] === ran + 5);
  const refused = await dan.post(list('over'));
  expect(refused.status).toBe(503);
  expect(refused.headers['retry-after']).toBe('1');
  // health and metrics don't compete with anybody
  expect((await world.stack.pods[0]!.admin('/healthz/ready')).status).toBe(200);
  plain.gate('pod').open();
  for (const call of calls) expect(textOf(await call.message())).toBe('held pod');
  await until('there is room again', async () => (await dan.post(list('x'))).status === 200);
});

test('[limit.event-loop] a late event loop sends new requests away; what is open goes on; and it ends', async () => {
  const pod = world.stack.pods[0]!;
  const eva = await world.client('eva', { upstream: 'plain' }).initialize();
  const ran = plain.ran['hold']!;
  const call = eva.beginTool('hold', { gate: 'late' });
  await until('the call runs', () => plain.ran['hold'] === ran + 1);
  const free = await keepBusy(pod.child, 200);
  try {
    const shed = await until('a request is sent away', async () => {
      const answer = await eva.post(list('late'));
      return answer.status === 503 ? answer : undefined;
    });
    expect(shed.headers['retry-after']).toBe('1');
    expect(shed.json?.error?.message).toContain('overloaded');
    expect((await pod.admin('/healthz/ready')).status).toBe(200);
    plain.gate('late').open();
    expect(textOf(await call.message())).toBe('held late');
  } finally {
    await free();
  }
  let inARow = 0;
  await until('everything is taken again', async () => {
    inARow = (await eva.post(list('again'))).status === 200 ? inARow + 1 : 0;
    return inARow === 50;
  });
  expect(
    await world.stack.metric('viaduct_rate_limited_total', { limit: 'eventLoop' }),
  ).toBeGreaterThan(0);
});
