import { createHash, randomBytes } from 'node:crypto';
import { CookieBrowser } from './cookie-browser.ts';
import { startLegacyUpstream, type LegacyUpstream } from './legacy-upstream.ts';
import { send, type Answer } from './net.ts';
import { userIdOf } from './oauth.ts';
import { startStack, type Configuration, type Stack } from './stack.ts';

export const REDIRECT = 'http://127.0.0.1:7777/callback';

export interface Tokens {
  readonly access_token: string;
  readonly refresh_token: string;
  readonly scope?: string;
  readonly [member: string]: unknown;
}

export interface Registered {
  readonly client_id: string;
  readonly client_secret?: string;
  readonly [member: string]: unknown;
}

interface AuthorizeOptions {
  readonly clientId: string;
  readonly redirectUri?: string;
  readonly scope?: string | undefined;
  readonly resource?: string | string[] | undefined;
  readonly extra?: Record<string, string | undefined>;
}

/** The product with its own authorization server, a development login, and two plain upstreams. */
export interface OauthWorld {
  readonly stack: Stack;
  readonly publicUrl: string;
  readonly issuer: string;
  readonly plain: LegacyUpstream;
  readonly at: (pod?: number) => number | undefined;
  endpoint(upstream?: string): string;
  userId(user: string): string;
  register(metadata?: Record<string, unknown>, pod?: number): Promise<Answer>;
  registered(metadata?: Record<string, unknown>, pod?: number): Promise<Registered>;
  /** A browser in which this person is signed in. */
  browser(user: string): Promise<CookieBrowser>;
  authorizeUrl(options: AuthorizeOptions): { url: string; verifier: string; state: string };
  token(
    form: Record<string, string>,
    pod?: number,
    headers?: Record<string, string>,
  ): Promise<Answer>;
  /** Consent included: the code and the verifier that belongs to it. */
  code(
    browser: CookieBrowser,
    options: AuthorizeOptions,
  ): Promise<{ code: string; verifier: string; answer: URLSearchParams }>;
  tokens(browser: CookieBrowser, options: AuthorizeOptions, pod?: number): Promise<Tokens>;
  /** One `initialize` with this token: its answer. */
  call(token: string, upstream?: string, pod?: number): Promise<Answer>;
  stop(): Promise<void>;
}

export async function startOauthWorld(
  options: {
    readonly builtin?: Configuration;
    readonly auth?: Configuration;
    readonly config?: Configuration;
    readonly upstream?: Configuration;
    readonly env?: Record<string, string | undefined>;
  } = {},
): Promise<OauthWorld> {
  const plain = await startLegacyUpstream({ name: 'plain' });
  const plenty = { points: 100_000, seconds: 60 };
  const stack = await startStack({
    ...(options.env && { env: options.env }),
    config: {
      auth: {
        mode: 'builtin',
        builtin: { login: { type: 'development' }, ...options.builtin },
        ...options.auth,
      },
      upstreams: [
        {
          name: 'plain',
          url: plain.endpoint,
          allowPrivateNetwork: true,
          tools: { forbidden: { scopes: ['plain:admin'] } },
          ...options.upstream,
        },
        { name: 'other', url: plain.endpoint, allowPrivateNetwork: true, scopes: ['other:read'] },
      ],
      limits: { user: plenty, userTool: plenty, address: plenty },
      ...options.config,
    },
  });
  const { publicUrl } = stack;
  const issuer = `${publicUrl}/oauth`;
  const at = (pod?: number): number | undefined =>
    pod === undefined ? undefined : stack.ports[pod];

  const world: OauthWorld = {
    stack,
    publicUrl,
    issuer,
    plain,
    at,
    endpoint: (upstream = '') => `${publicUrl}/mcp${upstream === '' ? '' : `/${upstream}`}`,
    userId: (user) => userIdOf(issuer, user),
    register: (metadata = {}, pod) =>
      send(`${issuer}/register`, {
        method: 'POST',
        port: at(pod),
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({
          client_name: 'Test client',
          redirect_uris: [REDIRECT],
          token_endpoint_auth_method: 'none',
          ...metadata,
        }),
      }),
    registered: async (metadata, pod) => {
      const answer = await world.register(metadata, pod);
      if (answer.status !== 201) throw new Error(`register: ${answer.status} ${answer.text}`);
      return answer.json as unknown as Registered;
    },
    browser: async (user) => {
      const browser = new CookieBrowser();
      await browser.open(`${publicUrl}/connections`);
      await browser.submit({ fields: { user } });
      return browser;
    },
    authorizeUrl: ({ clientId, redirectUri = REDIRECT, scope, resource, extra = {} }) => {
      const verifier = randomBytes(32).toString('base64url');
      const state = randomBytes(12).toString('base64url');
      const url = new URL(`${issuer}/authorize`);
      const params: Record<string, string | undefined> = {
        response_type: 'code',
        client_id: clientId,
        redirect_uri: redirectUri,
        state,
        code_challenge: createHash('sha256').update(verifier).digest('base64url'),
        code_challenge_method: 'S256',
        scope,
        ...extra,
      };
      for (const [name, value] of Object.entries(params)) {
        if (value !== undefined) url.searchParams.set(name, value);
      }
      for (const one of [resource ?? []].flat()) url.searchParams.append('resource', one);
      return { url: url.href, verifier, state };
    },
    token: (form, pod, headers = {}) =>
      send(`${issuer}/token`, {
        method: 'POST',
        port: at(pod),
        headers: { 'Content-Type': 'application/x-www-form-urlencoded', ...headers },
        body: new URLSearchParams(form).toString(),
      }),
    code: async (browser, given) => {
      const { redirectUri = REDIRECT } = given;
      const stopAt = new RegExp(`^${redirectUri.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')}`);
      const { url, verifier, state } = world.authorizeUrl(given);
      let page = await browser.open(url, { stopAt });
      if (page.stoppedAt === undefined)
        page = await browser.submit({ decision: 'approve', stopAt });
      if (page.stoppedAt === undefined) {
        throw new Error(`no way back: ${page.status} ${page.url} ${page.visible.slice(0, 400)}`);
      }
      const answer = new URL(page.stoppedAt).searchParams;
      if (answer.get('state') !== state) throw new Error('another state came back');
      return { code: answer.get('code') ?? '', verifier, answer };
    },
    tokens: async (browser, given, pod) => {
      const { code, verifier } = await world.code(browser, given);
      const answer = await world.token(
        {
          grant_type: 'authorization_code',
          client_id: given.clientId,
          redirect_uri: given.redirectUri ?? REDIRECT,
          code,
          code_verifier: verifier,
        },
        pod,
      );
      if (answer.status !== 200) throw new Error(`token: ${answer.status} ${answer.text}`);
      return answer.json as unknown as Tokens;
    },
    call: (token, upstream = '', pod) =>
      send(world.endpoint(upstream), {
        method: 'POST',
        port: at(pod),
        headers: {
          Authorization: `Bearer ${token}`,
          'Content-Type': 'application/json',
          Accept: 'application/json, text/event-stream',
        },
        body: JSON.stringify({
          jsonrpc: '2.0',
          id: 1,
          method: 'initialize',
          params: {
            protocolVersion: '2025-11-25',
            capabilities: {},
            clientInfo: { name: 'raw', version: '1' },
          },
        }),
      }),
    stop: async () => {
      await stack.stop();
      await plain.stop();
    },
  };
  return world;
}
