/**
 * `type: mcp`: an upstream that protects itself. From its 401 to a server that tokens can be asked of, as the MCP
 * authorization specification has it: protected resource metadata (RFC 9728), authorization server metadata with
 * its issuer compared exactly (RFC 8414, 3.3), and a client there: the operator's, else our client id metadata
 * document, else one registered once per issuer (RFC 7591) and kept sealed.
 *
 * Whose word counts: what lies on the upstream's own origin is the operator's choice; every URL from there on goes
 * through the egress guard. A client that one issuer has registered is never shown to another.
 */
import type { McpConnection } from './config.ts';
import { createFetch, EgressRefused, type BoundedFetch, type Egress } from './egress.ts';
import type { Leases } from './lease.ts';
import type { RegisteredClient, Registrations } from './registrations.ts';
import {
  CALLBACK_PATH,
  type GrantFault,
  type OAuthTarget,
  type ThirdParty,
} from './third-party.ts';
import { classify } from './third-party/answers.ts';

export const CLIENT_METADATA_PATH = '/connect/client-metadata.json';

export interface UpstreamOAuth {
  /** @param added scopes to ask for beyond what the upstream asks of everybody */
  find(
    connection: McpConnection,
    added: readonly string[],
  ): Promise<{ kind: 'ready'; target: OAuthTarget } | GrantFault>;
}

export interface UpstreamOAuthDeps {
  readonly egress: Egress;
  readonly registrations: Pick<Registrations, 'find' | 'store' | 'leaseKey'>;
  readonly leases: Leases;
  readonly thirdParty: Pick<ThirdParty, 'metadata'>;
  readonly publicUrl: string;
  readonly development: boolean;
}

interface Resource {
  readonly issuer: string;
  readonly resource: string;
  readonly scopes: readonly string[];
}

const TIMEOUT_MS = 10_000;
const FOUND_MS = 5 * 60_000;
const REGISTRATION_SECONDS = 365 * 86_400;

/** Our client id metadata document (draft-ietf-oauth-client-id-metadata-document). */
export function clientMetadata(publicUrl: string): Record<string, unknown> {
  return {
    client_id: publicUrl + CLIENT_METADATA_PATH,
    client_name: 'Viaduct',
    client_uri: publicUrl,
    redirect_uris: [publicUrl + CALLBACK_PATH],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
    application_type: 'web',
  };
}

