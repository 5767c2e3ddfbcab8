/**
 * Elicitations: one record per request for user input, from asking to its end, and the state machine that it
 * goes through: created → opened → authorized → exchanging → completed; declined, cancelled, failed and expired
 * end it too (design, section 7). Forward only; every transition is one Lua script that checks it.
 *
 * Promises: while one is unfinished for a user, session and connection, asking again finds the same one; an end
 * happens once, with its metrics, its audit event and its nudge; a record outlives its end by a day, so that its
 * page can say what happened. Non-duties: what may be asked and how it is said (gateway's elicitation/), and the
 * limit of new ones, which the caller checks between `find` and `open`.
 */
import { createHash, randomBytes } from 'node:crypto';
import type { Logger } from 'pino';
import type { Audit } from './audit.ts';
import type { Config } from './config.ts';
import {
  decodeRecord,
  encodeRecord,
  isEnded,
  pairsToHash,
  type Elicitation,
  type ElicitationState,
  type EndReason,
} from './elicitations/record.ts';
import type { JobQueue } from './jobs.ts';
import type { Metrics } from './metrics.ts';
import type { Redis } from './redis/client.ts';
import { keys } from './redis/keys.ts';
import type { Scripts } from './redis/scripts.ts';
import { traceparent } from './tracing.ts';

export { isEnded } from './elicitations/record.ts';
export type { Elicitation, ElicitationState, EndReason } from './elicitations/record.ts';

/** Who is asked about what; one unfinished elicitation at a time. */
export interface ElicitationSlot {
  readonly userId: string;
  readonly clientId: string;
  readonly sessionId?: string;
  readonly connection: string;
}

export interface OpenInput extends ElicitationSlot {
  readonly clientName?: string;
  readonly endpoint: string;
  readonly upstream: string;
  readonly mode: Elicitation['mode'];
  readonly modeReason: string;
  readonly origin: Elicitation['origin'];
  readonly message: string;
  readonly requestId: string;
  readonly capabilities: string;
  /** Scopes to ask for beyond those granted. */
  readonly scopes?: string;
}

export interface MoveOptions {
  readonly reason?: EndReason;
  readonly action?: Elicitation['action'];
  /** Move from this state only, though the machine would allow others. */
  readonly from?: ElicitationState;
  /** With `exchanging`: which run of the job it is. */
  readonly attempt?: string;
  /** With `authorized`: what the worker needs, sealed (`flows.sealSecret`). */
  readonly code?: string;
  /** Id of the request or job that causes the transition, beside the one that asked. */
  readonly cause?: string;
}

export type MoveResult = 'moved' | 'already' | 'refused' | 'unknown';

export interface Completion {
  /** `exchanging` brings a credential; `opened` is the flow in which only the approval was missing. */
  readonly from: 'exchanging' | 'opened';
  readonly attempt?: string;
  /** From `vault.seal`. */
  readonly sealed?: string;
  /** From `consentEntry`; absent when no client waits for the approval. */
  readonly consent?: { readonly field: string; readonly value: string };
  readonly cause?: string;
}

export interface Elicitations {
  /** What is in the slot: the unfinished one, or else the last that ended (for an hour). */
  find(slot: ElicitationSlot): Promise<Elicitation | undefined>;
  /** The unfinished one of the slot, or a new one. */
  open(input: OpenInput): Promise<{ elicitation: Elicitation; created: boolean }>;
  /** Undefined for an unknown and for a foreign id alike. Ends the record when its time is over. */
  load(userId: string, id: string): Promise<Elicitation | undefined>;
  move(
    userId: string,
    id: string,
    to: Exclude<ElicitationState, 'created' | 'completed'>,
    options?: MoveOptions,
  ): Promise<MoveResult>;
  /** What the user typed was refused: `exchanging → opened`, or `failed` after the last try. */
  reopen(
    userId: string,
    id: string,
    refusal: { readonly attempt: string; readonly reason: EndReason; readonly cause?: string },
  ): Promise<'reopened' | 'failed' | 'refused' | 'unknown'>;
  /** Vault, consent, state, log and nudge in one step. A second run answers `already` and does nothing. */
  complete(
    userId: string,
    id: string,
    completion: Completion,
  ): Promise<'completed' | 'already' | 'refused' | 'unknown'>;
  /**
   * The record as it is now; when it ends, `podId` gets one nudge `elicitation` with user id and elicitation id.
   */
  watch(userId: string, id: string, podId: string): Promise<Elicitation | undefined>;
  /** Bookkeeping of a transition that another script has made (flows.ts). */
  noteTransition(elicitation: Elicitation, from: ElicitationState, cause?: string): Promise<void>;
  /** User id of a link's owner, for an operator; never to grant anything. */
  ownerOf(id: string): Promise<string | undefined>;
  /**
   * Somebody has opened a link that is not theirs. Written into the owner's record, and counted for who it was: how
   * often that has been by now. Undefined when there is no such link, or it is theirs. Only for the audit, never to
   * grant anything.
   */
  noteStranger(id: string, userId: string): Promise<number | undefined>;
  /** Unfinished elicitations of the whole installation, for a gauge. */
  countUnfinished(mode: Elicitation['mode']): Promise<number>;
}

