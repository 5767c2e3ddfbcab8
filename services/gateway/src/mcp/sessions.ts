/**
 * Sessions of the sessionful revisions: created by `initialize`, addressed by `<user id>:<session id>`, owned by
 * the OAuth client that made them. A session never authenticates; every lookup starts from the principal of the
 * request and compares client and endpoint inside the script, so a foreign one is one that does not exist.
 */
import { randomBytes } from 'node:crypto';
import type { Config } from '@viaduct/shared/config';
import { fail } from '@viaduct/shared/errors';
import type { SessionAddress } from '@viaduct/shared/event-bus';
import type { Principal } from '@viaduct/shared/principal';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys, SESSION_ID } from '@viaduct/shared/redis/keys';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import type { Era } from '../upstream/upstream.ts';
import type { JsonObject } from './message.ts';

/** What is known of one upstream's side of a session. */
export interface UpstreamState {
  readonly name: string;
  /** The upstream's own session id; '' when it works without; undefined when it was never initialised. */
  readonly sid: string | undefined;
  readonly protocolVersion: string | undefined;
  /** Server capabilities, JSON text. */
  readonly capabilities: string | undefined;
  /** `modern` has no session there: each request stands for itself. */
  readonly era: Era | undefined;
}

export interface Session extends SessionAddress {
  readonly clientId: string;
  /** Upstream name, or '' for all of them behind /mcp. */
  readonly endpoint: string;
  readonly protocolVersion: string;
  /** The client's declaration, as it wrote it. */
  readonly capabilitiesText: string;
  readonly level: string;
  /** `clientInfo`, JSON text. */
  readonly clientInfoText: string;
  readonly createdAtMs: number;
  readonly upstreams: readonly UpstreamState[];
  /** Keep the upstream's whole result of initialize: `server/discover` is answered from it. */
  readonly keepHello?: boolean;
}

export interface NewSession {
  /** Only for sessions that no client names (modern/implicit-sessions.ts); otherwise a new random one. */
  readonly sessionId?: string;
  readonly endpoint: string;
  readonly protocolVersion: string;
  readonly capabilitiesText: string;
  readonly clientInfoText: string;
  /** `params` of initialize as upstreams get them, JSON text: an upstream that joins later is told the same. */
  readonly initText: string;
  readonly upstreams: readonly (UpstreamState & { sid: string })[];
}

export interface EndedLeg {
  readonly name: string;
  readonly sid: string;
  readonly protocolVersion: string;
}

/** Upstream hashes outlive their session a little, so that their upstream sessions can still be ended. */
export const UPSTREAM_GRACE_SECONDS = 900;

/** Points that a request costs (guard.ts). */
export interface SessionCharge {
  readonly keys: readonly string[];
  readonly limits: readonly { readonly points: number; readonly seconds: number }[];
  settle(taken: readonly number[]): void;
}

const FREE: SessionCharge = { keys: [], limits: [], settle: () => undefined };

export interface Sessions {
  create(principal: Principal, input: NewSession): Promise<Session>;
  /**
   * Loads it for one request, and keeps it alive.
   * @throws GatewayError unavailable when a later version wrote it; it stays as it is
   * @param charge points to take in the same round trip; over a limit nothing is loaded, and `settle` throws
   */
  load(
    principal: Principal,
    sessionId: string,
    endpoint: string,
    upstreams: readonly string[],
    charge?: SessionCharge,
  ): Promise<Session | undefined>;
  /** Params of initialize, for upstreams that join later. */
  initText(address: SessionAddress): Promise<string>;
  setLevel(address: SessionAddress, level: string): Promise<void>;
  /** Ends it on every pod; undefined when there was nothing to end. */
  end(
    principal: Principal,
    sessionId: string,
    endpoint: string,
    upstreams: readonly string[],
  ): Promise<EndedLeg[] | undefined>;
}

