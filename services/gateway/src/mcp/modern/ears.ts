/**
 * What legacy upstreams say on their own, on the listening stream of an implicit session. All pods share that session,
 * and an upstream sends each message on one stream only, so one pod listens for all that want to hear: the first that
 * asks, until it leaves or is found dead. The others get it through the session's log, one nudge each.
 *
 * In memory: who on this very pod wants to hear. Nothing is promised to who was not listening; after a break that may
 * have lost something, listeners are told of a gap.
 */
import type { Logger } from 'pino';
import type { Nudge } from '@viaduct/shared/event-bus';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import { tryParse } from '../../upstream/upstream.ts';
import type { JsonObject } from '../message.ts';
import type { Implicit, ImplicitSessions } from './implicit-sessions.ts';
import { ListeningStream } from './listening-stream.ts';

type Credential = Readonly<Record<string, string>> | undefined;

export interface EarListener {
  event(text: string, parsed: JsonObject): void;
  /** Something may have been missed. */
  gap(): void;
  /** Has to last, whatever becomes of the pod that listens: costs a beat. */
  readonly lasting?: boolean;
}

export interface Joined {
  /** Resolves when the upstream's stream is open, or another pod listens. Never rejects. */
  readonly open: Promise<void>;
  /** @throws UpstreamStatus, GatewayError */
  subscribe(uri: string): Promise<void>;
  leave(): void;
}

export interface EarsDeps {
  readonly redis: Redis;
  readonly scripts: Pick<Scripts, 'joinEar' | 'leaveEar' | 'hear'>;
  readonly sessions: ImplicitSessions;
  readonly podId: string;
  readonly beatMs: number;
  readonly ttlSeconds: number;
  readonly maxLog: number;
  readonly log: Logger;
}

const RETRY_MS = 1_000;
const ASK_TIMEOUT_MS = 5_000;

export class Ears {
  readonly #deps: EarsDeps;
  readonly #ears = new Map<string, Ear>();

  constructor(deps: EarsDeps) {
    this.#deps = deps;
  }

  join(implicit: Implicit, credential: () => Promise<Credential>, listener: EarListener): Joined {
    const name = nameOf(implicit);
    let ear = this.#ears.get(name);
    if (ear === undefined) {
      const made = new Ear(this.#deps, implicit, credential, () => {
        if (this.#ears.get(name) === made) this.#ears.delete(name);
      });
      ear = made;
      this.#ears.set(name, ear);
    }
    return ear.join(listener, credential);
  }

