import { afterAll, describe, expect, test } from 'vitest';
import { manyClient } from '../support/many.ts';
import { textOf } from '../support/mcp-client.ts';
import type { Message } from '../support/net.ts';
import { until } from '../support/until.ts';
import { startWorld } from '../support/world.ts';

// Batches are of 2025-03-26 alone (case J3; 2025-03-26 basic, Batching: receiving is a MUST), and bad input of any
// kind is the client's fault, told in JSON-RPC, never a 500 (issue 3, Bad input).

const world = await startWorld({
  workers: 0,
  plainUpstreams: ['plain'],
  config: {
    limits: {
      user: { points: 100_000, seconds: 60 },
      userTool: { points: 8, seconds: 60 },
      address: { points: 100_000, seconds: 60 },
    },
  },
});
afterAll(() => world.stop());
const plain = world.plain['plain']!;
const client = (user: string, version = '2025-03-26') =>
  world.client(user, { upstream: 'plain', version }).initialize();

const ping = (id: unknown) => ({ jsonrpc: '2.0', id, method: 'ping' });
const call = (id: unknown, name: string, args = {}) => ({
  jsonrpc: '2.0',
  id,
  method: 'tools/call',
  params: { name, arguments: args },
});
const cancel = (requestId: unknown) => ({
  jsonrpc: '2.0',
  method: 'notifications/cancelled',
  params: { requestId },
});
const CASE = [ping(1), call(2, 'echo', { a: 1 }), cancel(99)];
const INVALID = { jsonrpc: '2.0', error: { code: -32600 } };

describe('a batch in a session of 2025-03-26', () => {
  test('[J3] has one response for each request, with its id, and none for a notification', async () => {
    const ann = await client('ann');
    const answer = await ann.post(CASE, { pod: 1 });
    expect(answer.status).toBe(200);
    expect(answer.headers['content-type']).toMatch(/^application\/json/);
    const responses = answer.json as unknown as Message[];
    expect(responses.map(({ id }) => id).sort()).toEqual([1, 2]);
    expect(textOf(responses.find(({ id }) => id === 2)!)).toBe('{"a":1}');
    expect((await ann.post([cancel(1), cancel(2)])).status, 'nothing to answer').toBe(202);
  });

  test('[J3] one item’s failure is its own', async () => {
    const ann = await client('ann');
    const { json } = await ann.post([
      call('ok', 'echo'),
      call('none', 'no-such-tool'),
      { jsonrpc: '2.0', id: '', method: 'no/such/method' },
      { ...ann.initializeMessage('hello') },
      call(0, 'fail'),
    ]);
    const responses = json as unknown as Message[];
    const codes = Object.fromEntries(responses.map(({ id, error }) => [String(id), error?.code]));
    expect(codes).toEqual({ ok: undefined, none: -32602, '': -32601, hello: -32600, 0: -32123 });
    expect(responses.find(({ error }) => error?.code === -32123)?.id).toBe(0);
  });

  test('[J3] each call of it counts', async () => {
    const lea = await client('lea');
    const ran = plain.ran['count'] ?? 0;
    const items = Array.from({ length: 12 }, (_, i) => call(i, 'count'));
    const { json } = await lea.post(items);
    const responses = json as unknown as Message[];
    expect(responses).toHaveLength(12);
    expect(responses.filter(({ result }) => result)).toHaveLength(8);
    expect(plain.ran['count']! - ran).toBe(8);
  });

  test('[J3] each item’s scopes and groups are looked at', async () => {
    const weak = (await client('ann')).as({ token: world.token('ann', { scope: 'x' }, 'plain') });
    const ran = plain.ran['echo'];
    const { json, status } = await weak.post(CASE);
    if (status === 200) {
      const codes = (json as unknown as Message[]).map(({ error }) => error?.code);
      expect(codes.every((code) => typeof code === 'number')).toBe(true);
    } else expect(status).toBe(403);
    expect(plain.ran['echo']).toBe(ran);
  });

  test('[J3] empty ones, of no messages and endless ones are refused, and nothing runs', async () => {
    const ann = await client('ann');
    const ran = plain.ran['echo'];
    for (const body of [[], [1], [null], [[]], Array.from({ length: 10_000 }, (_, i) => ping(i))]) {
      const { status, json } = await ann.post(body);
      expect(status).toBe(400);
      expect(json).toMatchObject(INVALID);
    }
    expect(plain.ran['echo']).toBe(ran);
  });

  test('[J3] who is asked during one cannot answer, so the upstream is told that', async () => {
    const ann = await client('ann');
    const { json } = await ann.post([call(1, 'ask_form'), ping(2)]);
    const responses = json as unknown as Message[];
    expect(responses.find(({ id }) => id === 1)?.error?.code).toBe(-32601);
    expect(responses.find(({ id }) => id === 2)?.result).toEqual({});
  });
});

