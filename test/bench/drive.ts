/**
 * Drives load at a target and measures it: requests, latency, and the CPU that the kernel charged to the target's
 * processes. Every answer is checked by the target's own rule; a wrong one ends the run.
 *
 * `closed` keeps a number of requests under way. `paced` sends at a constant rate whatever comes back, and measures
 * from when a request should have been sent, so that a target that stalls cannot hide it (coordinated omission).
 */
import { readFileSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';
import { Pool } from 'undici';

export interface Target {
  readonly name: string;
  /** Requests go to them in turn. */
  readonly origins: readonly string[];
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  /** Whose CPU counts. */
  readonly pids: readonly number[];
  body(id: number): string;
  /** Undefined for a right answer, otherwise what is wrong with it. */
  fault(id: number, status: number, text: string): string | undefined;
}

export interface Measured {
  requests: number;
  wallSeconds: number;
  userSeconds: number;
  systemSeconds: number;
  /** Milliseconds, in order of arrival. */
  latencies: number[];
}

export const nothing = (): Measured => ({
  requests: 0,
  wallSeconds: 0,
  userSeconds: 0,
  systemSeconds: 0,
  latencies: [],
});

/** User and system CPU seconds of processes (proc(5), stat, utime and stime at 100 Hz). */
export function cpuOf(pids: readonly number[]): { user: number; system: number } {
  let user = 0;
  let system = 0;
  for (const pid of pids) {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    user += Number(fields[11]) / 100;
    system += Number(fields[12]) / 100;
  }
  return { user, system };
}

export class Driver {
  readonly target: Target;
  readonly #pools: Pool[];
  readonly #headers: Record<string, string>;
  #next = 0;
  #failed: Error | undefined;

  constructor(target: Target, connections: number) {
    this.target = target;
    const each = Math.ceil(connections / target.origins.length);
    this.#pools = target.origins.map((origin) => new Pool(origin, { connections: each }));
    this.#headers = { ...target.headers };
  }

  async closed(into: Measured, milliseconds: number, atOnce: number): Promise<void> {
    await this.#measure(into, async () => {
      const until = performance.now() + milliseconds;
      const loop = async (): Promise<void> => {
        while (performance.now() < until && this.#failed === undefined) {
          const sent = performance.now();
          await this.#one();
          into.latencies.push(performance.now() - sent);
          into.requests++;
        }
      };
      await Promise.all(Array.from({ length: atOnce }, loop));
    });
  }

  async paced(into: Measured, milliseconds: number, perSecond: number): Promise<void> {
    await this.#measure(into, async () => {
      const began = performance.now();
      const count = Math.floor((milliseconds / 1000) * perSecond);
      const all: Promise<void>[] = [];
      for (let sent = 0; sent < count && this.#failed === undefined;) {
        const due = Math.min(count, Math.floor(((performance.now() - began) / 1000) * perSecond));
        for (; sent < due; sent++) {
          const intended = began + (sent / perSecond) * 1000;
          all.push(
            this.#one().then(() => {
              into.latencies.push(performance.now() - intended);
              into.requests++;
            }),
          );
        }
        await pause(1);
      }
      await Promise.all(all);
    });
  }

  async close(): Promise<void> {
    await Promise.all(this.#pools.map((pool) => pool.destroy()));
  }

  async #measure(into: Measured, work: () => Promise<void>): Promise<void> {
    const before = cpuOf(this.target.pids);
    const began = performance.now();
    await work();
    const after = cpuOf(this.target.pids);
    into.wallSeconds += (performance.now() - began) / 1000;
    into.userSeconds += after.user - before.user;
    into.systemSeconds += after.system - before.system;
    if (this.#failed !== undefined) throw this.#failed;
  }

  #one(): Promise<void> {
    const id = this.#next++;
    const { target } = this;
    return new Promise((resolve) => {
      const end = (status: number, text: string): void => {
        const fault = target.fault(id, status, text);
        if (fault !== undefined) this.#failed ??= new Error(`${target.name}: ${fault}`);
        resolve();
      };
      let status = 0;
      const chunks: Buffer[] = [];
      this.#pools[id % this.#pools.length]!.dispatch(
        { method: 'POST', path: target.path, headers: this.#headers, body: target.body(id) },
        {
          onRequestStart: () => undefined,
          onResponseStart: (_controller, code) => {
            status = code;
          },
          onResponseData: (_controller, chunk) => {
            chunks.push(chunk);
          },
          onResponseEnd: () => {
            end(status, Buffer.concat(chunks).toString());
          },
          onResponseError: (_controller, error) => {
            end(status, `the connection failed: ${error.message}`);
          },
        },
      );
    });
  }
}

export const quantile = (values: readonly number[], q: number): number => {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))] ?? 0;
};

/** Microseconds of CPU for one request. */
export const cpuPerRequest = ({ userSeconds, systemSeconds, requests }: Measured): number =>
  ((userSeconds + systemSeconds) / requests) * 1e6;
