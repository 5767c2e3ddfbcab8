/**
 * `subscriptions/listen` (2026-07-28 basic/patterns/subscriptions): one open response that carries the events of
 * every upstream behind the endpoint.
 *
 * Promises: the acknowledgment is the first message; every message carries the id of the request, with its JSON
 * type; nothing that was not asked for; keep-alive comments; an end with a result when this pod drains or the token
 * is over. An upstream that goes away and comes back is told to the client as a change of everything it had asked
 * for there. Nothing is stored: a client that reconnects subscribes anew.
 */
import type { Socket } from 'node:net';
import { applyEdits } from '@viaduct/shared/json-text';
import { fail } from '@viaduct/shared/errors';
import type { Logger } from 'pino';
import type { Eras, Upstream } from '../../upstream/upstream.ts';
import type { Credentials } from '../credentials.ts';
import { within } from '../budget.ts';
import type { JsonObject } from '../message.ts';
import { qualifyUri, splitUri } from '../names.ts';
import { qualifyMessage } from '../qualify.ts';
import { setPath } from './edits.ts';
import { META } from './envelope.ts';
import {
  admits,
  either,
  everythingIn,
  isNothing,
  NOTHING,
  readFilter,
  writeFilter,
} from './filter.ts';
import { createLateFeed } from './late-feed.ts';
import type { Caller, Feed, Filter, Path } from './path.ts';
import type { Reply } from './reply.ts';

/** How long the acknowledgment waits for what the upstreams agree to. */
const ACK_BUDGET_MS = 500;
/** Longest delay that a timer takes. */
const MAX_TIMER_MS = 2 ** 31 - 1;

export interface SubscriptionsDeps {
  readonly eras: Pick<Eras, 'of'>;
  readonly paths: Readonly<Record<'modern' | 'legacy', Path>>;
  readonly credentials: Pick<Credentials, 'peek'>;
  readonly log: Logger;
  /** A stream ends this long after its token. */
  readonly graceMs: number;
}

export class Subscriptions {
  readonly #deps: SubscriptionsDeps;
  readonly #open = new Set<Subscription>();
  readonly #ids = new WeakMap<Socket, Set<string>>();
  #draining = false;

  constructor(deps: SubscriptionsDeps) {
    this.#deps = deps;
  }

