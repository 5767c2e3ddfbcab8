import { afterAll, describe, expect, test } from 'vitest';
import { ALL, startBridgedWorld } from '../support/bridged-world.ts';
import { textOf, type McpClient } from '../support/mcp-client.ts';
import type { Members, Message } from '../support/net.ts';
import { AWKWARD_RESULT } from '../support/upstream-tools.ts';
import { never, until } from '../support/until.ts';

// Sessionful clients in front of upstreams of 2026-07-28 (design, section 9; issue 4, item 6). Every answer of the
// client goes to the other pod than its call.

const bridged = await startBridgedWorld({ config: { sessions: { streamAfterMs: 100 } } });
afterAll(() => bridged.stop());
const { world, alpha, beta, legacy } = bridged;
const META = 'io.modelcontextprotocol/';

const answers: Record<string, Members> = {
  form: { action: 'accept', content: { name: 'Ann', n: 3 } },
  decline: { action: 'decline' },
  cancel: { action: 'cancel' },
  link: { action: 'accept' },
  model: { role: 'assistant', model: 'm', content: { type: 'text', text: 'hi' } },
  roots: { roots: [{ uri: 'file:///x', name: 'x' }] },
};
const metaOf = ({ message }: { message: Message | undefined }): Members =>
  message?.params?.['_meta'] as Members;

/** A call at one pod whose questions are answered at the other. */
async function ask(client: McpClient, tool: string, onAsk: (asked: Message) => Members, pod = 0) {
  const asked: Message[] = [];
  const call = client.beginTool(
    tool,
    {},
    {
      pod,
      answerAt: 1 - pod,
      onAsk: (message) => {
        asked.push(message);
        return onAsk(message);
      },
    },
  );
  const message = await call.message();
  const { stream } = await call.http;
  return { message, asked, said: textOf(message) ?? '', notes: stream?.messages ?? [] };
}

describe('initialize', () => {
  test('[bridge.lm.initialize] what the upstream says in server/discover, and no session there', async () => {
    const client = await legacy('ann').initialize({ pod: 0 });
    expect(client.initializeResult).toEqual({
      protocolVersion: '2025-11-25',
      capabilities: {
        tools: { listChanged: true },
        prompts: { listChanged: true },
        resources: { listChanged: true, subscribe: true },
        logging: {},
        completions: {},
      },
      serverInfo: { name: 'alpha', version: '1.0.0' },
      instructions: 'instructions of alpha',
    });
    const names = (await client.listTools({ pod: 1 })).result!.tools!.map(({ name }) => name);
    expect(names).toContain('echo');
    expect(names).not.toContain('broken');
    const sent = alpha.requests('tools/list').at(-1)!;
    expect(metaOf(sent)).toEqual({
      [`${META}protocolVersion`]: '2026-07-28',
      [`${META}clientInfo`]: { name: 'Test Client', version: '1.0.0' },
      [`${META}clientCapabilities`]: {
        elicitation: { form: {}, url: {} },
        sampling: {},
        roots: {},
      },
    });
    expect(sent.headers['mcp-session-id']).toBeUndefined();
    const before = alpha.received.length;
    expect((await client.end({ pod: 1 })).status).toBe(204);
    expect(alpha.received.slice(before)).toEqual([]);
    expect((await client.listTools({ pod: 0 }).catch(() => undefined))?.error).toBeDefined();
  });

  test.each(['2025-06-18', '2025-03-26'])('a client of %s keeps its revision', async (version) => {
    const client = await legacy('ann', { version }).initialize();
    expect(client.negotiated).toBe(version);
    expect(textOf(await client.callTool('echo', { a: 1 }))).toBe('{"a":1}');
  });

  test('[bridge.lm.many] both eras behind /mcp as one server', async () => {
    const client = await legacy('ann', { upstream: '' }).initialize();
    const names = (await client.listTools({ pod: 1 })).result!.tools!.map(({ name }) => name);
    expect(names).toContain('alpha__echo');
    expect(names).toContain('beta__echo');
    expect(names).not.toContain('alpha__broken');
    expect(textOf(await client.callTool('alpha__echo', { a: 1 }))).toBe('{"a":1}');
    expect(alpha.calls('echo').at(-1)!.headers['mcp-name']).toBe('echo');
    const read = await client.begin('resources/read', { uri: 'beta+res://doc/1' }).message();
    expect(read.result!['contents']).toEqual([
      { uri: 'beta+res://doc/1', mimeType: 'text/plain', text: 'beta: res://doc/1' },
    ]);
    const { asked, said, notes } = await ask(client, 'alpha__ask_url', () => answers['link']!);
    expect(said).toBe('{"action":"accept"}');
    const id = asked[0]!.params!['elicitationId'] as string;
    expect(id).toMatch(/^alpha__/);
    expect(notes.find(({ method }) => method === 'notifications/elicitation/complete')).toEqual({
      jsonrpc: '2.0',
      method: 'notifications/elicitation/complete',
      params: { elicitationId: id },
    });
  });
});

