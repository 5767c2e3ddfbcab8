/**
 * The OAuth client side of a `type: oauth` connection: discovery, authorization URL, code exchange, refresh,
 * revocation. Every outcome is a value of a closed set, so that callers decide by kind and never by the text of
 * an exception; texts here never contain a code, a token or a secret, and may be logged.
 *
 * Rules: PKCE S256 always (RFC 9700, 2.1.1); `iss` compared when present or promised (RFC 9207, 2.4); exact
 * redirect URI; https only (loopback http in development); no redirects, bounded answers, timeouts. A grant
 * request is sent once: this module never retries one.
 */
import { createHash } from 'node:crypto';
import {
  ClientError,
  Configuration,
  allowInsecureRequests,
  authorizationCodeGrant,
  buildAuthorizationUrl,
  calculatePKCECodeChallenge,
  customFetch,
  discovery,
  genericGrantRequest,
  None,
  refreshTokenGrant,
  tokenRevocation,
  type ClientAuth,
  type CustomFetch,
  type ServerMetadata,
  type TokenEndpointResponse,
} from 'openid-client';
import type { ConnectionConfig, TokenExchangeConnection } from './config.ts';
import { assertAllowedUrl, createFetch, EgressRefused, type Egress } from './egress.ts';
import {
  classify,
  clientAuth,
  inspectTokenAnswer,
  type GrantFailure,
  type GrantFault,
} from './third-party/answers.ts';

/**
 * Where a grant is asked for, and as whom: a connection of `type: oauth` as it is configured, or what was found for
 * one of `type: mcp`.
 */
export interface OAuthTarget {
  readonly type: 'oauth' | 'mcp';
  readonly issuer?: string;
  readonly authorizationEndpoint?: string;
  readonly tokenEndpoint?: string;
  readonly revocationEndpoint?: string;
  readonly clientId: string;
  readonly clientSecret?: string;
  readonly scopes: readonly string[];
  /** Resource indicator (RFC 8707); `type: mcp` always has one. */
  readonly resource?: string;
  /** `type: mcp`: the upstream's own origin, the only one that the operator's word covers. */
  readonly trustedOrigin?: string;
}

/** One grant of a user at a third party, as it lies sealed in the vault. */
export interface OAuthCredential {
  readonly kind: 'oauth';
  readonly accessToken: string;
  readonly tokenType: string;
  readonly refreshToken?: string;
  readonly scope?: string;
  /** Absent: the third party did not say, so only its 401 tells. */
  readonly expiresAtMs?: number;
  readonly obtainedAtMs: number;
  /** When the user gave the grant; refreshes keep it. */
  readonly connectedAtMs?: number;
  /** `connectionHash` of the configuration that it was granted under. */
  readonly connectionHash: string;
  /** It replaces one that an upstream had refused. */
  readonly renewedForRefusal?: true;
  /** `type: mcp`: the server that gave it, and the client that it was given to. Never used with another. */
  readonly target?: OAuthTarget;
}

/** What a user typed on the page of a `type: secret` connection. */
export interface SecretCredential {
  readonly kind: 'secret';
  readonly values: Readonly<Record<string, string>>;
  readonly obtainedAtMs: number;
  readonly connectedAtMs?: number;
  readonly connectionHash: string;
}

export type Credential = OAuthCredential | SecretCredential;

export type { GrantFailure, GrantFault } from './third-party/answers.ts';

export type GrantOutcome =
  | { readonly kind: 'granted'; readonly credential: OAuthCredential }
  | { readonly kind: GrantFailure; readonly detail: string };

export interface AuthorizationRequest {
  readonly state: string;
  readonly codeVerifier: string;
  readonly nonce: string;
}

export interface CodeExchange {
  /** Query of the callback as it came: `code`, `state`, `iss`. */
  readonly callback: string;
  readonly codeVerifier: string;
  readonly nonce: string;
  /** `type: mcp`: the server that the user was sent to. */
  readonly target?: OAuthTarget;
}

export interface ThirdParty {
  /** What the server says about itself, its issuer compared. */
  metadata(
    target: OAuthTarget,
  ): Promise<{ kind: 'ready'; server: Readonly<ServerMetadata> } | GrantFault>;
  /** RFC 8693, with an assertion of ours as the subject token. */
  exchangeToken(connection: TokenExchangeConnection, assertion: string): Promise<GrantOutcome>;
  /** Metadata is there (cached or fetched now), or the reason why not. Nothing of the user's is sent. */
  prepare(target: OAuthTarget): Promise<{ kind: 'ready' } | GrantFault>;
  authorizationUrl(
    target: OAuthTarget,
    request: AuthorizationRequest,
  ): Promise<{ kind: 'ready'; url: URL } | GrantFault>;
  /** Is this callback from the server that the user was sent to? (RFC 9207) */
  issuerMatches(target: OAuthTarget, iss: string | undefined): Promise<boolean>;
  exchange(target: OAuthTarget, exchange: CodeExchange, hash: string): Promise<GrantOutcome>;
  /** A refresh token that the answer leaves out stays the one to use (RFC 6749, 6). */
  refresh(target: OAuthTarget, credential: OAuthCredential): Promise<GrantOutcome>;
  /** Best effort (RFC 7009); `unsupported` where the third party has no revocation endpoint. */
  revoke(
    target: OAuthTarget,
    credential: OAuthCredential,
  ): Promise<'revoked' | 'unsupported' | 'failed'>;
}

