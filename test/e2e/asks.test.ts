import { afterAll, describe, expect, test } from 'vitest';
import type { EventStream } from '../support/event-stream.ts';
import type { LegacyUpstream } from '../support/legacy-upstream.ts';
import { manyClient } from '../support/many.ts';
import { textOf, type Call } from '../support/mcp-client.ts';
import type { Members, Message } from '../support/net.ts';
import { never, until } from '../support/until.ts';
import { says, type Tool } from '../support/upstream-tools.ts';
import { startModernUpstream } from '../support/modern-upstream.ts';
import { startWorld } from '../support/world.ts';

// What upstreams ask of clients (issue 3, item 1; § 9 Server asks the client): on the stream of the call that caused
// it, answered at the other pod, delivered to the upstream that asked, once.

const world = await startWorld({ workers: 0, plainUpstreams: ['plain', 'other'] });
afterAll(() => world.stop());
const plain = world.plain['plain']!;
const other = world.plain['other']!;
const EVERYTHING = {
  elicitation: { form: {}, url: {} },
  sampling: { tools: {} },
  roots: { listChanged: true },
};

const asks = (method: string, params?: Members): Tool => ({
  description: `Asks ${method}`,
  run: async (_args, { ask }) => says(await ask(method, params ?? {})),
});
const TOOL = { name: 'now', inputSchema: { type: 'object' } };
const SAMPLE = {
  messages: [{ role: 'user', content: { type: 'text', text: 'Hi' } }],
  maxTokens: 9,
};
for (const upstream of [plain, other]) {
  Object.assign(upstream.tools, {
    ask_roots: asks('roots/list'),
    ask_ping: asks('ping'),
    ask_sample: asks('sampling/createMessage', SAMPLE),
    ask_sample_tools: asks('sampling/createMessage', { ...SAMPLE, tools: [TOOL] }),
    ask_unknown_mode: asks('elicitation/create', { mode: 'telepathy', message: 'Think!' }),
  });
}
plain.tools['ask_and_carry_on'] = {
  description: 'Goes on whatever the answer to its question is',
  run: async (_args, { ask }) => {
    const answer = await ask('elicitation/create', { message: '?', requestedSchema: {} }).catch(
      (error: unknown) => ({ refused: String(error) }),
    );
    return says({ carried: 'on', answer });
  },
};

const client = (user: string, capabilities: Members = EVERYTHING) =>
  world.client(user, { upstream: 'plain', capabilities });

/** The request that is on the call's stream now. */
async function asked(call: Call): Promise<{ stream: EventStream; ask: Message }> {
  const stream = await call.stream();
  const ask = await stream.message('a request', ({ method, id }) => !!method && id !== undefined);
  return { stream, ask };
}

const answersTo = (upstream: LegacyUpstream, since: number): Message[] =>
  upstream.answers.slice(since);

test('[X1] two upstreams ask with the same id at once, and each gets its own answer', async () => {
  const both = await manyClient(world, 'ann', { capabilities: EVERYTHING }).initialize();
  const since = [plain.answers.length, other.answers.length] as const;
  const first = both.beginTool('plain__ask_form', {}, { pod: 0 });
  const second = both.beginTool('other__ask_form', {}, { pod: 1 });
  const [a, b] = await Promise.all([asked(first), asked(second)]);
  expect(a.ask.id).not.toBe(b.ask.id);
  await both.answer(b.ask.id!, { action: 'accept', content: { name: 'Other' } }, { pod: 0 });
  await both.answer(a.ask.id!, { action: 'accept', content: { name: 'Plain' } }, { pod: 1 });
  expect(textOf(await first.message())).toContain('Plain');
  expect(textOf(await second.message())).toContain('Other');
  const ids = [answersTo(plain, since[0]), answersTo(other, since[1])].map((list) =>
    list.map(({ id }) => id),
  );
  expect(ids[0], 'the upstreams did use the same id').toEqual(ids[1]);
});

