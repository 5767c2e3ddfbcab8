import fc from 'fast-check';
import { afterAll, expect, test } from 'vitest';
import { INSPECTED } from '../support/heap.ts';
import { startModernUpstream } from '../support/modern-upstream.ts';
import { send, type Answer } from '../support/net.ts';
import { startWorld } from '../support/world.ts';
import { expectSound, fuzz, FUZZ_TIMEOUT_MS, heaps } from './bounds.ts';
import { bodyText, MODERN_META, objectText } from './messages.ts';
import { exchange, mutate, mutations, statusesOf } from './raw.ts';

// The MCP endpoint under everything that a client may get wrong (issue 8, item 4): no crash, no 5xx, an answer in time,
// and errors in the one form. FUZZ_SECONDS for longer, FUZZ_SEED for other inputs.

const alpha = await startModernUpstream({ name: 'alpha' });
const world = await startWorld({
  workers: 0,
  plainUpstreams: ['plain'],
  ownUpstreams: [{ name: 'alpha', url: alpha.endpoint, timeoutSeconds: 4 }],
  env: { ...INSPECTED, LOG_LEVEL: 'warn' },
  config: { sessions: { streamAfterMs: 100, ttlSeconds: 60 } },
});
afterAll(async () => {
  await world.stop();
  await alpha.stop();
});
const { stack } = world;
const PATHS = [
  '/mcp',
  '/mcp/plain',
  '/mcp/alpha',
  '/mcp/files',
  '/mcp/',
  '/mcp/nowhere',
  '/mcp/plain/',
];
const tokens = new Map(
  PATHS.map((path) => [
    path,
    world.idp.mint({ sub: 'fuzz', aud: `${world.publicUrl}${path.replace(/\/$/, '')}` }),
  ]),
);
const tokenOf = (path: string): string => tokens.get(path) ?? '';

async function newSession(path: string): Promise<string> {
  const client = world
    .client('fuzz')
    .as({ url: `${world.publicUrl}${path}`, token: tokenOf(path) });
  await client.initialize();
  return client.sessionId!;
}
const sessions = new Map<string, string>();
for (const path of ['/mcp', '/mcp/plain', '/mcp/alpha']) sessions.set(path, await newSession(path));

const oddHeader = fc.oneof(
  fc.constantFrom('', ' ', '*/*', 'application/json', 'text/html;q=0', '2025-11-25', '2026-07-28', '1', 'null', 'Bearer', 'Bearer x', 'Basic eA==', '=?base64?!?=', ','),
  fc.string({ maxLength: 60 }).map((text) => text.replace(/[^\t\x20-\x7e]/g, '')),
  fc.constant('y'.repeat(3_000)),
); // prettier-ignore

const NAMED = new Set(['tools/call', 'prompts/get', 'resources/read']);
const OTHER_HEADERS = [
  'Last-Event-ID',
  'Mcp-Param-X',
  'Origin',
  'X-Forwarded-For',
  'Cookie',
  'Content-Encoding',
];

/** Headers in any order, some left out, one odd, one twice. */
const headersFor = (base: [string, string][]): fc.Arbitrary<string[]> =>
  fc
    .tuple(
      fc.oneof(
        { arbitrary: fc.shuffledSubarray(base, { minLength: base.length }), weight: 5 },
        { arbitrary: fc.shuffledSubarray(base, { minLength: base.length - 2 }), weight: 1 },
      ),
      fc.oneof(
        { arbitrary: fc.constant(undefined), weight: 5 },
        { arbitrary: fc.tuple(fc.constantFrom(...base.map(([name]) => name), ...OTHER_HEADERS), oddHeader), weight: 1 },
      ),
    )
    .map(([kept, odd]) => [...kept, ...(odd ? [odd] : [])].flat()); // prettier-ignore

