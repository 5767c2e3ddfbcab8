/**
 * Requests that an upstream makes of the client (elicitation, sampling, roots, ping).
 *
 * They go out on the stream of the call that caused them, under an id of ours: two upstreams may use the same
 * id at once. The record in Redis holds the upstream's own; whichever pod gets the answer claims it and
 * delivers it, so the first answer wins and a late one finds nothing.
 */
import { randomBytes } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from 'pino';
import { LISTENING } from '@viaduct/shared/event-bus';
import { applyEdits, findPath, objectMembers, sliceOf } from '@viaduct/shared/json-text';
import type { Metrics } from '@viaduct/shared/metrics';
import type { Principal } from '@viaduct/shared/principal';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import { refusal, unsafeAsk, type Guard } from '../elicitation/elicitation.ts';
import { legOf, type Leg, type Upstream, type Upstreams } from '../upstream/upstream.ts';
import { encodeAnswer, type RoundAnswers } from './legacy-to-modern/round-answers.ts';
import { errorText, withId, type ResponseMessage } from './message.ts';
import { capabilitiesOf, type Session } from './sessions.ts';

/** What is asked for an upstream without sessions: its answer is kept for the pod that repeats the call. */
const ROUND_PREFIX = 'ask-round-';
const PUT_BACK_ATTEMPTS = 10;
const PUT_BACK_AGAIN_MS = 500;

interface RoundPending {
  readonly holder: string;
  readonly round: string;
  readonly upstream: string;
  readonly method: string;
  readonly stream: string;
}

interface Pending {
  readonly upstream: string;
  /** The upstream's own id, JSON text. */
  readonly id: string;
  readonly sid: string;
  readonly pv: string;
  readonly method: string;
  readonly stream: string;
}

export interface AskOrigin {
  readonly session: Session;
  readonly upstream: Upstream;
  readonly address: Leg;
  readonly stream: string;
}

export interface Asks {
  /** The request as the client gets it; undefined when it was refused to the upstream instead. */
  register(
    origin: AskOrigin,
    text: string,
    parsed: Record<string, unknown>,
  ): Promise<string | undefined>;
  /**
   * What a modern upstream requires before it goes on, as the client gets it; in the order given. The requests are
   * checked already.
   *
   * @param requests messages with any id
   */
  registerRound(
    origin: { session: Session; upstream: Upstream; stream: string; round: string },
    requests: readonly { readonly id: string; readonly text: string; readonly method: string }[],
  ): Promise<string[]>;
  /**
   * Delivers a client's answer to the upstream that asked, or to the pod whose call waits for it. False when nothing
   * is waiting for it.
   *
   * @param authorize may this token answer for the upstream of that name? Asked before anything is claimed; may throw
   */
  answer(
    session: Session,
    principal: Principal,
    message: ResponseMessage,
    authorize: (upstream: string) => void,
  ): Promise<boolean>;
  /** `notifications/cancelled` of an upstream, with the id that the client knows; undefined when unknown. */
  withdraw(session: Session, upstream: string, text: string): Promise<string | undefined>;
  /** The call is over; what it asked is not waited for any more. */
  forget(session: Session, stream: string): void;
  /** As `forget`, and says which of its questions the client has not answered yet. */
  takeBack(session: Session, stream: string): Promise<string[]>;
}

export const newRoundAskId = (): string => `${ROUND_PREFIX}${randomBytes(9).toString('base64url')}`;

