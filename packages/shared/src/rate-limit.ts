/**
 * The limits of design section 5: points per window, counted in Redis, so they are the same on all pods.
 *
 * Promises: a denial is a returned value; a fault never becomes a 429 (R1: clients that are told "limited" or
 * "unauthorized" for our fault back off or log in again). Increment, TTL and verdict are one script, and
 * ioredis pipelines it with whatever else the same tick sends. What happens without Redis is written in
 * `onStoreFailure`.
 * Does not decide who is limited by what: callers bring the subject.
 */
import { createHash } from 'node:crypto';
import type { Logger } from 'pino';
import { RateLimiterMemory, RateLimiterRedis, RateLimiterRes } from 'rate-limiter-flexible';
import { addressSubject } from './address.ts';
import type { LimitsConfig } from './config.ts';
import { fail, storeUnavailable, type GatewayError } from './errors.ts';
import type { Metrics } from './metrics.ts';
import { inTime, type Redis } from './redis/client.ts';
import { keys } from './redis/keys.ts';
import type { Scripts } from './redis/scripts.ts';

export type LimitName = 'user' | 'userTool' | 'userElicitations' | 'address' | 'registrations';

export interface Verdict {
  readonly allowed: boolean;
  readonly limit: LimitName;
  /** Quota of one window. */
  readonly points: number;
  /** Length of the window. */
  readonly seconds: number;
  readonly remaining: number;
  /** Until the window ends; at least 1. */
  readonly resetSeconds: number;
}

export interface Limits {
  /**
   * Takes `points` for a subject.
   *
   * @param subject the user id; for `address` and `registrations` the client's address as the edge computed it
   * @param detail counted apart within the subject: `userTool` has `<upstream>:<tool>` here
   * @throws GatewayError `store_unavailable` without Redis, when configured to deny
   */
  check(limit: LimitName, subject: string, detail?: string, points?: number): Promise<Verdict>;
  /** Takes one point of each in one round trip. Returns the first denial; the same counters as `check`. */
  checkAll(wanted: readonly Wanted[]): Promise<Verdict | undefined>;
  /** The same, for a script that does more in the same round trip (enter-session.lua). */
  charge(wanted: readonly Wanted[]): Charge;
}

export interface Wanted {
  readonly limit: LimitName;
  readonly subject: string;
  readonly detail?: string;
}

/** Points that a script is about to take. */
export interface Charge {
  /** What is known without asking, while a window is used up: a flood costs no Redis. */
  readonly denied: Verdict | undefined;
  readonly keys: readonly string[];
  readonly limits: readonly { readonly points: number; readonly seconds: number }[];
  /**
   * @param taken consumed and milliseconds left of each counter, as the script returned them
   * @returns the first denial
   */
  settle(taken: readonly number[]): Verdict | undefined;
}

export interface LimitsDeps {
  readonly redis: Redis;
  readonly scripts: Pick<Scripts, 'takePoints'>;
  readonly config: LimitsConfig;
  readonly metrics: Pick<Metrics, 'rateLimited'>;
  readonly log: Logger;
}

const NAMES = ['user', 'userTool', 'userElicitations', 'address', 'registrations'] as const;
const BY_ADDRESS: ReadonlySet<LimitName> = new Set(['address', 'registrations']);

/** Used-up windows that are remembered; past that many, Redis is asked again. */
const MAX_USED_UP = 10_000;

