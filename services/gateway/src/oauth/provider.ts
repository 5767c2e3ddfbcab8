/**
 * oidc-provider, set up as the authorization server that MCP clients expect (MCP 2026-07-28, authorization; OAuth
 * 2.1): code with PKCE S256, refresh with rotation, client_credentials; JWT access tokens (RFC 9068) for one resource
 * (RFC 8707). What it keeps lies in Redis (adapter.ts); what it asks people for is asked on our pages.
 */
import { createHmac } from 'node:crypto';
import type { ServerResponse } from 'node:http';
import {
  interactionPolicy,
  errors,
  Provider,
  type ClientMetadata,
  type Configuration,
} from 'oidc-provider';
import type { BuiltinAuth, Config } from '@viaduct/shared/config';
import { createFetch, type Egress } from '@viaduct/shared/egress';
import type { Keyring } from '@viaduct/shared/keyring';
import { userIdOf } from '@viaduct/shared/principal';
import { resourceUrl } from '../challenges.ts';
import type { Approvals } from './approvals.ts';
import type { createAdapters } from './adapter.ts';
import { SIGNING_ALGORITHM, type SigningKeys } from './signing-keys.ts';

export interface ProviderDeps {
  readonly config: Config;
  readonly auth: BuiltinAuth;
  readonly issuer: string;
  readonly keyring: Pick<Keyring, 'derive' | 'mac'>;
  readonly signing: SigningKeys;
  readonly egress: Egress;
  readonly approvals: Pick<Approvals, 'account'>;
  readonly adapter: ReturnType<typeof createAdapters>;
  readonly renderError: (ctx: ErrorContext, message: string) => void;
}

export interface ErrorContext {
  body: unknown;
  type: string;
  status: number;
  set(name: string, value: string): void;
  remove(name: string): void;
  readonly res: ServerResponse;
}

/** Time to log in and decide. */
const INTERACTION_SECONDS = 1_800;
/** oidc-provider's own session serves one trip; who is logged in is the browser session's to say. */
const SESSION_SECONDS = 600;
const CODE_SECONDS = 60;

/** Every scope that means something at this endpoint. */
export function scopesOf(config: Config, name: string): string[] {
  const upstreams = config.upstreams.filter((one) => name === '' || one.name === name);
  return [
    ...new Set([
      ...config.auth.baseScopes,
      ...upstreams.flatMap((one) => [
        ...one.scopes,
        ...Object.values(one.tools).flatMap((tool) => tool.scopes),
      ]),
    ]),
  ];
}

