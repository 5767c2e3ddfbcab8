import { afterAll, describe, expect, test } from 'vitest';
import type { TokenFault } from '../support/third-party.ts';
import { startWorld } from '../support/world.ts';
import { never, until } from '../support/until.ts';

// How a flow may end other than well: recorded, shown, and the next call offers a new link (issue 2, item 8;
// design, sections 6 and 7).

const world = await startWorld();
const hurried = await startWorld({ pods: 1, config: { elicitation: { ttlSeconds: 2 } } });
afterAll(() => Promise.all([world.stop(), hurried.stop()]));
const { acme } = world;
const COMPLETE = 'notifications/elicitation/complete';

/** The page of an ended link for a person, and for a program. */
async function seen(
  of: typeof world,
  user: string,
  url: string,
): Promise<{ page: string; json: unknown }> {
  const browser = of.browser(user);
  const page = await browser.open(url);
  expect(page.status, page.visible).toBe(200);
  expect(page.forms.flatMap((form) => form.buttons).map((b) => b.name)).not.toContain('decision');
  const { json } = await browser.open(`${url}/status`, { accept: 'application/json' });
  return { page: page.visible, json };
}

describe('the person says no', () => {
  test('[flow.declined] on the consent page: the third party is never asked', async () => {
    const client = await world.client('ann').initialize();
    const stream = await client.listen();
    const asked = await world.askForLink(client);
    const browser = world.browser('ann');
    const before = acme.authorizations.length;
    await browser.open(asked.url);
    expect((await browser.submit({ decision: 'deny' })).status).toBeLessThan(400);
    expect(acme.authorizations).toHaveLength(before);

    const { json } = await seen(world, 'ann', asked.url);
    expect(json).toMatchObject({
      elicitationId: asked.elicitationId,
      state: 'declined',
      connection: 'acme-drive',
      message: expect.any(String) as string,
    });
    const next = await world.askForLink(client);
    expect(next.elicitationId).not.toBe(asked.elicitationId);
    await never('a completion was sent', () => stream.named(COMPLETE).length > 0);
  });

  test('[flow.declined] at the third party: access_denied is declined', async () => {
    const client = await world.client('ben').initialize();
    const stream = await client.listen();
    const asked = await world.askForLink(client);
    const before = acme.tokenRequests.length;
    acme.person = 'denies';
    try {
      await world.walk(world.browser('ben'), asked.url);
    } finally {
      acme.person = 'allows';
    }
    const { json } = await seen(world, 'ben', asked.url);
    expect(json).toMatchObject({ state: 'declined' });
    expect(acme.tokenRequests).toHaveLength(before);
    const next = await world.askForLink(client);
    expect(next.elicitationId).not.toBe(asked.elicitationId);
    await never('a completion was sent', () => stream.named(COMPLETE).length > 0);
  });
});

describe('the exchange fails', () => {
  test.for<TokenFault>(['invalid-grant', 'server-error', 'html', 'cut-off'])(
    '[flow.failed] %s: the flow ends failed, the code is sent once, and the next call gives a new link',
    async (fault) => {
      const user = `cleo-${fault}`;
      const client = await world.client(user).initialize();
      const stream = await client.listen();
      const asked = await world.askForLink(client);
      const browser = world.browser(user);
      acme.failTokens(fault);
      await world.walk(browser, asked.url);
      await world.untilState(browser, asked.url, 'failed');
      const codes = acme.tokenRequests.map(({ form }) => form['code']);
      expect(new Set(codes).size, 'no code was sent twice').toBe(codes.length);

      await seen(world, user, asked.url);
      const next = await world.askForLink(client);
      expect(next.elicitationId).not.toBe(asked.elicitationId);
      expect(stream.named(COMPLETE)).toHaveLength(0);
      await world.walk(browser, next.url);
      await stream.notification(COMPLETE);
      expect((await client.callTool('echo', {})).result).toBeDefined();
    },
  );
});

describe('nobody comes in time', () => {
  test('[flow.expired] the link shows that it has expired, and the next call gives a new one', async () => {
    const client = await hurried.client('dan').initialize();
    const asked = await hurried.askForLink(client);
    const browser = hurried.browser('dan');
    await browser.open(asked.url); // looked at, and left alone
    await hurried.untilState(browser, asked.url, 'expired');
    const { page } = await seen(hurried, 'dan', asked.url);
    expect(page).toMatch(/expired/i);
    const next = await hurried.askForLink(client);
    expect(next.elicitationId).not.toBe(asked.elicitationId);
  });

  test('[flow.expired] coming back from the third party too late connects nothing', async () => {
    const client = await hurried.client('eva').initialize();
    const asked = await hurried.askForLink(client);
    const browser = hurried.browser('eva');
    await browser.open(asked.url);
    const { stoppedAt } = await browser.submit({
      decision: 'approve',
      stopAt: `^${hurried.acme.url}/authorize`,
    });
    await hurried.untilState(browser, asked.url, 'expired');
    const page = await browser.open(stoppedAt!);
    expect(page.status).toBeLessThan(500);
    expect(page.visible).toMatch(/expired|too late/i);
    await never('the code was exchanged', () => hurried.acme.exchanges > 0);
    expect(await hurried.state(browser, asked.url)).toBe('expired');
  });

  test('[flow.renewed] approving a link that expires meanwhile is told as expired, not as an error', async () => {
    const client = await hurried.client('fin').initialize();
    const asked = await hurried.askForLink(client);
    const browser = hurried.browser('fin');
    await browser.open(asked.url);
    const consent = browser.clone();
    consent.page = browser.page;
    await hurried.untilState(browser, asked.url, 'expired');
    const page = await consent.submit({ decision: 'approve' });
    expect(page.status).toBeLessThan(500);
    expect(page.visible).toMatch(/expired/i);
    expect(hurried.acme.exchanges).toBe(0);
  });
});

test('[flow.record] each flow leaves a traceable record of its end', async () => {
  const client = await world.client('gil').initialize();
  const { elicitationId } = await world.connect(client, 'gil');
  const key = `viaduct:elicitation:{${world.userId('gil')}}:${elicitationId}`;
  const record = await until('the record', () => world.stack.redis.client.hgetall(key));
  expect(record['state']).toBe('completed');
  expect(await world.stack.redis.client.pttl(key)).toBeGreaterThan(0);
  const transitions = world.stack
    .audit(/^elicitation\./)
    .filter(({ audit }) => audit!['elicitationId'] === elicitationId);
  expect(transitions.map(({ audit }) => audit!.type.replace('elicitation.', '')).sort()).toEqual([
    ...['authorized', 'completed', 'created', 'exchanging', 'opened'],
  ]);
  for (const line of transitions) expect(line.requestId, JSON.stringify(line)).toBeTruthy();
  expect(await world.stack.metric('viaduct_elicitations_total', { mode: 'url' })).toBeGreaterThan(
    0,
  );
  expect(
    await world.stack.metric('viaduct_connections_total', { connection: 'acme-drive' }),
  ).toBeGreaterThan(0);
});
