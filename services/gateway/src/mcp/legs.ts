/**
 * The upstream's side of a session: opened once, with the client's own capabilities; opened again when the
 * upstream has forgotten it; ended when ours ends. Pods race here, so one opens under a lease and the others
 * use what it got.
 */
import type { Logger } from 'pino';
import { fail } from '@viaduct/shared/errors';
import type { SessionAddress } from '@viaduct/shared/event-bus';
import type { Leases } from '@viaduct/shared/lease';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import {
  isModernError,
  legOf,
  request,
  resultText,
  tryParse,
  UpstreamStatus,
  type Eras,
  type Upstream,
  type Upstreams,
} from '../upstream/upstream.ts';
import { discover } from './legacy-to-modern/discover.ts';
import {
  eraOf,
  UPSTREAM_GRACE_SECONDS,
  upstreamFields,
  type EndedLeg,
  type Session,
  type Sessions,
  type UpstreamState,
} from './sessions.ts';

export const INIT_ID = 'viaduct-initialize';
/** An upstream that says nothing for this long is away for now. */
const INIT_TIMEOUT_MS = 5_000;
const LEASE_MS = 12_000;

/** HTTP statuses with which a server says that it does not know this kind of request. */
const STRANGE: ReadonlySet<number> = new Set([400, 404, 405, 406, 415, 501]);

type Credential = Readonly<Record<string, string>> | undefined;

export interface OpenedLeg {
  readonly state: UpstreamState & { sid: string };
  /** The upstream's whole response to initialize. */
  readonly text: string;
}

export interface Legs {
  /**
   * POSTs initialize. An upstream that has no sessions is asked to describe itself instead, and what it says is
   * put as an answer to initialize.
   *
   * @throws GatewayError; UpstreamStatus for a refusal
   */
  open(
    upstream: Upstream,
    body: string,
    id: string | number,
    credential: Credential,
  ): Promise<OpenedLeg>;
  /** Tells the upstream that the client is ready. */
  ready(upstream: Upstream, state: UpstreamState, credential: Credential): Promise<void>;
  /**
   * The upstream session to use. With `stale`, another than that one: the upstream answered 404 to it.
   * @throws GatewayError session_not_found when ours has ended meanwhile
   */
  ensure(
    session: Session,
    upstream: Upstream,
    credential: Credential,
    stale?: string,
  ): Promise<UpstreamState>;
  /**
   * Does something that is safe to do again in the upstream's session: once more in a new one when the upstream
   * has forgotten it (`UpstreamStatus` 404).
   */
  use<T>(
    session: Session,
    upstream: Upstream,
    credential: Credential,
    work: (leg: UpstreamState) => Promise<T>,
  ): Promise<T>;
  /** DELETEs upstream sessions; never throws, what cannot be reached expires there by itself. */
  end(legs: readonly EndedLeg[]): void;
}

/** What `initialize` negotiated, out of the upstream's response. */
export function negotiated(
  name: string,
  parsed: unknown,
  sid: string | undefined,
): OpenedLeg['state'] {
  const result = (parsed as { result?: { protocolVersion?: unknown; capabilities?: unknown } })
    .result;
  return {
    name,
    sid: sid ?? '',
    protocolVersion:
      typeof result?.protocolVersion === 'string' ? result.protocolVersion : '2025-03-26',
    capabilities: JSON.stringify(result?.capabilities ?? {}),
    era: 'legacy',
  };
}