export function createAsks(deps: {
  redis: Redis;
  scripts: Scripts;
  upstreams: Upstreams;
  ttlSeconds: number;
  podId: string;
  rounds: RoundAnswers;
  metrics: Metrics;
  log: Logger;
  credential(principal: Principal, upstream: Upstream): Promise<Record<string, string> | undefined>;
  /** Rewrites what names an upstream's things, for the endpoint of many. */
  toClient(session: Session, upstream: string, text: string, method: string): string;
  readonly guard: Guard;
  audit(
    event: { session: Session; upstream: string } & (
      | { type: 'capability.refused'; mode: string }
      | { type: 'elicitation.unsafe'; detail: string; refuse: boolean }
    ),
  ): void;
}): Asks {
  const { redis, scripts, upstreams, ttlSeconds, podId, rounds, metrics, log } = deps;
  /** Ids out on this pod's calls, so that `forget` costs nothing for calls that asked nothing. */
  const byStream = new Map<string, string[]>();

  const deliver = async (upstream: Upstream, text: string, address: Leg): Promise<void> => {
    const sent = upstream.post(text, address);
    const reply = await sent.reply;
    if (reply.kind === 'events') sent.abort();
    if (reply.status >= 300) {
      log.warn({ upstream: upstream.name, status: reply.status }, 'an upstream refused an answer');
    }
  };

  function remember(stream: string, ids: readonly string[]): void {
    const list = byStream.get(stream);
    if (list === undefined) byStream.set(stream, [...ids]);
    else list.push(...ids);
  }

  /** Stored first, then the pod that waits is told: a lost nudge costs time, never the answer (invariant 4). */
  async function keep(session: Session, id: string, message: ResponseMessage): Promise<boolean> {
    const { userId, sessionId } = session;
    const { text, members } = message;
    const result = members.get('result');
    const said = result ?? members.get('error')!;
    const answer = encodeAnswer({
      kind: result !== undefined && text[result.start] === '{' ? 'result' : 'error',
      text: sliceOf(text, said),
    });
    const round = await scripts.answerRound(
      [keys.session(userId, sessionId), keys.pending(userId, sessionId)],
      [session.clientId, session.endpoint, id, answer, podId, userId, sessionId, ttlSeconds],
    );
    if (typeof round !== 'string') return false;
    rounds.arrived(session, round);
    return true;
  }

  /**
   * Redis did not answer a claim, and may have made it all the same. The client is told to send its answer again, so
   * the record has to be there for that; where the claim was not made, it still is, and nothing changes.
   */
  async function putBack(
    { userId, sessionId }: Session,
    id: string,
    record: string,
  ): Promise<void> {
    const key = keys.pending(userId, sessionId);
    for (let attempt = 0; attempt < PUT_BACK_ATTEMPTS; attempt++) {
      try {
        await Promise.all([redis.hsetnx(key, id, record), redis.expire(key, ttlSeconds)]);
        return;
      } catch (error) {
        log.debug({ err: error }, 'a question could not be put back yet');
        await delay(PUT_BACK_AGAIN_MS, undefined, { ref: false });
      }
    }
  }

  return {
    async register({ session, upstream, address, stream }, text, parsed) {
      const members = objectMembers(text);
      const idSlice = members?.get('id');
      if (members === undefined || idSlice === undefined) return undefined;
      const id = sliceOf(text, idSlice);
      const method = parsed['method'] as string;
      const refused = refusal(
        capabilitiesOf(session),
        method,
        parsed['params'] as Record<string, unknown> | undefined,
      );
      const sid = address.sessionId ?? '';
      const pv = address.protocolVersion ?? '';
      if (refused !== undefined) {
        metrics.capabilityRefusals.inc({ mode: refused.mode });
        deps.audit({
          type: 'capability.refused',
          session,
          upstream: upstream.name,
          mode: refused.mode,
        });
        const { code, message } = refused;
        await deliver(upstream, errorText(id, { code, message }), address);
        return undefined;
      }
      if (method === 'elicitation/create') {
        const params = parsed['params'] as Record<string, unknown> | undefined;
        const unsafe = unsafeAsk(params, deps.guard);
        if (unsafe !== undefined) {
          deps.audit({ type: 'elicitation.unsafe', session, upstream: upstream.name, ...unsafe });
          if (unsafe.refuse) {
            await deliver(
              upstream,
              errorText(id, { code: -32602, message: unsafe.message }),
              address,
            );
            return undefined;
          }
        }
      }
      const ours = `ask-${randomBytes(9).toString('base64url')}`;
      const record: Pending = { upstream: upstream.name, id, sid, pv, method, stream };
      const key = keys.pending(session.userId, session.sessionId);
      await Promise.all([
        redis.hset(key, ours, JSON.stringify(record)),
        redis.expire(key, ttlSeconds),
      ]);
      if (stream !== LISTENING) remember(stream, [ours]);
      return deps.toClient(
        session,
        upstream.name,
        withId(text, members, JSON.stringify(ours)),
        method,
      );
    },

    async registerRound({ session, upstream, stream, round }, requests) {
      const fields = requests.flatMap(({ id, method }) => {
        const record: RoundPending = {
          holder: podId,
          round,
          upstream: upstream.name,
          method,
          stream,
        };
        return [id, JSON.stringify(record)];
      });
      const key = keys.pending(session.userId, session.sessionId);
      await Promise.all([redis.hset(key, ...fields), redis.expire(key, ttlSeconds)]);
      remember(
        stream,
        requests.map(({ id }) => id),
      );
      return requests.map(({ id, text, method }) =>
        deps.toClient(
          session,
          upstream.name,
          withId(text, objectMembers(text)!, JSON.stringify(id)),
          method,
        ),
      );
    },

    async answer(session, principal, message, authorize) {
      if (typeof message.id !== 'string') return false;
      const { userId, sessionId } = session;
      const asked = await redis.hget(keys.pending(userId, sessionId), message.id);
      // Not asked, or answered already (answer-round.lua).
      if (asked?.startsWith('{') !== true) return false;
      // A weaker token of the same user may not answer for an upstream that it cannot use; nothing is claimed yet.
      authorize((JSON.parse(asked) as Pending | RoundPending).upstream);
      if (message.id.startsWith(ROUND_PREFIX)) return keep(session, message.id, message);
      let reply;
      try {
        reply = await scripts.claimPending(
          [keys.session(userId, sessionId), keys.pending(userId, sessionId)],
          [session.clientId, session.endpoint, message.id],
        );
      } catch (error) {
        void putBack(session, message.id, asked);
        throw error;
      }
      if (typeof reply !== 'string') return false;
      const record = JSON.parse(reply) as Pending;
      const upstream = upstreams.get(record.upstream);
      if (upstream === undefined) return false;
      const credential = await deps.credential(principal, upstream);
      await deliver(
        upstream,
        withId(message.text, message.members, record.id),
        legOf(
          { sid: record.sid, protocolVersion: record.pv === '' ? undefined : record.pv },
          credential,
        ),
      );
      return true;
    },

    async withdraw({ userId, sessionId }, upstream, text) {
      const at = findPath(text, ['params', 'requestId']);
      if (at === undefined) return undefined;
      const id = sliceOf(text, at);
      const key = keys.pending(userId, sessionId);
      for (const [ours, value] of Object.entries(await redis.hgetall(key))) {
        if (ours.startsWith(ROUND_PREFIX)) continue;
        const record = JSON.parse(value) as Pending;
        if (record.upstream !== upstream || record.id !== id) continue;
        await redis.hdel(key, ours);
        return applyEdits(text, [{ ...at, text: JSON.stringify(ours) }]);
      }
      return undefined;
    },

    async takeBack({ userId, sessionId }, stream) {
      const ids = byStream.get(stream) ?? [];
      byStream.delete(stream);
      const removed = await Promise.all(
        ids.map(async (id) => [id, await redis.hdel(keys.pending(userId, sessionId), id)] as const),
      );
      return removed.filter(([, count]) => count === 1).map(([id]) => id);
    },

    forget({ userId, sessionId }, stream) {
      const ids = byStream.get(stream);
      if (ids === undefined) return;
      byStream.delete(stream);
      redis.hdel(keys.pending(userId, sessionId), ...ids).catch((error: unknown) => {
        log.debug(
          { err: error },
          'requests that nobody waits for could not be removed; they expire',
        );
      });
    },
  };
}
