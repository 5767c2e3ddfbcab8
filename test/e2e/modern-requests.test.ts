import http from 'node:http';
import { afterAll, describe, expect, test } from 'vitest';
import { AWKWARD_RESULT } from '../support/upstream-tools.ts';
import { textOf } from '../support/mcp-client.ts';
import { LOG_LEVEL, MODERN, headerValue } from '../support/modern-client.ts';
import { startModernWorld } from '../support/modern-world.ts';
import type { Members } from '../support/net.ts';
import { never, until } from '../support/until.ts';

// Clients of 2026-07-28 on the same URLs (issue 4, item 1): what makes a request one of this era, what is refused
// and how, and what reaches a modern upstream.

const at = await startModernWorld({ workers: 0, upstreams: { beta: { timeoutSeconds: 1 } } });
afterAll(() => at.stop());
const { alpha, beta, drive, world } = at;
const client = at.client('ann');
const META = 'io.modelcontextprotocol/';

describe('what every request has to say', () => {
  test.for([
    ['no _meta', undefined],
    ['no version', { [`${META}protocolVersion`]: undefined }],
    ['no capabilities', { [`${META}clientCapabilities`]: undefined }],
    ['capabilities that are none', { [`${META}clientCapabilities`]: true }],
    ['an unknown log level', { [LOG_LEVEL]: 'loud' }],
  ] as [string, Members | undefined][])('[modern.meta] %s: 400, -32602', async ([, meta]) => {
    const body = client.body('tools/list', {}, { id: 'é-1', meta: meta ?? {} });
    if (meta === undefined) body.params = {};
    const { status, json, headers } = await client.post(body);
    expect([status, json?.error?.code, json?.id]).toEqual([400, -32602, 'é-1']);
    expect(json?.error?.data?.requestId).toBe(headers['x-request-id']);
  });

  test('[modern.meta] clientInfo is not required', async () => {
    const meta = { [`${META}clientInfo`]: undefined };
    expect((await client.call('tools/list', {}, { meta })).result?.tools).toBeDefined();
  });

  test('[modern.meta] a member that stands twice is ambiguous', async () => {
    const text = JSON.stringify(client.body('tools/list')).replace(
      '"_meta":{',
      `"_meta":{"${META}clientCapabilities":{},`,
    );
    expect((await client.post(text)).status).toBe(400);
  });

  test.for([
    ['no version', 'MCP-Protocol-Version', undefined],
    ['another version', 'MCP-Protocol-Version', '2025-11-25'],
    ['no method', 'Mcp-Method', undefined],
    ['another method', 'Mcp-Method', 'tools/list'],
    ['another spelling of the method', 'Mcp-Method', 'TOOLS/CALL'],
    ['no name', 'Mcp-Name', undefined],
    ['another name', 'Mcp-Name', 'count'],
    ['a broken encoding', 'Mcp-Name', '=?base64?###?='],
  ] as const)('[modern.headers] %s: 400, -32020', async ([, header, value]) => {
    const body = client.body('tools/call', { name: 'echo', arguments: {} });
    const before = alpha.received.length;
    const { status, json } = await client.post(body, { headers: { [header]: value } });
    expect([status, json?.error?.code, json?.id]).toEqual([400, -32020, body.id]);
    expect(alpha.received).toHaveLength(before);
  });

  test('[modern.headers] a name comes encoded, and goes on encoded for the upstream', async () => {
    const name = 'größe 世界';
    alpha.tools[name] = alpha.tools['echo']!;
    expect(textOf(await client.tool(name, { text: 'hi' }))).toBe('{"text":"hi"}');
    expect(alpha.calls(name).at(-1)!.headers['mcp-name']).toBe(headerValue(name));
    const body = client.body('tools/call', { name: 'echo', arguments: {} });
    const encoded = `=?base64?${Buffer.from('echo').toString('base64')}?=`;
    expect((await client.post(body, { headers: { 'Mcp-Name': encoded } })).status).toBe(200);
  });

  test.for(['1900-01-01', '2027-01-01', 'v999', '2025-11-25'])(
    '[modern.version] %s: 400, -32022 with what is supported',
    async (version) => {
      const other = client.as({ version });
      const { status, json } = await other.post(other.body('server/discover'));
      expect([status, json?.error?.code]).toEqual([400, -32022]);
      expect(json?.error?.data?.['requested']).toBe(version);
      const { result } = await client.call('server/discover');
      expect(json?.error?.data?.['supported']).toEqual(result?.['supportedVersions']);
      expect(result?.['supportedVersions']).toContain(MODERN);
    },
  );

  test.for(['initialize', 'ping', 'logging/setLevel', 'resources/subscribe', 'made/up'])(
    '[modern.methods] %s: 404, -32601',
    async (method) => {
      for (const upstream of ['alpha', '']) {
        const one = at.client('ann', { upstream });
        const { status, json } = await one.post(
          one.body(method, { uri: 'res://x', level: 'info' }),
        );
        expect([upstream, status, json?.error?.code]).toEqual([upstream, 404, -32601]);
      }
    },
  );

  test.for([0, -1, '0', '1', '', 'req-é-😀', Number.MAX_SAFE_INTEGER])(
    '[modern.ids] %j comes back as it was sent',
    async (id) => {
      const good = await client.call('tools/list', {}, { id });
      const bad = await client.call('tools/call', { name: 'nothing' }, { id });
      expect([good.id, bad.id]).toEqual([id, id]);
      expect(bad.error).toBeDefined();
    },
  );
});