export function createLegs(deps: {
  redis: Redis;
  scripts: Scripts;
  sessions: Sessions;
  leases: Leases;
  upstreams: Upstreams;
  eras: Eras;
  ttlSeconds: number;
  log: Logger;
}): Legs {
  const { redis, scripts, sessions, leases, upstreams, eras, ttlSeconds, log } = deps;

  const open: Legs['open'] = async (upstream, body, id, credential) => {
    const legacy = (await eras.of(upstream, 'legacy', credential)) === 'legacy';
    try {
      if (!legacy) return await discover(upstream, body, id, credential, INIT_TIMEOUT_MS);
      const options = { id, timeoutMs: INIT_TIMEOUT_MS };
      const { text, parsed, sessionId } = await request(upstream, body, { credential }, options);
      const refused = parsed.error !== undefined;
      if (!refused || !(await isModernOnly(upstream, parsed.error, credential))) {
        return { state: negotiated(upstream.name, parsed, sessionId), text };
      }
    } catch (error) {
      if (!legacy) eras.doubt(upstream);
      if (!legacy || !(error instanceof UpstreamStatus)) throw error;
      if (!STRANGE.has(error.upstreamStatus)) throw error;
      const refusal = tryParse(error.body)?.['error'];
      if (!(await isModernOnly(upstream, refusal, credential))) throw error;
    }
    return discover(upstream, body, id, credential, INIT_TIMEOUT_MS);
  };

  /** The upstream refused initialize: because it is of the era that has no such thing? */
  async function isModernOnly(
    upstream: Upstream,
    refusal: unknown,
    credential: Credential,
  ): Promise<boolean> {
    if (upstream.config.protocol !== 'auto') return false;
    const code = (refusal as { code?: unknown } | null | undefined)?.code;
    // Servers that do not know the method, or miss `_meta` first, do not say why: those are asked.
    if (!isModernError(code) && !(await isModernAsked(upstream, credential))) return false;
    eras.modernOnly(upstream);
    return true;
  }

  async function isModernAsked(upstream: Upstream, credential: Credential): Promise<boolean> {
    try {
      return (await eras.of(upstream, 'modern', credential)) === 'modern';
    } catch (error) {
      log.debug({ err: error, upstream: upstream.name }, 'era of an upstream not found out');
      return false;
    }
  }

  const ready: Legs['ready'] = async (upstream, state, credential) => {
    if (state.era === 'modern') return;
    const sent = upstream.post(
      '{"jsonrpc":"2.0","method":"notifications/initialized"}',
      legOf(state, credential),
    );
    const reply = await sent.reply;
    if (reply.kind === 'events') sent.abort();
  };

  const current = async (
    { userId, sessionId }: SessionAddress,
    name: string,
  ): Promise<UpstreamState> => {
    const [sid, pv, caps, era] = await redis.hmget(
      keys.upstream(userId, sessionId, name),
      ...['sid', 'pv', 'caps', 'era'],
    );
    return {
      name,
      sid: sid ?? undefined,
      protocolVersion: pv ?? undefined,
      capabilities: caps ?? undefined,
      era: eraOf(era),
    };
  };

  const openFor = async (
    session: Session,
    upstream: Upstream,
    credential: Credential,
    stale: string | undefined,
  ): Promise<UpstreamState> => {
    const { userId, sessionId } = session;
    const params = await sessions.initText(session);
    const body = `{"jsonrpc":"2.0","id":"${INIT_ID}","method":"initialize","params":${params}}`;
    const { state, text } = await open(upstream, body, INIT_ID, credential);
    if ((JSON.parse(text) as { error?: unknown }).error !== undefined) {
      throw fail(
        'upstream_unavailable',
        `The server "${upstream.name}" refused to open a session.`,
        {
          data: { reason: 'upstream_refused' },
        },
      );
    }
    const reply = await scripts.swapUpstream(
      [keys.session(userId, sessionId), keys.upstream(userId, sessionId, upstream.name)],
      [
        stale ?? '',
        ttlSeconds + UPSTREAM_GRACE_SECONDS,
        ...upstreamFields(state),
        ...(session.keepHello === true ? ['hello', resultText(text) ?? '{}'] : []),
      ],
    );
    if (!Array.isArray(reply) || reply[0] !== 1) {
      end([{ name: upstream.name, sid: state.sid, protocolVersion: state.protocolVersion ?? '' }]);
      if (!Array.isArray(reply)) throw sessionGone();
      return await current(session, upstream.name);
    }
    await ready(upstream, state, credential);
    return state;
  };

  function end(legs: readonly EndedLeg[]): void {
    for (const leg of legs) {
      if (leg.sid === '') continue;
      const upstream = upstreams.get(leg.name);
      upstream
        ?.end({ sessionId: leg.sid, protocolVersion: leg.protocolVersion })
        .reply.catch((error: unknown) => {
          log.debug({ err: error, upstream: leg.name }, 'an upstream session could not be ended');
        });
    }
  }

  const ensure: Legs['ensure'] = async (session, upstream, credential, stale) => {
    const known = session.upstreams.find((u) => u.name === upstream.name);
    if (known?.sid !== undefined && known.sid !== stale) return known;
    const outcome = await leases.withLease(
      keys.lease(session.userId, `upstream:${session.sessionId}:${upstream.name}`),
      { ttlMs: LEASE_MS, waitMs: LEASE_MS },
      async () => {
        // Whoever had the lease before may have opened it.
        const now = await current(session, upstream.name);
        if (now.sid !== undefined && now.sid !== stale) return now;
        return openFor(session, upstream, credential, stale);
      },
    );
    if (outcome.held) return outcome.value;
    throw fail(
      'upstream_timeout',
      `The server "${upstream.name}" did not open a session in time.`,
      { data: { reason: 'upstream_timeout' } },
    );
  };

  return {
    open,
    ready,
    end,
    ensure,
    async use(session, upstream, credential, work) {
      const leg = await ensure(session, upstream, credential);
      try {
        return await work(leg);
      } catch (error) {
        const forgotten = error instanceof UpstreamStatus && error.upstreamStatus === 404;
        if (!forgotten || !leg.sid) throw error;
        return work(await ensure(session, upstream, credential, leg.sid));
      }
    },
  };
}

export function sessionGone(): ReturnType<typeof fail> {
  return fail(
    'session_not_found',
    'The session does not exist or has ended. Send a new initialize request.',
  );
}
