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
  await page.getByRole('region', { name: 'Who waits, by connection and state' }).waitFor();
  expect(await page.getByText('the person, to open the link').count()).toBe(1);
  await page.screenshot({ path: 'results/console-waits.png', fullPage: true });

  await page.getByRole('link', { name: 'Pods and upstreams' }).click();
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

  await page.getByRole('link', { name: 'Connections' }).click();
  await page.getByRole('rowheader', { name: /acme-drive/ }).waitFor();
  expect(await page.getByText('1 created').count()).toBe(1);

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

test('[console.retry] what is stuck before its exchange is sent on its way again; the rest is explained', async () => {
  const client = await world.client('carl').initialize();
  const asked = await world.askForLink(client);
  const address = at(`/console/elicitations?id=${asked.elicitationId}`, second);
  const again = async (words: RegExp): Promise<void> => {
    await page.goto(address);
    await page.getByRole('button', { name: /^Try again/ }).click();
    await page.getByRole('status').getByText(words).waitFor();
  };
  await again(/waits for the person/);

  // The job of a flow that was claimed is lost: nobody would look at it again before it expires.
  const [worker] = stack.workers;
  worker!.child.freeze();
  const key = `viaduct:elicitation:{${world.userId('carl')}}:${asked.elicitationId}`;
  const people = world.browser('carl');
  await people.open(asked.url);
  await people.submit({ decision: 'approve' });
  await until('it is authorized', async () => (await stack.redis.client.hget(key, 'state')) === 'authorized'); // prettier-ignore
  for (const job of await stack.redis.client.keys('{viaduct:bull}:exchange-code:*')) {
    await stack.redis.client.del(job);
  }
  worker!.child.thaw();
  await again(/in the queue again/);
  await until('it is completed', async () => (await stack.redis.client.hget(key, 'state')) === 'completed'); // prettier-ignore
  expect(world.acme.exchanges).toBe(1);
  await again(/has ended/);
  expect(stack.audit('console.action').map(({ audit }) => audit!['action'])).toEqual(
    Array<string>(3).fill('elicitation.retry'),
  );
  await client.end();
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

  const other = await world.client('ben').initialize();
  await page.goto(at(`/console/sessions?user=${world.userId('ben')}`, second));
  await page.getByLabel('and disconnect').check();
  await page.getByRole('button', { name: /^Put this user out/ }).click();
  await page.getByRole('status').getByText('what was connected is disconnected').waitFor();
  const out = await other.post({ jsonrpc: '2.0', id: 'out', method: 'tools/list' });
  // The pod that did it refuses the token as well; the other finds no session.
  expect([401, 404]).toContain(out.status);

  // a form from elsewhere has no token
  const forged = await fetch(at('/console/pods/drain'), {
    method: 'POST',
    body: new URLSearchParams({ pod: 'pod2' }),
  });
  expect(forged.status).toBe(403);

  await page.goto(at('/console/pods'));
  await page.getByRole('button', { name: /^Drain pod2-/ }).click();
  await page.getByRole('status').getByText('The pod drains').waitFor();
  expect(await second.child.ended).toBe(0);
  const acted = () =>
    stack.audit('console.action').flatMap(({ audit }) => {
      const action = String(audit!['action']);
      return action === 'elicitation.retry' ? [] : [action];
    });
  await until('each is in the audit', () => acted().length === 4);
  expect(acted().sort()).toEqual(['elicitation.cancel', 'pod.drain', 'session.end', 'user.revoke']);
  expect(stack.audit('csrf.refused')).toHaveLength(1);
});
