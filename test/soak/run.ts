import { readdirSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';
import { check, type Finding } from '../chaos/checker.ts';
import { Journal } from '../chaos/journal.ts';
import { LegacyChaosClient } from '../chaos/legacy-client.ts';
import { ModernChaosClient } from '../chaos/modern-client.ts';
import { branch } from '../chaos/random.ts';
import { startChaosWorld } from '../chaos/world.ts';
import { heapAfterCollection, INSPECTED, residentBytes } from '../support/heap.ts';
import { judge, type Margin, type Verdict } from './judge.ts';

// Nothing breaks and nobody hurries: what a process holds after a collection, what it has open, and what there is in
// Redis, again and again, while clients of both revisions come and go.

export interface SoakOptions {
  readonly lengthMs: number;
  readonly clients: number;
  readonly everyMs: number;
  readonly say?: (line: string) => void;
}

export interface SoakReport {
  readonly verdicts: readonly Verdict[];
  readonly findings: readonly Finding[];
  readonly immortal: readonly string[];
  readonly calls: number;
  readonly kinds: Readonly<Record<string, number>>;
}

/** Kept on purpose for longer than a run lasts: records of what people did, logins, credentials, windows of limits, finished jobs. */
const KEPT: ReadonlySet<string> = new Set(['open', 'limit', 'elicitation', 'link', 'browser', 'vault', 'consent', 'wish', 'bull', 'flow', 'state', 'unfinished', 'call', 'suspended']); // prettier-ignore
const MB = 1024 * 1024;
const MARGINS: Readonly<Record<string, Margin>> = {
  heap: { absolute: 3 * MB, relative: 0.05 },
  // What the allocator keeps is not ours to say; a process that grows without end shows here all the same.
  resident: { absolute: 24 * MB, relative: 0.1 },
  open: { absolute: 8, relative: 0.15 },
  keys: { absolute: 15, relative: 0.15 },
};

const openFiles = (pid: number): number => readdirSync(`/proc/${pid}/fd`).length;

export async function runSoak(options: SoakOptions): Promise<SoakReport> {
  const { lengthMs, everyMs, say = () => undefined } = options;
  // Short lives, so that what expires does so within the run.
  const config = { elicitation: { ttlSeconds: 30 }, sessions: { ttlSeconds: 120 } };
  const at = await startChaosWorld('standalone', { env: INSPECTED, config });
  try {
    let over = false;
    const clients = Array.from({ length: options.clients }, (_, i) => {
      const era = i % 2 === 0 ? 'legacy' : 'modern';
      const name = `${era}${i}`;
      const journal = new Journal(name, era, at.now);
      const input = { name, at, journal, chance: branch(1, i), samePerson: true, leisure: 2 };
      return era === 'legacy' ? new LegacyChaosClient(input) : new ModernChaosClient(input);
    });
    const working = Promise.all(clients.map((client) => client.run(() => over)));
    working.catch(() => undefined);

    const series = new Map<string, { atMs: number; value: number }[]>();
    const note = (name: string, value: number): void => {
      const points = series.get(name) ?? [];
      points.push({ atMs: at.now(), value });
      series.set(name, points);
    };
    let immortal: string[] = [];
    let kinds: Record<string, number> = {};
    const end = at.now() + lengthMs;
    while (at.now() < end) {
      await pause(Math.min(everyMs, Math.max(0, end - at.now())));
      const { stack } = at.world;
      for (const { name, child } of [...stack.pods, ...stack.workers]) {
        if (!child.running) throw new Error(`${name} ended: ${child.output.slice(-2_000)}`);
        note(`heap of ${name}`, await heapAfterCollection(child));
        note(`resident of ${name}`, residentBytes(child.pid));
        note(`open of ${name}`, openFiles(child.pid));
      }
      // On a machine that is busy with something else a look may take too long: that is one look less.
      const looked = await at.redis.keys().catch(() => undefined);
      if (looked === undefined) continue;
      ({ kinds, immortal } = looked);
      note('keys in redis', Object.entries(kinds).reduce((sum, [kind, n]) => sum + (KEPT.has(kind) ? 0 : n), 0)); // prettier-ignore
      const now = [...series].filter(([name]) => !name.startsWith('resident')).map(([name, points]) => `${name} ${readable(name, points.at(-1)!.value)}`); // prettier-ignore
      say(`${Math.round(at.now() / 1000)} s  ${now.join(', ')}`);
    }
    over = true;
    await Promise.race([working, pause(180_000).then(() => Promise.reject(new Error('clients do not come to an end')))]); // prettier-ignore
    const logs = clients.map(({ journal }) => journal);
    return {
      verdicts: [...series].map(([name, points]) => judge({ name, points }, MARGINS[name.split(' ')[0]!]!)), // prettier-ignore
      findings: check({ clients: logs, executions: at.executions, faults: [], failsOver: false }),
      immortal,
      calls: at.executions.length,
      kinds,
    };
  } finally {
    await at.stop();
  }
}

export const readable = (name: string, value: number): string =>
  /^(heap|resident)/.test(name) ? `${(value / MB).toFixed(1)} MB` : value.toFixed(0);

export function tableOf({ verdicts }: SoakReport): string {
  const lines = verdicts.map(
    ({ name, mean, growth, allowed, flat }) =>
      `| ${name} | ${readable(name, mean)} | ${readable(name, growth)} | ${readable(name, allowed)} | ${flat ? 'yes' : 'NO'} |`,
  );
  return ['| what | mean | grew over the later part | may | flat |', '|---|---|---|---|---|', ...lines].join('\n'); // prettier-ignore
}
