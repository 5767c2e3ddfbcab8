import { randomBytes } from 'node:crypto';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { startHaproxy, startRoundRobin, type Balancer, type RoundRobin } from './balancer.ts';
import { freePort, parse, send, type Answer, type Message } from './net.ts';
import { found, takeLeaks, watchPort } from './planted.ts';
import { Child, temporaryFolder } from './process.ts';
import { startRedis, type RedisServer } from './redis-server.ts';
import { until } from './until.ts';

const root = new URL('../../', import.meta.url).pathname;
const MAIN = { gateway: 'services/gateway/dist/main.js', worker: 'services/worker/dist/main.js' };

export type Configuration = Record<string, unknown>;

export interface StackOptions {
  /** The file's content beyond publicUrl and a short drain; a function when it needs the address. */
  config: Configuration | ((at: { publicUrl: string }) => Configuration);
  pods?: number;
  workers?: number;
  env?: Record<string, string | undefined>;
  balancer?: 'round-robin' | 'haproxy';
  /** Another address than that of the balancer, for what only shows behind a public name. */
  publicUrl?: string;
  /** Where each process finds a Redis of the test's own, which it also ends; without it the stack brings one. */
  redisUrlFor?: (service: string) => string;
}

export interface LogLine extends Message {
  level?: number | string;
  msg?: string;
  requestId?: string;
  audit?: { type: string; [member: string]: unknown };
}

/** One process of the product with its two listeners; `admin` is the only one of a worker. */
export interface Service {
  readonly name: string;
  readonly port: number;
  readonly adminPort: number;
  child: Child;
  admin(path: string): Promise<Answer>;
  metrics(): Promise<string>;
  ready(): Promise<void>;
}

export interface Stack {
  readonly publicUrl: string;
  readonly redis: RedisServer;
  readonly pods: readonly Service[];
  readonly workers: readonly Service[];
  readonly ports: readonly number[];
  readonly roundRobin: RoundRobin | undefined;
  readonly configFile: string;
  /** Of processes that start from now on. */
  readonly env: Record<string, string | undefined>;
  restart(service: Service): Promise<void>;
  addWorker(): Promise<Service>;
  /** Everything that any process has written, ended ones included. */
  output(): string;
  logs(): LogLine[];
  /** What was written to stdout and is not one JSON object a line. */
  strayLines(): string[];
  audit(type: string | RegExp): LogLine[];
  metric(name: string, labels?: Record<string, string>): Promise<number>;
  stop: () => Promise<void>;
}

function assertBuilt(): void {
  for (const main of Object.values(MAIN)) {
    if (!existsSync(join(root, main))) throw new Error(`${main} is missing: npm run build`);
  }
}

export const newSecretKeys = (): string => `test:${randomBytes(32).toString('base64')}`;

/** Ends in reverse order whatever has been started, also when the next start fails. */
class Closers {
  readonly #closers: (() => Promise<void>)[] = [];

  add(closer: () => Promise<void>): void {
    this.#closers.push(closer);
  }

