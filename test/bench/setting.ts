/** What benchmarks run against: the product from dist/, an upstream, an identity provider, all on loopback. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { startIdentityProvider, type IdentityProvider } from '../support/identity-provider.ts';
import { Child } from '../support/process.ts';
import { startStack, type Configuration, type Stack } from '../support/stack.ts';
import { until } from '../support/until.ts';

const folder = new URL('.', import.meta.url).pathname;
const results = new URL('../results/bench/', import.meta.url).pathname;

/** One of the small programs of this folder; it prints its port. */
export interface Program {
  readonly port: number;
  readonly child: Child;
  readonly origin: string;
}

export async function startProgram(
  file: string,
  args: readonly string[] = [],
  env: Record<string, string> = {},
): Promise<Program> {
  const child = new Child(file, process.execPath, [join(folder, file), ...args], { env });
  const port = await until(`${file} listens`, () => {
    if (!child.running) throw new Error(`${file} ended: ${child.output}`);
    return /^\d+$/m.exec(child.stdout)?.[0];
  });
  return { port: Number(port), child, origin: `http://127.0.0.1:${port}` };
}

export interface Setting {
  readonly stack: Stack;
  readonly idp: IdentityProvider;
  readonly upstream: Program;
  token(subject: string): string;
  /** Upstream sessions that nobody has ended. */
  sessionsLeft(): Promise<number>;
  stop(): Promise<void>;
}

/** Limits are on, and counted, and never reached. */
const many = { points: 1_000_000_000, seconds: 60 };

export async function startSetting(
  options: {
    pods?: number;
    workers?: number;
    tools?: number;
    env?: Record<string, string>;
    config?: Configuration;
  } = {},
): Promise<Setting> {
  const upstream = await startProgram('upstream.ts', [], {
    BENCH_TOOLS: String(options.tools ?? 2),
  });
  const idp = await startIdentityProvider({ clients: {} });
  const behind = (path: string, protocol: string) => ({
    name: protocol,
    url: upstream.origin + path,
    protocol,
    allowPrivateNetwork: true,
  });
  const profile = process.env['BENCH_PROF'];
  const stack = await startStack({
    pods: options.pods ?? 1,
    workers: options.workers ?? 0,
    env: {
      LOG_LEVEL: 'warn',
      ...(profile !== undefined && { NODE_OPTIONS: profile }),
      ...options.env,
    },
    config: {
      auth: { mode: 'external', issuer: idp.url, audience: ['bench'] },
      upstreams: [behind('/mcp', 'legacy'), behind('/modern', 'modern')],
      limits: {
        user: many,
        userTool: many,
        userElicitations: many,
        address: many,
        concurrent: { perUser: 100_000, perPod: 100_000 },
      },
      ...options.config,
    },
  });
  return {
    stack,
    idp,
    upstream,
    token: (sub) => idp.mint({ sub, aud: 'bench', scope: 'mcp:tools' }),
    sessionsLeft: async () => Number(await (await fetch(`${upstream.origin}/sessions`)).text()),
    async stop() {
      // A clean end, so that a profiler in a pod can write what it saw (BENCH_PROF).
      for (const { child } of stack.pods) child.signal('SIGTERM');
      await Promise.all(stack.pods.map(({ child }) => child.ended));
      await stack.stop();
      await idp.stop();
      await upstream.child.kill();
    },
  };
}

/** Redis commands and bytes, by INFO. */
export async function redisCounts(stack: Stack): Promise<Map<string, number>> {
  const [commands, stats] = await Promise.all([
    stack.redis.client.info('commandstats'),
    stack.redis.client.info('stats'),
  ]);
  const counts = [...commands.matchAll(/cmdstat_(\S+?):calls=(\d+)/g)].map(
    ([, name = '', n]): [string, number] => [name, Number(n)],
  );
  const bytes = (which: string): [string, number] => [
    `bytes ${which}`,
    Number(new RegExp(`total_net_${which}_bytes:(\\d+)`).exec(stats)?.[1]),
  ];
  return new Map([...counts.filter(([name]) => name !== 'info'), bytes('input'), bytes('output')]);
}

export function difference(
  before: ReadonlyMap<string, number>,
  after: ReadonlyMap<string, number>,
  per: number,
): Record<string, number> {
  const entries = [...after]
    .map(([name, n]): [string, number] => [name, (n - (before.get(name) ?? 0)) / per])
    .filter(([, n]) => n >= 0.01)
    .map(([name, n]): [string, number] => [name, Number(n.toFixed(2))]);
  return Object.fromEntries(entries);
}

/** For whoever wants more than the table: an ignored folder. */
export function keep(name: string, data: unknown): void {
  mkdirSync(results, { recursive: true });
  writeFileSync(join(results, `${name}.json`), `${JSON.stringify(data, null, 2)}\n`);
}
