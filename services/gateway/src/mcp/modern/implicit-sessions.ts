/**
 * Upstream sessions that a modern client knows nothing of. A legacy upstream wants a session and remembers what its
 * client can; so each user, OAuth client, upstream and set of capabilities has one, which all pods share.
 *
 * Promises: opened once, also when pods race (legs.ts); opened again when the upstream has forgotten it; its keys
 * have the life of any idle session, and the job that ends those ends it too. Its id follows from what it is for,
 * and its endpoint is one that no request can name: a client of the other era never finds it.
 */
import { createHash } from 'node:crypto';
import type { Logger } from 'pino';
import { GatewayError } from '@viaduct/shared/errors';
import type { JobQueue } from '@viaduct/shared/jobs';
import type { Leases } from '@viaduct/shared/lease';
import type { Principal } from '@viaduct/shared/principal';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';
import {
  legOf,
  request,
  UpstreamStatus,
  type RpcReply,
  type Upstream,
} from '../../upstream/upstream.ts';
import type { Legs } from '../legs.ts';
import type { Session, Sessions, UpstreamState } from '../sessions.ts';
import { LATEST_LEGACY } from '../versions.ts';
import { LEVELS, META, metaText, type Level } from './envelope.ts';
import { clientInfoFor, helloText, legacyCapabilities } from './legacy-words.ts';
import type { Caller } from './path.ts';

type Credential = Readonly<Record<string, string>> | undefined;

/** One of them, as this pod knows it. */
export interface Implicit {
  readonly principal: Principal;
  readonly session: Session;
  readonly upstream: Upstream;
  readonly leg: UpstreamState;
}

export interface ImplicitSessions {
  /** @throws UpstreamStatus, GatewayError */
  open(caller: Caller, upstream: Upstream, credential: Credential): Promise<Implicit>;
  /** The upstream answered 404 to this one. */
  reopen(stale: Implicit, credential: Credential): Promise<Implicit>;
  /** A request of the gateway's own in it. Sent again when the upstream has provably not read it. */
  ask(
    implicit: Implicit,
    credential: Credential,
    message: { readonly method: string; readonly params: string; readonly timeoutMs: number },
  ): Promise<RpcReply>;
  /** Sees to it that the upstream logs at least this much. Never throws. */
  level(implicit: Implicit, credential: Credential, level: Level): Promise<void>;
  /** The upstream's result of `initialize`, JSON text. */
  hello(implicit: Implicit): Promise<string>;
  /** Puts its end off, where nothing else is sent in it. */
  touch(implicit: Implicit): Promise<void>;
}

/** What this pod remembers of upstream sessions; what falls out is read from Redis again. */
const MAX_REMEMBERED = 20_000;
/** A session that is in use is touched this often at least. */
const FRESH_MS = 60_000;
const LEVEL_LEASE = { ttlMs: 10_000, waitMs: 5_000 } as const;
const LEVEL_TIMEOUT_MS = 3_000;

interface Remembered {
  readonly implicit: Implicit;
  readonly atMs: number;
}

