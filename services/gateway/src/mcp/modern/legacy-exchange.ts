/**
 * One request on a leg to a legacy upstream, until its response: in JSON, at the end of a stream, or at the end of a
 * stream that the upstream broke off to be polled (2025-11-25 transports, Sending Messages 6).
 *
 * Promises: sent once; once more only when the upstream answered 404 to the session, so cannot have read it
 * (invariant 10). Says what the upstream says, in order. Not its duty: deadlines, and what any of it means.
 */
import type { Logger } from 'pino';
import type { GatewayError } from '@viaduct/shared/errors';
import {
  garbage,
  legOf,
  neverSent,
  refusesCredential,
  responseFault,
  tryParse,
  unreadable,
  UpstreamStatus,
  type Exchange,
  type Leg,
  type WireReply,
} from '../../upstream/upstream.ts';
import { isResponse, refused } from '../call.ts';
import { errorText, type JsonObject } from '../message.ts';
import type { Level } from './envelope.ts';
import type { Implicit, ImplicitSessions } from './implicit-sessions.ts';

export interface ExchangeEvents {
  notification(text: string, parsed: JsonObject): void;
  /** A request of the upstream's. */
  question(text: string, parsed: JsonObject): void;
  response(text: string, parsed: JsonObject): void;
  failed(error: unknown): void;
}

export interface ExchangeInput {
  readonly implicit: Implicit;
  readonly credential: Readonly<Record<string, string>> | undefined;
  /** Of the upstream's leg. */
  readonly id: string;
  readonly body: string;
  readonly level: Level | undefined;
}

const FIRST_RESUME_MS = 1_000;
const MAX_RESUME_MS = 60_000;
const MAX_RESUMES = 100;

export class LegacyExchange {
  readonly #deps: { readonly sessions: ImplicitSessions; readonly log: Logger };
  readonly #in: Omit<ExchangeInput, 'body'>;
  /** Given up once the upstream has begun to answer: a call may be suspended for long. */
  #body: string;
  readonly #events: ExchangeEvents;
  #implicit: Implicit;
  #sent: Exchange | undefined;
  #feed: (WireReply & { kind: 'events' }) | undefined;
  #timer: NodeJS.Timeout | undefined;
  #over = false;
  #posted = false;
  #resent = false;
  #lastEventId: string | undefined;
  #resumeAfterMs = FIRST_RESUME_MS;
  #resumes = 0;

  constructor(
    deps: { readonly sessions: ImplicitSessions; readonly log: Logger },
    input: ExchangeInput,
    events: ExchangeEvents,
  ) {
    this.#deps = deps;
    const { body, ...rest } = input;
    this.#in = rest;
    this.#body = body;
    this.#events = events;
    this.#implicit = input.implicit;
  }

  get implicit(): Implicit {
    return this.#implicit;
  }

