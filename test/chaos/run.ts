import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { temporaryFolder } from '../support/process.ts';
import { check, type FaultRecord, type Finding } from './checker.ts';
import type { ChaosClient } from './client.ts';
import { inflict } from './faults.ts';
import { Journal, readLogs, saveLogs, type ClientLog } from './journal.ts';
import { LegacyChaosClient } from './legacy-client.ts';
import { ModernChaosClient } from './modern-client.ts';
import { Probes } from './probes.ts';
import { branch } from './random.ts';
import type { Topology } from '../support/topologies.ts';
import { plan, type Fault, type Planned } from './schedule.ts';
import { startChaosWorld, type ChaosWorld } from './world.ts';

export interface ChaosOptions {
  readonly seed: number;
  readonly lengthMs: number;
  readonly clients: number;
  readonly topology: Topology;
  readonly faults?: readonly Fault[];
  readonly pauseMs?: readonly [number, number];
  readonly pairs?: boolean;
  readonly say?: (line: string) => void;
  /** Where the clients' logs go. */
  readonly folder?: string;
}

export interface Report {
  readonly seed: number;
  readonly topology: Topology;
  readonly network: string;
  readonly folder: string;
  readonly clients: number;
  readonly calls: Readonly<Record<string, number>>;
  readonly flows: Readonly<Record<string, number>>;
  readonly told: number;
  readonly sessions: number;
  readonly executions: number;
  readonly faults: readonly (FaultRecord & { readonly toldMs: number | undefined })[];
  readonly findings: readonly Finding[];
  /** What the processes themselves called unexpected. */
  readonly unexpected: readonly string[];
}

const SETTLE_MS = 180_000;
const COMPLETE = 'notifications/elicitation/complete';

export async function runChaos(options: ChaosOptions): Promise<Report> {
  const { seed, lengthMs, topology, say = () => undefined } = options;
  const at = await startChaosWorld(topology);
  say(`${topology} redis behind a ${at.redis.network.kind}; seed ${seed}; ${options.clients} clients`); // prettier-ignore
  if (at.redis.network.kind === 'forwarder') {
    say('no privilege for a network namespace: cuts are made by a forwarder instead');
  }
  if (at.redis.wires === 'none') say('members of this Redis are reached directly: no network cuts in this run'); // prettier-ignore
  const probes = new Probes(at);
  try {
    let over = false;
    const clients: ChaosClient[] = Array.from({ length: options.clients }, (_, i) => {
      const era = i % 2 === 0 ? 'legacy' : 'modern';
      const name = `${era}${i}`;
      const journal = new Journal(name, era, at.now);
      const input = { name, at, journal, chance: branch(seed, i) };
      return era === 'legacy' ? new LegacyChaosClient(input) : new ModernChaosClient(input);
    });
    probes.start();
    const working = Promise.all(clients.map((client) => client.run(() => over)));
    working.catch(() => undefined);

    const begun = at.now();
    const faults: FaultRecord[] = [];
    for (const planned of plan(options)) {
      await pause(Math.max(0, begun + planned.atMs - at.now()));
      const both = planned.beside === undefined ? [planned] : [planned, planned.beside];
      const done = await Promise.all(both.map((one) => breakOne(at, begun, one)));
      const inflicted = done.filter((one) => one !== undefined);
      if (inflicted.length === 0) continue;
      // Of two, both have to be over before anything can be expected to serve.
      const wholeMs = Math.max(...inflicted.map(({ healedMs }) => healedMs));
      const concerns = ['balancer', ...inflicted.flatMap((one) => one.concerns)];
      const servedMs = await servedBy(probes, concerns, wholeMs);
      const dead = crashes(at);
      if (dead.length > 0) throw new Error(`ended by themselves:\n${dead.join('\n')}`);
      for (const { fault, target, atMs, healedMs } of inflicted) {
        const awayMs = probes.longestGap('balancer', atMs, servedMs ?? at.now());
        faults.push({ fault, target, atMs, healedMs, servedMs, awayMs });
        say(`${seconds(atMs)}  ${fault} of ${target}, ${Math.round(healedMs - atMs)} ms; served again after ${Math.round((servedMs ?? NaN) - healedMs)} ms`); // prettier-ignore
      }
    }
    await pause(Math.max(0, begun + lengthMs - at.now()));
    over = true;
    await Promise.race([working, pause(SETTLE_MS).then(() => Promise.reject(new Error('clients do not come to an end')))]); // prettier-ignore
    await probes.stop();

    const folder = options.folder ?? join(temporaryFolder(), 'chaos');
    saveLogs(folder, clients.map(({ journal }) => journal)); // prettier-ignore
    const logs = readLogs(folder);
    const findings = check({ clients: logs, executions: at.executions, faults, failsOver: topology !== 'standalone' }); // prettier-ignore
    return {
      seed,
      topology,
      network: at.redis.network.kind,
      folder,
      clients: clients.length,
      ...counted(logs),
      executions: at.executions.length,
      faults: faults.map((fault) => ({ ...fault, toldMs: toldAfter(logs, fault.healedMs) })),
      findings,
      unexpected: unexpectedIn(at.world.stack.output()),
    };
  } finally {
    await probes.stop();
    await at.stop();
  }
}

