/**
 * `-32042` of a legacy upstream: it has done nothing yet and wants links followed first. The client gets them as
 * `input_required`; its retry waits for the upstream to say that they have been followed to their end, and then the
 * call is sent again (2025-11-25 client/elicitation, URL Mode With Elicitation Required Error).
 *
 * The pod that put the links listens for their end, in the background, for as long as the state is good.
 */
import type { Logger } from 'pino';
import { fail } from '@viaduct/shared/errors';
import { canElicit, unsafeAsk } from '../../elicitation/elicitation.ts';
import { garbage } from '../../upstream/upstream.ts';
import { resultResponse, type JsonObject } from '../message.ts';
import { askAgain, readAnswers, stateGone } from './continuation.ts';
import type { Ears } from './ears.ts';
import { namedBy } from './header-values.ts';
import type { Implicit } from './implicit-sessions.ts';
import { isObject } from './legacy-words.ts';
import type { Outcome, Outgoing } from './path.ts';
import type { QuestionDeps } from './questions.ts';
import { askClient, type SuspendedState } from './rounds.ts';
import type { Ask, CallRecord, SuspendedCalls } from './suspended-calls.ts';

export interface Links {
  /** Puts the links to the client. @throws GatewayError missing_capability, upstream_invalid */
  ask(out: Outgoing, implicit: Implicit, error: JsonObject): Promise<Outcome['outcome']>;
  /** A retry: undefined when the call is to be sent again, else how this round has ended. */
  resume(
    out: Outgoing,
    state: SuspendedState,
    record: CallRecord,
  ): Promise<Outcome['outcome'] | 'wrong_answers' | undefined>;
}

/** How long the question waits for the upstream's stream to be open. */
const LISTEN_BUDGET_MS = 1_000;
const COMPLETE = 'notifications/elicitation/complete';

