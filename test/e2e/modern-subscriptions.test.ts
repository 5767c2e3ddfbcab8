import net from 'node:net';
import { afterAll, describe, expect, test } from 'vitest';
import type { EventStream } from '../support/event-stream.ts';
import { textOf } from '../support/mcp-client.ts';
import { SUBSCRIPTION_ID } from '../support/modern-client.ts';
import { startModernWorld } from '../support/modern-world.ts';
import type { Message, Members } from '../support/net.ts';
import { never, until } from '../support/until.ts';

// subscriptions/listen (issue 4, item 2; 2026-07-28 basic/patterns/subscriptions; cases E7, X4, X5, R5).

const at = await startModernWorld({
  workers: 0,
  auth: { streamGraceSeconds: 0 },
  config: {
    sessions: { keepAliveSeconds: 1 },
    drain: { delaySeconds: 0, timeoutSeconds: 20 },
    limits: {
      user: { points: 10_000, seconds: 60 },
      userTool: { points: 5, seconds: 60 },
      address: { points: 10_000, seconds: 60 },
    },
  },
});
afterAll(() => at.stop());
const { alpha, beta, drive, world } = at;
const { stack } = world;
const ann = at.client('ann');
const CHANGED = 'notifications/tools/list_changed';
const UPDATED = 'notifications/resources/updated';
const idOf = ({ params, result }: Message) =>
  ((params?.['_meta'] ?? result?.['_meta']) as Members | undefined)?.[SUBSCRIPTION_ID];
const listening = (count: number) =>
  until(`${count} listen at alpha`, () => alpha.listening.size === count);

describe('one subscription', () => {
  test.for([0, -3, 'x', '0', ''])(
    '[listen.ack] id %j: acknowledged first, and every message says which',
    async (id) => {
      const { stream, acknowledged } = await ann.listen(
        { toolsListChanged: true, promptsListChanged: false },
        { id, pod: 1 },
      );
      expect(stream.messages[0]).toEqual(acknowledged);
      expect(acknowledged).not.toHaveProperty('id');
      expect(acknowledged.params?.['notifications']).toEqual({ toolsListChanged: true });
      alpha.notify(CHANGED);
      const event = await stream.notification(CHANGED);
      expect([idOf(acknowledged), idOf(event)]).toEqual([id, id]);
      expect(stream.events.every((one) => one.id === undefined)).toBe(true);
      stream.close();
      await until('the upstream’s is closed too', () => alpha.listening.size === 0);
    },
  );

  test('[listen.filter] only what was asked, whatever the upstream sends', async () => {
    const { stream } = await ann.listen({
      promptsListChanged: true,
      resourceSubscriptions: ['res://doc/1'],
    });
    for (const one of alpha.listening) {
      one.emit(CHANGED);
      one.emit('notifications/resources/list_changed');
      one.emit('notifications/message', { level: 'error', data: 'x' });
      one.emit('notifications/progress', { progressToken: 1, progress: 1 });
      one.emit(UPDATED, { uri: 'res://doc/2' });
      one.emit(UPDATED, { uri: 'res://doc/1' });
      one.emit('notifications/prompts/list_changed');
    }
    await stream.notification('notifications/prompts/list_changed');
    expect(stream.messages.map(({ method }) => method).slice(1)).toEqual([
      UPDATED,
      'notifications/prompts/list_changed',
    ]);
    expect(
      alpha.requests('subscriptions/listen').at(-1)!.message?.params?.['notifications'],
    ).toEqual({
      promptsListChanged: true,
      resourceSubscriptions: ['res://doc/1'],
    });
    stream.close();
    await listening(0);
  });

  test.for([undefined, [], { toolsListChanged: 1 }, { resourceSubscriptions: 'x' }])(
    '[listen.invalid] %j: -32602',
    async (notifications) => {
      const call = ann.begin('subscriptions/listen', { notifications });
      expect([(await call.message()).error?.code, (await call.http).status]).toEqual([-32602, 400]);
    },
  );

  test('[listen.alive] a silent stream is kept alive by comments', async () => {
    const { stream } = await ann.listen({ toolsListChanged: true });
    await until(
      'two comments',
      () => stream.comments.filter((one) => one.includes('keepalive')).length >= 2,
    );
    expect(stream.messages).toHaveLength(1);
    stream.close();
    await listening(0);
  });

  test('[listen.count] it counts as an open stream of this era', async () => {
    const open = () => stack.metric('viaduct_streams_open', { era: 'modern' });
    await until('none is open', async () => (await open()) === 0);
    const { stream } = await ann.listen({ toolsListChanged: true });
    expect(await open()).toBe(1);
    stream.close();
    await until('it is closed', async () => (await open()) === 0);
  });

  test('[listen.token] it ends with its token, in good order', async () => {
    const claims = { exp: Math.floor(Date.now() / 1000) + 3 };
    const { stream, id } = await at
      .client('ann', { claims })
      .listen({ toolsListChanged: true }, { id: 5 });
    const last = await stream.message('the end', (message) => message.id === id);
    expect(last.result).toMatchObject({ resultType: 'complete', _meta: { [SUBSCRIPTION_ID]: 5 } });
    await stream.ended();
  });
});