test.for(['2025-06-18', '2025-11-25', '2026-07-28'])(
  '[J3] %s: any array is 400, and nothing of it runs',
  async (version) => {
    const modern = version === '2026-07-28';
    const ann = await client('ann', modern ? '2025-11-25' : version);
    const ran = plain.ran['echo'];
    const headers = modern ? { 'MCP-Protocol-Version': version, 'Mcp-Session-Id': undefined } : {};
    for (const body of [CASE, [], [call(1, 'echo')], [ann.initializeMessage(3)]]) {
      const { status, json } = await ann.post(body, { headers });
      expect(status).toBe(400);
      expect(json).toMatchObject(INVALID);
    }
    expect(plain.ran['echo']).toBe(ran);
  },
);

test('[J3] an array instead of initialize is refused without a session, too', async () => {
  const { initialized } = plain;
  const ann = world.client('ann', { upstream: 'plain' });
  for (const body of [[], [ann.initializeMessage(1)], CASE]) {
    const { status, json } = await ann.post(body);
    expect(status).toBe(400);
    expect(json).toMatchObject(INVALID);
  }
  expect(plain.initialized).toBe(initialized);
});

describe('bad input', () => {
  test.for([['null'], ['1.5'], ['true'], ['{}'], ['[1]'], ['1e400'], ['-0.5']])(
    '[bad.id] the id %s is refused, on both endpoints, and nothing runs',
    async ([id]) => {
      const ran = plain.ran['echo'];
      const both = [
        await client('ann', '2025-11-25'),
        await manyClient(world, 'ann').initialize(),
      ] as const;
      for (const [i, one] of both.entries()) {
        const name = i === 0 ? 'echo' : 'plain__echo';
        const answer = await one.post(
          `{"jsonrpc":"2.0","id":${id},"method":"tools/call","params":{"name":"${name}","arguments":{}}}`,
        );
        expect(answer.status).toBe(400);
        expect(answer.json).toMatchObject(INVALID);
      }
      expect(plain.ran['echo']).toBe(ran);
    },
  );

  test('[bad.id] two calls in flight under one id both get their answer', async () => {
    const ann = await client('dup', '2025-11-25');
    const first = ann.beginTool('hold', { gate: 'dup' }, { id: 'same', pod: 0 });
    const second = ann.beginTool('hold', { gate: 'dup' }, { id: 'same', pod: 1 });
    await Promise.all([first.stream(), second.stream()]);
    plain.gate('dup').open();
    for (const one of [first, second]) {
      const message = await one.message();
      expect(message.id).toBe('same');
      expect(message.result ?? message.error).toBeDefined();
    }
  });

  test('[bad.method] an unknown method is the upstream’s to refuse, and on the endpoint of many ours', async () => {
    const methods = ['no/such', '', 'tools/', 'constructor', '__proto__', 'rpc.discover'];
    for (const one of [
      await client('ann', '2025-11-25'),
      await manyClient(world, 'ann').initialize(),
    ]) {
      for (const method of methods) {
        const answer = await one.post({ jsonrpc: '2.0', id: method, method });
        expect(answer.status, method).toBe(200);
        expect(answer.json, method).toMatchObject({ id: method, error: { code: -32601 } });
      }
    }
  });

  test('[bad.answer] answers to nothing are taken and ignored', async () => {
    const ann = await client('ann', '2025-11-25');
    const before = plain.answers.length;
    for (const id of [0, '', 'ask-x', 99, 'x'.repeat(10_000)]) {
      expect((await ann.answer(id, {})).status).toBe(202);
      const error = { code: 1, message: 'x' };
      expect((await ann.post({ jsonrpc: '2.0', id, error })).status).toBe(202);
    }
    expect(plain.answers.length).toBe(before);
  });

  test('[J7] cancelled on another pod: the upstream hears of it within half a second', async () => {
    const ann = await client('ann', '2025-11-25');
    for (const [i, id] of [101, '101', 'é\u2028"', 0, ''].entries()) {
      const before = plain.cancelled.length;
      const arrived = plain.gate(`j7-${i}`).arrived;
      const slow = ann.beginTool('hold', { gate: `j7-${i}` }, { id, pod: 0 });
      await until('it runs', () => plain.gate(`j7-${i}`).arrived > arrived);
      await ann.notify('notifications/cancelled', { requestId: id }, { pod: 1 });
      await until('the upstream hears of it', () => plain.cancelled.length > before);
      const { stream } = await slow.http;
      await stream?.ended();
      expect(stream?.messages ?? []).toEqual([]);
    }
  });

  test('[J7] an id that was written with escapes is the same id', async () => {
    const ann = await client('ann', '2025-11-25');
    const before = plain.cancelled.length;
    const arrived = plain.gate('escaped').arrived;
    const answer = ann.post(
      '{"jsonrpc":"2.0","id":"\\u0061\\/b","method":"tools/call","params":{"name":"hold","arguments":{"gate":"escaped"}}}',
      { pod: 0 },
    );
    await until('it runs', () => plain.gate('escaped').arrived > arrived);
    for (const pod of [0, 1]) {
      await ann.notify('notifications/cancelled', { requestId: 'a/b' }, { pod });
    }
    await until('the upstream hears of it', () => plain.cancelled.length > before);
    (await answer).close();
  });
});
