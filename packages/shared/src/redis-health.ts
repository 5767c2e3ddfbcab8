/**
 * Is Redis there? One PING a second on the request path's own client, so that the answer is about the
 * connection that requests use. Readiness and `viaduct_redis_up` follow it.
 *
 * Never more than one PING is under way: behind a frozen server they would pile up and run when it wakes.
 */
import type { Logger } from 'pino';
import type { Metrics } from './metrics.ts';
import type { Redis } from './redis/client.ts';

export interface RedisHealth {
  /** Begins to ask; the first answer comes within `timeoutMs`. */
  start(): void;
  stop(): void;
  /** False until Redis has answered once. */
  isUp(): boolean;
}

export interface RedisHealthDeps {
  readonly redis: Pick<Redis, 'ping'>;
  readonly metrics: Pick<Metrics, 'redisUp'>;
  readonly log: Logger;
  readonly intervalMs?: number;
  readonly timeoutMs?: number;
}

/** A slow answer may be a pause of ours or of Redis; two in a row are an outage. An error is one at once. */
const TIMEOUTS_BEFORE_DOWN = 2;

export function createRedisHealth(deps: RedisHealthDeps): RedisHealth {
  const { redis, metrics, log, intervalMs = 1_000, timeoutMs = 700 } = deps;
  let up = false;
  let pending = false;
  let timeouts = 0;
  let timer: NodeJS.Timeout | undefined;
  metrics.redisUp.set(0);

  const change = (now: boolean, error?: unknown): void => {
    if (now === up) return;
    up = now;
    metrics.redisUp.set(now ? 1 : 0);
    if (now) log.info('redis answers');
    else log.warn({ err: error }, 'redis does not answer');
  };
  const late = (): void => {
    timeouts++;
    if (timeouts >= TIMEOUTS_BEFORE_DOWN) change(false, new Error('no answer to PING'));
  };

  const ask = async (): Promise<void> => {
    if (pending) {
      late();
      return;
    }
    pending = true;
    const timeout = setTimeout(late, timeoutMs);
    timeout.unref();
    try {
      await redis.ping();
      timeouts = 0;
      change(true);
    } catch (error) {
      change(false, error);
    } finally {
      clearTimeout(timeout);
      pending = false;
    }
  };

  return {
    start() {
      clearInterval(timer);
      void ask();
      timer = setInterval(() => void ask(), intervalMs);
      timer.unref();
    },
    stop: () => clearInterval(timer),
    isUp: () => up,
  };
}