describe('several clients (E7)', () => {
  test('[listen.one-copy] each gets one, whichever pod it is on, and the list has it already', async () => {
    const many = at.client('cy', { upstream: '' });
    const open = await Promise.all([
      ann.listen({ toolsListChanged: true }, { id: 0, pod: 0 }),
      at.client('ben').listen({ toolsListChanged: true }, { id: 'x', pod: 1 }),
      at.client('ben').listen({ promptsListChanged: true }, { id: 'x', pod: 1 }),
      many.listen(
        {
          toolsListChanged: true,
          resourceSubscriptions: ['alpha+res://doc/1', 'beta+res://doc/1', 'nobody+x'],
        },
        { pod: 0 },
      ),
    ]);
    const [first, second, , all] = open;
    expect(all.acknowledged.params?.['notifications']).toEqual({
      toolsListChanged: true,
      resourceSubscriptions: ['alpha+res://doc/1', 'beta+res://doc/1'],
    });
    alpha.tools['fresh'] = alpha.tools['echo']!;
    alpha.notify(CHANGED);
    await Promise.all([first, second, all].map(({ stream }) => stream.notification(CHANGED)));
    expect(
      (await ann.call('tools/list', {}, { pod: 1 })).result?.tools?.map(({ name }) => name),
    ).toContain('fresh');
    beta.notify(UPDATED, { uri: 'res://doc/1' });
    const updated = await all.stream.notification(UPDATED);
    expect(updated.params?.['uri']).toBe('beta+res://doc/1');
    const copies = ({ stream }: { stream: EventStream }) => stream.named(CHANGED).length;
    await never(
      'a second copy, or one to somebody else',
      () => open.map(copies).join() !== '1,1,0,1',
    );
    expect(idOf(first.stream.named(CHANGED)[0]!)).toBe(0);
    for (const { stream } of open) stream.close();
    await listening(0);
  });
});

describe('X5', () => {
  test('[listen.twice] the same id again on one connection is refused, and the first goes on', async () => {
    const socket = net.connect(stack.ports[0]!, '127.0.0.1');
    let got = '';
    socket.on('data', (chunk) => (got += String(chunk)));
    const raw = (id: number) => {
      const body = JSON.stringify(
        ann.body('subscriptions/listen', { notifications: { toolsListChanged: true } }, { id }),
      );
      const headers: Record<string, unknown> = {
        ...ann.headers('subscriptions/listen'),
        'Mcp-Name': '-',
        Host: new URL(world.publicUrl).host,
        'Content-Length': Buffer.byteLength(body),
      };
      const lines = Object.entries(headers).map(([name, value]) => `${name}: ${String(value)}`);
      return `POST /mcp/alpha HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n${body}`;
    };
    socket.write(raw(9));
    await until('the first is acknowledged', () => got.includes('acknowledged'));
    socket.write(raw(9));
    const before = alpha.requests('subscriptions/listen').length;
    await never(
      'a second subscription',
      () => alpha.requests('subscriptions/listen').length > before,
    );
    alpha.notify(CHANGED);
    await until('the first is unaffected', () => got.includes(CHANGED));
    // Responses come in the order of their requests (RFC 9112, 9.3.2): the refusal shows when the first has ended.
    for (const one of alpha.listening) expect(one.filter).toEqual({ toolsListChanged: true });
    socket.destroy();
    await listening(0);
  });
});

