import { afterAll, describe, expect, test } from 'vitest';
import { McpClient, textOf } from '../support/mcp-client.ts';
import { send } from '../support/net.ts';
import { startStack } from '../support/stack.ts';
import { AWKWARD_RESULT } from '../support/upstream-tools.ts';
import { startWorld } from '../support/world.ts';
import { until } from '../support/until.ts';

// Relay, don't rebuild (invariant 5; cases J6, H4, J7): what the gateway has no reason to change passes byte for
// byte, and what belongs to one leg stays on it.

const world = await startWorld({
  workers: 0,
  plainUpstreams: ['plain'],
  config: { sessions: { streamAfterMs: 100 } },
});
afterAll(() => world.stop());
const plain = world.plain['plain']!;
const client = await world.client('ann', { upstream: 'plain' }).initialize();

describe('bytes', () => {
  test('[relay.bytes] a result passes as it is, in JSON and on a stream', async () => {
    expect(await client.beginTool('awkward', {}).raw()).toContain(AWKWARD_RESULT);
    plain.tools['awkward_slow'] = {
      description: 'the same, later',
      run: async (_args, { gate, notify }) => {
        notify('notifications/message', { level: 'info', data: 'soon' });
        await gate('awkward').pass();
        return { raw: AWKWARD_RESULT };
      },
    };
    const call = client.beginTool('awkward_slow', {}, { pod: 0 });
    await (await call.stream()).notification('notifications/message');
    plain.gate('awkward').open();
    expect(await call.raw()).toContain(AWKWARD_RESULT);
  });

  test('[relay.bytes] arguments pass as they are: key order, spaces, large numbers, unknown members', async () => {
    const args =
      '{"z":1, "n":9223372036854775807,"f":1.0,"u":"\\u00e9\\/","x-own":{"a":[1E400,-0]}}';
    const body = `{"method":"tools/call","x-top":[1.0],"jsonrpc":"2.0","params":{"_meta":{"corp.example/t":9007199254740993},"arguments":${args},"name":"echo"},"id":"bytes"}`;
    const answer = await send(client.url, { method: 'POST', headers: client.headers(), body });
    expect(answer.status).toBe(200);
    const received = plain.calls('echo').at(-1)!.text;
    expect(received).toContain(args);
    expect(received).toContain('"corp.example/t":9007199254740993');
  });

  test('[relay.bytes] initialize passes through with what the upstream says of itself', async () => {
    const { initializeResult } = await world.client('ann', { upstream: 'plain' }).initialize();
    expect(initializeResult).toMatchObject({
      instructions: 'How to use plain',
      capabilities: { tools: { listChanged: true }, logging: {} },
    });
    expect(JSON.stringify(initializeResult)).toContain('"x-kept":"yes"');
  });

  test('[relay.errors] an upstream’s error and tool error are its own', async () => {
    const failed = await client.callTool('fail', {});
    expect(failed.error).toMatchObject({
      code: -32123,
      message: 'as asked',
      data: { why: ['test'] },
    });
    const sorry = await client.callTool('sorry', {});
    expect(sorry.result).toMatchObject({ isError: true, content: [{ text: 'went wrong' }] });
  });

  test('[relay.notifications] what an upstream sends before its answer arrives in order, before the answer', async () => {
    const call = client.beginTool('logs', {}, { meta: { progressToken: 'p' } });
    await call.message();
    const { messages } = await call.stream();
    expect(messages.map(({ method }) => method)).toEqual(['notifications/message', undefined]);
    expect(messages[0]!.params).toMatchObject({ level: 'info', data: { said: 'hello' } });
  });
});