export interface ElicitationsDeps {
  readonly redis: Redis;
  readonly scripts: Pick<
    Scripts,
    | 'openElicitation'
    | 'moveElicitation'
    | 'reopenElicitation'
    | 'completeElicitation'
    | 'watchElicitation'
    | 'noteStranger'
    | 'takePoints'
  >;
  readonly jobs: Pick<JobQueue, 'enqueue'>;
  readonly metrics: Pick<
    Metrics,
    'elicitations' | 'elicitationDuration' | 'connections' | 'busEvents'
  >;
  readonly audit: Audit;
  readonly log: Logger;
  readonly config: Pick<Config, 'elicitation' | 'sessions' | 'vault'>;
  readonly now?: () => number;
}

/** Wrong secrets that one link takes. */
export const SECRET_TRIES = 5;
/** An ended record is kept this long. */
export const KEEP_ENDED_SECONDS = 86_400;
/** How long a user's openings of other people's links are counted, from the first one. */
const STRANGER_SECONDS = 86_400;
/** The pointer outlives the record's life by this, so that the next call can say how the last attempt ended. */
const KEEP_POINTER_SECONDS = 3_600;
/** Who is back from the third party in time gets the exchange finished, though the link's life ends meanwhile. */
export const EXCHANGE_GRACE_MS = 60_000;

/** Ids are unguessable (128 bits) and say nothing. */
export const ELICITATION_ID = /^[A-Za-z0-9_-]{22}$/;

