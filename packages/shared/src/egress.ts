/**
 * Where outgoing HTTP may go.
 *
 * Two dispatchers. `trusted` is for URLs that the operator wrote (private addresses are his to choose) and
 * what lies on the same origin. `guarded` is for every URL that somebody else's word led to: it resolves a name
 * once, refuses unless *every* address is public, and connects to what it checked, so that a second answer of
 * the DNS changes nothing. Redirects are never followed by either; a redirect would be somebody's word again.
 *
 * Non-duty: which origins are trusted is the caller's knowledge (`createFetch`).
 */
import { lookup as dnsLookup, type LookupAddress } from 'node:dns';
import { isIP, type LookupFunction } from 'node:net';
import ipaddr from 'ipaddr.js';
import { Agent, buildConnector, ProxyAgent, request, type Dispatcher } from 'undici';
import { isLoopbackHost } from './config/urls.ts';
import { beginSpan, traceparent } from './tracing.ts';

const CONNECT_TIMEOUT_MS = 5_000;
const HEADERS_TIMEOUT_MS = 10_000;

/** Why a URL or an address was refused; never retried, never the third party's fault in the network sense. */
export class EgressRefused extends Error {
  readonly code = 'EGRESS_REFUSED';
  constructor(message: string) {
    super(message);
    this.name = 'EgressRefused';
  }
}

/** Global unicast; everything else of IPv6 is link-local, unique local, mapped, translated, reserved … */
const IPV6_GLOBAL = ipaddr.IPv6.parseCIDR('2000::/3');

/**
 * Is this the address of a host on the public internet? Loopback, private, link-local (cloud metadata),
 * carrier-grade NAT, multicast, documentation, IPv4-mapped and -translated (`::ffff:`, `64:ff9b::`, 6to4,
 * Teredo) and reserved ranges are not (IANA special-purpose registries, RFC 6890).
 */
export function isPublicAddress(address: string): boolean {
  const bare = address.replace(/^\[|\]$/g, '').replace(/%.*$/, '');
  if (!ipaddr.isValid(bare)) return false;
  const parsed = ipaddr.parse(bare);
  if (parsed.range() !== 'unicast') return false;
  return parsed.kind() === 'ipv4' || (parsed as ipaddr.IPv6).match(IPV6_GLOBAL);
}

type Resolve = (hostname: string) => Promise<readonly LookupAddress[]>;

const resolveAll: Resolve = (hostname) =>
  new Promise((resolve, reject) => {
    dnsLookup(hostname, { all: true, order: 'verbatim' }, (error, addresses) => {
      if (error) reject(error);
      else resolve(addresses);
    });
  });

/** A `lookup` for `net.connect` that answers with checked addresses only, so that the socket uses those. */
function guardedLookup(allowed: (address: string) => boolean, resolve: Resolve): LookupFunction {
  return (hostname, options, callback) => {
    resolve(hostname).then(
      (addresses) => {
        const bad = addresses.find(({ address }) => !allowed(address));
        const first = addresses[0];
        if (bad !== undefined || first === undefined) {
          callback(new EgressRefused(`${hostname} is not a public address`), '', 0);
        } else if (options.all === true) callback(null, [...addresses]);
        else callback(null, first.address, first.family);
      },
      (error: unknown) => callback(error as NodeJS.ErrnoException, '', 0),
    );
  };
}

type Connector = buildConnector.connector;

export interface Egress {
  readonly trusted: Dispatcher;
  readonly guarded: Dispatcher;
  /** For a pool of the caller's own: connects to public addresses only. */
  readonly connect: Connector;
  close(): Promise<void>;
}

export interface EgressOptions {
  /** `publicUrl` is loopback: loopback addresses are allowed, and plain http to them. */
  readonly development: boolean;
  /**
   * HTTPS_PROXY, for teams that run Smokescreen or the like: `guarded` sends https through it, and the proxy resolves
   * and judges names. Addresses that are written out are still judged here. `trusted` and `connect` go direct.
   */
  readonly proxy?: string | undefined;
  /** For tests. */
  readonly resolve?: Resolve;
}