describe('upstreams that come and go', () => {
  test('[listen.reconnect] one that breaks off is listened to again; the client’s stream stays, and hears of it', async () => {
    const { stream } = await ann.listen({ toolsListChanged: true });
    for (const one of [...alpha.listening]) one.cut();
    await stream.notification(CHANGED);
    await listening(1);
    expect(stream.open).toBe(true);
    alpha.notify(CHANGED);
    await until('and the next one', () => stream.named(CHANGED).length === 2);
    for (const one of [...alpha.listening]) one.end();
    await listening(1);
    expect(stream.open).toBe(true);
    stream.close();
    await listening(0);
  });

  test('[listen.away] one that is away is no reason to wait, and is heard of when it is back', async () => {
    beta.intercept = ({ response }) => {
      response.destroy();
      return true;
    };
    const { stream, acknowledged } = await at
      .client('ann', { upstream: 'beta' })
      .listen({ toolsListChanged: true });
    expect(acknowledged.params?.['notifications']).toEqual({ toolsListChanged: true });
    beta.intercept = undefined;
    await stream.notification(CHANGED);
    stream.close();
  });

  test('[listen.unsupported] one that has nothing to say is not promised', async () => {
    drive.intercept = ({ response }, { message }) => {
      if (message?.method !== 'subscriptions/listen') return false;
      response.writeHead(404, { 'content-type': 'application/json' });
      response.end(
        JSON.stringify({ jsonrpc: '2.0', id: message.id, error: { code: -32601, message: 'no' } }),
      );
      return true;
    };
    const { stream, acknowledged } = await at
      .client('ann', { upstream: 'drive' })
      .listen({ toolsListChanged: true });
    expect(acknowledged.params?.['notifications']).toEqual({});
    stream.close();
    drive.intercept = undefined;
  });
});

describe('limits', () => {
  test('[listen.limits] a tool is limited per user, over both pods, in the words of HTTP', async () => {
    const lea = at.client('lea');
    const calls = Array.from({ length: 8 }, (_, i) =>
      lea.beginTool('echo', {}, { pod: i % 2, id: `n${i}` }),
    );
    const answers = await Promise.all(calls.map(async (call) => (await call.http).status));
    expect(answers.sort()).toEqual([200, 200, 200, 200, 200, 429, 429, 429]);
    const refused = lea.beginTool('echo', {}, { id: 0 });
    const { headers, json } = await refused.http;
    expect(Number(headers['retry-after'])).toBeGreaterThan(0);
    expect(headers['ratelimit-policy']).toContain('"userTool"');
    expect(json?.id).toBe(0);
    expect((await lea.tool('count')).result, 'another tool').toBeDefined();
    expect((await at.client('max').tool('echo')).result, 'another user').toBeDefined();
  });
});

describe('a pod that stops (R5)', () => {
  test('[listen.drain] ends subscriptions with a result, lets calls finish, and exits 0', async () => {
    const pod = stack.pods[0]!;
    const { stream, id } = await ann.listen({ toolsListChanged: true }, { id: 'bye', pod: 0 });
    const running = ann.beginTool('hold', { gate: 'drain' }, { pod: 0 });
    await until('the call runs', () => alpha.gate('drain').arrived);
    pod.child.signal('SIGTERM');
    const last = await stream.message('the end', (message) => message.id === id);
    expect(last.result).toMatchObject({
      resultType: 'complete',
      _meta: { [SUBSCRIPTION_ID]: 'bye' },
    });
    await stream.ended();
    alpha.gate('drain').open();
    expect(textOf(await running.message())).toBe('held drain');
    await until('it has ended', () => !pod.child.running);
    expect(pod.child.code).toBe(0);
    await stack.restart(pod);
  });
});