describe('requests', () => {
  test('[bridge.lm.bytes] arguments, _meta and results keep their bytes', async () => {
    const client = await legacy('bob').initialize();
    const args = '{"id":9223372036854775807,"f":1.0,"z":-0,"u":"\\u00e9"}';
    const body = `{"jsonrpc":"2.0","id":"b-1","method":"tools/call","params":{"name":"echo","arguments":${args},"_meta":{"corp.example/trace":[1.0,{"k":9007199254740993}]}}}`;
    await client.post(body, { pod: 1 });
    const { text } = alpha.calls('echo').at(-1)!;
    expect(text).toContain(`"arguments":${args}`);
    expect(text).toContain('"corp.example/trace":[1.0,{"k":9007199254740993}]');
    const raw = await client.beginTool('awkward', {}, { id: 7 }).raw();
    expect(raw).toBe(`{"jsonrpc":"2.0","id":7,"result":${AWKWARD_RESULT}}`);
  });

  test('[bridge.lm.plain] prompts, resources, completion; without what only modern results have', async () => {
    const client = await legacy('bob').initialize();
    const result = async (method: string, params: Members) =>
      (await client.begin(method, params).message()).result;
    expect(await result('prompts/get', { name: 'greet' })).toEqual({
      messages: [{ role: 'user', content: { type: 'text', text: 'Hello from alpha' } }],
    });
    expect(await result('resources/read', { uri: 'res://doc/1' })).toEqual({
      contents: [{ uri: 'res://doc/1', mimeType: 'text/plain', text: 'alpha: res://doc/1' }],
    });
    expect(await result('resources/list', {})).toEqual({
      resources: [{ uri: 'res://doc/1', name: 'doc-1' }],
    });
    const ref = { type: 'ref/prompt', name: 'greet' };
    expect(
      await result('completion/complete', { ref, argument: { name: 'a', value: 'b' } }),
    ).toEqual({ completion: { values: ['alpha-done'], total: 1, hasMore: false } });
    expect(await result('ping', {})).toEqual({});
  });

  test('[bridge.lm.errors] errors by the codes of the client’s revision', async () => {
    const client = await legacy('bob').initialize();
    const error = async (method: string, params: Members) =>
      (await client.begin(method, params).message()).error;
    expect(await error('resources/read', { uri: 'res://none' })).toMatchObject({
      code: -32002,
      data: { uri: 'res://none' },
    });
    expect((await error('no/such', {}))?.code).toBe(-32601);
    expect((await error('subscriptions/listen', { notifications: {} }))?.code).toBe(-32601);
    expect((await error('server/discover', {}))?.code).toBe(-32601);
    expect(await error('tools/call', { name: 'fail' })).toEqual({
      code: -32123,
      message: 'as asked',
      data: { why: ['test'] },
    });
    expect((await error('tools/call', { name: 'nope' }))?.code).toBe(-32602);
  });

  test('[bridge.lm.params] Mcp-Param headers from a schema that no one has listed at this pod', async () => {
    const client = await legacy('cleo').initialize();
    for (const pod of [0, 1]) {
      const args = { region: ' sø ', n: -7 };
      expect(textOf(await client.callTool('region', args, { pod }))).toBe(JSON.stringify(args));
    }
    // the definition changes without a word
    alpha.tools['region']!.inputSchema!['properties'] = {
      region: { type: 'string', 'x-mcp-header': 'Where' },
    };
    expect(textOf(await client.callTool('region', { region: 'x' }, { pod: 0 }))).toBe(
      '{"region":"x"}',
    );
    expect(alpha.calls('region').at(-1)!.headers['mcp-param-where']).toBe('x');
    expect((await client.callTool('broken', { n: 1 })).error?.code).toBe(-32602);
    await until('the operator is told', () => world.stack.audit('tool.hidden').length > 0);
  });

  test('[bridge.lm.log-level] the session’s level goes with each request and holds on the way back', async () => {
    const client = await legacy('dan').initialize();
    const said = async () => {
      const call = client.beginTool('logs', {}, { pod: 1 });
      await call.message();
      const { stream } = await call.http;
      return stream?.named('notifications/message').length ?? 0;
    };
    expect(await said()).toBe(0); // nobody asked
    expect(
      (await client.begin('logging/setLevel', { level: 'info' }, { pod: 0 }).message()).result,
    ).toEqual({});
    expect(await said()).toBe(1);
    expect(metaOf(alpha.calls('logs').at(-1)!)[`${META}logLevel`]).toBe('info');
    await client.begin('logging/setLevel', { level: 'error' }, { pod: 0 }).message();
    expect(await said()).toBe(0);
    expect((await client.begin('logging/setLevel', { level: 'loud' }).message()).error?.code).toBe(
      -32602,
    );
    expect(await said()).toBe(0);
  });
});