export function createElicitations(deps: ElicitationsDeps): Elicitations {
  const { redis, scripts, metrics, audit, log, config } = deps;
  const now = deps.now ?? Date.now;
  const ttlSeconds = config.elicitation.ttlSeconds;
  const vaultSeconds = Math.ceil(config.vault.idleDays * 86_400);

  const pointerOf = (slot: ElicitationSlot): string =>
    keys.openElicitation(slot.userId, scopeOf(slot), slot.connection);

  async function read(userId: string, id: string): Promise<Elicitation | undefined> {
    if (!ELICITATION_ID.test(id)) return undefined;
    return decodeRecord(await redis.hgetall(keys.elicitation(userId, id)));
  }

  async function load(userId: string, id: string): Promise<Elicitation | undefined> {
    const record = await read(userId, id);
    if (record === undefined || !isDue(record, now())) return record;
    await move(userId, id, 'expired', { reason: 'too_late' });
    return read(userId, id);
  }

  async function noteTransition(
    elicitation: Elicitation,
    from: ElicitationState | undefined,
    cause?: string,
  ): Promise<void> {
    const { mode, origin, state, connection } = elicitation;
    audit.record({
      type: `elicitation.${state}`,
      userId: elicitation.userId,
      clientId: elicitation.clientId,
      sessionId: elicitation.sessionId,
      requestId: elicitation.requestId,
      elicitationId: elicitation.id,
      connection,
      upstream: elicitation.upstream,
      mode,
      origin,
      reason: elicitation.reason,
    });
    log.info(
      { elicitationId: elicitation.id, requestId: elicitation.requestId, from, to: state, cause },
      'elicitation moved',
    );
    const member = `${elicitation.userId} ${elicitation.id}`;
    const unfinished = keys.unfinished(mode);
    try {
      if (state === 'created') {
        await redis.zadd(unfinished, elicitation.expiresAtMs + EXCHANGE_GRACE_MS, member);
        await redis.expire(unfinished, ttlSeconds + KEEP_POINTER_SECONDS);
      } else if (isEnded(state)) await redis.zrem(unfinished, member);
    } catch (error) {
      log.debug({ err: error }, 'a gauge is off by one until the entry is too old');
    }
    if (!isEnded(state)) return;
    metrics.elicitations.inc({ mode, origin, outcome: state });
    metrics.elicitationDuration.observe({ mode }, (now() - elicitation.createdAtMs) / 1000);
    if (origin === 'gateway') metrics.connections.inc({ connection, outcome: state });
  }

  async function move(
    userId: string,
    id: string,
    to: ElicitationState,
    options: MoveOptions = {},
  ): Promise<MoveResult> {
    if (!ELICITATION_ID.test(id)) return 'unknown';
    const fields: string[] = [];
    if (options.action !== undefined) fields.push('action', options.action);
    if (options.attempt !== undefined) fields.push('attempt', options.attempt);
    if (options.code !== undefined) fields.push('code', options.code);
    const reply = await scripts.moveElicitation(
      [keys.elicitation(userId, id)],
      [
        to,
        now(),
        options.reason ?? '',
        KEEP_ENDED_SECONDS,
        EXCHANGE_GRACE_MS,
        userId,
        id,
        options.from ?? '',
        ...fields,
      ],
    );
    if (!Array.isArray(reply)) return 'unknown';
    const [result, from] = reply as [MoveResult, ElicitationState];
    if (result === 'moved') {
      const after = await read(userId, id);
      if (after !== undefined) await noteTransition({ ...after, state: to }, from, options.cause);
    }
    return result;
  }

  return {
    load,
    move,
    noteTransition,

    async find(slot) {
      const id = await redis.get(pointerOf(slot));
      return id === null ? undefined : load(slot.userId, id);
    },

    async open(input) {
      const pointer = pointerOf(input);
      let held = (await redis.get(pointer)) ?? '';
      for (let round = 0; round < 5; round++) {
        if (held !== '') {
          const existing = await load(input.userId, held);
          if (existing !== undefined && !isEnded(existing.state)) {
            return { elicitation: existing, created: false };
          }
        }
        const elicitation = newRecord(input, now(), ttlSeconds);
        // Another slot, so it cannot be part of the script. Written first: a link without its owner's name would
        // only cost an audit event.
        await redis.set(
          keys.link(elicitation.id),
          input.userId,
          'EX',
          ttlSeconds + KEEP_ENDED_SECONDS,
        );
        const reply = await scripts.openElicitation(
          [pointer, keys.elicitation(input.userId, elicitation.id)],
          [
            held,
            elicitation.id,
            ttlSeconds + KEEP_POINTER_SECONDS,
            ttlSeconds + KEEP_ENDED_SECONDS,
            ...encodeRecord(elicitation),
          ],
        );
        if (reply === '') {
          await noteTransition(elicitation, undefined);
          await scheduleExpiry(elicitation);
          return { elicitation, created: true };
        }
        held = String(reply);
      }
      throw new Error('an elicitation could not be opened: its slot keeps changing');
    },

    async reopen(userId, id, { attempt, reason, cause }) {
      const reply = await scripts.reopenElicitation(
        [keys.elicitation(userId, id)],
        [attempt, now(), SECRET_TRIES, reason, KEEP_ENDED_SECONDS, userId, id],
      );
      if (!Array.isArray(reply)) return 'unknown';
      const result = reply[0] as 'reopened' | 'failed' | 'refused';
      if (result !== 'refused') {
        const after = await read(userId, id);
        if (after !== undefined) await noteTransition(after, 'exchanging', cause);
      }
      return result;
    },

    async complete(userId, id, completion) {
      const record = await read(userId, id);
      if (record === undefined) return 'unknown';
      const sessionId = record.sessionId ?? '';
      const reply = await scripts.completeElicitation(
        [
          keys.elicitation(userId, id),
          keys.vault(userId, record.connection),
          keys.consent(userId),
          keys.session(userId, sessionId),
          keys.log(userId, sessionId),
        ],
        [
          completion.from,
          completion.attempt ?? '',
          now(),
          KEEP_ENDED_SECONDS,
          completion.sealed ?? '',
          vaultSeconds,
          completion.consent?.field ?? '',
          completion.consent?.value ?? '',
          sessionId === '' ? '' : completionNotification(id),
          config.sessions.eventLogMaxLen,
          config.sessions.ttlSeconds,
          userId,
          sessionId,
          id,
          traceparent() ?? '',
        ],
      );
      if (!Array.isArray(reply)) return 'unknown';
      const [result, from, route] = reply as [
        'completed' | 'already' | 'refused',
        ElicitationState,
        string,
      ];
      if (result === 'completed') {
        if (route !== '') metrics.busEvents.inc({ kind: 'listening', route });
        await noteTransition({ ...record, state: 'completed' }, from, completion.cause);
      }
      return result;
    },

    async watch(userId, id, podId) {
      if (!ELICITATION_ID.test(id)) return undefined;
      const reply = await scripts.watchElicitation([keys.elicitation(userId, id)], [podId]);
      if (!Array.isArray(reply)) return undefined;
      const record = decodeRecord(pairsToHash(reply));
      return record !== undefined && isDue(record, now()) ? load(userId, id) : record;
    },

    ownerOf,

    async noteStranger(id, userId) {
      const owner = await ownerOf(id);
      if (owner === undefined || owner === userId) return undefined;
      const count = keys.strangerCount(userId);
      const [taken] = await Promise.all([
        scripts.takePoints([count], [STRANGER_SECONDS]),
        scripts.noteStranger([keys.elicitation(owner, id)], [userId, now()]),
      ]);
      return (taken as number[])[0];
    },

    async countUnfinished(mode) {
      const key = keys.unfinished(mode);
      await redis.zremrangebyscore(key, '-inf', now());
      return redis.zcard(key);
    },
  };

  async function ownerOf(id: string): Promise<string | undefined> {
    if (!ELICITATION_ID.test(id)) return undefined;
    return (await redis.get(keys.link(id))) ?? undefined;
  }

  async function scheduleExpiry(elicitation: Elicitation): Promise<void> {
    const { userId, id, requestId } = elicitation;
    try {
      await deps.jobs.enqueue(
        'expire-elicitation',
        { userId, elicitationId: id, requestId },
        { delayMs: elicitation.expiresAtMs - now() + 250 },
      );
    } catch (error) {
      // Not worth failing a call for: whoever looks at the record next notices that its time is over.
      log.warn({ err: error, elicitationId: id, requestId }, 'expiry could not be scheduled');
    }
  }
}

