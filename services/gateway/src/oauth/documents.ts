/**
 * Client id metadata documents (draft-ietf-oauth-client-id-metadata-document; MCP 2026-07-28, Client ID Metadata
 * Documents): the client id is the URL of a JSON document that describes the client.
 *
 * Promises: fetched through the egress guard (https and public addresses; loopback http in development), no
 * redirects, 5 s, 16 KB; the `client_id` inside is the URL itself; no shared secrets; kept for all pods as long as
 * its cache headers say, between a minute and a day; a failure is remembered for a few seconds, so that nobody uses
 * us to knock on a door again and again.
 */
import { createHash } from 'node:crypto';
import { errors, type AdapterPayload } from 'oidc-provider';
import { isLoopbackHost } from '@viaduct/shared/config';
import { createFetch, EgressRefused, type Egress } from '@viaduct/shared/egress';
import type { Audit } from '@viaduct/shared/audit';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';
import { checkRedirects } from './redirects.ts';

export interface DocumentsDeps {
  readonly redis: Redis;
  readonly egress: Egress;
  readonly audit: Audit;
  readonly development: boolean;
}

const TIMEOUT_MS = 5_000;
const MAX_BYTES = 16 * 1024;
const MIN_SECONDS = 60;
const MAX_SECONDS = 86_400;
const FAILED_SECONDS = 5;

/** What of a document is believed; the rest has no effect here. */
const MEMBERS = [
  'client_name',
  'client_uri',
  'redirect_uris',
  'grant_types',
  'response_types',
  'token_endpoint_auth_method',
  'token_endpoint_auth_signing_alg',
  'jwks',
  'jwks_uri',
  'application_type',
] as const;

/** A URL that may be a client id: https (loopback http in development), with a path, nothing to be hidden behind. */
export function documentUrl(clientId: string, development: boolean): URL | undefined {
  if (!/^https?:\/\//.test(clientId) || !/^[\x21-\x7e]+$/.test(clientId) || /[\\#]/.test(clientId))
    return undefined;
  const url = URL.parse(clientId);
  if (url?.username !== '' || url.password !== '') return undefined;
  const secure = url.protocol === 'https:' || (development && isLoopbackHost(url.hostname));
  const path = /^https?:\/\/[^/?]*([^?]*)/.exec(clientId)?.[1] ?? '';
  const dots = path.split('/').some((part) => /^(\.|%2e){1,2}$/i.test(part));
  // "MUST contain a path component": an origin alone is no client id.
  return secure && !dots && url.pathname !== '/' ? url : undefined;
}

export function createDocuments(deps: DocumentsDeps) {
  const { redis, egress, audit, development } = deps;
  const fetch = createFetch({
    egress,
    development,
    trustedOrigins: new Set(),
    maxBodyBytes: MAX_BYTES,
  });
  const keyOf = (clientId: string): string =>
    keys.oidcDocument(createHash('sha256').update(clientId).digest('base64url'));

  async function read(clientId: string): Promise<{ document: AdapterPayload; seconds: number }> {
    const answer = await fetch(clientId, {
      headers: { Accept: 'application/json' },
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    if (answer.status !== 200) throw new Error(`answered ${answer.status}`);
    const document = checkDocument(clientId, await answer.json());
    return { document, seconds: cacheSeconds(answer.headers) };
  }

  return {
    /** @throws InvalidClient of oidc-provider, with words for the person who opened the link */
    async load(clientId: string): Promise<AdapterPayload | undefined> {
      if (documentUrl(clientId, development) === undefined) return undefined;
      const key = keyOf(clientId);
      const kept = await redis.get(key);
      if (kept === '') throw unusable('it could not be read a moment ago');
      if (kept !== null) return JSON.parse(kept) as AdapterPayload;
      try {
        const { document, seconds } = await read(clientId);
        await redis.set(key, JSON.stringify(document), 'EX', seconds);
        return document;
      } catch (error) {
        await redis.set(key, '', 'EX', FAILED_SECONDS);
        const host = URL.parse(clientId)?.host;
        if (error instanceof EgressRefused || (error as Error).cause instanceof EgressRefused) {
          audit.record({ type: 'egress.refused', reason: 'client id metadata document', host });
        }
        throw unusable(error instanceof DocumentFault ? error.message : 'it cannot be read');
      }
    },
  };
}

const unusable = (why: string) =>
  new errors.InvalidClient(`client id metadata document: ${why}`, why);

/** A fault of the document itself; its words may be shown. */
export class DocumentFault extends Error {}

/** Only what is known, and only if it is a client that can prove itself without a shared secret. */
export function checkDocument(clientId: string, json: unknown): AdapterPayload {
  if (typeof json !== 'object' || json === null || Array.isArray(json)) {
    throw new DocumentFault('it is no JSON object');
  }
  const given = json as Record<string, unknown>;
  if (given['client_id'] !== clientId) {
    throw new DocumentFault('its client_id is not its own URL');
  }
  if ('client_secret' in given || 'client_secret_expires_at' in given) {
    throw new DocumentFault('it contains a secret');
  }
  const method = given['token_endpoint_auth_method'] ?? 'none';
  if (method !== 'none' && method !== 'private_key_jwt') {
    throw new DocumentFault('its token_endpoint_auth_method is not possible');
  }
  const document: Record<string, unknown> = {};
  for (const member of MEMBERS) {
    if (given[member] !== undefined) document[member] = given[member];
  }
  checkRedirects(document);
  return { ...shapeClient(document), client_id: clientId, token_endpoint_auth_method: method };
}

/**
 * Defaults for clients that describe themselves: code with refresh (MCP clients expect both), and `native` where a
 * redirect leads to the person's own machine and nothing else is said (RFC 8252; OpenID Connect Registration, 2).
 */
export function shapeClient(given: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const uris: unknown[] = Array.isArray(given['redirect_uris']) ? given['redirect_uris'] : [];
  const native = uris.some((uri) => typeof uri === 'string' && !uri.startsWith('https:'));
  const asked = given['grant_types'];
  const grants = (Array.isArray(asked) ? (asked as unknown[]) : ['authorization_code']).filter(
    (type) => type === 'authorization_code' || type === 'refresh_token',
  );
  return {
    ...given,
    application_type: given['application_type'] ?? (native ? 'native' : 'web'),
    // Whether to give one is the server's decision, and what is asked for too little is asked for again later.
    grant_types: [...new Set([...grants, 'authorization_code', 'refresh_token'])],
    response_types: ['code'],
  };
}

function cacheSeconds(headers: Headers): number {
  const control = headers.get('cache-control') ?? '';
  const given = /(?:^|,)\s*max-age\s*=\s*(\d+)/i.exec(control)?.[1];
  const seconds = /no-store|no-cache/i.test(control) ? 0 : Number(given ?? MIN_SECONDS * 5);
  return Math.min(MAX_SECONDS, Math.max(MIN_SECONDS, seconds));
}
