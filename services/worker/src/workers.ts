/**
 * Runs the job catalogue: one BullMQ worker per queue, each job with its own logger, its metrics, and its payload
 * checked before anything is done with it.
 */
import { UnrecoverableError, Worker, type Job } from 'bullmq';
import {
  JOB_NAMES,
  jobConcurrency,
  parsePayload,
  WORKER_SETTINGS,
  type JobName,
  type JobPayload,
} from '@viaduct/shared/jobs';
import type { Logger } from '@viaduct/shared/log';
import type { Metrics } from '@viaduct/shared/metrics';
import type { Redis } from '@viaduct/shared/redis/client';
import { traced } from '@viaduct/shared/tracing';

export interface JobContext {
  readonly log: Logger;
  /** No further attempt comes after this one. */
  readonly lastAttempt: boolean;
}

export type Handlers = {
  readonly [N in JobName]: (payload: JobPayload<N>, context: JobContext) => Promise<void>;
};

export interface Workers {
  /** Resolves once every queue is being read. */
  start(): Promise<void>;
  /** Takes no more jobs and resolves when the running ones have ended. */
  drain(): Promise<void>;
  /** Lets go of what still runs; its jobs are taken over elsewhere. */
  abandon(): Promise<void>;
}

export interface WorkersDeps {
  /** Role `queue`. */
  readonly redis: Redis;
  readonly handlers: Handlers;
  readonly metrics: Pick<Metrics, 'jobs' | 'jobDuration'>;
  readonly log: Logger;
}

export function createWorkers({ redis, handlers, metrics, log }: WorkersDeps): Workers {
  let workers: Worker[] = [];

  async function run(queue: JobName, job: Job<unknown>): Promise<void> {
    const began = performance.now();
    let payload: JobPayload<JobName>;
    try {
      payload = parsePayload(queue, job.data);
    } catch (error) {
      metrics.jobs.inc({ queue, outcome: 'invalid' });
      throw new UnrecoverableError(`not a payload of ${queue}: ${(error as Error).message}`);
    }
    const attempt = job.attemptsMade + 1;
    const child = log.child({ ...payload, queue, attempt });
    try {
      // The payload has been parsed as this queue's own, which the types cannot follow.
      const handle = handlers[queue] as (p: typeof payload, c: JobContext) => Promise<void>;
      await handle(payload, {
        log: child,
        lastAttempt: attempt >= (job.opts.attempts ?? 1),
      });
      metrics.jobs.inc({ queue, outcome: 'completed' });
      child.debug('job done');
    } catch (error) {
      const outcome = attempt >= (job.opts.attempts ?? 1) ? 'failed' : 'retried';
      metrics.jobs.inc({ queue, outcome });
      child.warn({ err: error, outcome }, 'job failed');
      throw error;
    } finally {
      metrics.jobDuration.observe({ queue }, (performance.now() - began) / 1000);
    }
  }

  const open = (queue: JobName): Worker => {
    const trace = (job: Job<unknown>): Promise<void> =>
      traced(
        {
          name: `job ${queue}`,
          kind: 'consumer',
          parent: job.opts.telemetry?.metadata,
          attributes: { 'messaging.system': 'bullmq', 'messaging.destination.name': queue },
        },
        () => run(queue, job),
      );
    const worker = new Worker(queue, trace, {
      ...WORKER_SETTINGS,
      connection: redis,
      concurrency: jobConcurrency(queue),
    });
    // Lost locks and lost connections: the next worker, or the next second, takes care of both.
    worker.on('error', (error) => log.warn({ err: error, queue }, 'worker error'));
    worker.on('stalled', (jobId) => {
      metrics.jobs.inc({ queue, outcome: 'stalled' });
      log.warn({ queue, jobId }, 'a job has been taken over from a worker that went away');
    });
    return worker;
  };

  return {
    async start() {
      workers = JOB_NAMES.map(open);
      await Promise.all(workers.map((worker) => worker.waitUntilReady()));
    },
    async drain() {
      await Promise.allSettled(workers.map((worker) => worker.close()));
    },
    async abandon() {
      await Promise.allSettled(workers.map((worker) => worker.close(true)));
    },
  };
}
