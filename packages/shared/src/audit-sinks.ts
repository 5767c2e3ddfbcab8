/**
 * Where audit records go beside the log: a file, or a webhook. A record is the event with an id, the time, and the
 * process that saw it.
 *
 * A webhook's records go into a Redis stream, from which a worker sends them in order (audit-delivery.ts), so that a
 * receiver that is down costs nobody anything and loses nothing. While Redis or the disk is away they wait here, up
 * to a bound; what was audited is in the log in any case.
 */
import { createHash, randomBytes } from 'node:crypto';
import { appendFileSync } from 'node:fs';
import type { Logger } from 'pino';
import type { AuditEvent } from './audit.ts';
import type { Config } from './config.ts';
import type { Redis } from './redis/client.ts';
import { keys } from './redis/keys.ts';

export type WebhookSink = Extract<Config['audit']['sinks'][number], { type: 'webhook' }>;

export interface AuditSinks {
  write(event: AuditEvent): void;
  /** Writes what still waits, as far as that is possible now. */
  stop(): Promise<void>;
}

export interface AuditSinksDeps {
  readonly config: Pick<Config, 'audit'>;
  readonly redis: Redis;
  readonly service: 'gateway' | 'worker';
  readonly podId: string;
  readonly log: Logger;
}

/** A month of a receiver that is away; then the oldest go. */
const KEEP_SECONDS = 30 * 86_400;
const MOST_WAITING = 10_000;
const RETRY_MS = 1_000;

/** A changed URL is another receiver, which begins with what comes from then on. */
export function sinkKey({ url }: WebhookSink): string {
  return keys.audit(createHash('sha256').update(url).digest('base64url').slice(0, 22));
}

export function createAuditSinks(deps: AuditSinksDeps): AuditSinks {
  const { config, redis, service, podId: pod, log } = deps;
  const outlets = config.audit.sinks.flatMap((sink) => {
    if (sink.type === 'stdout') return [];
    return [new Outlet(sink.type === 'file' ? toFile(sink.path) : toStream(redis, sink), log)];
  });
  return {
    write(event) {
      if (outlets.length === 0) return;
      const id = randomBytes(16).toString('base64url');
      const record = { id, time: new Date().toISOString(), service, pod, ...event };
      const line = JSON.stringify(record);
      for (const outlet of outlets) outlet.push(line);
    },
    async stop() {
      await Promise.all(outlets.map((outlet) => outlet.stop()));
    },
  };
}

type Send = (lines: readonly string[]) => Promise<void>;

function toFile(path: string): Send {
  // One write per batch: whole lines, also when several processes append.
  return async (lines) => appendFileSync(path, `${lines.join('\n')}\n`, { mode: 0o600 });
}

function toStream(redis: Redis, sink: WebhookSink): Send {
  const key = sinkKey(sink);
  return async (lines) => {
    const pipeline = redis.pipeline();
    for (const line of lines) pipeline.xadd(key, '*', 'r', line);
    pipeline.expire(key, KEEP_SECONDS);
    for (const [error] of (await pipeline.exec()) ?? []) if (error) throw error;
  };
}

/** One batch at a time, in order; what fails is tried again first. */
class Outlet {
  readonly #send: Send;
  readonly #log: Logger;
  #waiting: string[] = [];
  #busy: Promise<void> | undefined;
  #failing = false;
  #timer: NodeJS.Timeout | undefined;

  constructor(send: Send, log: Logger) {
    this.#send = send;
    this.#log = log;
  }

  push(line: string): void {
    if (this.#waiting.length >= MOST_WAITING) {
      this.#waiting.shift();
      this.#log.error('an audit record could not be kept for its sink; the log has it');
    }
    this.#waiting.push(line);
    if (!this.#failing) this.#flushSoon();
  }

  #flushSoon(): void {
    this.#busy ??= new Promise((resolve) => setImmediate(resolve)).then(() => this.#flush());
  }

  async #flush(): Promise<void> {
    const batch = this.#waiting.splice(0, 500);
    try {
      if (batch.length > 0) await this.#send(batch);
      this.#failing = false;
    } catch (error) {
      this.#waiting.unshift(...batch);
      if (!this.#failing) this.#log.error({ err: error }, 'audit records wait for their sink');
      this.#failing = true;
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#flushSoon(), RETRY_MS);
      this.#timer.unref();
    }
    this.#busy = undefined;
    if (this.#waiting.length > 0 && !this.#failing) this.#flushSoon();
  }

  async stop(): Promise<void> {
    clearTimeout(this.#timer);
    while (this.#busy !== undefined) await this.#busy;
    if (this.#waiting.length > 0) await this.#flush();
    clearTimeout(this.#timer);
  }
}
