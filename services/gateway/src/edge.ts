/**
 * What every request has to pass before anybody looks at it: the right Host, no foreign Origin, an id.
 *
 * Promises: a request with a Host or an Origin that is not ours executes nothing (MCP transports, Security
 * Warning: DNS rebinding; case H2); every answer, errors included, carries `X-Request-Id` and, for an allowed
 * origin, CORS headers (case O3). The client's address is read past exactly the configured proxies (case R1).
 * Does not authenticate, and knows no route.
 *
 * For pages: a page with `Referrer-Policy: no-referrer` makes browsers send `Origin: null` with its own forms
 * (Fetch, "append a request Origin header"), and that is refused here. Use `same-origin`.
 */
import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { clientAddress } from '@viaduct/shared/address';
import type { Audit } from '@viaduct/shared/audit';
import { isLoopbackHost, normalizeOrigin, type Config } from '@viaduct/shared/config';
import { fail, type GatewayError } from '@viaduct/shared/errors';

/** One request, seen at the door. */
export interface Visit {
  readonly requestId: string;
  /** For every answer to this request. */
  readonly headers: Readonly<Record<string, string>>;
  /** Set when nothing of this request may be executed: answer with this. */
  readonly refused?: GatewayError;
  /** Set for a CORS preflight: answer 204 with these and look no further (it carries no credentials). */
  readonly preflight?: Readonly<Record<string, string>>;
}

/** `public`: documents that any page may read, and that change nothing (resource metadata). */
export type Audience = 'own' | 'public';

/** The part of an Express middleware that this needs; it also fits a plain handler. */
export type Middleware = (
  req: IncomingMessage,
  res: ServerResponse,
  next: (error?: unknown) => void,
) => void;

export interface Edge {
  visit(req: IncomingMessage, audience?: Audience): Visit;
  /** Sets the headers, answers preflights, passes refusals to the error handler. */
  middleware(audience?: Audience): Middleware;
  /** Address of the client, past the configured number of proxies; IPv4 in its own form. */
  addressOf(req: IncomingMessage): string;
}

const REQUEST_ID = /^[A-Za-z0-9._-]{8,64}$/;
const METHODS = 'GET, POST, DELETE, OPTIONS';
const REQUEST_HEADERS =
  'Authorization, Content-Type, Accept, Last-Event-ID, Mcp-Session-Id, MCP-Protocol-Version, Mcp-Method, Mcp-Name';
const EXPOSED_HEADERS =
  'Mcp-Session-Id, WWW-Authenticate, MCP-Protocol-Version, Retry-After, X-Request-Id, RateLimit, RateLimit-Policy';
/** Chrome keeps a preflight two hours at most; ten minutes let a changed configuration through. */
const PREFLIGHT_SECONDS = '600';

/** These answers may be cached, so what differs by origin says so, also when no origin came. */
const PUBLIC_CORS = {
  'Access-Control-Allow-Origin': '*',
  'Access-Control-Expose-Headers': EXPOSED_HEADERS,
  Vary: 'Origin',
};

