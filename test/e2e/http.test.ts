import { afterAll, describe, expect, test } from 'vitest';
import { startWorld } from '../support/world.ts';
import type { Headers } from '../support/net.ts';

// The HTTP edge of /mcp: media types (H1), Origin and Host (H2), malformed bodies (issue 2, "Bad input").

const world = await startWorld({
  workers: 0,
  plainUpstreams: ['plain'],
  config: { sessions: { streamAfterMs: 50 } },
});
afterAll(() => world.stop());
const plain = world.plain['plain']!;
const client = await world.client('ann', { upstream: 'plain' }).initialize();
const echo = (id: unknown = 1) => ({
  jsonrpc: '2.0',
  id,
  method: 'tools/call',
  params: { name: 'echo', arguments: {} },
});
const post = (headers: Headers, body: unknown = echo()) => client.post(body, { headers });
const ran = () => plain.ran['echo'] ?? 0;

describe('media types', () => {
  test.for([
    [undefined],
    ['*/*'],
    ['application/json, text/event-stream'],
    ['text/event-stream, application/json'],
    ['application/json;q=0.9,text/event-stream;q=0.8,*/*;q=0.1'],
    ['APPLICATION/JSON, Text/Event-Stream'],
    ['application/*, text/*'],
  ])('[H1] Accept %s is served', async ([Accept]) => {
    expect((await post({ Accept })).status).toBe(200);
  });

  test.for([
    ['application/json'],
    ['APPLICATION/JSON'],
    ['application/json;q=0.5, text/event-stream;q=0'],
  ])('[H1] Accept %s: JSON or 406, never a stream', async ([Accept]) => {
    const answer = await post({ Accept });
    expect([200, 406]).toContain(answer.status);
    expect(answer.headers['content-type']).toMatch(/^application\/json/);
    // not for a call that takes longer than streamAfterMs either
    const call = client.beginTool('hold', { gate: Accept! }, { headers: { Accept } });
    plain.gate(Accept!).open();
    expect((await call.http).stream).toBeUndefined();
  });

  test.for([['text/html'], ['image/*'], ['application/json;q=0, text/event-stream;q=0']])(
    '[H1] Accept %s is 406 and nothing runs',
    async ([Accept]) => {
      const before = ran();
      const answer = await post({ Accept });
      expect(answer.status).toBe(406);
      expect(answer.json).toMatchObject({ jsonrpc: '2.0', error: {} });
      expect(ran()).toBe(before);
    },
  );

  test('[H1] GET wants text/event-stream', async () => {
    for (const Accept of ['text/html', 'application/json']) {
      expect((await client.get({ headers: { Accept } })).status).toBe(406);
    }
    for (const Accept of ['text/event-stream', '*/*', undefined]) {
      const answer = await client.get({ headers: { Accept } });
      expect(answer.status).toBe(200);
      answer.close();
    }
  });

  test.for([
    ['application/json; charset=utf-8'],
    ['Application/JSON'],
    ['application/json;charset="UTF-8"'],
  ])('[H1] Content-Type %s is served', async ([type]) => {
    expect((await post({ 'Content-Type': type })).status).toBe(200);
  });

  test.for([
    [undefined],
    ['text/plain'],
    ['application/x-www-form-urlencoded'],
    ['multipart/form-data; boundary=x'],
    ['application/jsonp'],
    ['text/json-seq'],
  ])('[H1] Content-Type %s is 415 and nothing runs', async ([type]) => {
    const before = ran();
    const answer = await post({ 'Content-Type': type });
    expect(answer.status).toBe(415);
    expect(answer.json?.error).toBeDefined();
    expect(ran()).toBe(before);
  });
});

