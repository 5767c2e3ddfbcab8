import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { listen } from '../support/net.ts';
import { textOf } from '../support/mcp-client.ts';
import { planted } from '../support/planted.ts';
import { never, until } from '../support/until.ts';
import { startWorld } from '../support/world.ts';

// `type: secret` (issue 6, item 1): a key typed on our page, checked by the worker, never through the client.

const COMPLETE = 'notifications/elicitation/complete';
const good = planted('key');
const bad = planted('wrong');
const weather = await listen(({ request, response }) => {
  asked.push(request.headers['x-api-key']);
  const status = state.down > 0 ? 503 : request.headers['x-api-key'] === `k ${good}` ? 200 : 401;
  state.down = Math.max(0, state.down - 1);
  response.writeHead(status).end();
});
const asked: unknown[] = [];
const state = { down: 0 };
const world = await startWorld({
  config: {
    connections: {
      'acme-drive': {
        type: 'secret',
        displayName: 'Weather',
        help: 'You find it in your account settings.',
        fields: [{ name: 'apiKey', label: 'API key', secret: true }],
        verify: { url: `${weather.url}/me`, expectStatus: 200 },
        inject: { header: 'X-Api-Key', value: 'k {{apiKey}}' },
      },
    },
  },
});
afterAll(async () => {
  await world.stop();
  await weather.stop();
});
beforeEach(() => {
  state.down = 0;
});

async function typed(user: string, apiKey: string, link: string) {
  const browser = world.browser(user);
  await browser.open(link);
  return { browser, page: await browser.submit({ decision: 'approve', fields: { apiKey } }) };
}

describe('the form', () => {
  test('[secret.form] asks for the configured fields, and a right key serves the next call', async () => {
    const client = await world.client('ann').initialize();
    const stream = await client.listen();
    const link = await world.askForLink(client);
    const browser = world.browser('ann');
    const page = await browser.open(link.url);
    expect(page.visible).toContain('You find it in your account settings.');
    expect(page.text).toMatch(
      /<input[^>]*name="apiKey"[^>]*type="password"[^>]*autocomplete="off"/s,
    );
    expect(page.forms[0]!.buttons.map(({ value }) => value).sort()).toEqual(['approve', 'deny']);
    await browser.submit({ decision: 'approve', fields: { apiKey: `  ${good} ` } });
    await stream.notification(COMPLETE);
    expect(textOf(await client.callTool('echo', { n: 1 }, { pod: 1 }))).toBe('{"n":1}');
    expect(world.files.calls('echo').at(-1)!.headers['x-api-key']).toBe(`k ${good}`);
    expect(stream.named(COMPLETE)).toHaveLength(1);
  });

  test('[secret.consent] another client of the same user needs the approval, and nothing is typed again', async () => {
    const client = await world
      .client('ann', { claims: { client_id: 'other-client', azp: 'other-client' } })
      .initialize();
    const link = await world.askForLink(client);
    const browser = world.browser('ann');
    const page = await browser.open(link.url);
    expect(page.text).not.toContain('name="apiKey"');
    await browser.submit({ decision: 'approve' });
    await world.untilState(browser, link.url, 'completed');
    expect((await client.callTool('echo', {})).result).toBeDefined();
  });

  test('[secret.declined] deny ends it, whatever stands in the field', async () => {
    const client = await world.client('dee').initialize();
    const link = await world.askForLink(client);
    const browser = world.browser('dee');
    await browser.open(link.url);
    await browser.submit({ decision: 'deny', fields: { apiKey: good } });
    expect(await world.state(browser, link.url)).toBe('declined');
    expect((await world.askForLink(client)).elicitationId).not.toBe(link.elicitationId);
  });

  test('[secret.stranger] somebody else sees the page of no link, and can type nothing', async () => {
    const client = await world.client('flo').initialize();
    const link = await world.askForLink(client);
    const page = await world.browser('gus').open(link.url);
    expect(page.status).toBe(404);
    expect(page.text).not.toContain('apiKey');
    expect(world.stack.audit('link.wrong_user').length).toBeGreaterThan(0);
    expect(
      await world.stack.metric('viaduct_security_events_total', { type: 'link.wrong_user' }),
    ).toBeGreaterThan(0);
  });

  test.for(['', '   ', 'a\u0000b', 'ключ', 'x'.repeat(4_097)])(
    '[secret.input] %j is refused on the page, and nothing is asked or stored',
    async (apiKey) => {
      const client = await world.client('hal').initialize();
      const link = await world.askForLink(client);
      const before = asked.length;
      const { page, browser } = await typed('hal', apiKey, link.url);
      expect(page.status).toBe(400);
      if (apiKey.trim().length > 2) expect(page.text).not.toContain(apiKey);
      expect(await world.state(browser, link.url)).toBe('opened');
      expect(asked).toHaveLength(before);
    },
  );
});

