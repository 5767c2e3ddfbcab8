import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { textOf } from '../support/mcp-client.ts';
import {
  accept,
  answering,
  inputRequired,
  LOG_LEVEL,
  ModernClient,
  type ModernOptions,
} from '../support/modern-client.ts';
import type { Members, Message } from '../support/net.ts';
import { never, until } from '../support/until.ts';
import { AWKWARD_RESULT, says, ToolFailure, type ToolContext } from '../support/upstream-tools.ts';
import { startWorld } from '../support/world.ts';

// A modern client on a legacy upstream (issue 4, item 5; design § 9): every feature, each round on the other pod.

const CAN_ALL = { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} };
const TTL_SECONDS = 4;
const at = await startWorld({
  workers: 0,
  plainUpstreams: ['plain'],
  config: { elicitation: { ttlSeconds: TTL_SECONDS, connectWaitSeconds: 5 } },
});
afterAll(() => at.stop());
const plain = at.plain['plain']!;

const client = (user: string, options: Partial<ModernOptions> = {}): ModernClient =>
  new ModernClient({
    url: at.endpoint('plain'),
    ports: at.stack.ports,
    token: at.token(user, {}, 'plain'),
    capabilities: CAN_ALL,
    ...options,
  });
const ann = client('ann');

const FORM = { type: 'object', properties: { name: { type: 'string' } } };
const MODEL_SAYS = { role: 'assistant', content: { type: 'text', text: 'hi' }, model: 'm' };
const askForm = ({ ask }: ToolContext) =>
  ask('elicitation/create', { message: 'Who?', requestedSchema: FORM });
const step = ({ notify, progressToken }: ToolContext, message: string) =>
  notify('notifications/progress', { progressToken, progress: 1, message });

beforeAll(() => {
  plain.capabilities = {
    tools: { listChanged: true },
    prompts: { listChanged: true },
    resources: { listChanged: true, subscribe: true },
    logging: {},
    completions: {},
  };
  Object.assign(plain.methods, {
    'prompts/get': async (_params: Members, context: ToolContext) => ({
      messages: [
        { role: 'user', content: { type: 'text', text: JSON.stringify(await askForm(context)) } },
      ],
    }),
    'resources/read': async ({ uri }: Members, context: ToolContext) => {
      if (uri === 'res://none') throw new ToolFailure(-32002, 'Resource not found', { uri });
      return { contents: [{ uri, text: JSON.stringify(await askForm(context)) }] };
    },
    'prompts/list': (_params: Members, context: ToolContext) => {
      context.ask('roots/list', {}).catch(() => undefined);
      return { prompts: [{ name: 'greet' }] };
    },
    'completion/complete': () => ({ completion: { values: ['a'] } }),
    'resources/subscribe': () => ({}),
    'resources/unsubscribe': () => ({}),
  });
  Object.assign(plain.tools, {
    ask_model: {
      description: '',
      run: async (_args: Members, { ask }: ToolContext) =>
        says(await ask('sampling/createMessage', { messages: [], maxTokens: 1 })),
    },
    ask_roots: {
      description: '',
      run: async (_args: Members, { ask }: ToolContext) => says(await ask('roots/list', {})),
    },
    both: {
      description: 'Asks two things at once',
      run: async (_args: Members, context: ToolContext) =>
        says(await Promise.all([askForm(context), context.ask('roots/list', {})])),
    },
    rounds: {
      description: 'Three rounds, with progress in each',
      run: async (_args: Members, context: ToolContext) => {
        const said: unknown[] = [];
        for (const round of [1, 2, 3]) {
          step(context, `before ${round}`);
          said.push(await askForm(context));
        }
        step(context, 'at the end');
        return says(said);
      },
    },
    then_hold: {
      description: 'Asks, then waits at a gate',
      run: async (args: Members, context: ToolContext) => {
        await askForm(context);
        await Promise.race([
          context.gate(String(args['gate'])).pass(),
          new Promise((resolve) => context.signal.addEventListener('abort', resolve)),
        ]);
        return context.signal.aborted ? undefined : says('held');
      },
    },
    then_awkward: {
      description: 'Asks, then gives bytes that must stay as they are',
      run: async (_args: Members, context: ToolContext) => {
        await askForm(context);
        return { raw: AWKWARD_RESULT };
      },
    },
    say_levels: {
      description: 'Logs at three levels, whatever was set',
      run: (_args: Members, { notify }: ToolContext) => {
        for (const level of ['debug', 'info', 'error']) {
          notify('notifications/message', { level, data: level });
        }
        return says('logged');
      },
    },
    link_first: {
      description: 'Wants a link followed before it does anything',
      run: (args: Members) => {
        if ((plain.ran['link_first'] ?? 0) > Number(args['refusals'])) return says('done');
        throw new ToolFailure(-32042, 'Please authorize', {
          elicitations: [
            { mode: 'url', elicitationId: 'el-1', url: 'https://pay.example/a', message: 'Pay' },
          ],
        });
      },
    },
  });
});