describe('bodies', () => {
  test.for<[string, string | Buffer, number]>([
    ['nothing', '', -32700],
    ['half a message', '{"jsonrpc":"2.0","id":1,', -32700],
    [
      'bytes that are no UTF-8',
      Buffer.concat([
        Buffer.from('{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"'),
        Buffer.from([0xff, 0xfe]),
        Buffer.from('"}}'),
      ]),
      -32700,
    ],
    [
      'a lone surrogate’s bytes',
      Buffer.concat([
        Buffer.from('{"jsonrpc":"2.0","id":1,"method":"'),
        Buffer.from([0xed, 0xa0, 0x80]),
        Buffer.from('"}'),
      ]),
      -32700,
    ],
    ['two messages in a row', '{"jsonrpc":"2.0","id":1,"method":"ping"}{}', -32700],
    ['a number', '7', -32600],
    ['null', 'null', -32600],
    ['an object that is no JSON-RPC', '{"hello":1}', -32600],
    ['another version', '{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600],
    ['a method that is a number', '{"jsonrpc":"2.0","id":1,"method":5}', -32600],
    ['an id that is null', '{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600],
    ['an id that is an object', '{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600],
  ])('[bad.body] %s is 400', async ([, body, code]) => {
    const before = plain.received.length;
    const answer = await client.send('POST', body);
    expect(answer.status).toBe(400);
    expect(answer.headers['content-type']).toMatch(/^application\/json/);
    expect(answer.json?.error?.code).toBe(code);
    expect(answer.json?.error?.data?.requestId).toBe(answer.headers['x-request-id']);
    expect(answer.text).not.toMatch(/\bat \S+:\d+|<html/i);
    expect(plain.received.length).toBe(before);
  });

  test('[bad.batch] an array is refused since 2025-06-18, and nothing of it runs', async () => {
    const before = ran();
    for (const batch of [[echo(1), echo(2)], [], [1]]) {
      const answer = await client.post(batch);
      expect(answer.status).toBe(400);
      expect(answer.json?.error?.code).toBe(-32600);
    }
    expect(ran()).toBe(before);
  });
});

describe('Origin and Host', () => {
  const { host, port } = new URL(world.publicUrl);

  test.for<[string, string | string[]]>([
    ['a stranger', 'http://evil.example'],
    ['null', 'null'],
    ['ours with an ending', `http://${host}.evil.example`],
    ['ours as a beginning', `http://localhost.evil.example:${port}`],
    ['another port', 'http://localhost:1'],
    ['another scheme', `https://${host}`],
    ['nonsense', 'not an origin'],
    ['empty', ''],
    ['two, ours first', [world.publicUrl, 'http://evil.example']],
  ])('[H2] Origin: %s is 403 on every method, and nothing runs', async ([, Origin]) => {
    const before = plain.received.length;
    for (const pod of [0, 1]) {
      const answer = await client.post(echo('o'), { pod, headers: { Origin } });
      expect(answer.status).toBe(403);
      expect(answer.json).toMatchObject({ jsonrpc: '2.0', error: {} });
      expect(answer.headers['access-control-allow-origin']).toBeUndefined();
    }
    expect((await client.get({ headers: { Origin } })).status).toBe(403);
    expect((await client.end({ headers: { Origin } })).status).toBe(403);
    expect(plain.received.length).toBe(before);
  });

  test('[H2] our own origin, and none, are served', async () => {
    const answer = await client.post(echo(), { headers: { Origin: world.publicUrl } });
    expect(answer.status).toBe(200);
    expect(answer.headers['access-control-allow-origin']).toBe(world.publicUrl);
    expect((await client.post(echo())).status).toBe(200);
  });

  test('[H2] a rebound name: Host and Origin agree, and are still not ours', async () => {
    const before = plain.received.length;
    const headers = { Host: 'evil.example', Origin: 'http://evil.example' };
    expect((await client.post(echo(), { pod: 0, headers })).status).toBe(403);
    expect((await client.post(echo(), { pod: 0, headers: { Host: 'evil.example' } })).status).toBe(
      403,
    );
    const page = await client
      .as({ url: `${world.publicUrl}/connections` })
      .get({ pod: 0, headers });
    expect(page.status).toBe(403);
    expect(plain.received.length).toBe(before);
    for (const type of ['host.refused', 'origin.refused']) {
      expect(world.stack.audit(type).length, type).toBeGreaterThan(0);
    }
  });

  test('[H2] with a loopback publicUrl any loopback name and port is our Host', async () => {
    for (const Host of ['127.0.0.1:1234', 'localhost', '[::1]:80']) {
      expect((await client.post(echo(), { pod: 0, headers: { Host } })).status).toBe(200);
    }
  });
});