describe('input_required', () => {
  test.each([
    ['accept', 'ask_form', 'elicitation/create', 'form'],
    ['decline', 'ask_form', 'elicitation/create', 'decline'],
    ['cancel', 'ask_form', 'elicitation/create', 'cancel'],
    ['sampling', 'ask_model', 'sampling/createMessage', 'model'],
    ['roots', 'ask_roots', 'roots/list', 'roots'],
  ])('[bridge.lm.ask] %s', async (_what, tool, method, answer) => {
    const client = await legacy('eve').initialize();
    const { asked, said } = await ask(client, tool, () => answers[answer]!, 1);
    expect(asked.map((one) => one.method)).toEqual([method]);
    expect(String(asked[0]!.id)).toMatch(/^ask-/);
    expect(JSON.parse(said)).toEqual(answers[answer]);
    const [first, second] = alpha.calls(tool).slice(-2);
    expect(second!.message!.id).not.toBe(first!.message!.id);
  });

  test('[bridge.lm.rounds] several rounds, each state exactly as given, each answer at the other pod', async () => {
    const client = await legacy('fay').initialize();
    const before = alpha.statesBack.length;
    const states: string[] = [];
    const usual = alpha.makeState;
    alpha.makeState = () => {
      const state = `${usual()}${' \u2028😀\\"/'.repeat(states.length === 1 ? 6_000 : 1)}`;
      states.push(JSON.stringify(state));
      return state;
    };
    const { asked, said, notes } = await ask(client, 'ask_twice', ({ params }) =>
      params!['mode'] === 'url' ? answers['link']! : answers['form']!,
    ).finally(() => (alpha.makeState = usual));
    expect(JSON.parse(said)).toEqual([answers['form'], answers['link'], answers['form']]);
    expect(alpha.statesBack.slice(before)).toEqual(states);
    const id = asked[1]!.params!['elicitationId'];
    // the upstream has gone on after the link, before it asked again
    const complete = notes.findIndex((m) => m.method === 'notifications/elicitation/complete');
    const third = notes.findIndex((m) => m.params?.['message'] === 'Three?');
    expect(notes[complete]!.params).toEqual({ elicitationId: id });
    expect(complete).toBeLessThan(third);
  });

  test('[bridge.lm.reconnect] the client goes away during the form, answers through the other pod, and is back for the rest', async () => {
    const client = await legacy('gil').initialize();
    const call = client.beginTool('ask_form', {}, { pod: 0 });
    const stream = await call.stream();
    const asked = await stream.message('the form', (m) => m.method === 'elicitation/create');
    const last = stream.lastEventId!;
    await call.drop();
    await client.answer(asked.id!, answers['form']!, { pod: 1 });
    const resumed = await client.listen({ pod: 1, lastEventId: last });
    const message = await resumed.message('the answer', (m) => m.id === call.id && !m.method);
    expect(JSON.parse(textOf(message)!)).toEqual(answers['form']);
    // a second answer, and one of somebody else, change nothing
    expect((await client.answer(asked.id!, answers['decline']!, { pod: 0 })).status).toBe(202);
  });

  test('[bridge.lm.once] the first of two answers counts; another session’s counts never', async () => {
    const client = await legacy('hal').initialize();
    const other = await legacy('hal').initialize();
    const call = client.beginTool('ask_form', {}, { pod: 0 });
    const stream = await call.stream();
    const asked = await stream.message('the form', (m) => m.method === 'elicitation/create');
    await other.answer(asked.id!, answers['decline']!, { pod: 0 });
    await never(
      'the call goes on',
      () => alpha.calls('ask_form').at(-1)!.message!.params!['requestState'],
    );
    await Promise.all([0, 1].map((pod) => client.answer(asked.id!, answers['form']!, { pod })));
    expect(JSON.parse(textOf(await call.message())!)).toEqual(answers['form']);
    expect(alpha.calls('ask_form').filter((r) => r.message!.params!['requestState'])).not.toEqual(
      [],
    );
  });

  test('[bridge.lm.undeclared] what the client has not declared is not asked, and said in words', async () => {
    const client = await legacy('ian', { capabilities: { elicitation: {} } }).initialize();
    for (const tool of ['ask_url', 'ask_model', 'ask_roots']) {
      const { message, asked } = await ask(client, tool, () => ({}));
      expect(asked).toEqual([]);
      expect(message.result).toMatchObject({ isError: true });
      expect(textOf(message)).toMatch(/has not declared to support/);
    }
    expect((await ask(client, 'ask_form', () => answers['form']!)).said).toContain('Ann');
  });

  test('[bridge.lm.client-error] an error of the client ends the call in words', async () => {
    const client = await legacy('jo').initialize();
    const call = client.beginTool('ask_model', {}, { pod: 0 });
    const stream = await call.stream();
    const asked = await stream.message(
      'the question',
      (m) => m.method === 'sampling/createMessage',
    );
    const refusal = { code: -1, message: 'User rejected sampling request' };
    await client.post({ jsonrpc: '2.0', id: asked.id, error: refusal }, { pod: 1 });
    const message = await call.message();
    expect(message.result).toMatchObject({ isError: true });
    expect(textOf(message)).toContain('User rejected sampling request');
  });

  test('[bridge.lm.list] input_required in answer to a list is an error (case X3)', async () => {
    const client = await legacy('jo').initialize();
    alpha.intercept = ({ response }, { message }) => {
      if (message?.method !== 'resources/list') return false;
      const result = {
        resultType: 'input_required',
        inputRequests: { x: { method: 'roots/list' } },
      };
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(JSON.stringify({ jsonrpc: '2.0', id: message.id, result }));
      return true;
    };
    const { error } = await client.begin('resources/list', {}).message();
    alpha.intercept = undefined;
    expect(error?.code).toBe(-32603);
  });

  test('[bridge.lm.batch] several questions at once, and a state without questions', async () => {
    const client = await legacy('kim').initialize();
    let round = 0;
    const seen: Message[] = [];
    alpha.intercept = ({ response }, { message }) => {
      if (message?.method !== 'prompts/get') return false;
      seen.push(message);
      const form = { type: 'object', properties: { name: { type: 'string' } } };
      const result = [
        { resultType: 'input_required', requestState: 'wait' },
        {
          resultType: 'input_required',
          inputRequests: {
            __proto__key: {
              method: 'elicitation/create',
              params: { mode: 'form', message: 'f', requestedSchema: form },
            },
            '2': { method: 'sampling/createMessage', params: { messages: [], maxTokens: 1 } },
            r: { method: 'roots/list' },
          },
        },
        { resultType: 'complete', messages: [] },
      ][round++];
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(JSON.stringify({ jsonrpc: '2.0', id: message.id, result }));
      return true;
    };
    const by: Record<string, Members> = {
      'elicitation/create': answers['form']!,
      'sampling/createMessage': answers['model']!,
      'roots/list': answers['roots']!,
    };
    const call = client.begin(
      'prompts/get',
      { name: 'x' },
      { pod: 1, answerAt: 0, onAsk: ({ method }) => by[method!]! },
    );
    expect((await call.message()).result).toEqual({ messages: [] });
    alpha.intercept = undefined;
    expect(seen[1]!.params!['requestState']).toBe('wait');
    expect(seen[2]!.params).not.toHaveProperty('requestState');
    expect(seen[2]!.params!['inputResponses']).toEqual({
      __proto__key: answers['form'],
      '2': answers['model'],
      r: answers['roots'],
    });
  });

  test('[bridge.lm.secret] a form that asks for a secret is not passed on', async () => {
    const client = await legacy('lea').initialize();
    alpha.tools['ask_secret'] = {
      description: 'Asks for a password',
      run: async (_args, context) =>
        context.ask('elicitation/create', {
          message: 'Password?',
          requestedSchema: { type: 'object', properties: { password: { type: 'string' } } },
        }) as never,
    };
    const { message, asked } = await ask(client, 'ask_secret', () => answers['form']!);
    expect(asked).toEqual([]);
    expect(message.error?.message).toMatch(/secret/i);
  });
});

