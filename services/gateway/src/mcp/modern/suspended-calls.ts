/**
 * Calls that wait for their client's answers while one pod keeps them open upstream (design, section 9): the record
 * that any pod can claim a round of, the stream in which the call goes on, and the nudges between the two pods.
 *
 * Promises: a round is claimed once; what the upstream says is appended before anybody is nudged, one PUBLISH each;
 * a call that waits costs one timer on its holder and no commands. In memory only: who holds and who follows what on
 * this very pod.
 */
import { randomBytes } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from 'pino';
import { isStoreError } from '@viaduct/shared/errors';
import type { Nudge } from '@viaduct/shared/event-bus';
import type { Metrics } from '@viaduct/shared/metrics';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys, podChannel } from '@viaduct/shared/redis/keys';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import { UPSTREAM_GRACE_SECONDS } from '../sessions.ts';
import type { Implicit } from './implicit-sessions.ts';

/** One question as the holder has put it to the client. */
export interface Ask {
  /** In `inputRequests`. */
  readonly key: string;
  /** The upstream's own id, JSON text. */
  readonly id: string;
  readonly method: string;
}

export interface Questions {
  readonly asks: readonly Ask[];
  /** `inputRequests`, JSON text. */
  readonly requests: string;
}

export interface CallRecord extends Questions {
  readonly kind: 'asks' | 'links';
  readonly state: 'asking' | 'running' | 'over';
  readonly holder: string;
  readonly round: number;
  /** The entry that put the questions; the continuation goes on after it. */
  readonly at: string;
  /** Where the answers go: the upstream session and its revision, and the id of the call there. */
  readonly sid: string;
  readonly pv: string;
  readonly leg: string;
}

export type EntryKind =
  /** A notification of the upstream's. */
  | 'n'
  /** Further questions. */
  | 'q'
  /** The final response. */
  | 'e'
  /** It failed; JSON of a GatewayError. */
  | 'x'
  /** A link has been followed to its end; elicitation id. */
  | 'c';

export interface Entry {
  readonly id: string;
  readonly kind: EntryKind;
  readonly message: string;
}

/** What keeps a call open on this pod. */
export interface Holder {
  onNudge(detail: string): void;
}

export interface Wake {
  cancel(): void;
  within(ms: number): Promise<void>;
}

/** How long a call that is under way bears Redis being away. */
const STORE_PATIENCE_MS = 15_000;
const MAX_CONTINUATION = 1_000;
const GRACE_SECONDS = 60;

export class SuspendedCalls {
  readonly #redis: Redis;
  readonly #scripts: Scripts;
  readonly #metrics: Pick<Metrics, 'suspendedCalls'>;
  readonly #log: Logger;
  readonly podId: string;
  readonly ttlSeconds: number;
  readonly #holders = new Map<string, Holder>();
  readonly #followers = new Map<string, Set<() => void>>();

  constructor(deps: {
    readonly redis: Redis;
    readonly scripts: Scripts;
    readonly metrics: Pick<Metrics, 'suspendedCalls'>;
    readonly log: Logger;
    readonly podId: string;
    /** How long a client may take for one round. */
    readonly ttlSeconds: number;
  }) {
    this.#redis = deps.redis;
    this.#scripts = deps.scripts;
    this.#metrics = deps.metrics;
    this.#log = deps.log;
    this.podId = deps.podId;
    this.ttlSeconds = deps.ttlSeconds;
  }

  /** Calls held open on this pod. */
  get size(): number {
    return this.#holders.size;
  }

  newId(): string {
    return randomBytes(16).toString('base64url');
  }

