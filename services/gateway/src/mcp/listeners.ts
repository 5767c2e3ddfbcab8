/**
 * The listening streams to upstreams. They live with the client's listening stream: the pod that holds the one
 * holds the others, and both move together, so that an upstream has exactly one listener per session and what
 * it says on its own reaches exactly one stream.
 */
import type { Logger } from 'pino';
import { LISTENING, type SessionAddress } from '@viaduct/shared/event-bus';
import type { Principal } from '@viaduct/shared/principal';
import {
  legOf,
  tryParse,
  UpstreamStatus,
  type Exchange,
  type Leg,
  type Upstream,
  type WireReply,
} from '../upstream/upstream.ts';
import type { Asks } from './asks.ts';
import type { ModernListener, ModernListenerInput } from './legacy-to-modern/listener.ts';
import type { Legs } from './legs.ts';
import { LISTS_CHANGED } from './message.ts';
import type { Session } from './sessions.ts';
import { nameOf, type Streams } from './streams.ts';

const FIRST_RETRY_MS = 250;
/** An upstream that is back is noticed within this. */
const MAX_RETRY_MS = 5_000;

export interface ListenersDeps {
  readonly legs: Legs;
  readonly asks: Asks;
  readonly streams: () => Streams;
  readonly log: Logger;
  /** Those behind the endpoint that this principal's scopes let it hear. */
  upstreamsOf(endpoint: string, principal: Principal): readonly Upstream[];
  credential(principal: Principal, upstream: Upstream): Promise<Record<string, string> | undefined>;
  /** What a notification becomes on its way to the client; undefined drops it. */
  toClient(
    session: Session,
    upstream: string,
    text: string,
    parsed: Record<string, unknown>,
  ): string | undefined;
  /** How an upstream without sessions is listened to. */
  modern(input: ModernListenerInput): ModernListener;
}

export class Listeners {
  readonly #deps: ListenersDeps;
  readonly #open = new Map<string, Listener[]>();

  constructor(deps: ListenersDeps) {
    this.#deps = deps;
  }