describe('no sessions', () => {
  test('[modern.sessions] a stray session id and event id change nothing, and none is given out', async () => {
    const headers = { 'Mcp-Session-Id': 'junk', 'Last-Event-ID': 'x_1-1' };
    const call = client.begin('tools/list', {}, { headers });
    expect((await call.result()).tools).toBeDefined();
    expect((await call.http).headers['mcp-session-id']).toBeUndefined();
    for (const { headers: sent } of alpha.received) {
      expect(sent['mcp-session-id'] ?? sent['last-event-id']).toBeUndefined();
    }
  });

  test.for(['GET', 'DELETE'])('[modern.sessions] %s is 405', async (method) => {
    const { status, headers } = await client.send(method, undefined, {
      headers: { Accept: 'text/event-stream', 'Mcp-Session-Id': 'junk' },
    });
    expect([status, headers.allow]).toEqual([405, 'POST, OPTIONS']);
  });

  test('[modern.posts] a response is 400, a batch is 400, a notification is taken', async () => {
    const response = { jsonrpc: '2.0', id: 1, result: {} };
    expect((await client.post(response)).status).toBe(400);
    const batch = JSON.stringify([client.body('tools/list')]);
    expect((await client.send('POST', batch)).status).toBe(400);
    const { method, params } = client.body('notifications/cancelled', { requestId: 1 });
    const notification = { jsonrpc: '2.0', method, params } as { method: string; params: Members };
    const taken = await client.post(notification);
    expect([taken.status, taken.text]).toEqual([202, '']);
  });

  test('[modern.eras] both eras on one connection', async () => {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    const sockets = new Set<unknown>();
    const post = (headers: object, body: unknown) =>
      new Promise<{ status: number | undefined; headers: http.IncomingHttpHeaders; json: Members }>(
        (resolve, reject) => {
          const request = http.request(
            { agent, port: world.stack.ports[0], path: '/mcp/alpha', method: 'POST' },
            (answer) => {
              sockets.add(request.socket);
              let text = '';
              answer.on('data', (chunk) => (text += String(chunk)));
              answer.on('end', () => {
                const json = JSON.parse(text || '{}') as Members;
                resolve({ status: answer.statusCode, headers: answer.headers, json });
              });
            },
          );
          request.on('error', reject);
          for (const [name, value] of Object.entries(headers)) {
            if (value !== undefined) request.setHeader(name, value as string);
          }
          request.setHeader('Host', new URL(world.publicUrl).host);
          request.end(JSON.stringify(body));
        },
      );
    const modern = () => post(client.headers('tools/list'), client.body('tools/list'));
    const legacy = {
      ...client.headers('?'),
      'MCP-Protocol-Version': undefined,
      'Mcp-Method': undefined,
    };
    expect((await modern()).status).toBe(200);
    const hello = await post(legacy, { jsonrpc: '2.0', id: 1, method: 'tools/list', params: {} });
    expect(hello.status, 'a legacy request without a session').toBe(400);
    expect((await modern()).status).toBe(200);
    expect(sockets.size).toBe(1);
    agent.destroy();
  });
});

