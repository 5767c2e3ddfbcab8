/**
 * One call of a modern client, held open at its legacy upstream by this pod.
 *
 * It begins `direct`: what the upstream says goes to the client's reply. When the upstream asks something, the reply
 * ends with `input_required` and the call is `asking`: recorded, open upstream, costing a timer. A retry on any pod
 * claims the round and answers the upstream itself; the call is `running` again, and what the upstream says goes into
 * its continuation for that pod to read. When nobody comes in time the questions are answered `cancel` and the call
 * is cancelled (design, section 9).
 */
import type { Logger } from 'pino';
import { fail } from '@viaduct/shared/errors';
import { objectMembers, sliceOf } from '@viaduct/shared/json-text';
import { neverSent, unreadable, UpstreamStatus, upstreamTimeout } from '../../upstream/upstream.ts';
import { callLost } from '../call.ts';
import { errorText, type JsonObject } from '../message.ts';
import type { Implicit, ImplicitSessions } from './implicit-sessions.ts';
import { LegacyExchange } from './legacy-exchange.ts';
import { inputRequest, isObject, legacyRequest } from './legacy-words.ts';
import type { Outcome, Outgoing } from './path.ts';
import { refuseQuestion, type AskedCaller, type QuestionDeps } from './questions.ts';
import { answerClient, askClient, relayNotification, writeFailure } from './rounds.ts';
import type { Ask, EntryKind, Holder, SuspendedCalls } from './suspended-calls.ts';

export interface HeldCallDeps extends QuestionDeps {
  readonly sessions: ImplicitSessions;
  readonly suspended: SuspendedCalls;
  readonly log: Logger;
  /** Everything under way on this pod. */
  readonly running: Set<HeldCall>;
  newLegId(): string;
  /** What a legacy server may say on any of its streams, though it is no part of this call. */
  heard(implicit: Implicit, text: string, parsed: JsonObject): void;
  /** -32042: links to follow before the call is sent again. */
  needsLinks(out: Outgoing, implicit: Implicit, error: JsonObject): Promise<Outcome['outcome']>;
}

/** Questions that an upstream asks within this time of each other are put to the client together. */
const BATCH_MS = 40;
/** How long the upstream may take to hear that nobody answers before it is told to stop. */
const CANCEL_GRACE_MS = 1_000;
const MAX_QUEUED = 64;
const EXPIRE_AGAIN_MS = 2_000;

type State = 'direct' | 'asking' | 'running' | 'over';

interface Question extends Ask {
  readonly request: string;
}

/** What may come on a call's stream and is for whoever listens to the session. */
const FOR_LISTENERS =
  /^notifications\/(?:(?:tools|prompts|resources)\/list_changed|resources\/updated|elicitation\/complete)$/;

export class HeldCall implements Holder {
  readonly #deps: HeldCallDeps;
  readonly #exchange: LegacyExchange;
  readonly #leg: string;
  readonly #userId: string;
  readonly #caller: AskedCaller;
  readonly #timeoutSeconds: number;
  readonly #started = performance.now();
  readonly #settled: Promise<Outcome>;
  #resolve!: (outcome: Outcome) => void;
  #reject!: (error: unknown) => void;
  /** The first round; given up when it ends, so that a suspended call keeps no socket. */
  #out: Outgoing | undefined;
  #offGone: (() => void) | undefined;
  #state: State = 'direct';
  #callId = '';
  #round = 0;
  #serial = 0;
  #batch: Question[] = [];
  #asked: readonly Ask[] = [];
  #batchTimer: NodeJS.Timeout | undefined;
  #deadline: NodeJS.Timeout | undefined;
  #expiry: NodeJS.Timeout | undefined;
  /** Order of appends is the order in which the upstream said it. */
  #chain: Promise<void> = Promise.resolve();
  #queued = 0;

