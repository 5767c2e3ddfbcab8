/**
 * The bus between pods and workers: a message is appended to its session's log, and the one pod that holds the
 * stream is nudged (invariants 3 and 4). Here is the writing side and a pod's own channel; reading the log and
 * writing to sockets belongs to whoever holds the sockets.
 *
 * A nudge carries no message. Losing one costs latency: readers read on from their last id when the
 * subscription comes back, and at every keep-alive.
 */
import type { Logger } from 'pino';
import type { Metrics } from './metrics.ts';
import type { Redis } from './redis/client.ts';
import { keys, podChannel } from './redis/keys.ts';
import type { Scripts } from './redis/scripts.ts';
import { traced, traceparent } from './tracing.ts';

/** The listening stream of a session; every other stream id is a call's. */
export const LISTENING = 'g';

export interface SessionAddress {
  readonly userId: string;
  readonly sessionId: string;
}

export interface Appended {
  /** Entry id in the log, e.g. `1700000000000-0`. */
  readonly id: string;
  /** `pod|stream`, or '' when nobody holds the stream now. */
  readonly owner: string;
  readonly route: 'local' | 'remote' | 'stored';
}

export interface AppendOptions {
  /** The stream ends with this message. */
  readonly last?: boolean;
  /** Scopes that a replay of this entry asks for again. */
  readonly scopes?: string;
}

export interface EventBus {
  /** Returns undefined when the session is gone. */
  append(
    target: SessionAddress,
    stream: string,
    message: string,
    options?: AppendOptions,
  ): Promise<Appended | undefined>;
}

export interface EventBusDeps {
  readonly scripts: Scripts;
  readonly sessions: { readonly ttlSeconds: number; readonly eventLogMaxLen: number };
  /** '' in a process that holds no streams. */
  readonly podId: string;
  readonly metrics: Pick<Metrics, 'busEvents'>;
}

export function createEventBus({ scripts, sessions, podId, metrics }: EventBusDeps): EventBus {
  return {
    async append(target, stream, message, options = {}) {
      const { userId, sessionId } = target;
      const reply = await scripts.appendEvent(
        [
          keys.session(userId, sessionId),
          keys.log(userId, sessionId),
          keys.streams(userId, sessionId),
        ],
        [
          stream,
          message,
          options.last === true ? '1' : '',
          sessions.eventLogMaxLen,
          sessions.ttlSeconds,
          podId,
          userId,
          sessionId,
          options.scopes ?? '',
          traceparent() ?? '',
        ],
      );
      if (!Array.isArray(reply)) return undefined;
      const [id, owner, route] = reply as [string, string, Appended['route']];
      metrics.busEvents.inc({ kind: stream === LISTENING ? 'listening' : 'call', route });
      return { id, owner, route };
    },
  };
}

/** What arrives on a pod's channel: a verb, the session (or elicitation) it is about, and a detail. */
export interface Nudge {
  readonly kind: string;
  readonly userId: string;
  readonly id: string;
  readonly detail: string;
}

export interface PodChannel {
  /** Resolves once subscribed and visible as alive. */
  start(): Promise<void>;
  stop(): Promise<void>;
}

const HEARTBEAT_SECONDS = 10;
const HEARTBEAT_EVERY_MS = 3_000;

export interface PodChannelDeps {
  readonly redis: Redis;
  readonly subscriber: Redis;
  readonly podId: string;
  readonly log: Logger;
  /** What the heartbeat says beside the time, for the console. */
  describe?(): Record<string, unknown>;
  onNudge(nudge: Nudge): void;
  /** The subscription was away: nudges may be lost, so read everything on. */
  onGap(): void;
}

export function createPodChannel(deps: PodChannelDeps): PodChannel {
  const { redis, subscriber, podId, log } = deps;
  let timer: NodeJS.Timeout | undefined;
  let subscribed = false;

  const beat = async (): Promise<void> => {
    try {
      await redis.set(
        keys.pod(podId),
        JSON.stringify({ at: Date.now(), ...deps.describe?.() }),
        'EX',
        HEARTBEAT_SECONDS,
      );
    } catch (error) {
      // Redis is away; readiness says so, and the next beat tries again.
      log.debug({ err: error }, 'heartbeat failed');
    }
  };

  subscriber.on('message', (_channel: string, text: string) => {
    const [kind = '', userId = '', id = '', detail = '', parent] = text.split('\n');
    try {
      const nudge = { kind, userId, id, detail };
      if (parent === undefined) deps.onNudge(nudge);
      else {
        const name = `bus ${kind}`;
        traced(
          { name, kind: 'consumer', parent, attributes: { 'messaging.system': 'redis' } },
          () => deps.onNudge(nudge),
        );
      }
    } catch (error) {
      log.error({ err: error, nudge: kind }, 'a nudge could not be handled');
    }
  });
  subscriber.on('ready', () => {
    if (!subscribed) return;
    void beat();
    deps.onGap();
  });

  return {
    async start() {
      await subscriber.subscribe(podChannel(podId));
      subscribed = true;
      await beat();
      timer = setInterval(() => void beat(), HEARTBEAT_EVERY_MS);
      timer.unref();
    },
    async stop() {
      clearInterval(timer);
      try {
        await redis.del(keys.pod(podId));
      } catch (error) {
        log.debug({ err: error }, 'heartbeat could not be withdrawn; it expires by itself');
      }
    },
  };
}
