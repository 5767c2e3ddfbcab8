import { afterAll, describe, expect, test } from 'vitest';
import type { Page } from 'playwright-core';
import {
  PHONE,
  approve,
  deny,
  heading,
  launchChromium,
  openPage,
  signIn,
} from '../support/chromium.ts';
import { startWorld } from '../support/world.ts';
import { Gate } from '../support/until.ts';

// The person's part of the main job in a real browser (issue 2; design, section 6 "Pages").

const world = await startWorld();
const chrome = await launchChromium();
afterAll(async () => {
  await chrome.close();
  await world.stop();
});
const { acme } = world;
const TIMEOUT = { timeout: 15_000 };

async function link(user: string, name = 'Desk Assistant') {
  const client = await world.client(user, { name }).initialize();
  const stream = await client.listen();
  return { client, stream, asked: await world.askForLink(client) };
}

/** What a screen reader needs of every page. */
async function expectReadable(page: Page): Promise<void> {
  expect(await page.title()).not.toBe('');
  expect(await page.locator('html').getAttribute('lang')).toBeTruthy();
  expect(await page.getByRole('heading', { level: 1 }).count()).toBe(1);
  expect(await page.getByRole('main').count()).toBe(1);
  for (const button of await page.getByRole('button').all()) {
    expect((await button.textContent())?.trim()).not.toBe('');
  }
}

describe('with JavaScript', () => {
  test('[browser.flow] login, consent, third party, and a status page that tells the end by itself', async () => {
    const { client, stream, asked } = await link('ann');
    const { page, problems, requests } = await openPage(chrome);
    acme.person = 'ask';
    const gate = new Gate();
    acme.gates.token = gate;
    try {
      await page.goto(asked.url);
      await signIn(page, 'ann');
      await page.waitForURL(asked.url, TIMEOUT);
      for (const fact of ['Acme Drive', 'Desk Assistant', 'test-client', 'drive.read']) {
        expect(await page.locator('body').innerText()).toContain(fact);
      }
      await expectReadable(page);
      await approve(page).click();
      await page.getByRole('button', { name: 'Allow' }).click(TIMEOUT);
      await page.waitForURL(`${asked.url}/status`, TIMEOUT);
      await expectReadable(page);
      const working = await page.locator('main').innerText();
      gate.open();
      await stream.notification('notifications/elicitation/complete');
      await heading(page, /is connected/i).waitFor(TIMEOUT);
      expect(await page.locator('main').innerText()).not.toBe(working);
      await expectReadable(page);
    } finally {
      gate.open();
      acme.gates.token = undefined;
      acme.person = 'allows';
    }
    expect(problems.filter((problem) => !problem.endsWith('/favicon.ico'))).toEqual([]);
    const known = [world.publicUrl, world.idp.url, acme.url];
    const strange = requests.filter((url) => !known.some((origin) => url.startsWith(origin)));
    expect(strange, 'third-party resources').toEqual([]);
    expect((await client.callTool('echo', {})).result).toBeDefined();
    await page.context().close();
  });

  test('[browser.keyboard] everything can be done without a mouse', async () => {
    const { stream, asked } = await link('ben');
    const { page } = await openPage(chrome);
    await page.goto(asked.url);
    await signIn(page, 'ben');
    await approve(page).waitFor(TIMEOUT);
    for (let i = 0; i < 30; i++) {
      if (await approve(page).evaluate((button) => button === document.activeElement)) break;
      await page.keyboard.press('Tab');
    }
    const ring = await approve(page).evaluate((button) => {
      const style = getComputedStyle(button);
      return style.outlineStyle !== 'none' || style.boxShadow !== 'none';
    });
    expect(ring, 'the focus can be seen').toBe(true);
    await page.keyboard.press('Enter');
    await stream.notification('notifications/elicitation/complete');
    await page.context().close();
  });

  test('[browser.declined] saying no ends the flow, and says so', async () => {
    const { asked } = await link('cleo');
    const { page } = await openPage(chrome);
    await page.goto(asked.url);
    await signIn(page, 'cleo');
    await deny(page).click(TIMEOUT);
    await page.waitForLoadState();
    await expectReadable(page);
    expect(await world.state(await cookieTwin(page, 'cleo'), asked.url)).toBe('declined');
    await page.context().close();
  });

  test('[browser.wrong-user] someone else sees nothing of it', async () => {
    const { asked } = await link('dan');
    const { page } = await openPage(chrome);
    await page.goto(asked.url);
    await signIn(page, 'eve');
    await page.waitForURL(asked.url, TIMEOUT);
    await expectReadable(page);
    const text = await page.locator('body').innerText();
    for (const fact of ['Acme Drive', 'Desk Assistant', 'dan']) expect(text).not.toContain(fact);
    expect(await approve(page).count()).toBe(0);
    await page.context().close();
  });

  test('[browser.injection] what a client calls itself is text', async () => {
    const { asked } = await link('fay', '<img src=x onerror=alert(1)><script>alert(2)</script>');
    const { page, problems, requests } = await openPage(chrome);
    page.on('dialog', (dialog) => problems.push(dialog.message()));
    await page.goto(asked.url);
    await signIn(page, 'fay');
    await approve(page).waitFor(TIMEOUT);
    expect(await page.locator('body').innerText()).toContain('<script>alert(2)</script>');
    expect(problems.filter((problem) => !problem.endsWith('/favicon.ico'))).toEqual([]);
    expect(requests.filter((url) => url.endsWith('/x'))).toEqual([]);
    await page.context().close();
  });
});

