import { describe, expect, it } from 'vitest';
import { rateLimited, rateLimitHeaders, type Verdict } from './rate-limit.ts';

const verdict: Verdict = {
  allowed: false,
  limit: 'user',
  points: 600,
  seconds: 60,
  remaining: 0,
  resetSeconds: 12,
};

describe('rate limit headers', () => {
  it('name the limit, what is left and when it starts anew', () => {
    expect(rateLimitHeaders(verdict)).toEqual({
      'Retry-After': '12',
      RateLimit: '"user";r=0;t=12',
      'RateLimit-Policy': '"user";q=600;w=60',
    });
  });

  it('come with a 429 that says how long to wait', () => {
    const error = rateLimited(verdict);
    expect(error).toMatchObject({
      status: 429,
      code: 'rate_limited',
      data: { limit: 'user', retryAfterSeconds: 12 },
    });
    expect(error.headers['Retry-After']).toBe('12');
    expect(error.message).toContain('12 s');
  });
});
