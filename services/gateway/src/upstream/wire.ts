/**
 * One HTTP exchange with an upstream, on undici's dispatch: the cheapest leg there is (design, section 10), and
 * the only one that lets us stop reading when the client's socket is full.
 *
 * Promises: the reply is either a whole body (bounded) or a feed of server-sent events in order, each with the
 * exact text of its data. Not its duty: deadlines, sessions, meaning. A caller that loses interest aborts.
 */
import { StringDecoder } from 'node:string_decoder';
import { createParser } from 'eventsource-parser';
import type { Dispatcher, Pool } from 'undici';
import { fail, type GatewayError } from '@viaduct/shared/errors';
import type { Circuit } from './circuit.ts';

/** Longest body or single event taken from an upstream, bytes. Larger ones end in an error for that one call. */
export const MAX_REPLY_BYTES = 32 * 1024 * 1024;

export interface WireRequest {
  readonly method: 'POST' | 'GET' | 'DELETE';
  readonly path: string;
  readonly headers: Record<string, string>;
  readonly body?: string | Buffer;
}

export interface UpstreamEvent {
  readonly id: string | undefined;
  readonly data: string;
}

export interface EventSink {
  event(event: UpstreamEvent): void;
  retry(milliseconds: number): void;
  /** The feed is over; `error` when it was cut rather than ended. */
  end(error?: GatewayError): void;
}

export interface EventFeed {
  /** Once. Events that came before are delivered at once. */
  subscribe(sink: EventSink): void;
  pause(): void;
  resume(): void;
}

export interface ReplyHead {
  readonly status: number;
  readonly sessionId: string | undefined;
  readonly wwwAuthenticate: string | undefined;
  readonly retryAfter: string | undefined;
}

export type WireReply =
  | (ReplyHead & { readonly kind: 'body'; readonly contentType: string; readonly body: Buffer })
  | (ReplyHead & { readonly kind: 'events'; readonly feed: EventFeed });

export interface Exchange {
  readonly reply: Promise<WireReply>;
  abort(): void;
}

const aborted = new Error('the gateway ended this exchange');

/** What failed before a single byte of the request can have been read by a server. */
const NEVER_SENT =
  /^(ECONNREFUSED|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|UND_ERR_CONNECT_TIMEOUT)$/;

/** True when the upstream provably did not process the request, so that sending it again is safe (invariant 10). */
export function neverSent(error: unknown): boolean {
  for (let e = error; e instanceof Error; e = e.cause) {
    const code = (e as { code?: unknown }).code;
    if (typeof code === 'string' && NEVER_SENT.test(code)) return true;
  }
  return false;
}

class CircuitOpen extends Error {
  readonly code = 'ECONNREFUSED';
  constructor() {
    super('not tried: it could not be reached a moment ago');
  }
}

function unavailable(name: string, cause: Error): GatewayError {
  return fail(
    'upstream_unavailable',
    `The server "${name}" cannot be reached right now. Try again later.`,
    { data: { reason: 'upstream_unavailable' }, detail: cause.message, cause },
  );
}

function tooLarge(name: string): GatewayError {
  return fail('upstream_invalid', `The answer of the server "${name}" is too large.`, {
    data: { reason: 'upstream_answer_too_large' },
  });
}

const first = (value: string | string[] | undefined): string | undefined =>
  Array.isArray(value) ? value[0] : value;

/** Server-sent events out of chunks, buffered until somebody subscribes. */
class Feed implements EventFeed {
  readonly #decoder = new StringDecoder('utf8');
  readonly #name: string;
  readonly #waiting: ((sink: EventSink) => void)[] = [];
  #sink: EventSink | undefined;
  #ended = false;
  #controller: Dispatcher.DispatchController | undefined;
  #sinceEvent = 0;

