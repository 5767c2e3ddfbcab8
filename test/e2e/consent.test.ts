import { afterAll, describe, expect, test } from 'vitest';
import { textOf } from '../support/mcp-client.ts';
import { startWorld } from '../support/world.ts';

// A credential serves a client only after its user has approved that client (design, sections 6 and 9; issue 2,
// item 8).

const world = await startWorld();
afterAll(() => world.stop());
const { acme, stack } = world;

describe('the consent page', () => {
  test('[consent.page] names client, connection, scopes and where it leads, and has two buttons', async () => {
    const client = await world.client('ann', { name: 'Notebook <b>Pro</b>' }).initialize();
    const asked = await world.askForLink(client);
    const browser = world.browser('ann');
    const page = await browser.open(asked.url);
    expect(page.status).toBe(200);
    for (const fact of ['Acme Drive', 'drive.read', 'test-client', 'Notebook <b>Pro</b>']) {
      expect(page.visible).toContain(fact);
    }
    expect(page.text).toContain(new URL(acme.url).host);
    expect(page.text).not.toContain('<b>Pro</b>');
    const form = page.forms.find(({ buttons }) => buttons.some(({ name }) => name === 'decision'))!;
    expect(form.method).toBe('POST');
    expect(form.buttons.map(({ value }) => value).sort()).toEqual(['approve', 'deny']);
    expect(acme.authorizations, 'nothing is asked of the third party before').toHaveLength(0);
  });

  test('[pages.headers] is framed by nobody, loads nothing from elsewhere, and is not kept', async () => {
    const client = await world.client('ben').initialize();
    const page = await world.browser('ben').open((await world.askForLink(client)).url);
    const csp = page.headers['content-security-policy'] as string;
    expect(csp).toContain("frame-ancestors 'none'");
    expect(csp).toMatch(/default-src '(none|self)'/);
    expect(csp).not.toMatch(/unsafe-(inline|eval)/);
    // a decision may lead to any third party, so form-action is the one open directive
    expect(csp.replace(/form-action [^;]*/, '')).not.toMatch(/\*|https?:/);
    expect(page.headers['cache-control']).toMatch(/no-store/);
    expect(page.headers['referrer-policy']).toMatch(/no-referrer|same-origin|strict-origin/);
    expect(page.headers['x-content-type-options']).toBe('nosniff');
    expect(page.text).not.toMatch(/(src|href)="(?:https?:)?\/\/(?!localhost)/);
    expect(page.text).toMatch(/<html[^>]* lang=/);
  });

  test('[pages.cookies] its cookies are HttpOnly and Lax; plain names on a loopback address only', async () => {
    const client = await world.client('cleo').initialize();
    const browser = world.browser('cleo');
    await browser.open((await world.askForLink(client)).url);
    const ours = browser.hops
      .filter(({ url }) => url.startsWith(world.publicUrl))
      .flatMap(({ setCookies }) => setCookies);
    expect(ours.length).toBeGreaterThan(0);
    for (const line of ours) {
      expect(line).toMatch(/; *HttpOnly/i);
      expect(line).toMatch(/; *SameSite=Lax/i);
      expect(line).not.toMatch(/; *Secure|^__Host-/i);
    }
  });

  test('[pages.csrf] a decision without the page’s own token is refused and decides nothing', async () => {
    const client = await world.client('dan').initialize();
    const asked = await world.askForLink(client);
    const browser = world.browser('dan');
    const page = await browser.open(asked.url);
    const form = page.forms.find(({ buttons }) => buttons.some(({ name }) => name === 'decision'))!;
    const before = acme.authorizations.length;
    const other = await world.client('dan').initialize();
    const otherBrowser = world.browser('dan');
    const otherPage = await otherBrowser.open((await world.askForLink(other)).url);
    const foreign = otherPage.forms.find(({ buttons }) =>
      buttons.some(({ name }) => name === 'decision'),
    )!;
    const bodies = [
      { decision: 'approve' },
      { ...foreign.fields, decision: 'approve' }, // the token of another browser
    ];
    for (const fields of bodies) {
      const body = new URLSearchParams(fields).toString();
      const answer = await browser.clone().open(form.action, { method: 'POST', body });
      expect(answer.status).toBeGreaterThanOrEqual(400);
      expect(answer.status).toBeLessThan(500);
    }
    const full = new URLSearchParams({ ...form.fields, decision: 'approve' }).toString();
    for (const headers of [{ Origin: 'https://evil.example' }, { Origin: 'null' }]) {
      const answer = await browser
        .clone()
        .open(form.action, { method: 'POST', body: full, headers });
      expect(answer.status).toBe(403);
    }
    expect(acme.authorizations).toHaveLength(before);
    await world.walk(browser, asked.url);
    await world.untilState(browser, asked.url, 'completed');
  });

  test('[consent.authorize] approval leads to the third party with PKCE, a fresh state and the exact redirect', async () => {
    const client = await world.client('eva').initialize();
    const asked = await world.askForLink(client);
    const browser = world.browser('eva');
    await browser.open(asked.url);
    const { stoppedAt } = await browser.submit({
      decision: 'approve',
      stopAt: `^${acme.url}/authorize`,
    });
    const query = Object.fromEntries(new URL(stoppedAt!).searchParams);
    expect(query).toMatchObject({
      response_type: 'code',
      client_id: 'acme-client',
      redirect_uri: `${world.publicUrl}/connect/callback`,
      scope: 'drive.read',
      code_challenge_method: 'S256',
    });
    expect(query['code_challenge']).toMatch(/^[\w-]{43}$/);
    expect(query['state']!.length).toBeGreaterThanOrEqual(22);
    expect(query['state']).not.toContain(asked.elicitationId);
    // the state is stored under no readable name
    const dump = await stack.redis.dump();
    expect(dump.filter(({ key }) => key.includes(query['state']!))).toEqual([]);
  });
});

describe('approval is per client', () => {
  test('[consent.per-client] another client of the same user needs its own, and no second trip to the third party', async () => {
    const first = await world.client('fay').initialize();
    await world.connect(first, 'fay');
    const trips = acme.authorizations.length;

    const other = await world
      .client('fay', { claims: { client_id: 'other-client' }, name: 'Other Client' })
      .initialize();
    const stream = await other.listen();
    const asked = await world.askForLink(other);
    const browser = world.browser('fay');
    const page = await browser.open(asked.url);
    expect(page.visible).toContain('other-client');
    const end = await browser.submit({ decision: 'approve' });
    expect(end.status).toBe(200);
    expect(end.url.startsWith(world.publicUrl)).toBe(true);
    await stream.notification('notifications/elicitation/complete');
    await world.untilState(browser, asked.url, 'completed');
    expect(acme.authorizations).toHaveLength(trips);
    expect(textOf(await other.callTool('echo', { a: 1 }))).toBe('{"a":1}');
    expect((await first.callTool('echo', {})).result).toBeDefined();
  });

  test('[consent.per-client] denied: the credential stays with the client that has it', async () => {
    const first = await world.client('gus').initialize();
    await world.connect(first, 'gus');
    const other = await world.client('gus', { claims: { client_id: 'other-client' } }).initialize();
    const asked = await world.askForLink(other);
    const browser = world.browser('gus');
    await browser.open(asked.url);
    await browser.submit({ decision: 'deny' });
    await world.untilState(browser, asked.url, 'declined');
    await world.askForLink(other);
    expect((await first.callTool('echo', {})).result).toBeDefined();
  });

  test('[audit.consent] approvals and refusals are on record', async () => {
    for (const type of ['consent.given', 'consent.denied', 'credential.stored', 'csrf.refused']) {
      expect(stack.audit(type).length, type).toBeGreaterThan(0);
    }
  });
});
