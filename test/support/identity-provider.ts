import {
  createHmac,
  generateKeyPairSync,
  randomUUID,
  sign as signBytes,
  type KeyObject,
} from 'node:crypto';
import type { Members } from './net.ts';
import { listen, redirect, sendJson, type Exchange, type Listener } from './net.ts';
import { authenticateClient, escapeHtml, sha256, type OauthClients } from './oauth.ts';
import type { Gate } from './until.ts';
import { planted } from './planted.ts';

export type Algorithm = 'RS256' | 'ES256' | 'EdDSA';

interface Key {
  kid: string;
  alg: Algorithm;
  privateKey: KeyObject;
  publicKey: KeyObject;
}

export interface Claims extends Members {
  iss?: string;
  sub?: string;
  aud?: string | string[] | undefined;
  client_id?: string;
  scope?: string;
  groups?: string[];
  /** Seconds from now, like `iat` and `nbf`. */
  expiresIn?: number;
  issuedIn?: number;
  notBeforeIn?: number;
}

export interface Signing {
  alg?: Algorithm;
  kid?: string;
  typ?: string;
  key?: Key;
}

/**
 * An OpenID provider for people's logins and the issuer of the access tokens that MCP clients present. A browser
 * is logged in by the cookie `idp_user` (its login form sets it); anybody exists, and there are no passwords.
 */
export interface IdentityProvider extends Listener {
  /** Path of every request, in order. */
  readonly hits: string[];
  /** JWKS answers 500 while true. */
  keysBroken: boolean;
  /** `auth_time` of its ID tokens, in seconds; absent by default. */
  authTime: number | undefined;
  /** Discovery and JWKS wait here. */
  gate: Gate | undefined;
  mint(claims?: Claims, signing?: Signing): string;
  /** A token with a header and signature of the test's choosing. */
  forge(header: Members, claims: Claims, sign?: (input: string) => Buffer): string;
  /** Replaces the signing key; the old one is no longer published. */
  rotate(alg?: Algorithm): void;
  /** The ID token as it would be sent to the login client. */
  idToken(user: string): string;
  publicKeyPem(alg?: Algorithm): string;
  count(path: string): number;
}

const encode = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url');
export const hmac = (secret: string) => (input: string) =>
  createHmac('sha256', secret).update(input).digest();

function generate(alg: Algorithm): Key {
  const pair =
    alg === 'RS256'
      ? generateKeyPairSync('rsa', { modulusLength: 2048 })
      : alg === 'ES256'
        ? generateKeyPairSync('ec', { namedCurve: 'P-256' })
        : generateKeyPairSync('ed25519');
  return { kid: `${alg}-${randomUUID().slice(0, 8)}`, alg, ...pair };
}

function sign(key: Key, input: string): Buffer {
  const bytes = Buffer.from(input);
  if (key.alg === 'EdDSA') return signBytes(null, bytes, key.privateKey);
  return signBytes('sha256', bytes, { key: key.privateKey, dsaEncoding: 'ieee-p1363' });
}

