/**
 * The seam in a call (call.ts) for an upstream of another era than its client's: what goes out, and what an answer
 * means. Streams, log, deadline and cancellation are the call's own, the same for both.
 */
import type { Leg } from '../upstream/upstream.ts';
import type { UpstreamState } from './sessions.ts';

/** What the upstream is sent, once or in several rounds. */
export interface Sending {
  readonly body: string | Buffer;
  readonly id: string | number;
  readonly address: Leg;
}

export interface UpstreamResponse {
  readonly text: string;
  readonly parsed: Record<string, unknown>;
}

/** The client's stream of one call, for what has to be said before the response. */
export interface CallStreamWriter {
  /** The call is a stream from now on. @returns its id; undefined where it cannot be one (a batch) */
  open(): string | undefined;
  send(message: string): void;
}

/**
 * How an upstream without sessions is spoken to for a sessionful client. Such an upstream is told to stop by closing
 * the exchange, its streams cannot be resumed, and it never sends requests.
 */
export interface Dialect {
  /** What to send now: the request, or its repetition. */
  next(): Sending;
  /** A notification of the upstream; undefined when the client may not have it. */
  notification(text: string, parsed: Record<string, unknown>): string | undefined;
  /**
   * A response of the upstream: `again` to send what `next` says, else the response to the client.
   * @throws GatewayError
   */
  response(reply: UpstreamResponse, stream: CallStreamWriter): Promise<'again' | UpstreamResponse>;
  /** What the client has to be told before the call ends in an error: nobody waits for its answers any more. */
  farewell(): readonly string[];
  /** The call is over. */
  end(): void;
}

/** The upstream's side of the session, opened anew, and how to speak there. */
export interface Reopened {
  readonly leg: UpstreamState;
  readonly dialect?: Dialect | undefined;
}
