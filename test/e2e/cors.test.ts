import { afterAll, describe, expect, test } from 'vitest';
import type { Answer } from '../support/net.ts';
import { send } from '../support/net.ts';
import { startWorld } from '../support/world.ts';

// Browser clients (case O3): a preflight needs no token, and every answer, errors too, can be read.

const FRIEND = 'https://inspector.example';
const world = await startWorld({
  workers: 0,
  plainUpstreams: ['plain'],
  config: {
    allowedOrigins: [FRIEND],
    body: { maxBytes: 2_000 },
    limits: {
      user: { points: 100_000, seconds: 60 },
      userTool: { points: 3, seconds: 300 },
      address: { points: 100_000, seconds: 60 },
    },
  },
});
afterAll(() => world.stop());
const metadata = `${world.publicUrl}/.well-known/oauth-protected-resource/mcp/plain`;
const list = (header: string | string[] | undefined) =>
  String(header ?? '')
    .toLowerCase()
    .split(/\s*,\s*/);

function expectReadable(answer: Answer, status: number, origin = FRIEND): void {
  expect(answer.status).toBe(status);
  expect(answer.headers['access-control-allow-origin']).toBe(origin);
  expect(list(answer.headers.vary)).toContain('origin');
  expect(list(answer.headers['access-control-expose-headers'])).toEqual(
    expect.arrayContaining(['mcp-session-id', 'www-authenticate', 'retry-after', 'x-request-id']),
  );
}

describe('preflight', () => {
  test.for(['/mcp/plain', '/mcp/files', '/.well-known/oauth-protected-resource/mcp/plain'])(
    '[O3] of %s succeeds without a token and allows what clients send',
    async (path) => {
      for (const method of ['POST', 'GET', 'DELETE']) {
        if (path.startsWith('/.well-known') && method !== 'GET') continue;
        const answer = await send(`${world.publicUrl}${path}`, {
          method: 'OPTIONS',
          headers: {
            Origin: FRIEND,
            'Access-Control-Request-Method': method,
            'Access-Control-Request-Headers':
              'authorization,content-type,mcp-protocol-version,mcp-session-id',
          },
        });
        expect(answer.status).toBeGreaterThanOrEqual(200);
        expect(answer.status).toBeLessThan(300);
        const origins = path.startsWith('/.well-known') ? ['*', FRIEND] : [FRIEND];
        expect(origins).toContain(answer.headers['access-control-allow-origin']);
        expect(list(answer.headers['access-control-allow-methods'])).toContain(
          method.toLowerCase(),
        );
        const allowed = list(answer.headers['access-control-allow-headers']);
        for (const name of [
          'authorization',
          'content-type',
          'mcp-session-id',
          'mcp-protocol-version',
          'last-event-id',
        ]) {
          if (!path.startsWith('/.well-known')) expect(allowed).toContain(name);
        }
      }
    },
  );

  test('[O3] for an origin that nobody allowed, no permission', async () => {
    const answer = await send(world.endpoint('plain'), {
      method: 'OPTIONS',
      headers: { Origin: 'https://evil.example', 'Access-Control-Request-Method': 'POST' },
    });
    expect(answer.headers['access-control-allow-origin']).toBeUndefined();
  });
});

describe('answers', () => {
  const headers = { Origin: FRIEND };

  test('[O3] 200, 202, a stream, 204 can be read', async () => {
    const client = world.client('ann', { upstream: 'plain' });
    const initialized = await client.post(client.initializeMessage(), { headers });
    expectReadable(initialized, 200);
    await client.initialize();
    expectReadable(await client.notify('notifications/initialized', undefined, { headers }), 202);
    const stream = await client.get({ headers });
    expectReadable(stream, 200);
    stream.close();
    expectReadable(await client.end({ headers }), 204);
  });

  test('[O3] 401, 403, 404, 413, 415, 429 can be read', async () => {
    const message = { jsonrpc: '2.0', id: 1, method: 'tools/list' };
    const nobody = world.client('x', { token: null, upstream: 'plain' });
    const refused = await nobody.post(message, { headers });
    expectReadable(refused, 401);
    expect(refused.headers['www-authenticate']).toContain('resource_metadata');

    const poor = world.client('ben', { upstream: 'plain', claims: { scope: 'openid' } });
    expectReadable(await poor.post(poor.initializeMessage(), { headers }), 403);

    const client = await world.client('ben', { upstream: 'plain' }).initialize();
    const lost = client.as({});
    lost.sessionId = 'A'.repeat(22);
    expectReadable(await lost.post(message, { headers }), 404);
    const params = { name: 'echo', arguments: { text: 'x'.repeat(3_000) } };
    expectReadable(
      await client.post({ ...message, method: 'tools/call', params }, { headers }),
      413,
    );
    expectReadable(
      await client.post('hello', { headers: { ...headers, 'Content-Type': 'text/plain' } }),
      415,
    );
    for (let i = 0; i < 3; i++) await client.callTool('count', {});
    const call = { ...message, method: 'tools/call', params: { name: 'count', arguments: {} } };
    expectReadable(await client.post(call, { headers }), 429);
  });

  test('[O3] metadata can be read', async () => {
    const answer = await send(metadata, { headers });
    expect(answer.status).toBe(200);
    expect(['*', FRIEND]).toContain(answer.headers['access-control-allow-origin']);
  });

  test('[O3] the gateway’s own origin is allowed, and * never stands beside credentials', async () => {
    const client = world.client('cleo', { upstream: 'plain' });
    const own = { Origin: world.publicUrl };
    const answer = await client.post(client.initializeMessage(), { headers: own });
    expectReadable(answer, 200, world.publicUrl);
    expect(answer.headers['access-control-allow-credentials']).not.toBe('true');
    const plain = await client.post(client.initializeMessage());
    expect(plain.headers['access-control-allow-origin']).toBeUndefined();
  });
});