/** A plain browser logged in as the same person. */
async function cookieTwin(page: Page, user: string) {
  const twin = world.browser(user);
  for (const { name, value, domain } of await page.context().cookies())
    twin.setCookie(domain, name, value);
  return twin;
}

describe('without JavaScript', () => {
  test('[browser.no-script] the whole flow works, and the status page comes to its end', async () => {
    const { stream, asked } = await link('gus');
    const { page } = await openPage(chrome, { javaScriptEnabled: false });
    const gate = new Gate();
    acme.gates.token = gate;
    try {
      await page.goto(asked.url);
      await signIn(page, 'gus');
      await approve(page).click(TIMEOUT);
      await page.waitForURL(`${asked.url}/status`, TIMEOUT);
      gate.open();
      await stream.notification('notifications/elicitation/complete');
      await heading(page, /is connected/i).waitFor(TIMEOUT);
    } finally {
      gate.open();
      acme.gates.token = undefined;
    }
    await page.context().close();
  });
});

describe('on a phone, in the dark', () => {
  test('[browser.phone] no page is wider than the screen, and both colour schemes can be read', async () => {
    const { asked } = await link('hal', 'A Client With a Rather Long Name For a Small Screen');
    const background = (page: Page) =>
      page.evaluate(() => {
        const channels = getComputedStyle(document.body).backgroundColor.match(/[\d.]+/g) ?? [];
        const own = channels.length > 3 && Number(channels[3]) === 0;
        const shown = own ? getComputedStyle(document.documentElement).backgroundColor : undefined;
        const [r = 0, g = 0, b = 0] = (shown?.match(/[\d.]+/g) ?? channels).map(Number);
        return (r + g + b) / 3;
      });
    const shades: Record<string, number> = {};
    for (const colorScheme of ['light', 'dark'] as const) {
      const { page } = await openPage(chrome, { ...PHONE, colorScheme });
      await page.goto(asked.url);
      await signIn(page, 'hal');
      await approve(page).waitFor(TIMEOUT);
      for (const address of [asked.url, `${world.publicUrl}/connections`, `${asked.url}/status`]) {
        await page.goto(address);
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        expect(width, address).toBeLessThanOrEqual(390);
      }
      await page.goto(asked.url);
      shades[colorScheme] = await background(page);
      const box = await approve(page).boundingBox();
      expect(box!.height, 'a button for a finger').toBeGreaterThanOrEqual(40);
      await page.context().close();
    }
    expect(shades['light']).toBeGreaterThan(180);
    expect(shades['dark']).toBeLessThan(80);
  });
});