export interface ThirdPartyDeps {
  readonly egress: Egress;
  /** Origin of this gateway; the redirect URI is `<publicUrl>/connect/callback`. */
  readonly publicUrl: string;
  readonly development: boolean;
  readonly now?: () => number;
}

const TIMEOUT_SECONDS = 10;
const METADATA_TTL_MS = 60 * 60_000;
const MAX_LIFETIME_SECONDS = 10 * 365 * 86_400;

/** Path of the one redirect URI. */
export const CALLBACK_PATH = '/connect/callback';

/** Names what a credential was given for: another issuer, client, scopes or fields, and it has to be asked for again. */
export function connectionHash(connection: ConnectionConfig): string {
  const subject = JSON.stringify([connection.type, ...identityOf(connection)]);
  return createHash('sha256').update(subject).digest('base64url').slice(0, 22);
}

function identityOf(connection: ConnectionConfig): unknown[] {
  switch (connection.type) {
    case 'oauth':
      return [
        connection.issuer ?? [connection.authorizationEndpoint, connection.tokenEndpoint],
        connection.clientId,
        [...connection.scopes].sort(),
      ];
    case 'secret':
      return [connection.fields.map((field) => field.name).sort()];
    case 'mcp':
      return [connection.upstreamUrl, connection.clientId, [...(connection.scopes ?? [])].sort()];
    case 'token-exchange':
      return [
        connection.tokenEndpoint,
        connection.audience,
        connection.resource,
        connection.clientId,
        [...connection.scopes].sort(),
      ];
  }
}

/** Names a server and the client that we are there. */
function targetHash(target: OAuthTarget): string {
  const { issuer, authorizationEndpoint, tokenEndpoint, clientId } = target;
  const subject = JSON.stringify([issuer ?? [authorizationEndpoint, tokenEndpoint], clientId]);
  return createHash('sha256').update(subject).digest('base64url');
}

/** Where the consent page says that it leads: an origin that the operator wrote, or that discovery named. */
export function thirdPartyOrigin(target: OAuthTarget): string {
  return new URL(target.issuer ?? target.authorizationEndpoint ?? 'invalid:').origin;
}

