import type { IncomingMessage } from 'node:http';
import { parseConfig } from '@viaduct/shared/config';
import { describe, expect, it } from 'vitest';
import { createEdge } from './edge.ts';

type Raw = [string, string][];

function request(headers: Raw, method = 'POST'): IncomingMessage {
  const seen: Record<string, string> = {};
  for (const [name, value] of headers) seen[name.toLowerCase()] ??= value; // Node keeps the first
  return {
    method,
    url: '/mcp',
    headers: seen,
    rawHeaders: headers.flat(),
    socket: { remoteAddress: '10.0.0.9' },
  } as unknown as IncomingMessage;
}

function setUp(publicUrl: string, more: object = {}) {
  const audited: string[] = [];
  const loopback = publicUrl.startsWith('http:');
  const config = parseConfig(
    JSON.stringify({
      publicUrl,
      auth: loopback ? { mode: 'none' } : { mode: 'external', issuer: 'https://idp.example.com' },
      ...more,
    }),
    {},
  );
  const edge = createEdge({ config, audit: { record: ({ type }) => void audited.push(type) } });
  return { edge, audited };
}

const HOST: [string, string] = ['Host', 'gw.example.com'];

describe('Host', () => {
  it.each([
    ['gw.example.com', true],
    ['GW.example.com', true],
    ['gw.example.com:443', true],
    ['gw.example.com:8443', false],
    ['gw.example.com.evil.net', false],
    ['evil.example', false],
    ['gw.example.com.', false],
    ['localhost', false],
    ['127.0.0.1:8080', false],
    ['', false],
  ])('%s for https://gw.example.com: %s', (host, ours) => {
    const { edge, audited } = setUp('https://gw.example.com');
    const { refused } = edge.visit(request([['Host', host]]));
    expect(refused === undefined).toBe(ours);
    expect(audited).toEqual(ours ? [] : ['host.refused']);
    if (!ours) expect(refused?.status).toBe(403);
  });

  it.each([
    ['localhost:9999', true],
    ['127.0.0.1:8080', true],
    ['127.9.9.9', true],
    ['[::1]:8080', true],
    ['app.localhost:1', true],
    ['localhost.evil.example', false],
    ['127.0.0.1.nip.io', false],
    ['localhost:8080@evil.example', false],
    ['10.0.0.1', false],
  ])('%s in development: %s', (host, ours) => {
    const { refused } = setUp('http://localhost:8080').edge.visit(request([['Host', host]]));
    expect(refused === undefined).toBe(ours);
  });

  it('must be there, once', () => {
    const { edge } = setUp('https://gw.example.com');
    expect(edge.visit(request([])).refused?.status).toBe(403);
    expect(edge.visit(request([HOST, ['host', 'evil.example']])).refused?.status).toBe(403);
  });
});

// Case H2.
describe('Origin', () => {
  const origins = { allowedOrigins: ['https://app.example.org', 'vscode-webview://abc'] };

  it.each([
    ['https://gw.example.com', 'https://gw.example.com'],
    ['HTTPS://GW.EXAMPLE.COM', 'https://gw.example.com'],
    ['https://gw.example.com:443', 'https://gw.example.com'],
    ['https://app.example.org', 'https://app.example.org'],
    ['vscode-webview://abc', 'vscode-webview://abc'],
    ['http://gw.example.com', undefined],
    ['https://gw.example.com:8443', undefined],
    ['https://gw.example.com.evil.net', undefined],
    ['https://evil.example/?https://gw.example.com', undefined],
    ['https://gw.example.com@evil.example', undefined],
    ['https://gw.example.com/', undefined],
    ['https://xgw.example.com', undefined],
    ['http://evil.example', undefined],
    ['null', undefined],
    ['', undefined],
    ['file://', undefined],
    ['https://gw.example.com, https://evil.example', undefined],
  ])('%s gets %s', (origin, acao) => {
    const { edge, audited } = setUp('https://gw.example.com', origins);
    for (const method of ['POST', 'GET', 'DELETE']) {
      const visit = edge.visit(request([HOST, ['Origin', origin]], method));
      expect(visit.headers['Access-Control-Allow-Origin']).toBe(acao);
      expect(visit.headers['Vary']).toBe('Origin');
      expect(visit.refused?.status).toBe(acao === undefined ? 403 : undefined);
    }
    expect(new Set(audited)).toEqual(new Set(acao === undefined ? ['origin.refused'] : []));
  });

  it('may be absent', () => {
    const visit = setUp('https://gw.example.com').edge.visit(request([HOST]));
    expect(visit.refused).toBeUndefined();
    expect(Object.keys(visit.headers)).toEqual(['X-Request-Id']);
  });

  it('is refused twice over, even when both are ours', () => {
    const { edge } = setUp('https://gw.example.com');
    const own: [string, string] = ['Origin', 'https://gw.example.com'];
    expect(edge.visit(request([HOST, own, own])).refused?.status).toBe(403);
  });

  it('is compared with publicUrl, not with Host', () => {
    const { edge } = setUp('http://localhost:8080');
    const visit = edge.visit(
      request([
        ['Host', 'localhost:9999'],
        ['Origin', 'http://localhost:9999'],
      ]),
    );
    expect(visit.refused?.status).toBe(403);
  });

  it.each([
    ['https://any.example', '*'],
    ['null', '*'],
    [undefined, '*'],
    ['https://app.example.org', 'https://app.example.org'],
  ])('is of no concern for public documents: %s reads %s', (origin, acao) => {
    const { edge } = setUp('https://gw.example.com', origins);
    const headers: Raw = origin === undefined ? [HOST] : [HOST, ['Origin', origin]];
    const visit = edge.visit(request(headers, 'GET'), 'public');
    expect(visit.refused).toBeUndefined();
    expect(visit.headers).toMatchObject({ 'Access-Control-Allow-Origin': acao, Vary: 'Origin' });
  });
});

