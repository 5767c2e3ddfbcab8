import { Redis } from 'ioredis';
import { freePort } from './net.ts';
import { Child, program, temporaryFolder } from './process.ts';
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

export async function startRedis(): Promise<RedisServer> {
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

  const read = async (key: string, type: string): Promise<unknown> => {
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
  };

  return {
    url: `redis://127.0.0.1:${port}`,
    port,
    client,
    start,
    freeze: () => server.freeze(),
    thaw: () => server.thaw(),
    kill: () => server.kill(),
    calls: async (command) => {
      const stats = await client.info('commandstats');
      return Number(new RegExp(`cmdstat_${command}:calls=(\\d+)`, 'i').exec(stats)?.[1] ?? 0);
    },
    dump: async () => {
      const found = [];
      for (const key of await client.keys('*')) {
        const type = await client.type(key);
        const value = JSON.stringify(await read(key, type)) || '';
        found.push({ key, type, ttlMs: await client.pttl(key), value });
      }
      return found;
    },
    stop: async () => {
      client.disconnect();
      server.thaw();
      await server.kill();
    },
  };
}
