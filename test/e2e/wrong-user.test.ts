import { afterAll, describe, expect, test } from 'vitest';
import type { CookieBrowser, Page } from '../support/cookie-browser.ts';
import type { UrlElicitation } from '../support/net.ts';
import { startWorld } from '../support/world.ts';
import { never } from '../support/until.ts';

// Who opens a link is who asked for it (invariant 8; case L5; issue 2, "Bad input").

const world = await startWorld();
afterAll(() => world.stop());

const { acme, stack } = world;
const atAcme = new RegExp(`^${acme.url}/authorize`);
const withoutIds = (page: Page) => page.visible.replace(/[\w-]{16,}/g, '…');
const vaulted = (user: string) =>
  stack.redis.client.exists(`viaduct:vault:{${world.userId(user)}}:acme-drive`);

async function link(user: string): Promise<UrlElicitation> {
  return world.askForLink(await world.client(user).initialize());
}

/** The person has approved; the browser stands before the third party's address. */
async function approved(
  user: string,
): Promise<{ browser: CookieBrowser; asked: UrlElicitation; url: string }> {
  const asked = await link(user);
  const browser = world.browser(user);
  await browser.open(asked.url);
  const page = await browser.submit({ decision: 'approve', stopAt: atAcme });
  return { browser, asked, url: page.stoppedAt! };
}

/** … and has allowed it there: the callback address with its code and state, not yet opened. */
async function callback(
  user: string,
): Promise<{ browser: CookieBrowser; asked: UrlElicitation; url: URL }> {
  const { browser, asked, url } = await approved(user);
  const page = await browser.open(url, { stopAt: `^${world.publicUrl}/connect/callback` });
  return { browser, asked, url: new URL(page.stoppedAt!) };
}

async function refuses(browser: CookieBrowser, url: URL | string): Promise<Page> {
  const before = acme.exchanges;
  const page = await browser.open(String(url));
  expect(page.status).toBeGreaterThanOrEqual(400);
  expect(page.status).toBeLessThan(500);
  expect(page.headers['content-type']).toMatch(/^text\/html/);
  expect(page.forms.flatMap((form) => form.buttons).map((b) => b.name)).not.toContain('decision');
  await never('a code was exchanged', () => acme.exchanges > before, { forMs: 300 });
  return page;
}

describe('a link in other hands', () => {
  test('[L5] bob sees the page of an unknown link, it is audited, and the link still works for alice', async () => {
    const asked = await link('alice');
    const page = await refuses(world.browser('bob'), asked.url);
    const unknown = await refuses(
      world.browser('bob'),
      `${world.publicUrl}/connect/${'x'.repeat(asked.elicitationId.length)}`,
    );
    expect(page.status).toBe(404);
    expect(unknown.status).toBe(404);
    expect(withoutIds(page)).toBe(withoutIds(unknown));

    const status = await refuses(world.browser('bob'), `${asked.url}/status`);
    expect(status.status).toBe(404);
    const attempts = stack
      .audit('link.wrong_user')
      .filter(({ audit }) => audit!['elicitationId'] === asked.elicitationId);
    expect(attempts.length).toBeGreaterThan(0);
    expect(attempts[0]!.audit!['userId']).toBe(world.userId('bob'));
    // Counted for who tries, and readable in the record that was tried.
    const counts = attempts.map(({ audit }) => Number(audit!['times']));
    expect(new Set(counts).size).toBe(attempts.length);
    const { client: redis } = stack.redis;
    const count = `viaduct:stranger:{${world.userId('bob')}}`;
    expect(await redis.get(count)).toBe(String(Math.max(...counts)));
    expect(await redis.ttl(count)).toBeGreaterThan(0);
    const record = `viaduct:elicitation:{${world.userId('alice')}}:${asked.elicitationId}`;
    const [strangers, last] = await redis.hmget(record, 'strangers', 'lastStranger');
    expect(Number(strangers)).toBe(attempts.length);
    expect(last).toBe(world.userId('bob'));
    const shown = await stack.pods[0]!.admin(`/console/elicitations?id=${asked.elicitationId}`);
    expect(shown.text).toContain(world.userId('bob'));

    const browser = world.browser('alice');
    await world.walk(browser, asked.url);
    await world.untilState(browser, asked.url, 'completed');
    expect(await vaulted('bob')).toBe(0);
  });

  test('[L5] a browser that nobody has logged in to is sent to log in first', async () => {
    const asked = await link('carol');
    const page = await world.browser().open(asked.url);
    expect(page.url).toMatch(new RegExp(`^${world.idp.url}/authorize`));
    const login = new URL(page.url).searchParams;
    expect(login.get('code_challenge_method')).toBe('S256');
    expect(login.get('redirect_uri')).toBe(`${world.publicUrl}/login/callback`);
  });

  test('[L5] the third party’s address, finished in bob’s browser, connects nobody and consumes nothing', async () => {
    const { browser, asked, url } = await approved('dora');
    const bob = world.browser('bob');
    await bob.open(`${world.publicUrl}/connections`); // logged in
    await refuses(bob, url);
    expect(await vaulted('dora')).toBe(0);
    expect(await vaulted('bob')).toBe(0);
    await browser.open(url);
    await world.untilState(browser, asked.url, 'completed');
  });

  test('[L5] nor does it in another browser of the same person, or in one without a session', async () => {
    const { browser, asked, url } = await callback('ed');
    const elsewhere = world.browser('ed');
    await elsewhere.open(`${world.publicUrl}/connections`);
    await refuses(elsewhere, url);
    await refuses(world.browser(), url);
    expect(stack.audit('callback.refused').length).toBeGreaterThanOrEqual(2);
    await browser.open(url.href);
    await world.untilState(browser, asked.url, 'completed');
  });
});