// Case O3.
describe('CORS', () => {
  const own: [string, string] = ['Origin', 'https://gw.example.com'];

  it('answers a preflight without looking further', () => {
    const { preflight } = setUp('https://gw.example.com').edge.visit(
      request(
        [
          HOST,
          own,
          ['Access-Control-Request-Method', 'POST'],
          [
            'Access-Control-Request-Headers',
            'authorization, Mcp-Param-Region, X-Evil, mcp-param-a b',
          ],
        ],
        'OPTIONS',
      ),
    );
    const names = (preflight?.['Access-Control-Allow-Headers'] ?? '').split(', ');
    expect(names).toEqual([
      'Authorization',
      'Content-Type',
      'Accept',
      'Last-Event-ID',
      'Mcp-Session-Id',
      'MCP-Protocol-Version',
      'Mcp-Method',
      'Mcp-Name',
      'Mcp-Param-Region',
    ]);
    expect(preflight?.['Access-Control-Allow-Methods']).toBe('GET, POST, DELETE, OPTIONS');
    expect(preflight?.['Access-Control-Allow-Origin']).toBe('https://gw.example.com');
    expect(preflight).not.toHaveProperty('Access-Control-Allow-Credentials');
  });

  it('refuses a preflight of a stranger', () => {
    const { edge } = setUp('https://gw.example.com');
    const visit = edge.visit(request([HOST, ['Origin', 'https://evil.example']], 'OPTIONS'));
    expect(visit.preflight).toBeUndefined();
    expect(visit.refused?.status).toBe(403);
  });

  it('exposes what clients need to read', () => {
    const { headers } = setUp('https://gw.example.com').edge.visit(request([HOST, own]));
    const exposed = headers['Access-Control-Expose-Headers']?.split(', ');
    for (const name of [
      'Mcp-Session-Id',
      'WWW-Authenticate',
      'MCP-Protocol-Version',
      'Retry-After',
      'X-Request-Id',
      'RateLimit',
      'RateLimit-Policy',
    ]) {
      expect(exposed).toContain(name);
    }
  });
});

describe('request id', () => {
  it.each(['01J8ZC-abc_DEF.9', 'a'.repeat(64)])('keeps %s', (id) => {
    const { edge } = setUp('https://gw.example.com');
    expect(edge.visit(request([HOST, ['X-Request-Id', id]])).requestId).toBe(id);
  });

  it.each(['short', 'a'.repeat(65), 'with space', 'x\u00e9xxxxxxxx', 'a,b,c,d,e,f', '"quoted-id"'])(
    'makes its own instead of %s',
    (id) => {
      const { edge } = setUp('https://gw.example.com');
      const { requestId, headers } = edge.visit(request([HOST, ['X-Request-Id', id]]));
      expect(requestId).toMatch(/^[0-9a-f-]{36}$/);
      expect(headers['X-Request-Id']).toBe(requestId);
    },
  );
});

describe('client address', () => {
  it('is read past the configured proxies', () => {
    const forwarded: [string, string] = ['X-Forwarded-For', '9.9.9.9, 192.0.2.1'];
    const one = setUp('https://gw.example.com', { trustProxy: 1 }).edge;
    const none = setUp('https://gw.example.com', { trustProxy: 0 }).edge;
    expect(one.addressOf(request([HOST, forwarded]))).toBe('192.0.2.1');
    expect(none.addressOf(request([HOST, forwarded]))).toBe('10.0.0.9');
  });
});
