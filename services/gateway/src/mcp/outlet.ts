/**
 * One open SSE response: writes entries of a session's log to a socket, in order, with backpressure.
 *
 * An outlet remembers the last entry it wrote. It is either caught up, or reads on from the log until it is;
 * a full socket just means that it is not caught up. Sockets are the only thing it keeps in memory.
 */
import type { ServerResponse } from 'node:http';
import type { Metrics } from '@viaduct/shared/metrics';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';
import { LISTENING, type SessionAddress } from '@viaduct/shared/event-bus';

const BATCH = 200;

export interface LogEntry {
  readonly id: string;
  readonly stream: string;
  readonly message: string;
  readonly last: boolean;
  readonly scopes: string;
}

export interface OutletOptions {
  readonly connectionId: string;
  readonly session: SessionAddress;
  readonly stream: string;
  readonly res: ServerResponse;
  /** Last entry that the client has; reading begins after it. */
  readonly position: string;
  /** Epoch milliseconds at which the stream ends because its token does. */
  readonly expiresAtMs: number;
}

export interface OutletDeps {
  readonly redis: Redis;
  readonly metrics: Pick<Metrics, 'busDelivery' | 'replayedEvents'>;
  /** Entries up to `id` are on the socket. */
  onWritten(outlet: Outlet, id: string): void;
  onClosed(outlet: Outlet): void;
  onError(outlet: Outlet, error: unknown): void;
}

/** `<stream>_<entry>`: says which stream an event belongs to, and where in the log it is. */
export function eventId(stream: string, entryId: string): string {
  return `${stream}_${entryId}`;
}

export function parseEventId(text: string): { stream: string; entryId: string } | undefined {
  const match = /^([A-Za-z0-9-]{1,40})_(\d{1,16}-\d{1,12})$/.exec(text);
  return match?.[1] && match[2] ? { stream: match[1], entryId: match[2] } : undefined;
}

export async function readLog(
  redis: Redis,
  { userId, sessionId }: SessionAddress,
  after: string,
  count = BATCH,
): Promise<LogEntry[]> {
  const rows = await redis.xrange(
    keys.log(userId, sessionId),
    after === '' ? '-' : `(${after}`,
    '+',
    'COUNT',
    count,
  );
  return rows.map(toEntry);
}

export function toEntry([id, fields]: [string, string[]]): LogEntry {
  let stream = '';
  let message = '';
  let last = false;
  let scopes = '';
  for (let i = 0; i + 1 < fields.length; i += 2) {
    const value = fields[i + 1]!;
    switch (fields[i]) {
      case 's':
        stream = value;
        break;
      case 'm':
        message = value;
        break;
      case 'e':
        last = true;
        break;
      case 'c':
        scopes = value;
        break;
      default:
    }
  }
  return { id, stream, message, last, scopes };
}

/** A message as one event; line breaks inside JSON are white space, so they may become several data lines. */
export function frame(id: string, message: string): string {
  if (!message.includes('\n') && !message.includes('\r')) return `id: ${id}\ndata: ${message}\n\n`;
  return `id: ${id}\n${message
    .split(/\r\n|\n|\r/)
    .map((line) => `data: ${line}`)
    .join('\n')}\n\n`;
}

export class Outlet {
  readonly connectionId: string;
  readonly session: SessionAddress;
  readonly stream: string;
  readonly expiresAtMs: number;
  /** False while a newer stream gets this session's messages. */
  active = true;
  beatAtMs = 0;
  /** Until it has caught up once, what a resumed stream writes is a replay. */
  replays = false;
  readonly #res: ServerResponse;
  readonly #deps: OutletDeps;
  #position: string;
  #reading = false;
  #dirty = false;
  #blocked = false;
  #closed = false;
  #missedBeats = 0;

  constructor(options: OutletOptions, deps: OutletDeps) {
    this.connectionId = options.connectionId;
    this.session = options.session;
    this.stream = options.stream;
    this.expiresAtMs = options.expiresAtMs;
    this.#res = options.res;
    this.#position = options.position;
    this.#deps = deps;
    options.res.on('close', () => {
      this.#finish();
    });
  }

