import { CookieBrowser, type Page } from './cookie-browser.ts';
import { startIdentityProvider, type Claims, type IdentityProvider } from './identity-provider.ts';
import { startLegacyUpstream, type LegacyUpstream } from './legacy-upstream.ts';
import { McpClient, type At, type ClientOptions } from './mcp-client.ts';
import type { UrlElicitation } from './net.ts';
import { userIdOf } from './oauth.ts';
import { planted } from './planted.ts';
import { startStack, type Configuration, type Stack, type StackOptions } from './stack.ts';
import { startThirdParty, type ThirdParty } from './third-party.ts';
import { until } from './until.ts';

const PLENTY = { points: 100_000, seconds: 60 };

export interface WorldOptions extends Omit<StackOptions, 'config'> {
  /** Top-level members of the configuration, over the usual ones. */
  config?: Configuration;
  auth?: Configuration;
  connection?: Configuration;
  /** Members of the upstream `files`, over the usual ones. */
  upstream?: Configuration;
  /** More upstreams, by name: without a connection. */
  plainUpstreams?: string[];
  /** And such as the test has started itself. */
  ownUpstreams?: Configuration[];
  /** Before the product starts, e.g. to have a fake fail from the beginning. */
  prepare?: (fakes: { idp: IdentityProvider; acme: ThirdParty; files: LegacyUpstream }) => void;
}

export interface WorldClient extends Omit<ClientOptions, 'url' | 'token'> {
  upstream?: string;
  claims?: Claims;
  /** null for a caller without a token. */
  token?: string | null;
}

/**
 * The usual world: an identity provider, a third party, the upstream `files` that needs the person's credential at
 * that third party (and `plain` ones that need none), and between them the product: two pods, one worker, one
 * Redis. Anybody may log in; a test that needs a clean slate takes a new name.
 */
export interface World {
  readonly idp: IdentityProvider;
  readonly acme: ThirdParty;
  readonly files: LegacyUpstream;
  readonly plain: Record<string, LegacyUpstream>;
  readonly stack: Stack;
  readonly publicUrl: string;
  readonly secrets: string[];
  endpoint(upstream?: string): string;
  token(user: string, claims?: Claims, upstream?: string): string;
  client(user: string, options?: WorldClient): McpClient;
  browser(user?: string): CookieBrowser;
  userId(user: string): string;
  /** The one link that a call is answered with while the credential is missing. */
  askForLink(client: McpClient, at?: At): Promise<UrlElicitation>;
  /** The person walks the whole flow of a link; the page that it ends on. */
  walk(browser: CookieBrowser, link: string): Promise<Page>;
  /** `user` is connected afterwards, for this client. */
  connect(client: McpClient, user: string): Promise<UrlElicitation>;
  /** What the status page says to a program; logs the browser in when it is not. */
  state(browser: CookieBrowser, link: string): Promise<string | undefined>;
  untilState(
    browser: CookieBrowser,
    link: string,
    state: string,
    timeoutMs?: number,
  ): Promise<void>;
  stop(): Promise<void>;
}

export const MISSING_CREDENTIAL = -32042;

export async function startWorld(options: WorldOptions = {}): Promise<World> {
  const {
    config,
    auth,
    connection,
    upstream,
    plainUpstreams = [],
    ownUpstreams = [],
    env,
    prepare,
    ...rest
  } = options;
  const loginSecret = planted('login');
  const acmeSecret = `${planted('client')}+/:`; // what form encoding must not lose
  const idp = await startIdentityProvider({ clients: { viaduct: { secret: loginSecret } } });
  const acme = await startThirdParty({ clients: { 'acme-client': { secret: acmeSecret } } });
  const files = await startLegacyUpstream({ name: 'files' });
  const plain: Record<string, LegacyUpstream> = {};
  for (const name of plainUpstreams) plain[name] = await startLegacyUpstream({ name });
  const fakes = [idp, acme, files, ...Object.values(plain)];

  prepare?.({ idp, acme, files });

  const upstreams = [
    { name: 'files', url: files.endpoint, connection: 'acme-drive', ...upstream },
    ...Object.values(plain).map(({ name, endpoint }) => ({ name, url: endpoint })),
    ...ownUpstreams,
  ].map((one) => ({ allowPrivateNetwork: true, ...one }));
  const stack = await startStack({
    ...rest,
    env: { LOGIN_SECRET: loginSecret, ACME_SECRET: acmeSecret, ...env },
    config: {
      auth: {
        mode: 'external',
        issuer: idp.url,
        baseScopes: ['mcp:tools'],
        login: { clientId: 'viaduct', clientSecret: '${LOGIN_SECRET}' },
        ...auth,
      },
      upstreams,
      connections: {
        'acme-drive': {
          type: 'oauth',
          displayName: 'Acme Drive',
          issuer: acme.url,
          clientId: 'acme-client',
          clientSecret: '${ACME_SECRET}',
          scopes: ['drive.read'],
          inject: { header: 'Authorization', value: 'Bearer {{accessToken}}' },
          ...connection,
        },
      },
      limits: { user: PLENTY, userTool: PLENTY, userElicitations: PLENTY, address: PLENTY },
      ...config,
    },
  }).catch(async (error: unknown) => {
    await Promise.all(fakes.map((fake) => fake.stop()));
    throw error;
  });

  const world: World = {
    idp,
    acme,
    files,
    plain,
    stack,
    publicUrl: stack.publicUrl,
    secrets: [loginSecret, acmeSecret],
    endpoint: (name = 'files') => `${stack.publicUrl}/mcp/${name}`,
    token: (user, claims = {}, name) =>
      idp.mint({ sub: user, aud: world.endpoint(name), ...claims }),
    client: (user, { upstream: name, claims, token, ...more } = {}) =>
      new McpClient({
        url: world.endpoint(name),
        ports: stack.ports,
        token: token === null ? undefined : (token ?? world.token(user, claims, name)),
        ...more,
      }),
    browser: (user) => {
      const browser = new CookieBrowser();
      return user === undefined ? browser : browser.setCookie('127.0.0.1', 'idp_user', user);
    },
    userId: (user) => userIdOf(idp.url, user),
    askForLink: async (client, at) => {
      const { error } = await client.callTool('echo', { text: 'hello' }, at);
      const found = error?.data?.elicitations ?? [];
      if (error?.code !== MISSING_CREDENTIAL || !found[0] || found.length !== 1) {
        throw new Error(`no link was asked for: ${JSON.stringify(error)}`);
      }
      return found[0];
    },
    walk: async (browser, link) => {
      await browser.open(link);
      return browser.submit({ decision: 'approve' });
    },
    connect: async (client, user) => {
      const asked = await world.askForLink(client);
      const browser = world.browser(user);
      await world.walk(browser, asked.url);
      await world.untilState(browser, asked.url, 'completed');
      return asked;
    },
    state: async (browser, link) => {
      if (!browser.cookies.has('localhost')) await browser.open(`${world.publicUrl}/connections`);
      const page = await browser.open(`${link}/status`, { accept: 'application/json' });
      return page.json?.['state'] as string | undefined;
    },
    untilState: async (browser, link, state, timeoutMs = 10_000) => {
      const visitor = browser.clone(); // the browser itself keeps its page
      await until(
        `the flow is ${state}`,
        async () => (await world.state(visitor, link)) === state,
        { timeoutMs, everyMs: 50 },
      );
    },
    stop: async () => {
      try {
        await stack.stop();
      } finally {
        await Promise.all(fakes.map((fake) => fake.stop()));
      }
    },
  };
  return world;
}
