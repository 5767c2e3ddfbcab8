import { afterAll, describe, expect, test } from 'vitest';
import { textOf } from '../support/mcp-client.ts';
import { Gate, until } from '../support/until.ts';
import { MISSING_CREDENTIAL, startWorld } from '../support/world.ts';

// A way back from every dead end (issue 6, item 6): after each, the next call does the right thing. Declined,
// expired and failed flows are in flow-outcomes.test.ts, revoked grants in connection-refresh.test.ts.

const world = await startWorld({
  config: {
    limits: {
      user: { points: 100_000, seconds: 60 },
      userTool: { points: 100_000, seconds: 60 },
      userElicitations: { points: 12, seconds: 600 },
      address: { points: 100_000, seconds: 60 },
    },
  },
});
afterAll(() => world.stop());
const COMPLETE = 'notifications/elicitation/complete';

describe('the person goes away', () => {
  test('[back.closed] a browser that was closed: the same link again, and it works', async () => {
    const client = await world.client('ann').initialize();
    const asked = await world.askForLink(client);
    await world.browser('ann').open(asked.url); // and closed
    const again = await world.askForLink(client, { pod: 1 });
    expect(again.elicitationId).toBe(asked.elicitationId);
    const browser = world.browser('ann');
    await world.walk(browser, again.url);
    await world.untilState(browser, again.url, 'completed');
    expect((await client.callTool('echo', {})).result).toBeDefined();
  });

  test('[back.closed] closed at the third party: the link begins anew, the old trip is worth nothing', async () => {
    const client = await world.client('ben').initialize();
    const asked = await world.askForLink(client);
    const first = world.browser('ben');
    await first.open(asked.url);
    const { stoppedAt } = await first.submit({
      decision: 'approve',
      stopAt: `^${world.acme.url}/authorize`,
    });
    const second = world.browser('ben');
    await world.walk(second, asked.url);
    await world.untilState(second, asked.url, 'completed');
    const exchanges = world.acme.exchanges;
    await first.open(stoppedAt!);
    expect(world.acme.exchanges).toBe(exchanges);
    expect((await client.callTool('echo', {})).result).toBeDefined();
  });
});

describe('the client goes away', () => {
  test('[back.no-stream] without a listening stream the completion is waited for by nobody, and the next call works', async () => {
    const client = await world.client('cid').initialize();
    await world.connect(client, 'cid');
    expect(textOf(await client.callTool('echo', { n: 1 }))).toBe('{"n":1}');
  });

  test('[back.no-completion] a completion that came while the client was away is replayed; a call needs none', async () => {
    const client = await world.client('dan').initialize();
    const asked = await world.connect(client, 'dan');
    expect((await client.callTool('echo', {})).result).toBeDefined();
    const stream = await client.listen();
    const { params } = await stream.notification(COMPLETE);
    expect(params).toMatchObject({ elicitationId: asked.elicitationId });
  });

  test('[back.session-gone] a session that ended in the middle: the flow ends well, and the next session calls at once', async () => {
    const client = await world.client('eva').initialize();
    const asked = await world.askForLink(client);
    const browser = world.browser('eva');
    await browser.open(asked.url);
    await client.end();
    await browser.submit({ decision: 'approve' });
    await world.untilState(browser, asked.url, 'completed');
    const next = await world.client('eva').initialize();
    expect((await next.callTool('echo', {})).result).toBeDefined();
  });
});

describe('the gateway goes away', () => {
  test('[back.restart] both pods restarted between link and callback: the person goes on where they were', async () => {
    const client = await world.client('flo').initialize();
    const asked = await world.askForLink(client);
    const browser = world.browser('flo');
    await browser.open(asked.url);
    const { stoppedAt } = await browser.submit({
      decision: 'approve',
      stopAt: `^${world.acme.url}/authorize`,
    });
    for (const pod of world.stack.pods) {
      await pod.child.kill();
      await world.stack.restart(pod);
    }
    await browser.open(stoppedAt!);
    await world.untilState(browser, asked.url, 'completed');
    expect((await client.callTool('echo', {})).result).toBeDefined();
  });

  test('[back.worker] a worker killed with the code in its hands: failed, the code is not sent again, a new link', async () => {
    const client = await world.client('gil').initialize();
    const asked = await world.askForLink(client);
    const gate = new Gate();
    world.acme.gates.token = gate;
    const browser = world.browser('gil');
    await world.walk(browser, asked.url);
    await until('the code is on its way', () => gate.arrived > 0);
    const sent = world.acme.tokenRequests.length;
    const [worker] = world.stack.workers;
    await worker!.child.kill();
    world.acme.gates.token = undefined;
    await world.stack.restart(worker!);
    await world.untilState(browser, asked.url, 'failed', 20_000);
    gate.open();
    expect(world.acme.tokenRequests.length).toBe(sent);
    const next = await world.askForLink(client);
    expect(next.elicitationId).not.toBe(asked.elicitationId);
  });
});

describe('limits', () => {
  test('[limit.links] links that are nobody’s, or somebody else’s, end in 429 for who tries them, and for nobody else', async () => {
    const client = await world.client('hal').initialize();
    const asked = await world.askForLink(client);
    const thief = world.browser('ivo');
    const statuses: number[] = [];
    for (let n = 0; n < 14; n++) {
      const link = n % 2 === 0 ? asked.url : `${world.publicUrl}/connect/${'A'.repeat(22)}`;
      statuses.push((await thief.open(link)).status);
    }
    expect(statuses.slice(0, 12)).toEqual(Array(12).fill(404));
    expect(statuses.slice(12)).toEqual([429, 429]);
    expect(world.stack.audit('link.wrong_user').length).toBeGreaterThan(0);
    expect(world.stack.audit('rate.limited').length).toBeGreaterThan(0);
    const browser = world.browser('hal');
    await world.walk(browser, asked.url);
    await world.untilState(browser, asked.url, 'completed');
  });

  test('[limit.new-links] new links are limited per user, and the answer says for how long', async () => {
    const client = await world.client('joe').initialize();
    const browser = world.browser('joe');
    for (let n = 0; n < 12; n++) {
      const asked = await world.askForLink(client);
      await browser.open(asked.url);
      await browser.submit({ decision: 'deny' });
    }
    const { error } = await client.callTool('echo', {});
    expect(error?.code).not.toBe(MISSING_CREDENTIAL);
    expect(error?.data).toMatchObject({ limit: 'userElicitations' });
  });
});

test('[scan] nothing secret of a whole flow is in logs, Redis, jobs, metrics, audit or what the client got', async () => {
  const client = await world.client('kim').initialize();
  const stream = await client.listen();
  await world.connect(client, 'kim');
  const answer = await client.callTool('echo', {});
  const metrics = await Promise.all(
    [...world.stack.pods, ...world.stack.workers].map((one) => one.metrics()),
  );
  const places = {
    output: world.stack.output(),
    redis: JSON.stringify(await world.stack.redis.dump()),
    metrics: metrics.join('\n'),
    client: JSON.stringify([answer, stream.events]),
  };
  const planted = [...world.acme.issued, ...world.secrets];
  expect(planted.length).toBeGreaterThan(4);
  for (const secret of planted) {
    for (const [where, text] of Object.entries(places)) {
      expect(text.includes(secret), `${secret.slice(0, 12)}… in ${where}`).toBe(false);
    }
  }
});
