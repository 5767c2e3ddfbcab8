import { afterAll, expect, test } from 'vitest';
import { heapAfterCollection, INSPECTED, residentBytes, socketsOf } from '../support/heap.ts';
import { startWorld } from '../support/world.ts';
import { until } from '../support/until.ts';

// Most clients never say goodbye (case R7): sessions that are opened and left, in every way in which one can leave,
// and after their TTL nothing of them is there: no key, no channel, no socket, no upstream session, no memory.

const SESSIONS = Number(process.env['VIADUCT_ABANDONED_SESSIONS'] ?? 300);
const TTL_SECONDS = 3;
const IN_ORDER = 20; // at a time

const world = await startWorld({
  plainUpstreams: ['plain'],
  env: INSPECTED,
  config: { sessions: { ttlSeconds: TTL_SECONDS, keepAliveSeconds: 1, streamAfterMs: 50 } },
});
afterAll(() => world.stop());
const plain = world.plain['plain']!;
const { redis, pods } = world.stack;

/** Leaves session `i` behind in one of four ways. */
async function abandon(i: number): Promise<void> {
  const pod = i % 2;
  const client = world.client(`user-${i % 50}`, { upstream: 'plain' });
  await client.initialize({ pod });
  if (i % 4 === 1) (await client.listen({ pod: 1 - pod })).close();
  if (i % 4 === 2) await client.beginTool('steps', { tag: 'left' }, { pod }).drop();
  if (i % 4 === 3) {
    const stream = await client.listen({ pod });
    await client.callTool('echo', { i }, { pod: 1 - pod });
    stream.close();
  }
}

async function abandonMany(count: number): Promise<void> {
  let next = 0;
  const worker = async (): Promise<void> => {
    while (next < count) await abandon(next++);
  };
  await Promise.all(Array.from({ length: IN_ORDER }, worker));
}

const sessionKeys = async (): Promise<string[]> =>
  (await redis.client.keys('viaduct:*')).filter((key) =>
    /^viaduct:(session|log|streams|upstream|pending|listeners|lease|call)/.test(key),
  );
const jobs = async (): Promise<number> =>
  (await redis.client.keys('{viaduct:bull}:*end-session*')).filter((key) => /:\d+$/.test(key))
    .length;
const measure = async () => ({
  sockets: pods.map(({ child }) => socketsOf(child.pid)),
  channels: ((await redis.client.pubsub('CHANNELS', '*')) as string[]).length,
  heap: await Promise.all(pods.map(({ child }) => heapAfterCollection(child))),
  resident: pods.map(({ child }) => residentBytes(child.pid)),
});

async function untilGone(): Promise<void> {
  const timeoutMs = 60_000;
  await until('no key of a session', async () => (await sessionKeys()).length === 0, { timeoutMs });
  await until('no session at the upstream', () => plain.sessions.size === 0, {
    timeoutMs,
  }).catch((error: unknown) => {
    throw new Error(`${String(error)}: ${plain.sessions.size} are left, ${plain.ended} ended`);
  });
  await until(
    'no stream is open',
    async () => (await world.stack.metric('viaduct_streams_open')) === 0,
    { timeoutMs },
  );
}

test('[R7] sessions that are left behind leave nothing behind', { timeout: 300_000 }, async () => {
  plain.gate('left').open();
  await abandonMany(60); // pools, caches and compiled code are there from now on
  await untilGone();
  const before = await measure();
  const initialized = plain.initialized;
  const ended = plain.ended;

  await abandonMany(SESSIONS);
  expect(plain.initialized - initialized).toBe(SESSIONS);
  await untilGone();

  expect(plain.ended - ended, 'each upstream session was ended, once').toBe(SESSIONS);
  expect(await redis.client.pubsub('NUMPAT')).toBe(0);
  // sockets to upstreams that idle in the pool close by themselves
  await until(
    'sockets are back to where they were',
    () => pods.every(({ child }, i) => socketsOf(child.pid) <= before.sockets[i]! + 2),
    { timeoutMs: 45_000, everyMs: 250 },
  );
  expect(await jobs(), 'no job waits for a session that is gone').toBe(0);
  const after = await measure();
  expect(after.channels).toBe(before.channels);
  for (const [i, heap] of after.heap.entries()) {
    expect(heap / before.heap[i]!, `heap of pod ${i}`).toBeLessThan(1.1);
  }
  const megabytes = (list: number[]): string =>
    list.map((n) => (n / 2 ** 20).toFixed(1)).join(', ');
  console.log(
    `${SESSIONS} sessions: heap ${megabytes(before.heap)} → ${megabytes(after.heap)} MB, ` +
      `resident ${megabytes(before.resident)} → ${megabytes(after.resident)} MB`,
  );
});
