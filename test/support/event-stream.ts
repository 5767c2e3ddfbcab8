import type { IncomingMessage } from 'node:http';
import { createParser, type EventSourceParser } from 'eventsource-parser';
import { parse, type Message } from './net.ts';
import { inspect } from './planted.ts';

export interface StreamEvent {
  id: string | undefined;
  event: string | undefined;
  data: string;
  message: Message | undefined;
  atMs: number;
}

/**
 * One SSE response as it comes in. `comments` and `retryMs` are kept apart from the events, as a client does;
 * `raw` keeps the text for what must pass byte for byte.
 */
export class EventStream {
  readonly events: StreamEvent[] = [];
  readonly comments: string[] = [];
  retryMs: number | undefined;
  raw = '';
  open = true;
  readonly close: () => void;
  readonly #response: IncomingMessage;
  readonly #watchers = new Set<() => void>();

  constructor(response: IncomingMessage, close: () => void, port = 0) {
    this.close = close;
    this.#response = response;
    const parser = this.#parser();
    response.setEncoding('utf8');
    response.on('data', (text: string) => {
      // With a little of what came before, so that a mark in two pieces is one.
      inspect(port, this.raw.slice(-60) + text);
      this.raw += text;
      parser.feed(text);
      this.#changed();
    });
    response.on('close', () => {
      this.open = false;
      this.#changed();
    });
  }

  #parser(): EventSourceParser {
    return createParser({
      onEvent: ({ id, event, data }) => {
        this.events.push({ id, event, data, message: parse(data), atMs: performance.now() });
      },
      onRetry: (ms) => (this.retryMs = ms),
      onComment: (comment) => this.comments.push(comment),
    });
  }

  #changed(): void {
    for (const watcher of [...this.#watchers]) watcher();
  }

  get messages(): Message[] {
    return this.events.map((event) => event.message).filter((message) => message !== undefined);
  }

  named(method: string): Message[] {
    return this.messages.filter((message) => message.method === method);
  }

  get lastEventId(): string | undefined {
    return this.events.findLast((event) => event.id !== undefined)?.id;
  }

  /** Stops reading from the socket, as a client on a dead network does. */
  freeze(): void {
    this.#response.pause();
  }

  thaw(): void {
    this.#response.resume();
  }

  #watch<T>(what: string, look: () => T | undefined, timeoutMs: number): Promise<T> {
    return new Promise((resolve, reject) => {
      const check = (): void => {
        const found = look();
        if (found !== undefined) settle(() => resolve(found));
        else if (!this.open) settle(() => reject(new Error(`the stream ended before: ${what}`)));
      };
      const settle = (act: () => void): void => {
        clearTimeout(timer);
        this.#watchers.delete(check);
        act();
      };
      const timer = setTimeout(
        () => settle(() => reject(new Error(`not on the stream in ${timeoutMs} ms: ${what}`))),
        timeoutMs,
      );
      this.#watchers.add(check);
      check();
    });
  }

  event(
    what: string,
    wanted: (event: StreamEvent) => boolean,
    timeoutMs = 10_000,
  ): Promise<StreamEvent> {
    return this.#watch(what, () => this.events.find(wanted), timeoutMs);
  }

  async message(
    what: string,
    wanted: (message: Message) => boolean,
    timeoutMs = 10_000,
  ): Promise<Message> {
    const event = await this.event(what, ({ message }) => !!message && wanted(message), timeoutMs);
    return event.message!;
  }

  notification(method: string, timeoutMs?: number): Promise<Message> {
    return this.message(method, (message) => message.method === method, timeoutMs);
  }

  /** Resolves when the other side has ended the stream. */
  async ended(timeoutMs = 15_000): Promise<void> {
    const end = this.#watch('the end', () => (this.open ? undefined : true), timeoutMs);
    await end;
  }
}
