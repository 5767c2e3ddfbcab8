import net from 'node:net';
import { afterAll, expect, test } from 'vitest';
import { startTopology } from '../support/topologies.ts';
import { freePort } from '../support/net.ts';
import { until } from '../support/until.ts';
import { startWorld } from '../support/world.ts';

// Sentinel (issue 7, “Must show”; case R2): primaries are killed one after the other. Asking a Sentinel takes long here,
// so that failovers are announced while clients are connecting: ioredis gives such a client up for good, ours begins
// again.

const DELAY_MS = 700;
const redis = await startTopology({ services: [], topology: 'sentinel' });
const sockets = new Set<net.Socket>();
const servers: net.Server[] = [];

/** A Sentinel behind a slow line. */
async function slow(host: string, port: number): Promise<string> {
  const server = net.createServer((near) => {
    const far = net.connect(port, host);
    for (const [from, to] of [
      [near, far],
      [far, near],
    ] as const) {
      sockets.add(from);
      from.on('data', (chunk) =>
        setTimeout(() => to.writable && to.write(chunk), from === far ? DELAY_MS : 0),
      );
      from.on('error', () => from.destroy());
      from.on('close', () => {
        sockets.delete(from);
        to.destroy();
      });
    }
  });
  const own = await freePort();
  await new Promise<void>((resolve) => server.listen(own, '127.0.0.1', resolve));
  servers.push(server);
  return `127.0.0.1:${own}`;
}
const [, list = '', name] = /^redis\+sentinel:\/\/(.+)\/(.+)$/.exec(redis.urlFor('any')) ?? [];
const behind = await Promise.all(
  list.split(',').map((one) => slow(one.split(':')[0]!, Number(one.split(':')[1]))),
);
const world = await startWorld({
  redisUrlFor: () => `redis+sentinel://${behind.join(',')}/${name}`,
});
afterAll(async () => {
  await world.stop();
  for (const socket of sockets) socket.destroy();
  for (const server of servers) server.close();
  await redis.stop();
});
const { pods, workers } = world.stack;

test('[redis.sentinel] primaries are killed: pods and workers come back by themselves, each time', async () => {
  const all = [...pods, ...workers];
  const up = async (): Promise<boolean> =>
    (await Promise.all(all.map((one) => one.admin('/healthz/ready')))).every(
      ({ status }) => status === 200,
    );
  const serves = async (pod: number, user: string): Promise<boolean> => {
    const client = world.client(user);
    return (await client.post(client.initializeMessage(), { pod })).status === 200;
  };
  // Three servers: two may die.
  for (let round = 1; round <= 2; round++) {
    const victim = await redis.victim(0);
    await victim.child.kill();
    await until(`${round}: there is another primary`, async () => (await redis.victim(0)) !== victim, { timeoutMs: 30_000 }); // prettier-ignore
    // Readiness may not have seen a quick failover; a request that needs Redis has.
    for (const pod of pods.keys()) {
      await until(`${round}: pod ${pod} serves again`, () => serves(pod, `first${round}`), { timeoutMs: 40_000 }); // prettier-ignore
    }
    await until(`${round}: all are ready`, up, { timeoutMs: 40_000 });
    // a flow needs sessions, the bus, the worker and its queues
    const client = await world.client(`user${round}`).initialize();
    const stream = await client.listen();
    await world.connect(client, `user${round}`);
    await stream.notification('notifications/elicitation/complete');
    expect((await client.callTool('echo', {}, { pod: 1 })).result).toBeDefined();
  }
}, 240_000);
