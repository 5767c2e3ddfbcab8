/**
 * The answer to one modern request: plain JSON while that is enough, an event stream as soon as anything has to be
 * said before the end, or the end takes longer than `streamAfterMs` (design, section 9).
 *
 * Promises: one final message, once; keep-alive comments while a stream is silent; no event ids, because nothing
 * here can be resumed (2026-07-28 Streamable HTTP, Receiving Messages); whoever does the work learns at once when
 * the client closes, which is how a client cancels (Cancellation). Keeps nothing that outlives the connection.
 */
import type { Metrics } from '@viaduct/shared/metrics';
import type { Answer } from '../answer.ts';
import { SSE_HEADERS } from '../streams.ts';

export interface ReplyDeps {
  readonly streamAfterMs: number;
  readonly keepAliveMs: number;
  readonly metrics: Pick<Metrics, 'streamsOpen'>;
  /** An error as the JSON-RPC response that it becomes. */
  errorText(answer: Answer, error: unknown): string;
  /** The only renderer of errors that are an HTTP answer of their own. */
  respondError(answer: Answer, error: unknown): void;
}

/** A peer that has not read anything for so many beats is gone, whatever its socket says. */
const MAX_MISSED_BEATS = 4;
/** What may wait for a slow reader of events that nobody can be asked to hold back, bytes. */
const MAX_WAITING = 1024 * 1024;

type State = 'waiting' | 'streaming' | 'done';

export class Reply {
  readonly answer: Answer;
  readonly #deps: ReplyDeps;
  #state: State = 'waiting';
  #gone = false;
  #blocked = false;
  #missedBeats = 0;
  #timer: NodeJS.Timeout | undefined;
  #beat: NodeJS.Timeout | undefined;
  readonly #onGone = new Set<() => void>();
  #onDrain: (() => void) | undefined;

  constructor(answer: Answer, deps: ReplyDeps) {
    this.answer = answer;
    this.#deps = deps;
    answer.res.on('close', () => {
      this.#onClose();
    });
    this.#timer = setTimeout(() => {
      this.open();
    }, deps.streamAfterMs);
  }

  /** The client has closed before it got its answer: whatever is done for it is done for nobody. */
  get gone(): boolean {
    return this.#gone;
  }

  get done(): boolean {
    return this.#state === 'done';
  }

  /** The client does not read as fast as we write. */
  get blocked(): boolean {
    return this.#blocked;
  }

  /** @returns a function that takes the callback back */
  onGone(callback: () => void): () => void {
    if (this.#gone) callback();
    else this.#onGone.add(callback);
    return () => this.#onGone.delete(callback);
  }

  /** Called when the socket takes more again. */
  set onDrain(callback: (() => void) | undefined) {
    this.#onDrain = callback;
  }

  /** From now on an event stream. */
  open(): void {
    if (this.#state !== 'waiting' || this.answer.gone) return;
    this.#state = 'streaming';
    clearTimeout(this.#timer);
    const { res } = this.answer;
    res.socket?.setNoDelay(true);
    res.writeHead(200, { ...SSE_HEADERS, ...this.answer.headers });
    // A first byte, so that every proxy between passes the head on.
    this.#write(': open\n\n');
    this.#deps.metrics.streamsOpen.inc({ era: 'modern' });
    this.#beat = setInterval(() => {
      this.#onBeat();
    }, this.#deps.keepAliveMs);
    this.#beat.unref();
  }

  /** So much waits for the client to read it that it is better off connecting anew. */
  get overflowing(): boolean {
    return this.answer.res.writableLength > MAX_WAITING;
  }

  /** Cuts the connection; the client comes back when it can. */
  cut(): void {
    this.answer.res.destroy();
  }

  /** A message before the final one. */
  notify(message: string): void {
    this.open();
    if (this.#state === 'streaming') this.#write(event(message));
  }

  /** The final message. The status counts only while the answer is no stream yet. */
  finish(message: string | Buffer, status = 200): void {
    if (this.#state === 'done') return;
    if (this.#state === 'streaming') {
      this.#write(event(message.toString()));
      this.#end();
      this.answer.res.end();
      return;
    }
    this.#end();
    this.answer.json(status, message);
  }

  fail(error: unknown): void {
    if (this.#state === 'waiting') {
      this.#end();
      this.#deps.respondError(this.answer, error);
      return;
    }
    if (this.#state === 'done') return;
    this.finish(this.#deps.errorText(this.answer, error));
  }

  #onBeat(): void {
    if (!this.#blocked) this.#write(': keepalive\n\n');
    else if (++this.#missedBeats >= MAX_MISSED_BEATS) this.answer.res.destroy();
  }

  #write(text: string): void {
    if (this.answer.res.write(text)) return;
    this.#blocked = true;
    this.answer.res.once('drain', () => {
      this.#blocked = false;
      this.#missedBeats = 0;
      this.#onDrain?.();
    });
  }

  #end(): void {
    if (this.#state === 'streaming') this.#deps.metrics.streamsOpen.dec({ era: 'modern' });
    this.#state = 'done';
    clearTimeout(this.#timer);
    clearInterval(this.#beat);
    this.#onGone.clear();
  }

  #onClose(): void {
    if (this.#state === 'done') return;
    this.#gone = true;
    const callbacks = [...this.#onGone];
    this.#end();
    for (const callback of callbacks) callback();
  }
}

/** Line breaks inside JSON are white space, so a message may become several data lines. */
function event(message: string): string {
  if (!message.includes('\n') && !message.includes('\r')) return `data: ${message}\n\n`;
  return `${message
    .split(/\r\n|\n|\r/)
    .map((line) => `data: ${line}`)
    .join('\n')}\n\n`;
}