  /**
   * The id of a request must not be that of another one that its sender still waits for (basic/index, Requests). On
   * HTTP the sender is known by its connection only.
   *
   * @throws GatewayError invalid_request
   */
  checkId(socket: Socket, idText: string): void {
    if (this.#ids.get(socket)?.has(idText) !== true) return;
    throw fail('invalid_request', 'A subscription with this id is open on this connection.');
  }

  /** @throws GatewayError invalid_params */
  listen(
    caller: Caller,
    reply: Reply,
    upstreams: readonly Upstream[],
    many: boolean,
  ): Promise<void> {
    const filter = readFilter(caller.message.params?.['notifications']);
    const { socket } = reply.answer.req;
    const { idText } = caller.message;
    const ids = this.#ids.get(socket) ?? new Set<string>();
    this.#ids.set(socket, ids.add(idText));
    const subscription = new Subscription(this.#deps, caller, reply, filter, many, () => {
      ids.delete(idText);
      this.#open.delete(subscription);
    });
    this.#open.add(subscription);
    return subscription.start(upstreams).then(() => {
      if (this.#draining) subscription.end();
    });
  }

  get size(): number {
    return this.#open.size;
  }

  endUser(userId: string): void {
    for (const subscription of [...this.#open]) {
      if (subscription.userId === userId) subscription.end();
    }
  }

  /** Ends all of them in good order, so that their clients come back to another pod. */
  drain(): void {
    this.#draining = true;
    for (const subscription of [...this.#open]) subscription.end();
  }
}

class Subscription {
  readonly #deps: SubscriptionsDeps;
  readonly #caller: Caller;
  readonly #reply: Reply;
  readonly #filter: Filter;
  readonly #many: boolean;
  readonly #onEnd: () => void;
  readonly #feeds: Feed[] = [];
  /** What came before the acknowledgment waits for it. */
  #early: string[] | undefined = [];
  #timer: NodeJS.Timeout | undefined;
  #ended = false;

  constructor(
    deps: SubscriptionsDeps,
    caller: Caller,
    reply: Reply,
    filter: Filter,
    many: boolean,
    onEnd: () => void,
  ) {
    this.#deps = deps;
    this.#caller = caller;
    this.#reply = reply;
    this.#filter = filter;
    this.#many = many;
    this.#onEnd = onEnd;
  }

  /** Resolves with the acknowledgment on its way. */
  async start(upstreams: readonly Upstream[]): Promise<void> {
    this.#reply.onGone(() => {
      this.#close();
    });
    if (this.#reply.gone) return;
    const agreed = await Promise.all(upstreams.map((upstream) => this.#join(upstream)));
    if (this.#ended) return;
    this.#write(
      JSON.stringify({
        jsonrpc: '2.0',
        method: 'notifications/subscriptions/acknowledged',
        params: { notifications: writeFilter(agreed.reduce(either, NOTHING)) },
      }),
    );
    for (const text of this.#early ?? []) this.#write(text);
    this.#early = undefined;
    this.#endWithToken();
  }

  /** What of the filter one upstream can have, with its own URIs. */
  #share({ name }: Upstream): Filter {
    if (!this.#many) return this.#filter;
    const resourceSubscriptions = this.#filter.resourceSubscriptions.flatMap((uri) => {
      const split = splitUri(uri);
      return split?.upstream === name ? [split.uri] : [];
    });
    return { ...this.#filter, resourceSubscriptions };
  }

  async #join(upstream: Upstream): Promise<Filter> {
    const filter = this.#share(upstream);
    if (isNothing(filter)) return NOTHING;
    const feed = this.#feedOf(upstream, filter);
    this.#feeds.push(feed);
    let agreed: Filter;
    try {
      agreed = await within(feed.agreed, ACK_BUDGET_MS);
    } catch {
      agreed = filter; // It is away or slow; what it has to say comes when it is back.
    }
    if (!this.#many) return agreed;
    return {
      ...agreed,
      resourceSubscriptions: agreed.resourceSubscriptions.map((uri) =>
        qualifyUri(upstream.name, uri),
      ),
    };
  }

  /** The feed of the upstream's era, chosen as soon as that is known. */
  #feedOf(upstream: Upstream, filter: Filter): Feed {
    const { eras, paths, credentials } = this.#deps;
    const caller = this.#caller;
    const credential = () => credentials.peek(caller.principal, upstream, caller.requestId);
    const request = {
      ...caller,
      upstream,
      filter,
      credential,
      emit: (text: string, parsed: JsonObject) => {
        this.#onEvent(upstream, filter, text, parsed);
      },
      onGap: () => {
        this.#onGap(upstream, filter);
      },
    };
    return createLateFeed(request, this.#deps.log, async () => {
      const injected = await credential();
      return paths[await eras.of(upstream, 'modern', injected?.headers)].feed(request);
    });
  }

  #onEvent(upstream: Upstream, filter: Filter, text: string, parsed: JsonObject): void {
    const { method, params } = parsed;
    if (!admits(filter, method, params)) return;
    this.#send(this.#many ? qualifyMessage(text, String(method), upstream.name) : text);
  }

  #onGap(upstream: Upstream, filter: Filter): void {
    for (const { method, uri } of everythingIn(filter)) {
      const own = uri === undefined || !this.#many ? uri : qualifyUri(upstream.name, uri);
      this.#send(
        JSON.stringify({
          jsonrpc: '2.0',
          method,
          ...(own !== undefined && { params: { uri: own } }),
        }),
      );
    }
  }

  #send(text: string): void {
    if (this.#early === undefined) this.#write(text);
    else this.#early.push(text);
  }

  /** One message, with the id of the subscription as the client wrote it. */
  #write(text: string): void {
    if (this.#ended) return;
    if (this.#reply.overflowing) {
      this.#reply.cut();
      return;
    }
    const { idText } = this.#caller.message;
    const path = ['params', '_meta', META.subscriptionId] as const;
    this.#reply.notify(applyEdits(text, setPath(text, 0, path, idText)));
  }

  get userId(): string {
    return this.#caller.principal.userId;
  }

  #endWithToken(): void {
    const left = this.#caller.principal.expiresAtMs + this.#deps.graceMs - Date.now();
    if (!Number.isFinite(left)) return;
    this.#timer = setTimeout(
      () => {
        if (left > MAX_TIMER_MS) this.#endWithToken();
        else this.end();
      },
      Math.min(Math.max(0, left), MAX_TIMER_MS),
    );
    this.#timer.unref();
  }

  /** In good order: the result says that nothing was lost (Graceful Closure). */
  end(): void {
    if (this.#ended) return;
    const { idText } = this.#caller.message;
    this.#close();
    this.#reply.finish(
      `{"jsonrpc":"2.0","id":${idText},"result":{"resultType":"complete","_meta":{"${META.subscriptionId}":${idText}}}}`,
    );
  }

  #close(): void {
    if (this.#ended) return;
    this.#ended = true;
    clearTimeout(this.#timer);
    for (const feed of this.#feeds) feed.close();
    this.#onEnd();
  }
}