describe('a wrong key', () => {
  test('[secret.retry] the same link says why and takes another try', async () => {
    const client = await world.client('ben').initialize();
    const link = await world.askForLink(client);
    const { browser } = await typed('ben', bad, link.url);
    await world.untilState(browser, link.url, 'opened');
    const page = await browser.open(link.url);
    expect(page.status).toBe(200);
    expect(page.visible).toMatch(/did not accept/);
    expect(page.visible).toMatch(/4 tries are left/);
    expect(page.text).not.toContain(bad);
    expect((await world.askForLink(client)).elicitationId).toBe(link.elicitationId);
    await browser.submit({ decision: 'approve', fields: { apiKey: good } });
    await world.untilState(browser, link.url, 'completed');
    expect((await client.callTool('echo', {})).result).toBeDefined();
  });

  test('[secret.five] five in all, then the flow has failed and the next call gives a new link', async () => {
    const client = await world.client('cid').initialize();
    const stream = await client.listen();
    const link = await world.askForLink(client);
    const key = `viaduct:elicitation:{${world.userId('cid')}}:${link.elicitationId}`;
    const browser = world.browser('cid');
    for (let round = 1; round <= 5; round++) {
      await browser.open(link.url);
      await browser.submit({ decision: 'approve', fields: { apiKey: `${bad}${round}` } });
      await until(`try ${round} is refused`, async () => {
        return (await world.stack.redis.client.hget(key, 'tries')) === String(round);
      });
    }
    expect(await world.state(browser, link.url)).toBe('failed');
    await never('a completion', () => stream.named(COMPLETE).length > 0);
    expect((await world.askForLink(client)).elicitationId).not.toBe(link.elicitationId);
  });

  test('[secret.away] a check that is away for a moment is asked again, and no try is lost', async () => {
    const client = await world.client('eve').initialize();
    const link = await world.askForLink(client);
    state.down = 2;
    const { browser } = await typed('eve', good, link.url);
    await world.untilState(browser, link.url, 'completed');
    expect((await client.callTool('echo', {})).result).toBeDefined();
  });

  test('[secret.rejected] a key that the upstream no longer takes is asked for again', async () => {
    const client = await world.client('ivy').initialize();
    const link = await world.askForLink(client);
    const { browser } = await typed('ivy', good, link.url);
    await world.untilState(browser, link.url, 'completed');
    world.files.refuses = ({ message }) => message?.method === 'tools/call';
    try {
      const again = await world.askForLink(client);
      expect(again.elicitationId).not.toBe(link.elicitationId);
    } finally {
      world.files.refuses = undefined;
    }
  });
});

test('[secret.scan] what was typed is nowhere in the clear: logs, Redis, jobs, metrics, pages, client', async () => {
  const output = world.stack.output();
  const dump = JSON.stringify(await world.stack.redis.dump());
  const metrics = (
    await Promise.all([...world.stack.pods, ...world.stack.workers].map((one) => one.metrics()))
  ).join('');
  for (const planted of [good, bad]) {
    for (const [where, text] of Object.entries({ output, dump, metrics })) {
      expect(text.includes(planted), where).toBe(false);
      expect(text.includes(Buffer.from(planted).toString('base64').slice(0, 20)), where).toBe(
        false,
      );
    }
  }
});
