/**
 * The job catalogue: name → payload → retry. What is enqueued here is run by services/worker.
 *
 * Payloads carry ids and nothing else (invariant 9): a worker finds what it needs, sealed, in the record that the
 * ids name. The job id is the logical id, so enqueueing the same thing twice is one job. Jobs are delivered at
 * least once, and every handler is idempotent.
 */
import { Queue, type JobsOptions, type WorkerOptions } from 'bullmq';
import type { Logger } from 'pino';
import { z } from 'zod';
import type { Redis } from './redis/client.ts';
import { QUEUE_PREFIX } from './redis/keys.ts';
import { traceparent } from './tracing.ts';

const id = z.string().min(1).max(128);

const CATALOGUE = {
  /** Sends a code to the third party's token endpoint, once, and ends the flow. */
  'exchange-code': {
    payload: z.strictObject({ userId: id, elicitationId: id, requestId: id }),
    // Half a second, doubling: about a minute of a third party that is away, then the flow has failed.
    attempts: 8,
    backoff: { type: 'exponential', delay: 500 },
    concurrency: 16,
  },
  /** Asks the `verify` URL of a `type: secret` connection about what the user typed, and ends the flow or hands it back. */
  'check-secret': {
    payload: z.strictObject({ userId: id, elicitationId: id, requestId: id }),
    attempts: 6,
    backoff: { type: 'exponential', delay: 500 },
    concurrency: 16,
  },
  /** Renews a token ahead of its expiry, if it has been used since it was obtained. */
  'refresh-connection': {
    payload: z.strictObject({ userId: id, connection: id, requestId: id }),
    attempts: 3,
    backoff: { type: 'exponential', delay: 1_000 },
    concurrency: 16,
  },
  /** Seals again, with a new first key, what older keys have sealed. Goes on where a dead worker left it. */
  'reseal-vault': {
    payload: z.strictObject({ kid: id, pass: z.int().min(1).max(2), requestId: id }),
    attempts: 20,
    backoff: { type: 'exponential', delay: 1_000 },
    concurrency: 1,
  },
  /** Records that nobody came in time. */
  'expire-elicitation': {
    payload: z.strictObject({ userId: id, elicitationId: id, requestId: id }),
    attempts: 5,
    backoff: { type: 'exponential', delay: 2_000 },
    concurrency: 16,
  },
  /** Ends the upstream sessions of a session that has expired; one that still lives is looked at again later. */
  'end-session': {
    payload: z.strictObject({ userId: id, sessionId: id, requestId: id }),
    attempts: 3,
    backoff: { type: 'exponential', delay: 2_000 },
    concurrency: 32,
  },
} as const;

export type JobName = keyof typeof CATALOGUE;
export type JobPayload<N extends JobName> = z.output<(typeof CATALOGUE)[N]['payload']>;
export const JOB_NAMES = Object.keys(CATALOGUE) as JobName[];
export const jobConcurrency = (name: JobName): number => CATALOGUE[name].concurrency;

/** @throws ZodError when it is not this job's payload */
export function parsePayload<N extends JobName>(name: N, data: unknown): JobPayload<N> {
  return CATALOGUE[name].payload.parse(data) as JobPayload<N>;
}

/** Finished jobs are for a look at what happened today, failed ones for a week (BullMQ's keys have no TTL). */
const KEEP = {
  removeOnComplete: { age: 3_600, count: 1_000 },
  removeOnFail: { age: 7 * 86_400, count: 1_000 },
} as const;

/**
 * A killed worker's lock is gone after 5 s and the next check is at most 5 s later, so another worker has the job
 * within 15 s (design, section 7). A stall is no fault of the job's, so it never fails for stalling often.
 */
export const WORKER_SETTINGS = {
  prefix: QUEUE_PREFIX,
  lockDuration: 5_000,
  stalledInterval: 4_000,
  maxStalledCount: 1_000,
  ...KEEP,
} as const satisfies Partial<WorkerOptions>;

/** Longest that a request waits for an enqueue while Redis is away. It may still arrive afterwards. */
const ENQUEUE_TIMEOUT_MS = 1_500;

/** One job per try at typing a secret. */
export const secretJobSuffix = (tries: string | undefined): string => `try${tries ?? '0'}`;

export interface EnqueueOptions {
  readonly delayMs?: number;
  /** Distinguishes a second, later job about the same thing. */
  readonly suffix?: string;
}

export interface JobQueue {
  enqueue<N extends JobName>(
    name: N,
    payload: JobPayload<N>,
    options?: EnqueueOptions,
  ): Promise<void>;
  /** Jobs per queue and state. */
  depths(): Promise<{ queue: JobName; state: string; count: number }[]>;
  /** For a board that shows them. */
  all(): Queue[];
  close(): Promise<void>;
}

export interface JobQueueDeps {
  /** Role `queue`. */
  readonly redis: Redis;
  readonly log: Logger;
}

export function createJobQueue({ redis, log }: JobQueueDeps): JobQueue {
  const queues = new Map<JobName, Queue>();
  const queueOf = (name: JobName): Queue => {
    let queue = queues.get(name);
    if (queue === undefined) {
      queue = new Queue(name, { connection: redis, prefix: QUEUE_PREFIX });
      queue.on('error', (error) => log.debug({ err: error, queue: name }, 'queue error'));
      queues.set(name, queue);
    }
    return queue;
  };

  return {
    async enqueue(name, payload, options = {}) {
      const { attempts, backoff } = CATALOGUE[name];
      // What is for later has a trace of its own: this one is over by then.
      const metadata = options.delayMs === undefined ? traceparent() : undefined;
      const job: JobsOptions = {
        ...KEEP,
        attempts,
        backoff: { ...backoff },
        jobId: jobId(payload, options.suffix),
        ...(metadata !== undefined && { telemetry: { metadata } }),
        ...(options.delayMs !== undefined && { delay: Math.ceil(options.delayMs) }),
      };
      await inTime(queueOf(name).add(name, payload, job), ENQUEUE_TIMEOUT_MS);
    },
    async depths() {
      const all = await Promise.all(
        JOB_NAMES.map(async (queue) => {
          const counts = await inTime(
            queueOf(queue).getJobCounts('waiting', 'active', 'delayed', 'failed'),
            ENQUEUE_TIMEOUT_MS,
          );
          return Object.entries(counts).map(([state, count]) => ({ queue, state, count }));
        }),
      );
      return all.flat();
    },
    all: () => JOB_NAMES.map(queueOf),
    async close() {
      await Promise.allSettled([...queues.values()].map((queue) => queue.close()));
    },
  };
}

/** BullMQ keeps `:` for itself; the ids in payloads have neither `:` nor `.`. */
function jobId(payload: JobPayload<JobName>, suffix?: string): string {
  const [owner, subject] =
    'kid' in payload
      ? [payload.kid, String(payload.pass)]
      : [
          payload.userId,
          'elicitationId' in payload
            ? payload.elicitationId
            : 'connection' in payload
              ? payload.connection
              : payload.sessionId,
        ];
  return [owner, subject, ...(suffix === undefined ? [] : [suffix])].join('.');
}

async function inTime<T>(work: Promise<T>, timeoutMs: number): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => {
      // `Command timed out` is what isStoreError knows: Redis, not the job, is at fault.
      reject(new Error('Command timed out: the queue did not take the job'));
    }, timeoutMs);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
    // The loser of the race must not become an unhandled rejection.
    work.catch(() => undefined);
  }
}
