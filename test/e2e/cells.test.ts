import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { forms, KINDS, openDriver, type Kind } from '../support/cell-clients.ts';
import { FORM_ACCEPTED, startCells, type Driver, type Era } from '../support/cells.ts';
import { McpClient, textOf } from '../support/mcp-client.ts';
import { accept, answering, ModernClient } from '../support/modern-client.ts';
import type { Members, Message } from '../support/net.ts';
import { until } from '../support/until.ts';
import { ALL } from '../support/bridged-world.ts';

// The four cells (issue 4, Must show; docs/eras.md): raw and official clients of both revisions in front of raw
// upstreams of both, every feature in one table. Rounds and answers come to another pod than the call.

const at = await startCells();
afterAll(() => at.stop());
const { stack } = at.world;

interface Cell {
  readonly kind: Kind;
  readonly client: Era;
  readonly upstream: Era;
  readonly driver: Driver;
  readonly server: (typeof at.upstreams)[Era];
}

interface Row {
  readonly feature: string;
  run(cell: Cell): Promise<unknown>;
  /** The same in every cell, or what of it crosses. */
  readonly expected: unknown;
}

const bridged = ({ client, upstream }: Cell) => client !== upstream;
const said = (message: Message): unknown => JSON.parse(textOf(message)!);
const tool = ({ driver }: Cell, name: string, args: Members = {}, more = {}) =>
  driver.call('tools/call', { name, arguments: args }, more);
const failure = ({ error }: Message) => ({ code: error?.code, data: error?.data });
const unique = ({ kind, upstream }: Cell) => `${kind}-${upstream}`;

/** A tool that asks a form, which is answered so. */
async function form(cell: Cell, answer: Members): Promise<unknown> {
  forms.current = answer;
  const { message, asked } = await tool(cell, 'ask_form', {}, { form: answer });
  forms.current = undefined;
  return [asked.map(({ method }) => method), said(message)];
}

async function question(cell: Cell, name: string): Promise<unknown> {
  const { message, asked } = await tool(cell, name);
  return [asked.map(({ method }) => method), said(message)];
}

const CHANGED = ['tools', 'prompts', 'resources'].map((of) => `notifications/${of}/list_changed`);
const UPDATED = 'notifications/resources/updated';

