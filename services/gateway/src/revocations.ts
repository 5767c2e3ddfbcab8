/**
 * Putting a user out: `POST /users/revoke` on the admin listener.
 *
 * Promises: within a second no pod accepts a token or a browser session from before the revocation, sessions and
 * streams are ended, refresh tokens and approvals of the built-in authorization server are gone, pending flows are
 * cancelled, and, if asked, connections are revoked at their third parties. The mark comes first, so whatever fails
 * after it, nobody is served any more; the same request again goes on where it stopped.
 * Pods learn of it from Redis twice a second; without Redis a pod knows what it knew. An external issuer has to be
 * told by other means, or it goes on issuing tokens.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Audit } from '@viaduct/shared/audit';
import type { Config } from '@viaduct/shared/config';
import type { Consents } from '@viaduct/shared/consents';
import type { Credentials } from '@viaduct/shared/credentials';
import type { Elicitations } from '@viaduct/shared/elicitations';
import type { Logger } from '@viaduct/shared/log';
import { userIdOf } from '@viaduct/shared/principal';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import { builtinIssuer } from './challenges.ts';

export interface RevocationsDeps {
  readonly config: Config;
  readonly redis: Redis;
  readonly scripts: Pick<Scripts, 'endSession'>;
  readonly elicitations: Pick<Elicitations, 'move'>;
  readonly consents: Pick<Consents, 'forget'>;
  readonly credentials: Pick<Credentials, 'disconnect'>;
  readonly audit: Audit;
  readonly log: Logger;
  /** Ends what this pod holds for the user. */
  readonly onRevoked: (userId: string) => void;
  /** Grants and approvals of the built-in authorization server. */
  readonly withdrawAll: (userId: string) => Promise<void>;
}

export interface Revocations {
  isRevoked(userId: string, issuedAtMs: number): boolean;
  /** Puts a user out everywhere, and with `connections` ends what is connected. */
  revoke(
    userId: string,
    connections: boolean,
    requestId: string,
  ): Promise<{ userId: string; sessions: number; connections: boolean }>;
  start(): void;
  stop(): void;
  /** For the admin listener. */
  handle(req: IncomingMessage, res: ServerResponse, next: (error?: unknown) => void): void;
}

const POLL_MS = 400;
/** Longer than any access token lives here; browser sessions live for eight hours. */
const KEEP_SECONDS = 2 * 86_400;
const MAX_BODY = 4_096;
const USER_ID = /^[A-Za-z0-9_-]{22}$/;

/** Before the authorization server is there, whose answers depend on it. */
export function createRevoked() {
  const revoked = new Map<string, number>();
  return {
    isRevoked: (userId: string, issuedAtMs: number): boolean => {
      if (revoked.size === 0) return false; // the path of every request
      const at = revoked.get(userId);
      return at !== undefined && issuedAtMs <= at;
    },
    /** True when it is news. */
    note(userId: string, atMs: number): boolean {
      if ((revoked.get(userId) ?? -1) >= atMs) return false;
      revoked.set(userId, atMs);
      return true;
    },
    forgetBefore(ms: number): void {
      for (const [userId, at] of revoked) if (at < ms) revoked.delete(userId);
    },
  };
}
export type Revoked = ReturnType<typeof createRevoked>;

