/**
 * The listening stream of one implicit session at its legacy upstream: opened, and opened again with growing pauses,
 * until it is closed. Says when something may have been missed; keeps nothing.
 */
import type { Logger } from 'pino';
import { legOf, tryParse, type Exchange, type WireReply } from '../../upstream/upstream.ts';
import { isResponse } from '../call.ts';
import { errorText, type JsonObject } from '../message.ts';
import type { Implicit, ImplicitSessions } from './implicit-sessions.ts';

type Credential = Readonly<Record<string, string>> | undefined;

export interface ListeningDeps {
  readonly sessions: Pick<ImplicitSessions, 'reopen'>;
  readonly log: Logger;
  credential(): Promise<Credential>;
  /** Open, or this upstream has none. */
  onOpen(): void;
  onNotification(text: string, parsed: JsonObject): void;
  /** It is open again, and something may have been said meanwhile; the session may be another one. */
  onGap(implicit: Implicit): void;
}

const FIRST_RETRY_MS = 250;
const MAX_RETRY_MS = 5_000;

export class ListeningStream {
  readonly #deps: ListeningDeps;
  #implicit: Implicit;
  #exchange: Exchange | undefined;
  #timer: NodeJS.Timeout | undefined;
  #retryMs = FIRST_RETRY_MS;
  #lastEventId: string | undefined;
  #missed: boolean;
  #closed = false;

  /** @param missed nobody has listened for a while */
  constructor(deps: ListeningDeps, implicit: Implicit, missed: boolean) {
    this.#deps = deps;
    this.#implicit = implicit;
    this.#missed = missed;
  }

  open(): void {
    this.#attempt().catch((error: unknown) => {
      const { upstream } = this.#implicit;
      this.#deps.log.debug({ err: error, upstream: upstream.name }, 'an upstream does not listen');
      this.#missed = true;
      this.#again();
    });
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#exchange?.abort();
  }

  /** Also after an await, in which anything may have happened. */
  #isClosed(): boolean {
    return this.#closed;
  }

  #again(): void {
    if (this.#closed) return;
    this.#timer = setTimeout(() => {
      this.open();
    }, this.#retryMs);
    this.#timer.unref();
    this.#retryMs = Math.min(this.#retryMs * 2, MAX_RETRY_MS);
  }

  async #attempt(): Promise<void> {
    const credential = await this.#deps.credential();
    if (this.#isClosed()) return;
    const { upstream, leg } = this.#implicit;
    const sent = upstream.listen(legOf(leg, credential), this.#lastEventId);
    this.#exchange = sent;
    const reply = await sent.reply;
    if (this.#isClosed()) {
      sent.abort();
      return;
    }
    if (reply.kind === 'events' && reply.status === 200) {
      this.#follow(reply, credential);
      return;
    }
    sent.abort();
    if (reply.status === 405) {
      // This upstream says nothing on its own (2025-11-25 transports, Listening for Messages 2).
      this.#deps.onOpen();
    } else if (reply.status === 404 && leg.sid) {
      this.#lastEventId = undefined;
      this.#missed = true;
      this.#implicit = await this.#deps.sessions.reopen(this.#implicit, credential);
      this.#again();
    } else throw new Error(`GET was answered ${reply.status}`);
  }

  #follow(reply: WireReply & { kind: 'events' }, credential: Credential): void {
    this.#retryMs = FIRST_RETRY_MS;
    this.#deps.onOpen();
    if (this.#missed) this.#deps.onGap(this.#implicit);
    this.#missed = false;
    reply.feed.subscribe({
      event: ({ id, data }) => {
        if (id !== undefined) this.#lastEventId = id;
        if (data !== '' && !this.#closed) this.#onMessage(data, credential);
      },
      retry: (milliseconds) => {
        this.#retryMs = Math.min(milliseconds, MAX_RETRY_MS);
      },
      end: () => {
        // With an event id the upstream sends again what was missed.
        if (this.#lastEventId === undefined) this.#missed = true;
        this.#again();
      },
    });
  }

  #onMessage(text: string, credential: Credential): void {
    const parsed = tryParse(text);
    if (parsed === undefined || isResponse(parsed)) return;
    if (parsed['id'] === undefined) {
      this.#deps.onNotification(text, parsed);
      return;
    }
    const id = JSON.stringify(parsed['id']);
    const { upstream, leg } = this.#implicit;
    const answer =
      parsed['method'] === 'ping'
        ? `{"jsonrpc":"2.0","id":${id},"result":{}}`
        : errorText(id, {
            code: -32601,
            message: 'The client can be asked on the stream of a call only.',
          });
    const sent = upstream.post(answer, legOf(leg, credential));
    sent.reply.then(
      (reply) => {
        if (reply.kind === 'events') sent.abort();
      },
      (error: unknown) => {
        this.#deps.log.debug({ err: error, upstream: upstream.name }, 'an answer did not arrive');
      },
    );
  }
}
