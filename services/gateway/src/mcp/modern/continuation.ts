/**
 * A retry that goes on with a suspended call, on whichever pod it has come to: claims the round, gives the upstream
 * its answers, and follows what the upstream says next until there is something to end the round with.
 *
 * Promises: the call is never sent a second time; a holder that is gone is noticed (its heartbeat is looked at only
 * while somebody waits) and said in words; the client's leaving reaches the holder.
 */
import type { Logger } from 'pino';
import { fail, type GatewayError } from '@viaduct/shared/errors';
import { findPath, objectMembers, sliceOf } from '@viaduct/shared/json-text';
import { legOf, tryParse, unreadable } from '../../upstream/upstream.ts';
import { callLost } from '../call.ts';
import type { JsonObject } from '../message.ts';
import { faultOf, isObject } from './legacy-words.ts';
import type { Outcome, Outgoing } from './path.ts';
import {
  answerClient,
  askClient,
  readFailure,
  relayNotification,
  type SuspendedState,
} from './rounds.ts';
import type { Ask, CallRecord, Entry, SuspendedCalls } from './suspended-calls.ts';

export interface ContinuationDeps {
  readonly suspended: SuspendedCalls;
  readonly log: Logger;
  /** The response is -32042: links to follow before the call is sent again. */
  needsLinks(out: Outgoing, error: JsonObject): Promise<Outcome['outcome']>;
}

/** A holder's heartbeat lives 10 s: looked at this often, a dead one is known within 15 (design, section 7). */
const LOOK_EVERY_MS = 2_000;
/** Longest that answers travel in a requestState; what is longer is asked for again. */
const MAX_HELD = 128 * 1024;

export const stateOf = (data: string): SuspendedState => JSON.parse(data) as SuspendedState;

export const stateGone = (): GatewayError =>
  fail(
    'invalid_params',
    'The call that this requestState belongs to is over. Send the call again without it.',
    { data: { reason: 'request_state' } },
  );

/** Answers of this retry and of incomplete ones before it: JSON texts by key. @throws GatewayError invalid_params */
export function readAnswers(
  out: Outgoing,
  asks: readonly Ask[],
  held: Readonly<Record<string, string>> = {},
): Map<string, string> {
  const { text, params } = out.message;
  const at = findPath(text, ['params', 'inputResponses']);
  const given = at && objectMembers(text, at.start);
  const values = params?.['inputResponses'];
  const answers = new Map<string, string>();
  // What was not asked is ignored (basic/patterns/mrtr, Error Handling).
  for (const { key, method } of asks) {
    const slice = given?.get(key);
    if (slice !== undefined) {
      const fault = faultOf(method, isObject(values) ? values[key] : undefined);
      if (fault !== undefined) {
        throw fail('invalid_params', `inputResponses["${key}"] ${fault}.`, { status: 200 });
      }
      answers.set(key, sliceOf(text, slice));
    } else if (Object.hasOwn(held, key)) answers.set(key, held[key]!);
  }
  return answers;
}

/** Asks again for what is missing; answers that are there travel in the state. */
export async function askAgain(
  out: Outgoing,
  state: SuspendedState,
  record: CallRecord,
  answers: ReadonlyMap<string, string>,
): Promise<void> {
  const size = [...answers.values()].reduce((sum, text) => sum + text.length, 0);
  const kept = size <= MAX_HELD ? answers : new Map<string, string>();
  const members = objectMembers(record.requests)!;
  const missing = record.asks
    .filter(({ key }) => !kept.has(key))
    .map(({ key }) => `${JSON.stringify(key)}:${sliceOf(record.requests, members.get(key)!)}`);
  await askClient(out, { ...state, held: Object.fromEntries(kept) }, `{${missing.join(',')}}`);
}

