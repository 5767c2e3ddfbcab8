import { describe, expect, it } from 'vitest';
import { createLogger } from './log.ts';

const JWT = 'eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl';

function capture(level: 'info' | 'debug' = 'info') {
  const lines: string[] = [];
  const destination = { write: (line: string) => void lines.push(line) };
  const log = createLogger({
    level,
    service: 'gateway',
    podId: 'p-1',
    version: '1.2.3',
    destination,
  });
  return { log, lines, last: () => JSON.parse(lines.at(-1) ?? '{}') as Record<string, unknown> };
}

describe('log', () => {
  it('writes JSON lines that say which process wrote them', () => {
    const { log, lines, last } = capture();
    log.child({ requestId: 'r-12345678' }).warn({ upstream: 'files' }, 'slow');
    expect(lines).toHaveLength(1);
    expect(last()).toMatchObject({
      level: 40,
      service: 'gateway',
      pod: 'p-1',
      version: '1.2.3',
      requestId: 'r-12345678',
      upstream: 'files',
      msg: 'slow',
    });
    log.debug('unseen');
    expect(lines).toHaveLength(1);
  });

  it.each([
    'authorization',
    'Authorization',
    'cookie',
    'set-cookie',
    'accessToken',
    'refresh_token',
    'token',
    'clientSecret',
    'password',
    'apiKey',
    'x-api-key',
    'code',
    'state',
    'codeVerifier',
    'private_key',
  ])('hides %s at any depth', (name) => {
    const { log, lines } = capture();
    log.info({ [name]: 'hush-1-abcdefghijk', a: { b: [{ [name]: 'hush-2-abcdefghijk' }] } }, 'x');
    expect(lines.join()).not.toContain('hush');
    expect(lines.join()).toContain('[redacted]');
  });

  it.each(['tokenEndpoint', 'tokenType', 'token_type', 'statusCode', 'stateful', 'encode'])(
    'shows %s',
    (name) => {
      const { log, last } = capture();
      log.info({ [name]: 'plain' }, 'x');
      expect(last()[name]).toBe('plain');
    },
  );

  it('shows error codes and flow states', () => {
    const { log, last } = capture();
    log.info({ code: 'ECONNREFUSED', state: 'completed' }, 'x');
    expect(last()).toMatchObject({ code: 'ECONNREFUSED', state: 'completed' });
  });

  it('scrubs tokens out of text', () => {
    const { log, lines } = capture();
    log.info(`sent Bearer abcdefghijkl and ${JWT}`);
    log.info({
      url: 'https://x.example/cb?code=hush1&state=hush2&iss=https://i.example',
      err: new Error(`bad ${JWT}`),
    });
    const text = lines.join('');
    expect(text).not.toMatch(/abcdefghijkl|eyJ|hush/);
    expect(text).toContain('iss=https://i.example');
  });

  it('keeps of an error what helps, and nothing that it carries', () => {
    const { log, lines, last } = capture();
    const cause = Object.assign(new Error('inner'), { code: 'ECONNREFUSED', body: 'hush' });
    const error = Object.assign(new TypeError('outer', { cause }), {
      response: { body: 'hush' },
      command: { name: 'set', args: ['k', 'hush'] },
      status: 502,
    });
    log.error({ err: error, request: { error } }, 'failed');
    expect(last()['err']).toMatchObject({
      type: 'TypeError',
      message: 'outer',
      status: 502,
      cause: { message: 'inner', code: 'ECONNREFUSED' },
    });
    expect(lines.join()).not.toContain('hush');
  });

  it('never serializes foreign objects', () => {
    const { log, last } = capture();
    class Socket {
      readonly buffer = 'hush';
    }
    log.info(
      { socket: new Socket(), map: new Map([['a', 'hush']]), bytes: Buffer.from('hush') },
      'x',
    );
    expect(JSON.stringify(last())).not.toContain('hush');
  });
});
