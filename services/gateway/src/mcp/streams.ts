/**
 * The SSE responses that this pod holds, and how a message gets to the one it is for.
 *
 * Sockets live here and nowhere else; everything that must survive them is in the session's log. A pod is told
 * of new entries by nudges on its own channel; it reads the log from where it is. What a lost nudge misses, the
 * next beat finds.
 */
import { randomBytes } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Logger } from 'pino';
import type { Config } from '@viaduct/shared/config';
import {
  LISTENING,
  type Appended,
  type AppendOptions,
  type EventBus,
  type Nudge,
  type SessionAddress,
} from '@viaduct/shared/event-bus';
import { isStoreError } from '@viaduct/shared/errors';
import type { Metrics } from '@viaduct/shared/metrics';
import type { Principal } from '@viaduct/shared/principal';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import { Outlet, type OutletDeps } from './outlet.ts';
import { UPSTREAM_GRACE_SECONDS, type Session } from './sessions.ts';

/** How long a client should wait before it comes back to another pod, milliseconds. */
export const RETRY_MS = 500;

/** All that this pod holds of one session. */
interface Held {
  readonly session: Session;
  principal: Principal;
  readonly listeners: Map<string, Outlet>;
  readonly calls: Map<string, Outlet>;
  /** The listening stream of the session is one of ours. */
  listening: boolean;
}

export interface StreamEvents {
  /** This pod now holds the session's listening stream: hold its upstreams' too. */
  onListening(session: Session, principal: Principal): void;
  /** … and no longer. */
  onSilent(session: SessionAddress): void;
  /** The session ended, on whatever pod. */
  onEnded(session: SessionAddress): void;
}

export interface StreamsDeps {
  readonly redis: Redis;
  readonly scripts: Scripts;
  readonly bus: EventBus;
  readonly config: Pick<Config, 'sessions' | 'auth'>;
  readonly metrics: Metrics;
  readonly log: Logger;
  readonly podId: string;
  readonly events: StreamEvents;
}

export const nameOf = ({ userId, sessionId }: SessionAddress): string => `${userId}:${sessionId}`;

/** Headers of every SSE answer: no proxy may buffer, compress or keep it (cases E1). */
export const SSE_HEADERS = {
  'Content-Type': 'text/event-stream',
  'Cache-Control': 'no-cache, no-transform',
  'X-Accel-Buffering': 'no',
} as const;

export class Streams {
  readonly #deps: StreamsDeps;
  readonly #held = new Map<string, Held>();
  readonly #beatMs: number;
  #sweep: NodeJS.Timeout | undefined;
  #draining = false;

  constructor(deps: StreamsDeps) {
    this.#deps = deps;
    this.#outletDeps = this.#makeOutletDeps(deps);
    const { keepAliveSeconds, ttlSeconds } = deps.config.sessions;
    this.#beatMs = Math.min(keepAliveSeconds, ttlSeconds / 3) * 1000;
  }

  /** Sessions of which this pod holds a stream. */
  get sessions(): number {
    return this.#held.size;
  }