describe('streams', () => {
  test('[bridge.lm.progress] progress on the call’s stream, resumable at the other pod', async () => {
    const client = await legacy('max').initialize();
    const call = client.beginTool('steps', { tag: 'p' }, { pod: 0, meta: { progressToken: 'p' } });
    const stream = await call.stream();
    await stream.message('step 2', ({ params }) => params?.['message'] === 'p2');
    const { id } = stream.events.find(({ message }) => message?.params?.['message'] === 'p1')!;
    await call.drop(); // no cancellation
    alpha.gate('p').open();
    const resumed = await client.listen({ pod: 1, lastEventId: id! });
    const message = await resumed.message('the answer', (m) => m.id === call.id && !m.method);
    expect(textOf(message)).toBe('p done');
    expect(resumed.named('notifications/progress').map((m) => m.params!['message'])).toEqual([
      'p2',
      'p3',
      'p4',
    ]);
    expect(alpha.cancelled).not.toContain('steps');
  });

  test('[bridge.lm.cancel] a cancellation at any pod closes the exchange with the upstream', async () => {
    const client = await legacy('ned').initialize();
    const call = client.beginTool('hold', { gate: 'never' }, { pod: 0 });
    const stream = await call.stream();
    await client.notify('notifications/cancelled', { requestId: call.id }, { pod: 1 });
    await until('the upstream sees the end', () => alpha.cancelled.includes('hold'));
    await stream.ended();
    expect(stream.messages.filter((m) => m.id === call.id)).toEqual([]);
    expect(alpha.requests('notifications/cancelled')).toEqual([]);
  });

  test('[bridge.lm.cancel] … also when the upstream has begun to answer', async () => {
    const client = await legacy('ned').initialize();
    const call = client.beginTool('steps', { tag: 'c' }, { pod: 1, meta: { progressToken: 1 } });
    const stream = await call.stream();
    await stream.message('step 2', ({ params }) => params?.['message'] === 'c2');
    await client.notify('notifications/cancelled', { requestId: call.id }, { pod: 0 });
    await until('the upstream sees the end', () => alpha.cancelled.includes('steps'));
    await stream.ended();
    expect(stream.messages.filter((m) => m.id === call.id)).toEqual([]);
  });

  test('[bridge.lm.cancel] … also while the person is being asked', async () => {
    const client = await legacy('ned').initialize();
    const call = client.beginTool('ask_form', {}, { pod: 0 });
    const stream = await call.stream();
    const asked = await stream.message('the form', (m) => m.method === 'elicitation/create');
    const before = alpha.calls('ask_form').length;
    await client.notify('notifications/cancelled', { requestId: call.id }, { pod: 1 });
    await stream.ended();
    expect((await client.answer(asked.id!, answers['form']!, { pod: 1 })).status).toBe(202);
    await never('the call goes on', () => alpha.calls('ask_form').length > before);
  });
});

