import { afterAll, expect, test } from 'vitest';
import { approve, launchChromium, openPage, signIn } from '../support/chromium.ts';
import { listen, sendJson } from '../support/net.ts';
import { startOauthWorld } from '../support/oauth-world.ts';

// The confused-deputy attack (MCP security best practices), played in Chromium: a victim who is signed in and has
// allowed a client, and an attacker who wants that approval for a redirect of their own.

const world = await startOauthWorld();
const chrome = await launchChromium();
const visits: string[] = [];
const site = () =>
  listen(({ url, response }) => {
    if (url.pathname !== '/favicon.ico') visits.push(url.href);
    sendJson(response, 200, {});
  });
const [honest, attacker] = [await site(), await site()];
afterAll(async () => {
  await chrome.close();
  await world.stop();
  await Promise.all([honest.stop(), attacker.stop()]);
});
const TIMEOUT = { timeout: 20_000 };

test('[oauth.deputy-browser] a remembered consent is spent on its own client and redirect only', async () => {
  const redirectUri = `${honest.url}/callback`;
  const known = await world.registered({ client_name: 'Desk', redirect_uris: [redirectUri] });
  const { page } = await openPage(chrome);
  const ask = (clientId: string, redirect: string) =>
    page.goto(world.authorizeUrl({ clientId, redirectUri: redirect }).url);

  await ask(known.client_id, redirectUri);
  await signIn(page, 'victim');
  await approve(page).click(TIMEOUT);
  await page.waitForURL(`${redirectUri}?*`, TIMEOUT);
  await ask(known.client_id, redirectUri);
  expect(page.url(), 'remembered: back without a question').toContain(`${redirectUri}?code=`);
  const approved = world.stack.audit('client.approved').length;
  visits.length = 0;

  // Another port with the same path would be the same redirect (RFC 8252, 7.3; docs/design/008): paths differ here.
  // The attacker's own client, which says that it is the same
  const steal = `${attacker.url}/steal`;
  const twin = await world.registered({ client_name: 'Desk', redirect_uris: [steal] });
  await ask(twin.client_id, steal);
  expect(new URL(page.url()).origin).toBe(new URL(world.publicUrl).origin);
  expect(await approve(page).isVisible()).toBe(true);
  expect(await page.locator('main').innerText()).toContain(steal);

  // The known client's id, with the attacker's redirect
  for (const redirect of [steal, `${redirectUri}/../steal`, `${redirectUri}?next=${steal}`]) {
    const answer = await ask(known.client_id, redirect);
    expect(answer?.status(), redirect).toBe(400);
    expect(new URL(page.url()).origin).toBe(new URL(world.publicUrl).origin);
    expect(await approve(page).count()).toBe(0);
  }

  expect(visits, 'nobody was sent anything').toEqual([]);
  expect(world.stack.audit('client.approved').length, 'nothing was issued').toBe(approved);
  await page.context().close();
}, 90_000);
