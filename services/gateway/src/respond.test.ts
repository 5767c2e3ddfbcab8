import type { IncomingMessage, ServerResponse } from 'node:http';
import { pino } from 'pino';
import { describe, expect, it } from 'vitest';
import { fail } from '@viaduct/shared/errors';
import { createResponder, rpcErrorText } from './respond.ts';

class FakeResponse {
  headersSent = false;
  writableEnded = false;
  destroyed = false;
  status = 0;
  body = '';
  readonly headers: Record<string, string> = {};
  setHeader(name: string, value: string) {
    this.headers[name.toLowerCase()] = value;
  }
  getHeader(name: string) {
    return this.headers[name.toLowerCase()];
  }
  hasHeader(name: string) {
    return name.toLowerCase() in this.headers;
  }
  writeHead(status: number, headers: Record<string, string | number>) {
    this.headersSent = true;
    this.status = status;
    for (const [name, value] of Object.entries(headers)) this.setHeader(name, String(value));
  }
  end(body = '') {
    this.writableEnded = true;
    this.body = body;
  }
  destroy() {
    this.destroyed = true;
  }
}

function setUp() {
  const lines: string[] = [];
  const log = pino({ level: 'debug' }, { write: (line: string) => void lines.push(line) });
  const responder = createResponder({ log });
  const res = new FakeResponse();
  const rpc = (error: unknown, idText = '1') => {
    responder.rpc(
      {
        res: res as unknown as ServerResponse,
        requestId: 'r-12345678',
        idText,
        headers: {
          'X-Request-Id': 'r-12345678',
          'Access-Control-Allow-Origin': 'https://a.example',
        },
      },
      error,
    );
    return res;
  };
  const handle = (error: unknown, accept?: string) => {
    res.setHeader('X-Request-Id', 'r-12345678');
    const req = { headers: { accept }, method: 'GET' } as unknown as IncomingMessage;
    responder.handler(error, req, res as unknown as ServerResponse, () => undefined);
    return res;
  };
  return { rpc, handle, res, lines };
}

describe('on /mcp', () => {
  it('an error is JSON-RPC with the headers of the edge and its own', () => {
    const { rpc } = setUp();
    const error = fail('insufficient_scope', 'This needs more.', {
      headers: { 'WWW-Authenticate': 'Bearer x' },
      data: { scopes: ['a'] },
    });
    const res = rpc(error, '"seven"');
    expect(res.status).toBe(403);
    expect(res.headers).toMatchObject({
      'content-type': 'application/json',
      'cache-control': 'no-store',
      'x-content-type-options': 'nosniff',
      'x-request-id': 'r-12345678',
      'access-control-allow-origin': 'https://a.example',
      'www-authenticate': 'Bearer x',
      'content-length': String(res.body.length),
    });
    expect(JSON.parse(res.body)).toEqual({
      jsonrpc: '2.0',
      id: 'seven',
      error: {
        code: error.rpcCode,
        message: 'This needs more.',
        data: { reason: 'insufficient_scope', scopes: ['a'], requestId: 'r-12345678' },
      },
    });
  });

  it.each(['0', '-1', '"0"', '""', '9007199254740993', '"req-é-😀"', 'null'])(
    'keeps the id %s to the letter',
    (id) => {
      const text = rpcErrorText(fail('not_found', 'x'), 'r', id);
      expect(text.startsWith(`{"jsonrpc":"2.0","id":${id},"error":{`)).toBe(true);
    },
  );

  it('an unexpected error says nothing but where to find it', () => {
    const { rpc, lines } = setUp();
    const res = rpc(new TypeError('secret detail in /srv/app.ts'));
    expect(res.status).toBe(500);
    expect(res.body).not.toMatch(/secret|app\.ts|TypeError/);
    expect(JSON.parse(res.body)).toMatchObject({
      error: { code: -32603, data: { requestId: 'r-12345678' } },
    });
    expect(lines.join()).toContain('secret detail');
    expect(lines.join()).toContain('r-12345678');
  });

  it.each([
    Object.assign(new Error('Reached the max retries per request limit'), {
      name: 'MaxRetriesPerRequestError',
    }),
    Object.assign(new Error('x'), { name: 'ClusterAllFailedError' }),
    new Error('Connection is closed.'),
    new Error('Command timed out'),
    new Error("READONLY You can't write against a read only replica."),
    new Error('LOADING Redis is loading the dataset in memory'),
    new Error('NOAUTH Authentication required.'),
    new Error("OOM command not allowed when used memory > 'maxmemory'."),
    new Error('CLUSTERDOWN The cluster is down'),
    Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED', syscall: 'connect' }),
  ])('$message is 503 with Retry-After', (error) => {
    const res = setUp().rpc(error);
    expect(res.status).toBe(503);
    expect(Number(res.headers['retry-after'])).toBeGreaterThan(0);
    expect(JSON.parse(res.body)).toMatchObject({
      error: { data: { reason: 'store_unavailable' } },
    });
    expect(res.body).not.toContain(error.message);
  });

  it('cuts an answer that had begun', () => {
    const { rpc, res } = setUp();
    res.headersSent = true;
    rpc(new Error('late'));
    expect(res.destroyed).toBe(true);
    expect(res.body).toBe('');
  });
});

describe('elsewhere', () => {
  it.each([
    ['text/html,application/xhtml+xml,*/*;q=0.8', 'text/html; charset=utf-8'],
    ['application/json', 'application/json'],
    ['*/*', 'application/json'],
    ['text/html;q=0', 'application/json'],
    [undefined, 'application/json'],
  ])('Accept %s gets %s', (accept, type) => {
    const res = setUp().handle(fail('not_found', 'There is no such page.'), accept);
    expect(res.status).toBe(404);
    expect(res.headers['content-type']).toBe(type);
    expect(res.body).toContain('There is no such page.');
    expect(res.body).toContain('r-12345678');
  });

  it('a page escapes what it shows, and runs nothing', () => {
    const res = setUp().handle(fail('not_found', '<script>alert("1")</script>'), 'text/html');
    expect(res.body).not.toContain('<script>');
    expect(res.headers['content-security-policy']).toContain("default-src 'none'");
  });

  it.each([
    [Object.assign(new Error('request entity too large'), { status: 413, expose: true }), 413],
    [Object.assign(new URIError('malformed'), { status: 400 }), 400],
    [Object.assign(new Error('upstream said'), { status: 404 }), 500],
  ])('%s is %i', (error, status) => {
    expect(setUp().handle(error).status).toBe(status);
  });
});