  start(): void {
    this.#deps.metrics.onScrape(() => {
      this.#deps.metrics.sessionsActive.set(this.sessions);
    });
    this.#sweep = setInterval(
      () => {
        this.#onSweep();
      },
      Math.min(1000, this.#beatMs / 2),
    );
    this.#sweep.unref();
  }

  /** Appends a message and, when the stream is held here, writes it. Undefined when the session is gone. */
  async send(
    session: SessionAddress,
    stream: string,
    message: string,
    options?: AppendOptions,
  ): Promise<Appended | undefined> {
    const appended = await this.#deps.bus.append(session, stream, message, options);
    if (appended?.route === 'local') {
      const outlet = this.#outlet(session, stream, appended.owner);
      if (stream === LISTENING) outlet?.readOn();
      else {
        outlet?.push({
          id: appended.id,
          stream,
          message,
          last: options?.last === true,
          scopes: options?.scopes ?? '',
        });
      }
    }
    return appended;
  }

  #outlet(session: SessionAddress, stream: string, owner: string): Outlet | undefined {
    const held = this.#held.get(nameOf(session));
    if (held === undefined) return undefined;
    const connectionId = owner.slice(owner.indexOf('|') + 1);
    return stream === LISTENING ? held.listeners.get(connectionId) : held.calls.get(connectionId);
  }

  /**
   * Opens a listening stream. The newest takes over at once; messages that nobody was there for come first.
   * Returns undefined when the session is gone.
   */
  async listen(
    session: Session,
    principal: Principal,
    req: IncomingMessage,
    res: ServerResponse,
    options: { headers: Record<string, string>; after: string | undefined; expiresAtMs: number },
  ): Promise<Outlet | undefined> {
    const connectionId = newConnectionId();
    const owner = `${this.#deps.podId}|${connectionId}`;
    const { userId, sessionId } = session;
    const reply = await this.#deps.scripts.claimListener(
      [keys.session(userId, sessionId), keys.listeners(userId, sessionId)],
      [
        session.clientId,
        session.endpoint,
        owner,
        Date.now(),
        this.#deps.config.sessions.ttlSeconds,
        userId,
        sessionId,
      ],
    );
    if (!Array.isArray(reply)) return undefined;
    const [cursor = '', previous = ''] = reply as string[];
    res.writeHead(200, { ...SSE_HEADERS, ...options.headers });
    const outlet = this.#open(session, principal, res, {
      connectionId,
      stream: LISTENING,
      position: options.after ?? cursor,
      expiresAtMs: options.expiresAtMs,
    });
    if (outlet === undefined) return undefined;
    // A first byte, so that the client (and every proxy between) sees the stream open.
    outlet.writeRaw(': open\n\n');
    req.socket.setNoDelay(true);
    const held = this.#hold(session, principal);
    // Another of our own streams had it until now.
    for (const other of held.listeners.values()) if (other !== outlet) other.active = false;
    if (previous !== '' && !previous.startsWith(`${this.#deps.podId}|`)) {
      this.#deps.log.debug({ sessionId, previous }, 'listening stream taken over');
    }
    this.#becomeListening(held);
    if (options.after !== undefined) outlet.replays = true;
    outlet.readOn();
    return outlet;
  }

  /** An outlet for one call's stream, held here. The caller has recorded `owner` in the session. */
  openCall(
    session: Session,
    principal: Principal,
    res: ServerResponse,
    options: { connectionId: string; stream: string; position: string; expiresAtMs: number },
  ): Outlet | undefined {
    res.socket?.setNoDelay(true);
    return this.#open(session, principal, res, options);
  }

  #open(
    session: Session,
    principal: Principal,
    res: ServerResponse,
    options: { connectionId: string; stream: string; position: string; expiresAtMs: number },
  ): Outlet | undefined {
    if (res.destroyed) {
      if (options.stream === LISTENING) this.#release(session, options.connectionId);
      return undefined;
    }
    const held = this.#hold(session, principal);
    const outlet = new Outlet({ session, res, ...options }, this.#outletDeps);
    outlet.beatAtMs = Date.now() + this.#beatMs;
    (options.stream === LISTENING ? held.listeners : held.calls).set(options.connectionId, outlet);
    this.#deps.metrics.streamsOpen.inc({ era: 'legacy' });
    if (this.#draining) outlet.end(RETRY_MS);
    return outlet;
  }

  #hold(session: Session, principal: Principal): Held {
    const name = nameOf(session);
    let held = this.#held.get(name);
    if (held === undefined) {
      held = { session, principal, listeners: new Map(), calls: new Map(), listening: false };
      this.#held.set(name, held);
    }
    held.principal = principal;
    return held;
  }

  readonly #outletDeps: OutletDeps;

  #makeOutletDeps({ redis, metrics, log }: StreamsDeps): OutletDeps {
    return {
      redis,
      metrics,
      onWritten: (outlet, id) => {
        if (outlet.stream === LISTENING) this.#advance(outlet, id);
      },
      onClosed: (outlet) => {
        this.#onClosed(outlet);
      },
      onError: (outlet, error) => {
        log.warn(
          { err: error, sessionId: outlet.session.sessionId },
          'a stream could not be read on; it is tried again',
        );
      },
    };
  }

  /** Many entries in one burst cost one write of the cursor. */
  readonly #cursors = new Map<Outlet, string>();

  #advance(outlet: Outlet, id: string): void {
    if (this.#cursors.size === 0) setImmediate(() => this.#flushCursors());
    this.#cursors.set(outlet, id);
  }

  #flushCursors(): void {
    const batch = [...this.#cursors];
    this.#cursors.clear();
    for (const [outlet, id] of batch) {
      const { userId, sessionId } = outlet.session;
      this.#deps.scripts
        .advanceCursor(
          [keys.session(userId, sessionId)],
          [`${this.#deps.podId}|${outlet.connectionId}`, id],
        )
        .catch((error: unknown) => {
          // The client may see these events again after a reconnect without Last-Event-ID; none is lost.
          this.#deps.log.debug({ err: error }, 'the delivery cursor could not be written');
        });
    }
  }

  #onClosed(outlet: Outlet): void {
    this.#deps.metrics.streamsOpen.dec({ era: 'legacy' });
    const held = this.#held.get(nameOf(outlet.session));
    if (held === undefined) return;
    if (outlet.stream === LISTENING) {
      held.listeners.delete(outlet.connectionId);
      this.#release(outlet.session, outlet.connectionId);
      if (outlet.active) this.#becomeSilent(held);
    } else {
      held.calls.delete(outlet.connectionId);
    }
    this.#drop(held);
  }

  #release({ userId, sessionId }: SessionAddress, connectionId: string): void {
    this.#deps.scripts
      .releaseListener(
        [keys.session(userId, sessionId), keys.listeners(userId, sessionId)],
        [
          `${this.#deps.podId}|${connectionId}`,
          this.#deps.config.sessions.ttlSeconds,
          userId,
          sessionId,
        ],
      )
      .catch((error: unknown) => {
        // The next GET takes over from a stream that is gone just as well.
        this.#deps.log.debug({ err: error, sessionId }, 'a listening stream could not be released');
      });
  }

  #drop(held: Held): void {
    if (held.listeners.size > 0 || held.calls.size > 0) return;
    this.#held.delete(nameOf(held.session));
  }

  #becomeListening(held: Held): void {
    if (held.listening) return;
    held.listening = true;
    this.#deps.events.onListening(held.session, held.principal);
  }

  #becomeSilent(held: Held): void {
    if (!held.listening) return;
    held.listening = false;
    this.#deps.events.onSilent(held.session);
  }

  nudge({ kind, userId, id, detail }: Nudge): void {
    const held = this.#held.get(`${userId}:${id}`);
    switch (kind) {
      case 'event':
        if (detail === LISTENING) this.#active(held)?.readOn();
        else
          for (const outlet of held?.calls.values() ?? [])
            if (outlet.stream === detail) outlet.readOn();
        return;
      case 'moved':
        if (held === undefined) return;
        for (const outlet of held.listeners.values()) outlet.active = false;
        this.#becomeSilent(held);
        return;
      case 'inherited':
        if (held !== undefined) void this.#inherit(held, detail);
        return;
      case 'ended':
        if (held !== undefined) this.#closeAll(held);
        this.#deps.events.onEnded({ userId, sessionId: id });
        return;
      default:
    }
  }

  #active(held: Held | undefined): Outlet | undefined {
    for (const outlet of held?.listeners.values() ?? []) if (outlet.active) return outlet;
    return undefined;
  }

  /** The newer stream closed; this one goes on where that one stopped. */
  async #inherit(held: Held, connectionId: string): Promise<void> {
    const outlet = held.listeners.get(connectionId);
    if (outlet === undefined) {
      this.#release(held.session, connectionId);
      return;
    }
    const { userId, sessionId } = held.session;
    try {
      const cursor = await this.#deps.redis.hget(keys.session(userId, sessionId), 'cursor');
      outlet.rewind(cursor ?? '');
    } catch (error) {
      if (!isStoreError(error)) throw error;
      this.#deps.log.debug(
        { err: error, sessionId },
        'cursor unknown; the stream goes on from its own',
      );
    }
    outlet.active = true;
    this.#becomeListening(held);
    outlet.readOn();
  }

  /** The subscription was away for a while: whatever was nudged then is in the logs. */
  gap(): void {
    for (const held of this.#held.values()) {
      for (const outlet of held.listeners.values()) outlet.beatAtMs = 0;
      for (const outlet of held.calls.values()) outlet.readOn();
    }
  }

  #onSweep(): void {
    const now = Date.now();
    for (const held of this.#held.values()) {
      let due = false;
      for (const outlets of [held.listeners, held.calls]) {
        for (const outlet of outlets.values()) {
          if (now >= outlet.expiresAtMs) outlet.end(RETRY_MS);
          else if (now >= outlet.beatAtMs) {
            outlet.beatAtMs = now + this.#beatMs;
            due = true;
            if (!outlet.beat()) outlet.destroy();
          }
        }
      }
      if (due) void this.#beatSession(held);
    }
  }

  async #beatSession(held: Held): Promise<void> {
    const { userId, sessionId } = held.session;
    const { ttlSeconds } = this.#deps.config.sessions;
    try {
      const reply = await this.#deps.scripts.beatSession(
        [
          keys.session(userId, sessionId),
          keys.log(userId, sessionId),
          keys.streams(userId, sessionId),
          keys.pending(userId, sessionId),
          keys.listeners(userId, sessionId),
          ...held.session.upstreams.map((u) => keys.upstream(userId, sessionId, u.name)),
        ],
        [ttlSeconds, ttlSeconds + UPSTREAM_GRACE_SECONDS],
      );
      if (!Array.isArray(reply)) {
        this.#closeAll(held);
        return;
      }
      const [owner = '', last = ''] = reply as string[];
      for (const outlet of held.listeners.values()) {
        outlet.active = owner === `${this.#deps.podId}|${outlet.connectionId}`;
        if (outlet.active && last !== '' && last !== outlet.position) outlet.readOn();
      }
      if (this.#active(held) === undefined) this.#becomeSilent(held);
      else this.#becomeListening(held);
      for (const outlet of held.calls.values()) if (last !== outlet.position) outlet.readOn();
    } catch (error) {
      this.#deps.log.debug({ err: error, sessionId }, 'a session could not be touched');
    }
  }

  #closeAll(held: Held): void {
    this.#becomeSilent(held);
    for (const outlets of [held.listeners, held.calls]) {
      for (const outlet of [...outlets.values()]) outlet.end();
    }
  }

  /** Ends every stream so that its client comes back to another pod. */
  drain(): void {
    this.#draining = true;
    for (const held of [...this.#held.values()]) {
      for (const outlets of [held.listeners, held.calls]) {
        for (const outlet of [...outlets.values()]) outlet.end(RETRY_MS);
      }
    }
  }

  /** Ends every stream of a user whose tokens have been revoked. */
  endUser(userId: string): void {
    for (const held of [...this.#held.values()]) {
      if (held.session.userId === userId) this.#closeAll(held);
    }
  }

  stop(): void {
    clearInterval(this.#sweep);
    this.drain();
  }
}

export const newConnectionId = (): string => randomBytes(9).toString('base64url');
