import { chromium, type Browser, type BrowserContextOptions, type Page } from 'playwright-core';
import { program } from './process.ts';

/** The machine's own Chromium: nothing is downloaded, and nothing but the test's addresses is visited. */
export function launchChromium(): Promise<Browser> {
  return chromium.launch({
    executablePath: program('chromium', 'chromium', ['chromium-browser', 'google-chrome-stable']),
    headless: true,
    args: [
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
    ],
  });
}

export interface Watched {
  page: Page;
  /** Errors on the console: scripts that failed, and what the CSP refused. */
  problems: string[];
  /** Every address that the page asked for. */
  requests: string[];
}

export async function openPage(
  browser: Browser,
  options: BrowserContextOptions = {},
): Promise<Watched> {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  const watched: Watched = { page, problems: [], requests: [] };
  page.on('console', (message) => {
    if (message.type() !== 'error') return;
    watched.problems.push(`${message.text()} at ${message.location().url}`);
  });
  page.on('pageerror', (error) => watched.problems.push(error.message));
  page.on('request', (request) => watched.requests.push(request.url()));
  return watched;
}

export const PHONE: BrowserContextOptions = {
  viewport: { width: 390, height: 844 },
  deviceScaleFactor: 2,
  isMobile: true,
  hasTouch: true,
};

/** The identity provider's form; nothing when the browser is logged in there already. */
export async function signIn(page: Page, user: string): Promise<void> {
  const field = page.locator('input[name=user]');
  if ((await field.count()) === 0) return;
  await field.fill(user);
  await page.getByRole('button', { name: 'Sign in' }).click();
}

/** The page says so itself, in its heading. */
export const heading = (page: Page, name: RegExp) => page.getByRole('heading', { level: 1, name });
export const approve = (page: Page) => page.locator('button[name=decision][value=approve]');
export const deny = (page: Page) => page.locator('button[name=decision][value=deny]');