export function createThirdParty(deps: ThirdPartyDeps): ThirdParty {
  const now = deps.now ?? Date.now;
  const redirectUri = deps.publicUrl + CALLBACK_PATH;
  /** A cache, and nothing more: metadata by connection hash. */
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

  async function serverOf(target: OAuthTarget, auth?: ClientAuth): Promise<Configuration> {
    const key = targetHash(target);
    let entry = metadata.get(key);
    if (entry === undefined || now() - entry.at > METADATA_TTL_MS) {
      const value = discover(target);
      entry = { at: now(), value };
      metadata.set(key, entry);
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
  }

  /** Names only: `cause` of openid-client's errors holds codes, tokens and whole answers. */
  const attempt = async <T>(run: () => Promise<T>): Promise<T | GrantFault> => {
    try {
      return await run();
    } catch (error) {
      return classify(error);
    }
  };

  const asCredential = (
    answer: TokenEndpointResponse,
    target: OAuthTarget,
    hash: string,
    before?: OAuthCredential,
  ): OAuthCredential => {
    // One that is bound to a key of ours would be of no use as a bearer token, and nobody has asked for it.
    if (answer.token_type.toLowerCase() !== 'bearer') {
      throw new EgressRefused('the token is of a type that was not asked for');
    }
    const refreshToken = answer.refresh_token ?? before?.refreshToken;
    // Left out, it is what was asked for (RFC 6749, 5.1).
    const asked = target.scopes.length > 0 ? target.scopes.join(' ') : undefined;
    const scope = answer.scope ?? before?.scope ?? asked;
    const lifetime = answer.expires_in;
    return {
      kind: 'oauth',
      accessToken: answer.access_token,
      tokenType: answer.token_type,
      obtainedAtMs: now(),
      connectedAtMs: before?.connectedAtMs ?? before?.obtainedAtMs ?? now(),
      connectionHash: hash,
      ...(target.type === 'mcp' && { target }),
      ...(refreshToken !== undefined && { refreshToken }),
      ...(scope !== undefined && { scope }),
      ...(lifetime !== undefined && {
        expiresAtMs: now() + Math.min(lifetime, MAX_LIFETIME_SECONDS) * 1000,
      }),
    };
  };

  return {
    metadata: (target) =>
      attempt(async () => {
        const server = await serverOf(target);
        return { kind: 'ready' as const, server: server.serverMetadata() };
      }),

    exchangeToken: (connection, assertion) =>
      attempt(async () => {
        const { tokenEndpoint, clientId, clientSecret, audience, resource, scopes } = connection;
        const target: OAuthTarget = {
          type: 'oauth',
          authorizationEndpoint: tokenEndpoint,
          tokenEndpoint,
          clientId: clientId ?? deps.publicUrl,
          ...(clientSecret !== undefined && { clientSecret }),
          scopes,
        };
        // Without a client of its own the assertion alone says who asks.
        const auth = clientId === undefined ? (): void => undefined : undefined;
        const answer = await genericGrantRequest(
          await serverOf(target, auth),
          'urn:ietf:params:oauth:grant-type:token-exchange',
          {
            subject_token: assertion,
            subject_token_type: 'urn:ietf:params:oauth:token-type:jwt',
            requested_token_type: 'urn:ietf:params:oauth:token-type:access_token',
            ...(audience !== undefined && { audience }),
            ...(resource !== undefined && { resource }),
            ...(scopes.length > 0 && { scope: scopes.join(' ') }),
          },
        );
        return {
          kind: 'granted' as const,
          credential: asCredential(answer, target, connectionHash(connection)),
        };
      }),

    prepare: (target) =>
      attempt(async () => {
        await serverOf(target);
        return { kind: 'ready' as const };
      }),

    authorizationUrl: (target, request) =>
      attempt(async () => {
        const server = await serverOf(target);
        const openid = usesOpenId(target);
        const url = buildAuthorizationUrl(server, {
          redirect_uri: redirectUri,
          state: request.state,
          code_challenge: await calculatePKCECodeChallenge(request.codeVerifier),
          code_challenge_method: 'S256',
          ...(target.scopes.length > 0 && { scope: target.scopes.join(' ') }),
          ...(openid && { nonce: request.nonce }),
          ...resourceOf(target),
        });
        assertAllowedUrl(url, deps.development);
        return { kind: 'ready' as const, url };
      }),

    async issuerMatches(target, iss) {
      const found = await attempt(() => serverOf(target));
      // Unreachable metadata proves nothing either way; the exchange compares again before it sends the code.
      if (!(found instanceof Configuration)) return true;
      const server = found.serverMetadata();
      if (iss !== undefined) return target.issuer === undefined || iss === server.issuer;
      return server.authorization_response_iss_parameter_supported !== true;
    },

    exchange: (target, { callback, codeVerifier, nonce }, hash) =>
      attempt(async () => {
        const server = await serverOf(target);
        const current = new URL(redirectUri);
        current.search = callback;
        // Without an issuer there is nothing to compare `iss` with.
        if (target.issuer === undefined) current.searchParams.delete('iss');
        // The state was compared, and used up, when the flow was claimed; what is here came out of the seal.
        const state = current.searchParams.get('state');
        const answer = await authorizationCodeGrant(
          server,
          current,
          {
            pkceCodeVerifier: codeVerifier,
            ...(state !== null && { expectedState: state }),
            ...(usesOpenId(target) && { expectedNonce: nonce }),
          },
          resourceOf(target),
        );
        return { kind: 'granted' as const, credential: asCredential(answer, target, hash) };
      }),

    refresh: (target, credential) =>
      attempt(async () => {
        if (credential.refreshToken === undefined) {
          return { kind: 'invalid_grant' as const, detail: 'no refresh token was given' };
        }
        const answer = await refreshTokenGrant(
          await serverOf(target),
          credential.refreshToken,
          resourceOf(target),
        );
        return {
          kind: 'granted' as const,
          credential: asCredential(answer, target, credential.connectionHash, credential),
        };
      }),

    async revoke(target, credential) {
      const outcome = await attempt(async () => {
        const server = await serverOf(target);
        if (server.serverMetadata().revocation_endpoint === undefined)
          return 'unsupported' as const;
        // Revoking the refresh token ends the grant with its access tokens where the server can (RFC 7009, 2.1);
        // the access token goes too, for servers that can't.
        if (credential.refreshToken !== undefined) {
          await tokenRevocation(server, credential.refreshToken, {
            token_type_hint: 'refresh_token',
          });
        }
        await tokenRevocation(server, credential.accessToken, { token_type_hint: 'access_token' });
        return 'revoked' as const;
      });
      return typeof outcome === 'string' ? outcome : 'failed';
    },
  };
}

/** ID tokens matter only where the operator named an issuer to compare them with. */
function usesOpenId(target: OAuthTarget): boolean {
  return target.issuer !== undefined && target.scopes.includes('openid');
}

const resourceOf = ({ resource }: OAuthTarget): Record<string, string> =>
  resource === undefined ? {} : { resource };
