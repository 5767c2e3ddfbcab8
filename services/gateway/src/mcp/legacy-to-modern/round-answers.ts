/**
 * The calls of this pod that wait for their client to answer what an upstream asked.
 *
 * In memory: only the calls that this very process carries. The answers themselves are in the session's pending
 * hash, put there by whichever pod they arrived at; that pod nudges this one. No polling: nothing is read until a
 * nudge comes, or the subscription comes back after a gap in which one may have been lost.
 */
import type { Logger } from 'pino';
import type { Nudge, SessionAddress } from '@viaduct/shared/event-bus';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';

/** What a client said to one request: the result, or the error that it answered with. */
export type ClientAnswer =
  | { readonly kind: 'result'; readonly text: string }
  | { readonly kind: 'error'; readonly text: string };

/** How an answer stands in the pending hash; a record there begins with a brace. */
export const encodeAnswer = ({ kind, text }: ClientAnswer): string =>
  `=${kind === 'result' ? 'r' : 'e'}${text}`;

function decodeAnswer(value: string | null | undefined): ClientAnswer | undefined {
  if (value?.startsWith('=') !== true) return undefined;
  return { kind: value[1] === 'r' ? 'result' : 'error', text: value.slice(2) };
}

export interface Waiting {
  /** By the gateway's request id. Resolves when all are there, or one of them is an error. */
  readonly answers: Promise<ReadonlyMap<string, ClientAnswer>>;
  /** The call is over; nobody waits any more. `answers` stays unresolved. */
  forget(): void;
}

interface Round {
  readonly session: SessionAddress;
  readonly ids: readonly string[];
  readonly resolve: (answers: ReadonlyMap<string, ClientAnswer>) => void;
  reading: boolean;
  dirty: boolean;
}

const AGAIN_MS = 1_000;
/** A lost nudge is a delay and no loss, also where nobody notices that nudges were lost (a Cluster's subscriber). */
const LOOK_EVERY_MS = 5_000;

export class RoundAnswers {
  readonly #redis: Redis;
  readonly #log: Logger;
  readonly #rounds = new Map<string, Round>();

  constructor(deps: { redis: Redis; log: Logger }) {
    this.#redis = deps.redis;
    this.#log = deps.log;
  }

  wait(session: SessionAddress, round: string, ids: readonly string[]): Waiting {
    let resolve!: Round['resolve'];
    const answers = new Promise<ReadonlyMap<string, ClientAnswer>>((done) => {
      resolve = done;
    });
    const waiting: Round = { session, ids, resolve, reading: false, dirty: false };
    this.#rounds.set(round, waiting);
    const look = setInterval(() => {
      if (this.#rounds.get(round) === waiting) void this.#read(round, waiting);
      else clearInterval(look);
    }, LOOK_EVERY_MS);
    look.unref();
    return {
      answers,
      forget: () => {
        clearInterval(look);
        this.#rounds.delete(round);
      },
    };
  }

  /** An answer has come in, here or elsewhere. */
  arrived(session: SessionAddress, round: string): void {
    const waiting = this.#rounds.get(round);
    if (waiting === undefined) return;
    const { userId, sessionId } = waiting.session;
    if (userId !== session.userId || sessionId !== session.sessionId) return;
    void this.#read(round, waiting);
  }

  nudge({ kind, userId, id, detail }: Nudge): void {
    if (kind === 'answered') this.arrived({ userId, sessionId: id }, detail);
  }

  /** Nudges may have been lost. */
  gap(): void {
    for (const [name, round] of this.#rounds) void this.#read(name, round);
  }

  async #read(name: string, round: Round): Promise<void> {
    round.dirty = true;
    if (round.reading) return;
    round.reading = true;
    const { userId, sessionId } = round.session;
    const key = keys.pending(userId, sessionId);
    try {
      while (round.dirty && this.#rounds.get(name) === round) {
        round.dirty = false;
        const values = await this.#redis.hmget(key, ...round.ids);
        const found = new Map<string, ClientAnswer>();
        round.ids.forEach((id, i) => {
          const answer = decodeAnswer(values[i]);
          if (answer !== undefined) found.set(id, answer);
        });
        const failed = [...found.values()].some(({ kind }) => kind === 'error');
        if (found.size < round.ids.length && !failed) continue;
        if (!this.#rounds.delete(name)) return;
        round.resolve(found);
      }
    } catch (error) {
      this.#log.debug({ err: error }, 'answers of a client could not be read; again soon');
      setTimeout(() => {
        if (this.#rounds.get(name) === round) void this.#read(name, round);
      }, AGAIN_MS).unref();
    } finally {
      round.reading = false;
    }
  }
}
