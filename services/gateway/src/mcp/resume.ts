/**
 * GET with Last-Event-ID of a call's stream: what the client missed of that stream, then the rest of it live,
 * at whatever pod it comes back to (2025-11-25 transports, Resumability and Redelivery).
 */
import type { Logger } from 'pino';
import type { SessionAddress } from '@viaduct/shared/event-bus';
import type { Principal } from '@viaduct/shared/principal';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import type { Answer } from './answer.ts';
import { callLost } from './call.ts';
import { parseCallStream, type CallStream } from './calls.ts';
import { sessionGone } from './legs.ts';
import { errorText } from './message.ts';
import { readLog, toEntry, type Outlet } from './outlet.ts';
import type { Session } from './sessions.ts';
import { newConnectionId, SSE_HEADERS, type Streams } from './streams.ts';

/** How often a pod that follows another pod's call looks whether that pod still lives; void within 15 s. */
const HOLDER_CHECK_MS = 3_000;

export interface ResumeDeps {
  readonly redis: Redis;
  readonly scripts: Scripts;
  readonly streams: Streams;
  readonly podId: string;
  readonly ttlSeconds: number;
  readonly log: Logger;
}

/** The stream that an event id of this session belongs to; undefined for an unknown or foreign id. */
export async function streamOfEvent(
  redis: Redis,
  { userId, sessionId }: SessionAddress,
  event: { stream: string; entryId: string },
): Promise<string | undefined> {
  const rows = await redis.xrange(keys.log(userId, sessionId), event.entryId, event.entryId);
  const row = rows[0];
  if (row === undefined) return undefined;
  const entry = toEntry(row);
  return entry.stream === event.stream ? entry.stream : undefined;
}

export async function resumeCall(
  deps: ResumeDeps,
  input: {
    session: Session;
    principal: Principal;
    answer: Answer;
    stream: string;
    after: string;
    expiresAtMs: number;
    /** Throws insufficient_scope when the token of this request lacks one of them. */
    requireScopes(scopes: string): void;
  },
): Promise<void> {
  const { session, principal, answer, stream, after } = input;
  const { userId, sessionId } = session;
  // What is replayed asks for the scopes that the call needed, before anything moves.
  const missed = (await readLog(deps.redis, session, after)).filter((e) => e.stream === stream);
  for (const entry of missed) input.requireScopes(entry.scopes);
  const connectionId = newConnectionId();
  const reply = await deps.scripts.claimCallStream(
    [keys.session(userId, sessionId), keys.streams(userId, sessionId)],
    [
      session.clientId,
      session.endpoint,
      stream,
      `${deps.podId}|${connectionId}`,
      deps.ttlSeconds,
      Date.now(),
    ],
  );
  if (typeof reply !== 'string') throw sessionGone();
  const running = reply === '' ? undefined : parseCallStream(reply);
  if (running !== undefined) input.requireScopes(running.scopes);
  answer.res.writeHead(200, { ...SSE_HEADERS, ...answer.headers });
  const outlet = deps.streams.openCall(session, principal, answer.res, {
    connectionId,
    stream,
    position: after,
    expiresAtMs: input.expiresAtMs,
  });
  if (outlet === undefined) return;
  outlet.replays = true;
  outlet.writeRaw(': resumed\n\n');
  if (running === undefined && !missed.some((e) => e.last)) {
    // Ended between the two reads, or the client has seen its end already.
    const rest = (await readLog(deps.redis, session, after)).filter((e) => e.stream === stream);
    if (!rest.some((e) => e.last)) {
      outlet.end();
      return;
    }
  }
  outlet.readOn();
  if (running !== undefined) watchHolder(deps, session, stream, running, outlet);
}

/** A dead pod cannot finish its calls: whoever follows one says so, once (design, section 7). */
function watchHolder(
  deps: ResumeDeps,
  session: Session,
  stream: string,
  call: CallStream,
  outlet: Outlet,
): void {
  const { userId, sessionId } = session;
  const check = async (): Promise<void> => {
    if (outlet.closed) {
      clearInterval(timer);
      return;
    }
    if ((await deps.redis.exists(keys.pod(call.holder))) === 1) return;
    clearInterval(timer);
    // The one who removes the record writes the end; the owner field stays for the delivery.
    if ((await deps.redis.hdel(keys.streams(userId, sessionId), stream)) !== 1) return;
    const lost = callLost();
    const text = errorText(call.request, {
      code: lost.rpcCode,
      message: lost.message,
      data: lost.data,
    });
    deps.log.warn({ sessionId, holder: call.holder, upstream: call.upstream }, 'a call is lost');
    await deps.streams.send(session, stream, text, { last: true, scopes: call.scopes });
  };
  const run = (): void => {
    check().catch((error: unknown) => {
      deps.log.debug({ err: error, sessionId }, 'the holder of a call could not be checked');
    });
  };
  const timer = setInterval(run, HOLDER_CHECK_MS);
  timer.unref();
  if (call.holder !== deps.podId) run();
}