  open(session: Session, principal: Principal): void {
    if (this.#open.has(nameOf(session))) return;
    this.#open.set(
      nameOf(session),
      this.#deps.upstreamsOf(session.endpoint, principal).map((upstream) => {
        const listener = new Listener(this.#deps, session, principal, upstream);
        listener.start();
        return listener;
      }),
    );
  }

  /** What the session wants to hear of this upstream has changed. Resolves when it is heard. */
  async refresh(session: SessionAddress, upstream: string): Promise<void> {
    const all = this.#open.get(nameOf(session)) ?? [];
    await all.find((listener) => listener.name === upstream)?.refresh();
  }

  close(session: SessionAddress): void {
    for (const listener of this.#open.get(nameOf(session)) ?? []) listener.stop();
    this.#open.delete(nameOf(session));
  }

  stop(): void {
    for (const listeners of this.#open.values()) for (const listener of listeners) listener.stop();
    this.#open.clear();
  }
}

class Listener {
  readonly #deps: ListenersDeps;
  readonly #session: Session;
  readonly #principal: Principal;
  readonly #upstream: Upstream;
  #exchange: Exchange | undefined;
  #modern: ModernListener | undefined;
  #stopped = false;
  #timer: NodeJS.Timeout | undefined;
  #retryMs = FIRST_RETRY_MS;
  #lastEventId: string | undefined;
  #staleSid: string | undefined;
  #chain: Promise<void> = Promise.resolve();
  #away = false;

  constructor(deps: ListenersDeps, session: Session, principal: Principal, upstream: Upstream) {
    this.#deps = deps;
    this.#session = session;
    this.#principal = principal;
    this.#upstream = upstream;
    // Whatever was listed so far was listed without an upstream that had not joined.
    this.#away = session.upstreams.find((u) => u.name === upstream.name)?.sid === undefined;
  }

  get name(): string {
    return this.#upstream.name;
  }

  async refresh(): Promise<void> {
    await this.#modern?.refresh();
  }

  start(): void {
    this.#connect().catch((error: unknown) => {
      this.#deps.log.debug(
        { err: error, upstream: this.#upstream.name },
        'an upstream does not listen',
      );
      this.#away = true;
      // Without the user's credential it will not open; the next listening stream tries again.
      const locked = error instanceof UpstreamStatus && error.upstreamStatus === 401;
      if (locked && this.#upstream.config.connection !== undefined) return;
      this.#again();
    });
  }

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
    this.#exchange?.abort();
    this.#modern?.close();
  }

  #again(): void {
    if (this.#stopped) return;
    this.#timer = setTimeout(() => {
      this.start();
    }, this.#retryMs);
    this.#timer.unref();
    this.#retryMs = Math.min(this.#retryMs * 2, MAX_RETRY_MS);
  }

  async #connect(): Promise<void> {
    const credential = await this.#deps.credential(this.#principal, this.#upstream);
    const leg = await this.#deps.legs.ensure(
      this.#session,
      this.#upstream,
      credential,
      this.#staleSid,
    );
    this.#staleSid = undefined;
    if (this.#stopped) return;
    if (leg.era === 'modern') {
      this.#announceReturn();
      this.#modern = this.#deps.modern({
        ...{ session: this.#session, principal: this.#principal, upstream: this.#upstream, leg },
        deliver: (text, parsed) => {
          this.#enqueue(() =>
            Promise.resolve(this.#deps.toClient(this.#session, this.#upstream.name, text, parsed)),
          );
        },
      });
      await this.#modern.refresh();
      return;
    }
    const address = legOf(leg, credential);
    this.#exchange = this.#upstream.listen(address, this.#lastEventId);
    const reply = await this.#exchange.reply;
    if (reply.status === 404 && leg.sid) this.#staleSid = leg.sid;
    // 405: this upstream says nothing on its own (2025-11-25 transports, Listening for Messages 2).
    if (reply.status === 405) {
      this.#announceReturn();
      return;
    }
    if (reply.kind !== 'events' || reply.status !== 200) {
      this.#exchange.abort();
      this.#away = true;
      this.#again();
      return;
    }
    this.#follow(reply, address);
  }

  /** What was left out of lists while this upstream was away can be listed now. */
  #announceReturn(): void {
    if (!this.#away) return;
    this.#away = false;
    if (this.#session.endpoint !== '') return;
    for (const text of LISTS_CHANGED) this.#enqueue(() => Promise.resolve(text));
  }

  #follow(reply: WireReply & { kind: 'events' }, address: Leg): void {
    this.#retryMs = FIRST_RETRY_MS;
    this.#announceReturn();
    reply.feed.subscribe({
      event: ({ id, data }) => {
        if (id !== undefined) this.#lastEventId = id;
        if (data !== '' && !this.#stopped) this.#onMessage(data, address);
      },
      retry: (milliseconds) => {
        this.#retryMs = Math.min(milliseconds, MAX_RETRY_MS);
      },
      end: () => {
        this.#again();
      },
    });
  }

  #onMessage(text: string, address: Leg): void {
    const parsed = tryParse(text);
    if (typeof parsed?.['method'] !== 'string') return;
    this.#enqueue(async () =>
      parsed['method'] === 'notifications/cancelled'
        ? this.#deps.asks.withdraw(this.#session, this.#upstream.name, text)
        : parsed['id'] === undefined
          ? this.#deps.toClient(this.#session, this.#upstream.name, text, parsed)
          : this.#deps.asks.register(
              {
                session: this.#session,
                upstream: this.#upstream,
                address,
                stream: LISTENING,
              },
              text,
              parsed,
            ),
    );
  }

  /** One after the other: order in the log is the order in which the upstream said it. */
  #enqueue(message: () => Promise<string | undefined>): void {
    this.#chain = this.#chain
      .then(async () => {
        const out = await message();
        if (out !== undefined) await this.#deps.streams().send(this.#session, LISTENING, out);
      })
      .catch((error: unknown) => {
        this.#deps.log.error(
          { err: error, upstream: this.#upstream.name },
          'a message of an upstream could not be stored',
        );
      });
  }
}