export function createLimits({ redis, scripts, config, metrics, log }: LimitsDeps): Limits {
  let storeFailed = false;
  /** Counters whose window is used up, with its end in epoch milliseconds. */
  const usedUp = new Map<string, number>();
  const limiters = new Map(
    NAMES.map((name) => {
      const { points, seconds: duration } = config[name];
      const shared = { keyPrefix: keys.limit(name), points, duration };
      return [
        name,
        {
          // Who is over the limit is answered from memory for the rest of the window: a flood costs no Redis.
          store: new RateLimiterRedis({
            ...shared,
            storeClient: redis,
            inMemoryBlockOnConsumed: points + 1,
          }),
          memory: new RateLimiterMemory(shared),
        },
      ] as const;
    }),
  );

  /** What to do without Redis: the error, or a count of this process. */
  async function without(error: unknown, limit: LimitName, key: string, points: number) {
    if (config.onStoreFailure === 'deny') throw storeUnavailable(error);
    if (!storeFailed) log.warn({ err: error, limit }, 'limits are counted in this process only');
    storeFailed = true;
    return consume(limiterOf(limit).memory, key, points);
  }

  function limiterOf(limit: LimitName) {
    const limiter = limiters.get(limit);
    if (limiter === undefined) throw new Error(`no limit ${limit}`);
    return limiter;
  }

  function denial(limit: LimitName, leftMs: number): Verdict {
    metrics.rateLimited.inc({ limit });
    const { points, seconds } = config[limit];
    const resetSeconds = Math.max(1, Math.ceil(leftMs / 1000));
    return { allowed: false, limit, points, seconds, remaining: 0, resetSeconds };
  }

  function knownDenial(
    wanted: readonly Wanted[],
    counters: readonly string[],
  ): Verdict | undefined {
    if (usedUp.size === 0) return undefined;
    const now = Date.now();
    for (const [i, counter] of counters.entries()) {
      const leftMs = (usedUp.get(counter) ?? 0) - now;
      if (leftMs > 0) return denial(wanted[i]!.limit, leftMs);
      usedUp.delete(counter);
    }
    return undefined;
  }

  function charge(wanted: readonly Wanted[]): Charge {
    const counters = wanted.map(
      ({ limit, subject, detail = '' }) =>
        `${keys.limit(limit)}:${subjectKey(limit, subject, detail)}`,
    );
    return {
      denied: knownDenial(wanted, counters),
      keys: counters,
      limits: wanted.map(({ limit }) => config[limit]),
      settle(taken) {
        let denied: Verdict | undefined;
        for (const [i, { limit }] of wanted.entries()) {
          const consumed = taken[2 * i] ?? 0;
          if (consumed <= config[limit].points) continue;
          const leftMs = taken[2 * i + 1] ?? 0;
          if (usedUp.size >= MAX_USED_UP) usedUp.clear();
          usedUp.set(counters[i]!, Date.now() + leftMs);
          denied ??= denial(limit, leftMs);
        }
        return denied;
      },
    };
  }

  return {
    charge,

    async checkAll(wanted) {
      const charged = charge(wanted);
      if (charged.denied !== undefined) return charged.denied;
      try {
        const windows = charged.limits.map(({ seconds }) => seconds);
        const taken = await scripts.takePoints(charged.keys, windows);
        storeFailed = false;
        return charged.settle(taken as number[]);
      } catch (error) {
        for (const { limit, subject, detail = '' } of wanted) {
          const key = subjectKey(limit, subject, detail);
          const { denied, result } = await without(error, limit, key, 1);
          if (denied) return denial(limit, result.msBeforeNext);
        }
        return undefined;
      }
    },

    async check(limit, subject, detail = '', points = 1) {
      const limiter = limiterOf(limit);
      const key = subjectKey(limit, subject, detail);
      let outcome: { denied: boolean; result: RateLimiterRes };
      try {
        outcome = await inTime(consume(limiter.store, key, points));
        storeFailed = false;
      } catch (error) {
        outcome = await without(error, limit, key, points);
      }
      const { denied, result } = outcome;
      if (denied) metrics.rateLimited.inc({ limit });
      return {
        allowed: !denied,
        limit,
        points: config[limit].points,
        seconds: config[limit].seconds,
        remaining: denied ? 0 : result.remainingPoints,
        resetSeconds: Math.max(1, Math.ceil(result.msBeforeNext / 1000)),
      };
    },
  };
}

/** The library rejects with a result for "denied" and with an Error for a fault. */
async function consume(
  limiter: RateLimiterRedis | RateLimiterMemory,
  key: string,
  points: number,
): Promise<{ denied: boolean; result: RateLimiterRes }> {
  try {
    return { denied: false, result: await limiter.consume(key, points) };
  } catch (outcome) {
    if (outcome instanceof RateLimiterRes) return { denied: true, result: outcome };
    throw outcome;
  }
}

/** `{<user id>}:detail` or `{<address>}`: the hash tag keeps a user's counters in the user's slot. */
function subjectKey(limit: LimitName, subject: string, detail: string): string {
  const tag = `{${BY_ADDRESS.has(limit) ? addressSubject(subject) : subject}}`;
  if (detail === '') return tag;
  // A tool's name is whatever the caller wrote; long or strange names would make long or strange keys.
  const safe = /^[\w.:/-]{1,96}$/.test(detail)
    ? detail
    : createHash('sha256').update(detail).digest('base64url').slice(0, 22);
  return `${tag}:${safe}`;
}

/**
 * Headers of a denial: Retry-After (RFC 9110, 10.2.3) in seconds, RateLimit and RateLimit-Policy
 * (draft-ietf-httpapi-ratelimit-headers), e.g. `"user";r=0;t=12` and `"user";q=600;w=60`.
 */
export function rateLimitHeaders(verdict: Verdict): Record<string, string> {
  const { limit, points, seconds, remaining, resetSeconds } = verdict;
  return {
    'Retry-After': String(resetSeconds),
    RateLimit: `"${limit}";r=${remaining};t=${resetSeconds}`,
    'RateLimit-Policy': `"${limit}";q=${points};w=${seconds}`,
  };
}

/** The 429 for a denial. */
export function rateLimited(verdict: Verdict): GatewayError {
  return fail('rate_limited', `Too many requests. Try again in ${verdict.resetSeconds} s.`, {
    headers: rateLimitHeaders(verdict),
    data: { limit: verdict.limit, retryAfterSeconds: verdict.resetSeconds },
  });
}