describe('what the upstream says on its own', () => {
  const listening = (uri?: string) =>
    until('the upstream is listened to', () =>
      [...alpha.listening].some(
        ({ filter }) =>
          uri === undefined || ((filter['resourceSubscriptions'] ?? []) as string[]).includes(uri),
      ),
    );

  test('[bridge.lm.listen] changes of lists reach the stream, once, and move with it', async () => {
    const client = await legacy('oli').initialize();
    const first = await client.listen({ pod: 0 });
    await listening();
    for (const kind of ['tools', 'prompts', 'resources']) {
      alpha.notify(`notifications/${kind}/list_changed`);
      await first.message(kind, (m) => m.method === `notifications/${kind}/list_changed`);
    }
    expect(first.messages[0]).toEqual({
      jsonrpc: '2.0',
      method: 'notifications/tools/list_changed',
    });
    const [old] = alpha.listening;
    const second = await client.listen({ pod: 1 });
    await until('it has moved', () => alpha.listening.size === 1 && !alpha.listening.has(old!));
    expect(alpha.notify('notifications/tools/list_changed')).toBe(1);
    await second.message('the change', (m) => m.method === 'notifications/tools/list_changed');
    second.close();
    first.close();
    await until('nobody listens', () => alpha.listening.size === 0);
    expect(first.messages).toHaveLength(3);
    expect(second.messages).toHaveLength(1);
  });

  test('[bridge.lm.updates] resources subscribed to at any pod; heard as soon as the answer is there', async () => {
    const client = await legacy('pia').initialize();
    const stream = await client.listen({ pod: 0 });
    await listening();
    const subscribe = async (uri: string, pod: number, method = 'resources/subscribe') =>
      (await client.begin(method, { uri }, { pod }).message()).result;
    for (const pod of [1, 0]) {
      const uri = `res://doc/${pod}`;
      expect(await subscribe(uri, pod)).toEqual({});
      expect(alpha.notify('notifications/resources/updated', { uri })).toBeGreaterThan(0);
      await stream.message(
        uri,
        (m) => m.method === 'notifications/resources/updated' && m.params!['uri'] === uri,
      );
    }
    expect(stream.named('notifications/resources/updated')[0]!.params).toEqual({
      uri: 'res://doc/1',
    });
    expect(await subscribe('res://doc/1', 1, 'resources/unsubscribe')).toEqual({});
    const heard = stream.named('notifications/resources/updated').length;
    alpha.notify('notifications/resources/updated', { uri: 'res://doc/1' });
    const more = () => stream.named('notifications/resources/updated').length > heard;
    await never('it is still heard', more, { forMs: 200 });
    // away and back: nothing is replayed, so everything may have changed
    for (const one of alpha.listening) one.cut();
    await until(
      'all is said to have changed',
      () => stream.named('notifications/prompts/list_changed').length === 1,
    );
    expect(stream.named('notifications/resources/updated').at(-1)!.params).toEqual({
      uri: 'res://doc/0',
    });
    stream.close();
    await until('nobody listens', () => alpha.listening.size === 0);
  });
});