const said = (message: Message): unknown => JSON.parse(textOf(message)!);
const ran = (tool: string) => plain.ran[tool] ?? 0;
const suspended = () => at.stack.metric('viaduct_suspended_calls');

describe('questions in the middle of a call', () => {
  test.each<[string, string, Members]>([
    ['a form that is accepted', 'ask_form', { action: 'accept', content: { name: 'Ann' } }],
    ['a form that is declined', 'ask_form', { action: 'decline' }],
    ['a form that is cancelled', 'ask_form', { action: 'cancel' }],
    ['a link', 'ask_url', { action: 'accept' }],
    ['a model', 'ask_model', MODEL_SAYS],
    ['roots', 'ask_roots', { roots: [{ uri: 'file:///work' }] }],
  ])('[bridge.ask] %s: the answer comes to the other pod', async (_what, tool, answer) => {
    const before = ran(tool);
    const first = await ann.tool(tool, {}, { pod: 0 });
    const [request] = Object.values(inputRequired(first).inputRequests);
    expect(JSON.stringify(request)).not.toContain('elicitationId');
    const last = await ann.tool(tool, {}, { pod: 1, ...answering(first, () => answer) });
    expect(said(last)).toEqual(answer);
    expect(last.result?.['resultType']).toBe('complete');
    expect(ran(tool)).toBe(before + 1);
    expect(await suspended()).toBe(0);
  });

  test.each([
    ['prompts/get', { name: 'greet' }],
    ['resources/read', { uri: 'res://one' }],
  ])('[bridge.ask] during %s', async (method, params) => {
    const first = await ann.call(method, params, { pod: 1 });
    const last = await ann.call(
      method,
      { ...params, ...answering(first, () => ({ action: 'decline' })) },
      { pod: 0 },
    );
    expect(JSON.stringify(last.result)).toContain('decline');
  });

  test('[bridge.ask] a list has no rounds: the upstream is refused, the list comes', async () => {
    const answers = plain.answers.length;
    const { result } = await ann.call('prompts/list', {}, { pod: 0 });
    expect(result).toMatchObject({ prompts: [{ name: 'greet' }], ttlMs: 0, cacheScope: 'private' });
    await until('the question is refused', () => plain.answers[answers]);
    expect(plain.answers[answers]!.error!.code).toBe(-32601);
  });

  test('[bridge.batch] what is asked at once is put together', async () => {
    const first = await ann.tool('both', {}, { pod: 0 });
    const asked = Object.values(inputRequired(first).inputRequests).map(({ method }) => method);
    expect(asked).toEqual(['elicitation/create', 'roots/list']);
    const { requestState, inputRequests } = inputRequired(first);
    const [form, roots] = Object.keys(inputRequests);

    const again = await ann.tool(
      'both',
      {},
      { pod: 1, requestState, inputResponses: { [form!]: accept(), own: 1 } },
    );
    expect(Object.keys(inputRequired(again).inputRequests)).toEqual([roots]);
    expect(plain.answers.some(({ id }) => id === form)).toBe(false);

    const wrong = await ann.tool(
      'both',
      {},
      {
        pod: 0,
        requestState: inputRequired(again).requestState,
        inputResponses: { [roots!]: { action: 'accept' } },
      },
    );
    expect(wrong.error).toMatchObject({ code: -32602 });
    const last = await ann.tool(
      'both',
      {},
      {
        pod: 0,
        requestState: inputRequired(again).requestState,
        inputResponses: { [roots!]: { roots: [] } },
      },
    );
    expect(said(last)).toEqual([{ action: 'accept' }, { roots: [] }]);
  });

  test('[bridge.rounds] several rounds, each with its progress on its own stream', async () => {
    const seen: unknown[] = [];
    let answers: Members = {};
    let message: Message | undefined;
    for (const [pod, token] of [0, 'two', 7, 'last'].entries()) {
      const call = ann.beginTool(
        'rounds',
        {},
        { pod: pod % 2, meta: { progressToken: token }, ...answers },
      );
      message = await call.message();
      for (const { params } of await call.notifications()) {
        seen.push([params?.['progressToken'], params?.['message']]);
      }
      if (message.result?.['resultType'] === 'input_required') {
        answers = { ...answering(message, () => ({ action: 'accept', content: { pod } })) };
      }
    }
    expect(seen).toEqual([
      [0, 'before 1'],
      ['two', 'before 2'],
      [7, 'before 3'],
      ['last', 'at the end'],
    ]);
    expect(said(message!)).toEqual(
      [0, 1, 2].map((pod) => ({ action: 'accept', content: { pod } })),
    );
  });

  test('[bridge.bytes] arguments, answers and results keep their bytes', async () => {
    const headers = ann.headers('tools/call', { name: 'then_awkward' });
    const args = '{"n":9223372036854775807, "f":1.0,"z":-0}';
    const meta = JSON.stringify(ann.meta());
    const post = (id: number, more: string) =>
      ann.post(
        `{"jsonrpc":"2.0","id":${id},"method":"tools/call","params":{"name":"then_awkward","arguments":${args}${more},"_meta":${meta}}}`,
        { pod: id % 2, headers },
      );
    const first = await post(0, '');
    const round = inputRequired(first.json ?? first.stream!.messages.at(-1)!);
    const content = '{"big":9007199254740993,"one":1.0}';
    const last = await post(
      1,
      `,"requestState":${JSON.stringify(round.requestState)},"inputResponses":{"${Object.keys(round.inputRequests)[0]!}":{"action":"accept","content":${content}}}`,
    );
    await last.stream?.ended();
    const raw = last.stream?.events.at(-1)!.data ?? last.text;
    expect(raw.replace('"resultType":"complete",', '')).toBe(
      `{"jsonrpc":"2.0","id":1,"result":${AWKWARD_RESULT}}`,
    );
    const sent = plain.calls('then_awkward');
    expect(sent).toHaveLength(1);
    expect(sent[0]!.text).toContain(`"arguments":${args}`);
    expect(sent[0]!.text).not.toContain('io.modelcontextprotocol');
    expect(plain.received.some(({ text }) => text.includes(`"content":${content}`))).toBe(true);
  });

  test('[bridge.undeclared] what the client did not declare is refused to the upstream', async () => {
    const cases: [unknown, string, number][] = [
      [{}, 'ask_form', -32601],
      [{ elicitation: { url: {} } }, 'ask_form', -32602],
      [{ elicitation: {} }, 'ask_url', -32602],
      [{ elicitation: {} }, 'ask_model', -32601],
      [{ elicitation: true }, 'ask_roots', -32601],
    ];
    for (const [capabilities, tool, code] of cases) {
      const { error } = await client('ann', { capabilities }).tool(tool);
      expect([tool, error?.code]).toEqual([tool, code]);
    }
  });
});