export function createSessions(deps: {
  config: Pick<Config, 'sessions'>;
  redis: Redis;
  scripts: Scripts;
  clock?: () => number;
}): Sessions {
  const { config, redis, scripts, clock = Date.now } = deps;
  const ttl = config.sessions.ttlSeconds;
  const upstreamTtl = ttl + UPSTREAM_GRACE_SECONDS;

  return {
    async create(principal, input) {
      const sessionId = input.sessionId ?? randomBytes(16).toString('base64url');
      const { userId } = principal;
      const now = clock();
      const fields: (string | number)[] = [
        ...['v', 1, 'cid', principal.clientId, 'ep', input.endpoint],
        ...['pv', input.protocolVersion, 'caps', input.capabilitiesText],
        ...['info', input.clientInfoText, 'init', input.initText, 'created', now, 'seen', now],
      ];
      const legs = input.upstreams.flatMap((leg) => {
        const pairs = upstreamFields(leg);
        return [pairs.length, ...pairs];
      });
      await scripts.createSession(
        [
          keys.session(userId, sessionId),
          ...input.upstreams.map((leg) => keys.upstream(userId, sessionId, leg.name)),
        ],
        [ttl, upstreamTtl, fields.length, ...fields, ...legs],
      );
      return {
        userId,
        sessionId,
        clientId: principal.clientId,
        endpoint: input.endpoint,
        protocolVersion: input.protocolVersion,
        capabilitiesText: input.capabilitiesText,
        clientInfoText: input.clientInfoText,
        level: '',
        createdAtMs: now,
        upstreams: input.upstreams,
      };
    },

    async load(principal, sessionId, endpoint, upstreams, charge = FREE) {
      if (!SESSION_ID.test(sessionId)) return undefined;
      const { userId, clientId } = principal;
      const touched = sessionKeys(userId, sessionId);
      touched.push(...charge.keys);
      for (const name of upstreams) touched.push(keys.upstream(userId, sessionId, name));
      const args = [clientId, endpoint, ttl, clock(), upstreamTtl, charge.keys.length];
      for (const { points, seconds } of charge.limits) args.push(points, seconds);
      const reply = await scripts.enterSession(touched, args);
      const [kind, protocolVersion, capabilitiesText, level, clientInfoText, created, ...legs] =
        reply as [number | number[], string, string, string, string, string, ...(string | null)[]];
      if (Array.isArray(kind)) charge.settle(kind);
      if (kind === 2) throw laterVersion();
      if (kind !== 1) return undefined;
      return {
        userId,
        sessionId,
        clientId,
        endpoint,
        protocolVersion,
        capabilitiesText,
        level,
        clientInfoText,
        createdAtMs: Number(created),
        upstreams: upstreams.map((name, i) => ({
          name,
          sid: legs[4 * i] ?? undefined,
          protocolVersion: legs[4 * i + 1] ?? undefined,
          capabilities: legs[4 * i + 3] ?? undefined,
          era: eraOf(legs[4 * i + 2]),
        })),
      };
    },

    async initText({ userId, sessionId }) {
      return (await redis.hget(keys.session(userId, sessionId), 'init')) ?? '{}';
    },

    async setLevel({ userId, sessionId }, level) {
      // The session was loaded, and so touched, by the same request: HSET cannot make a key without TTL
      // unless the session ended in between, which the EXPIRE covers.
      const key = keys.session(userId, sessionId);
      await Promise.all([redis.hset(key, 'level', level), redis.expire(key, ttl)]);
    },

    async end(principal, sessionId, endpoint, upstreams) {
      if (!SESSION_ID.test(sessionId)) return undefined;
      const { userId, clientId } = principal;
      const [session, log, streams, pending] = sessionKeys(userId, sessionId);
      const reply = await scripts.endSession(
        [
          ...[session, log, streams, keys.listeners(userId, sessionId), pending],
          ...upstreams.map((u) => keys.upstream(userId, sessionId, u)),
        ],
        [clientId, endpoint, userId, sessionId],
      );
      if (!Array.isArray(reply)) return undefined;
      return (reply as (string | null)[][]).flatMap(([sid, protocolVersion], i) =>
        sid ? [{ name: upstreams[i]!, sid, protocolVersion: protocolVersion ?? '' }] : [],
      );
    },
  };
}

/** A rollout is under way, and the pods that know this session's form are the new ones. */
const laterVersion = () =>
  fail('unavailable', 'This session is served by a later version of the gateway. Try again.', {
    headers: { 'Retry-After': '1' },
  });

const sessionKeys = (
  userId: string,
  sessionId: string,
): [string, string, string, string, ...string[]] => [
  keys.session(userId, sessionId),
  keys.log(userId, sessionId),
  keys.streams(userId, sessionId),
  keys.pending(userId, sessionId),
];

export function upstreamFields(leg: {
  sid: string;
  protocolVersion: string | undefined;
  capabilities: string | undefined;
  era: Era | undefined;
}): string[] {
  return [
    ...['sid', leg.sid, 'era', leg.era ?? 'legacy'],
    ...['pv', leg.protocolVersion ?? '', 'caps', leg.capabilities ?? '{}'],
  ];
}

export const eraOf = (value: string | null | undefined): Era | undefined =>
  value === 'modern' || value === 'legacy' ? value : undefined;

/** Parses the client's declaration; what is no object declares nothing. */
export function capabilitiesOf(session: Pick<Session, 'capabilitiesText'>): JsonObject {
  const value: unknown = JSON.parse(session.capabilitiesText);
  return typeof value === 'object' && value !== null && !Array.isArray(value)
    ? (value as JsonObject)
    : {};
}
