import { randomBytes } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { createKeyring, SealError } from './keyring.ts';

const key = (kid: string) => ({ kid, key: randomBytes(32) });
const old = key('old');
const ring = createKeyring([old]);
const context = { user: 'u1', connection: 'acme-drive' };
const secret = 'tp_at_grüße😀';

async function codeOf(work: Promise<unknown>): Promise<string> {
  try {
    await work;
  } catch (error) {
    if (error instanceof SealError) return error.code;
    throw error;
  }
  return 'opened';
}
/** Replaces the last character of a part by one that decodes differently. */
const flip = (jwe: string, part: number) => {
  const parts = jwe.split('.');
  const text = parts[part] ?? '';
  parts[part] = `${text.startsWith('A') ? 'B' : 'A'}${text.slice(1)}`;
  return parts.join('.');
};

describe('seal and open', () => {
  it('give the text back, and differ each time', async () => {
    const jwe = await ring.seal('vault', secret, context);
    expect(jwe).toMatch(/^[\w-]+\.\.[\w-]+\.[\w-]+\.[\w-]+$/);
    expect(Buffer.from(jwe.split('.')[0] ?? '', 'base64url').toString()).not.toContain('tp_at');
    expect(await ring.seal('vault', secret, context)).not.toBe(jwe);
    expect(await ring.open('vault', jwe, context)).toBe(secret);
    expect(await ring.open('vault', jwe, { connection: 'acme-drive', user: 'u1' })).toBe(secret);
  });

  it.each([
    { user: 'u2', connection: 'acme-drive' },
    { user: 'u1', connection: 'notion' },
    { user: 'u1' },
    {},
    { user: 'u1', connection: 'acme-drive', more: '' },
    { user: 'acme-drive', connection: 'u1' },
  ] as Record<string, string>[])('refuse the context %j', async (other) => {
    const jwe = await ring.seal('vault', secret, context);
    expect(await codeOf(ring.open('vault', jwe, other))).toBe('invalid');
  });

  it.each(['flow', 'cookie', 'csrf', 'state'] as const)(
    'refuse the purpose %s',
    async (purpose) => {
      const jwe = await ring.seal('vault', secret, context);
      expect(await codeOf(ring.open(purpose, jwe, context))).toBe('invalid');
    },
  );

  it.each([2, 3, 4])('refuse an altered part %i', async (part) => {
    const jwe = await ring.seal('vault', secret, context);
    expect(await codeOf(ring.open('vault', flip(jwe, part), context))).toBe('invalid');
  });

  it('refuse a header whose context was exchanged', async () => {
    const mine = await ring.seal('vault', secret, context);
    const header = Buffer.from(mine.split('.')[0] ?? '', 'base64url').toString();
    const forged = Buffer.from(header.replace('u1', 'u2')).toString('base64url');
    const jwe = [forged, ...mine.split('.').slice(1)].join('.');
    expect(await codeOf(ring.open('vault', jwe, { ...context, user: 'u2' }))).toBe('invalid');
  });

  it.each(['', 'x', 'a.b.c', 'eyJhbGciOiJkaXIifQ....'])('refuse %j', async (text) => {
    expect(await codeOf(ring.open('vault', text, context))).toBe('invalid');
  });
});

describe('rotation', () => {
  it('opens with every key and seals with the first', async () => {
    const fresh = key('fresh');
    const both = createKeyring([fresh, old]);
    const before = await ring.seal('flow', secret, context);
    expect(await both.open('flow', before, context)).toBe(secret);
    const after = await both.seal('flow', secret, context);
    expect(await createKeyring([fresh]).open('flow', after, context)).toBe(secret);
    expect(await codeOf(ring.open('flow', after, context))).toBe('unknown_key');
  });

  it('names the key that is gone', async () => {
    const jwe = await ring.seal('vault', secret, context);
    const without = createKeyring([key('fresh')]);
    expect(await codeOf(without.open('vault', jwe, context))).toBe('unknown_key');
    await expect(without.open('vault', jwe, context)).rejects.toThrow(/\bkey old\b/);
  });

  it('does not take another key of the same id', async () => {
    const jwe = await ring.seal('vault', secret, context);
    expect(await codeOf(createKeyring([key('old')]).open('vault', jwe, context))).toBe('invalid');
  });
});

describe('mac', () => {
  it('is verified under its purpose and data only', () => {
    const mac = ring.mac('csrf', 'session-1');
    expect(mac).toMatch(/^[\w-]{43}$/);
    expect(ring.verifyMac('csrf', 'session-1', mac)).toBe(true);
    expect(ring.verifyMac('csrf', 'session-2', mac)).toBe(false);
    expect(ring.verifyMac('state', 'session-1', mac)).toBe(false);
    expect(ring.verifyMac('csrf', 'session-1', mac.slice(1))).toBe(false);
    expect(ring.verifyMac('csrf', 'session-1', `${mac}=`)).toBe(false);
    expect(ring.verifyMac('csrf', 'session-1', '')).toBe(false);
    expect(createKeyring([key('fresh'), old]).verifyMac('csrf', 'session-1', mac)).toBe(true);
  });
});
