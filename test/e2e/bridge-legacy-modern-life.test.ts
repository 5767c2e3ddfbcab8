import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
  CreateMessageRequestSchema,
  ElicitationCompleteNotificationSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
  ResourceUpdatedNotificationSchema,
  ToolListChangedNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';
import { afterAll, expect, test } from 'vitest';
import { ALL, startBridgedWorld } from '../support/bridged-world.ts';
import { textOf } from '../support/mcp-client.ts';
import type { Message } from '../support/net.ts';
import { until } from '../support/until.ts';
import { startWorld } from '../support/world.ts';

// Sessionful clients of modern upstreams over a longer time: as people run them, with credentials, and when either
// side is replaced.

const bridged = await startBridgedWorld();
afterAll(() => bridged.stop());
const { world, alpha, beta, drive, legacy, url } = bridged;
const form = { action: 'accept', content: { name: 'Ann' } };

test('[bridge.lm.probe] a server that does not know initialize, and does not say why, is asked', async () => {
  drive.intercept = ({ response }, { message }) => {
    if (message?.method !== 'initialize') return false;
    response.writeHead(404, { 'content-type': 'application/json' });
    const error = { code: -32601, message: 'Method not found' };
    response.end(JSON.stringify({ jsonrpc: '2.0', id: message.id, error }));
    return true;
  };
  for (const pod of [0, 1]) {
    const client = await legacy('eve', { upstream: 'drive' }).initialize({ pod });
    expect(client.initializeResult!['serverInfo']).toMatchObject({ name: 'drive' });
  }
  expect(drive.requests('initialize')).toHaveLength(2);
  drive.intercept = undefined;
});

test('[bridge.lm.sdk] the official v1 client, a new pod for every request', async () => {
  const client = new Client({ name: 'sdk v1', version: '1.0.0' }, { capabilities: ALL });
  const completed: string[] = [];
  const updated: string[] = [];
  let changes = 0;
  client.setRequestHandler(ElicitRequestSchema, ({ params }) =>
    params.mode === 'url' ? { action: 'accept' } : { action: 'accept', content: { name: 'Ann' } },
  );
  client.setRequestHandler(CreateMessageRequestSchema, () => ({
    ...{ role: 'assistant', model: 'm', content: { type: 'text', text: 'hi' } },
  }));
  client.setRequestHandler(ListRootsRequestSchema, () => ({ roots: [{ uri: 'file:///x' }] }));
  client.setNotificationHandler(ElicitationCompleteNotificationSchema, ({ params }) => {
    completed.push(params.elicitationId);
  });
  client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => {
    updated.push(params.uri);
  });
  client.setNotificationHandler(ToolListChangedNotificationSchema, () => {
    changes += 1;
  });
  const token = world.idp.mint({ sub: 'ann', aud: url('alpha') });
  await client.connect(
    new StreamableHTTPClientTransport(new URL(url('alpha')), {
      requestInit: { headers: { Authorization: `Bearer ${token}` } },
    }),
  );
  const call = async (name: string, args = {}) => {
    const { content } = await client.callTool({ name, arguments: args });
    return (content as { text: string }[])[0]!.text;
  };
  expect((await client.listTools()).tools.map(({ name }) => name)).toContain('echo');
  expect(await call('echo', { a: 'ü' })).toBe('{"a":"ü"}');
  expect(JSON.parse(await call('ask_form'))).toEqual(form);
  expect(JSON.parse(await call('ask_url'))).toEqual({ action: 'accept' });
  await until('the link is done with', () => completed.length === 1);
  expect(JSON.parse(await call('ask_model'))).toMatchObject({ model: 'm' });
  expect(JSON.parse(await call('ask_roots'))).toEqual({ roots: [{ uri: 'file:///x' }] });
  expect(JSON.parse(await call('ask_twice'))).toHaveLength(3);
  alpha.gate('s').open();
  const steps: unknown[] = [];
  await client.callTool({ name: 'steps', arguments: { tag: 's' } }, undefined, {
    onprogress: ({ progress }) => steps.push(progress),
  });
  await until('all steps', () => steps.length === 4);
  await expect(client.readResource({ uri: 'res://none' })).rejects.toMatchObject({ code: -32002 });
  await until('the upstream is listened to', () => alpha.listening.size > 0);
  await client.subscribeResource({ uri: 'res://doc/1' });
  alpha.notify('notifications/resources/updated', { uri: 'res://doc/1' });
  alpha.notify('notifications/tools/list_changed');
  await until('both are heard', () => updated.length === 1 && changes === 1);
  const abort = new AbortController();
  const held = client.callTool({ name: 'hold', arguments: { gate: 'x' } }, undefined, {
    signal: abort.signal,
  });
  held.catch(() => undefined);
  await until('the call is there', () => alpha.gate('x').arrived === 1);
  abort.abort();
  await until('the upstream sees the end', () => alpha.cancelled.includes('hold'));
  await client.close();
});

test('[bridge.lm.credential] a missing credential asks for a link; the call that follows carries it', async () => {
  const client = await legacy('bob', { upstream: 'drive' }).initialize();
  await world.connect(client, 'bob');
  expect(textOf(await client.callTool('echo', { a: 1 }, { pod: 1 }))).toBe('{"a":1}');
  const { headers } = drive.calls('echo').at(-1)!;
  expect(headers.authorization).toMatch(/^Bearer /);
  expect(headers.authorization).not.toContain(client.token);
});

