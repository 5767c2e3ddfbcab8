import { describe, expect, it } from 'vitest';
import { safeReturnTo } from './login.ts';

describe('safeReturnTo', () => {
  it.each([
    '/connections',
    '/connect/AAAAAAAAAAAAAAAAAAAAAA',
    '/connect/AAAAAAAAAAAAAAAAAAAAAA/status',
  ])('leads back to %s', (path) => expect(safeReturnTo(path)).toBe(path));
  it.each([
    'https://evil.example',
    '//evil.example',
    '/\\evil.example',
    '/connect/../x',
    '/connect/a?b',
    '/login',
    '/connect/callback/x',
    '/connections/',
    'connections',
    '',
    undefined,
    ['/connections'],
  ])('leads nowhere else: %j', (path) => expect(safeReturnTo(path)).toBe('/connections'));
});