describe('what reaches the upstream, and what comes back', () => {
  test('[modern.relay] the body goes on byte for byte, with the upstream’s headers and nothing of the client’s', async () => {
    const body = client.body(
      'tools/call',
      { name: 'echo', arguments: {} },
      {
        meta: {
          'corp.example/x': [1],
          traceparent: '00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01',
        },
      },
    );
    const text = JSON.stringify(body).replace(
      '"arguments":{}',
      '"arguments":{"id":9223372036854775807, "f":1.0,"e":1e400}',
    );
    await client.post(text, {
      headers: {
        Cookie: 'a=b',
        'X-Forwarded-Proto': 'http',
        Forwarded: 'for=1',
        'Mcp-Param-Foo': 'kept',
        'Mcp-Param-Uml': '=?base64?w7w=?=',
      },
    });
    const { text: sent, headers, rawHeaders } = alpha.calls('echo').at(-1)!;
    expect(sent).toBe(text);
    expect(headers).toMatchObject({
      'mcp-protocol-version': MODERN,
      'mcp-method': 'tools/call',
      'mcp-name': 'echo',
      'mcp-param-foo': 'kept',
      'mcp-param-uml': '=?base64?w7w=?=',
    });
    for (const name of ['authorization', 'cookie', 'x-forwarded-proto', 'forwarded']) {
      expect(headers[name], name).toBeUndefined();
    }
    expect(rawHeaders.join()).not.toContain(client.token);
  });

  test('[modern.relay] a result comes back byte for byte, JSON when quick', async () => {
    alpha.tools['exact'] = {
      ...alpha.tools['awkward']!,
      run: () => ({ raw: `{"resultType":"complete",${AWKWARD_RESULT.slice(1)}` }),
    };
    const call = client.beginTool('exact', {}, { id: 7 });
    const { headers } = await call.http;
    expect(headers['content-type']).toBe('application/json');
    expect(await call.raw()).toBe(
      `{"jsonrpc":"2.0","id":7,"result":{"resultType":"complete",${AWKWARD_RESULT.slice(1)}}`,
    );
    const without = await client.beginTool('awkward', {}, { id: 8 }).raw();
    expect(without).toBe(
      `{"jsonrpc":"2.0","id":8,"result":{"resultType":"complete",${AWKWARD_RESULT.slice(1)}}`,
    );
  });

  test('[modern.relay] errors keep code, message and data', async () => {
    expect((await client.tool('fail')).error).toMatchObject({
      code: -32123,
      message: 'as asked',
      data: { why: ['test'] },
    });
    const missing = await client.call('resources/read', { uri: 'res://none' });
    expect(missing.error).toMatchObject({ code: -32602, data: { uri: 'res://none' } });
  });

  test('[modern.stream] progress comes one by one, only with the client’s token; no event ids', async () => {
    const call = client.beginTool('steps', { tag: 'a' }, { pod: 1, meta: { progressToken: 'p1' } });
    const stream = (await call.http).stream!;
    await stream.message('two steps', ({ params }) => params?.['progress'] === 2);
    expect((await call.http).headers).toMatchObject({
      'x-accel-buffering': 'no',
      'content-type': 'text/event-stream',
    });
    alpha.gate('a').open();
    expect(textOf(await call.message())).toBe('a done');
    expect(
      stream.named('notifications/progress').map(({ params }) => params?.['progress']),
    ).toEqual([1, 2, 3, 4]);
    expect(stream.events.every(({ id }) => id === undefined)).toBe(true);
    await stream.ended();

    alpha.gate('b').open();
    const silent = client.beginTool('steps', { tag: 'b' });
    await silent.message();
    expect(await silent.notifications(), 'nobody asked for progress').toEqual([]);
  });

  test('[modern.log] log messages only for who asked, at that level and above', async () => {
    alpha.tools['talk'] = {
      description: 'Logs at any time',
      run: (_args, { notify }) => {
        for (const level of ['debug', 'info', 'error'])
          notify('notifications/message', { level, data: level });
        notify('notifications/tools/list_changed', {});
        return { content: [] };
      },
    };
    const none = client.beginTool('talk');
    await none.message();
    expect(await none.notifications()).toEqual([]);
    const some = client.beginTool('talk', {}, { meta: { [LOG_LEVEL]: 'info' } });
    await some.message();
    expect((await some.notifications()).map(({ params }) => params?.['level'])).toEqual([
      'info',
      'error',
    ]);
  });

  test('[modern.broken] a stream that breaks off, an ambiguous answer, one for somebody else: an error for this call', async () => {
    const answers: Record<string, string> = {
      cut: '',
      twice: 'data: {"jsonrpc":"2.0","id":ID,"result":{"content":[]},"result":{}}\n\n',
      foreign: 'data: {"jsonrpc":"2.0","id":"other","result":{"content":[]}}\n\n',
      nonsense: 'data: {nonsense\n\n',
    };
    alpha.intercept = ({ response }, { message }) => {
      const answer = answers[String(message?.params?.['name'])];
      if (answer === undefined) return false;
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.end(`: hi\n\n${answer.replace('ID', JSON.stringify(message!.id))}`);
      return true;
    };
    for (const tool of Object.keys(answers)) {
      const { error } = await client.tool(tool);
      expect([tool, error?.code, error?.data?.reason]).toEqual([tool, -32603, 'upstream_invalid']);
    }
    alpha.intercept = undefined;
    expect(textOf(await client.tool('echo', { still: 'here' }))).toBeDefined();
  });

  test('[modern.timeout] the hard cap ends a call, and cancels it there', async () => {
    const before = beta.cancelled.length;
    const { error } = await at.client('ann', { upstream: 'beta' }).tool('hold', { gate: 'never' });
    expect([error?.code, error?.data?.reason]).toEqual([-32603, 'upstream_timeout']);
    await until('it is cancelled there', () => beta.cancelled.length > before);
  });

  test('[modern.requests] a request of the upstream is never relayed', async () => {
    alpha.intercept = ({ response }, { message }) => {
      if (message?.params?.['name'] !== 'rude') return false;
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write('data: {"jsonrpc":"2.0","id":1,"method":"roots/list"}\n\n');
      response.end(
        `data: {"jsonrpc":"2.0","id":${JSON.stringify(message.id)},"result":{"content":[]}}\n\n`,
      );
      return true;
    };
    const call = client.beginTool('rude', {}, { meta: { progressToken: 1 } });
    expect((await call.result())['resultType']).toBe('complete');
    expect(await call.notifications()).toEqual([]);
    alpha.intercept = undefined;
  });

  test.for([0, 1])(
    '[modern.cancel] closing the stream cancels at the upstream (pod %i)',
    async (pod) => {
      const before = alpha.cancelled.length;
      const call = client.beginTool('hold', { gate: `c${pod}` }, { pod });
      await until('the call runs', () => alpha.gate(`c${pod}`).arrived);
      const { stream } = await call.http;
      expect(stream, 'a slow call is a stream').toBeDefined();
      await call.drop();
      await until('it is cancelled there', () => alpha.cancelled.length > before);
      expect(alpha.cancelled.at(-1)).toBe('hold');
      await until(
        'the stream is counted as closed',
        async () => (await world.stack.metric('viaduct_streams_open', { era: 'modern' })) === 0,
      );
    },
  );

  test('[modern.cancel] … also when the client goes before there is a stream', async () => {
    const before = alpha.cancelled.length;
    const request = http.request({
      port: world.stack.ports[0],
      path: '/mcp/alpha',
      method: 'POST',
      headers: {
        ...(client.headers('tools/call', { name: 'hold' }) as http.OutgoingHttpHeaders),
        Host: new URL(world.publicUrl).host,
      },
    });
    request.on('error', () => undefined);
    request.end(
      JSON.stringify(client.body('tools/call', { name: 'hold', arguments: { gate: 'early' } })),
    );
    await until('the call runs', () => alpha.gate('early').arrived);
    request.destroy();
    await until('it is cancelled there', () => alpha.cancelled.length > before);
  });
});