  get position(): string {
    return this.#position;
  }

  get closed(): boolean {
    return this.#closed;
  }

  /** The socket is full; whoever feeds this outlet should wait. */
  get blocked(): boolean {
    return this.#blocked;
  }

  /**
   * The entry that follows the last one of this stream. Only for the stream's single writer: it skips the log
   * when nothing is behind.
   */
  push(entry: LogEntry): void {
    if (this.#closed) return;
    if (this.#reading || this.#blocked || !this.active) {
      this.#dirty = true;
      return;
    }
    this.#write(entry);
  }

  /** There may be more in the log. */
  readOn(): void {
    if (this.#closed || !this.active) return;
    this.#dirty = true;
    if (!this.#reading && !this.#blocked) void this.#read();
  }

  /** Starts over from another position, e.g. the cursor that a replaced stream left. */
  rewind(position: string): void {
    if (position !== '') this.#position = position;
  }

  async #read(): Promise<void> {
    this.#reading = true;
    try {
      while (this.#dirty && this.#canWrite()) {
        this.#dirty = false;
        const entries = await readLog(this.#deps.redis, this.session, this.#position);
        for (const entry of entries) {
          if (!this.#canWrite()) {
            this.#dirty = true;
            break;
          }
          if (entry.stream === this.stream) this.#write(entry);
          else this.#position = entry.id;
        }
        if (entries.length === BATCH) this.#dirty = true;
        else this.replays = false;
      }
    } catch (error) {
      this.#dirty = true; // read again at the next nudge or beat
      this.#deps.onError(this, error);
    } finally {
      this.#reading = false;
    }
  }

  #canWrite(): boolean {
    return !this.#closed && !this.#blocked && this.active;
  }

  #write(entry: LogEntry): void {
    this.#position = entry.id;
    if (entry.message !== '') {
      if (this.replays) this.#deps.metrics.replayedEvents.inc();
      this.#send(frame(eventId(this.stream, entry.id), entry.message));
      const sinceAppend = Date.now() - Number(entry.id.slice(0, entry.id.indexOf('-')));
      this.#deps.metrics.busDelivery.observe(Math.max(0, sinceAppend) / 1000);
    }
    this.#deps.onWritten(this, entry.id);
    // A call's stream ends with its response (2025-11-25 transports, Sending Messages 6).
    if (entry.last && this.stream !== LISTENING) this.end();
  }

  /** Text of the SSE format that is no log entry: comments, `retry`, the priming event. */
  writeRaw(text: string): void {
    if (!this.#closed) this.#send(text);
  }

  #send(text: string): void {
    if (this.#res.write(text)) return;
    this.#blocked = true;
    this.#res.once('drain', () => {
      this.#blocked = false;
      this.#missedBeats = 0;
      if (this.#dirty && !this.#reading) void this.#read();
      this.#onDrain?.();
    });
  }

  #onDrain: (() => void) | undefined;
  /** Called when the socket takes more again. */
  set onDrain(callback: () => void) {
    this.#onDrain = callback;
  }

  /** A comment, so that no proxy or client takes silence for death. False once the peer stopped reading. */
  beat(): boolean {
    if (this.#blocked) {
      this.#missedBeats++;
      return this.#missedBeats < 4;
    }
    this.#send(': keepalive\n\n');
    return true;
  }

  /** Ends the response; with `retryMs` the client is told when to come back. */
  end(retryMs?: number): void {
    if (this.#closed) return;
    if (retryMs !== undefined) this.#res.write(`retry: ${retryMs}\n\n`);
    this.#res.end();
    this.#finish();
  }

  /** The peer is gone or does not read; there is no one to say goodbye to. */
  destroy(): void {
    this.#res.destroy();
    this.#finish();
  }

  #finish(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#deps.onClosed(this);
  }
}
