import { afterAll, expect, test } from 'vitest';
import { listen } from '../support/net.ts';
import { approve, heading, launchChromium, openPage, signIn } from '../support/chromium.ts';
import { startWorld } from '../support/world.ts';

// `/connections` in a real browser (issue 6, item 8): three states, connect ahead of need, live, disconnect.

const GOOD = 'key-that-the-check-takes';
const weather = await listen(({ request, response }) => {
  response.writeHead(request.headers['x-api-key'] === GOOD ? 200 : 401).end();
});
const world = await startWorld({
  config: {
    connections: {
      'acme-drive': {
        type: 'secret',
        displayName: 'Weather',
        fields: [{ name: 'apiKey', label: 'API key', secret: true }],
        verify: { url: `${weather.url}/me` },
        inject: { header: 'X-Api-Key', value: '{{apiKey}}' },
      },
      spare: {
        type: 'secret',
        displayName: 'Spare',
        fields: [{ name: 'k', label: 'Key' }],
        inject: { header: 'X-K', value: '{{k}}' },
      },
    },
  },
});
const chrome = await launchChromium();
afterAll(async () => {
  await chrome.close();
  await world.stop();
  await weather.stop();
});
const TIMEOUT = { timeout: 15_000 };
const address = `${world.publicUrl}/connections`;

test('[browser.connections] connect ahead of need, a wrong key, and a page that shows by itself what another window does', async () => {
  const watching = await openPage(chrome);
  await watching.page.goto(address);
  await signIn(watching.page, 'ann');
  await watching.page.waitForURL(address, TIMEOUT);
  const card = watching.page.getByRole('region', { name: 'Weather' });
  await card.getByText('Not connected', { exact: true }).waitFor(TIMEOUT);

  // another window of the same browser connects, before any client has asked
  const page = await watching.page.context().newPage();
  await page.goto(address);
  await page
    .getByRole('region', { name: 'Weather' })
    .getByRole('button', { name: /connect/i })
    .click();
  const field = page.getByLabel('API key');
  expect(await field.getAttribute('type')).toBe('password');
  await field.fill('a wrong key');
  await approve(page).click();
  await page.waitForURL('**/status', TIMEOUT);
  await page.getByRole('link', { name: 'Try again' }).click();
  await page.getByText(/4 tries are left/).waitFor(TIMEOUT);
  expect(await page.content()).not.toContain('a wrong key');
  await page.getByLabel('API key').fill(GOOD);
  await approve(page).click();
  await heading(page, /is connected/i).waitFor(TIMEOUT);

  await card.getByText('Connected', { exact: true }).waitFor(TIMEOUT);
  const status = watching.page.getByRole('status');
  await status.getByText(/have changed/).waitFor(TIMEOUT);
  await card.locator('time').first().waitFor(TIMEOUT);

  // and a client of hers that cannot open links shows as soon as it asks
  const client = world.client('ann', { name: 'Desk Assistant', capabilities: {} });
  await client.initialize();
  await client.callTool('echo', {});
  await card.getByText(/Desk Assistant/).waitFor(TIMEOUT);

  await page.goto(address);
  await page
    .getByRole('region', { name: 'Weather' })
    .getByRole('button', { name: 'Disconnect' })
    .click();
  await card.getByText('Not connected', { exact: true }).waitFor(TIMEOUT);
  expect(watching.problems.filter((one) => one.includes(world.publicUrl))).toEqual([]);
  await page.context().close();
}, 90_000);

test('[browser.connections] without JavaScript everything can be done as well', async () => {
  const { page } = await openPage(chrome, { javaScriptEnabled: false });
  await page.goto(address);
  await signIn(page, 'ben');
  await page.waitForURL(address, TIMEOUT);
  const card = page.getByRole('region', { name: 'Weather' });
  await card.getByRole('button', { name: /connect/i }).click();
  await page.getByLabel('API key').fill(GOOD);
  await approve(page).click();
  await page.waitForURL('**/status', TIMEOUT);
  await heading(page, /is connected/i).waitFor(TIMEOUT);
  await page.goto(address);
  await card.getByText('Connected', { exact: true }).waitFor(TIMEOUT);
  await card.getByRole('button', { name: 'Disconnect' }).click();
  await card.getByText('Not connected', { exact: true }).waitFor(TIMEOUT);
  await page.context().close();
}, 90_000);