describe('an answer', () => {
  test.for([
    { action: 'accept', content: { name: 'Ann', n: 1 }, _meta: { 'corp.example/t': 1 } },
    { action: 'decline' },
    { action: 'cancel', 'x-own': [null] },
  ])('[asks.answers] $action passes through untouched', async (result) => {
    const ann = await client('ann').initialize();
    const call = ann.beginTool('ask_form', {}, { pod: 0 });
    const { ask } = await asked(call);
    const text = `{"result": ${JSON.stringify(result)},"id":${JSON.stringify(ask.id)}, "jsonrpc":"2.0"}`;
    expect((await ann.post(text, { pod: 1 })).status).toBe(202);
    expect(JSON.parse(textOf(await call.message())!)).toEqual(result);
    const got = plain.received.findLast(({ message }) => message?.result?.['action'])!;
    expect(got.text).toBe(text.replace(JSON.stringify(ask.id), JSON.stringify(got.message!.id)));
  });

  test('[asks.answers] an error is an answer, with its code, text and data', async () => {
    const ann = await client('ann').initialize();
    const call = ann.beginTool('ask_form', {}, { pod: 0 });
    const { ask } = await asked(call);
    const error = { code: -1, message: 'The person is asleep', data: { until: '8:00' } };
    expect((await ann.post({ jsonrpc: '2.0', id: ask.id, error }, { pod: 1 })).status).toBe(202);
    expect((await call.message()).error).toMatchObject(error);
    expect(plain.answers.at(-1)!.error).toEqual(error);
  });

  test('[asks.once] counts once: a second, a late and a stranger’s are 202 and ignored', async () => {
    const ann = await client('ann').initialize();
    const bob = await client('bob').initialize();
    const again = await client('ann').initialize();
    const call = ann.beginTool('ask_form', {}, { pod: 0 });
    const { ask } = await asked(call);
    const since = plain.answers.length;
    const result = { action: 'accept', content: { name: 'Eve' } };
    for (const stranger of [bob, again]) {
      expect((await stranger.answer(ask.id!, result, { pod: 1 })).status).toBe(202);
    }
    for (const id of [0, '', 'ask-of-nobody', 100]) {
      expect((await ann.answer(id, result, { pod: 0 })).status).toBe(202);
    }
    expect(answersTo(plain, since)).toEqual([]);
    const own = { action: 'accept', content: { name: 'Ann' } };
    const races = await Promise.all([0, 1, 0, 1].map((pod) => ann.answer(ask.id!, own, { pod })));
    expect(races.map(({ status }) => status)).toEqual([202, 202, 202, 202]);
    expect(textOf(await call.message())).toContain('Ann');
    expect((await ann.answer(ask.id!, result, { pod: 1 })).status).toBe(202);
    await never('a second answer at the upstream', () => answersTo(plain, since).length > 1);
    const pending = `viaduct:pending:{${world.userId('ann')}}:${ann.sessionId}`;
    expect(await world.stack.redis.client.hgetall(pending)).toEqual({});
  });
});

describe('each kind of request', () => {
  const model = { role: 'assistant', model: 'm', content: { type: 'text', text: 'Hello' } };
  test.for([
    { tool: 'ask_form', method: 'elicitation/create', result: { action: 'decline' } },
    { tool: 'ask_url', method: 'elicitation/create', result: { action: 'accept' } },
    { tool: 'ask_sample', method: 'sampling/createMessage', result: model },
    { tool: 'ask_sample_tools', method: 'sampling/createMessage', result: model },
    { tool: 'ask_roots', method: 'roots/list', result: { roots: [{ uri: 'file:///a' }] } },
    { tool: 'ask_ping', method: 'ping', result: {} },
  ])(
    '[asks.kinds] $tool is asked as it was, and answered at the other pod',
    async ({ tool, method, result }) => {
      const ann = await client('ann').initialize();
      const call = ann.beginTool(tool, {}, { pod: 1 });
      const { ask } = await asked(call);
      expect(ask.method).toBe(method);
      if (tool === 'ask_sample_tools') expect(ask.params).toEqual({ ...SAMPLE, tools: [TOOL] });
      if (tool === 'ask_url') {
        expect(ask.params).toMatchObject({
          elicitationId: 'upstream-own-1',
          url: 'https://pay.example/now',
        });
      }
      await ann.answer(ask.id!, result, { pod: 0 });
      expect(JSON.parse(textOf(await call.message())!)).toEqual(result);
    },
  );

  test('[asks.kinds] on the endpoint of many an elicitation’s id says whose it is, and its completion too', async () => {
    const ann = await manyClient(world, 'ann', { capabilities: EVERYTHING }).initialize();
    const bob = await manyClient(world, 'bob', { capabilities: EVERYTHING }).initialize();
    const mine = await ann.listen({ pod: 0 });
    const theirs = await bob.listen({ pod: 1 });
    const call = ann.beginTool('other__ask_url', {}, { pod: 1 });
    const { ask } = await asked(call);
    expect(ask.params).toMatchObject({ elicitationId: 'other__upstream-own-1' });
    await ann.answer(ask.id!, { action: 'accept' }, { pod: 0 });
    await call.message();
    await until('both listen', () => other.listening() >= 2);
    const session = [...other.sessions.values()].find(({ id }) =>
      other.received.some(
        ({ headers, message }) =>
          headers['mcp-session-id'] === id && message?.params?.['name'] === 'ask_url',
      ),
    )!;
    other.notify(
      'notifications/elicitation/complete',
      { elicitationId: 'upstream-own-1' },
      session,
    );
    const done = await mine.notification('notifications/elicitation/complete');
    expect(done.params).toEqual({ elicitationId: 'other__upstream-own-1' });
    await never('anything for the other client', () => theirs.messages.length > 0);
  });
});