const request = fc
  .record({
    era: fc.constantFrom('legacy' as const, 'modern' as const),
    path: fc.oneof(
      { arbitrary: fc.constantFrom('/mcp', '/mcp/plain', '/mcp/alpha'), weight: 9 },
      { arbitrary: fc.constantFrom(...PATHS), weight: 1 },
    ),
    method: fc.oneof(
      { arbitrary: fc.constant('POST'), weight: 12 },
      { arbitrary: fc.constantFrom('GET', 'DELETE', 'PUT', 'OPTIONS', 'HEAD', 'PATCH'), weight: 1 },
    ),
    pod: fc.nat(1),
    chunked: fc.boolean(),
  })
  .chain((one) =>
    bodyText(one.era).chain((body) => {
      const base: [string, string][] = [
        ['Content-Type', 'application/json'],
        ['Accept', 'application/json, text/event-stream'],
        ['Authorization', `Bearer ${tokenOf(one.path)}`],
        ['MCP-Protocol-Version', one.era === 'modern' ? '2026-07-28' : '2025-11-25'],
      ];
      if (one.era === 'modern') {
        base.push(['Mcp-Method', body.method.replaceAll('\u0000', '')]);
        const name = /"(?:name|uri)":"([\w:/+-]+)"/.exec(body.text)?.[1];
        if (name !== undefined && NAMED.has(body.method)) base.push(['Mcp-Name', name]);
      } else base.push(['Mcp-Session-Id', sessions.get(one.path) ?? 'none']);
      return headersFor(base).map((headers) => ({ ...one, body: body.text, headers }));
    }),
  );

function expectExplained(answer: Answer, method: string): void {
  const { status, text, json, headers } = answer;
  const what = `${status} ${text.slice(0, 400)}`;
  expect(status, what).toBeLessThan(500);
  expect(headers['x-request-id'], what).toBeTruthy();
  if (status < 400 || method === 'HEAD') return;
  expect(headers['content-type'], what).toMatch(/^application\/json/);
  expect(json, what).toMatchObject({ jsonrpc: '2.0', error: { message: expect.any(String) as string } }); // prettier-ignore
  expect(json?.error?.data?.reason, what).not.toBe('internal');
}

test('[fuzz.mcp] requests right in most of it and wrong somewhere', { timeout: FUZZ_TIMEOUT_MS }, async () => {
  const before = await heaps(stack);
  const runs = await fuzz(fc.array(request, { minLength: 1, maxLength: 8 }), async (requests) => {
    for (const [path, id] of sessions) {
      const alive = await send(`${world.publicUrl}${path}`, { method: 'POST', headers: { Authorization: `Bearer ${tokenOf(path)}`, 'Content-Type': 'application/json', 'Mcp-Session-Id': id }, body: '{"jsonrpc":"2.0","method":"notifications/initialized"}' }); // prettier-ignore
      if (alive.status === 404) sessions.set(path, await newSession(path));
    }
    await Promise.all(
      requests.map(async ({ path, method, headers, body, pod, chunked }) => {
        const bodied = !['GET', 'HEAD', 'OPTIONS'].includes(method);
        const answer = await send(`${world.publicUrl}${path}`, {
          ...{ method, headers, port: stack.ports[pod], timeoutMs: 15_000 },
          ...(bodied && { body, chunked }),
        });
        answer.close();
        expectExplained(answer, method);
      }),
    );
  });
  expect(runs).toBeGreaterThan(5);
  await expectSound(stack, before);
}); // prettier-ignore

