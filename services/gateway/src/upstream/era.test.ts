import { pino } from 'pino';
import { describe, expect, test } from 'vitest';
import { createEras, verdictOf } from './era.ts';
import type { Leg, Upstream } from './upstream.ts';
import type { WireReply } from './wire.ts';

const MODERN = { supportedVersions: ['2026-07-28'], capabilities: {} };
const head = { sessionId: undefined, wwwAuthenticate: undefined, retryAfter: undefined };

function body(status: number, value: unknown): WireReply {
  const text = typeof value === 'string' ? value : JSON.stringify(value);
  return {
    ...head,
    kind: 'body',
    status,
    contentType: 'application/json',
    body: Buffer.from(text),
  };
}
const result = (value: unknown) =>
  body(200, { jsonrpc: '2.0', id: 'viaduct-discover', result: value });
const error = (status: number, code: number, data?: unknown) =>
  body(status, { jsonrpc: '2.0', id: null, error: { code, message: 'x', data } });

/** An upstream that answers as it is told; `probes` are the legs that it was asked on. */
function upstream(answer: (leg: Leg) => WireReply | Promise<WireReply> | Error, protocol = 'auto') {
  const probes: Leg[] = [];
  const fake = {
    name: 'up',
    config: { name: 'up', protocol },
    post(_body: string, leg: Leg) {
      probes.push(leg);
      const given = answer(leg);
      const reply = given instanceof Error ? Promise.reject(given) : Promise.resolve(given);
      return { reply, abort: () => undefined };
    },
  };
  return { probes, server: fake as unknown as Upstream };
}

const log = pino({ level: 'silent' });

describe('what an answer to server/discover says', () => {
  test.for([
    ['a modern server', { result: MODERN }, true, undefined],
    [
      'one of both eras',
      { result: { supportedVersions: ['2026-07-28', '2025-11-25'] } },
      true,
      true,
    ],
    [
      'a legacy one that knows discovery',
      { result: { supportedVersions: ['2025-11-25'] } },
      false,
      true,
    ],
    ['only newer revisions', { result: { supportedVersions: ['2027-01-01'] } }, true, undefined],
    ['method not found', { error: { code: -32601 } }, false, true],
    ['no session', { error: { code: -32000 } }, false, true],
    ['header mismatch', { error: { code: -32020 } }, true, undefined],
    [
      'unsupported version',
      { error: { code: -32022, data: { supported: ['2025-11-25'] } } },
      false,
      true,
    ],
    [
      'unsupported version, modern',
      { error: { code: -32022, data: { supported: ['2026-07-28'] } } },
      true,
      undefined,
    ],
    ['a result that is none', { result: { ok: true } }, false, true],
  ] as const)('%s', ([, message, modern, legacy]) => {
    expect(verdictOf(message)).toEqual({ modern, legacy });
  });
  test('no response at all', () => {
    expect(verdictOf({ method: 'x' })).toBeUndefined();
  });
});

describe('the era of an upstream', () => {
  test.for([
    ['modern', result(MODERN), 'modern'],
    ['-32601 with 200', error(200, -32601), 'legacy'],
    ['400 without a body that says more', body(400, ''), 'legacy'],
    ['404 with a page', body(404, '<html>'), 'legacy'],
    ['405', body(405, '{}'), 'legacy'],
    ['202', body(202, ''), 'legacy'],
    ['400 with -32022', error(400, -32022, { supported: ['2026-07-28'] }), 'modern'],
  ] as [string, WireReply, string][])('%s', async ([, reply, era]) => {
    const { server } = upstream(() => reply);
    const eras = createEras({ log });
    expect(await eras.of(server, 'modern')).toBe(era);
    expect(eras.known(server)).toBe(era);
  });

  test.for([401, 403, 302, 429, 500, 502, 503])('HTTP %i is no evidence', async (status) => {
    const { server, probes } = upstream(() =>
      probes.length === 1 ? body(status, '') : result(MODERN),
    );
    const eras = createEras({ log });
    await expect(eras.of(server, 'modern')).rejects.toMatchObject({ upstreamStatus: status });
    expect(eras.known(server)).toBeUndefined();
    expect(await eras.of(server, 'modern')).toBe('modern');
  });

  test('neither is a failure, nor a 200 that is no JSON-RPC', async () => {
    const eras = createEras({ log });
    await expect(eras.of(upstream(() => new Error('refused')).server, 'modern')).rejects.toThrow(
      'refused',
    );
    await expect(eras.of(upstream(() => body(200, '<html>')).server, 'modern')).rejects.toThrow();
  });

  test('asked once by all that want to know, and again after the horizon without a wait', async () => {
    let now = 0;
    let answer: WireReply | Error = result(MODERN);
    const { server, probes } = upstream(() => answer);
    const eras = createEras({ log, now: () => now });
    const all = await Promise.all(Array.from({ length: 20 }, () => eras.of(server, 'modern')));
    expect(new Set(all)).toEqual(new Set(['modern']));
    expect(probes).toHaveLength(1);
    now += 599_000;
    await eras.of(server, 'modern');
    expect(probes).toHaveLength(1);
    now += 2_000;
    answer = new Error('away'); // says nothing: what was known goes on to count
    expect(await eras.of(server, 'modern')).toBe('modern');
    expect(probes).toHaveLength(2);
    await new Promise(setImmediate);
    expect(await eras.of(server, 'modern')).toBe('modern');
    expect(probes).toHaveLength(2);
    now += 61_000;
    answer = error(200, -32601);
    expect(await eras.of(server, 'modern')).toBe('modern');
    await new Promise(setImmediate);
    expect(await eras.of(server, 'modern')).toBe('legacy');
  });

  test('a refusal of somebody else’s credential is asked again with ours', async () => {
    const good = { authorization: 'good' };
    const { server, probes } = upstream(({ credential }) =>
      credential === good ? result(MODERN) : body(401, ''),
    );
    const eras = createEras({ log });
    const first = eras.of(server, 'modern', { authorization: 'bad' });
    const second = eras.of(server, 'modern', good);
    await expect(first).rejects.toMatchObject({ upstreamStatus: 401 });
    expect(await second).toBe('modern');
    expect(probes).toHaveLength(2);
  });

  test('configured is configured; doubt makes it ask again', async () => {
    const legacy = upstream(() => result(MODERN), 'legacy');
    const modern = upstream(() => error(200, -32601), 'modern');
    const eras = createEras({ log });
    expect(await eras.of(legacy.server, 'modern')).toBe('legacy');
    expect(await eras.of(modern.server, 'legacy')).toBe('modern');
    expect([...legacy.probes, ...modern.probes]).toEqual([]);
    const { server, probes } = upstream(() =>
      probes.length === 1 ? result(MODERN) : error(200, -32601),
    );
    const other = createEras({ log });
    expect(await other.of(server, 'modern')).toBe('modern');
    other.doubt(server);
    expect(await other.of(server, 'modern')).toBe('legacy');
  });

  test('a legacy client’s upstream is spoken to as legacy until initialize says otherwise', async () => {
    const { server, probes } = upstream(() => result(MODERN));
    const eras = createEras({ log });
    expect(await eras.of(server, 'legacy')).toBe('legacy');
    expect(probes).toHaveLength(0);
    eras.modernOnly(server);
    expect(await eras.of(server, 'legacy')).toBe('modern');
    expect(await eras.of(server, 'modern')).toBe('modern');
    expect(probes).toHaveLength(0);
  });
});