export async function continueCall(
  deps: ContinuationDeps,
  out: Outgoing,
  state: SuspendedState,
  record: CallRecord,
): Promise<Outcome> {
  const started = performance.now();
  const { suspended } = deps;
  const { userId } = out.principal;
  const { timeoutSeconds } = out.upstream.config;
  const settle = (outcome: Outcome['outcome'], unsent = false): Outcome => ({
    outcome,
    upstreamMs: performance.now() - started,
    unsent,
  });

  let at = record.at;
  if (record.state === 'asking') {
    let answers: Map<string, string>;
    try {
      answers = readAnswers(out, record.asks, state.held);
    } catch (error) {
      out.reply.fail(error);
      // Nothing has happened: the same requestState takes better answers.
      return settle('rpc_error', true);
    }
    if (!(await suspended.alive(record.holder))) return lost();
    if (answers.size < record.asks.length) {
      await askAgain(out, state, record, answers);
      return settle('input_required');
    }
    const claimed = await suspended.claim(userId, state.call, record, timeoutSeconds);
    // Its time was over, or the upstream has answered without waiting: the record says which.
    if (claimed === undefined) {
      const now = await suspended.read(userId, state.call);
      if (now?.state !== 'over' || now.round !== record.round) throw stateGone();
      ({ at } = now);
    } else {
      at = claimed;
      await deliver(answers);
    }
  } else if (record.state === 'running') throw stateGone();
  return follow();

  /** The upstream's own ids, its own session: the answers are as good from this pod as from the holder. */
  async function deliver(answers: ReadonlyMap<string, string>): Promise<void> {
    const { upstream, credential } = out;
    const leg = legOf(
      { sid: record.sid, protocolVersion: record.pv === '' ? undefined : record.pv },
      credential?.headers,
    );
    await Promise.all(
      record.asks.map(async ({ key, id }) => {
        const text = `{"jsonrpc":"2.0","id":${id},"result":${answers.get(key)!}}`;
        const sent = upstream.post(text, leg);
        try {
          const reply = await sent.reply;
          if (reply.kind === 'events') sent.abort();
          if (reply.status < 300) return;
          deps.log.warn(
            { upstream: upstream.name, status: reply.status },
            'an upstream refused an answer',
          );
        } catch (error) {
          // The holder's own exchange says what has become of the call.
          deps.log.warn({ err: error, upstream: upstream.name }, 'an answer did not arrive');
        }
      }),
    );
  }

  async function follow(): Promise<Outcome> {
    let looked = performance.now();
    for (;;) {
      const woken = suspended.next(userId, state.call);
      const offGone = out.reply.onGone(woken.wake);
      let entries: Entry[];
      try {
        entries = await suspended.entriesAfter(userId, state.call, at);
      } catch (error) {
        woken.cancel();
        offGone();
        throw error;
      }
      for (const entry of entries) {
        at = entry.id;
        const outcome = out.reply.gone ? undefined : await take(entry);
        if (outcome === undefined) continue;
        woken.cancel();
        offGone();
        return settle(outcome);
      }
      if (!out.reply.gone) await woken.within(LOOK_EVERY_MS);
      woken.cancel();
      offGone();
      if (out.reply.gone) {
        await suspended.tellHolder(userId, state.call, record.holder, 'cancel');
        return settle('cancelled');
      }
      if (performance.now() - looked < LOOK_EVERY_MS) continue;
      looked = performance.now();
      if (!(await suspended.alive(record.holder))) return lost();
    }
  }

  async function take({ kind, message }: Entry): Promise<Outcome['outcome'] | undefined> {
    switch (kind) {
      case 'n':
        relayNotification(out, record.leg, message, tryParse(message) ?? {});
        return undefined;
      case 'q':
        await askClient(out, { call: state.call, round: state.round + 1 }, message);
        return 'input_required';
      case 'e': {
        const parsed = tryParse(message) ?? {};
        await forget();
        const error = parsed['error'];
        if (isObject(error) && error['code'] === -32042) return deps.needsLinks(out, error);
        try {
          return answerClient(out, message, parsed);
        } catch (unread) {
          throw unreadable(out.upstream.name, unread);
        }
      }
      case 'x':
        await forget();
        out.reply.fail(readFailure(message));
        return 'upstream_error';
      case 'c':
        return undefined;
    }
  }

  async function lost(): Promise<Outcome> {
    await forget();
    out.reply.fail(callLost());
    return settle('upstream_error');
  }

  async function forget(): Promise<void> {
    try {
      await suspended.drop(userId, state.call);
    } catch (error) {
      deps.log.debug({ err: error }, 'a record of a call that is over is left to expire');
    }
  }
}