export function createEgress({ development, proxy, resolve = resolveAll }: EgressOptions): Egress {
  const allowed = (address: string): boolean =>
    isPublicAddress(address) || (development && isLoopbackHost(address));
  const common = {
    headersTimeout: HEADERS_TIMEOUT_MS,
    bodyTimeout: HEADERS_TIMEOUT_MS,
    // A connection per request: a code or a rotating refresh token is sent once, and must not be lost to a
    // kept-alive socket that the other side was closing in that moment.
    pipelining: 0,
  };
  const connectorOptions = { timeout: CONNECT_TIMEOUT_MS, allowH2: false };
  const guardedConnector = buildConnector({
    ...connectorOptions,
    lookup: guardedLookup(allowed, resolve),
  });
  const trusted = new Agent({ ...common, connect: connectorOptions });
  const connect: Connector = (options, callback) => {
    // `net.connect` asks no lookup for an address that is written out.
    if (isIP(options.hostname.replace(/^\[|\]$/g, '')) !== 0 && !allowed(options.hostname)) {
      callback(new EgressRefused(`${options.hostname} is not a public address`), null);
      return;
    }
    guardedConnector(options, callback);
  };
  const direct = new Agent({ ...common, connect });
  const proxied = proxy === undefined ? undefined : new ProxyAgent({ uri: proxy, ...common });
  const guarded =
    proxied === undefined
      ? direct
      : direct.compose(() => (options, handler) => {
          const { hostname } = new URL(String(options.origin));
          const bare = hostname.replace(/^\[|\]$/g, '');
          if (isIP(bare) !== 0 && !allowed(bare)) {
            throw new EgressRefused(`${hostname} is not a public address`);
          }
          // Loopback is a matter of this machine, in development, and no proxy's.
          const own = isLoopbackHost(bare) ? direct : proxied;
          return own.dispatch(options, handler);
        });
  return {
    trusted,
    guarded,
    connect,
    async close() {
      await Promise.all([trusted.destroy(), direct.destroy(), proxied?.destroy()]);
    },
  };
}

/** https, or loopback http in development; anything else is refused before a packet leaves. */
export function assertAllowedUrl(url: URL, development: boolean): void {
  if (url.protocol === 'https:') return;
  if (url.protocol === 'http:' && development && isLoopbackHost(url.hostname)) return;
  throw new EgressRefused(`${url.origin} is not https`);
}

export interface FetchOptions {
  readonly egress: Egress;
  readonly development: boolean;
  /** Origins that the operator wrote. */
  readonly trustedOrigins: ReadonlySet<string>;
  /** An upstream's own origin, which the operator may have chosen to reach by plain http. */
  readonly plainOrigin?: string;
  readonly maxBodyBytes?: number;
  /** Sees the whole answer before it is used; may replace it. */
  readonly inspect?: (answer: { status: number; contentType: string; text: string }) => {
    status: number;
    text: string;
  };
}

const MAX_BODY_BYTES = 256 * 1024;

export type BoundedFetch = (
  url: string,
  init: {
    method?: string | undefined;
    headers?: Record<string, string> | undefined;
    body?: unknown;
    signal?: AbortSignal | null | undefined;
  },
) => Promise<Response>;

/** A `fetch` in the shape that openid-client takes: no redirects, bounded body, guarded by origin. */
export function createFetch(options: FetchOptions): BoundedFetch {
  const maxBytes = options.maxBodyBytes ?? MAX_BODY_BYTES;
  return async (href, init) => {
    const url = new URL(href);
    if (url.origin !== options.plainOrigin) assertAllowedUrl(url, options.development);
    const trusted = options.trustedOrigins.has(url.origin);
    const method = init.method ?? 'GET';
    // Strangers learn nothing of our traces, and their names are not ours to write down.
    const span =
      trusted && traceparent() !== undefined
        ? beginSpan({
            name: method,
            kind: 'client',
            attributes: { 'http.request.method': method, 'server.address': url.hostname },
          })
        : undefined;
    const sent = request(url, {
      dispatcher: trusted ? options.egress.trusted : options.egress.guarded,
      method,
      headers: { ...init.headers, ...(span && { traceparent: span.traceparent }) },
      body: bodyText(init.body),
      signal: init.signal ?? null,
    });
    if (span !== undefined) {
      sent.then(
        () => span.end(),
        (error: unknown) => span.end(error),
      );
    }
    const answer = await sent;
    const read = await readBounded(answer.body, maxBytes);
    const contentType = String(answer.headers['content-type'] ?? '');
    const { status, text } = options.inspect?.({
      status: answer.statusCode,
      contentType,
      text: read,
    }) ?? { status: answer.statusCode, text: read };
    const headers = new Headers();
    for (const name of ['content-type', 'cache-control', 'www-authenticate', 'retry-after']) {
      const value = answer.headers[name];
      if (value !== undefined) headers.set(name, String(value));
    }
    const bodiless = status === 204 || status === 205 || status === 304 || status < 200;
    return new Response(bodiless ? null : text, { status: status < 200 ? 502 : status, headers });
  };
}

/** openid-client sends forms and nothing else. */
function bodyText(body: unknown): string | null {
  if (body === undefined || body === null) return null;
  if (typeof body === 'string') return body;
  if (body instanceof URLSearchParams) return body.toString();
  throw new TypeError('only form bodies are sent');
}

async function readBounded(body: AsyncIterable<Buffer>, maxBytes: number): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of body) {
    size += chunk.length;
    // Leaving the loop destroys the body, and with it the connection.
    if (size > maxBytes) throw new EgressRefused('the answer is too large');
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}
