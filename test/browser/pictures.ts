import { mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { Browser, BrowserContextOptions, Page } from 'playwright-core';
import {
  PHONE,
  approve,
  deny,
  heading,
  launchChromium,
  openPage,
  signIn,
} from '../support/chromium.ts';
import { listen } from '../support/net.ts';
import { startWorld, type World } from '../support/world.ts';
import { Gate } from '../support/until.ts';
import { startConsoleScenes } from './console-pictures.ts';
import { startOauthScenes } from './oauth-pictures.ts';

// Pictures of every page that a person meets, for a person to look at: light, dark, and on a phone. Run with Node 24
// after a build: `node test/browser/pictures.ts [folder [part of a scene's name]]`.

const only = process.argv[3];
const folder = process.argv[2] ?? new URL('../results/pictures', import.meta.url).pathname;
const looks: Record<string, BrowserContextOptions> = {
  light: { colorScheme: 'light' },
  dark: { colorScheme: 'dark' },
  phone: { ...PHONE, colorScheme: 'light' },
  'phone-dark': { ...PHONE, colorScheme: 'dark' },
};

async function link(world: World, user: string): Promise<string> {
  const client = await world.client(user, { name: 'Desk Assistant' }).initialize();
  return (await world.askForLink(client)).url;
}

/** The consent page, ready to be decided on. */
async function consent(page: Page, url: string, user: string): Promise<void> {
  await page.goto(url);
  await signIn(page, user);
  await approve(page).waitFor();
}

type Scene = (page: Page, world: World, hurried: World, user: string) => Promise<void>;

const scenes: Record<string, Scene> = {
  consent: async (page, world, _hurried, user) => consent(page, await link(world, user), user),
  working: async (page, world, _hurried, user) => {
    world.acme.gates.token = new Gate();
    await consent(page, await link(world, user), user);
    await approve(page).click();
    await page.waitForURL('**/status');
    world.acme.gates.token = undefined;
  },
  connected: async (page, world, _hurried, user) => {
    await consent(page, await link(world, user), user);
    await approve(page).click();
    await page.waitForURL('**/status');
    await heading(page, /is connected/i).waitFor();
  },
  'consent-second-client': async (page, world, _hurried, user) => {
    await world.connect(await world.client(user).initialize(), user);
    const other = world.client(user, { name: 'Another Client', claims: { client_id: 'other' } });
    await consent(page, (await world.askForLink(await other.initialize())).url, user);
  },
  'wrong-user': async (page, world, _hurried, user) => {
    await page.goto(await link(world, user));
    await signIn(page, 'somebody-else');
    await page.waitForURL('**/connect/*');
  },
  expired: async (page, _world, hurried, user) => {
    const url = await link(hurried, user);
    await hurried.untilState(hurried.browser(user), url, 'expired');
    await page.goto(url);
    await signIn(page, user);
    await heading(page, /expired/i).waitFor();
  },
  declined: async (page, world, _hurried, user) => {
    await consent(page, await link(world, user), user);
    await deny(page).click();
    await page.waitForLoadState();
  },
  failed: async (page, world, _hurried, user) => {
    const url = await link(world, user);
    world.acme.failTokens('invalid-grant');
    await consent(page, url, user);
    await approve(page).click();
    await world.untilState(await visitor(page, world, user), url, 'failed');
    await page.goto(`${url}/status`);
  },
  connections: async (page, world, _hurried, user) => {
    await world.connect(await world.client(user, { name: 'Desk Assistant' }).initialize(), user);
    await page.goto(`${world.publicUrl}/connections`);
    await signIn(page, user);
    await page.waitForURL('**/connections');
  },
  'connections-empty': async (page, world, _hurried, user) => {
    await page.goto(`${world.publicUrl}/connections`);
    await signIn(page, user);
    await page.waitForURL('**/connections');
  },
};

/** Of a world whose one connection is a key that is typed. */
const typed: Record<string, Scene> = {
  'secret-form': async (page, world, _hurried, user) =>
    consent(page, await link(world, user), user),
  'secret-wrong': async (page, world, _hurried, user) => {
    await consent(page, await link(world, user), user);
    await page.getByLabel('API key').fill('a wrong key');
    await approve(page).click();
    await page.getByRole('link', { name: 'Try again' }).waitFor();
  },
  'secret-again': async (page, world, hurried, user) => {
    await typed['secret-wrong']!(page, world, hurried, user);
    await page.getByRole('link', { name: 'Try again' }).click();
    await page.getByText(/tries are left/).waitFor();
  },
  'connections-three': async (page, world, _hurried, user) => {
    const client = await world.client(user, { name: 'Desk Assistant' }).initialize();
    await consent(page, (await world.askForLink(client)).url, user);
    await page.getByLabel('API key').fill(GOOD_KEY);
    await approve(page).click();
    await heading(page, /is connected/i).waitFor();
    const other = world.client(user, {
      name: 'Another Client',
      claims: { client_id: 'other' },
      capabilities: {},
    });
    await (await other.initialize()).callTool('echo', {});
    await page.goto(`${world.publicUrl}/connections`);
  },
  disconnected: async (page, world, hurried, user) => {
    await typed['connections-three']!(page, world, hurried, user);
    await page.getByRole('button', { name: 'Disconnect' }).click();
    await page.getByText('Connected', { exact: true }).waitFor({ state: 'detached' });
  },
};
const GOOD_KEY = 'key-that-the-check-takes';

async function visitor(page: Page, world: World, user: string) {
  const twin = world.browser(user);
  for (const { name, value, domain } of await page.context().cookies())
    twin.setCookie(domain, name, value);
  return twin;
}

async function take(
  chrome: Browser,
  all: Record<string, (page: Page, user: string) => Promise<void>>,
): Promise<void> {
  for (const [scene, play] of Object.entries(all)) {
    if (only !== undefined && !scene.includes(only)) continue;
    for (const [look, options] of Object.entries(looks)) {
      const { page } = await openPage(chrome, options);
      await play(page, `${scene}-${look}`);
      const path = join(folder, `${scene}-${look}.png`);
      await page.screenshot({ path, fullPage: true });
      console.log(path);
      await page.context().close();
    }
  }
}

const within = (all: Record<string, Scene>, world: World, hurried: World) =>
  Object.fromEntries(
    Object.entries(all).map(([name, play]) => [
      name,
      (page: Page, user: string) => play(page, world, hurried, user),
    ]),
  );

rmSync(folder, { recursive: true, force: true });
mkdirSync(folder, { recursive: true });
const world = await startWorld({ pods: 1 });
const hurried = await startWorld({ pods: 1, config: { elicitation: { ttlSeconds: 2 } } });
const weather = await listen(({ request, response }) => {
  response.writeHead(request.headers['x-api-key'] === GOOD_KEY ? 200 : 401).end();
});
const key = (displayName: string, fields: object[]) => ({
  type: 'secret',
  displayName,
  help: 'You find it in your account settings, under “Developers”.',
  fields,
  verify: { url: `${weather.url}/me` },
  inject: { header: 'X-Api-Key', value: '{{apiKey}}' },
});
const apiKey = { name: 'apiKey', label: 'API key', secret: true };
const secrets = await startWorld({
  pods: 1,
  config: {
    connections: {
      'acme-drive': key('Weather', [apiKey]),
      archive: key('Archive', [apiKey]),
      internal: {
        type: 'token-exchange',
        displayName: 'Internal services',
        tokenEndpoint: `${weather.url}/token`,
        audience: 'internal',
      },
    },
  },
});
const oauth = await startOauthScenes();
const desk = await startConsoleScenes();
const chrome = await launchChromium();
try {
  await take(chrome, within(scenes, world, hurried));
  await take(chrome, within(typed, secrets, hurried));
  await take(chrome, oauth.scenes);
  await take(chrome, desk.scenes);
} finally {
  await chrome.close();
  await Promise.all([world.stop(), hurried.stop(), secrets.stop(), oauth.stop(), desk.stop()]);
  await weather.stop();
}