  /** An upstream has said it on a call's stream. */
  heard(implicit: Implicit, text: string, parsed: JsonObject): void {
    this.#ears.get(nameOf(implicit))?.tell(text, parsed);
    announce(this.#deps, implicit, text);
  }

  nudge({ kind, userId, id, detail }: Nudge): void {
    if (kind !== 'ear') return;
    const ear = this.#ears.get(`${userId}:${id}`);
    if (detail === 'listen') ear?.takeOver();
    else ear?.readOn();
  }

  gap(): void {
    for (const ear of this.#ears.values()) ear.rejoin();
  }

  stop(): Promise<unknown> {
    return Promise.all([...this.#ears.values()].map((ear) => ear.close()));
  }
}

const nameOf = ({ session }: Implicit): string => `${session.userId}:${session.sessionId}`;

/** For the other pods; '' says that something may have been missed. */
function announce(deps: EarsDeps, { session }: Implicit, text: string): void {
  const { userId, sessionId } = session;
  deps.scripts
    .hear(
      [keys.ear(userId, sessionId), keys.log(userId, sessionId)],
      [deps.podId, text, deps.maxLog, deps.ttlSeconds, userId, sessionId],
    )
    .catch((error: unknown) => {
      deps.log.warn({ err: error }, 'an event of an upstream did not reach the other pods');
    });
}

class Ear {
  readonly #deps: EarsDeps;
  #credential: () => Promise<Credential>;
  readonly #onClosed: () => void;
  readonly #listeners = new Set<EarListener>();
  readonly #uris = new Map<string, number>();
  #implicit: Implicit;
  #opened: Promise<void> | undefined;
  #open!: () => void;
  #position = '0-0';
  /** Ours, when this pod is the one that listens. */
  #stream: ListeningStream | undefined;
  #retry: NodeJS.Timeout | undefined;
  #beat: NodeJS.Timeout | undefined;
  /** Nobody may have listened for a while. */
  #missed = false;
  #closed = false;
  #reading: Promise<void> = Promise.resolve();

  constructor(
    deps: EarsDeps,
    implicit: Implicit,
    credential: () => Promise<Credential>,
    onClosed: () => void,
  ) {
    this.#deps = deps;
    this.#implicit = implicit;
    this.#credential = credential;
    this.#onClosed = onClosed;
  }

  get #keys(): [string, string] {
    const { userId, sessionId } = this.#implicit.session;
    return [keys.ear(userId, sessionId), keys.log(userId, sessionId)];
  }

  join(listener: EarListener, credential: () => Promise<Credential>): Joined {
    this.#listeners.add(listener);
    // One that lasts knows how to get the credential of the moment.
    if (listener.lasting === true) this.#credential = credential;
    if (this.#opened === undefined) {
      this.#opened = new Promise((resolve) => {
        this.#open = resolve;
      });
      this.#join('').catch((error: unknown) => {
        this.#deps.log.warn({ err: error }, 'an upstream is not listened to yet');
        this.#missed = true;
        this.#retry = setTimeout(() => {
          this.rejoin();
        }, RETRY_MS).unref();
      });
    }
    if (listener.lasting === true) {
      this.#beat ??= setInterval(() => {
        this.rejoin();
      }, this.#deps.beatMs).unref();
    }
    const own = new Set<string>();
    return {
      open: this.#opened,
      subscribe: async (uri) => {
        if (own.has(uri)) return;
        own.add(uri);
        await this.#subscribe(uri);
      },
      leave: () => {
        if (!this.#listeners.delete(listener)) return;
        if (this.#listeners.size === 0) void this.close();
        else for (const uri of own) this.#unsubscribe(uri);
      },
    };
  }

  async #join(dead: string): Promise<string> {
    const { podId, scripts, ttlSeconds } = this.#deps;
    const reply = await scripts.joinEar(this.#keys, [podId, ttlSeconds, dead]);
    const [owner, last] = reply as [string, string];
    if (this.#position === '0-0') this.#position = last;
    if (owner === podId) this.#listen();
    else {
      this.#stopListening();
      this.#open();
    }
    return owner;
  }

  takeOver(): void {
    this.#missed = true;
    this.#listen();
  }

  #listen(): void {
    if (this.#closed || this.#stream !== undefined) return;
    this.#stream = new ListeningStream(
      {
        sessions: this.#deps.sessions,
        log: this.#deps.log,
        credential: () => this.#credential(),
        onOpen: this.#open,
        onNotification: (text, parsed) => {
          this.tell(text, parsed);
          announce(this.#deps, this.#implicit, text);
        },
        onGap: (implicit) => {
          this.#implicit = implicit;
          announce(this.#deps, implicit, '');
          this.#onGap();
        },
      },
      this.#implicit,
      this.#missed,
    );
    this.#missed = false;
    this.#stream.open();
  }

  /** Keeps everything alive, reads what nudges may have missed, and takes over from a pod that is dead. */
  rejoin(): void {
    if (this.#closed) return;
    const { podId, redis, sessions, log } = this.#deps;
    const again = async (): Promise<void> => {
      await sessions.touch(this.#implicit);
      const owner = await this.#join('');
      if (owner !== podId && (await redis.exists(keys.pod(owner))) === 0) {
        this.#missed = true;
        await this.#join(owner);
      }
      this.readOn();
    };
    again().catch((error: unknown) => {
      log.debug({ err: error }, 'a beat of an implicit session failed');
    });
  }

  tell(text: string, parsed: JsonObject): void {
    for (const listener of [...this.#listeners]) listener.event(text, parsed);
  }

  #onGap(): void {
    for (const uri of this.#uris.keys()) {
      this.#ask('resources/subscribe', uri).catch((error: unknown) => {
        this.#deps.log.info({ err: error }, 'a resource could not be subscribed to again');
      });
    }
    for (const listener of [...this.#listeners]) listener.gap();
  }

  /** What other pods have heard since. One reader at a time. */
  readOn(): void {
    this.#reading = this.#reading
      .then(async () => {
        const [, log] = this.#keys;
        const found = await this.#deps.redis.xrange(log, `(${this.#position}`, '+');
        for (const [id, [, text = '', , pod]] of found) {
          this.#position = id;
          if (pod === this.#deps.podId || this.#closed) continue;
          const parsed = text === '' ? undefined : tryParse(text);
          if (parsed === undefined) this.#onGap();
          else this.tell(text, parsed);
        }
      })
      .catch((error: unknown) => {
        this.#deps.log.debug({ err: error }, 'events of other pods are read at the next beat');
      });
  }

  async #ask(method: string, uri: string): Promise<void> {
    const { parsed } = await this.#deps.sessions.ask(this.#implicit, await this.#credential(), {
      method,
      params: `{"uri":${JSON.stringify(uri)}}`,
      timeoutMs: ASK_TIMEOUT_MS,
    });
    if (parsed.error !== undefined) throw new Error(`${method}: ${parsed.error.message}`);
  }

  /** How many pods' listeners want this resource; the last one takes the subscription back. */
  async #count(uri: string, by: 1 | -1): Promise<number> {
    const { redis, ttlSeconds } = this.#deps;
    const [ear] = this.#keys;
    const [count] = await Promise.all([
      redis.hincrby(ear, `u:${uri}`, by),
      redis.expire(ear, ttlSeconds),
    ]);
    if (count <= 0) await redis.hdel(ear, `u:${uri}`);
    return count;
  }

  async #subscribe(uri: string): Promise<void> {
    const before = this.#uris.get(uri) ?? 0;
    this.#uris.set(uri, before + 1);
    if (before > 0) return;
    await this.#count(uri, 1);
    await this.#ask('resources/subscribe', uri);
  }

  #unsubscribe(uri: string): void {
    const left = (this.#uris.get(uri) ?? 1) - 1;
    if (left > 0) this.#uris.set(uri, left);
    else {
      this.#uris.delete(uri);
      void this.#giveUp(uri);
    }
  }

  async #giveUp(uri: string): Promise<void> {
    try {
      if ((await this.#count(uri, -1)) <= 0) await this.#ask('resources/unsubscribe', uri);
    } catch (error) {
      this.#deps.log.debug({ err: error }, 'a subscription is left to the end of its session');
    }
  }

  #stopListening(): void {
    this.#stream?.close();
    this.#stream = undefined;
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    clearInterval(this.#beat);
    clearTimeout(this.#retry);
    this.#onClosed();
    this.#stopListening();
    this.#open();
    const { podId, scripts, log } = this.#deps;
    const { userId, sessionId } = this.#implicit.session;
    const [ear] = this.#keys;
    await Promise.all([...this.#uris.keys()].map((uri) => this.#giveUp(uri)));
    try {
      await scripts.leaveEar([ear], [podId, userId, sessionId]);
    } catch (error) {
      log.debug({ err: error }, 'another pod notices at its beat that this one has left');
    }
  }
}