describe('what stands behind', () => {
  test('[bridge.lm.keys] nothing is left in Redis without an end', async () => {
    const client = await legacy('quinn').initialize();
    await ask(client, 'ask_twice', ({ params }) =>
      params!['mode'] === 'url' ? answers['link']! : answers['form']!,
    );
    const { client: redis } = world.stack.redis;
    const pending = `viaduct:pending:{${world.userId('quinn')}}:${client.sessionId}`;
    await until('what was asked is forgotten', async () => (await redis.exists(pending)) === 0);
    for (const key of await redis.keys('viaduct:*'))
      expect([key, await redis.ttl(key)]).not.toEqual([key, -1]);
    await client.end();
    expect(beta.ran['ask_twice']).toBeUndefined();
  });

  test('[bridge.lm.killed] the pod that holds the call is killed: explained, and not run again', async () => {
    const client = await legacy('rob').initialize({ pod: 1 });
    const call = client.beginTool('ask_form', {}, { pod: 0 });
    const stream = await call.stream();
    const asked = await stream.message('the form', (m) => m.method === 'elicitation/create');
    const before = alpha.calls('ask_form').length;
    await world.stack.pods[0]!.child.kill();
    expect((await client.answer(asked.id!, answers['form']!, { pod: 1 })).status).toBe(202);
    const resumed = await client.listen({ pod: 1, lastEventId: stream.lastEventId! });
    const message = await resumed.message('the end', (m) => m.id === call.id && !m.method, 16_000);
    expect(message.error).toMatchObject({ code: -32603, data: { reason: 'upstream_call_lost' } });
    expect(alpha.calls('ask_form')).toHaveLength(before);
    expect(ALL).toBeDefined();
  });
});
