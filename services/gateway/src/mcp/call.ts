/**
 * One request of a client on its way through one upstream.
 *
 * Quick answers go back as plain JSON: no log, no bus. A call that takes longer than `streamAfterMs`, or whose
 * upstream says anything before the answer, becomes a stream at once; from then on every message is appended to
 * the session's log first, so the call survives its client's disconnect and can be resumed at any pod
 * (2025-11-25 transports, Sending Messages 6 and Resumability).
 *
 * Not retried, unless the upstream provably did not process it (invariant 10).
 */
import { fail, GatewayError, isStoreError, storeUnavailable } from '@viaduct/shared/errors';
import { objectMembers, sliceOf } from '@viaduct/shared/json-text';
import type { Principal } from '@viaduct/shared/principal';
import {
  addedScopes,
  garbage,
  isModernError,
  neverSent,
  responseFault,
  tryParse,
  unreadable,
  upstreamTimeout,
  type Exchange,
  type Leg,
  type Upstream,
  type WireReply,
} from '../upstream/upstream.ts';
import type { Answer } from './answer.ts';
import type { Asks } from './asks.ts';
import { CallStream, type CallStreamDeps } from './call-stream.ts';
import type { CallStreamWriter, Dialect, Reopened, UpstreamResponse } from './dialect.ts';
import { errorText, type RequestMessage } from './message.ts';
import type { Session, UpstreamState } from './sessions.ts';

const POLL_LEAD_MS = 1_000;
const LINGER_MS = 1_000;
/** HTTP statuses with which a server says that it does not know this kind of request at all. */
const STRANGE: ReadonlySet<number> = new Set([400, 404, 405, 406, 415, 501]);
/** How servers with sessions refuse what has none. */
const SESSION_ERRORS: ReadonlySet<unknown> = new Set([-32000, -32001, -32600]);
const FIRST_EVENT_VERSION_WITH_PRIMING = '2025-11-25';

export interface CallDeps extends CallStreamDeps {
  readonly asks: Asks;
  readonly sessions: CallStreamDeps['sessions'] & { readonly streamAfterMs: number };
}

export interface CallInput {
  readonly session: Session;
  readonly principal: Principal;
  readonly upstream: Upstream;
  readonly message: RequestMessage;
  readonly answer: Answer;
  /** Scopes that this operation needed, space separated: resuming asks for them again. */
  readonly scopes: string;
  /** Epoch milliseconds at which the client's stream ends because its token does. */
  readonly expiresAtMs: number;
  /** What goes upstream: the bytes that came, unless names must change. */
  readonly body: string | Buffer;
  /** Session, revision and the user's credential of this leg, as they are now. */
  address(leg: UpstreamState): Leg;
  /** The upstream forgot its session, or `doubt` says that it speaks another era now: opens another. */
  reopen(stale: string, doubt: boolean): Promise<Reopened>;
  /** The upstream refused the credential or wants one: the answer to give, or a leg to try again with. */
  onUnauthorized(stepUp?: string): Promise<'again' | { text: string }>;
  /** Can the user be asked for more scope? Then a 403 that names some is a refusal of the credential. */
  readonly stepsUp?: boolean;
  /** A message on its way to the client; `final` for the response. Identity unless names must change. */
  toClient(text: string, parsed: Record<string, unknown>, final: boolean): string;
  /** For an upstream of another era than the client's. */
  readonly dialect?: Dialect | undefined;
}

export interface CallOutcome {
  readonly outcome: 'ok' | 'rpc_error' | 'upstream_error' | 'cancelled';
  readonly upstreamMs: number;
}

type State = 'waiting' | 'streaming' | 'done';

