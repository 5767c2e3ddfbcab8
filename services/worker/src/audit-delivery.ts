/**
 * Sends the audit records of each webhook, in order: one worker at a time, under a lease, reads the oldest, sends
 * them, and removes them once the receiver has answered 2xx. Anything else is tried again, more and more slowly, and
 * nothing overtakes. A worker that dies in between has its batch sent again by the next one: receivers tell copies by
 * the record's `id`.
 *
 * Signed: `X-Viaduct-Signature: t=<seconds>,v1=<hex of HMAC-SHA256(secret, "<t>.<body>")>`.
 */
import { createHmac } from 'node:crypto';
import { request } from 'undici';
import { sinkKey, type WebhookSink } from '@viaduct/shared/audit-sinks';
import type { Config } from '@viaduct/shared/config';
import type { Egress } from '@viaduct/shared/egress';
import type { Leases } from '@viaduct/shared/lease';
import type { Logger } from '@viaduct/shared/log';
import type { Metrics } from '@viaduct/shared/metrics';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';

export interface AuditDelivery {
  start(): void;
  stop(): Promise<void>;
}

export interface AuditDeliveryDeps {
  readonly config: Pick<Config, 'audit'>;
  readonly redis: Redis;
  readonly leases: Leases;
  readonly egress: Egress;
  readonly metrics: Pick<Metrics, 'jobs' | 'jobDuration'>;
  readonly log: Logger;
}

const BATCH = 100;
const TIMEOUT_MS = 10_000;
const IDLE_MS = 500;
const LONGEST_PAUSE_MS = 60_000;
const LEASE = { ttlMs: 15_000, waitMs: 0 } as const;
const QUEUE = 'deliver-audit';

export function createAuditDelivery(deps: AuditDeliveryDeps): AuditDelivery {
  const senders = deps.config.audit.sinks.flatMap((sink) =>
    sink.type === 'webhook' ? [createSender(deps, sink)] : [],
  );
  return {
    start() {
      for (const sender of senders) sender.start();
    },
    async stop() {
      await Promise.all(senders.map((sender) => sender.stop()));
    },
  };
}

function createSender(deps: AuditDeliveryDeps, sink: WebhookSink) {
  const { redis, leases, egress, metrics, log } = deps;
  const key = sinkKey(sink);
  let timer: NodeJS.Timeout | undefined;
  let running: Promise<void> | undefined;
  let stopped = false;
  let failures = 0;

  /** @returns whether there may be more */
  async function sendOldest(): Promise<boolean> {
    const entries = await redis.xrange(key, '-', '+', 'COUNT', BATCH);
    if (entries.length === 0) return false;
    const records = entries.map(([, fields]) => fields[1] ?? '{}');
    const body = `{"records":[${records.join(',')}]}`;
    const began = performance.now();
    const seconds = Math.floor(Date.now() / 1000);
    const digest = createHmac('sha256', sink.secret).update(`${seconds}.${body}`).digest('hex');
    const answer = await request(sink.url, {
      method: 'POST',
      dispatcher: egress.trusted,
      headers: {
        'content-type': 'application/json',
        'user-agent': 'viaduct',
        'x-viaduct-signature': `t=${seconds},v1=${digest}`,
      },
      body,
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    await answer.body.dump();
    metrics.jobDuration.observe({ queue: QUEUE }, (performance.now() - began) / 1000);
    if (answer.statusCode < 200 || answer.statusCode > 299) {
      throw new Error(`the receiver answered ${answer.statusCode}`);
    }
    await redis.xdel(key, ...entries.map(([id]) => id));
    metrics.jobs.inc({ queue: QUEUE, outcome: 'completed' });
    return entries.length === BATCH;
  }

  async function run(): Promise<void> {
    let pause = IDLE_MS;
    try {
      await leases.withLease(keys.auditLease(key), LEASE, async () => {
        while (!stopped && (await sendOldest())) failures = 0;
        failures = 0;
      });
    } catch (error) {
      failures++;
      pause = Math.min(IDLE_MS * 2 ** failures, LONGEST_PAUSE_MS);
      metrics.jobs.inc({ queue: QUEUE, outcome: 'retried' });
      // The first and then every tenth: a receiver that is away for a night should not fill the log.
      if (failures % 10 === 1)
        log.warn({ err: error, failures }, 'audit records wait for their receiver');
    }
    if (!stopped) timer = setTimeout(go, pause);
  }

  function go(): void {
    running = run();
  }

  return {
    start: go,
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await running;
    },
  };
}
