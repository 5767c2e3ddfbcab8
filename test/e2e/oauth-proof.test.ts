import { randomBytes } from 'node:crypto';
import { decodeJwt } from 'jose';
import { afterAll, describe, expect, test } from 'vitest';
import { CookieBrowser, type Page } from '../support/cookie-browser.ts';
import { startIdentityProvider } from '../support/identity-provider.ts';
import { REDIRECT, startOauthWorld } from '../support/oauth-world.ts';

// Proof of who is there that is fresh enough (OpenID Connect Core, 3.1.2.1): a client may ask for a login of now, or
// for one that was not long ago. Whose browser is merely still signed in decides nothing then.

const HOUR = 3_600;
const now = (): number => Math.floor(Date.now() / 1000);
const codeOf = (page: Page): string => new URL(page.stoppedAt!).searchParams.get('code') ?? '';

describe('a development login', async () => {
  const world = await startOauthWorld();
  afterAll(() => world.stop());
  const client = await world.registered();
  const ask = (extra: Record<string, string>) =>
    world.authorizeUrl({ clientId: client.client_id, scope: 'mcp:tools openid', extra });

  test.for<[string, Record<string, string>]>([
    ['prompt=login', { prompt: 'login' }],
    ['max_age=0', { max_age: '0' }],
  ])('[oauth.proof] %s asks who it is, though somebody is signed in', async ([what, extra]) => {
    const user = what.replaceAll(/\W/g, '-');
    const browser = await world.browser(user);
    const { url, verifier } = ask(extra);
    const begunAt = now();
    const login = await browser.open(url);
    expect(login.url).toContain('/login/development');
    const consent = await browser.submit({ fields: { user } });
    expect(consent.url).toContain('/oauth/interaction/');
    const back = await browser.submit({ decision: 'approve', stopAt: REDIRECT });
    const answer = await world.token({
      grant_type: 'authorization_code',
      client_id: client.client_id,
      redirect_uri: REDIRECT,
      code: codeOf(back),
      code_verifier: verifier,
    });
    const claims = decodeJwt(String((answer.json as Record<string, unknown>)['id_token']));
    expect(claims['auth_time']).toBeGreaterThanOrEqual(begunAt);
  });

  test('[oauth.proof] a form that skips the question decides nothing', async () => {
    const victim = await world.browser('carol');
    const consent = await victim.open(ask({}).url);
    const { csrf } = consent.forms.find(({ buttons }) => buttons.length > 0)!.fields;
    const login = await victim.open(ask({ prompt: 'login' }).url);
    expect(login.url).toContain('/login/development');
    const uid = /interaction\/([\w-]+)/.exec(decodeURIComponent(login.url))![1]!;
    const body = new URLSearchParams({ csrf: csrf!, decision: 'approve' }).toString();
    const after = await victim.open(`${world.issuer}/interaction/${uid}`, { method: 'POST', body });
    expect(after.url).toContain('/login/development');
  });

  test('[oauth.proof] a login that is recent enough is enough', async () => {
    const browser = await world.browser('dora');
    expect((await browser.open(ask({ max_age: String(HOUR) }).url)).url).toContain('/interaction/');
  });

  test('[oauth.proof] prompt=none shows nothing', async () => {
    const browser = await world.browser('erin');
    const back = await browser.open(ask({ prompt: 'none' }).url, { stopAt: REDIRECT });
    const answer = new URL(back.stoppedAt!).searchParams;
    expect(answer.get('error')).toMatch(/^(login|consent|interaction)_required$/);
    expect(answer.get('iss')).toBe(world.issuer);
  });
});

describe('the company’s provider', async () => {
  const secret = randomBytes(18).toString('hex');
  const idp = await startIdentityProvider({ clients: { viaduct: { secret } } });
  const world = await startOauthWorld({
    builtin: {
      login: { type: 'oidc', issuer: idp.url, clientId: 'viaduct', clientSecret: secret },
    },
  });
  afterAll(async () => {
    await world.stop();
    await idp.stop();
  });
  const client = await world.registered();
  const ask = (extra: Record<string, string>) =>
    world.authorizeUrl({ clientId: client.client_id, scope: 'mcp:tools openid', extra }).url;
  const signedIn = async (user: string, authTime: number | undefined): Promise<CookieBrowser> => {
    idp.authTime = authTime;
    const browser = new CookieBrowser().setCookie('127.0.0.1', 'idp_user', user);
    browser.setCookie('localhost', 'idp_user', user);
    expect((await browser.open(ask({}))).url).toContain('/oauth/interaction/');
    return browser;
  };

  test.for<[string, number | undefined, Record<string, string>]>([
    ['prompt=login', now(), { prompt: 'login' }],
    ['an old login', now() - 2 * HOUR, { max_age: String(HOUR) }],
    ['a login of nobody knows when', undefined, { max_age: String(HOUR) }],
  ])('[oauth.proof] %s: it is asked again, too', async ([what, authTime, extra]) => {
    const user = what.replaceAll(/\W/g, '-');
    const browser = await signedIn(user, authTime);
    const form = await browser.open(ask(extra));
    expect(new URL(form.url).origin, form.visible).toBe(new URL(idp.url).origin);
    idp.authTime = authTime === undefined ? undefined : now();
    const consent = await browser.submit({ fields: { user } });
    expect(consent.url).toContain('/oauth/interaction/');
    const back = await browser.submit({ decision: 'approve', stopAt: REDIRECT });
    expect(codeOf(back)).not.toBe('');
  });

  test('[oauth.proof] a login of an hour ago is enough for two', async () => {
    const browser = await signedIn('alice', now() - HOUR);
    expect((await browser.open(ask({ max_age: String(2 * HOUR) }))).url).toContain('/interaction/');
  });

  test('[oauth.proof] a provider that did not ask again lets nobody in', async () => {
    const browser = await signedIn('bob', now() - 2 * HOUR);
    await browser.open(ask({ prompt: 'login' }));
    const refused = await browser.submit({ fields: { user: 'bob' } });
    expect(refused.status).toBe(403);
    expect(refused.visible).toContain('did not confirm who you are');
  });
});