export class Call {
  readonly #deps: CallDeps;
  readonly #in: CallInput;
  readonly #started = performance.now();
  /** Resolves when the response has been handed on, or the call has ended without one. Never rejects. */
  readonly settled: Promise<CallOutcome>;
  #settle!: (outcome: CallOutcome) => void;
  #leg: UpstreamState;
  #state: State = 'waiting';
  #exchange: Exchange | undefined;
  #timer: NodeJS.Timeout | undefined;
  /** From the moment on at which the answer has become one. */
  #stream: CallStream | undefined;
  #feed: (WireReply & { kind: 'events' }) | undefined;
  #lastEventId: string | undefined;
  #resumeAfterMs = 1_000;
  #resumes = 0;
  #resent = false;
  #sentId: string | number;
  #dialect: Dialect | undefined;

  constructor(deps: CallDeps, input: CallInput, leg: UpstreamState) {
    this.#deps = deps;
    this.#in = input;
    this.#leg = leg;
    this.#sentId = input.message.id;
    this.#dialect = input.dialect;
    this.settled = new Promise((resolve) => {
      this.#settle = resolve;
    });
  }

  run(): Promise<CallOutcome> {
    const { streamAfterMs } = this.#deps.sessions;
    const timeoutMs = this.#in.upstream.config.timeoutSeconds * 1000;
    // Most calls are over before the first of two times: a timer of its own for the second would be one too many.
    const onDeadline = (): void => {
      this.#onDeadline();
    };
    this.#timer =
      timeoutMs <= streamAfterMs
        ? setTimeout(onDeadline, timeoutMs)
        : setTimeout(() => {
            this.#timer = setTimeout(onDeadline, timeoutMs - streamAfterMs);
            this.#becomeStream();
          }, streamAfterMs);
    this.#attempt();
    return this.settled;
  }