describe('what the client did not declare', () => {
  test.for<[string, Members, number]>([
    ['ask_form', {}, -32601],
    ['ask_url', {}, -32601],
    ['ask_sample', { elicitation: {} }, -32601],
    ['ask_roots', { elicitation: {} }, -32601],
    ['ask_url', { elicitation: {} }, -32602],
    ['ask_form', { elicitation: { url: {} } }, -32602],
    ['ask_sample_tools', { sampling: {} }, -32602],
    ['ask_unknown_mode', { elicitation: { form: {}, url: {} } }, -32602],
  ])(
    '[asks.gate] %s with %j is refused to the upstream with %i',
    async ([tool, capabilities, code]) => {
      const ann = await client('ann', capabilities).initialize();
      const call = ann.beginTool(tool, {}, { pod: 0 });
      const message = await call.message();
      expect(plain.answers.at(-1)!.error?.code).toBe(code);
      expect(message.error?.code, 'what becomes of the call is the upstream’s to say').toBe(code);
      const { stream } = await call.http;
      expect(stream?.messages.filter(({ method }) => method) ?? []).toEqual([]);
    },
  );

  test('[asks.gate] a ping needs no capability', async () => {
    const ann = await client('ann', {}).initialize();
    const call = ann.beginTool('ask_ping', {}, { pod: 0, answerAt: 1, onAsk: () => ({}) });
    expect(textOf(await call.message())).toBe('{}');
  });

  test('[asks.gate] the user’s call goes on to its own result', async () => {
    const ann = await client('ann', {}).initialize();
    expect(textOf(await ann.callTool('ask_and_carry_on', {}))).toContain('"carried":"on"');
  });
});

describe('an ask that is not waited for any more', () => {
  test('[asks.withdrawn] the upstream takes it back: the client hears of it with the id that it knows', async () => {
    plain.tools['ask_and_withdraw'] = {
      description: 'Asks, and takes it back at the gate',
      run: async (_args, { ask, gate, notify }) => {
        ask('elicitation/create', { message: '?', requestedSchema: {} }).catch(() => undefined);
        await gate('withdraw').pass();
        const requestId = [...plain.sessions.values()]
          .flatMap(({ waiting }) => [...waiting.keys()])
          .map(Number)
          .at(-1)!;
        notify('notifications/cancelled', { requestId, reason: 'too slow' });
        await gate('withdrawn').pass();
        return says('done without');
      },
    };
    const ann = await client('ann').initialize();
    const call = ann.beginTool('ask_and_withdraw', {}, { pod: 0 });
    const { stream, ask } = await asked(call);
    const since = plain.answers.length;
    plain.gate('withdraw').open();
    const notice = await stream.notification('notifications/cancelled');
    expect(notice.params).toEqual({ requestId: ask.id, reason: 'too slow' });
    expect((await ann.answer(ask.id!, { action: 'accept' }, { pod: 1 })).status).toBe(202);
    await never('the late answer at the upstream', () => answersTo(plain, since).length > 0);
    plain.gate('withdrawn').open();
    expect(textOf(await call.message())).toBe('done without');
  });

  test('[L3] the call reaches its hard cap: the form is taken back, the upstream told, nothing stays', async () => {
    const capped = await startWorld({
      workers: 0,
      plainUpstreams: [],
      connection: {},
      config: {
        upstreams: [
          { name: 'plain', url: plain.endpoint, allowPrivateNetwork: true, timeoutSeconds: 1 },
        ],
      },
    });
    try {
      const ann = await capped
        .client('ann', { upstream: 'plain', capabilities: EVERYTHING })
        .initialize();
      const cancelled = plain.cancelled.length;
      const call = ann.beginTool('ask_form', {}, { pod: 0 });
      const { stream, ask } = await asked(call);
      const end = await call.message();
      expect.soft(end.error?.data?.reason).toBe('upstream_timeout');
      await until('the upstream is told', () => plain.cancelled.length > cancelled);
      const pending = `viaduct:pending:{${capped.userId('ann')}}:${ann.sessionId}`;
      await until('no pending key', async () => !(await capped.stack.redis.client.exists(pending)));
      expect((await ann.answer(ask.id!, { action: 'accept' }, { pod: 1 })).status).toBe(202);
      const taken = stream.named('notifications/cancelled');
      expect(taken.map(({ params }) => params?.['requestId'])).toEqual([ask.id]);
    } finally {
      await capped.stop();
    }
  });

  test('[L3] the client goes away during the form and answers after its return, through the other pod', async () => {
    const ann = await client('ann').initialize();
    const call = ann.beginTool('ask_form', {}, { pod: 0 });
    const { stream, ask } = await asked(call);
    const { lastEventId } = stream;
    await call.drop();
    expect(
      (await ann.answer(ask.id!, { action: 'accept', content: { name: 'Back' } }, { pod: 1 }))
        .status,
    ).toBe(202);
    const rest = await ann.listen({ pod: 1, lastEventId: lastEventId! });
    const end = await rest.message('the answer', ({ id }) => id === call.id);
    expect(textOf(end)).toContain('Back');
  });
});