const ROWS: Row[] = [
  {
    feature: 'tools',
    run: async (cell) => {
      const { message } = await cell.driver.call('tools/list');
      const names = message.result!.tools!.map(({ name }) => name);
      const echoed = await tool(cell, 'echo', { text: 'é😀', deep: [{ n: 1 }] });
      return [names.includes('echo'), said(echoed.message)];
    },
    expected: [true, { text: 'é😀', deep: [{ n: 1 }] }],
  },
  {
    feature: 'prompts',
    run: async ({ driver }) => {
      const listed = (await driver.call('prompts/list')).message.result;
      const got = (await driver.call('prompts/get', { name: 'greet' })).message.result;
      return [listed?.['prompts'], got?.['messages']];
    },
    expected: ({ upstream }: Cell) => [
      [{ name: 'greet', description: 'Greets' }],
      [{ role: 'user', content: { type: 'text', text: `Hello from ${upstream}` } }],
    ],
  },
  {
    feature: 'resources',
    run: async ({ driver }) => {
      const listed = (await driver.call('resources/list')).message.result;
      const read = (await driver.call('resources/read', { uri: 'res://doc/1' })).message.result;
      return [listed?.['resources'], read?.['contents']];
    },
    expected: ({ upstream }: Cell) => [
      [{ uri: 'res://doc/1', name: 'doc-1' }],
      [{ uri: 'res://doc/1', mimeType: 'text/plain', text: `${upstream}: res://doc/1` }],
    ],
  },
  {
    feature: 'progress',
    run: async (cell) => {
      const tag = unique(cell);
      cell.server.gate(tag).open();
      const { message, notes } = await tool(cell, 'steps', { tag }, { progress: true });
      const steps = notes.filter(({ method }) => method === 'notifications/progress');
      return [textOf(message) === `${tag} done`, steps.map(({ params }) => params!['progress'])];
    },
    expected: [true, [1, 2, 3, 4]],
  },
  ...[FORM_ACCEPTED, { action: 'decline' }, { action: 'cancel' }].map((answer): Row => ({
    feature: `form, ${answer.action}`,
    run: (cell) => form(cell, answer),
    expected: [['elicitation/create'], answer],
  })),
  {
    feature: 'url',
    run: async (cell) => {
      const { message, asked, notes } = await tool(cell, 'ask_url');
      const { params } = asked[0]!;
      const id = params['elicitationId'];
      const complete = notes.filter(({ method }) => method?.endsWith('/elicitation/complete'));
      return {
        said: said(message),
        url: params['url'],
        hasId: typeof id === 'string',
        ownId: id === 'upstream-own-1',
        complete: complete.map((one) => one.params!['elicitationId'] === id),
      };
    },
    // Only a legacy client has ids: the legacy upstream's own, or one of ours with its completion.
    expected: (cell: Cell) => ({
      said: { action: 'accept' },
      url: 'https://pay.example/now',
      hasId: cell.client === 'legacy',
      ownId: cell.client === 'legacy' && cell.upstream === 'legacy',
      complete: cell.client === 'legacy' && bridged(cell) && cell.driver.raw ? [true] : [],
    }),
  },
  {
    feature: 'sampling',
    run: (cell) => question(cell, 'ask_model'),
    expected: [
      ['sampling/createMessage'],
      { role: 'assistant', model: 'm', content: { type: 'text', text: 'hi' } },
    ],
  },
  {
    feature: 'roots',
    run: (cell) => question(cell, 'ask_roots'),
    expected: [['roots/list'], { roots: [{ uri: 'file:///work' }] }],
  },
  {
    feature: 'several rounds',
    run: (cell) => question(cell, 'ask_often'),
    expected: [
      ['elicitation/create', 'roots/list', 'elicitation/create'],
      [FORM_ACCEPTED, { roots: [{ uri: 'file:///work' }] }, FORM_ACCEPTED],
    ],
  },
  {
    feature: 'list changes, resource updates',
    run: async ({ driver, server }) => {
      const uri = 'res://doc/1';
      const { heard, close } = await driver.listen(uri);
      const methods = () => new Set(heard().map(({ method }) => method));
      await until('everything is heard', () => {
        for (const method of CHANGED) server.notify(method);
        server.notify(UPDATED, { uri });
        return [...CHANGED, UPDATED].every((method) => methods().has(method));
      });
      const update = heard().find(({ method }) => method === UPDATED)!;
      await close();
      return update.params!['uri'];
    },
    expected: 'res://doc/1',
  },
  {
    feature: 'log level',
    run: async (cell) => {
      const { notes } = await tool(cell, 'say_levels', {}, { level: 'info' });
      const logged = notes.filter(({ method }) => method === 'notifications/message');
      const heard =
        cell.upstream === 'legacy'
          ? cell.server.requests('logging/setLevel').at(-1)?.message?.params?.['level']
          : (cell.server.calls('say_levels').at(-1)!.message!.params!['_meta'] as Members)[
              'io.modelcontextprotocol/logLevel'
            ];
      return { logged: logged.map(({ params }) => params!['level']), heard };
    },
    // Between legacy sides the upstream is trusted to keep to what it was told.
    expected: ({ client, upstream }: Cell) => ({
      logged:
        client === 'legacy' && upstream === 'legacy'
          ? ['debug', 'info', 'error']
          : ['info', 'error'],
      heard: 'info',
    }),
  },
  {
    feature: 'cancellation',
    run: async (cell) => {
      const gate = `cancel ${unique(cell)}`;
      const before = cell.server.cancelled.filter((name) => name === 'hold').length;
      const held = cell.driver.hold(gate);
      await until('the tool runs', () => cell.server.gate(gate).arrived);
      await held.withdraw();
      await until(
        'the upstream is told',
        () => cell.server.cancelled.filter((name) => name === 'hold').length > before,
      );
      return cell.server.gate(gate).arrived;
    },
    expected: 1,
  },
  {
    feature: 'errors',
    run: async (cell) => {
      const none = { uri: 'res://none' };
      return {
        own: failure((await tool(cell, 'fail')).message),
        tool: (await tool(cell, 'sorry')).message.result?.isError,
        unknownTool: (await tool(cell, 'nowhere')).message.error?.code,
        noResource: (await cell.driver.call('resources/read', none)).message.error?.code,
      };
    },
    // SDK v2 gives its callers -32602 for a -32002, whichever revision it speaks.
    expected: ({ client, kind }: Cell) => ({
      own: { code: -32123, data: { why: ['test'] } },
      tool: true,
      unknownTool: -32602,
      noResource: client === 'legacy' && kind !== 'SDK v2, legacy' ? -32002 : -32602,
    }),
  },
  {
    feature: 'what the client has not declared',
    run: async (cell) => {
      const driver = await openDriver(at, cell.kind, cell.upstream, {});
      const { message, asked } = await driver.call('tools/call', { name: 'ask_form' });
      await driver.close();
      return { asked, code: message.error?.code, inWords: message.result?.isError };
    },
    // Refused to a legacy upstream, whose tool fails of it; of a modern one, what its client can be told.
    expected: ({ client, upstream }: Cell) => {
      if (upstream === 'legacy') return { asked: [], code: -32601, inWords: undefined };
      if (client === 'modern') return { asked: [], code: -32021, inWords: undefined };
      return { asked: [], code: undefined, inWords: true };
    },
  },
];