describe('legs', () => {
  test('[H4] the client’s session, token, cookies and forwarding headers stay on its leg', async () => {
    const headers = {
      Cookie: 'a=b',
      'X-Forwarded-Proto': 'http',
      'X-Forwarded-Host': 'evil.example',
      Forwarded: 'for=1.2.3.4',
      'Last-Event-ID': '1-1',
      traceparent: '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01',
    };
    const answer = await client.post(
      {
        jsonrpc: '2.0',
        id: 1,
        method: 'tools/call',
        params: { name: 'echo', arguments: { h4: 1 } },
      },
      { headers },
    );
    expect(answer.status).toBe(200);
    const sent = plain.calls('echo').at(-1)!.headers;
    for (const name of [
      'authorization',
      'cookie',
      'x-forwarded-proto',
      'x-forwarded-host',
      'forwarded',
      'last-event-id',
      'origin',
    ]) {
      expect(sent[name], name).toBeUndefined();
    }
    expect(sent['mcp-session-id']).not.toBe(client.sessionId);
    expect(sent['mcp-protocol-version']).toBe('2025-11-25');
    expect(sent.host).toBe(new URL(plain.url).host);
    expect(answer.headers['mcp-session-id'] ?? client.sessionId).toBe(client.sessionId);
  });

  test('[J7] cancelling, at another pod: the upstream hears of its own id once, and the stream ends without a result', async () => {
    const other = await world.client('ben', { upstream: 'plain' }).initialize();
    const mine = client.beginTool('hold', { gate: 'mine' }, { id: 101, pod: 0 });
    const theirs = other.beginTool('hold', { gate: 'theirs' }, { id: 101, pod: 1 });
    const stream = await mine.stream();
    await theirs.stream();
    for (const requestId of ['101', 999, undefined]) {
      const params = requestId === undefined ? {} : { requestId };
      expect((await client.notify('notifications/cancelled', params, { pod: 1 })).status).toBe(202);
    }
    expect(plain.cancelled).toEqual([]);
    await client.notify('notifications/cancelled', { requestId: 101, reason: 'user' }, { pod: 1 });
    await until('the upstream hears of it', () => plain.cancelled.length > 0);
    await stream.ended();
    expect(stream.messages.filter(({ id }) => id === 101)).toEqual([]);
    plain.gate('theirs').open();
    expect(textOf(await theirs.message())).toBe('held theirs');
    expect(plain.cancelled).toEqual(['hold']);
  });
});

describe('an upstream in trouble', () => {
  test('[relay.trouble] HTML, 500, a cut connection and nonsense are an error for the id, and the next call works', async () => {
    for (const trouble of ['html', '500', 'cut', 'nonsense'] as const) {
      plain.intercept = ({ response }, { message }) => {
        if (message?.method !== 'tools/call') return false;
        if (trouble === 'cut') response.socket?.destroy();
        else if (trouble === 'nonsense')
          response.writeHead(200, { 'content-type': 'application/json' }).end('{"a"');
        else
          response
            .writeHead(trouble === 'html' ? 200 : 500, { 'content-type': 'text/html' })
            .end('<h1>oops</h1>');
        return true;
      };
      const call = client.beginTool('echo', {}, { id: trouble });
      const message = await call.message();
      expect(message.id).toBe(trouble);
      expect(message.error?.code, trouble).toEqual(expect.any(Number));
      expect(JSON.stringify(message)).not.toMatch(/<h1>|127\.0\.0\.1|ECONN/);
      expect(message.error?.data?.requestId).toBeTruthy();
    }
    plain.intercept = undefined;
    expect(textOf(await client.callTool('echo', { ok: 1 }))).toBe('{"ok":1}');
  });

  test('[relay.timeout] a call ends at the upstream’s timeoutSeconds, and the upstream is told', async () => {
    const stack = await startStack({
      pods: 1,
      workers: 0,
      config: {
        auth: { mode: 'none' },
        upstreams: [
          { name: 'plain', url: plain.endpoint, allowPrivateNetwork: true, timeoutSeconds: 1 },
        ],
      },
    });
    try {
      const impatient = new McpClient({ url: `${stack.publicUrl}/mcp/plain`, ports: stack.ports });
      await impatient.initialize();
      const cancelled = plain.cancelled.length;
      const answer = await impatient.callTool('hold', { gate: 'nobody-comes' }, { id: 'late' });
      expect(answer).toMatchObject({ id: 'late', error: { code: expect.any(Number) as number } });
      await until('the upstream is told', () => plain.cancelled.length > cancelled);
    } finally {
      await stack.stop();
    }
  });
});
