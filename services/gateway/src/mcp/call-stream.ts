/**
 * A call's answer as a stream: every message is appended to the session's log first and then written to the
 * client's socket, one after the other, so that order in the log is order on the wire. It goes on without a socket;
 * whoever resumes it, on whatever pod, reads the log.
 */
import { randomBytes } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from 'pino';
import { isStoreError } from '@viaduct/shared/errors';
import type { Principal } from '@viaduct/shared/principal';
import { keys } from '@viaduct/shared/redis/keys';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import type { Answer } from './answer.ts';
import { eventId, type Outlet } from './outlet.ts';
import type { Session } from './sessions.ts';
import { newConnectionId, SSE_HEADERS, type Streams } from './streams.ts';

/** Messages that may wait for the log before their source is asked to pause. */
const MAX_WAITING = 64;
/** How long an append is tried again while Redis is away. */
const STORE_PATIENCE_MS = 15_000;
/** How long a full socket holds up its source; after that the log takes the messages all the same. */
const READER_PATIENCE_MS = 5_000;

export interface CallStreamDeps {
  readonly scripts: Scripts;
  readonly streams: Streams;
  readonly podId: string;
  readonly sessions: { readonly ttlSeconds: number; readonly eventLogMaxLen: number };
  readonly log: Logger;
}

export interface CallStreamInput {
  readonly session: Session;
  readonly principal: Principal;
  readonly answer: Answer;
  /** Id of the request, JSON text. */
  readonly request: string;
  readonly upstream: string;
  /** Scopes that the call needed, space separated: resuming asks for them again. */
  readonly scopes: string;
  /** Epoch milliseconds at which the client's socket ends because its token does. */
  readonly expiresAtMs: number;
  /** The client knows priming events (2025-11-25). */
  readonly primes: boolean;
  /** The session is gone, or the store has been away for too long: nobody can ask for the answer any more. */
  onGone(): void;
  /** Too much is waiting; and no longer. */
  onPressure(high: boolean): void;
}

export class CallStream {
  /** Its name in the session's log and in event ids. */
  readonly id = randomBytes(6).toString('hex');
  readonly #deps: CallStreamDeps;
  readonly #in: CallStreamInput;
  #outlet: Outlet | undefined;
  #chain: Promise<void> = Promise.resolve();
  #waiting = 0;

  constructor(deps: CallStreamDeps, input: CallStreamInput) {
    this.#deps = deps;
    this.#in = input;
    this.run(() => this.#open());
  }

  /** Does something after everything before it has been stored. */
  run(step: () => Promise<void>): void {
    this.#waiting++;
    if (this.#waiting === MAX_WAITING) this.#in.onPressure(true);
    this.#chain = this.#chain
      .then(step)
      .catch((error: unknown) => {
        this.#deps.log.error(
          { err: error, requestId: this.#in.answer.requestId },
          'a stream lost the store; its client can come back for what was stored',
        );
        this.#outlet?.destroy();
        this.#gone();
      })
      .finally(() => {
        this.#waiting--;
        if (this.#waiting === MAX_WAITING / 2 - 1) this.#in.onPressure(false);
      });
  }

  append(text: string, last = false): void {
    this.run(() => this.appendNow(text, last));
  }

  /** Only inside a step of `run`. */
  async appendNow(text: string, last = false): Promise<void> {
    await this.#untilWritable();
    const { session, scopes } = this.#in;
    const appended = await patiently(() =>
      this.#deps.streams.send(session, this.id, text, { last, scopes }),
    );
    if (appended === undefined) this.#gone();
  }

  /** Text of the SSE format that is no message, for the socket that is open now. */
  raw(text: string): void {
    this.run(() => {
      this.#outlet?.writeRaw(text);
      return Promise.resolve();
    });
  }

  /** Ends the socket, not the stream: its client comes back for the rest. */
  hangUp(): void {
    this.run(() => {
      this.#outlet?.end();
      return Promise.resolve();
    });
  }

  async #open(): Promise<void> {
    const { session, principal, answer, request, upstream, scopes, primes } = this.#in;
    const { userId, sessionId } = session;
    const { podId, sessions } = this.#deps;
    const connectionId = newConnectionId();
    const reply = await patiently(() =>
      this.#deps.scripts.openCallStream(
        [
          keys.session(userId, sessionId),
          keys.log(userId, sessionId),
          keys.streams(userId, sessionId),
        ],
        [
          this.id,
          `${podId}|${connectionId}`,
          JSON.stringify({ holder: podId, request, upstream, scopes }),
          primes ? '1' : '',
          sessions.eventLogMaxLen,
          sessions.ttlSeconds,
          scopes,
        ],
      ),
    );
    if (typeof reply !== 'string') {
      this.#gone();
      return;
    }
    if (answer.gone || answer.answered) return;
    answer.res.writeHead(200, { ...SSE_HEADERS, ...answer.headers });
    this.#outlet = this.#deps.streams.openCall(session, principal, answer.res, {
      connectionId,
      stream: this.id,
      position: reply === '' ? '0-0' : reply,
      expiresAtMs: this.#in.expiresAtMs,
    });
    this.#outlet?.writeRaw(
      reply === '' ? ': open\n\n' : `id: ${eventId(this.id, reply)}\ndata:\n\n`,
    );
  }

  #gone(): void {
    this.#outlet?.end();
    if (!this.#in.answer.answered) this.#in.answer.res.destroy();
    this.#in.onGone();
  }

  /** A slow reader slows its own upstream, not this process's memory. */
  async #untilWritable(): Promise<void> {
    const outlet = this.#outlet;
    if (outlet === undefined || !outlet.blocked || outlet.closed) return;
    await Promise.race([
      new Promise<void>((resolve) => {
        outlet.onDrain = resolve;
      }),
      delay(READER_PATIENCE_MS, undefined, { ref: false }),
    ]);
  }
}

async function patiently<T>(operation: () => Promise<T>): Promise<T> {
  const until = Date.now() + STORE_PATIENCE_MS;
  for (;;) {
    try {
      return await operation();
    } catch (error) {
      if (!isStoreError(error) || Date.now() > until) throw error;
      await delay(200, undefined, { ref: false });
    }
  }
}