export function createImplicitSessions(deps: {
  readonly redis: Redis;
  readonly sessions: Sessions;
  readonly legs: Legs;
  readonly leases: Leases;
  readonly jobs: Pick<JobQueue, 'enqueue'>;
  readonly ttlSeconds: number;
  readonly log: Logger;
  readonly now?: () => number;
}): ImplicitSessions {
  const { redis, sessions, legs, leases, jobs, ttlSeconds, log, now = Date.now } = deps;
  const freshMs = Math.min(FRESH_MS, (ttlSeconds * 1000) / 4);
  const remembered = new Map<string, Remembered>();
  const opening = new Map<string, Promise<Implicit>>();
  /** Levels only ever become more talkative, so what is known of one stays true. */
  const levels = new Map<string, Level>();
  let serial = 0;

  function remember(implicit: Implicit): Implicit {
    const name = nameOf(implicit.session);
    remembered.delete(name);
    if (remembered.size >= MAX_REMEMBERED) {
      const [oldest] = remembered.keys();
      if (oldest !== undefined) remembered.delete(oldest);
    }
    remembered.set(name, { implicit, atMs: now() });
    return implicit;
  }

  async function create(
    caller: Pick<Caller, 'principal' | 'requestId'>,
    about: Pick<Session, 'sessionId' | 'endpoint' | 'capabilitiesText' | 'clientInfoText'>,
  ): Promise<Session> {
    const { principal, requestId } = caller;
    const { sessionId, endpoint, capabilitiesText, clientInfoText } = about;
    const session = await sessions.create(principal, {
      sessionId,
      endpoint,
      protocolVersion: LATEST_LEGACY,
      capabilitiesText,
      clientInfoText,
      initText: helloText(JSON.parse(capabilitiesText) as Record<string, unknown>, clientInfoText),
      upstreams: [],
    });
    const { userId } = principal;
    jobs
      .enqueue(
        'end-session',
        { userId, sessionId, requestId },
        { delayMs: ttlSeconds * 1000 + 1_000, suffix: String(now()) },
      )
      .catch((error: unknown) => {
        log.warn({ err: error, sessionId }, 'the end of a session could not be scheduled');
      });
    return session;
  }

  /** With `stale`, another upstream session than that one. */
  async function establish(
    caller: Pick<Caller, 'principal' | 'requestId'>,
    upstream: Upstream,
    about: Parameters<typeof create>[1],
    credential: Credential,
    stale?: string,
  ): Promise<Implicit> {
    const { principal } = caller;
    for (let attempt = 0; ; attempt++) {
      const session =
        (await sessions.load(principal, about.sessionId, about.endpoint, [upstream.name])) ??
        (await create(caller, about));
      const known = session.upstreams[0]?.sid;
      try {
        const wanted = { ...session, keepHello: true };
        const leg = await legs.ensure(
          wanted,
          upstream,
          credential,
          known === stale ? stale : undefined,
        );
        return remember({ principal, session, upstream, leg });
      } catch (error) {
        // It expired between two commands.
        const gone = error instanceof GatewayError && error.code === 'session_not_found';
        if (!gone || attempt > 0) throw error;
      }
    }
  }

  /** All that want the same one at the same time wait for one opening. */
  function once(name: string, open: () => Promise<Implicit>): Promise<Implicit> {
    let running = opening.get(name);
    if (running === undefined) {
      running = open().finally(() => opening.delete(name));
      opening.set(name, running);
    }
    return running;
  }

  async function ask(
    implicit: Implicit,
    credential: Credential,
    message: Parameters<ImplicitSessions['ask']>[2],
  ): Promise<RpcReply> {
    const { method, params, timeoutMs } = message;
    const id = `viaduct-${method}-${++serial}`;
    const body = `{"jsonrpc":"2.0","id":"${id}","method":"${method}","params":${params}}`;
    const send = ({ upstream, leg }: Implicit): Promise<RpcReply> =>
      request(upstream, body, legOf(leg, credential), { id, timeoutMs });
    try {
      return await send(implicit);
    } catch (error) {
      if (!isForgotten(error, implicit)) throw error;
      return send(await reopen(implicit, credential));
    }
  }

  function reopen(stale: Implicit, credential: Credential): Promise<Implicit> {
    const { principal, session, upstream, leg } = stale;
    const name = nameOf(session);
    const latest = remembered.get(name)?.implicit;
    // Another request of this pod has got a 404 before this one.
    if (latest !== undefined && latest.leg.sid !== leg.sid) return Promise.resolve(latest);
    remembered.delete(name);
    const caller = { principal, requestId: 'reopened' };
    return once(`${name} ${leg.sid ?? ''}`, () =>
      establish(caller, upstream, session, credential, leg.sid),
    );
  }

  return {
    ask,
    reopen,

    open(caller, upstream, credential) {
      const { principal, envelope, message } = caller;
      const endpoint = `~${upstream.name}`;
      const capabilitiesText = JSON.stringify(legacyCapabilities(envelope.capabilities));
      const sessionId = idOf(principal.clientId, endpoint, capabilitiesText);
      const name = `${principal.userId}:${sessionId}`;
      const known = remembered.get(name);
      if (known !== undefined && now() - known.atMs < freshMs) {
        return Promise.resolve(known.implicit);
      }
      const clientInfoText = clientInfoFor(metaText(message, META.clientInfo));
      const about = { sessionId, endpoint, capabilitiesText, clientInfoText };
      return once(name, () => establish(caller, upstream, about, credential));
    },

    async level(implicit, credential, wanted) {
      const { session, leg } = implicit;
      if (!talks(leg)) return;
      const { userId, sessionId } = session;
      const name = `${userId}:${sessionId} ${leg.sid ?? ''}`;
      const enough = (level: string | undefined): boolean =>
        LEVELS.some((known) => known === level) &&
        LEVELS.indexOf(level as Level) <= LEVELS.indexOf(wanted);
      if (enough(levels.get(name))) return;
      try {
        // One after the other: of two that change it, the more talkative has to be the last.
        await leases.withLease(keys.lease(userId, `level:${sessionId}`), LEVEL_LEASE, async () => {
          const key = keys.session(userId, sessionId);
          const [sid, level] = ((await redis.hget(key, 'level')) ?? '').split(' ');
          if (sid !== (leg.sid ?? '') || !enough(level)) {
            await ask(implicit, credential, {
              method: 'logging/setLevel',
              params: `{"level":"${wanted}"}`,
              timeoutMs: LEVEL_TIMEOUT_MS,
            });
            await sessions.setLevel(session, `${leg.sid ?? ''} ${wanted}`);
          }
          if (levels.size >= MAX_REMEMBERED) levels.clear();
          levels.set(name, enough(level) && sid === (leg.sid ?? '') ? (level as Level) : wanted);
        });
      } catch (error) {
        log.info(
          { err: error, upstream: implicit.upstream.name },
          'the log level of an upstream could not be set',
        );
      }
    },

    async hello({ session, upstream }) {
      const { userId, sessionId } = session;
      return (await redis.hget(keys.upstream(userId, sessionId, upstream.name), 'hello')) ?? '{}';
    },

    async touch({ principal, session, upstream }) {
      await sessions.load(principal, session.sessionId, session.endpoint, [upstream.name]);
    },
  };
}

const nameOf = ({ userId, sessionId }: Session): string => `${userId}:${sessionId}`;

/** The upstream has forgotten the session, so it cannot have processed the request. */
export const isForgotten = (error: unknown, { leg }: Implicit): boolean =>
  error instanceof UpstreamStatus && error.upstreamStatus === 404 && Boolean(leg.sid);

const idOf = (...parts: readonly string[]): string =>
  createHash('sha256')
    .update(['implicit', ...parts].join('\n'))
    .digest('base64url')
    .slice(0, 22);

const talks = ({ capabilities }: UpstreamState): boolean =>
  'logging' in (JSON.parse(capabilities ?? '{}') as object);
