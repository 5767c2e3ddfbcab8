import { afterAll, describe, expect, test } from 'vitest';
import { BOTH_MODES, textOf } from '../support/mcp-client.ts';
import { until } from '../support/until.ts';
import { MISSING_CREDENTIAL, startWorld } from '../support/world.ts';

// Ask only what the client declared (invariant 6; case L1). `elicitation: {}` means form only.

const world = await startWorld({ plainUpstreams: ['plain'] });
afterAll(() => world.stop());
const plain = world.plain['plain']!;

interface Row {
  name: string;
  capabilities: Record<string, unknown>;
  form: boolean;
  url: boolean;
}
const rows: Row[] = [
  { name: 'absent', capabilities: {}, form: false, url: false },
  { name: '{}', capabilities: { elicitation: {} }, form: true, url: false },
  { name: '{form}', capabilities: { elicitation: { form: {} } }, form: true, url: false },
  { name: '{url}', capabilities: { elicitation: { url: {} } }, form: false, url: true },
  { name: '{form,url}', capabilities: BOTH_MODES, form: true, url: true },
  { name: 'true', capabilities: { elicitation: true }, form: false, url: false },
  { name: 'null', capabilities: { elicitation: null }, form: false, url: false },
];

describe.for(rows)('elicitation: $name', ({ name, capabilities, form, url }) => {
  const user = `user-${name.replace(/\W/g, '-')}`;
  const malformed = name === 'true' || name === 'null';

  test('[L1] the gateway’s own need: a link in URL mode, otherwise words that say where to connect', async () => {
    const client = world.client(user, { capabilities });
    if (malformed && (await client.post(client.initializeMessage())).status === 400) return;
    await client.initialize({ pod: 0 });
    const call = client.beginTool('echo', {}, { pod: 1 });
    const message = await call.message();
    expect((await call.http).status).toBe(200);
    if (url) {
      expect(message.error?.code).toBe(MISSING_CREDENTIAL);
      return;
    }
    expect(message.error).toBeUndefined();
    expect(message.result?.isError).toBe(true);
    expect(textOf(message)).toContain(`${world.publicUrl}/connections`);
    expect(textOf(message)).toContain('Acme Drive');
  });

  test.for([
    { tool: 'ask_form', allowed: form, mode: 'form' },
    { tool: 'ask_url', allowed: url, mode: 'url' },
  ])('[L1] an upstream that asks in $mode mode', async ({ tool, allowed, mode }) => {
    const client = world.client(user, { capabilities, upstream: 'plain' });
    if (malformed && (await client.post(client.initializeMessage())).status === 400) return;
    await client.initialize({ pod: 0 });
    const asked: unknown[] = [];
    const call = client.beginTool(
      tool,
      {},
      {
        pod: 0,
        answerAt: 1,
        onAsk: (message) => {
          asked.push(message.params);
          return { action: 'accept', ...(mode === 'form' && { content: { name: 'Ann' } }) };
        },
      },
    );
    const message = await call.message();
    const answer = plain.answers.at(-1)!;
    if (allowed) {
      expect(asked).toHaveLength(1);
      expect(answer.result).toMatchObject({ action: 'accept' });
      expect(textOf(message)).toContain('accept');
      return;
    }
    expect(asked, 'nothing may be asked').toEqual([]);
    const declared = form || url;
    expect(answer.error?.code).toBe(declared ? -32602 : -32601);
    expect(message.error?.code, 'the outcome is the upstream’s to give').toBe(answer.error?.code);
  });
});

test('[L1] an upstream is told the capabilities of that client, not of the gateway or of another', async () => {
  const known = new Set(plain.sessions.keys());
  const capabilities = [{}, { elicitation: {}, roots: { listChanged: true } }, BOTH_MODES];
  for (const one of capabilities) {
    await world.client('cap', { capabilities: one, upstream: 'plain' }).initialize();
  }
  const told = [...plain.sessions.values()].filter(({ id }) => !known.has(id));
  expect(told.map((session) => session.capabilities)).toEqual(capabilities);
});

test('[L1] the refusals are counted and audited', async () => {
  expect(await world.stack.metric('viaduct_capability_refusals_total')).toBeGreaterThan(0);
  expect(world.stack.audit('capability.refused').length).toBeGreaterThan(0);
});

test('[connections.page] a person whose client cannot ask connects at /connections, and the next call works', async () => {
  const client = await world.client('zoe', { capabilities: {} }).initialize({ pod: 0 });
  const refused = await client.callTool('echo', {}, { pod: 1 });
  expect(textOf(refused)).toContain(`${world.publicUrl}/connections`);
  const browser = world.browser('zoe');
  let page = await browser.open(`${world.publicUrl}/connections`);
  expect(page.visible).toContain('Acme Drive');
  page = await browser.press('/connections/acme-drive/connect');
  expect(page.status, page.visible).toBe(200);
  await browser.submit({ decision: 'approve' });
  await until(
    'the call works',
    async () => (await client.callTool('echo', {})).result?.isError !== true,
  );
});
