import { afterAll, describe, expect, test } from 'vitest';
import { Call, textOf } from '../support/mcp-client.ts';
import { send } from '../support/net.ts';
import { startWorld } from '../support/world.ts';
import { until } from '../support/until.ts';

// A response carries the request's id, whatever that is (case J1); a body may be large, up to a limit (case J5).

const world = await startWorld({
  workers: 0,
  plainUpstreams: ['plain'],
  config: {
    limits: {
      user: { points: 100_000, seconds: 60 },
      userTool: { points: 100_000, seconds: 60 },
      address: { points: 100_000, seconds: 60 },
    },
  },
});
afterAll(() => world.stop());
const plain = world.plain['plain']!;
const client = await world.client('ann', { upstream: 'plain' }).initialize();

const ids: (string | number)[] = [
  0,
  -1,
  '0',
  '1',
  '',
  'req-é-😀',
  9007199254740991,
  'x'.repeat(1_024),
];

describe('ids', () => {
  test.for(ids.map((id) => [id] as const))(
    '[J1] %j comes back as it went, on every path',
    async ([id]) => {
      const call = (params: Record<string, unknown>, method = 'tools/call') => ({
        jsonrpc: '2.0',
        id,
        method,
        params,
      });
      const echo = call({ name: 'echo', arguments: {} });
      const paths = {
        success: await client.post(echo),
        'unknown tool': await client.post(call({ name: 'no-such-tool', arguments: {} })),
        'tool’s own error': await client.post(call({ name: 'fail', arguments: {} })),
        'unknown method': await client.post(call({}, 'no/such/method')),
        '401': await client.as({ token: 'bad' }).post(echo),
        '403': await client.as({ token: world.token('ann', { scope: 'x' }, 'plain') }).post(echo),
        '404': await client.post(echo, { headers: { 'Mcp-Session-Id': 'A'.repeat(22) } }),
        '400 without a session': await client.post(echo, {
          headers: { 'Mcp-Session-Id': undefined },
        }),
      };
      for (const [path, { json, status, text }] of Object.entries(paths)) {
        expect(json, `${path} ${status} ${text.slice(0, 200)}`).toBeDefined();
        expect(json!.id, path).toBe(id);
      }
      const streamed = client.beginTool('steps', { tag: `j1-${JSON.stringify(id)}` }, { id });
      const stream = await streamed.stream();
      plain.gate(`j1-${JSON.stringify(id)}`).open();
      const final = await stream.message('the answer', (message) => message.method === undefined);
      expect(final.id, 'on a stream').toBe(id);
    },
  );

  test('[J1] a number beyond 2^53 is not rounded', async () => {
    const body =
      '{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"name":"echo","arguments":{}}}';
    const { text } = await client.post(body);
    expect(text).toContain('"id":9007199254740993');
  });

  test('[J1] 0 and "0" at once in one session are two requests', async () => {
    const number = client.beginTool('hold', { gate: 'number' }, { id: 0, pod: 0 });
    const string = client.beginTool('hold', { gate: 'string' }, { id: '0', pod: 1 });
    await until('both run', () => plain.ran['hold'] === 2);
    plain.gate('string').open();
    expect(textOf(await string.message())).toBe('held string');
    plain.gate('number').open();
    expect(textOf(await number.message())).toBe('held number');
  });

  test('[J1] where no id can be read, none is made up', async () => {
    for (const body of ['{', '[1]', '7']) {
      const { json } = await client.post(body);
      expect(json?.id ?? null).toBeNull();
    }
  });
});

describe('sizes', () => {
  const sized = (bytes: number): string => {
    const message = (text: string) =>
      JSON.stringify({
        jsonrpc: '2.0',
        id: 'size',
        method: 'tools/call',
        params: { name: 'echo', arguments: { text } },
      });
    return message('x'.repeat(bytes - message('').length));
  };
  const LIMIT = 4_194_304;

  test.for([90_000, 105_000, 1_000_000, LIMIT])('[J5] %i bytes pass', async (bytes) => {
    for (const chunked of [false, true]) {
      const body = sized(bytes);
      expect(Buffer.byteLength(body)).toBe(bytes);
      const sent = send(client.url, { method: 'POST', headers: client.headers(), body, chunked });
      const answer = await new Call(client, 'size', sent, {}).message();
      expect(textOf(answer)?.length).toBeGreaterThan(bytes - 500);
    }
  });

  test('[J5] one byte more is 413 in JSON, declared or not', async () => {
    const before = plain.ran['echo'];
    for (const chunked of [false, true]) {
      const body = sized(LIMIT + 1);
      const answer = await send(client.url, {
        method: 'POST',
        headers: client.headers(),
        body,
        chunked,
      });
      expect(answer.status).toBe(413);
      expect(answer.headers['content-type']).toMatch(/^application\/json/);
      expect(answer.json).toMatchObject({
        jsonrpc: '2.0',
        error: { code: expect.any(Number) as number },
      });
      expect(answer.text).not.toMatch(/<html|\bat \S+:\d+/i);
    }
    expect(plain.ran['echo']).toBe(before);
  });

  test('[J5] a result of 10 MB passes; one of 40 MB passes or is an error for its id', async () => {
    const ten = await client.callTool('big', { bytes: 10_000_000 });
    expect(textOf(ten)?.length).toBe(10_000_000);
    const forty = await client.callTool(
      'big',
      { bytes: 40_000_000 },
      { id: 'forty', timeoutMs: 30_000 },
    );
    expect(forty.id).toBe('forty');
    expect(textOf(forty)?.length ?? forty.error?.code).toEqual(expect.any(Number));
  });

  test('[J5] deep and wide bodies neither break nor block a pod', async () => {
    const deep = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"a":${'['.repeat(100_000)}${']'.repeat(100_000)}}}}`;
    const wide = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{${Array.from({ length: 200_000 }, (_, i) => `"k${i}":1`).join()}}}}`;
    for (const body of [deep, wide]) {
      const answer = await new Call(client, 1, client.post(body), {}).message();
      expect(answer.result ?? answer.error).toBeDefined();
    }
    expect(textOf(await client.callTool('echo', { ok: 1 }))).toBe('{"ok":1}');
  });

  test('[body.stranger] a 401 echoes the id of a usual request; of more than that, nothing is kept', async () => {
    const stranger = world.client('x', { upstream: 'plain', token: null });
    for (const [bytes, id] of [
      [60_000, 'size'],
      [100_000, null],
      [LIMIT, null],
      [LIMIT + 1, null],
    ] as const) {
      for (const chunked of [false, true]) {
        const answer = await send(stranger.url, {
          method: 'POST',
          headers: stranger.headers(),
          body: sized(bytes),
          chunked,
        });
        expect([bytes, answer.status, answer.json?.id]).toEqual([bytes, 401, id]);
        expect(answer.headers['www-authenticate']).toContain('resource_metadata');
      }
    }
  });

  test('[J5] small calls of others go on while large ones run', async () => {
    const other = await world.client('ben', { upstream: 'plain' }).initialize();
    const body = sized(LIMIT);
    const large = Promise.all(
      Array.from({ length: 20 }, (_, i) => client.post(body, { pod: i % 2, timeoutMs: 60_000 })),
    );
    for (let i = 0; i < 20; i++) {
      expect(textOf(await other.callTool('echo', { i }, { pod: i % 2 }))).toBe(`{"i":${i}}`);
    }
    expect((await large).map(({ status }) => status)).toEqual(Array(20).fill(200));
  }, 60_000);
});