test('[bridge.lm.locked] an upstream that says nothing without a credential is stood in for', async () => {
  const usual = drive.refuses;
  drive.refuses = ({ headers }) =>
    !world.acme.isValid((headers.authorization ?? '').replace('Bearer ', ''));
  const client = await legacy('cleo', { upstream: 'drive' }).initialize();
  expect((await client.listTools()).result!.tools!.map(({ name }) => name)).toEqual(['connect']);
  await world.connect(client, 'cleo');
  expect((await client.listTools()).result!.tools!.map(({ name }) => name)).toContain('echo');
  drive.refuses = usual;
});

test('[bridge.lm.era] the server behind a session is replaced by one of the other era, and back', async () => {
  const client = await legacy('dan', { upstream: 'beta' }).initialize();
  const echo = async (pod: number) => textOf(await client.callTool('echo', { a: 1 }, { pod }));
  expect(await echo(0)).toBe('{"a":1}');
  const ran: string[] = [];
  beta.intercept = ({ response }, { message, headers }) => {
    const reply = (status: number, rest: object, more = {}): boolean => {
      response.writeHead(status, { 'content-type': 'application/json', ...more });
      response.end(JSON.stringify({ jsonrpc: '2.0', id: message?.id ?? null, ...rest }));
      return true;
    };
    if (message?.method === 'initialize') {
      const result = {
        protocolVersion: '2025-11-25',
        capabilities: { tools: {} },
        serverInfo: { name: 'old', version: '1' },
      };
      return reply(200, { result }, { 'mcp-session-id': 'old-1' });
    }
    if (headers['mcp-session-id'] === undefined) {
      return reply(400, { error: { code: -32000, message: 'Bad Request: no session' } });
    }
    if (message?.id === undefined) return reply(202, {});
    ran.push(message.method!);
    return reply(200, { result: { content: [{ type: 'text', text: 'old' }] } });
  };
  expect(await echo(1)).toBe('old');
  expect(await echo(0)).toBe('old');
  expect(ran).toEqual(['tools/call', 'tools/call']);
  // back again: what a modern server says to a request of a revision that it does not speak
  beta.intercept = ({ response }, { message, headers }) => {
    if (headers['mcp-protocol-version'] === '2026-07-28') return false;
    response.writeHead(400, { 'content-type': 'application/json' });
    const error = { code: -32022, message: 'unsupported', data: { supported: ['2026-07-28'] } };
    response.end(JSON.stringify({ jsonrpc: '2.0', id: message?.id ?? null, error }));
    return true;
  };
  const before = beta.ran['echo'];
  expect(await echo(1)).toBe('{"a":1}');
  expect(await echo(0)).toBe('{"a":1}');
  expect(beta.ran['echo']).toBe(before! + 2);
  beta.intercept = undefined;
});

test('[bridge.lm.deadline] at the end of its time a call is withdrawn on both sides', async () => {
  const upstream = { allowPrivateNetwork: true, url: alpha.endpoint, timeoutSeconds: 1 };
  const short = await startWorld({
    ...{ pods: 1, workers: 0, config: { upstreams: [{ name: 'short', ...upstream }] } },
  });
  try {
    const client = await short.client('gil', { upstream: 'short' }).initialize();
    const asking = client.beginTool('ask_form');
    const stream = await asking.stream();
    const asked = await stream.message('the form', (m) => m.method === 'elicitation/create');
    const message = await stream.message('the end', (m) => m.id === asking.id && !m.method);
    expect(message.error).toMatchObject({ code: -32603, data: { reason: 'upstream_timeout' } });
    const taken = stream.named('notifications/cancelled');
    expect(taken.map(({ params }) => params!['requestId'])).toEqual([asked.id]);
    const steps = client.beginTool('steps', { tag: 'd' }, { meta: { progressToken: 1 } });
    expect((await steps.message()).error).toMatchObject({ data: { reason: 'upstream_timeout' } });
    const before = alpha.cancelled.length;
    const held = await client.callTool('hold', { gate: 'y' });
    expect(held.error).toMatchObject({ data: { reason: 'upstream_timeout' } });
    await until('the upstream sees the end', () => alpha.cancelled.length > before);
  } finally {
    await short.stop();
  }
});

test('[bridge.lm.batched] in a batch nobody can be asked', async () => {
  const client = await legacy('hal', { version: '2025-03-26' }).initialize();
  const call = (id: number, name: string) => ({
    ...{ jsonrpc: '2.0', id, method: 'tools/call', params: { name, arguments: {} } },
  });
  const { json } = await client.post([call(1, 'ask_form'), call(2, 'echo')]);
  const [asked, echoed] = json as unknown as Message[];
  expect(asked!.result).toMatchObject({ isError: true });
  expect(textOf(asked!)).toContain('batch');
  expect(textOf(echoed!)).toBe('{}');
});

test('[bridge.lm.drain] a pod that drains goes on with its call, and gets the answer that comes to the other', async () => {
  const client = await legacy('fay').initialize({ pod: 1 });
  const call = client.beginTool('ask_form', {}, { pod: 0 });
  const stream = await call.stream();
  const asked = await stream.message('the form', (m) => m.method === 'elicitation/create');
  const { child } = world.stack.pods[0]!;
  const last = stream.lastEventId!;
  const gone = child.terminate();
  await stream.ended();
  // still carried by the pod that drains, and answered through the other
  const resumed = await client.listen({ pod: 1, lastEventId: last });
  await client.answer(asked.id!, form, { pod: 1 });
  const message = await resumed.message('the answer', (m) => m.id === call.id && !m.method);
  expect(JSON.parse(textOf(message)!)).toEqual(form);
  await gone;
});
