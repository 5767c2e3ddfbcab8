import { afterAll, describe, expect, test } from 'vitest';
import { textOf } from '../support/mcp-client.ts';
import { accept, answering, inputRequired, type ModernClient } from '../support/modern-client.ts';
import { startModernWorld } from '../support/modern-world.ts';
import type { Message } from '../support/net.ts';
import { says } from '../support/upstream-tools.ts';
import { never, until } from '../support/until.ts';

// The gateway's own need, a credential (issue 4, item 4; design, sections 6 and 9): asked for with a link, and the
// retry waits for the flow's own end, on whatever pod it arrives.

const at = await startModernWorld({
  config: { elicitation: { ttlSeconds: 60, connectWaitSeconds: 5 } },
});
afterAll(() => at.stop());
const { drive, world } = at;
const { acme, stack } = world;

const URL_ONLY = { elicitation: { url: {} } };
const clientOf = (user: string, capabilities: unknown = URL_ONLY) =>
  at.client(user, { upstream: 'drive', capabilities });
function linkOf(message: Message): { key: string; url: string; message: string } {
  const asked = Object.entries(inputRequired(message).inputRequests);
  expect(asked).toHaveLength(1);
  const [key, { method, params }] = asked[0]!;
  expect([method, params['mode'], params['elicitationId']]).toEqual([
    'elicitation/create',
    'url',
    undefined,
  ]);
  return { key, url: params['url'] as string, message: params['message'] as string };
}
const ask = (client: ModernClient, pod = 0) => client.tool('echo', { text: 'x' }, { pod });

describe('a call without the credential', () => {
  test('[connect.link] is answered with one link that tells nothing about anybody, and nothing goes upstream', async () => {
    const client = clientOf('ann-link');
    const first = await ask(client);
    const { url, message } = linkOf(first);
    expect(url).toMatch(new RegExp(`^${world.publicUrl}/connect/[\\w-]{22}$`));
    expect(message).toContain('Acme Drive');
    const { requestState } = inputRequired(first);
    for (const personal of ['ann-link', '@', world.userId('ann-link')]) {
      expect(
        url + Buffer.from(requestState.split('.')[0]!, 'base64url').toString() + requestState,
      ).not.toContain(personal);
    }
    expect(linkOf(await ask(client, 1)).url, 'the same link at the other pod').toBe(url);
    expect(drive.calls('echo')).toHaveLength(0);
  });

  test.for([{}, { elicitation: {} }, { elicitation: { form: {} } }, { elicitation: true }])(
    '[connect.cannot] %j: 400, -32021, in words that name the page',
    async (capabilities) => {
      const client = clientOf('ann-cannot', capabilities);
      const call = client.beginTool('echo');
      const { error } = await call.message();
      expect((await call.http).status).toBe(400);
      expect(error).toMatchObject({
        code: -32021,
        data: { requiredCapabilities: { elicitation: { url: {} } } },
      });
      expect(error?.message).toContain(`${world.publicUrl}/connections`);
      const page = await world.browser('ann-cannot').open(`${world.publicUrl}/connections`);
      expect(page.text, 'the page offers it').toContain('Acme Drive');
    },
  );
});