describe('who may', () => {
  test('[modern.scopes] a tool that needs more is challenged with all scopes, and not shown', async () => {
    const plain = at.client('ann', { upstream: 'beta' });
    const call = plain.beginTool('secret_report');
    expect((await call.http).status).toBe(403);
    expect((await call.http).headers['www-authenticate']).toContain(
      'scope="mcp:tools reports:read"',
    );
    const names = (message: { result?: { tools?: { name: string }[] } }) =>
      message.result?.tools?.map(({ name }) => name);
    expect(names(await plain.call('tools/list'))).not.toContain('secret_report');
    const more = at.client('ann', {
      upstream: 'beta',
      claims: { scope: 'mcp:tools reports:read' },
    });
    expect(names(await more.call('tools/list'))).toContain('secret_report');
    expect(textOf(await more.tool('secret_report'))).toBe('the-secret-figures');
  });

  test('[modern.groups] a tool of other groups is as if it did not exist', async () => {
    const outsider = at.client('ann', { upstream: 'beta' });
    expect((await outsider.tool('count')).error).toMatchObject({
      code: -32602,
      message: 'Unknown tool: count',
    });
    const insider = at.client('ben', { upstream: 'beta', claims: { groups: ['counters'] } });
    expect(textOf(await insider.tool('count'))).toBe('counted');
    expect(beta.ran['count']).toBe(1);
  });

  test('[modern.auth] without a token 401 with the id', async () => {
    const nobody = at.client('x', { token: null });
    const { status, json, headers } = await nobody.post(nobody.body('tools/list', {}, { id: 'q' }));
    expect([status, json?.id]).toEqual([401, 'q']);
    expect(headers['www-authenticate']).toContain('resource_metadata');
  });
});