/** Sessions are asked separately; clients without sessions are told apart by their OAuth client. */
function scopeOf(slot: ElicitationSlot): string {
  if (slot.sessionId !== undefined) return `s.${slot.sessionId}`;
  return `c.${createHash('sha256').update(slot.clientId).digest('base64url').slice(0, 22)}`;
}

function newRecord(input: OpenInput, at: number, ttlSeconds: number): Elicitation {
  const parent = traceparent();
  return {
    id: randomBytes(16).toString('base64url'),
    userId: input.userId,
    clientId: input.clientId,
    ...(input.clientName !== undefined && { clientName: input.clientName.slice(0, 200) }),
    ...(input.sessionId !== undefined && { sessionId: input.sessionId }),
    endpoint: input.endpoint,
    upstream: input.upstream,
    connection: input.connection,
    mode: input.mode,
    modeReason: input.modeReason,
    origin: input.origin,
    message: input.message,
    requestId: input.requestId,
    capabilities: input.capabilities.slice(0, 8_192),
    ...(input.scopes !== undefined && { scopes: input.scopes }),
    ...(parent !== undefined && { traceparent: parent }),
    state: 'created',
    createdAtMs: at,
    expiresAtMs: at + ttlSeconds * 1000,
    updatedAtMs: at,
    at: { created: at },
  };
}

/** Is its time over? The move script decides by the same rule. */
export function isDue(record: Elicitation, nowMs: number): boolean {
  if (isEnded(record.state)) return false;
  const running = record.state === 'authorized' || record.state === 'exchanging';
  return nowMs >= record.expiresAtMs + (running ? EXCHANGE_GRACE_MS : 0);
}

/** 2025-11-25 client/elicitation, Completion Notifications. */
function completionNotification(elicitationId: string): string {
  return JSON.stringify({
    jsonrpc: '2.0',
    method: 'notifications/elicitation/complete',
    params: { elicitationId },
  });
}