const rawBody = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"é"},"_meta":${objectText(MODERN_META)}}}`;
const chunk = (text: string, size = Buffer.byteLength(text).toString(16)): string => `${size}\r\n${text}\r\n`; // prettier-ignore
const FRAMINGS: Record<string, (body: string) => [headers: string, body: string]> = {
  sound: (body) => [`Content-Length: ${Buffer.byteLength(body)}`, body],
  'too long': (body) => [`Content-Length: ${Buffer.byteLength(body) + 50}`, body],
  'too short': (body) => ['Content-Length: 10', body],
  'two lengths': (body) => [`Content-Length: 5\r\nContent-Length: ${body.length}`, body],
  negative: (body) => ['Content-Length: -1', body],
  'chunks and a length': (body) => ['Transfer-Encoding: chunked\r\nContent-Length: 3', `${chunk(body)}0\r\n\r\n`], // prettier-ignore
  chunks: (body) => ['Transfer-Encoding: chunked', `${chunk(body.slice(0, 20))}${chunk(body.slice(20))}0\r\n\r\n`], // prettier-ignore
  'no last chunk': (body) => ['Transfer-Encoding: chunked', chunk(body)],
  'a chunk of a wrong size': (body) => ['Transfer-Encoding: chunked', `${chunk(body, 'fff')}0\r\n\r\n`], // prettier-ignore
  'a chunk of no size': (body) => ['Transfer-Encoding: chunked', `${chunk(body, 'zz')}0\r\n\r\n`],
  'a huge chunk': (body) => ['Transfer-Encoding: chunked', chunk(body, 'ffffffffffffffff')],
  'two encodings': (body) => ['Transfer-Encoding: gzip, chunked', `${chunk(body)}0\r\n\r\n`],
};

const rawRequest = fc.record({
  line: fc.constantFrom(...Array<string>(8).fill('POST /mcp/plain HTTP/1.1'), 'POST /mcp HTTP/1.1', 'post /mcp HTTP/1.1', 'POST http://localhost/mcp/plain HTTP/1.1', 'POST //mcp HTTP/1.1', 'POST /mcp/%00 HTTP/1.1', 'POST /mcp HTTP/1.0', 'POST /mcp', 'GET /connections?a=%zz HTTP/1.1', 'CONNECT x:1 HTTP/1.1', 'PRI * HTTP/2.0', `GET /${'a'.repeat(20_000)} HTTP/1.1`), // prettier-ignore
  framing: fc.constantFrom(...Object.keys(FRAMINGS)),
  extra: fc.constantFrom(...Array<string>(8).fill(''), 'X-A: b\r\n c\r\n', 'Host: evil.example\r\n', 'Expect: 100-continue\r\n', 'Expect: 200-maybe\r\n', 'Upgrade: websocket\r\nConnection: Upgrade\r\n', `X-Long: ${'z'.repeat(20_000)}\r\n`, 'X\u0000: y\r\n', ': nameless\r\n'), // prettier-ignore
  twice: fc.boolean(),
  how: fc.oneof({ arbitrary: fc.constant([]), weight: 1 }, { arbitrary: mutations, weight: 2 }),
  split: fc.nat(3_000),
  pod: fc.nat(1),
});

test('[fuzz.bytes] bytes that are nearly HTTP', { timeout: FUZZ_TIMEOUT_MS }, async () => {
  const before = await heaps(stack);
  const host = new URL(world.publicUrl).host;
  const runs = await fuzz(fc.array(rawRequest, { minLength: 1, maxLength: 8 }), async (requests) => {
    await Promise.all(
      requests.map(async ({ line, framing, extra, twice, how, split, pod }) => {
        const [headers, body] = FRAMINGS[framing]!(rawBody);
        const path = line.includes('/mcp/plain') ? '/mcp/plain' : '/mcp';
        const text = `${line}\r\nHost: ${host}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nAuthorization: Bearer ${tokenOf(path)}\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: echo\r\n${extra}${headers}\r\n\r\n${body}`;
        const bytes = mutate(Buffer.from(twice ? text + text : text), how);
        const { text: said, letGo } = await exchange(stack.ports[pod]!, bytes, split);
        expect(letGo, `held on to: ${JSON.stringify(bytes.toString('latin1').slice(0, 600))}`).toBe(true);
        expect(statusesOf(said).filter((status) => status >= 500), said.slice(0, 500)).toEqual([]);
      }),
    );
  });
  expect(runs).toBeGreaterThan(5);
  await expectSound(stack, before);
}); // prettier-ignore
