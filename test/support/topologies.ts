import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { freePort } from './net.ts';
import { Child, program, temporaryFolder } from './process.ts';
import { until } from './until.ts';
import { openNetwork, type Network } from './network.ts';

// A Redis to break: alone with its append-only file, or with replicas and Sentinels, or as a Cluster.

export type Topology = 'standalone' | 'sentinel' | 'cluster';
export const TOPOLOGIES: readonly Topology[] = ['standalone', 'sentinel', 'cluster'];

interface Node {
  readonly port: number;
  readonly admin: Redis;
  child: Child;
  spawn(): Child;
}

export interface RedisTopology {
  readonly topology: Topology;
  readonly network: Network;
  /** Only a single server has a wire for each of its users; otherwise a cut concerns all of them. */
  readonly wires: 'each' | 'all' | 'none';
  urlFor(service: string): string;
  /** A node that takes writes, chosen by `chance`; what is done to it is undone on the same one. */
  victim(chance: number): Promise<Node>;
  /** Every node that takes writes now. */
  primaries(): Promise<readonly Redis[]>;
  killPubSub(): Promise<void>;
  /** Closes the connections of one user from Redis' side. */
  closeConnections(service: string): Promise<void>;
  /** How many keys there are of each kind, and which of ours would stay for ever. */
  keys(): Promise<{ kinds: Record<string, number>; immortal: string[] }>;
  stop(): Promise<void>;
}

interface StartOptions {
  readonly services: readonly string[];
  readonly topology: Topology;
}

const PRIMARIES = 3;