describe('caching', () => {
  test('[modern.cache] what depends on who asks is private, whatever the upstream says', async () => {
    for (const upstream of [alpha, beta, drive])
      Object.assign(upstream, { cacheScope: 'public', ttlMs: 60_000 });
    const scope = async (name: string, method = 'tools/list', params = {}) => {
      const one = at.client('ann', { upstream: name });
      const call = one.begin(method, params);
      const { ttlMs, cacheScope } = await call.result();
      expect((await call.http).headers['cache-control']).toBe('no-store');
      return [ttlMs, cacheScope];
    };
    expect(await scope('alpha')).toEqual([60_000, 'public']);
    expect(await scope('alpha', 'resources/read', { uri: 'res://doc/1' })).toEqual([
      60_000,
      'public',
    ]);
    expect(await scope('beta'), 'filtered by scopes and groups').toEqual([60_000, 'private']);
    expect(await scope('drive'), 'with the person’s own credential').toEqual([60_000, 'private']);
    expect((await scope(''))[1], 'the endpoint of many').toBe('private');
    for (const upstream of [alpha, beta, drive])
      Object.assign(upstream, { cacheScope: 'odd', ttlMs: -5 });
    expect(await scope('alpha')).toEqual([0, 'private']);
    for (const upstream of [alpha, beta, drive])
      Object.assign(upstream, { cacheScope: 'private', ttlMs: 0 });
  });
});

describe('numbers', () => {
  test('[modern.metrics] requests are counted as modern', async () => {
    const count = () =>
      world.stack.metric('viaduct_requests_total', {
        era: 'modern',
        method: 'tools/call',
        upstream: 'alpha',
        outcome: 'ok',
      });
    const before = await count();
    await client.tool('echo');
    expect(await count()).toBe(before + 1);
    await never(
      'a key without a life',
      async () =>
        (await world.stack.redis.dump()).some(
          ({ key, ttlMs }) => key.startsWith('viaduct:') && ttlMs <= 0,
        ),
      { forMs: 50 },
    );
  });
});
