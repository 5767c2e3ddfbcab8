/**
 * The HTTP side of one request on the MCP endpoint: what has to be on every answer, and the few forms an answer
 * can take. Everything else of the response object stays out of the relay's hands.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { IdHolder } from './message.ts';

export interface Seen {
  era: 'legacy' | 'modern';
  /** Method label; '' until a message was read. */
  method: string;
  upstream: string;
  /** Set by the relay; otherwise the HTTP status decides. */
  outcome: string;
  upstreamMs: number;
  /** Only with traces. */
  traceId: string | undefined;
}

const NO_HEADERS: Readonly<Record<string, string>> = {};

export class Answer implements IdHolder {
  readonly req: IncomingMessage;
  readonly res: ServerResponse;
  readonly requestId: string;
  /** JSON text of the id to echo; 'null' until one could be read. */
  idText = 'null';
  /** Taken when the request arrived, `performance.now()`. */
  readonly startedAt: number;
  /** For metrics and the log: what this turned out to be. */
  readonly seen: Seen = {
    era: 'legacy',
    method: '',
    upstream: '',
    outcome: '',
    upstreamMs: 0,
    traceId: undefined,
  };
  readonly #fixed: Readonly<Record<string, string>>;

  constructor(
    req: IncomingMessage,
    res: ServerResponse,
    options: { requestId: string; headers: Readonly<Record<string, string>> },
  ) {
    this.req = req;
    this.res = res;
    this.requestId = options.requestId;
    this.#fixed = options.headers;
    this.startedAt = performance.now();
  }

  /** Request id and CORS: they belong on every answer. */
  get headers(): Record<string, string> {
    return { ...this.#fixed };
  }

  /** False where the answer is part of something larger, and can only be one JSON message. */
  readonly canStream: boolean = true;

  get answered(): boolean {
    return this.res.headersSent;
  }

  get gone(): boolean {
    return this.res.destroyed;
  }

  json(
    status: number,
    body: string | Buffer,
    more: Readonly<Record<string, string>> = NO_HEADERS,
  ): void {
    if (this.res.headersSent || this.res.destroyed) return;
    this.res.writeHead(status, {
      ...this.#fixed,
      'Content-Type': 'application/json',
      'Content-Length': typeof body === 'string' ? Buffer.byteLength(body) : body.length,
      'Cache-Control': 'no-store',
      ...more,
    });
    // A string leaves in one write together with the head; a buffer takes a second chunk.
    this.res.end(body);
  }

  empty(status: number, more: Readonly<Record<string, string>> = NO_HEADERS): void {
    if (this.res.headersSent || this.res.destroyed) return;
    this.res.writeHead(status, { ...this.#fixed, 'Content-Length': '0', ...more });
    this.res.end();
  }
}

/** The answer to one message of a batch (2025-03-26): kept until all of them are there. */
export class BatchItemAnswer extends Answer {
  /** The JSON-RPC response; undefined for what has none. */
  text: string | undefined;
  #done = false;

  constructor(batch: Answer) {
    super(batch.req, batch.res, { requestId: batch.requestId, headers: batch.headers });
  }

  override readonly canStream = false;

  override get answered(): boolean {
    return this.#done;
  }

  override json(_status: number, body: string | Buffer): void {
    if (this.#done) return;
    this.#done = true;
    this.text = typeof body === 'string' ? body : body.toString('utf8');
  }

  override empty(): void {
    this.#done = true;
  }
}
