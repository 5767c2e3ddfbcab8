import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Browser, Page } from 'playwright-core';
import { launchChromium } from '../support/chromium.ts';
import { send } from '../support/net.ts';
import { until } from '../support/until.ts';
import { startWorld } from '../support/world.ts';

// The operators' console (issue 7, item 6), as a person sees it, in Chromium.

const world = await startWorld({ pods: 2, workers: 1, plainUpstreams: ['plain'] });
const { stack } = world;
let browser: Browser;
let page: Page;
beforeAll(async () => {
  browser = await launchChromium();
  page = await browser.newPage();
});
afterAll(async () => {
  await browser.close();
  await world.stop();
});

const [first, second] = [stack.pods[0]!, stack.pods[1]!];
const at = (path: string, pod = first): string => `http://127.0.0.1:${pod.adminPort}${path}`;

test('[console.where] only on the admin listener, only from this machine, only under its name', async () => {
  expect((await send(`${stack.publicUrl}/console`)).status).toBe(404);
  expect((await send(at('/console'))).status).toBe(200);
  const renamed = await send(at('/console'), { headers: { Host: 'attacker.example' } });
  expect(renamed.status).toBe(404);
  const closed = await startWorld({ pods: 1, workers: 0, config: { console: { access: 'off' } } });
  try {
    expect((await closed.stack.pods[0]!.admin('/console')).status).toBe(404);
    expect((await closed.stack.pods[0]!.admin('/console/queues')).status).toBe(404);
  } finally {
    await closed.stop();
  }
});

test('[console.pages] pods, upstreams, a user’s sessions, elicitations and queues', async () => {
  const client = await world.client('ann').initialize();
  await client.listen({ pod: 0 });
  const asked = await world.askForLink(client);
  await page.goto(at('/console'));
  const pods = page.getByRole('region', { name: 'Pods, by their heartbeats' });
  await pods.getByText('(this one)').waitFor();
  expect(await pods.getByRole('row').count()).toBe(3);
  expect(await page.getByRole('rowheader', { name: 'files' }).count()).toBe(1);
  await page.screenshot({ path: 'results/console-pods.png', fullPage: true });

  await page.getByRole('link', { name: 'Sessions' }).click();
  await page.getByLabel('User id').fill(world.userId('ann'));
  await page.getByRole('button', { name: 'Show' }).click();
  await page.getByText('/mcp/files').waitFor();
  await page.screenshot({ path: 'results/console-sessions.png', fullPage: true });

  await page.getByRole('link', { name: 'Elicitations' }).click();
  await page.getByRole('heading', { name: 'created (1)' }).waitFor();
  await page.getByRole('link', { name: asked.elicitationId }).click();
  await page.getByRole('rowheader', { name: 'requestId' }).waitFor();
  expect(await page.getByText('acme-drive').count()).toBeGreaterThan(0);
  await page.screenshot({ path: 'results/console-elicitation.png', fullPage: true });

  const failures: string[] = [];
  page.on('console', (message) => {
    if (message.type() === 'error') failures.push(message.text());
  });
  await page.goto(at('/console/queues'));
  await page.getByText('exchange-code').first().waitFor();
  await page.getByText('Loading').waitFor({ state: 'hidden' });
  await page.screenshot({ path: 'results/console-queues.png' });
  // the board would fetch fonts from elsewhere; nothing else of it is refused
  expect(
    failures.filter(
      (text) => text.includes('Security Policy') && !text.includes('fonts.googleapis'),
    ),
  ).toEqual([]);
});

test('[console.actions] a flow is cancelled, a session ended, a pod drained; each is audited', async () => {
  const client = await world.client('ben').initialize();
  const stream = await client.listen({ pod: 1 });
  const asked = await world.askForLink(client);

  await page.goto(at(`/console/elicitations?id=${asked.elicitationId}`));
  await page.getByRole('button', { name: /^Cancel/ }).click();
  await page.getByRole('status').getByText('The flow is cancelled.').waitFor();
  await page.getByRole('heading', { name: 'Elicitation: cancelled' }).waitFor();

  await page.goto(at(`/console/sessions?user=${world.userId('ben')}`));
  await page.getByRole('button', { name: /^End/ }).click();
  await page.getByRole('status').getByText('The session has ended.').waitFor();
  await stream.ended();
  const after = await client.post({ jsonrpc: '2.0', id: 'after', method: 'tools/list' });
  expect(after.status).toBe(404);

  // a form from elsewhere has no token
  const forged = await fetch(at('/console/pods/drain'), {
    method: 'POST',
    body: new URLSearchParams({ pod: 'pod2' }),
  });
  expect(forged.status).toBe(403);

  await page.goto(at('/console'));
  await page.getByRole('button', { name: /^Drain pod2-/ }).click();
  await page.getByRole('status').getByText('The pod drains').waitFor();
  expect(await second.child.ended).toBe(0);
  await until('each is in the audit', () => stack.audit('console.action').length === 3);
  expect(stack.audit('console.action').map(({ audit }) => audit!['action'])).toEqual([
    'elicitation.cancel',
    'session.end',
    'pod.drain',
  ]);
  expect(stack.audit('csrf.refused')).toHaveLength(1);
});
