import { afterAll, describe, expect, test } from 'vitest';
import { startWorld } from '../support/world.ts';
import { until } from '../support/until.ts';

// An open stream is activity: the session lives while one is open, on whichever pod, and runs out a TTL after the
// last one has ended (case S4). The TTL here is 3 s, so that its end can be seen.

const TTL_MS = 3_000;
const world = await startWorld({
  workers: 0,
  plainUpstreams: ['plain'],
  config: { sessions: { ttlSeconds: TTL_MS / 1_000, keepAliveSeconds: 1 } },
});
afterAll(() => world.stop());
const plain = world.plain['plain']!;
const redis = world.stack.redis.client;
const LIST = { jsonrpc: '2.0', id: 1, method: 'tools/list' };
const keyOf = (user: string, sessionId: string) =>
  `viaduct:session:{${world.userId(user)}}:${sessionId}`;

/** Watches the session's key until well past its TTL. */
async function outlives(key: string): Promise<void> {
  const began = performance.now();
  await until(
    'the TTL has passed twice',
    async () => {
      expect(await redis.pttl(key), 'milliseconds left').toBeGreaterThan(0);
      return performance.now() - began > 2 * TTL_MS;
    },
    { timeoutMs: 4 * TTL_MS, everyMs: 200 },
  );
}

describe.concurrent('a session', () => {
  test('[S4] lives as long as a stream is open, through a change of streams and pods', async () => {
    const client = await world.client('ann', { upstream: 'plain' }).initialize({ pod: 0 });
    const key = keyOf('ann', client.sessionId!);
    const first = await client.listen({ pod: 0 });
    await outlives(key);
    const second = await client.listen({ pod: 1 });
    first.close();
    await outlives(key);

    await until('the upstream is listened to', () => plain.listening() > 0);
    plain.notify('notifications/tools/list_changed');
    await second.notification('notifications/tools/list_changed');
    expect((await client.post(LIST, { pod: 0 })).status).toBe(200);

    second.close();
    await until('the session has run out', async () => (await redis.exists(key)) === 0, {
      timeoutMs: 20_000,
    });
    for (const pod of [0, 1]) expect((await client.post(LIST, { pod })).status).toBe(404);
  }, 60_000);

  test('[S4] that is only ever initialized runs out with its keys', async () => {
    const client = await world.client('ben', { upstream: 'plain' }).initialize();
    const uid = world.userId('ben');
    // what is known of the session upstream stays a while, for whoever ends it there
    const own = async () =>
      (await redis.keys(`viaduct:*{${uid}}:${client.sessionId}*`)).filter(
        (key) => !key.startsWith('viaduct:upstream:'),
      );
    expect(await own()).not.toEqual([]);
    await until('its keys are gone', async () => (await own()).length === 0, { timeoutMs: 20_000 });
    expect((await client.post(LIST)).status).toBe(404);
  }, 60_000);

  test('[S4] is kept alive by its requests', async () => {
    const client = await world.client('cleo', { upstream: 'plain' }).initialize();
    const began = performance.now();
    await until(
      'the TTL has passed twice',
      async () => {
        expect((await client.post(LIST)).status).toBe(200);
        return performance.now() - began > 2 * TTL_MS;
      },
      { timeoutMs: 4 * TTL_MS, everyMs: 500 },
    );
  }, 60_000);

  test('[S4] is kept alive by a call that runs longer than the TTL', async () => {
    const client = await world.client('dan', { upstream: 'plain' }).initialize();
    const call = client.beginTool('hold', { gate: 'long' });
    await call.stream();
    await outlives(keyOf('dan', client.sessionId!));
    plain.gate('long').open();
    expect((await call.message()).result).toBeDefined();
    expect((await client.post(LIST)).status).toBe(200);
  }, 60_000);
});