export function createProvider(deps: ProviderDeps): Provider {
  const { config, auth, issuer, signing, approvals } = deps;
  const { builtin } = auth;
  const secure = config.publicUrl.startsWith('https:');
  const configured = new Map(builtin.clients.map((client) => [client.clientId, client]));
  const endpoints = new Map(
    ['', ...config.upstreams.map(({ name }) => name)].map((name) => [
      resourceUrl(config.publicUrl, name),
      scopesOf(config, name),
    ]),
  );
  const signingKid = signing.privateKeys[0]?.kid ?? '';
  const mainResource = resourceUrl(config.publicUrl);

  const { Check, Prompt } = interactionPolicy;
  const policy = [
    new Prompt({ name: 'login', requestable: true }),
    // Each request goes over our page, which knows whether it has to be seen.
    new Prompt(
      { name: 'consent', requestable: true },
      new Check('decision', 'the user has to decide', 'consent_required', (ctx) =>
        ctx.oidc.result?.consent === undefined ? Check.REQUEST_PROMPT : Check.NO_NEED_TO_PROMPT,
      ),
    ),
  ];

  const fetch = createFetch({
    egress: deps.egress,
    development: config.development,
    trustedOrigins: new Set(
      builtin.clients.flatMap(({ jwksUri }) =>
        jwksUri === undefined ? [] : [new URL(jwksUri).origin],
      ),
    ),
  });
  const prefix = secure ? '__Secure-viaduct-' : 'viaduct-';
  const cookie = { httpOnly: true, sameSite: 'lax', secure, signed: true } as const;

  const configuration: Configuration = {
    adapter: deps.adapter,
    clients: builtin.clients.map(metadataOf),
    clientDefaults: {
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      id_token_signed_response_alg: SIGNING_ALGORITHM,
    },
    clientAuthMethods: ['none', 'client_secret_basic', 'client_secret_post', 'private_key_jwt'],
    clientBasedCORS: () => true, // the edge has decided (edge.ts)
    conformIdTokenClaims: true,
    cookies: {
      keys: deps.keyring
        .derive('oauth-cookies')
        .map(({ bytes }) => Buffer.from(bytes).toString('base64url')),
      names: {
        interaction: `${prefix}oauth-request`,
        resume: `${prefix}oauth-resume`,
        session: `${prefix}oauth-session`,
      },
      long: { ...cookie, path: '/oauth' },
      short: cookie,
    },
    enabledJWA: {
      idTokenSigningAlgValues: [SIGNING_ALGORITHM],
      clientAuthSigningAlgValues: ['RS256', 'PS256', 'ES256', 'EdDSA'],
    },
    expiresWithSession: () => false,
    extraTokenClaims: async (_ctx, token) => {
      if (token.kind !== 'AccessToken') return undefined;
      const account = await approvals.account(userIdOf(issuer, token.accountId));
      return account === undefined ? undefined : { [auth.groupsClaim]: account.groups };
    },
    features: {
      clientCredentials: { enabled: true },
      devInteractions: { enabled: false },
      registration: {
        enabled: builtin.dynamicRegistration,
        // Nobody can manage a registration, so nobody needs a token for it; and without one it is a single write.
        issueRegistrationAccessToken: false,
      },
      resourceIndicators: {
        enabled: true,
        defaultResource: (_ctx, _client, granted) =>
          granted === undefined ? mainResource : granted.length === 1 ? granted[0]! : granted,
        useGrantedResource: () => true,
        getResourceServerInfo: (ctx, resource, client) => {
          const asked: unknown = ctx.oidc.params?.['resource'];
          if (Array.isArray(asked) && asked.length > 1) {
            throw new errors.InvalidTarget('one resource at a time');
          }
          const known = endpoints.get(resource);
          if (known === undefined) throw new errors.InvalidTarget('there is no such resource here');
          const limit = configured.get(client.clientId)?.scopes;
          const scopes = limit === undefined ? known : known.filter((one) => limit.includes(one));
          return {
            scope: scopes.join(' '),
            audience: resource,
            accessTokenFormat: 'jwt',
            accessTokenTTL: builtin.accessTokenSeconds,
            jwt: { sign: { alg: SIGNING_ALGORITHM, kid: signingKid } },
          };
        },
      },
      revocation: { enabled: true },
      rpInitiatedLogout: { enabled: false },
      userinfo: { enabled: false },
    },
    fetch: (url, options) =>
      fetch(url instanceof Request ? url.url : url.toString(), {
        method: options?.method,
        headers: Object.fromEntries(new Headers(options?.headers)),
        signal: options?.signal,
      }),
    // Without an account (its last login is too long ago, or it was revoked) no token is issued any more.
    findAccount: async (_ctx, subject) => {
      const account = await approvals.account(userIdOf(issuer, subject));
      return account && { accountId: subject, claims: () => ({ sub: subject }) };
    },
    interactions: { policy, url: (_ctx, interaction) => `/oauth/interaction/${interaction.uid}` },
    issueRefreshToken: (_ctx, client) => client.grantTypeAllowed('refresh_token'),
    jwks: { keys: [...signing.privateKeys] },
    loadExistingGrant: (ctx) => {
      const grantId = ctx.oidc.result?.consent?.grantId;
      return grantId === undefined
        ? Promise.resolve(undefined)
        : ctx.oidc.provider.Grant.find(grantId);
    },
    pkce: { required: () => true },
    renderError: (ctx, out) => {
      deps.renderError(ctx, out.error_description ?? out.error);
    },
    responseTypes: ['code'],
    rotateRefreshToken: true,
    routes: {
      authorization: '/authorize',
      jwks: '/jwks',
      registration: '/register',
      revocation: '/revoke',
      token: '/token',
    },
    scopes: ['openid', 'offline_access'],
    subjectTypes: ['public'],
    ttl: {
      AccessToken: builtin.accessTokenSeconds,
      AuthorizationCode: CODE_SECONDS,
      ClientCredentials: builtin.accessTokenSeconds,
      Grant: builtin.refreshTokenSeconds,
      IdToken: builtin.accessTokenSeconds,
      Interaction: INTERACTION_SECONDS,
      RefreshToken: builtin.refreshTokenSeconds,
      Session: SESSION_SECONDS,
    },
  };

  const provider = new Provider(issuer, configuration);
  provider.proxy = true; // the scheme is publicUrl's (authorization-server.ts)

  // The successor of a rotated refresh token is computed from it, so that every pod and every retry within the
  // grace names the same one (case O6). Nobody without the keyring can compute it.
  // (The method is oidc-provider's own, and not in its types.)
  const tokens = provider.RefreshToken.prototype as unknown as { generateTokenId(): string };
  const plainId = tokens.generateTokenId;
  const secret = deps.keyring.mac('oauth', 'refresh');
  tokens.generateTokenId = function () {
    const rotated = Provider.ctx?.oidc.entities.RotatedRefreshToken;
    if (rotated === undefined) return plainId.call(this);
    return createHmac('sha256', secret).update(rotated.jti).digest('base64url');
  };
  return provider;
}

type BuiltinClient = BuiltinAuth['builtin']['clients'][number];

/** A client of the configuration in oidc-provider's words. */
export function metadataOf(client: BuiltinClient): ClientMetadata {
  const { clientId, name, clientSecret, jwksUri, redirectUris, grantTypes } = client;
  const native = redirectUris.some((uri) => !uri.startsWith('https:'));
  return {
    client_id: clientId,
    ...(name !== undefined && { client_name: name }),
    ...(clientSecret !== undefined && { client_secret: clientSecret }),
    ...(jwksUri !== undefined && { jwks_uri: jwksUri }),
    application_type: native ? 'native' : 'web',
    redirect_uris: [...redirectUris],
    grant_types: [...grantTypes],
    response_types: grantTypes.includes('authorization_code') ? ['code'] : [],
    token_endpoint_auth_method:
      clientSecret !== undefined
        ? 'client_secret_basic'
        : jwksUri !== undefined
          ? 'private_key_jwt'
          : 'none',
  };
}