  get address(): Leg {
    return legOf(this.#implicit.leg, this.#in.credential);
  }

  start(): void {
    const { level, credential, implicit } = this.#in;
    if (level === undefined) this.#post();
    else {
      void this.#deps.sessions.level(implicit, credential, level).then(() => {
        this.#post();
      });
    }
  }

  #post(): void {
    if (this.#over) return;
    this.#posted = true;
    this.#sent = this.#implicit.upstream.post(this.#body, this.address);
    this.#sent.reply.then(
      (reply) => {
        this.#guarded(() => {
          this.#onReply(reply);
        });
      },
      (error: unknown) => {
        this.#fail(error);
      },
    );
  }

  /** What an upstream said may be JSON and still not be readable, e.g. a member that stands twice. */
  #guarded(step: () => void): void {
    try {
      step();
    } catch (error) {
      this.#fail(unreadable(this.#implicit.upstream.name, error));
      // After the failure: aborting ends the feed, which would explain itself otherwise.
      this.#sent?.abort();
    }
  }

  #onReply(reply: WireReply): void {
    if (this.#over) return;
    const { name } = this.#implicit.upstream;
    if (reply.status === 404 && this.#implicit.leg.sid && !this.#resent) {
      void this.#reopen();
    } else if (refusesCredential(reply)) {
      this.#sent?.abort();
      this.#fail(new UpstreamStatus(name, reply));
    } else if (reply.kind === 'events' && reply.status === 200) {
      this.#follow(reply);
    } else if (reply.kind === 'body') {
      this.#onBody(reply);
    } else {
      this.#sent?.abort();
      this.#fail(garbage(name, `HTTP ${reply.status} with a stream`));
    }
  }

  #onBody(reply: WireReply & { kind: 'body' }): void {
    const text = reply.body.toString('utf8');
    const parsed = reply.contentType === 'application/json' ? tryParse(text) : undefined;
    const { name } = this.#implicit.upstream;
    const fault = parsed && responseFault(parsed);
    if (parsed === undefined || !isResponse(parsed)) this.#fail(refused(name, reply));
    else if (fault !== undefined) this.#fail(garbage(name, fault));
    else if (parsed['id'] === this.#in.id) this.#respond(text, parsed);
    else if ((parsed['id'] ?? null) === null && parsed['error'] !== undefined) {
      // An error that could not be tied to a request is about the only one there is.
      const error = parsed['error'] as { code: number; message: string };
      this.#respond(errorText(JSON.stringify(this.#in.id), error), parsed);
    } else this.#fail(garbage(name, 'a response with another id'));
  }

  async #reopen(): Promise<void> {
    this.#resent = true;
    this.#sent?.abort();
    try {
      const { credential, level } = this.#in;
      this.#implicit = await this.#deps.sessions.reopen(this.#implicit, credential);
      if (level !== undefined) await this.#deps.sessions.level(this.#implicit, credential, level);
      this.#post();
    } catch (error) {
      this.#fail(error);
    }
  }

  #follow(reply: WireReply & { kind: 'events' }): void {
    this.#feed = reply;
    this.#body = '';
    reply.feed.subscribe({
      event: ({ id, data }) => {
        if (id !== undefined) this.#lastEventId = id;
        if (data === '' || this.#over) return;
        this.#guarded(() => {
          this.#onEvent(data);
        });
      },
      retry: (milliseconds) => {
        this.#resumeAfterMs = Math.min(milliseconds, MAX_RESUME_MS);
      },
      end: (error) => {
        if (!this.#over) this.#onFeedEnd(error);
      },
    });
  }

  #onEvent(data: string): void {
    const parsed = tryParse(data);
    if (parsed === undefined) {
      this.#sent?.abort();
      this.#fail(garbage(this.#implicit.upstream.name, 'an event that is not a JSON-RPC message'));
    } else if (isResponse(parsed)) {
      if (parsed['id'] !== this.#in.id) return;
      const fault = responseFault(parsed);
      if (fault === undefined) {
        this.#respond(data, parsed);
        return;
      }
      this.#fail(garbage(this.#implicit.upstream.name, fault));
      this.#sent?.abort();
    } else if (typeof parsed['method'] === 'string') {
      if (parsed['id'] === undefined) this.#events.notification(data, parsed);
      else this.#events.question(data, parsed);
    }
  }

  /** Closed before the answer: if the upstream gave event ids it means to be polled, otherwise the answer is lost. */
  #onFeedEnd(error: GatewayError | undefined): void {
    const { upstream } = this.#implicit;
    if (this.#lastEventId === undefined || this.#resumes >= MAX_RESUMES) {
      this.#fail(error ?? garbage(upstream.name, 'the stream ended before the answer'));
      return;
    }
    this.#resumes++;
    this.#timer = setTimeout(() => {
      this.#sent = upstream.listen(this.address, this.#lastEventId);
      this.#sent.reply.then(
        (reply) => {
          if (this.#over) return;
          if (reply.kind === 'events' && reply.status === 200) this.#follow(reply);
          else this.#fail(refused(upstream.name, reply));
        },
        (failure: unknown) => {
          if (this.#over) return;
          if (neverSent(failure)) this.#onFeedEnd(undefined);
          else this.#fail(failure);
        },
      );
    }, this.#resumeAfterMs);
    this.#timer.unref();
  }

  #respond(text: string, parsed: JsonObject): void {
    this.#over = true;
    this.#events.response(text, parsed);
  }

  #fail(error: unknown): void {
    if (this.#over) return;
    this.#over = true;
    this.#events.failed(error);
  }

  pause(): void {
    this.#feed?.feed.pause();
  }

  resume(): void {
    this.#feed?.feed.resume();
  }

  /** Nothing more is said to whoever listens. */
  abort(): void {
    this.#over = true;
    clearTimeout(this.#timer);
    this.#sent?.abort();
  }

  /**
   * Tells the upstream to stop, with the id of its own leg (2025-11-25 cancellation, Behavior 1). Resolves when it has
   * heard; never rejects.
   */
  async cancel(reason: string): Promise<void> {
    const posted = this.#posted;
    const { address } = this;
    this.abort();
    if (!posted) return;
    const params = JSON.stringify({ requestId: this.#in.id, reason });
    await this.tell(
      `{"jsonrpc":"2.0","method":"notifications/cancelled","params":${params}}`,
      address,
    );
  }

  /** A notification, or an answer to a question. Never rejects; false when it was not taken. */
  async tell(text: string, address: Leg = this.address): Promise<boolean> {
    const { upstream } = this.#implicit;
    const sent = upstream.post(text, address);
    try {
      const reply = await sent.reply;
      if (reply.kind === 'events') sent.abort();
      if (reply.status < 300) return true;
      this.#deps.log.info(
        { upstream: upstream.name, status: reply.status },
        'an upstream did not take a message',
      );
    } catch (error) {
      this.#deps.log.info({ err: error, upstream: upstream.name }, 'an upstream could not be told');
    }
    return false;
  }
}