  #attempt(): void {
    const { upstream, message, body } = this.#in;
    const sending = this.#dialect?.next() ?? {
      body,
      id: message.id,
      address: this.#in.address(this.#leg),
    };
    this.#sentId = sending.id;
    this.#exchange = upstream.post(sending.body, sending.address);
    this.#exchange.reply.then(
      (reply) => {
        this.#guarded(() => {
          this.#onReply(reply);
        });
      },
      (error: unknown) => {
        this.#onError(error);
      },
    );
  }

  /** What an upstream said may be JSON and still not be readable, e.g. a member that stands twice. */
  #guarded(step: () => void): void {
    try {
      step();
    } catch (error) {
      this.#feed = undefined;
      this.#exchange?.abort();
      this.#onError(error);
    }
  }

  #onReply(reply: WireReply): void {
    if (this.#state === 'done') return;
    if (reply.status === 404 && this.#leg.sid && !this.#resent) {
      void this.#reopen(this.#leg.sid);
      return;
    }
    const stepUp = this.#in.stepsUp === true ? addedScopes(reply) : undefined;
    if (reply.status === 401 || stepUp !== undefined) {
      void this.#onUnauthorized(stepUp);
      return;
    }
    if (reply.kind === 'events' && reply.status === 200) {
      this.#follow(reply);
      return;
    }
    if (reply.kind !== 'body') {
      this.#exchange?.abort();
      this.#onError(garbage(this.#in.upstream.name, `HTTP ${reply.status} with a stream`));
      return;
    }
    this.#onBody(reply);
  }

  #onBody(reply: WireReply & { kind: 'body' }): void {
    const { upstream, message } = this.#in;
    const text = reply.body.toString('utf8');
    const parsed = reply.contentType === 'application/json' ? tryParse(text) : undefined;
    if (!this.#resent && this.#seemsOfOtherEra(reply.status, parsed?.['error'])) {
      void this.#changeEra(reply);
      return;
    }
    if (parsed === undefined || !isResponse(parsed)) {
      this.#onError(refused(upstream.name, reply));
      return;
    }
    const fault = responseFault(parsed);
    if (fault !== undefined) {
      this.#onError(garbage(upstream.name, fault));
      return;
    }
    // An error that could not be tied to a request (id null) is about the only request there is.
    if (parsed['id'] !== this.#sentId) {
      if ((parsed['id'] ?? null) !== null || parsed['error'] === undefined) {
        this.#onError(garbage(upstream.name, 'a response with another id'));
        return;
      }
      this.#onResponse(
        errorText(message.idText, parsed['error'] as { code: number; message: string }),
        parsed,
      );
      return;
    }
    this.#onResponse(text, parsed, reply.body);
  }

  #onResponse(text: string, parsed: Record<string, unknown>, bytes?: Buffer): void {
    const dialect = this.#dialect;
    if (dialect === undefined) this.#finish(text, parsed, bytes);
    else void this.#translate(dialect, { text, parsed });
  }

  async #translate(dialect: Dialect, reply: UpstreamResponse): Promise<void> {
    try {
      const next = await dialect.response(reply, this.#writer);
      if (this.#over) return;
      if (next === 'again') this.#attempt();
      else this.#finish(next.text, next.parsed);
    } catch (error) {
      this.#onError(error);
    }
  }

  readonly #writer: CallStreamWriter = {
    open: () => {
      this.#becomeStream();
      return this.#state === 'streaming' ? this.#stream?.id : undefined;
    },
    send: (message) => {
      if (this.#state === 'streaming') this.#stream?.append(message);
    },
  };

  get #over(): boolean {
    return this.#state === 'done';
  }

  /** The upstream's session is gone, so it cannot have processed the call: once more, in a new one. */
  async #reopen(stale: string): Promise<void> {
    this.#resent = true;
    try {
      const { leg, dialect } = await this.#in.reopen(stale, false);
      this.#leg = leg;
      this.#dialect = dialect;
      this.#attempt();
    } catch (error) {
      this.#onError(error);
    }
  }

  /**
   * The upstream refused before it looked at the request, as one does that has been replaced by a server of the
   * other era. When it has, the request goes out once more, in its words; otherwise the refusal stands.
   */
  async #changeEra(reply: WireReply & { kind: 'body' }): Promise<void> {
    this.#resent = true;
    try {
      const { leg, dialect } = await this.#in.reopen(this.#leg.sid ?? '', true);
      if (this.#over) return;
      if (leg.era !== this.#leg.era) {
        this.#leg = leg;
        this.#dialect = dialect;
        this.#attempt();
        return;
      }
    } catch (error) {
      this.#deps.log.info({ err: error, upstream: this.#in.upstream.name }, 'era not found out');
    }
    if (!this.#over) this.#onBody(reply);
  }

  #seemsOfOtherEra(status: number, error: unknown): boolean {
    const code = (error as { code?: unknown } | undefined)?.code;
    if (this.#dialect === undefined) return status === 400 && isModernError(code);
    return STRANGE.has(status) && (code === undefined || SESSION_ERRORS.has(code));
  }

  async #onUnauthorized(stepUp: string | undefined): Promise<void> {
    try {
      const next = await this.#in.onUnauthorized(stepUp);
      if (next === 'again') this.#attempt();
      else this.#finish(next.text, tryParse(next.text) ?? {});
    } catch (error) {
      this.#onError(error);
    }
  }

  #follow(reply: WireReply & { kind: 'events' }): void {
    this.#feed = reply;
    reply.feed.subscribe({
      event: ({ id, data }) => {
        if (this.#feed !== reply) return;
        const named = id !== undefined && this.#dialect === undefined;
        if (named) this.#lastEventId = id;
        if (data !== '') {
          this.#guarded(() => {
            this.#onEvent(data);
          });
        }
        // A priming event: the upstream offers to resume this call, so the client is offered the same.
        else if (named && this.#polls) this.#becomeStream();
      },
      retry: (milliseconds) => {
        if (this.#dialect !== undefined) return;
        this.#resumeAfterMs = Math.min(milliseconds, 60_000);
        if (this.#polls) this.#onRetry(this.#resumeAfterMs);
      },
      end: (error) => {
        if (this.#feed === reply) this.#onFeedEnd(error);
      },
    });
  }

  /** Clients of 2025-11-25 know priming events, and that a server may close and be polled. */
  get #polls(): boolean {
    return this.#in.session.protocolVersion >= FIRST_EVENT_VERSION_WITH_PRIMING;
  }

  #onRetry(milliseconds: number): void {
    this.#becomeStream();
    this.#stream?.raw(`retry: ${milliseconds}\n\n`);
  }

  #onEvent(data: string): void {
    if (this.#state === 'done') return;
    const parsed = tryParse(data);
    if (parsed === undefined) {
      this.#onError(garbage(this.#in.upstream.name, 'an event that is not a JSON-RPC message'));
      return;
    }
    const dialect = this.#dialect;
    if (isResponse(parsed)) {
      if (parsed['id'] !== this.#sentId) return;
      // Whatever this stream still says is too late; the next round has one of its own.
      if (dialect !== undefined) this.#closeSoon();
      const fault = responseFault(parsed);
      if (fault === undefined) this.#onResponse(data, parsed);
      else this.#onError(garbage(this.#in.upstream.name, fault));
      return;
    }
    if (typeof parsed['method'] !== 'string') return;
    if (dialect !== undefined) {
      const out = dialect.notification(data, parsed);
      if (out === undefined) return;
      this.#becomeStream();
      this.#stream?.append(this.#in.toClient(out, parsed, false));
      return;
    }
    this.#becomeStream();
    const stream = this.#stream;
    if (stream === undefined) {
      this.#onEventWithoutStream(data, parsed);
      return;
    }
    if (parsed['method'] === 'notifications/cancelled') {
      // About a request of the upstream's: its id is ours to translate.
      this.#tell(stream, () =>
        this.#deps.asks.withdraw(this.#in.session, this.#in.upstream.name, data),
      );
      return;
    }
    if (parsed['id'] === undefined) {
      stream.append(this.#in.toClient(data, parsed, false));
      return;
    }
    this.#tell(stream, () =>
      this.#deps.asks.register(
        {
          session: this.#in.session,
          upstream: this.#in.upstream,
          address: this.#in.address(this.#leg),
          stream: stream.id,
        },
        data,
        parsed,
      ),
    );
  }

  /** The response ends a modern server's stream; a server that forgets to end it is helped. */
  #closeSoon(): void {
    this.#feed = undefined;
    const answered = this.#exchange;
    setTimeout(() => {
      answered?.abort();
    }, LINGER_MS).unref();
  }

  /** One message that fails for its own reasons is left out; the call and its stream go on. */
  #tell(stream: CallStream, message: () => Promise<string | undefined>): void {
    stream.run(async () => {
      let text: string | undefined;
      try {
        text = await message();
      } catch (error) {
        if (isStoreError(error)) throw error;
        this.#deps.log.warn(
          { err: error, upstream: this.#in.upstream.name },
          'a message of an upstream makes no sense, and is left out',
        );
      }
      if (text !== undefined) await stream.appendNow(text);
    });
  }

  /** In a batch there is nowhere to ask and nothing to notify: questions are refused, the rest is dropped. */
  #onEventWithoutStream(data: string, parsed: Record<string, unknown>): void {
    const id = objectMembers(data)?.get('id');
    if (parsed['id'] === undefined || id === undefined) return;
    this.#notify(
      this.#in.upstream,
      errorText(sliceOf(data, id), {
        code: -32601,
        message: 'The client sent this call in a batch and cannot be asked during it.',
      }),
    );
  }

  /**
   * The upstream closed before it answered. If it gave event ids it means to be polled, and so do we by our
   * client (2025-11-25 transports, Sending Messages 6); otherwise the answer is lost.
   */
  #onFeedEnd(error: GatewayError | undefined): void {
    if (this.#state === 'done') return;
    const resumable = this.#dialect === undefined && this.#lastEventId !== undefined;
    if (!resumable || this.#resumes >= 100) {
      this.#onError(error ?? garbage(this.#in.upstream.name, 'the stream ended before the answer'));
      return;
    }
    this.#resumes++;
    this.#becomeStream();
    if (this.#polls && error === undefined) this.#letPoll();
    setTimeout(() => {
      if (this.#state === 'done') return;
      const sent = this.#in.upstream.listen(this.#in.address(this.#leg), this.#lastEventId);
      this.#exchange = sent;
      sent.reply.then(
        (reply) => {
          if (reply.kind === 'events' && reply.status === 200) this.#follow(reply);
          else this.#onError(refused(this.#in.upstream.name, reply));
        },
        (failure: unknown) => {
          if (neverSent(failure)) this.#onFeedEnd(undefined);
          else this.#onError(failure);
        },
      );
    }, this.#resumeAfterMs).unref();
  }

  /**
   * The client may come back at once, whatever `retry` says, and wait no longer than that: its stream ends a little
   * before the upstream is asked again, so that the answer finds it waiting.
   */
  #letPoll(): void {
    const end = (): void => {
      if (this.#state === 'streaming') this.#stream?.hangUp();
    };
    setTimeout(end, Math.min(this.#resumeAfterMs / 2, POLL_LEAD_MS)).unref();
  }

  #onError(thrown: unknown): void {
    if (this.#state === 'done') return;
    const error = unreadable(this.#in.upstream.name, thrown);
    const { answer, message } = this.#in;
    const known = error instanceof GatewayError ? error : undefined;
    const failure =
      known ?? (isStoreError(error) ? storeUnavailable(error) : undefined) ?? internal(error);
    this.#deps.log.warn(
      {
        err: { type: failure.code, message: failure.message, detail: failure.detail },
        ...(known === undefined && { cause: error }),
        requestId: answer.requestId,
        upstream: this.#in.upstream.name,
        method: message.method,
      },
      'a call failed',
    );
    const text = errorText(message.idText, {
      code: failure.rpcCode,
      message: failure.message,
      data: { reason: failure.code, ...failure.data, requestId: answer.requestId },
    });
    if (this.#state === 'streaming') {
      for (const last of this.#dialect?.farewell() ?? []) this.#stream?.append(last);
    }
    if (this.#state === 'waiting' && failure.status !== 200) {
      this.#end('upstream_error');
      answer.json(failure.status, text, failure.headers);
      return;
    }
    this.#finish(text, { error: {} }, undefined, 'upstream_error');
  }

  #onDeadline(): void {
    if (this.#state === 'done') return;
    this.#tellUpstream('the call took longer than the gateway allows');
    const stream = this.#stream;
    if (stream !== undefined && this.#dialect === undefined) {
      // What the client is still being asked is asked in vain (basic/lifecycle, Timeouts).
      stream.run(async () => {
        for (const id of await this.#deps.asks.takeBack(this.#in.session, stream.id)) {
          await stream.appendNow(
            `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":${JSON.stringify(id)},"reason":"the call has timed out"}}`,
          );
        }
      });
    }
    this.#onError(upstreamTimeout(this.#in.upstream.name));
    // After the answer: aborting ends the feed, which would explain itself otherwise.
    this.#exchange?.abort();
  }

  #tellUpstream(reason: string): void {
    const { upstream, message } = this.#in;
    if (this.#dialect !== undefined) {
      // Closing is how it is told; what its stream says to that is of no interest.
      this.#feed = undefined;
      this.#exchange?.abort();
      return;
    }
    this.#notify(
      upstream,
      `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":${message.idText},"reason":${JSON.stringify(reason)}}}`,
    );
  }

  #notify(upstream: Upstream, text: string): void {
    const sent = upstream.post(text, this.#in.address(this.#leg));
    sent.reply.then(
      (reply) => {
        if (reply.kind === 'events') sent.abort();
      },
      (error: unknown) => {
        this.#deps.log.debug({ err: error }, 'a cancellation did not reach the upstream');
      },
    );
  }

  /** Whoever ends or resumes it needs them too. */
  get scopes(): string {
    return this.#in.scopes;
  }

  /**
   * The client withdrew the request: the upstream is told with the id of its own leg, and the stream ends
   * without a result (basic/utilities/cancellation, Behavior 1 and 4).
   */
  cancel(reason: string | undefined): void {
    if (this.#state === 'done') return;
    this.#tellUpstream(reason ?? 'cancelled by the client');
    this.#end('cancelled');
    if (this.#stream === undefined) this.#in.answer.empty(202);
    else this.#stream.append('', true);
    this.#exchange?.abort();
  }

  #becomeStream(): void {
    if (this.#state !== 'waiting' || !this.#in.answer.canStream) return;
    this.#state = 'streaming';
    const { session, principal, answer, message, upstream, scopes, expiresAtMs } = this.#in;
    this.#stream = new CallStream(this.#deps, {
      ...{ session, principal, answer, scopes, expiresAtMs },
      request: message.idText,
      upstream: upstream.name,
      primes: this.#polls,
      onGone: () => {
        this.#abandon();
      },
      onPressure: (high) => {
        if (high) this.#feed?.feed.pause();
        else this.#feed?.feed.resume();
      },
    });
  }

  /** The session ended under the call: nobody can ask for the answer any more. */
  #abandon(): void {
    this.#exchange?.abort();
    if (!this.#in.answer.answered) this.#in.answer.res.destroy();
    this.#end('cancelled');
  }

  #finish(
    text: string,
    parsed: Record<string, unknown>,
    bytes?: Buffer,
    outcome: CallOutcome['outcome'] = parsed['error'] === undefined ? 'ok' : 'rpc_error',
  ): void {
    if (this.#state === 'done') return;
    const out = this.#in.toClient(text, parsed, true);
    if (this.#stream !== undefined) {
      this.#stream.append(out, true);
      this.#stream.run(() => {
        this.#end(outcome);
        return Promise.resolve();
      });
      this.#state = 'done';
      this.#clear();
      return;
    }
    // The text is what was received, unless it was not UTF-8 to begin with.
    const same = out === text && bytes !== undefined && Buffer.byteLength(text) !== bytes.length;
    this.#in.answer.json(200, same ? bytes : out);
    this.#end(outcome);
  }

  #clear(): void {
    clearTimeout(this.#timer);
    this.#dialect?.end();
  }

  #end(outcome: CallOutcome['outcome']): void {
    this.#state = 'done';
    this.#clear();
    if (this.#stream !== undefined) this.#deps.asks.forget(this.#in.session, this.#stream.id);
    this.#settle({ outcome, upstreamMs: performance.now() - this.#started });
  }

  /** This pod stops before the upstream has answered. */
  lost(): void {
    this.#onError(callLost());
    this.#exchange?.abort();
  }

  /** The session has ended on some pod. */
  sessionEnded(): void {
    if (this.#state === 'done') return;
    this.#tellUpstream('the session has ended');
    this.#abandon();
  }
}

export const isResponse = (message: Record<string, unknown>): boolean =>
  message['method'] === undefined && ('result' in message || 'error' in message);

/** Nobody knows whether the upstream did it, so nobody does it again. */
export function callLost(): GatewayError {
  return fail(
    'upstream_call_lost',
    'The gateway process that carried this call has stopped. The call may or may not have taken effect; it was not repeated.',
    { data: { reason: 'upstream_call_lost' } },
  );
}

export function refused(name: string, reply: WireReply): GatewayError {
  return reply.status === 200
    ? garbage(name, 'a body that is not a JSON-RPC response')
    : fail(
        'upstream_unavailable',
        `The server "${name}" refused the request (HTTP ${reply.status}).`,
        {
          data: { reason: 'upstream_refused', upstreamStatus: reply.status },
        },
      );
}

function internal(cause: unknown): GatewayError {
  return fail(
    'internal',
    'Something went wrong in the gateway. Quote the request id to its operators.',
    {
      cause,
    },
  );
}