describe('a callback that is not what was agreed', () => {
  test('[flow.state] a missing, altered or foreign state changes nothing', async () => {
    const { browser, asked, url } = await callback('fay');
    const foreign = await callback('gus');
    const state = url.searchParams.get('state')!;
    const altered = `${state.startsWith('A') ? 'B' : 'A'}${state.slice(1)}`;
    for (const wrong of [null, '', altered, `${state}x`, foreign.url.searchParams.get('state')]) {
      const changed = new URL(url);
      changed.searchParams.delete('state');
      if (wrong !== null) changed.searchParams.set('state', wrong);
      await refuses(browser.clone(), changed);
    }
    await browser.open(url.href);
    await world.untilState(browser, asked.url, 'completed');
    await foreign.browser.open(foreign.url.href);
    await world.untilState(foreign.browser, foreign.asked.url, 'completed');
  });

  test('[flow.state] an error with a wrong state ends nobody’s flow', async () => {
    const { browser, asked, url } = await callback('hal');
    const wrong = new URL(url);
    wrong.search = new URLSearchParams({ error: 'access_denied', state: 'made-up' }).toString();
    await refuses(browser.clone(), wrong);
    await browser.open(url.href);
    await world.untilState(browser, asked.url, 'completed');
  });

  test('[flow.once] the same callback twice, and twice at once, is one exchange', async () => {
    const { browser, asked, url } = await callback('ida');
    const before = acme.exchanges;
    await Promise.all([browser.clone().open(url.href), browser.clone().open(url.href)]);
    await world.untilState(browser, asked.url, 'completed');
    const replay = await browser.open(url.href);
    expect(replay.status).toBeLessThan(500);
    await never('another exchange', () => acme.exchanges > before + 1);
    expect(acme.exchanges).toBe(before + 1);
    expect(await world.state(browser, asked.url)).toBe('completed');
  });

  test('[flow.two-tabs] the consent page in two tabs, approved in both, is one exchange', async () => {
    const asked = await link('jan');
    const one = world.browser('jan');
    await one.open(asked.url);
    const two = one.clone();
    await two.open(asked.url);
    const before = acme.exchanges;
    const pages = [];
    for (const tab of [one, two]) {
      pages.push(await tab.submit({ decision: 'approve', stopAt: atAcme }));
    }
    for (const [i, page] of pages.entries()) {
      if (page.stoppedAt !== undefined) await [one, two][i]!.open(page.stoppedAt);
      else expect(page.status).toBeLessThan(500);
    }
    await world.untilState(one, asked.url, 'completed');
    await never('a second exchange', () => acme.exchanges > before + 1);
  });

  test('[flow.iss] an answer in the name of another issuer is not taken (RFC 9207)', async () => {
    acme.issOverride = 'https://evil.example';
    try {
      const { browser, asked, url } = await callback('kim');
      const before = acme.exchanges;
      const page = await browser.open(url.href);
      expect(page.status).toBeLessThan(500);
      await never('the code was exchanged', () => acme.exchanges > before);
      expect(await world.state(browser, asked.url)).not.toBe('completed');
      expect(await vaulted('kim')).toBe(0);
    } finally {
      acme.issOverride = undefined;
    }
  });
});