  async close(): Promise<void> {
    for (const closer of this.#closers.splice(0).reverse()) await closer();
  }
}

/**
 * The product as its contract says to start it (design, section 4): a Redis, gateway pods and workers from
 * `dist`, all on loopback and free ports, ready when this resolves.
 */
export async function startStack(options: StackOptions): Promise<Stack> {
  assertBuilt();
  const { pods: podCount = 2, workers: workerCount = 1, balancer = 'round-robin' } = options;
  const closers = new Closers();
  const retired: Child[] = [];
  const pods: Service[] = [];
  const workers: Service[] = [];
  const port = await freePort();
  const publicUrl = options.publicUrl ?? `http://localhost:${port}`;
  const given =
    typeof options.config === 'function' ? options.config({ publicUrl }) : options.config;
  const configFile = join(temporaryFolder(), 'viaduct.yaml');
  const drain = { delaySeconds: 0, timeoutSeconds: 5 };
  writeFileSync(configFile, JSON.stringify({ publicUrl, drain, ...given }, null, 2)); // JSON is YAML

  try {
    const { redisUrlFor } = options;
    const redis = redisUrlFor === undefined ? await startRedis() : undefined;
    if (redis) closers.add(redis.stop);
    const secretKeys = newSecretKeys();
    const env = { ...options.env };
    const spawn = (name: string, main: string, ports: Record<string, string>): Child =>
      new Child(name, process.execPath, [join(root, main)], {
        cwd: root,
        env: {
          VIADUCT_CONFIG: configFile,
          REDIS_URL: redis?.url ?? redisUrlFor?.(name),
          HOST: '127.0.0.1',
          VIADUCT_SECRET_KEYS: secretKeys,
          POD_NAME: name,
          ...ports,
          ...env,
        },
      });
    const restarters = new Map<Service, () => Child>();

    const startService = async (kind: keyof typeof MAIN, index: number): Promise<Service> => {
      const name = `${kind === 'gateway' ? 'pod' : 'worker'}${index + 1}`;
      const publicPort = kind === 'gateway' ? await freePort() : 0;
      const adminPort = await freePort();
      if (kind === 'gateway') watchPort(publicPort);
      watchPort(adminPort);
      const start = (): Child =>
        spawn(name, MAIN[kind], {
          ADMIN_PORT: String(adminPort),
          ...(kind === 'gateway' && { PORT: String(publicPort) }),
        });
      const service: Service = {
        name,
        port: publicPort,
        adminPort,
        child: start(),
        admin: (path) => send(`http://127.0.0.1:${adminPort}${path}`),
        metrics: async () => (await service.admin('/metrics')).text,
        ready: async () => {
          await until(
            `${name} is ready: ${service.child.output.slice(-300)}`,
            async () => {
              const { child } = service;
              if (!child.running) throw new Error(`${name} ended: ${child.output.slice(-1500)}`);
              return (await service.admin('/healthz/ready').catch(() => undefined))?.status === 200;
            },
            { timeoutMs: 60_000, everyMs: 50 },
          );
        },
      };
      restarters.set(service, start);
      closers.add(() => service.child.kill());
      return service;
    };

    for (let i = 0; i < podCount; i++) pods.push(await startService('gateway', i));
    for (let i = 0; i < workerCount; i++) workers.push(await startService('worker', i));
    await Promise.all([...pods, ...workers].map((service) => service.ready()));

    const ports = pods.map((pod) => pod.port);
    const front: Balancer =
      balancer === 'haproxy' ? await startHaproxy(port, pods) : await startRoundRobin(port, ports);
    closers.add(front.stop);
    watchPort(port);

    const everyone = (): Child[] => [...retired, ...[...pods, ...workers].map((s) => s.child)];
    const lines = (): string[] =>
      everyone().flatMap((child) => child.stdout.split('\n').filter((line) => line.trim() !== ''));
    const logs = (): LogLine[] =>
      lines()
        .map(parse)
        .filter((line): line is LogLine => line !== undefined);

    /** What this stack has written anywhere, or sent to anybody, that it must not (invariant 9). */
    const scan = async (): Promise<string[]> => {
      const alive = [...pods, ...workers].filter(({ child }) => child.running);
      const metrics = alive.map((service) => service.metrics().catch(() => ''));
      // A Redis that a test has taken away holds nothing any more.
      const stored =
        redis?.client.status === 'ready'
          ? Promise.race([redis.dump(), pause(20_000, [], { ref: false })]).catch(() => [])
          : [];
      const places: [string, string][] = [
        ...everyone().map(({ name, output }): [string, string] => [`output of ${name}`, output]),
        ...(await Promise.all(metrics)).map((text): [string, string] => ['metrics', text]),
        ...(await stored).map(({ key, value }): [string, string] => [`Redis ${key}`, key + value]),
      ];
      const seen = places.map(([place, text]) => [place, found(text)] as const);
      const own = seen.filter(([, leak]) => leak !== undefined);
      return [...own.map(([place, leak]) => `${place}: ${String(leak)}`), ...takeLeaks()];
    };

    return {
      publicUrl,
      get redis() {
        if (!redis) throw new Error('this stack uses a Redis of the test’s own');
        return redis;
      },
      pods,
      workers,
      ports,
      configFile,
      env,
      roundRobin: 'served' in front ? (front as RoundRobin) : undefined,
      restart: async (service) => {
        retired.push(service.child);
        service.child = restarters.get(service)!();
        await service.ready();
      },
      addWorker: async () => {
        const worker = await startService('worker', workers.length);
        workers.push(worker);
        await worker.ready();
        return worker;
      },
      output: () =>
        everyone()
          .map((child) => child.output)
          .join('\n'),
      logs,
      strayLines: () => lines().filter((line) => parse(line) === undefined),
      audit: (type) =>
        logs().filter(({ audit }) =>
          typeof type === 'string' ? audit?.type === type : audit && type.test(audit.type),
        ),
      metric: async (name, labels = {}) => {
        const alive = [...pods, ...workers].filter((service) => service.child.running);
        const texts = await Promise.all(alive.map((service) => service.metrics()));
        return texts.reduce((sum, text) => sum + readMetric(text, name, labels), 0);
      },
      stop: async () => {
        const leaks = await scan();
        await closers.close();
        if (leaks.length > 0) throw new Error(`secrets in the clear:\n${leaks.join('\n')}`);
      },
    };
  } catch (error) {
    await closers.close();
    throw error;
  }
}

/** The sum of a metric's samples that carry the labels, from a Prometheus text. */
export function readMetric(
  text: string,
  name: string,
  labels: Record<string, string> = {},
): number {
  let sum = 0;
  for (const line of text.split('\n')) {
    const sample = /^([A-Za-z_:][\w:]*)(\{.*\})? (\S+)/.exec(line);
    if (sample?.[1] !== name) continue;
    const carries = Object.entries(labels).every(([label, value]) =>
      (sample[2] ?? '').includes(`${label}="${value}"`),
    );
    if (carries) sum += Number(sample[3]);
  }
  return sum;
}

/** Starts one process that must refuse to run: its exit code and what it said. */
export async function startRefused(
  config: Configuration | string,
  {
    env = {},
    service = 'gateway',
  }: { env?: Record<string, string | undefined>; service?: keyof typeof MAIN } = {},
): Promise<{ code: number | NodeJS.Signals; lines: string[] }> {
  assertBuilt();
  const file = join(temporaryFolder(), 'viaduct.yaml');
  writeFileSync(file, typeof config === 'string' ? config : JSON.stringify(config));
  const child = new Child('refused', process.execPath, [join(root, MAIN[service])], {
    cwd: root,
    env: {
      VIADUCT_CONFIG: file,
      REDIS_URL: 'redis://127.0.0.1:1',
      HOST: '127.0.0.1',
      PORT: String(await freePort()),
      ADMIN_PORT: String(await freePort()),
      VIADUCT_SECRET_KEYS: newSecretKeys(),
      ...env,
    },
  });
  try {
    await until('the process ends', () => !child.running, { timeoutMs: 10_000 });
  } finally {
    await child.kill();
  }
  return {
    code: child.code!,
    lines: child.output.split('\n').filter((line) => line.trim() !== ''),
  };
}