export async function startTopology({ services, topology }: StartOptions): Promise<RedisTopology> {
  const network = openNetwork();
  const nodes: Node[] = [];
  const others: Child[] = [];
  const together = topology !== 'standalone';
  // Members announce one address to everybody, so everybody has the same wire.
  const shared = together && network.kind === 'network namespace' ? (await network.wire('all', 0)).host : '127.0.0.1'; // prettier-ignore
  const run = (name: string, command: string, args: readonly string[]): Child => {
    const [first, rest] = network.inside(program(command, 'redis-server'), args);
    return new Child(name, first, rest);
  };

  async function addNode(more: readonly string[]): Promise<Node> {
    const port = await freePort();
    const folder = temporaryFolder();
    // A file, which Sentinel rewrites: a primary that was demoted must not come back with its old role.
    const file = join(folder, 'redis.conf');
    const settings = [
      ...[`port ${port}`, `bind ${network.bind}`, 'protected-mode no', `dir ${folder}`],
      ...['save ""', 'appendonly yes', 'appendfsync everysec', ...more],
    ];
    writeFileSync(file, `${settings.join('\n')}\n`);
    const spawn = (): Child => run('redis', 'redis-server', [file]);
    const { host, port: at } = together ? { host: shared, port } : await network.wire('test', port);
    const admin = new Redis({ host, port: at, lazyConnect: true, retryStrategy: () => 100, maxRetriesPerRequest: 0, commandTimeout: 2_000 }); // prettier-ignore
    admin.on('error', () => undefined);
    const node = { port, admin, child: spawn(), spawn };
    await admin.connect().catch(() => undefined);
    await until('redis-server answers', async () => {
      if (!node.child.running) throw new Error(`redis-server ended: ${node.child.output.slice(-500)}`);
      return (await admin.ping().catch(() => '')) === 'PONG';
    }); // prettier-ignore
    nodes.push(node);
    return node;
  }

  async function standalone(): Promise<(service: string) => string> {
    const { port } = await addNode([]);
    const urls = new Map<string, string>();
    for (const service of services) {
      const at = await network.wire(service, port);
      urls.set(service, `redis://${at.host}:${at.port}`);
    }
    return (service) => urls.get(service)!;
  }

  async function sentinel(): Promise<string> {
    const announce = [`replica-announce-ip ${shared}`];
    const first = await addNode(announce);
    for (const _ of [1, 2]) await addNode([`replicaof ${shared} ${first.port}`, ...announce]);
    const ports: number[] = [];
    for (const _ of [1, 2, 3]) {
      const port = await freePort();
      const folder = temporaryFolder();
      const file = join(folder, 'sentinel.conf');
      const lines = [
        `port ${port}`,
        `bind ${network.bind}`,
        'protected-mode no',
        `dir ${folder}`,
        `sentinel announce-ip ${shared}`,
        `sentinel monitor main ${shared} ${first.port} 2`,
        'sentinel down-after-milliseconds main 1000',
        'sentinel failover-timeout main 5000',
        'sentinel parallel-syncs main 1',
      ];
      writeFileSync(file, `${lines.join('\n')}\n`);
      others.push(run('sentinel', 'redis-server', [file, '--sentinel']));
      ports.push(port);
    }
    const look = new Redis({ host: shared, port: ports[0]!, retryStrategy: () => 100 });
    look.on('error', () => undefined);
    try {
      await until('the Sentinels know each other and the replicas', async () => {
        const text = String(await look.call('sentinel', 'ckquorum', 'main').catch(() => ''));
        const replicas = (await look.call('sentinel', 'replicas', 'main').catch(() => [])) as unknown[];
        return text.startsWith('OK 3') && replicas.length === 2;
      }, { timeoutMs: 30_000 }); // prettier-ignore
    } finally {
      look.disconnect();
    }
    return `redis+sentinel://${ports.map((port) => `${shared}:${port}`).join(',')}/main`;
  }

  async function cluster(): Promise<string> {
    for (let i = 0; i < PRIMARIES * 2; i++) {
      const bus = await freePort();
      await addNode([
        ...['cluster-enabled yes', 'cluster-node-timeout 2000'],
        ...[`cluster-announce-ip ${shared}`, `cluster-port ${bus}`],
      ]);
    }
    const addresses = nodes.map(({ port }) => `${shared}:${port}`);
    const made = run('redis-cli', 'redis-cli', [
      ...['--cluster', 'create', ...addresses, '--cluster-replicas', '1', '--cluster-yes'],
    ]);
    if ((await made.ended) !== 0) throw new Error(`no cluster: ${made.output.slice(-500)}`);
    await until('the cluster is sound', async () => {
      const states = await Promise.all(nodes.map(({ admin }) => admin.cluster('INFO')));
      return states.every((text) => text.includes('cluster_state:ok'));
    }, { timeoutMs: 30_000 }); // prettier-ignore
    return `redis+cluster://${addresses.join(',')}`;
  }

  const stop = async (): Promise<void> => {
    for (const { admin, child } of nodes) {
      admin.disconnect();
      child.thaw();
      await child.kill();
    }
    for (const child of others) await child.kill();
    await network.stop();
  };
  const role = async ({ admin, child }: Node): Promise<string> =>
    child.running ? String(((await admin.role().catch(() => [])) as unknown[])[0]) : 'away';

  try {
    let urlFor: (service: string) => string;
    if (topology === 'standalone') urlFor = await standalone();
    else {
      const url = await (topology === 'sentinel' ? sentinel() : cluster());
      urlFor = () => url;
    }
    const wires = !together ? 'each' : network.kind === 'forwarder' ? 'none' : 'all';
    return {
      topology,
      network,
      wires,
      urlFor,
      victim: (chance) =>
        until(
          'a node takes writes',
          async () => {
            const roles = await Promise.all(nodes.map(role));
            const primaries = nodes.filter((_, i) => roles[i] === 'master');
            return primaries[chance % Math.max(1, primaries.length)];
          },
          { timeoutMs: 30_000 },
        ),
      primaries: async () => {
        const roles = await Promise.all(nodes.map(role));
        return nodes.filter((_, i) => roles[i] === 'master').map(({ admin }) => admin);
      },
      killPubSub: async () => {
        await Promise.allSettled(nodes.map(({ admin }) => admin.call('CLIENT', 'KILL', 'TYPE', 'pubsub'))); // prettier-ignore
      },
      closeConnections: async (service) => {
        if (wires !== 'each' || network.kind === 'forwarder') {
          await Promise.allSettled(nodes.map(({ admin }) => admin.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes'))); // prettier-ignore
          return;
        }
        const { hostname, port } = new URL(urlFor(service));
        await nodes[0]!.admin.call('CLIENT', 'KILL', 'LADDR', `${hostname}:${port}`, 'SKIPME', 'yes'); // prettier-ignore
      },
      keys: async () => {
        const kinds: Record<string, number> = {};
        const immortal: string[] = [];
        for (const node of nodes) {
          if ((await role(node)) !== 'master') continue;
          for (const key of await node.admin.keys('*')) {
            const kind = /^\{?viaduct:(\w+)/.exec(key)?.[1] ?? 'other';
            kinds[kind] = (kinds[kind] ?? 0) + 1;
            if (kind !== 'bull' && (await node.admin.pttl(key)) === -1) immortal.push(key);
          }
        }
        return { kinds, immortal };
      },
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}
