/**
 * Calls that this pod has under way, so that a cancellation finds the right one wherever it arrives.
 *
 * In memory: only calls that this very process carries. A call that has become a stream is also recorded in its
 * session with the pod that holds it, and that pod is told; a quick one is over before anyone could cancel it
 * elsewhere.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from 'pino';
import type { Nudge, SessionAddress } from '@viaduct/shared/event-bus';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys, podChannel } from '@viaduct/shared/redis/keys';
import type { Call } from './call.ts';
import { nameOf } from './streams.ts';

export interface CallStream {
  /** Pod that carries the call. */
  readonly holder: string;
  /** Request id of the client, JSON text as it was spelled. */
  readonly request: string;
  readonly upstream: string;
  readonly scopes: string;
}

/** A cancellation is with its upstream within half a second. */
const LOOK_AGAIN_MS = 75;

/** How long the last words of calls may take to be stored. */
const FAREWELL_MS = 1_000;

/** However an id was spelled, it names one call: a cancellation may spell it otherwise. */
export const callKey = (id: string | number): string => JSON.stringify(id);

export function parseCallStream(text: string): CallStream {
  return JSON.parse(text) as CallStream;
}

export class Calls {
  readonly #running = new Map<string, Map<string, Call>>();
  readonly #redis: Redis;
  readonly #podId: string;
  readonly #streamAfterMs: number;
  readonly #log: Logger;

  constructor(deps: { redis: Redis; podId: string; streamAfterMs: number; log: Logger }) {
    this.#redis = deps.redis;
    this.#podId = deps.podId;
    this.#streamAfterMs = deps.streamAfterMs;
    this.#log = deps.log;
  }

  get size(): number {
    let n = 0;
    for (const calls of this.#running.values()) n += calls.size;
    return n;
  }

  add(session: SessionAddress, idText: string, call: Call): void {
    const name = nameOf(session);
    let calls = this.#running.get(name);
    if (calls === undefined) this.#running.set(name, (calls = new Map<string, Call>()));
    calls.set(idText, call);
  }

  remove(session: SessionAddress, idText: string, call: Call): void {
    const calls = this.#running.get(nameOf(session));
    if (calls?.get(idText) !== call) return;
    calls.delete(idText);
    if (calls.size === 0) this.#running.delete(nameOf(session));
  }

  /**
   * `notifications/cancelled` of a client. Unknown ids are ignored (basic/utilities/cancellation).
   * @param requireScopes is asked with the scopes that the call needed, before it is touched; may throw
   */
  async cancel(
    session: SessionAddress,
    idText: string,
    reason: string | undefined,
    requireScopes: (scopes: string) => void,
  ): Promise<void> {
    const call = this.#running.get(nameOf(session))?.get(idText);
    if (call !== undefined) {
      requireScopes(call.scopes);
      call.cancel(reason);
      return;
    }
    const stream = await this.#streamElsewhere(session, idText);
    if (stream === undefined) {
      void this.#cancelLater(session, idText, reason, requireScopes);
      return;
    }
    requireScopes(stream.scopes);
    await this.#tell(session, stream.holder, idText, reason);
  }

  /** A call that began a moment ago is recorded once it has become a stream. The client has its 202 by then. */
  async #cancelLater(
    session: SessionAddress,
    idText: string,
    reason: string | undefined,
    requireScopes: (scopes: string) => void,
  ): Promise<void> {
    try {
      const until = Date.now() + this.#streamAfterMs + LOOK_AGAIN_MS;
      while (Date.now() <= until) {
        await delay(LOOK_AGAIN_MS, undefined, { ref: false });
        const stream = await this.#streamElsewhere(session, idText);
        if (stream === undefined) continue;
        requireScopes(stream.scopes);
        await this.#tell(session, stream.holder, idText, reason);
        return;
      }
    } catch (error) {
      this.#log.warn({ err: error }, 'a cancellation could not be passed on');
    }
  }

  async #tell(
    { userId, sessionId }: SessionAddress,
    holder: string,
    idText: string,
    reason: string | undefined,
  ): Promise<void> {
    const detail = JSON.stringify({ id: idText, reason });
    await this.#redis.publish(podChannel(holder), `cancel\n${userId}\n${sessionId}\n${detail}`);
  }

  async #streamElsewhere(
    { userId, sessionId }: SessionAddress,
    idText: string,
  ): Promise<CallStream | undefined> {
    const streams = await this.#redis.hgetall(keys.streams(userId, sessionId));
    for (const [field, value] of Object.entries(streams)) {
      if (field.endsWith(':o')) continue;
      const stream = parseCallStream(value);
      const id = callKey(JSON.parse(stream.request) as string | number);
      if (id === idText && stream.holder !== this.#podId) return stream;
    }
    return undefined;
  }

  nudge({ kind, userId, id, detail }: Nudge): void {
    const calls = this.#running.get(`${userId}:${id}`);
    if (calls === undefined) return;
    if (kind === 'cancel') {
      const { id: idText, reason } = JSON.parse(detail) as { id: string; reason?: string };
      calls.get(idText)?.cancel(reason);
    } else if (kind === 'ended') {
      for (const call of [...calls.values()]) call.sessionEnded();
    }
  }

  /** What is still running when the drain's time is over ends with an explanation, not with silence. */
  async abandonAll(): Promise<void> {
    const all = [...this.#running.values()].flatMap((calls) => [...calls.values()]);
    for (const call of all) call.lost();
    const stored = Promise.all(all.map((call) => call.settled));
    await Promise.race([stored, delay(FAREWELL_MS, undefined, { ref: false })]);
  }
}
