/**
 * Records that an elicitation's time is over although nobody looks at it. Whoever looks earlier finds the same
 * (`elicitations.load`); this job only sees to it that the end, its audit event and its nudge are not put off.
 */
import { EXCHANGE_GRACE_MS, isEnded, type Elicitations } from '@viaduct/shared/elicitations';
import type { JobPayload, JobQueue } from '@viaduct/shared/jobs';

export interface ExpireElicitationDeps {
  readonly elicitations: Pick<Elicitations, 'load'>;
  readonly jobs: Pick<JobQueue, 'enqueue'>;
}

export type ExpireElicitation = (payload: JobPayload<'expire-elicitation'>) => Promise<void>;

export function createExpireElicitation(deps: ExpireElicitationDeps): ExpireElicitation {
  return async (payload) => {
    const record = await deps.elicitations.load(payload.userId, payload.elicitationId);
    if (record === undefined || isEnded(record.state)) return;
    // Not over yet: an exchange is running (it has grace), or this clock is behind the one that made the record.
    const delayMs = Math.max(1_000, record.expiresAtMs + EXCHANGE_GRACE_MS - Date.now() + 250);
    await deps.jobs.enqueue('expire-elicitation', payload, { delayMs, suffix: String(Date.now()) });
  };
}
