/**
 * Third parties' authorization servers: what each says about itself, fetched through the egress guard, compared and
 * cached, and openid-client's view of it. A failure is not remembered.
 */
import { createHash } from 'node:crypto';
import {
  allowInsecureRequests,
  ClientError,
  Configuration,
  customFetch,
  discovery,
  None,
  type ClientAuth,
  type CustomFetch,
  type ServerMetadata,
} from 'openid-client';
import { assertAllowedUrl, createFetch, EgressRefused, type Egress } from '../egress.ts';
import { clientAuth, inspectTokenAnswer } from './answers.ts';
import { thirdPartyOrigin, type OAuthTarget } from './credential.ts';

export interface ThirdPartyServersDeps {
  readonly egress: Egress;
  readonly development: boolean;
  readonly now: () => number;
}

/**
 * The server of a target, with us as its client; `auth` in place of what the target's secret calls for.
 * Throws EgressRefused or openid-client's errors, for `classify` (answers.ts).
 */
export type ServerOf = (target: OAuthTarget, auth?: ClientAuth) => Promise<Configuration>;

const TIMEOUT_SECONDS = 10;
const METADATA_TTL_MS = 60 * 60_000;
/** Upstreams name their servers themselves: however many they name, no more are remembered. */
const METADATA_MAX = 500;

export function createThirdPartyServers(deps: ThirdPartyServersDeps): ServerOf {
  const { now } = deps;
  /** A cache, and nothing more: metadata by target hash, the oldest first. */
  const metadata = new Map<string, { at: number; value: Promise<ServerMetadata> }>();

  const fetchFor = (target: OAuthTarget): CustomFetch => {
    const written =
      target.type === 'mcp'
        ? [target.trustedOrigin]
        : [
            target.issuer,
            target.authorizationEndpoint,
            target.tokenEndpoint,
            target.revocationEndpoint,
          ];
    const trustedOrigins = new Set(
      written.filter((url) => url !== undefined).map((url) => new URL(url).origin),
    );
    return createFetch({
      egress: deps.egress,
      development: deps.development,
      trustedOrigins,
      inspect: (answer) => inspectTokenAnswer(answer, target.issuer !== undefined),
    });
  };

  // Plain http is for development alone, and `createFetch` still lets it reach nothing but loopback.
  // eslint-disable-next-line @typescript-eslint/no-deprecated -- marked so that it stands out, as it does here
  const insecure: ((c: Configuration) => void)[] = deps.development ? [allowInsecureRequests] : [];

  async function discover(target: OAuthTarget): Promise<ServerMetadata> {
    const { issuer, authorizationEndpoint, tokenEndpoint, revocationEndpoint } = target;
    if (issuer === undefined) {
      return {
        issuer: thirdPartyOrigin(target),
        ...(authorizationEndpoint !== undefined && {
          authorization_endpoint: authorizationEndpoint,
        }),
        ...(tokenEndpoint !== undefined && { token_endpoint: tokenEndpoint }),
        ...(revocationEndpoint !== undefined && { revocation_endpoint: revocationEndpoint }),
      };
    }
    const options = {
      [customFetch]: fetchFor(target),
      timeout: TIMEOUT_SECONDS,
      execute: insecure,
    };
    const find = async (algorithm: 'oidc' | 'oauth2') => {
      const found = await discovery(new URL(issuer), target.clientId, undefined, None(), {
        ...options,
        algorithm,
      });
      return found.serverMetadata();
    };
    let found: ServerMetadata;
    try {
      found = await find('oidc');
    } catch (error) {
      // A plain OAuth server has no openid-configuration, only RFC 8414 metadata.
      if (!(error instanceof ClientError) || error.code !== 'OAUTH_RESPONSE_IS_NOT_CONFORM')
        throw error;
      found = await find('oauth2');
    }
    if (
      target.type === 'mcp' &&
      found.code_challenge_methods_supported?.includes('S256') !== true
    ) {
      // MCP 2025-11-25, authorization: a client MUST refuse to go on without.
      throw new EgressRefused('the metadata does not promise PKCE with S256');
    }
    for (const endpoint of [found.authorization_endpoint, found.token_endpoint]) {
      if (endpoint === undefined) throw new EgressRefused('the metadata lacks an endpoint');
      assertAllowedUrl(new URL(endpoint), deps.development);
    }
    return found;
  }

  return async (target, auth) => {
    const key = targetHash(target);
    let entry = metadata.get(key);
    if (entry === undefined || now() - entry.at > METADATA_TTL_MS) {
      const value = discover(target);
      entry = { at: now(), value };
      metadata.delete(key);
      metadata.set(key, entry);
      const [oldest] = metadata.keys();
      if (metadata.size > METADATA_MAX && oldest !== undefined) metadata.delete(oldest);
      // A failure is not remembered: the next caller asks again.
      value.catch(() => {
        if (metadata.get(key)?.value === value) metadata.delete(key);
      });
    }
    const server = await entry.value;
    const configuration = new Configuration(
      server,
      target.clientId,
      undefined,
      auth ?? clientAuth(server, target.clientSecret),
    );
    configuration[customFetch] = fetchFor(target);
    configuration.timeout = TIMEOUT_SECONDS;
    insecure.forEach((allow) => allow(configuration));
    return configuration;
  };
}

/** Names a server and the client that we are there. */
function targetHash(target: OAuthTarget): string {
  const { issuer, authorizationEndpoint, tokenEndpoint, clientId } = target;
  const subject = JSON.stringify([issuer ?? [authorizationEndpoint, tokenEndpoint], clientId]);
  return createHash('sha256').update(subject).digest('base64url');
}
