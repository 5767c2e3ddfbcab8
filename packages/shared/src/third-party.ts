/**
 * The OAuth client side of a `type: oauth` connection: discovery, authorization URL, code exchange, refresh,
 * revocation. Every outcome is a value of a closed set, so that callers decide by kind and never by the text of
 * an exception; texts here never contain a code, a token or a secret, and may be logged.
 *
 * Rules: PKCE S256 always (RFC 9700, 2.1.1); `iss` compared when present or promised (RFC 9207, 2.4); exact
 * redirect URI; https only (loopback http in development); no redirects, bounded answers, timeouts. A grant
 * request is sent once: this module never retries one.
 */
import {
  authorizationCodeGrant,
  buildAuthorizationUrl,
  calculatePKCECodeChallenge,
  Configuration,
  genericGrantRequest,
  refreshTokenGrant,
  tokenRevocation,
  type ServerMetadata,
  type TokenEndpointResponse,
} from 'openid-client';
import type { TokenExchangeConnection } from './config.ts';
import { assertAllowedUrl, EgressRefused, type Egress } from './egress.ts';
import { classify, type GrantFailure, type GrantFault } from './third-party/answers.ts';
import {
  connectionHash,
  type OAuthCredential,
  type OAuthTarget,
} from './third-party/credential.ts';
import { createThirdPartyServers } from './third-party/servers.ts';

export type { GrantFailure, GrantFault } from './third-party/answers.ts';
export { connectionHash, thirdPartyOrigin } from './third-party/credential.ts';
export type {
  Credential,
  OAuthCredential,
  OAuthTarget,
  SecretCredential,
} from './third-party/credential.ts';

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

const MAX_LIFETIME_SECONDS = 10 * 365 * 86_400;

/** Path of the one redirect URI. */
export const CALLBACK_PATH = '/connect/callback';

export function createThirdParty(deps: ThirdPartyDeps): ThirdParty {
  const now = deps.now ?? Date.now;
  const redirectUri = deps.publicUrl + CALLBACK_PATH;
  const serverOf = createThirdPartyServers({
    egress: deps.egress,
    development: deps.development,
    now,
  });

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