describe('a requestState', () => {
  test('[bridge.tamper] is good for its owner, its arguments and once; the upstream hears of nothing else', async () => {
    const first = await ann.tool('ask_form', { a: 1 }, { pod: 0 });
    const answers = answering(first, accept);
    const before = plain.answers.length;
    const state = String(answers.requestState);
    const bent = state.slice(0, -6) + (state.at(-6) === 'A' ? 'B' : 'A') + state.slice(-5);
    const refused = [
      await client('bob').tool('ask_form', { a: 1 }, { pod: 1, ...answers }),
      await ann.tool('ask_form', { a: 2 }, { pod: 1, ...answers }),
      await ann.tool('ask_url', { a: 1 }, { pod: 1, ...answers }),
      await ann.tool('ask_form', { a: 1 }, { pod: 1, ...answers, requestState: bent }),
    ];
    expect(refused.map(({ error }) => error?.code)).toEqual([-32602, -32602, -32602, -32602]);
    expect(plain.answers).toHaveLength(before);
    const both = await Promise.all(
      [0, 1].map((pod) => ann.tool('ask_form', { a: 1 }, { pod, ...answers })),
    );
    expect(both.filter(({ result }) => result !== undefined)).toHaveLength(1);
    expect(both.find(({ error }) => error !== undefined)!.error!.code).toBe(-32602);
    expect(plain.answers).toHaveLength(before + 1);
  });

  test('[bridge.expiry] nobody comes: the question is answered cancel, and the call is over', async () => {
    const before = plain.answers.length;
    const first = await ann.tool('ask_form', { late: 1 }, { pod: 0 });
    expect(await suspended()).toBe(1);
    await until('the upstream is told', () => plain.answers[before], {
      timeoutMs: TTL_SECONDS * 1000 + 5_000,
    });
    expect(plain.answers[before]!.result).toEqual({ action: 'cancel' });
    const late = await ann.tool('ask_form', { late: 1 }, { pod: 1, ...answering(first, accept) });
    expect(late.error?.code).toBe(-32602);
    await until('nothing is held', async () => (await suspended()) === 0);
    expect(plain.calls('ask_form').filter(({ text }) => text.includes('late'))).toHaveLength(1);
  });
});