test('[asks.scopes] a weaker token of the same user and client cannot answer for an upstream it may not use, nor end its calls', async () => {
  const guarded = await startWorld({
    workers: 0,
    config: {
      upstreams: [
        { name: 'shut', url: plain.endpoint, allowPrivateNetwork: true, scopes: ['shut:use'] },
      ],
    },
  });
  try {
    const strong = manyClient(guarded, 'ann', {
      capabilities: EVERYTHING,
      claims: { scope: 'mcp:tools shut:use' },
    });
    await strong.initialize();
    const weak = strong.as({
      token: manyClient(guarded, 'ann', { claims: { scope: 'mcp:tools' } }).token,
    });
    const call = strong.beginTool('shut__ask_form', {}, { pod: 0 });
    const { ask } = await asked(call);
    const given = plain.answers.length;
    const refused = await weak.answer(ask.id!, { action: 'accept', content: { name: 'W' } });
    expect(refused.status).toBe(403);
    expect(refused.headers['www-authenticate']).toMatch(/insufficient_scope.*shut:use/);
    expect(plain.answers.length).toBe(given);
    // Nor can it end the call, whichever pod hears of it.
    for (const pod of [0, 1]) {
      const params = { requestId: call.id };
      const unheard = await weak.notify('notifications/cancelled', params, { pod });
      expect(unheard.status, `pod ${pod}`).toBe(403);
      expect(unheard.headers['www-authenticate']).toMatch(/insufficient_scope.*shut:use/);
    }
    // Nothing was consumed by the attempts.
    await strong.answer(ask.id!, { action: 'accept', content: { name: 'Strong' } }, { pod: 1 });
    expect(textOf(await call.message())).toContain('Strong');
  } finally {
    await guarded.stop();
  }
});

test('[asks.scopes] nor what an upstream of 2026-07-28 asked, which a pod waits for instead of an upstream', async () => {
  const modern = await startModernUpstream({ name: 'shut' });
  const guarded = await startWorld({
    workers: 0,
    config: {
      upstreams: [
        { name: 'shut', url: modern.endpoint, allowPrivateNetwork: true, scopes: ['shut:use'] },
      ],
    },
  });
  try {
    const strong = manyClient(guarded, 'ann', {
      capabilities: EVERYTHING,
      claims: { scope: 'mcp:tools shut:use' },
    });
    await strong.initialize();
    const weak = strong.as({
      token: manyClient(guarded, 'ann', { claims: { scope: 'mcp:tools' } }).token,
    });
    const call = strong.beginTool('shut__ask_form', {}, { pod: 0 });
    const { ask } = await asked(call);
    for (const pod of [0, 1]) {
      const answer = { action: 'accept', content: { name: 'Weak', n: 1 } };
      const refused = await weak.answer(ask.id!, answer, { pod });
      expect(refused.status, `pod ${pod}`).toBe(403);
      // The challenge is about the endpoint that was called, and finds its way into the audit with the request.
      expect(refused.headers['www-authenticate']).toMatch(
        /insufficient_scope.*oauth-protected-resource\/mcp"/,
      );
      const id = refused.headers['x-request-id'];
      const told = guarded.stack.audit('scope.challenged').map(({ audit }) => audit!['requestId']);
      expect(told).toContain(id);
    }
    const answer = { action: 'accept', content: { name: 'Strong', n: 1 } };
    await strong.answer(ask.id!, answer, { pod: 1 });
    expect(textOf(await call.message())).toContain('Strong');
  } finally {
    await guarded.stop();
    await modern.stop();
  }
});
