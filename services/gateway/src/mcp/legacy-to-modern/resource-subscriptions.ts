/**
 * `resources/subscribe` of sessionful clients, for upstreams that have no such request (2026-07-28
 * basic/patterns/subscriptions): kept in the session, and listened for by the pod that holds its listening stream.
 *
 * The answer goes out once that pod listens for the resource, so that whatever changes after it is heard; an
 * upstream that is away delays it only a little.
 */
import { randomBytes } from 'node:crypto';
import type { Logger } from 'pino';
import { fail } from '@viaduct/shared/errors';
import type { Nudge, SessionAddress } from '@viaduct/shared/event-bus';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys, podChannel } from '@viaduct/shared/redis/keys';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import { sessionGone } from '../legs.ts';
import { UPSTREAM_GRACE_SECONDS } from '../sessions.ts';

const FIELD = 'sub:';
/** The other fields of the hash, and more resources than anybody watches at once. */
const MAX_FIELDS = 1_010;
const PATIENCE_MS = 1_500;

export interface ResourceSubscriptions {
  /** @throws GatewayError session_not_found, invalid_params when there are too many */
  set(session: SessionAddress, upstream: string, uri: string, wanted: boolean): Promise<void>;
  all(session: SessionAddress, upstream: string): Promise<string[]>;
  nudge(nudge: Nudge): void;
}

interface Told {
  readonly upstream: string;
  readonly from: string;
  readonly ticket: string;
}

export function createResourceSubscriptions(deps: {
  redis: Redis;
  scripts: Scripts;
  podId: string;
  ttlSeconds: number;
  log: Logger;
  /** Listens anew where this pod listens for the session; resolves when the upstream has agreed. */
  refresh(session: SessionAddress, upstream: string): Promise<void>;
}): ResourceSubscriptions {
  const { redis, scripts, podId, ttlSeconds, log, refresh } = deps;
  /** Requests here that wait for another pod to listen. */
  const waiting = new Map<string, () => void>();

  async function patiently(work: Promise<void>): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, PATIENCE_MS);
    });
    try {
      await Promise.race([work, late]);
    } finally {
      clearTimeout(timer);
    }
  }

  async function listenAnew(
    session: SessionAddress,
    { upstream, from, ticket }: Told,
  ): Promise<void> {
    try {
      await patiently(refresh(session, upstream));
      const { userId, sessionId } = session;
      await redis.publish(podChannel(from), `listening\n${userId}\n${sessionId}\n${ticket}`);
    } catch (error) {
      // The other pod answers its client a little later.
      log.debug({ err: error, upstream }, 'a subscription could not be confirmed');
    }
  }

  return {
    async set(session, upstream, uri, wanted) {
      const { userId, sessionId } = session;
      const ticket = randomBytes(9).toString('base64url');
      const told: Told = { upstream, from: podId, ticket };
      const confirmed = new Promise<void>((resolve) => {
        waiting.set(ticket, resolve);
      });
      try {
        const reply = await scripts.subscribeResource(
          [keys.session(userId, sessionId), keys.upstream(userId, sessionId, upstream)],
          [
            ...[
              `${FIELD}${uri}`,
              wanted ? '1' : '',
              MAX_FIELDS,
              ttlSeconds + UPSTREAM_GRACE_SECONDS,
            ],
            ...[podId, userId, sessionId, JSON.stringify(told)],
          ],
        );
        if (typeof reply !== 'string') throw sessionGone();
        if (reply === 'full') {
          throw fail('invalid_params', 'This session has too many subscriptions.', { status: 200 });
        }
        if (reply === 'local') await patiently(refresh(session, upstream));
        if (reply === 'remote') await patiently(confirmed);
      } finally {
        waiting.delete(ticket);
      }
    },

    async all({ userId, sessionId }, upstream) {
      const fields = await redis.hkeys(keys.upstream(userId, sessionId, upstream));
      return fields
        .filter((field) => field.startsWith(FIELD))
        .map((field) => field.slice(FIELD.length));
    },

    nudge({ kind, userId, id, detail }) {
      if (kind === 'listening') waiting.get(detail)?.();
      if (kind !== 'subscribed') return;
      void listenAnew({ userId, sessionId: id }, JSON.parse(detail) as Told);
    },
  };
}
