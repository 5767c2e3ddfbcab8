/**
 * Most clients never DELETE their session (cases R7). When one has expired, its upstream sessions are ended for it,
 * so that upstreams don't collect them. Runs when a session's time could be over; one that has been used since is
 * looked at again when that is the case.
 */
import { request } from 'undici';
import type { Audit } from '@viaduct/shared/audit';
import type { Config, UpstreamConfig } from '@viaduct/shared/config';
import { injectHeaders } from '@viaduct/shared/credentials';
import type { Egress } from '@viaduct/shared/egress';
import type { JobPayload, JobQueue } from '@viaduct/shared/jobs';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';
import type { Vault } from '@viaduct/shared/vault';

export interface EndSessionDeps {
  readonly config: Pick<Config, 'upstreams' | 'connections'>;
  readonly redis: Redis;
  readonly jobs: Pick<JobQueue, 'enqueue'>;
  readonly vault: Pick<Vault, 'load'>;
  readonly egress: Egress;
  readonly audit: Audit;
}

export type EndSession = (
  payload: JobPayload<'end-session'>,
  context: { log: { info(fields: object, message: string): void } },
) => Promise<void>;

const TIMEOUT_MS = 5_000;
/** A session's key is gone a moment before this job looks for it. */
export const EXPIRY_MARGIN_MS = 1_000;

export function createEndSession(deps: EndSessionDeps): EndSession {
  const { config, redis, jobs, vault, egress, audit } = deps;

  async function credential(userId: string, upstream: UpstreamConfig): Promise<object> {
    const connection = upstream.connection && config.connections[upstream.connection];
    if (!connection) return {};
    const stored = await vault.load(userId, connection.name);
    return stored === undefined ? {} : injectHeaders(connection, stored.credential);
  }

  /** Best effort: what cannot be reached expires there by itself. */
  async function end(
    userId: string,
    upstream: UpstreamConfig,
    sid: string,
    pv: string,
  ): Promise<void> {
    const answer = await request(upstream.url, {
      method: 'DELETE',
      dispatcher: upstream.allowPrivateNetwork ? egress.trusted : egress.guarded,
      headers: {
        ...upstream.headers,
        ...(await credential(userId, upstream)),
        'mcp-session-id': sid,
        ...(pv !== '' && { 'mcp-protocol-version': pv }),
      },
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    await answer.body.dump();
  }

  return async (payload, { log }) => {
    const { userId, sessionId, requestId } = payload;
    const left = await redis.pttl(keys.session(userId, sessionId));
    if (left > 0) {
      await jobs.enqueue('end-session', payload, {
        delayMs: left + EXPIRY_MARGIN_MS,
        suffix: String(Date.now()),
      });
      return;
    }
    let legs = 0;
    for (const upstream of config.upstreams) {
      const key = keys.upstream(userId, sessionId, upstream.name);
      const [sid, pv] = await redis.hmget(key, 'sid', 'pv');
      if (!sid) continue;
      legs++;
      try {
        await end(userId, upstream, sid, pv ?? '');
      } catch (error) {
        log.info({ err: error, upstream: upstream.name }, 'an upstream session could not be ended');
      }
      await redis.del(key);
    }
    // Without legs it was ended by DELETE, which has its own record.
    if (legs > 0) {
      audit.record({ type: 'session.ended', userId, requestId, sessionId, reason: 'expired' });
    }
  };
}