describe('cancellation', () => {
  const cancels = () =>
    plain.received.filter(({ message }) => message?.method === 'notifications/cancelled');

  test.each([
    ['in the first round', 'hold', false],
    ['in a later round, from the pod that does not hold the call', 'then_hold', true],
  ])('[bridge.cancel] closing the stream %s reaches the upstream', async (what, tool, asks) => {
    const args = { gate: what };
    const before = plain.cancelled.length;
    let answers = {};
    if (asks) answers = answering(await ann.tool(tool, args, { pod: 0 }), accept);
    const call = ann.beginTool(tool, args, { pod: 1, ...answers });
    await until('the tool runs', () => plain.gate(what).arrived);
    await call.drop();
    await until('the upstream is told', () => plain.cancelled.length > before);
    const { params } = cancels().at(-1)!.message!;
    const sent = plain.calls(tool).at(-1)!.message!;
    expect(params?.['requestId']).toBe(sent.id);
  });
});

describe('links', () => {
  test('[bridge.links] -32042: the retry waits for the upstream’s word, then the call is sent again', async () => {
    const args = { refusals: 1 };
    const first = await ann.tool('link_first', args, { pod: 0 });
    expect(Object.values(inputRequired(first).inputRequests)).toEqual([
      {
        method: 'elicitation/create',
        params: { mode: 'url', message: 'Pay', url: 'https://pay.example/a' },
      },
    ]);
    const retry = ann.tool('link_first', args, { pod: 1, ...answering(first, accept) });
    await never('sent before the link is followed', () => ran('link_first') > 1);
    expect(plain.notify('notifications/elicitation/complete', { elicitationId: 'el-1' })).toBe(1);
    expect(textOf(await retry)).toBe('done');
  });

  test('[bridge.links] a no, and a client that cannot open links', async () => {
    const args = { refusals: 99 };
    const first = await ann.tool('link_first', args, { pod: 0 });
    const { result } = await ann.tool('link_first', args, {
      pod: 1,
      ...answering(first, () => ({ action: 'decline' })),
    });
    expect(result).toMatchObject({ isError: true, resultType: 'complete' });
    const { error } = await client('ann', { capabilities: { elicitation: {} } }).tool(
      'link_first',
      args,
    );
    expect(error).toMatchObject({
      code: -32021,
      data: { requiredCapabilities: { elicitation: { url: {} } } },
    });
  });
});