export function createUpstreamOAuth(deps: UpstreamOAuthDeps): UpstreamOAuth {
  const { egress, registrations, leases, thirdParty, publicUrl, development } = deps;
  const resources = new Map<string, { at: number; value: Resource }>();

  const fetchFor = (connection: McpConnection): BoundedFetch => {
    const { origin } = new URL(connection.upstreamUrl);
    return createFetch({
      egress,
      development,
      trustedOrigins: new Set(connection.allowPrivateNetwork ? [origin] : []),
      plainOrigin: origin,
    });
  };

  async function json(
    fetch: BoundedFetch,
    url: string,
  ): Promise<Record<string, unknown> | undefined> {
    const answer = await fetch(url, {
      headers: { accept: 'application/json' },
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    if (answer.status >= 500) throw new Unavailable(`status ${String(answer.status)}`);
    if (answer.status !== 200) return undefined;
    const body: unknown = await answer.json().catch(() => undefined);
    if (typeof body !== 'object' || body === null) {
      throw new EgressRefused('the metadata of the upstream is no JSON object');
    }
    return body as Record<string, unknown>;
  }

  async function resourceOf(connection: McpConnection): Promise<Resource> {
    const known = resources.get(connection.name);
    if (known !== undefined && Date.now() - known.at < FOUND_MS) return known.value;
    const fetch = fetchFor(connection);
    const upstream = new URL(connection.upstreamUrl);
    const asked = await fetch(upstream.href, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
      },
      body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'ping' }),
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    const challenge = asked.headers.get('www-authenticate') ?? '';
    const named = parameter(challenge, 'resource_metadata');
    const path = upstream.pathname.replace(/\/$/, '');
    const wellKnown = `${upstream.origin}/.well-known/oauth-protected-resource`;
    const places = named !== undefined ? [named] : [wellKnown + path, wellKnown];
    let found: Record<string, unknown> | undefined;
    for (const place of new Set(places)) found ??= await json(fetch, place);
    const value = readResource(found, upstream, parameter(challenge, 'scope'));
    resources.set(connection.name, { at: Date.now(), value });
    return value;
  }

  async function clientOf(
    connection: McpConnection,
    issuer: string,
    server: Readonly<Record<string, unknown>>,
  ): Promise<RegisteredClient> {
    const { clientId, clientSecret } = connection;
    if (clientId !== undefined) {
      return { clientId, ...(clientSecret !== undefined && { clientSecret }) };
    }
    const https = publicUrl.startsWith('https:');
    if (https && server['client_id_metadata_document_supported'] === true) {
      return { clientId: publicUrl + CLIENT_METADATA_PATH };
    }
    const known = await registrations.find(issuer);
    if (known !== undefined) return known;
    const turn = await leases.withLease(
      registrations.leaseKey(issuer),
      { ttlMs: 15_000, waitMs: 12_000 },
      async () => (await registrations.find(issuer)) ?? register(connection, issuer, server),
    );
    if (!turn.held) throw new Unavailable('another registration takes too long');
    return turn.value;
  }

  async function register(
    connection: McpConnection,
    issuer: string,
    server: Readonly<Record<string, unknown>>,
  ): Promise<RegisteredClient> {
    const endpoint = server['registration_endpoint'];
    if (typeof endpoint !== 'string') {
      throw new EgressRefused(
        'the authorization server registers no clients; give clientId in the configuration',
      );
    }
    const methods = server['token_endpoint_auth_methods_supported'];
    const secret =
      Array.isArray(methods) && !methods.includes('none')
        ? (['client_secret_basic', 'client_secret_post'].find((one) => methods.includes(one)) ??
          'client_secret_basic')
        : 'none';
    const { client_id: _ours, ...about } = clientMetadata(publicUrl);
    const answer = await fetchFor(connection)(endpoint, {
      method: 'POST',
      headers: { 'content-type': 'application/json', accept: 'application/json' },
      body: JSON.stringify({ ...about, token_endpoint_auth_method: secret }),
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    if (answer.status >= 500) throw new Unavailable(`registration: ${String(answer.status)}`);
    const body = (await answer.json().catch(() => ({}))) as Record<string, unknown>;
    const clientId = body['client_id'];
    const clientSecret = body['client_secret'];
    if (answer.status >= 300 || typeof clientId !== 'string' || clientId === '') {
      throw new EgressRefused(`the registration was refused (${String(answer.status)})`);
    }
    const client: RegisteredClient = {
      clientId,
      ...(typeof clientSecret === 'string' && clientSecret !== '' && { clientSecret }),
    };
    const endsAt = Number(body['client_secret_expires_at'] ?? 0);
    const left = Math.floor(endsAt - Date.now() / 1000);
    const seconds =
      endsAt > 0 ? Math.max(1, Math.min(left, REGISTRATION_SECONDS)) : REGISTRATION_SECONDS;
    await registrations.store(issuer, client, seconds);
    return client;
  }

  return {
    async find(connection, added) {
      try {
        const found = await resourceOf(connection);
        const { issuer, resource } = found;
        const { origin } = new URL(connection.upstreamUrl);
        const common = {
          type: 'mcp' as const,
          issuer,
          resource,
          scopes: [...new Set([...(connection.scopes ?? found.scopes), ...added])].filter(
            (scope) => scope !== '',
          ),
          ...(connection.allowPrivateNetwork && { trustedOrigin: origin }),
        };
        const told = await thirdParty.metadata({ ...common, clientId: 'not known yet' });
        if (told.kind !== 'ready') return told;
        const client = await clientOf(connection, issuer, told.server);
        return { kind: 'ready', target: { ...common, ...client } };
      } catch (error) {
        if (error instanceof Unavailable) return { kind: 'unavailable', detail: error.message };
        return classify(error);
      }
    },
  };
}

class Unavailable extends Error {}

/** `name="value"` of a Bearer challenge (RFC 9110, 11.2). */
function parameter(challenge: string, name: string): string | undefined {
  const match = new RegExp(`(?:^|[\\s,])${name}\\s*=\\s*(?:"([^"]*)"|([^\\s,"]+))`, 'i').exec(
    challenge,
  );
  return match?.[1] ?? match?.[2];
}

/** RFC 9728, 3.3: the metadata must be about the very upstream that was called. */
function readResource(
  found: Record<string, unknown> | undefined,
  upstream: URL,
  asked: string | undefined,
): Resource {
  const words = (text: string | undefined): string[] | undefined =>
    text?.split(' ').filter((word) => word !== '');
  if (found === undefined) {
    // Before RFC 9728 (MCP 2025-03-26) the upstream's origin was the authorization server.
    return { issuer: upstream.origin, resource: upstream.href, scopes: words(asked) ?? [] };
  }
  const { resource, authorization_servers: servers, scopes_supported: supported } = found;
  const about = typeof resource === 'string' ? URL.parse(resource) : null;
  const covers =
    about !== null &&
    about.origin === upstream.origin &&
    (upstream.pathname === about.pathname ||
      upstream.pathname.startsWith(`${about.pathname.replace(/\/$/, '')}/`));
  if (!covers) throw new EgressRefused('the metadata is about another resource');
  const issuer: unknown = Array.isArray(servers) ? servers[0] : undefined;
  if (typeof issuer !== 'string' || URL.parse(issuer) === null) {
    throw new EgressRefused('the metadata names no authorization server');
  }
  const all = Array.isArray(supported)
    ? supported.filter((scope): scope is string => typeof scope === 'string')
    : [];
  return { issuer, resource: resource as string, scopes: words(asked) ?? all };
}
