/**
 * The events of one modern upstream for one subscription: a `subscriptions/listen` of our own there, opened again
 * with growing pauses whenever it ends, for as long as the client's lasts.
 */
import { randomBytes } from 'node:crypto';
import type { Logger } from 'pino';
import { sliceOf } from '@viaduct/shared/json-text';
import {
  garbage,
  tryParse,
  UpstreamStatus,
  type Exchange,
  type WireReply,
} from '../../upstream/upstream.ts';
import { isResponse } from '../call.ts';
import type { JsonObject } from '../message.ts';
import { metaSlice } from './envelope.ts';
import { both, lenient, NOTHING, writeFilter } from './filter.ts';
import { modernLeg } from './header-values.ts';
import type { Feed, FeedRequest, Filter } from './path.ts';

const METHOD = 'subscriptions/listen';
const ACKNOWLEDGED = 'notifications/subscriptions/acknowledged';
const FIRST_RETRY_MS = 250;
const MAX_RETRY_MS = 30_000;

export function createModernFeed(deps: { readonly log: Logger }, request: FeedRequest): Feed {
  const feed = new ModernFeed(deps.log, request);
  feed.start();
  return feed;
}

class ModernFeed implements Feed {
  readonly agreed: Promise<Filter>;
  readonly #log: Logger;
  readonly #request: FeedRequest;
  readonly #id = `viaduct-listen-${randomBytes(6).toString('hex')}`;
  #agree!: (filter: Filter) => void;
  #exchange: Exchange | undefined;
  #timer: NodeJS.Timeout | undefined;
  #closed = false;
  #retryMs = FIRST_RETRY_MS;
  /** Events may have been lost since the last acknowledgment. */
  #missed = false;

  constructor(log: Logger, request: FeedRequest) {
    this.#log = log;
    this.#request = request;
    this.agreed = new Promise((resolve) => {
      this.#agree = resolve;
    });
  }

  start(): void {
    this.#connect().catch((error: unknown) => {
      this.#broken(error);
    });
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#exchange?.abort();
  }

  async #connect(): Promise<void> {
    const { upstream, filter, message } = this.#request;
    const credential = await this.#request.credential();
    if (this.#closed) return;
    const meta = metaSlice(message);
    const metaText = meta === undefined ? '{}' : sliceOf(message.text, meta);
    const wanted = JSON.stringify(writeFilter(filter));
    this.#exchange = upstream.post(
      `{"jsonrpc":"2.0","id":"${this.#id}","method":"${METHOD}","params":{"notifications":${wanted},"_meta":${metaText}}}`,
      modernLeg(METHOD, undefined, credential?.headers),
    );
    const reply = await this.#exchange.reply;
    if (reply.kind === 'events' && reply.status === 200) {
      this.#follow(reply);
      return;
    }
    this.#exchange.abort();
    const answer = reply.kind === 'body' ? tryParse(reply.body.toString('utf8')) : undefined;
    if ((answer?.['error'] as JsonObject | undefined)?.['code'] === -32601) {
      // This server has nothing to say on its own (server/discover says so too).
      this.#agree(NOTHING);
      return;
    }
    throw reply.status === 200
      ? garbage(upstream.name, `${METHOD} was not answered with a stream`)
      : new UpstreamStatus(upstream.name, reply);
  }

  #follow(reply: WireReply & { kind: 'events' }): void {
    reply.feed.subscribe({
      event: ({ data }) => {
        if (data !== '' && !this.#closed) this.#onEvent(data);
      },
      retry: () => undefined,
      end: (error) => {
        this.#broken(error);
      },
    });
  }

  #onEvent(data: string): void {
    const parsed = tryParse(data);
    if (parsed === undefined || isResponse(parsed)) return; // the end of the stream follows
    if (parsed['method'] !== ACKNOWLEDGED) {
      if (parsed['id'] === undefined) this.#emit(data, parsed);
      return;
    }
    this.#retryMs = FIRST_RETRY_MS;
    const params = parsed['params'] as JsonObject | undefined;
    this.#agree(both(this.#request.filter, lenient(params?.['notifications'])));
    if (this.#missed) this.#request.onGap();
    this.#missed = false;
  }

  #emit(data: string, parsed: JsonObject): void {
    try {
      this.#request.emit(data, parsed);
    } catch (error) {
      // E.g. a member that stands twice: one message is lost, not the subscription.
      const { upstream } = this.#request;
      this.#log.warn({ err: error, upstream: upstream.name }, 'an event could not be passed on');
    }
  }

  /** The upstream is away, refuses, or has ended the stream: the client's goes on. */
  #broken(error: unknown): void {
    if (this.#closed) return;
    const { upstream, filter } = this.#request;
    this.#log.debug(
      { err: error, upstream: upstream.name },
      'an upstream does not listen; again soon',
    );
    this.#missed = true;
    this.#agree(filter);
    this.#timer = setTimeout(() => {
      this.start();
    }, this.#retryMs);
    this.#timer.unref();
    this.#retryMs = Math.min(this.#retryMs * 2, MAX_RETRY_MS);
  }
}
