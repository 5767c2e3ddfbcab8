/**
 * The seam between the two eras: what a modern client's request needs of an upstream, whichever revision that one
 * speaks. `to-modern.ts` is the path to modern upstreams; a path to legacy ones implements the same interface
 * (design record 004). Nothing but `modern.ts` chooses between them.
 */
import type { Nudge } from '@viaduct/shared/event-bus';
import type { Principal } from '@viaduct/shared/principal';
import type { Injected } from '../../connections/connections.ts';
import type { Upstream } from '../../upstream/upstream.ts';
import type { JsonObject, RequestMessage } from '../message.ts';
import type { Envelope } from './envelope.ts';
import type { Reply } from './reply.ts';
import type { Carried } from './request-state.ts';

/** Who asks, and with what. */
export interface Caller {
  readonly principal: Principal;
  readonly requestId: string;
  /** The client's request as it wrote it: its `_meta` is what upstreams are told about the client. */
  readonly message: RequestMessage;
  readonly envelope: Envelope;
}

/** One request that may go to one upstream: checked, allowed, counted. */
export interface Outgoing extends Caller {
  readonly reply: Reply;
  readonly upstream: Upstream;
  readonly credential: Injected | undefined;
  /** Tool, prompt or URI by the upstream's own name; undefined for methods without one. */
  readonly target: string | undefined;
  /** The request with the upstream's own names and its own `requestState`; the client's bytes where that is all the same. */
  readonly body: string | Buffer;
  /** Headers that the client mirrored from arguments, by lower-case name. */
  readonly paramHeaders: Readonly<Record<string, string>> | undefined;
  /** What the round before left for this one; undefined for a first call. Claimed already. */
  readonly carried: Carried | undefined;
  /** The `requestState` to give the client for the next round. */
  seal(carried: Carried): Promise<string>;
  /** A notification as the client may have it; undefined when it may not (log level, progress, other streams'). */
  notification(text: string, parsed: JsonObject): string | undefined;
  /** The final response as the client gets it: names, `resultType`, cache hints, tools that it may see. */
  complete(text: string, parsed: JsonObject): string;
}

export interface Outcome {
  readonly outcome: 'ok' | 'input_required' | 'rpc_error' | 'upstream_error' | 'cancelled';
  readonly upstreamMs: number;
  /** The upstream provably saw nothing of it. */
  readonly unsent?: boolean;
}

export interface PageRequest extends Caller {
  readonly upstream: Upstream;
  readonly credential: Injected | undefined;
  /** `tools/list`, `prompts/list`, `resources/list` or `resources/templates/list`. */
  readonly method: string;
  readonly cursor: string | undefined;
  readonly timeoutMs: number;
}

/** One page of an upstream's list, with the upstream's own names. */
export interface Page {
  readonly items: readonly { readonly text: string; readonly value: JsonObject }[];
  readonly next: string | undefined;
  readonly ttlMs: number;
}

export interface DescribeRequest extends Caller {
  readonly upstream: Upstream;
  readonly credential: Injected | undefined;
  readonly timeoutMs: number;
}

/** What an upstream says about itself. */
export interface Description {
  readonly capabilities: JsonObject;
  readonly instructions: string | undefined;
}

/** What a subscription asks for (2026-07-28 basic/patterns/subscriptions). */
export interface Filter {
  readonly toolsListChanged: boolean;
  readonly promptsListChanged: boolean;
  readonly resourcesListChanged: boolean;
  readonly resourceSubscriptions: readonly string[];
}

export interface FeedRequest extends Caller {
  readonly upstream: Upstream;
  /** With the upstream's own URIs. */
  readonly filter: Filter;
  /** The credential of the moment, for each attempt to listen anew. */
  credential(): Promise<Injected | undefined>;
  /** One notification of the upstream, as it wrote it. What was not asked for is left out by the receiver. */
  emit(text: string, parsed: JsonObject): void;
  /** Notifications may have been lost, or the upstream was away: whatever was subscribed to may have changed. */
  onGap(): void;
}

/** An upstream's events for one subscription. Reconnects by itself until it is closed. */
export interface Feed {
  /** What the upstream agreed to; all that was asked while it cannot be reached. Never rejects. */
  readonly agreed: Promise<Filter>;
  close(): void;
}

export interface Path {
  /**
   * Sends the request and ends its reply.
   *
   * @throws UpstreamStatus for a 401, before anything of the reply depends on it: the caller asks for a credential
   */
  request(out: Outgoing): Promise<Outcome>;
  /** @throws UpstreamStatus, GatewayError */
  page(request: PageRequest): Promise<Page>;
  /** @throws UpstreamStatus, GatewayError */
  describe(request: DescribeRequest): Promise<Description>;
  feed(request: FeedRequest): Feed;
}

/** A path that keeps calls open between requests, so has to hear what other pods say about them. */
export interface Bridge extends Path {
  nudge(nudge: Nudge): void;
  gap(): void;
  readonly running: number;
  /** Ends the calls of a user whose tokens have been revoked. */
  endUser(userId: string): void;
  stop(): Promise<void>;
}
