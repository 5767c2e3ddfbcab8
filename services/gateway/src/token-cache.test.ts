import { describe, expect, it } from 'vitest';
import { createTokenCache, type VerifiedToken } from './token-cache.ts';

const token = (subject: string, expiresAtMs = 1_000) =>
  ({ principal: { subject, expiresAtMs }, resources: new Set() }) as unknown as VerifiedToken;

describe('token cache', () => {
  it('gives nothing at or past the end', () => {
    const cache = createTokenCache();
    cache.set('a', token('alice'));
    expect(cache.get('a', 999)?.principal.subject).toBe('alice');
    expect(cache.get('a', 1_000)).toBeUndefined();
    expect(cache.get('a', 0)).toBeUndefined(); // and has forgotten it
  });

  it('is bounded, and keeps what is in use', () => {
    const cache = createTokenCache(10);
    cache.set('used', token('used'));
    for (let i = 0; i < 1_000; i++) {
      cache.set(`t${i}`, token(String(i)));
      expect(cache.get('used', 0)).toBeDefined();
    }
    const kept = Array.from({ length: 1_000 }, (_, i) => cache.get(`t${i}`, 0)).filter(Boolean);
    expect(kept.length).toBeLessThanOrEqual(10);
  });
});