describe('the retry', () => {
  test('[connect.wait] accept is not completion: it waits at the other pod until the flow has ended', async () => {
    const client = clientOf('bob');
    const first = await ask(client);
    const { url } = linkOf(first);
    const browser = world.browser('bob');
    await browser.open(url);
    let done = false;
    const retry = client.beginTool('echo', { text: 'x' }, { pod: 1, ...answering(first, accept) });
    const answered = retry.message().then((message) => {
      done = true;
      return message;
    });
    const { stream } = await retry.http;
    expect(stream, 'a wait is a stream').toBeDefined();
    await never('taken for completion', () => done);
    // bob's state is no use to anybody else meanwhile
    const stolen = await clientOf('eve').tool('echo', { text: 'x' }, answering(first, accept));
    expect(stolen.error?.code).toBe(-32602);
    await browser.submit({ decision: 'approve' });
    expect(textOf(await answered)).toBe('{"text":"x"}');
    expect(drive.calls('echo').filter(({ text }) => text.includes('"x"'))).toHaveLength(1);
    const { headers, text } = drive.calls('echo').at(-1)!;
    expect(acme.isValid(headers.authorization!.replace('Bearer ', ''))).toBe(true);
    expect(text, 'what was between us and the client stays there').not.toMatch(
      /requestState|inputResponses|viaduct/,
    );
    for (const secret of acme.issued) expect(stream!.raw).not.toContain(secret);
    expect(
      (await client.tool('echo', { text: 'x' }, answering(first, accept))).error?.code,
      'once',
    ).toBe(-32602);
    expect(textOf(await client.tool('echo', { text: 'later' }))).toBe('{"text":"later"}');
  });

  test('[connect.after] the flow may be over before the retry', async () => {
    const client = clientOf('carl');
    const first = await ask(client, 1);
    const browser = world.browser('carl');
    await world.walk(browser, linkOf(first).url);
    await world.untilState(browser, linkOf(first).url, 'completed');
    expect(
      textOf(await client.tool('echo', { text: 'x' }, { pod: 0, ...answering(first, accept) })),
    ).toBe('{"text":"x"}');
  });

  test('[connect.not-yet] when it does not end in time, or the client cancelled, it is the same link again', async () => {
    const client = clientOf('dora');
    const first = await ask(client);
    const cancelled = await client.tool(
      'echo',
      { text: 'x' },
      answering(first, () => ({ action: 'cancel' })),
    );
    expect(linkOf(cancelled).url).toBe(linkOf(first).url);
    const began = performance.now();
    const again = await client.tool('echo', { text: 'x' }, answering(cancelled, accept));
    expect(performance.now() - began).toBeGreaterThan(4_500);
    expect(linkOf(again).url).toBe(linkOf(first).url);
    const unanswered = await client.tool(
      'echo',
      { text: 'x' },
      { ...answering(again, accept), inputResponses: {} },
    );
    expect(linkOf(unanswered).url).toBe(linkOf(first).url);
    await world.walk(world.browser('dora'), linkOf(first).url);
    expect(textOf(await client.tool('echo', { text: 'x' }, answering(unanswered, accept)))).toBe(
      '{"text":"x"}',
    );
  });

  test('[connect.denied] a flow that ended badly is explained, with a new link', async () => {
    const client = clientOf('emil');
    const first = await ask(client);
    const browser = world.browser('emil');
    await browser.open(linkOf(first).url);
    await browser.submit({ decision: 'deny' });
    const again = await client.tool('echo', { text: 'x' }, { pod: 1, ...answering(first, accept) });
    expect(linkOf(again).url).not.toBe(linkOf(first).url);
    expect(linkOf(again).message).toContain('declined');
  });

  test('[connect.declined] who says no to the client gets an answer, not the question again', async () => {
    const client = clientOf('fred');
    const first = await ask(client);
    const { result } = await client.tool(
      'echo',
      { text: 'x' },
      answering(first, () => ({ action: 'decline' })),
    );
    expect(result).toMatchObject({ isError: true, resultType: 'complete' });
    expect(result?.content?.[0]?.text).toContain('declined');
    expect(await world.state(world.browser('fred'), linkOf(first).url)).toBe('declined');
  });

  test('[connect.gone] a client that leaves while it waits leaves nothing behind', async () => {
    const client = clientOf('gus');
    const first = await ask(client);
    const retry = client.beginTool('echo', { text: 'x' }, { pod: 1, ...answering(first, accept) });
    await retry.http;
    await retry.drop();
    await until(
      'the stream is closed',
      async () => (await stack.metric('viaduct_streams_open', { era: 'modern' })) === 0,
    );
    await world.walk(world.browser('gus'), linkOf(first).url);
    await until(
      'the flow has ended',
      async () => (await world.state(world.browser('gus'), linkOf(first).url)) === 'completed',
    );
    // the state was not used up by the wait
    expect(textOf(await client.tool('echo', { text: 'x' }, answering(first, accept)))).toBe(
      '{"text":"x"}',
    );
  });
});

