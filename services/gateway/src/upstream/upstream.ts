/**
 * The servers behind the gateway: one pool of connections each, and the calls that go over it. Speaks the wire,
 * not an SDK: bytes in, bytes out (invariant 5).
 */
import { Pool } from 'undici';
import type { Config, UpstreamConfig } from '@viaduct/shared/config';
import type { Egress } from '@viaduct/shared/egress';
import { isTracing } from '@viaduct/shared/tracing';
import { Circuit } from './circuit.ts';
import { tracedPost } from './trace.ts';
import { exchange, type Exchange } from './wire.ts';

export { addedScopes } from './step-up.ts';
export { createEras, isModernError, noBridge, type Era, type Eras } from './era.ts';
export {
  garbage,
  refusesCredential,
  request,
  responseFault,
  resultText,
  tryParse,
  unreadable,
  UpstreamStatus,
  upstreamTimeout,
  type RpcReply,
} from './replies.ts';
export { neverSent, type Exchange, type WireReply } from './wire.ts';

const CONNECT_TIMEOUT_MS = 3_000;
const KEEP_ALIVE_MS = 30_000;

/** How one leg is addressed: the upstream's session and the revision negotiated on this leg. */
export interface Leg {
  readonly sessionId?: string | undefined;
  readonly protocolVersion?: string | undefined;
  /** The user's credential, if any. Replaces a static header of the same name. */
  readonly credential?: Readonly<Record<string, string>> | undefined;
  /** Mirrored or forwarded headers of this one request, e.g. `Mcp-Param-*`. */
  readonly extra?: Readonly<Record<string, string>> | undefined;
}

/** How to address an upstream session; '' is a server that works without. */
export function legOf(
  state: { readonly sid: string | undefined; readonly protocolVersion: string | undefined },
  credential: Leg['credential'],
): Leg {
  return {
    sessionId: state.sid === '' ? undefined : state.sid,
    protocolVersion: state.protocolVersion,
    credential,
  };
}

export interface Upstream {
  readonly config: UpstreamConfig;
  readonly name: string;
  /** It could not be reached lately: calls fail at once. */
  readonly unreachable: boolean;
  /** Since when it cannot be reached, for an operator; undefined while it can. */
  readonly lostAtMs: number | undefined;
  post(body: string | Buffer, leg: Leg): Exchange;
  /** The standalone listening stream, or the rest of a call's stream after `lastEventId`. */
  listen(leg: Leg, lastEventId?: string): Exchange;
  /** DELETE of the upstream's session. */
  end(leg: Leg): Exchange;
}

export interface Upstreams {
  get(name: string): Upstream | undefined;
  readonly all: readonly Upstream[];
  close(): Promise<void>;
}

export function createUpstreams({ config, egress }: { config: Config; egress: Egress }): Upstreams {
  const pools: Pool[] = [];
  const byName = new Map<string, Upstream>();
  for (const upstream of config.upstreams) {
    const url = new URL(upstream.url);
    const pool = new Pool(url.origin, {
      // Every open stream holds a connection, so the number of sockets is not capped here.
      connections: null,
      pipelining: 1,
      allowH2: false,
      keepAliveTimeout: KEEP_ALIVE_MS,
      connect: upstream.allowPrivateNetwork ? { timeout: CONNECT_TIMEOUT_MS } : egress.connect,
    });
    pools.push(pool);
    byName.set(upstream.name, createUpstream(upstream, url, pool));
  }
  return {
    get: (name) => byName.get(name),
    all: [...byName.values()],
    async close() {
      await Promise.all(pools.map((pool) => pool.destroy()));
    },
  };
}

function createUpstream(config: UpstreamConfig, url: URL, pool: Pool): Upstream {
  const path = url.pathname + url.search;
  const circuit = new Circuit();
  const fixed: Record<string, string> = { 'user-agent': 'viaduct' };
  for (const [name, value] of Object.entries(config.headers)) fixed[name.toLowerCase()] = value;

  // Built anew for each leg: nothing of the client's own request headers is copied (cases H4).
  const headersFor = (leg: Leg, more: Record<string, string>): Record<string, string> => {
    const headers: Record<string, string> = { ...fixed, ...more };
    if (leg.sessionId !== undefined) headers['mcp-session-id'] = leg.sessionId;
    if (leg.protocolVersion !== undefined) headers['mcp-protocol-version'] = leg.protocolVersion;
    for (const name in leg.extra) headers[name] = leg.extra[name]!;
    for (const name in leg.credential) headers[name.toLowerCase()] = leg.credential[name]!;
    return headers;
  };

  const post = (body: string | Buffer, leg: Leg, more?: Record<string, string>): Exchange =>
    exchange(pool, config.name, circuit, {
      method: 'POST',
      path,
      headers: headersFor(leg, {
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
        ...more,
      }),
      body,
    });

  return {
    config,
    name: config.name,
    get unreachable() {
      return circuit.open;
    },
    get lostAtMs() {
      return circuit.lostAtMs;
    },
    post: (body, leg) =>
      isTracing()
        ? tracedPost(config.name, body, (withTrace, headers) => post(withTrace, leg, headers))
        : post(body, leg),
    listen: (leg, lastEventId) =>
      exchange(pool, config.name, circuit, {
        method: 'GET',
        path,
        headers: headersFor(leg, {
          accept: 'text/event-stream',
          ...(lastEventId !== undefined && { 'last-event-id': lastEventId }),
        }),
      }),
    end: (leg) =>
      exchange(pool, config.name, circuit, {
        method: 'DELETE',
        path,
        headers: headersFor(leg, {}),
      }),
  };
}