  constructor(deps: HeldCallDeps, out: Outgoing, implicit: Implicit) {
    this.#deps = deps;
    this.#out = out;
    this.#leg = deps.newLegId();
    this.#userId = out.principal.userId;
    const { principal, requestId, envelope, message } = out;
    this.#caller = { principal, requestId, envelope, method: message.method };
    this.#timeoutSeconds = out.upstream.config.timeoutSeconds;
    this.#settled = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    const text = typeof out.body === 'string' ? out.body : message.text;
    this.#exchange = new LegacyExchange(
      deps,
      {
        implicit,
        credential: out.credential?.headers,
        id: this.#leg,
        body: legacyRequest(text, this.#leg),
        level: envelope.logLevel,
      },
      {
        notification: (line, parsed) => {
          this.#onNotification(line, parsed);
        },
        question: (line, parsed) => {
          this.#onQuestion(line, parsed);
        },
        response: (line, parsed) => {
          this.#onResponse(line, parsed);
        },
        failed: (error) => {
          this.#onFailed(error);
        },
      },
    );
  }

  /** Resolves when the first round is over. @throws UpstreamStatus for a 401 */
  run(): Promise<Outcome> {
    const { reply } = this.#out!;
    this.#deps.running.add(this);
    this.#arm();
    this.#offGone = reply.onGone(() => {
      this.#cancel('the client has closed its stream');
    });
    reply.onDrain = () => {
      this.#exchange.resume();
    };
    if (this.#state === 'direct') this.#exchange.start();
    return this.#settled;
  }

  #arm(): void {
    clearTimeout(this.#deadline);
    this.#deadline = setTimeout(() => {
      void this.#exchange.cancel('the call took longer than the gateway allows');
      this.#onFailed(upstreamTimeout(this.#exchange.implicit.upstream.name));
    }, this.#timeoutSeconds * 1000);
  }

  #onNotification(text: string, parsed: JsonObject): void {
    const method = String(parsed['method']);
    if (FOR_LISTENERS.test(method)) {
      this.#deps.heard(this.#exchange.implicit, text, parsed);
    } else if (method === 'notifications/cancelled') {
      this.#withdraw(text);
    } else if (this.#out !== undefined) {
      relayNotification(this.#out, this.#leg, text, parsed);
      if (this.#out.reply.blocked) this.#exchange.pause();
    } else this.#append('n', text);
  }

  /** The upstream takes a question back: only one that the client has not got yet can be. */
  #withdraw(text: string): void {
    const params = objectMembers(text)?.get('params');
    const at = params && objectMembers(text, params.start)?.get('requestId');
    if (at === undefined) return;
    const id = sliceOf(text, at);
    this.#batch = this.#batch.filter((question) => question.id !== id);
  }

  #onQuestion(text: string, parsed: JsonObject): void {
    const at = objectMembers(text)?.get('id');
    if (at === undefined) return;
    const id = sliceOf(text, at);
    const method = String(parsed['method']);
    const { upstream } = this.#exchange.implicit;
    const refused = refuseQuestion(this.#deps, this.#caller, upstream.name, method, parsed);
    if (refused !== undefined) {
      void this.#exchange.tell(
        refused === 'pong' ? `{"jsonrpc":"2.0","id":${id},"result":{}}` : errorText(id, refused),
      );
      return;
    }
    const key = `ask-${++this.#serial}`;
    this.#batch.push({ key, id, method, request: inputRequest(text, method) });
    if (this.#state !== 'asking') this.#flushSoon();
  }

  #flushSoon(): void {
    if (this.#batch.length === 0) return;
    this.#batchTimer ??= setTimeout(() => {
      this.#batchTimer = undefined;
      if (this.#batch.length > 0 && (this.#state === 'direct' || this.#state === 'running')) {
        this.#ask();
      }
    }, BATCH_MS);
  }

  /** Puts what has been collected to the client: in the first round's reply, or for the pod that follows. */
  #ask(): void {
    const batch = this.#batch.splice(0);
    const asks = batch.map(({ key, id, method }) => ({ key, id, method }));
    const requests = `{${batch.map(({ key, request }) => `"${key}":${request}`).join(',')}}`;
    this.#asked = asks;
    this.#round++;
    this.#state = 'asking';
    clearTimeout(this.#deadline);
    this.#expireAfter(this.#deps.suspended.ttlSeconds * 1000);
    const out = this.#out;
    if (out === undefined) {
      this.#append('q', requests, { round: this.#round, asks, requests });
      return;
    }
    this.#out = undefined;
    this.#callId = this.#deps.suspended.newId();
    this.#enqueue(() => this.#suspend(out, asks, requests));
  }

  async #suspend(out: Outgoing, asks: readonly Ask[], requests: string): Promise<void> {
    const { suspended } = this.#deps;
    const { implicit } = this.#exchange;
    if (this.#isOver()) {
      this.#settle('cancelled');
      return;
    }
    suspended.hold(this.#userId, this.#callId, this);
    try {
      await suspended.suspend(implicit, this.#callId, {
        kind: 'asks',
        leg: this.#leg,
        asks,
        requests,
      });
      if (this.#isOver()) await suspended.drop(this.#userId, this.#callId);
      else await askClient(out, { call: this.#callId, round: this.#round }, requests);
    } catch (error) {
      out.reply.fail(error);
      this.#settle('upstream_error');
      throw error;
    }
    // From here on the client's leaving means nothing: it has its answer.
    this.#offGone?.();
    this.#offGone = undefined;
    out.reply.onDrain = undefined;
    this.#settle(this.#isOver() ? 'cancelled' : 'input_required');
  }

  /** Also after an await, in which anything may have happened. */
  #isOver(): boolean {
    return this.#state === 'over';
  }

  #onResponse(text: string, parsed: JsonObject): void {
    const out = this.#out;
    if (out === undefined) {
      this.#append('e', text);
      this.#finishAfterAppends();
      return;
    }
    this.#end();
    void this.#answer(out, text, parsed);
  }

  async #answer(out: Outgoing, text: string, parsed: JsonObject): Promise<void> {
    try {
      const error = parsed['error'];
      this.#settle(
        isObject(error) && error['code'] === -32042
          ? await this.#deps.needsLinks(out, this.#exchange.implicit, error)
          : answerClient(out, text, parsed),
      );
    } catch (error) {
      out.reply.fail(unreadable(this.#exchange.implicit.upstream.name, error));
      this.#settle('upstream_error');
    }
  }

  #onFailed(error: unknown): void {
    const out = this.#out;
    if (out === undefined) {
      if (this.#state === 'over') return;
      this.#append('x', writeFailure(error));
      this.#finishAfterAppends();
      return;
    }
    this.#end();
    const refused =
      error instanceof UpstreamStatus &&
      (error.upstreamStatus === 401 || error.scopes !== undefined);
    if (refused && !out.reply.done) {
      this.#reject(error);
      return;
    }
    out.reply.fail(error);
    this.#settle('upstream_error', neverSent(error));
  }

  #append(kind: EntryKind, message: string, next?: Parameters<SuspendedCalls['append']>[5]): void {
    this.#enqueue(async () => {
      const { suspended } = this.#deps;
      const kept = await suspended.append(
        ...([this.#userId, this.#callId, this.#timeoutSeconds, kind, message, next] as const),
      );
      // With its last word a call needs nobody any more: whoever followed may have read it and tidied up.
      const last = kind === 'e' || kind === 'x';
      if (!kept && !last && !this.#isOver()) throw fail('internal', 'a call lost its record');
    });
  }

  #enqueue(step: () => Promise<void>): void {
    if (++this.#queued === MAX_QUEUED) this.#exchange.pause();
    this.#chain = this.#chain
      .then(step)
      .catch((error: unknown) => {
        if (this.#state === 'over') return;
        const { requestId } = this.#caller;
        this.#deps.log.error({ err: error, requestId }, 'a suspended call is given up');
        this.#cancel('the gateway lost this call');
      })
      .finally(() => {
        if (--this.#queued === MAX_QUEUED / 2) this.#exchange.resume();
      });
  }

  #finishAfterAppends(): void {
    // New words of the upstream are none of this call's any more, but what is queued still has to be written.
    this.#exchange.abort();
    void this.#chain.then(() => {
      this.#end();
    });
  }

  onNudge(detail: string): void {
    if (detail === 'cancel') this.#cancel('the client has closed its stream');
    else if (detail === `claimed ${this.#round}`) this.#onClaimed();
  }

  #onClaimed(): void {
    if (this.#state !== 'asking') return;
    this.#state = 'running';
    clearTimeout(this.#expiry);
    this.#arm();
    this.#flushSoon();
  }

  #expireAfter(milliseconds: number): void {
    clearTimeout(this.#expiry);
    this.#expiry = setTimeout(() => {
      void this.#expire();
    }, milliseconds);
  }

  /** Nobody has answered in time. */
  async #expire(): Promise<void> {
    if (this.#state !== 'asking') return;
    try {
      await this.#chain;
      const { suspended } = this.#deps;
      if (!(await suspended.expire(this.#userId, this.#callId, this.#round))) {
        this.#onClaimed();
        return;
      }
    } catch (error) {
      this.#deps.log.warn({ err: error }, 'a suspended call could not be ended yet');
      this.#expireAfter(EXPIRE_AGAIN_MS);
      return;
    }
    await this.#answerNobody();
    this.#cancel('nobody answered in time');
  }

  /** A person who does not come cancels; a model or a list of folders that does not come is an error. */
  async #answerNobody(): Promise<void> {
    const open = [...this.#asked, ...this.#batch];
    const told = open.map(({ id, method }) =>
      this.#exchange.tell(
        method === 'elicitation/create'
          ? `{"jsonrpc":"2.0","id":${id},"result":{"action":"cancel"}}`
          : errorText(id, { code: -32603, message: 'The client did not answer in time.' }),
      ),
    );
    await soon(Promise.all(told));
  }

  #cancel(reason: string): void {
    if (this.#state === 'over') return;
    void this.#exchange.cancel(reason);
    const suspended = this.#callId !== '';
    this.#end();
    if (!suspended) {
      this.#settle('cancelled');
      return;
    }
    this.#deps.suspended.drop(this.#userId, this.#callId).catch((error: unknown) => {
      this.#deps.log.debug({ err: error }, 'a record of a cancelled call is left to expire');
    });
  }

  get userId(): string {
    return this.#userId;
  }

  /** This pod stops, or puts the user out, before the upstream has answered: whoever comes for the call is told. */
  async lost(): Promise<void> {
    if (this.#state === 'over') return;
    const out = this.#out;
    if (out !== undefined) {
      this.#onFailed(callLost());
      await soon(this.#exchange.cancel('the gateway stops'));
      return;
    }
    const asking = this.#state === 'asking';
    this.#append('x', writeFailure(callLost()));
    await Promise.all([soon(this.#chain), asking ? this.#answerNobody() : undefined]);
    this.#end();
    await soon(this.#exchange.cancel('the gateway stops'));
  }

  #end(): void {
    this.#state = 'over';
    for (const timer of [this.#batchTimer, this.#deadline, this.#expiry]) clearTimeout(timer);
    this.#offGone?.();
    if (this.#out !== undefined) this.#out.reply.onDrain = undefined;
    this.#deps.running.delete(this);
    if (this.#callId !== '') this.#deps.suspended.release(this.#userId, this.#callId);
  }

  #settle(outcome: Outcome['outcome'], unsent = false): void {
    this.#resolve({ outcome, upstreamMs: performance.now() - this.#started, unsent });
  }
}

/** Waits for what must not hold up anything for long. */
async function soon(work: Promise<unknown>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, CANCEL_GRACE_MS);
  });
  await Promise.race([work, late]);
  clearTimeout(timer);
}
