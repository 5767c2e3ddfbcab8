import { Cluster, Redis } from 'ioredis';
import { freePort } from './net.ts';
import { Child, program, temporaryFolder } from './process.ts';
import { startTopology, type Topology } from './topologies.ts';
import { until } from './until.ts';

/**
 * A Redis of the test's own, without persistence. `client` is the test's eye on it: it waits out an outage
 * rather than fail, so a test asks it nothing while Redis is away.
 */
export interface RedisServer {
  readonly url: string;
  readonly port: number;
  readonly client: Redis;
  freeze(): void;
  thaw(): void;
  kill(): Promise<void>;
  /** Again on the same port, empty. */
  start(): Promise<void>;
  /** How often a command ran, from INFO commandstats (calls made inside scripts count). */
  calls(command: string): Promise<number>;
  /** Every key with type, time to live and a readable value. */
  dump(): Promise<{ key: string; type: string; ttlMs: number; value: string }[]>;
  stop: () => Promise<void>;
}

/** What the suite runs on: `VIADUCT_TEST_REDIS=cluster` or `sentinel` for another topology. */
export const TOPOLOGY = (process.env['VIADUCT_TEST_REDIS'] ?? 'standalone') as Topology;

export function startRedis(): Promise<RedisServer> {
  return TOPOLOGY === 'standalone' ? startAlone() : startTogether(TOPOLOGY);
}

async function startAlone(): Promise<RedisServer> {
  const port = await freePort();
  const folder = temporaryFolder();
  const client = new Redis(port, '127.0.0.1', {
    lazyConnect: true,
    maxRetriesPerRequest: null,
    retryStrategy: () => 50,
  });
  client.on('error', () => undefined);
  let server: Child;

  const start = async (): Promise<void> => {
    server = new Child('redis', program('redis-server', 'redis-server'), [
      ...['--port', String(port), '--bind', '127.0.0.1', '--dir', folder],
      ...['--save', '', '--appendonly', 'no'],
    ]);
    await until('redis-server answers', async () => {
      if (!server.running) throw new Error(`redis-server ended: ${server.output.slice(-300)}`);
      return server.stdout.includes('Ready to accept connections');
    });
    if (client.status === 'wait') await client.connect();
    await client.ping();
  };
  await start();

  return {
    url: `redis://127.0.0.1:${port}`,
    port,
    client,
    start,
    freeze: () => server.freeze(),
    thaw: () => server.thaw(),
    kill: () => server.kill(),
    calls: (command) => callsOf(client, command),
    dump: () => dump(client),
    stop: async () => {
      client.disconnect();
      server.thaw();
      await server.kill();
    },
  };
}

/** Several nodes that announce themselves: nothing here is frozen or killed, that is test/chaos's work. */
async function startTogether(topology: 'sentinel' | 'cluster'): Promise<RedisServer> {
  const at = await startTopology({ services: [], topology });
  const url = at.urlFor('');
  const [, list = '', name = ''] = /^redis\+\w+:\/\/([^/]+)\/?(.*)$/.exec(url) ?? [];
  const addresses = list.split(',').map((address) => {
    const [host = '', port = ''] = address.split(':');
    return { host, port: Number(port) };
  });
  const client =
    topology === 'sentinel'
      ? new Redis({ sentinels: addresses, name })
      : asOne(new Cluster(addresses));
  client.on('error', () => undefined);
  await client.ping();
  const alone = (): never => {
    throw new Error(`this test breaks its Redis, and runs on a single one only (not ${topology})`);
  };
  return {
    url,
    get port() {
      return alone();
    },
    client,
    start: alone,
    freeze: alone,
    thaw: alone,
    kill: alone,
    calls: async (command) => {
      const counts = await Promise.all(
        (await at.primaries()).map((node) => callsOf(node, command)),
      );
      return counts.reduce((sum, count) => sum + count, 0);
    },
    dump: () => dump(client),
    stop: async () => {
      client.disconnect();
      await at.stop();
    },
  };
}

/** A Cluster with the one thing that its client does not spread over all nodes. */
const asOne = (cluster: Cluster): Redis =>
  Object.assign(cluster as unknown as Redis, {
    keys: async (pattern: string) =>
      (await Promise.all(cluster.nodes('master').map((node) => node.keys(pattern)))).flat(),
  });

/** Calls made inside scripts count. */
async function callsOf(node: Redis, command: string): Promise<number> {
  const stats = await node.info('commandstats');
  return Number(new RegExp(`cmdstat_${command}:calls=(\\d+)`, 'i').exec(stats)?.[1] ?? 0);
}

async function dump(client: Redis): Promise<Awaited<ReturnType<RedisServer['dump']>>> {
  const found = [];
  for (const key of await client.keys('*')) {
    const type = await client.type(key);
    const value = JSON.stringify(await read(client, key, type)) || '';
    found.push({ key, type, ttlMs: await client.pttl(key), value });
  }
  return found;
}

async function read(client: Redis, key: string, type: string): Promise<unknown> {
  switch (type) {
    case 'string':
      return client.get(key);
    case 'hash':
      return client.hgetall(key);
    case 'list':
      return client.lrange(key, 0, -1);
    case 'set':
      return client.smembers(key);
    case 'zset':
      return client.zrange(key, '0', '-1');
    case 'stream':
      return client.xrange(key, '-', '+');
    default:
      return undefined;
  }
}
