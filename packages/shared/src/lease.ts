/**
 * A fenced lock in Redis: at most one holder while it lasts, and a holder that has lost it can tell.
 *
 * Promises: `SET NX PX` with a random token; renewed while `run` works; released only by its own token. Does not
 * promise mutual exclusion to a process that was frozen past the lease (nothing can): whoever writes under a
 * lease also compares and sets what it read before, so a stale holder's write is refused.
 */
import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Redis } from './redis/client.ts';
import type { Scripts } from './redis/scripts.ts';

export interface LeaseOptions {
  /** How long the lease lasts without renewal; the longest that a killed holder blocks the others. */
  readonly ttlMs: number;
  /** How long to wait for another holder. */
  readonly waitMs: number;
}

export interface Leases {
  /**
   * Runs `work` under the lease `key`.
   *
   * @returns `{ held: true, value }`, or `{ held: false }` when another holder kept it for all of `waitMs`
   */
  withLease<T>(
    key: string,
    options: LeaseOptions,
    work: () => Promise<T>,
  ): Promise<{ held: true; value: T } | { held: false }>;
}

export interface LeaseDeps {
  readonly redis: Redis;
  readonly scripts: Pick<Scripts, 'renewLease' | 'compareAndDelete'>;
  readonly now?: () => number;
}

const POLL_MS = 40;

export function createLeases({ redis, scripts, now = Date.now }: LeaseDeps): Leases {
  const take = async (key: string, token: string, options: LeaseOptions): Promise<boolean> => {
    const until = now() + options.waitMs;
    for (;;) {
      if ((await redis.set(key, token, 'PX', options.ttlMs, 'NX')) === 'OK') return true;
      if (now() >= until) return false;
      // Jitter, so that thirty waiters don't knock in step.
      await sleep(POLL_MS / 2 + Math.random() * POLL_MS);
    }
  };

  return {
    async withLease(key, options, work) {
      const token = randomBytes(16).toString('base64url');
      if (!(await take(key, token, options))) return { held: false };
      const renewal = setInterval(() => {
        // A renewal that fails lets the lease run out; the compare-and-set behind it decides then.
        scripts.renewLease([key], [token, options.ttlMs]).catch(() => undefined);
      }, options.ttlMs / 3);
      try {
        return { held: true, value: await work() };
      } finally {
        clearInterval(renewal);
        // Not released means that it expires by itself; what `work` did must not fail for that.
        await scripts.compareAndDelete([key], [token]).catch(() => undefined);
      }
    },
  };
}