async function breakOne(at: ChaosWorld, begunMs: number, planned: Planned) {
  await pause(Math.max(0, begunMs + planned.atMs - at.now()));
  const atMs = at.now();
  let healedMs = atMs;
  const done = await inflict(at, planned, () => (healedMs = at.now()));
  if (done === undefined) return undefined;
  const concerns = done.concerns.map(({ name }) => name);
  return { fault: planned.fault, target: done.target, concerns, atMs, healedMs };
}

/** What ended though nobody ended it: no fault may do that. */
const crashes = ({ world: { stack } }: ChaosWorld): string[] =>
  [...stack.pods, ...stack.workers]
    .filter(({ child }) => !child.running)
    .map(({ name, child }) => `${name} (${child.code}): ${child.output.slice(-3_000)}`);

const seconds = (ms: number): string => `${(ms / 1_000).toFixed(1).padStart(6)} s`;

async function servedBy(probes: Probes, targets: readonly string[], sinceMs: number): Promise<number | undefined> {
  const deadline = performance.now() + 30_000;
  for (;;) {
    const served = targets.map((target) => probes.servedAfter(target, sinceMs));
    if (served.every((one) => one !== undefined)) return Math.max(...served);
    if (performance.now() > deadline) return undefined;
    await pause(20);
  }
} // prettier-ignore

function counted(logs: readonly ClientLog[]): Pick<Report, 'calls' | 'flows' | 'told' | 'sessions'> {
  const calls: Record<string, number> = {};
  const flows: Record<string, number> = {};
  let [told, sessions] = [0, 0];
  for (const entry of logs.flatMap(({ entries }) => entries)) {
    if (entry.kind === 'end') {
      const what = entry.ending === 'error' ? `error: ${entry.reason}` : entry.ending;
      calls[what] = (calls[what] ?? 0) + 1;
    } else if (entry.kind === 'flow') flows[entry.state] = (flows[entry.state] ?? 0) + 1;
    else if (entry.kind === 'heard' && entry.method === COMPLETE) told++;
    else if (entry.kind === 'session' && entry.what === 'begun') sessions++;
  }
  return { calls, flows, told, sessions };
} // prettier-ignore

function toldAfter(logs: readonly ClientLog[], sinceMs: number): number | undefined {
  const times = logs.flatMap(({ entries }) =>
    entries.flatMap((entry) =>
      entry.kind === 'heard' && entry.method === COMPLETE && entry.atMs >= sinceMs
        ? [entry.atMs]
        : [],
    ),
  );
  return times.length === 0 ? undefined : Math.min(...times);
}

/** Lines that no fault explains: a bug that somebody should look at, whatever the clients saw. */
function unexpectedIn(output: string): string[] {
  return output
    .split('\n')
    .filter((line) => /"msg":"unexpected error"|uncaught|unhandled|"level":(60|"fatal")/i.test(line))
    .map((line) => line.slice(0, 600));
} // prettier-ignore

export function tableOf({ faults }: Report): string {
  const rows = Map.groupBy(faults, ({ fault }) => fault);
  const ms = (values: readonly number[]): string => {
    if (values.length === 0) return '–';
    const sorted = [...values].sort((a, b) => a - b);
    return `${Math.round(sorted[Math.floor((sorted.length - 1) / 2)]!)} / ${Math.round(sorted.at(-1)!)}`; // prettier-ignore
  };
  const lines = [...rows].sort().map(([fault, all]) => {
    const served = all.flatMap(({ servedMs, healedMs }) => (servedMs === undefined ? [] : [servedMs - healedMs])); // prettier-ignore
    const away = all.flatMap(({ awayMs }) => (awayMs === undefined ? [] : [awayMs]));
    const told = all.flatMap(({ toldMs, healedMs }) => (toldMs === undefined ? [] : [toldMs - healedMs])); // prettier-ignore
    return `| ${fault} | ${all.length} | ${ms(served)} | ${ms(away)} | ${ms(told)} |`;
  });
  return [
    '| fault | times | served again after it was put right, median / longest ms | longest time without an answer at the balancer, median / longest ms | next completion told, median / longest ms |',
    '|---|---|---|---|---|',
    ...lines,
  ].join('\n');
}