  readonly #parser = createParser({
    onEvent: (event) => {
      this.#sinceEvent = 0;
      this.#deliver((sink) => {
        sink.event({ id: event.id, data: event.data });
      });
    },
    onRetry: (milliseconds) => {
      this.#deliver((sink) => {
        sink.retry(milliseconds);
      });
    },
  });

  constructor(name: string, controller: Dispatcher.DispatchController) {
    this.#name = name;
    this.#controller = controller;
  }

  write(chunk: Buffer): void {
    this.#sinceEvent += chunk.length;
    if (this.#sinceEvent > MAX_REPLY_BYTES) {
      this.end(tooLarge(this.#name));
      this.#controller?.abort(aborted);
      return;
    }
    this.#parser.feed(this.#decoder.write(chunk));
  }

  end(error?: GatewayError): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#controller = undefined;
    this.#deliver((sink) => {
      sink.end(error);
    });
  }

  #deliver(what: (sink: EventSink) => void): void {
    if (this.#sink === undefined) this.#waiting.push(what);
    else what(this.#sink);
  }

  subscribe(sink: EventSink): void {
    this.#sink = sink;
    for (const what of this.#waiting.splice(0)) what(sink);
  }

  pause(): void {
    this.#controller?.pause();
  }

  resume(): void {
    this.#controller?.resume();
  }
}

/** Collects one reply; undici calls it, the promise's owner reads it. */
class ReplyHandler implements Dispatcher.DispatchHandler {
  controller: Dispatcher.DispatchController | undefined;
  cancelled = false;
  readonly #name: string;
  readonly #circuit: Circuit;
  readonly #resolve: (reply: WireReply) => void;
  readonly #reject: (error: Error) => void;
  #head: (ReplyHead & { contentType: string }) | undefined;
  #feed: Feed | undefined;
  #chunks: Buffer[] = [];
  #size = 0;

  constructor(
    name: string,
    circuit: Circuit,
    resolve: (reply: WireReply) => void,
    reject: (error: Error) => void,
  ) {
    this.#name = name;
    this.#circuit = circuit;
    this.#resolve = resolve;
    this.#reject = reject;
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    // There is a connection, whatever comes over it and however late.
    this.#circuit.reached();
    this.controller = controller;
    if (this.cancelled) controller.abort(aborted);
  }

  onResponseStart(
    controller: Dispatcher.DispatchController,
    status: number,
    headers: Record<string, string | string[] | undefined>,
  ): void {
    if (status < 200) return;
    const contentType = (first(headers['content-type']) ?? '').split(';', 1)[0]?.trim() ?? '';
    this.#head = {
      status,
      contentType: contentType.toLowerCase(),
      sessionId: first(headers['mcp-session-id']),
      wwwAuthenticate: first(headers['www-authenticate']),
      retryAfter: first(headers['retry-after']),
    };
    if (this.#head.contentType === 'text/event-stream') {
      this.#feed = new Feed(this.#name, controller);
      this.#resolve({ ...this.#head, kind: 'events', feed: this.#feed });
    }
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#feed !== undefined) {
      this.#feed.write(chunk);
      return;
    }
    this.#size += chunk.length;
    if (this.#size > MAX_REPLY_BYTES) {
      this.#reject(tooLarge(this.#name));
      controller.abort(aborted);
      return;
    }
    this.#chunks.push(chunk);
  }

  onResponseEnd(): void {
    if (this.#feed !== undefined) {
      this.#feed.end();
      return;
    }
    if (this.#head === undefined) return;
    const body = this.#chunks.length === 1 ? this.#chunks[0]! : Buffer.concat(this.#chunks);
    this.#resolve({ ...this.#head, kind: 'body', body });
  }

  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    const failure = unavailable(this.#name, error);
    if (this.#feed !== undefined) this.#feed.end(failure);
    else this.#reject(failure);
  }
}

export function exchange(
  pool: Pool,
  name: string,
  circuit: Circuit,
  request: WireRequest,
): Exchange {
  if (!circuit.admit()) {
    return { reply: Promise.reject(unavailable(name, new CircuitOpen())), abort: () => undefined };
  }
  const began = performance.now();
  let handler: ReplyHandler | undefined;
  const reply = new Promise<WireReply>((resolve, reject) => {
    handler = new ReplyHandler(name, circuit, resolve, reject);
    pool.dispatch(
      {
        path: request.path,
        method: request.method,
        headers: request.headers,
        body: request.body ?? null,
        // A call may take minutes and a stream may be silent for hours: deadlines are the callers'.
        headersTimeout: 0,
        bodyTimeout: 0,
      },
      handler,
    );
  });
  reply.then(
    () => circuit.reached(),
    (error: unknown) => {
      if (neverSent(error)) circuit.failed(performance.now() - began);
      else circuit.reached();
    },
  );
  return {
    reply,
    abort() {
      if (handler === undefined) return;
      handler.cancelled = true;
      handler.controller?.abort(aborted);
    },
  };
}