const UPSTREAMS: Era[] = ['legacy', 'modern'];
const CELLS = KINDS.flatMap((kind) => UPSTREAMS.map((upstream) => ({ kind, upstream })));

describe.each(CELLS)('$kind client, $upstream upstream', ({ kind, upstream }) => {
  let cell: Cell;
  beforeAll(async () => {
    const driver = await openDriver(at, kind, upstream);
    cell = { kind, client: driver.era, upstream, driver, server: at.upstreams[upstream] };
  });
  afterAll(() => cell.driver.close());

  test.each(ROWS)('[cells] $feature', async ({ run, expected }) => {
    const wanted =
      typeof expected === 'function' ? (expected as (of: Cell) => unknown)(cell) : expected;
    expect(await run(cell)).toEqual(wanted);
  });
});

// The pod that holds a call is killed in the middle of it: an explained error, or a broken response, and never a second
// run. What is in the middle of nothing (a modern client between the rounds of a modern upstream) goes on.
describe.each(UPSTREAMS)('the holder is killed, %s upstream', (upstream) => {
  const server = at.upstreams[upstream];
  const { ports } = stack;
  const options = (user: string) => {
    const token = at.token(user, upstream);
    return { url: at.url(upstream), ports, token, capabilities: ALL };
  };
  const ran = (name: string) => server.ran[name] ?? 0;
  const lost = { code: -32603, data: { reason: 'upstream_call_lost' } };
  const kill = () => stack.pods[0]!.child.kill();
  const restart = () => stack.restart(stack.pods[0]!);

  test('[cells.killed] legacy client', async () => {
    const client = await new McpClient(options('rob')).initialize({ pod: 1 });
    const call = client.beginTool('ask_form', {}, { pod: 0 });
    const stream = await call.stream();
    const asked = await stream.message('the form', (m) => m.method === 'elicitation/create');
    const runs = ran('ask_form');
    await kill();
    await client.answer(asked.id!, FORM_ACCEPTED, { pod: 1 });
    const rest = await client.listen({ pod: 1, lastEventId: stream.lastEventId! });
    const { error } = await rest.message('the end', (m) => m.id === call.id && !m.method, 16_000);
    expect(error).toMatchObject(lost);
    expect(ran('ask_form')).toBe(runs);
    expect(textOf(await client.callTool('echo', { a: 1 }, { pod: 1 }))).toBe('{"a":1}');
    await restart();
  }, 60_000);

  test('[cells.killed] modern client, asked', async () => {
    const client = new ModernClient(options('sue'));
    const first = await client.tool('ask_form', {}, { pod: 0 });
    const runs = ran('ask_form');
    await kill();
    const round = answering(first, accept);
    const last = await client.tool('ask_form', {}, { pod: 1, timeoutMs: 20_000, ...round });
    if (upstream === 'legacy') {
      expect(last.error).toMatchObject(lost);
      expect(ran('ask_form')).toBe(runs);
    } else expect(said(last)).toEqual(accept());
    await restart();
  }, 60_000);

  test('[cells.killed] modern client, while the tool works', async () => {
    const client = new ModernClient(options('tom'));
    const tag = `killed ${upstream}`;
    const call = client.beginTool('steps', { tag }, { pod: 0, meta: { progressToken: 1 } });
    const { stream } = await call.http;
    await until('the tool works', () => server.gate(tag).arrived);
    const runs = ran('steps');
    await kill();
    await stream!.ended();
    await expect(call.message()).rejects.toThrow('ended');
    expect(ran('steps')).toBe(runs);
    server.gate(tag).open();
    expect(textOf(await client.tool('steps', { tag }, { pod: 1 }))).toBe(`${tag} done`);
    await restart();
  }, 60_000);
});