export function createLinks(
  deps: QuestionDeps & {
    readonly suspended: SuspendedCalls;
    readonly ears: Ears;
    readonly waitMs: number;
    readonly log: Logger;
  },
): Links {
  const { suspended, ears, waitMs, log } = deps;

  /** Notes in the call's record which links have been followed to their end. */
  function listen(
    out: Outgoing,
    implicit: Implicit,
    callId: string,
    asks: readonly Ask[],
  ): Promise<void> {
    const { userId } = out.principal;
    const { timeoutSeconds } = out.upstream.config;
    const headers = out.credential?.headers;
    const ids = new Set(asks.map(({ id }) => id));
    const ear = ears.join(implicit, () => Promise.resolve(headers), {
      event(_text, { method, params }) {
        const id = isObject(params) ? params['elicitationId'] : undefined;
        if (method !== COMPLETE || typeof id !== 'string' || !ids.has(id)) return;
        suspended.append(userId, callId, timeoutSeconds, 'c', id).catch((error: unknown) => {
          log.warn({ err: error }, 'the end of an elicitation could not be noted');
        });
      },
      gap: () => undefined,
    });
    const done = (): void => {
      clearTimeout(timer);
      ear.leave();
      suspended.release(userId, callId);
    };
    const timer = setTimeout(done, suspended.ttlSeconds * 1000);
    timer.unref();
    suspended.hold(userId, callId, {
      onNudge(detail) {
        if (detail === 'done' || detail === 'cancel') done();
      },
    });
    return ear.open;
  }

  async function waitFor(
    out: Outgoing,
    state: SuspendedState,
    asks: readonly Ask[],
  ): Promise<void> {
    const { userId } = out.principal;
    const open = new Set(asks.map(({ id }) => id));
    const deadline = performance.now() + waitMs;
    for (;;) {
      const woken = suspended.next(userId, state.call);
      const offGone = out.reply.onGone(woken.wake);
      try {
        for (const { kind, message } of await suspended.entriesAfter(userId, state.call, '0-0')) {
          if (kind === 'c') open.delete(message);
        }
        const left = deadline - performance.now();
        if (open.size === 0 || left <= 0 || out.reply.gone) return;
        await woken.within(left);
      } finally {
        woken.cancel();
        offGone();
      }
    }
  }

  return {
    async ask(out, implicit, error) {
      const { upstream, envelope, message } = out;
      const wanted = linksOf(error);
      if (wanted.length === 0) throw garbage(upstream.name, '-32042 without links');
      if (namedBy(message.method) === undefined || !canElicit(envelope.capabilities, 'url')) {
        deps.metrics.capabilityRefusals.inc({ mode: 'url' });
        throw fail(
          'missing_capability',
          `The server "${upstream.name}" needs you to follow a link first, and this client cannot open links for you.`,
          { data: { requiredCapabilities: { elicitation: { url: {} } } } },
        );
      }
      const { userId, clientId } = out.principal;
      for (const link of wanted) {
        const unsafe = unsafeAsk({ mode: 'url', url: link.url }, deps.guard);
        if (unsafe === undefined) continue;
        const { detail, refuse: refused } = unsafe;
        const about = { upstream: upstream.name, requestId: out.requestId, userId, clientId };
        deps.audit.record({ type: 'elicitation.unsafe', detail, refused, ...about });
        throw fail('upstream_invalid', unsafe.message, { data: { reason: 'unsafe_elicitation' } });
      }
      const asks = wanted.map(({ id }, i) => ({
        key: `link-${i + 1}`,
        id,
        method: 'elicitation/create',
      }));
      const requests = JSON.stringify(
        Object.fromEntries(
          wanted.map(({ url, message: words }, i) => [
            `link-${i + 1}`,
            { method: 'elicitation/create', params: { mode: 'url', message: words, url } },
          ]),
        ),
      );
      const callId = suspended.newId();
      await suspended.suspend(implicit, callId, { kind: 'links', leg: '', asks, requests });
      // Listening begins before anybody can follow a link, so that no end is missed.
      await within(listen(out, implicit, callId, asks), LISTEN_BUDGET_MS);
      await askClient(out, { call: callId, round: 1 }, requests);
      return 'input_required';
    },

    async resume(out, state, record) {
      const { userId } = out.principal;
      let answers: Map<string, string>;
      try {
        answers = readAnswers(out, record.asks, state.held);
      } catch (error) {
        out.reply.fail(error);
        return 'wrong_answers';
      }
      const end = async (): Promise<void> => {
        await suspended.tellHolder(userId, state.call, record.holder, 'done');
        await suspended.drop(userId, state.call);
      };
      const actions = [...answers.values()].map(
        (text) => (JSON.parse(text) as { action: string }).action,
      );
      if (actions.some((action) => action !== 'accept')) {
        await end();
        declined(out);
        return 'ok';
      }
      if (answers.size < record.asks.length) {
        await askAgain(out, state, record, answers);
        return 'input_required';
      }
      const { timeoutSeconds } = out.upstream.config;
      if ((await suspended.claim(userId, state.call, record, timeoutSeconds)) === undefined) {
        throw stateGone();
      }
      await waitFor(out, state, record.asks);
      await end();
      return out.reply.gone ? 'cancelled' : undefined;
    },
  };
}

interface Link {
  readonly id: string;
  readonly url: string;
  readonly message: string;
}

function linksOf(error: JsonObject): Link[] {
  const data = error['data'];
  const list: unknown = isObject(data) ? data['elicitations'] : undefined;
  if (!Array.isArray(list)) return [];
  return list.flatMap((item: unknown) => {
    if (!isObject(item)) return [];
    const { elicitationId: id, url, message } = item;
    return typeof id === 'string' && typeof url === 'string'
      ? [{ id, url, message: typeof message === 'string' ? message : 'Please open this link.' }]
      : [];
  });
}

function declined({ message, reply, upstream }: Outgoing): void {
  const text = `You declined to open the link that the server "${upstream.name}" needs, so this was not done.`;
  if (message.method !== 'tools/call') {
    reply.fail(fail('upstream_unavailable', text, { data: { reason: 'declined' } }));
    return;
  }
  reply.finish(
    resultResponse(message.idText, {
      resultType: 'complete',
      content: [{ type: 'text', text }],
      isError: true,
    }),
  );
}

async function within(work: Promise<void>, milliseconds: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, milliseconds);
  });
  await Promise.race([work, late]);
  clearTimeout(timer);
}