export function createRevocations(deps: RevocationsDeps, revoked: Revoked): Revocations {
  const { config, redis, scripts, audit, log } = deps;
  let timer: NodeJS.Timeout | undefined;
  let polling = false;

  function note(userId: string, atMs: number): void {
    if (revoked.note(userId, atMs)) deps.onRevoked(userId);
  }

  async function poll(): Promise<void> {
    if (polling) return;
    polling = true;
    try {
      const since = Date.now() - KEEP_SECONDS * 1000;
      const found = await redis.zrangebyscore(keys.revoked(), since, '+inf', 'WITHSCORES');
      for (let at = 0; at + 1 < found.length; at += 2) note(found[at]!, Number(found[at + 1]));
      revoked.forgetBefore(since);
    } catch (error) {
      log.debug({ err: error }, 'revocations could not be read'); // Redis away is told elsewhere
    } finally {
      polling = false;
    }
  }

  /** An operator's act, so it may look through the keys; every key of a user has the same hash tag. */
  async function idsOf(keyOf: (userId: string, id: string) => string, userId: string) {
    const prefix = keyOf(userId, '');
    const nodes = 'nodes' in redis ? redis.nodes('master') : [redis];
    const ids: string[] = [];
    for (const node of nodes) {
      let cursor = '0';
      do {
        const [next, page] = await node.scan(cursor, 'MATCH', `${prefix}*`, 'COUNT', 1000);
        cursor = next;
        ids.push(...page.map((key) => key.slice(prefix.length)));
      } while (cursor !== '0');
    }
    return ids;
  }

  async function endSessions(userId: string): Promise<number> {
    const ids = await idsOf(keys.session, userId);
    for (const sessionId of ids) {
      await scripts.endSession(
        [
          keys.session(userId, sessionId),
          keys.log(userId, sessionId),
          keys.streams(userId, sessionId),
          keys.listeners(userId, sessionId),
          keys.pending(userId, sessionId),
          ...config.upstreams.map(({ name }) => keys.upstream(userId, sessionId, name)),
        ],
        ['', '', userId, sessionId],
      );
      audit.record({ type: 'session.ended', userId, sessionId, reason: 'revoked' });
    }
    return ids.length;
  }

  async function revoke(userId: string, connections: boolean, requestId: string) {
    const atMs = Date.now();
    await redis.zadd(keys.revoked(), 'GT', atMs, userId);
    await redis.expire(keys.revoked(), KEEP_SECONDS);
    note(userId, atMs);
    await redis.zremrangebyscore(keys.revoked(), 0, atMs - KEEP_SECONDS * 1000);
    await deps.withdrawAll(userId);
    const sessions = await endSessions(userId);
    for (const id of await idsOf(keys.elicitation, userId)) {
      await deps.elicitations.move(userId, id, 'cancelled', {
        reason: 'withdrawn',
        cause: requestId,
      });
    }
    if (connections) {
      for (const connection of Object.values(config.connections)) {
        await deps.consents.forget(userId, connection.name);
        await deps.credentials.disconnect(userId, connection, requestId);
      }
    }
    audit.record({ type: 'user.revoked', userId, requestId, connections, sessions });
    return { userId, sessions, connections };
  }

  /** The user by id, or by the subject that the issuer knows. */
  function userOf(body: Record<string, unknown>): string | undefined {
    const { userId, subject } = body;
    if (typeof userId === 'string' && USER_ID.test(userId)) return userId;
    if (typeof subject !== 'string' || subject === '') return undefined;
    const { auth } = config;
    if (auth.mode === 'none') return undefined;
    const issuer = auth.mode === 'builtin' ? builtinIssuer(config.publicUrl) : auth.issuer;
    return userIdOf(issuer, subject);
  }

  async function serve(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const body = await readJson(req);
    const userId = body && userOf(body);
    if (body === undefined || userId === undefined) {
      answer(res, 400, { error: 'a JSON object with userId or subject is needed' });
      return;
    }
    const requestId = `revoke-${Date.now().toString(36)}`;
    answer(res, 200, await revoke(userId, body['connections'] === true, requestId));
  }

  return {
    isRevoked: revoked.isRevoked,
    revoke,
    start() {
      // Elsewhere tokens are the issuer's to revoke; an idle pod asks Redis for nothing.
      if (config.auth.mode !== 'builtin') return;
      void poll();
      timer = setInterval(() => void poll(), POLL_MS);
      timer.unref();
    },
    stop() {
      clearInterval(timer);
    },
    handle(req, res, next) {
      if ((req.url ?? '').replace(/\?.*$/s, '') !== '/users/revoke') next();
      else if (req.method !== 'POST') answer(res, 405, { error: 'POST only' });
      else if (!/^application\/json\b/i.test(req.headers['content-type'] ?? '')) {
        // Also keeps a page in an operator's browser from doing it: this type needs a preflight.
        answer(res, 415, { error: 'application/json only' });
      } else serve(req, res).catch(next);
    },
  };
}

async function readJson(req: IncomingMessage): Promise<Record<string, unknown> | undefined> {
  let text = '';
  for await (const chunk of req as AsyncIterable<Buffer>) {
    text += chunk.toString('utf8');
    if (text.length > MAX_BODY) return undefined;
  }
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : undefined;
  } catch {
    return undefined;
  }
}

function answer(res: ServerResponse, status: number, value: unknown): void {
  res.writeHead(status, { 'Content-Type': 'application/json', 'Cache-Control': 'no-store' });
  res.end(JSON.stringify(value));
}
