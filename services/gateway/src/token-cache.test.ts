import { describe, expect, it } from 'vitest';
import { createTokenCache, type VerifiedToken } from './token-cache.ts';

const token = (subject: string, expiresAtMs = 1_000) =>
  ({ principal: { subject, expiresAtMs }, resources: new Set() }) as unknown as VerifiedToken;

describe('token cache', () => {
  it('gives nothing at or past the end', () => {
    const cache = createTokenCache();
    cache.set('a', token('alice'), 0);
    expect(cache.get('a', 999)?.principal.subject).toBe('alice');
    expect(cache.get('a', 1_000)).toBeUndefined();
    expect(cache.get('a', 0)).toBeUndefined(); // and has forgotten it
  });

  it('is bounded, and keeps what is in use', () => {
    const cache = createTokenCache(10);
    cache.set('used', token('used'), 0);
    for (let i = 0; i < 1_000; i++) {
      cache.set(`t${i}`, token(String(i)), 0);
      expect(cache.get('used', 0)).toBeDefined();
    }
    const kept = Array.from({ length: 1_000 }, (_, i) => cache.get(`t${i}`, 0)).filter(Boolean);
    expect(kept.length).toBeLessThanOrEqual(10);
  });

  it('forgets what nobody has presented for ten minutes, and keeps the rest', () => {
    const cache = createTokenCache();
    const minute = 60_000;
    const good = (subject: string) => token(subject, 1_000 * minute);
    cache.set('left', good('left'), minute);
    cache.set('used', good('used'), minute);
    for (let at = 2; at <= 14; at++) {
      cache.set(`t${at}`, good(String(at)), at * minute);
      expect(cache.get('used', at * minute), `minute ${at}`).toBeDefined();
    }
    expect(cache.get('left', 14 * minute)).toBeUndefined();
    expect(cache.get('t12', 14 * minute)).toBeDefined();
  });

  it('keeps nothing over a long silence', () => {
    const cache = createTokenCache();
    cache.set('before', token('before', 1e12), 1);
    cache.set('after', token('after', 1e12), 3_600_000);
    expect(cache.get('before', 3_600_000)).toBeUndefined();
    expect(cache.get('after', 3_600_000)).toBeDefined();
  });
});