export function createEdge(deps: { readonly config: Config; readonly audit: Audit }): Edge {
  const { config, audit } = deps;
  const publicUrl = new URL(config.publicUrl);
  const defaultPort = publicUrl.protocol === 'https:' ? '443' : '80';
  const hosts = new Set([publicUrl.host]);
  if (publicUrl.port === '') hosts.add(`${publicUrl.host}:${defaultPort}`);

  const allowed = new Map<string, Readonly<Record<string, string>>>();
  for (const origin of [publicUrl.origin, ...config.allowedOrigins]) {
    allowed.set(origin, {
      'Access-Control-Allow-Origin': origin,
      'Access-Control-Expose-Headers': EXPOSED_HEADERS,
      Vary: 'Origin',
    });
  }

  function hostIsOurs(host: string): boolean {
    if (hosts.has(host) || hosts.has(host.toLowerCase())) return true;
    if (!config.development) return false;
    const match = /^(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::\d{1,5})?$/i.exec(host);
    return match?.[1] !== undefined && isLoopbackHost(match[1]);
  }

  function refuse(
    type: 'host.refused' | 'origin.refused',
    reason: string,
    req: IncomingMessage,
    requestId: string,
  ): GatewayError {
    audit.record({ type, reason, requestId, address: addressOf(req) });
    return fail(
      'forbidden',
      type === 'host.refused'
        ? 'This host name is not served here.'
        : 'Requests from this origin are not allowed.',
    );
  }

  /** CORS headers of an allowed origin, or why it is not. */
  function judge(origin: string, count: number): Readonly<Record<string, string>> | string {
    if (count > 1) return 'several origins';
    const known = allowed.get(origin);
    if (known !== undefined) return known;
    if (origin === 'null') return 'null origin';
    const normal = normalizeOrigin(origin);
    return (normal === undefined ? undefined : allowed.get(normal)) ?? 'unknown origin';
  }

  function visit(req: IncomingMessage, audience: Audience = 'own'): Visit {
    const given = req.headers['x-request-id'];
    const requestId = typeof given === 'string' && REQUEST_ID.test(given) ? given : randomUUID();

    const host = req.headers.host;
    const hostFault =
      host === undefined
        ? 'no host'
        : !hostIsOurs(host)
          ? 'unknown host'
          : countHeader(req, 'host') > 1
            ? 'several hosts'
            : undefined;
    if (hostFault !== undefined) {
      const refused = refuse('host.refused', hostFault, req, requestId);
      return { requestId, headers: { 'X-Request-Id': requestId }, refused };
    }

    const origin = req.headers.origin;
    if (origin === undefined) {
      const headers = { 'X-Request-Id': requestId };
      return { requestId, headers: audience === 'own' ? headers : { ...headers, ...PUBLIC_CORS } };
    }

    // Node keeps the first of several Origin headers, so the raw ones are counted.
    const verdict = judge(origin, countHeader(req, 'origin'));
    const cors = typeof verdict === 'string' && audience === 'public' ? PUBLIC_CORS : verdict;
    if (typeof cors === 'string') {
      const refused = refuse('origin.refused', cors, req, requestId);
      return { requestId, headers: { 'X-Request-Id': requestId, Vary: 'Origin' }, refused };
    }
    const headers = { 'X-Request-Id': requestId, ...cors };
    if (req.method !== 'OPTIONS') return { requestId, headers };
    return { requestId, headers, preflight: { ...headers, ...preflightHeaders(req) } };
  }

  function addressOf(req: IncomingMessage): string {
    return clientAddress(
      req.socket.remoteAddress,
      req.headers['x-forwarded-for'],
      config.trustProxy,
    );
  }

  return {
    visit,
    addressOf,
    middleware: (audience) => (req, res, next) => {
      const { headers, preflight, refused } = visit(req, audience);
      for (const [name, value] of Object.entries(preflight ?? headers)) res.setHeader(name, value);
      if (refused !== undefined) next(refused);
      else if (preflight !== undefined) res.writeHead(204).end();
      else next();
    },
  };
}

function preflightHeaders(req: IncomingMessage): Record<string, string> {
  // A modern client may mirror any argument of a tool into a header of its own (2026-07-28, Streamable HTTP).
  const wanted = (req.headers['access-control-request-headers'] ?? '').split(',', 64);
  const params = wanted
    .map((name) => name.trim())
    .filter((name) => /^mcp-param-[a-z0-9!#$%&'*+.^_`|~-]{1,128}$/i.test(name));
  return {
    'Access-Control-Allow-Methods': METHODS,
    'Access-Control-Allow-Headers': [REQUEST_HEADERS, ...params].join(', '),
    'Access-Control-Max-Age': PREFLIGHT_SECONDS,
    'Content-Length': '0',
  };
}

/** How often a header stands in the request. `name` in lower case. */
export function countHeader(req: IncomingMessage, name: string): number {
  const { rawHeaders } = req;
  let count = 0;
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const raw = rawHeaders[at];
    // The length decides almost always; lower case costs an allocation.
    if (raw?.length === name.length && raw.toLowerCase() === name) count++;
  }
  return count;
}