describe('the plain path', () => {
  test('[bridge.discover] server/discover is made of initialize', async () => {
    const { result } = await ann.call('server/discover', {}, { pod: 1 });
    expect(result).toMatchObject({
      resultType: 'complete',
      cacheScope: 'private',
      capabilities: { tools: { listChanged: true }, logging: {} },
      instructions: 'How to use plain',
    });
    expect(result?.['supportedVersions']).toContain('2026-07-28');
  });

  test('[bridge.errors] codes are those of this revision', async () => {
    const missing = await ann.call('resources/read', { uri: 'res://none' });
    expect(missing.error).toMatchObject({ code: -32602, data: { uri: 'res://none' } });
    const own = await ann.tool('fail');
    expect(own.error).toEqual({ code: -32123, message: 'as asked', data: { why: ['test'] } });
    const unknown = ann.begin('odd/method');
    expect((await unknown.message()).error?.code).toBe(-32601);
    expect((await unknown.http).status).toBe(404);
    const completed = await ann.call('completion/complete', { ref: {}, argument: {} });
    expect(completed.result).toMatchObject({ completion: { values: ['a'] } });
  });

  test('[bridge.level] log messages reach who asked for them, at their level', async () => {
    const levels = async (pod: number, level?: string) => {
      const call = ann.beginTool(
        'say_levels',
        {},
        { pod, ...(level && { meta: { [LOG_LEVEL]: level } }) },
      );
      await call.message();
      return (await call.notifications()).map(({ params }) => params?.['level']);
    };
    expect(await levels(0)).toEqual([]);
    expect(await levels(0, 'info')).toEqual(['info', 'error']);
    expect(await levels(1, 'error')).toEqual(['error']);
    expect(await levels(1, 'debug')).toEqual(['debug', 'info', 'error']);
    const set = plain.requests('logging/setLevel').map(({ message }) => message?.params?.['level']);
    expect(set).toEqual(['info', 'debug']);
  });

  test('[bridge.sessions] one upstream session for a user’s requests at both pods; ids of several never meet', async () => {
    const carol = client('carol');
    const before = plain.initialized;
    const many = await Promise.all(
      Array.from({ length: 20 }, (_, i) => carol.tool('echo', { i }, { pod: i % 2, id: 'same' })),
    );
    expect(many.map(said)).toEqual(Array.from({ length: 20 }, (_, i) => ({ i })));
    expect(plain.initialized).toBe(before + 1);
    expect([...plain.sessions.values()].at(-1)!.capabilities).toEqual({
      elicitation: { form: {}, url: {} },
      sampling: {},
      roots: {},
    });
    plain.forget();
    expect(said(await carol.tool('echo', { again: 1 }, { pod: 0 }))).toEqual({ again: 1 });
    expect(said(await carol.tool('echo', { again: 2 }, { pod: 1 }))).toEqual({ again: 2 });
    expect(plain.initialized).toBe(before + 2);
  });
});

describe('subscriptions', () => {
  test('[bridge.listen] one upstream stream serves both pods, and moves when its pod’s client leaves', async () => {
    const dora = client('dora');
    const zero = await dora.listen(
      { toolsListChanged: true, resourceSubscriptions: ['res://a'] },
      { pod: 0, id: 0 },
    );
    const text = await dora.listen({ toolsListChanged: true }, { pod: 1, id: 'x' });
    expect(zero.acknowledged.params?.['notifications']).toEqual({
      toolsListChanged: true,
      resourceSubscriptions: ['res://a'],
    });
    expect(plain.listening()).toBe(1);
    plain.notify('notifications/prompts/list_changed');
    plain.notify('notifications/resources/updated', { uri: 'res://a' });
    plain.notify('notifications/tools/list_changed');
    await zero.stream.notification('notifications/tools/list_changed');
    await text.stream.notification('notifications/tools/list_changed');
    const methods = (stream: typeof zero.stream) =>
      stream.messages.map(({ method }) => method?.replace('notifications/', ''));
    expect(methods(zero.stream)).toEqual([
      'subscriptions/acknowledged',
      'resources/updated',
      'tools/list_changed',
    ]);
    expect(methods(text.stream)).toEqual(['subscriptions/acknowledged', 'tools/list_changed']);

    zero.stream.close();
    await until('the resource is given up', () => plain.requests('resources/unsubscribe').length);
    // The heir tells its listener that something may have been missed: that, or the event itself.
    await until('the heir has told', async () => {
      plain.notify('notifications/tools/list_changed');
      return text.stream.messages.length > 2;
    });
    text.stream.close();
    await until('nobody listens', () => plain.listening() === 0);
  });
});

describe('pods that go', () => {
  test('[bridge.holder-killed] the holder is killed: an explained error, never a second run', async () => {
    const runs = ran('ask_form');
    const first = await ann.tool('ask_form', { kill: 1 }, { pod: 0 });
    await at.stack.pods[0]!.child.kill();
    const { error } = await ann.tool(
      'ask_form',
      { kill: 1 },
      {
        pod: 1,
        timeoutMs: 20_000,
        ...answering(first, accept),
      },
    );
    expect(error).toMatchObject({ code: -32603, data: { reason: 'upstream_call_lost' } });
    expect(ran('ask_form')).toBe(runs + 1);
    await at.stack.restart(at.stack.pods[0]!);
  });
});