describe('together with what the upstream asks', () => {
  drive.tools['asks'] = {
    description: 'Asks before it does anything',
    run: async (_args, { ask: question }) =>
      says({
        said: await question('elicitation/create', { message: 'Sure?', requestedSchema: {} }),
      }),
  };

  test('[connect.combined] first ours, then its own; each gets back what is its own', async () => {
    const client = clientOf('hal', { elicitation: { form: {}, url: {} } });
    const first = await client.tool('asks', {}, { pod: 0 });
    await world.walk(world.browser('hal'), linkOf(first).url);
    const second = await client.tool('asks', {}, { pod: 1, ...answering(first, accept) });
    expect(Object.values(inputRequired(second).inputRequests)).toMatchObject([
      { params: { message: 'Sure?' } },
    ]);
    const answer = { action: 'accept', content: { yes: true } };

    // Between the rounds the credential goes: ours is asked again, and the upstream's answers wait in the state.
    const cookie = world.browser('hal');
    await cookie.open(`${world.publicUrl}/connections`);
    await cookie.press('/connections/acme-drive/disconnect');
    const third = await client.tool('asks', {}, { pod: 0, ...answering(second, () => answer) });
    const { url } = linkOf(third);
    await world.walk(world.browser('hal'), url);
    const last = await client.tool('asks', {}, { pod: 1, ...answering(third, accept) });
    expect(JSON.parse(textOf(last)!)).toEqual({ said: answer });
    expect(drive.statesBack.at(-1)).toMatch(/^"drive\.[\w-]{36}\.ü\\"\\\\\/="$/);
  });
});

describe('an upstream that lets nobody in without a credential', () => {
  test('[connect.tool] shows a tool that connects, and then its own', async () => {
    const usual = drive.refuses;
    drive.refuses = ({ headers }) =>
      !acme.isValid((headers.authorization ?? '').replace('Bearer ', ''));
    const client = clientOf('ida');
    const names = async () =>
      (await client.call('tools/list')).result?.tools?.map(({ name }) => name);
    expect((await client.call('server/discover')).result).toMatchObject({
      resultType: 'complete',
      capabilities: { tools: {} },
    });
    expect(await names()).toEqual(['connect']);
    const many = at.client('ida', { upstream: '', capabilities: URL_ONLY });
    expect((await many.call('tools/list')).result?.tools?.map(({ name }) => name)).toContain(
      'drive__connect',
    );
    expect((await client.call('resources/list')).result).toMatchObject({
      resources: [],
      cacheScope: 'private',
    });
    const read = await client.call('resources/read', { uri: 'res://doc/1' });
    expect(linkOf(read).url).toContain('/connect/');
    const first = await client.tool('connect');
    await world.walk(world.browser('ida'), linkOf(first).url);
    const last = await client.tool('connect', {}, answering(first, accept));
    expect(textOf(last)).toContain('connected');
    expect(await names()).toContain('echo');
    expect(drive.calls('connect')).toHaveLength(0);
    const again = await client.call('resources/read', {
      uri: 'res://doc/1',
      ...answering(read, accept),
    });
    expect(again.result?.['contents']).toBeDefined();
    drive.refuses = usual;
  });
});

test('[connect.silent] modern clients get no completion notification; a pod asks Redis nothing while it waits', async () => {
  const client = clientOf('jan');
  const { stream } = await client.listen({ toolsListChanged: true }, { pod: 1 });
  const first = await ask(client);
  const retry = client.beginTool('echo', { text: 'x' }, { pod: 1, ...answering(first, accept) });
  await retry.http;
  await world.walk(world.browser('jan'), linkOf(first).url);
  expect(textOf(await retry.message())).toBe('{"text":"x"}');
  expect(stream.messages.map(({ method }) => method)).toEqual([
    'notifications/subscriptions/acknowledged',
  ]);
  stream.close();
});