export async function startIdentityProvider({
  clients,
  tls,
}: {
  clients: OauthClients;
  tls?: { key: string; cert: string } | undefined;
}): Promise<IdentityProvider> {
  let keys: Key[] = (['RS256', 'ES256', 'EdDSA'] as const).map(generate);
  const codes = new Map<string, { user: string; query: URLSearchParams }>();
  const accessTokens = new Map<string, string>();
  const now = (): number => Math.floor(Date.now() / 1000);
  const newest = (alg: Algorithm): Key => keys.findLast((key) => key.alg === alg)!;

  const forge: IdentityProvider['forge'] = (header, claims, signature) => {
    const { expiresIn = 3600, issuedIn = 0, notBeforeIn, ...rest } = claims;
    const payload = {
      iss: provider.url,
      iat: now() + issuedIn,
      exp: now() + expiresIn,
      ...(notBeforeIn !== undefined && { nbf: now() + notBeforeIn }),
      ...rest,
    };
    const input = `${encode(header)}.${encode(payload)}`;
    return `${input}.${(signature?.(input) ?? Buffer.alloc(0)).toString('base64url')}`;
  };
  const signed = (claims: Claims, { alg = 'RS256', key = newest(alg), ...more }: Signing): string =>
    forge({ alg, kid: more.kid ?? key.kid, typ: more.typ ?? 'at+jwt' }, claims, (input) =>
      sign(key, input),
    );

  const metadata = (): Members => ({
    issuer: provider.url,
    authorization_endpoint: `${provider.url}/authorize`,
    token_endpoint: `${provider.url}/token`,
    userinfo_endpoint: `${provider.url}/userinfo`,
    jwks_uri: `${provider.url}/jwks`,
    response_types_supported: ['code'],
    grant_types_supported: ['authorization_code'],
    subject_types_supported: ['public'],
    id_token_signing_alg_values_supported: ['RS256'],
    scopes_supported: ['openid', 'profile', 'email'],
    code_challenge_methods_supported: ['S256'],
    token_endpoint_auth_methods_supported: ['client_secret_basic', 'client_secret_post'],
    authorization_response_iss_parameter_supported: true,
  });

  const authorize = ({ request, response, url }: Exchange): void => {
    const query = url.searchParams;
    const user = /(?:^|; )idp_user=([^;]+)/.exec(request.headers.cookie ?? '')?.[1];
    const redirectUri = query.get('redirect_uri');
    if (!clients[query.get('client_id') ?? ''] || !redirectUri) {
      sendJson(response, 400, { error: 'invalid_client' });
      return;
    }
    if (!user || query.get('prompt') === 'login') {
      url.searchParams.delete('prompt'); // asked once
      response.writeHead(200, { 'content-type': 'text/html; charset=utf-8' });
      response.end(
        `<!doctype html><title>Sign in</title><h1>Sign in</h1><form method="post" action="/sign-in">
<input type="hidden" name="next" value="${escapeHtml(url.pathname + url.search)}">
<label>User <input name="user"></label> <button>Sign in</button></form>`,
      );
      return;
    }
    const code = randomUUID();
    codes.set(code, { user, query });
    redirect(response, redirectUri, { code, state: query.get('state'), iss: provider.url });
  };

  const token = ({ request, response, form }: Exchange): void => {
    const client = authenticateClient(request, form, clients);
    if (!client) {
      sendJson(response, 401, { error: 'invalid_client' });
      return;
    }
    const code = codes.get(form.get('code') ?? '');
    codes.delete(form.get('code') ?? '');
    const verified =
      code?.query.get('client_id') === client &&
      code.query.get('redirect_uri') === form.get('redirect_uri') &&
      code.query.get('code_challenge_method') === 'S256' &&
      code.query.get('code_challenge') === sha256(form.get('code_verifier') ?? '');
    if (!code || !verified) {
      sendJson(response, 400, { error: 'invalid_grant' });
      return;
    }
    const access = `idp_access_${randomUUID()}`;
    accessTokens.set(access, code.user);
    const claims = {
      sub: code.user,
      aud: client,
      email: `${code.user}@corp.example`,
      name: code.user,
      groups: [`${code.user}-team`],
      ...(provider.authTime !== undefined && { auth_time: provider.authTime }),
      ...(code.query.has('nonce') && { nonce: code.query.get('nonce') }),
    };
    sendJson(response, 200, {
      access_token: access,
      token_type: 'Bearer',
      expires_in: 300,
      scope: code.query.get('scope'),
      id_token: signed(claims, { typ: 'JWT' }),
    });
  };

  const discovery = async ({ response }: Exchange): Promise<void> => {
    await provider.gate?.pass();
    sendJson(response, 200, metadata());
  };
  const jwks = async ({ response }: Exchange): Promise<void> => {
    await provider.gate?.pass();
    const published = keys.map(({ kid, alg, publicKey }) => {
      return { ...publicKey.export({ format: 'jwk' }), kid, alg, use: 'sig' };
    });
    if (provider.keysBroken) sendJson(response, 500, { error: 'server_error' });
    else sendJson(response, 200, { keys: published });
  };
  const userInfo = ({ request, response }: Exchange): void => {
    const bearer = /^Bearer (.*)$/i.exec(request.headers.authorization ?? '')?.[1] ?? '';
    const user = accessTokens.get(bearer);
    if (user === undefined) sendJson(response, 401, { error: 'invalid_token' });
    else sendJson(response, 200, { sub: user, name: user, email: `${user}@corp.example` });
  };
  const signIn = ({ response, form }: Exchange): void => {
    response.setHeader('set-cookie', `idp_user=${form.get('user') ?? ''}; Path=/; HttpOnly`);
    redirect(response, new URL(form.get('next') ?? '/', provider.url).href);
  };
  const routes: Record<string, (exchange: Exchange) => void | Promise<void>> = {
    '/.well-known/openid-configuration': discovery,
    '/.well-known/oauth-authorization-server': discovery,
    '/jwks': jwks,
    '/authorize': authorize,
    '/sign-in': signIn,
    '/token': token,
    '/userinfo': userInfo,
  };
  const listener = await listen(
    async (exchange) => {
      provider.hits.push(exchange.url.pathname);
      const route = routes[exchange.url.pathname];
      if (route) await route(exchange);
      else sendJson(exchange.response, 404, { error: 'not_found' });
    },
    { tls },
  );

  const provider: IdentityProvider = {
    ...listener,
    hits: [],
    keysBroken: false,
    authTime: undefined,
    gate: undefined,
    forge,
    mint: (claims = {}, signing = {}) =>
      signed(
        {
          sub: 'alice',
          client_id: 'test-client',
          scope: 'mcp:tools',
          jti: planted('token'),
          ...claims,
        },
        signing,
      ),
    rotate: (alg = 'RS256') => (keys = [...keys.filter((key) => key.alg !== alg), generate(alg)]),
    idToken: (user) =>
      signed({ sub: user, aud: Object.keys(clients)[0], nonce: randomUUID() }, { typ: 'JWT' }),
    publicKeyPem: (alg = 'RS256') =>
      newest(alg).publicKey.export({ type: 'spki', format: 'pem' }) as string,
    count: (path) => provider.hits.filter((hit) => hit === path).length,
  };
  return provider;
}