  #keysOf(userId: string, callId: string): [string, string] {
    return [keys.suspended(userId, callId), keys.call(userId, callId)];
  }

  /** A round and the run after it may both last as long as they are allowed to. */
  #keepSeconds(timeoutSeconds: number): number {
    return Math.max(this.ttlSeconds, timeoutSeconds) + GRACE_SECONDS;
  }

  async suspend(
    { session, upstream, leg }: Implicit,
    callId: string,
    { kind, leg: legId, asks, requests }: Pick<CallRecord, 'kind' | 'leg' | 'asks' | 'requests'>,
  ): Promise<void> {
    const { userId, sessionId } = session;
    const keep = this.#keepSeconds(upstream.config.timeoutSeconds);
    await this.#scripts.suspendCall(
      [
        keys.suspended(userId, callId),
        keys.session(userId, sessionId),
        keys.upstream(userId, sessionId, upstream.name),
      ],
      [
        ...[keep, keep + UPSTREAM_GRACE_SECONDS],
        ...['kind', kind, 'holder', this.podId, 'leg', legId],
        ...['sid', leg.sid ?? '', 'pv', leg.protocolVersion ?? ''],
        ...['asks', JSON.stringify(asks), 'requests', requests],
      ],
    );
  }

  /** False when nobody can ask for it any more. */
  async append(
    userId: string,
    callId: string,
    timeoutSeconds: number,
    kind: EntryKind,
    message: string,
    next?: { readonly round: number; readonly asks: readonly Ask[]; readonly requests: string },
  ): Promise<boolean> {
    const fields =
      next === undefined
        ? []
        : [
            ...['round', next.round, 'asks', JSON.stringify(next.asks)],
            ...['requests', next.requests],
          ];
    const route = await patiently(() =>
      this.#scripts.continueCall(this.#keysOf(userId, callId), [
        ...[kind, message, this.podId, MAX_CONTINUATION, this.#keepSeconds(timeoutSeconds)],
        ...[userId, callId, ...fields],
      ]),
    );
    if (route === 'local') this.#wake(`${userId} ${callId}`);
    return route !== null;
  }

  async read(userId: string, callId: string): Promise<CallRecord | undefined> {
    const fields = await this.#redis.hgetall(keys.suspended(userId, callId));
    const { state, holder, asks, requests } = fields;
    if (!state || !holder || !asks || !requests) return undefined;
    return {
      kind: fields['kind'] === 'links' ? 'links' : 'asks',
      state: state as CallRecord['state'],
      holder,
      round: Number(fields['round']),
      at: fields['at'] ?? '0-0',
      asks: JSON.parse(asks) as Ask[],
      requests,
      sid: fields['sid'] ?? '',
      pv: fields['pv'] ?? '',
      leg: fields['leg'] ?? '',
    };
  }

  /** Undefined when the round is not open any more, else the entry after which the continuation goes on. */
  async claim(
    userId: string,
    callId: string,
    record: CallRecord,
    timeoutSeconds: number,
  ): Promise<string | undefined> {
    const at = await this.#scripts.claimSuspended(this.#keysOf(userId, callId), [
      ...[record.round, this.podId, this.#keepSeconds(timeoutSeconds), userId, callId],
    ]);
    if (typeof at !== 'string') return undefined;
    if (record.holder === this.podId) {
      this.#holders.get(`${userId} ${callId}`)?.onNudge(`claimed ${record.round}`);
    }
    return at;
  }

  async entriesAfter(userId: string, callId: string, at: string): Promise<Entry[]> {
    const key = keys.call(userId, callId);
    const found = await patiently(() => this.#redis.xrange(key, `(${at}`, '+'));
    return found.map(([id, [, kind, , message]]) => ({
      id,
      kind: kind as EntryKind,
      message: message ?? '',
    }));
  }

  /** True when the round's time was over and the record is gone; false when a retry has taken it. */
  async expire(userId: string, callId: string, round: number): Promise<boolean> {
    return (await this.#scripts.expireSuspended(this.#keysOf(userId, callId), [round])) === 1;
  }

  async drop(userId: string, callId: string): Promise<void> {
    await this.#redis.del(...this.#keysOf(userId, callId));
  }

  async tellHolder(
    userId: string,
    callId: string,
    holder: string,
    detail: 'cancel' | 'done',
  ): Promise<void> {
    if (holder === this.podId) {
      this.#holders.get(`${userId} ${callId}`)?.onNudge(detail);
      return;
    }
    try {
      await this.#redis.publish(podChannel(holder), `call\n${userId}\n${callId}\n${detail}`);
    } catch (error) {
      this.#log.warn({ err: error }, 'the holder of a suspended call could not be told');
    }
  }

  /** Has the pod that holds the call a heartbeat? Asked only while somebody waits for it. */
  async alive(podId: string): Promise<boolean> {
    if (podId === this.podId) return true;
    return (await this.#redis.exists(keys.pod(podId))) === 1;
  }

  hold(userId: string, callId: string, holder: Holder): void {
    this.#holders.set(`${userId} ${callId}`, holder);
    this.#metrics.suspendedCalls.set(this.#holders.size);
  }

  release(userId: string, callId: string): void {
    this.#holders.delete(`${userId} ${callId}`);
    this.#metrics.suspendedCalls.set(this.#holders.size);
  }

  /** To be called before the continuation is read, so that no entry falls between. */
  next(userId: string, callId: string): Wake & { wake(): void } {
    const key = `${userId} ${callId}`;
    let wake!: () => void;
    const woken = new Promise<void>((resolve) => {
      wake = resolve;
    });
    const followers = this.#followers.get(key) ?? new Set<() => void>();
    this.#followers.set(key, followers.add(wake));
    const cancel = (): void => {
      followers.delete(wake);
      if (followers.size === 0 && this.#followers.get(key) === followers) {
        this.#followers.delete(key);
      }
    };
    return {
      wake,
      cancel,
      async within(ms) {
        const timer = setTimeout(wake, ms);
        await woken;
        clearTimeout(timer);
        cancel();
      },
    };
  }

  #wake(key: string): void {
    for (const wake of [...(this.#followers.get(key) ?? [])]) wake();
  }

  nudge({ kind, userId, id, detail }: Nudge): void {
    if (kind !== 'call') return;
    if (detail === 'read') this.#wake(`${userId} ${id}`);
    else this.#holders.get(`${userId} ${id}`)?.onNudge(detail);
  }

  /** Nudges may be lost: followers read on; a claim that a holder has missed shows at the round's deadline. */
  gap(): void {
    for (const key of [...this.#followers.keys()]) this.#wake(key);
  }
}

async function patiently<T>(operation: () => Promise<T>): Promise<T> {
  const until = Date.now() + STORE_PATIENCE_MS;
  for (;;) {
    try {
      return await operation();
    } catch (error) {
      if (!isStoreError(error) || Date.now() > until) throw error;
      await delay(200, undefined, { ref: false });
    }
  }
}
