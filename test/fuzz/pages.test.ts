import fc from 'fast-check';
import { afterAll, expect, test } from 'vitest';
import { INSPECTED } from '../support/heap.ts';
import { send } from '../support/net.ts';
import { REDIRECT, startOauthWorld } from '../support/oauth-world.ts';
import { expectSound, fuzz, FUZZ_TIMEOUT_MS, heaps } from './bounds.ts';

// Pages, and the routes of the built-in authorization server: whatever is asked, with a person signed in or not, the
// answer is a page or JSON of the kind that was asked for, and never a fault of the gateway's.

const world = await startOauthWorld({ env: { ...INSPECTED, LOG_LEVEL: 'warn' } });
afterAll(() => world.stop());
const { stack, publicUrl } = world;
const registered = await world.registered();
const browser = await world.browser('fuzz');
const cookie = [...browser.cookies.get('localhost')!].map((pair) => pair.join('=')).join('; ');

const odd = fc.oneof(
  fc.constantFrom('', ' ', '\u0000', '%', '%zz', '%00', '../../etc/passwd', '<script>alert(1)</script>', '__proto__', 'constructor', '-1', '9'.repeat(400), "' or 1=1 --", '\r\nX: y', 'é😀', '{"a":1}', '[]', 'x'.repeat(9_000)),
  fc.string({ unit: 'binary', maxLength: 80 }),
); // prettier-ignore

const PATHS = ['/connections', '/connect', '/connect/callback', '/connect/{odd}', '/connect/{odd}/status', '/connections/{odd}/disconnect', '/login', '/login/callback', '/logout', '/assets/{odd}', '/oauth/authorize', '/oauth/token', '/oauth/register', '/oauth/revoke', '/oauth/introspect', '/oauth/jwks', '/oauth/userinfo', '/oauth/authorize/{odd}', '/oauth/{odd}', '/.well-known/oauth-authorization-server/oauth', '/.well-known/oauth-protected-resource/mcp/{odd}', '/oauth/.well-known/openid-configuration', '/.well-known/{odd}', '/{odd}', '/healthz/live', '/metrics', '/console']; // prettier-ignore

/** Parameters that would be right; some of them go, one is replaced. */
const SOUND: Readonly<Record<string, string>> = {
  response_type: 'code', client_id: registered.client_id, redirect_uri: REDIRECT, state: 's', scope: 'mcp:tools openid',
  code_challenge: 'E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM', code_challenge_method: 'S256', resource: `${publicUrl}/mcp/plain`,
  grant_type: 'authorization_code', code: 'c', code_verifier: 'v'.repeat(43), refresh_token: 'r', token: 't', prompt: 'none',
  iss: publicUrl, error: 'access_denied', decision: 'approve', user: 'fuzz', csrf: 'x', return: '/connections', max_age: '1', claims: '{}',
}; // prettier-ignore
const parameters = fc
  .tuple(
    fc.subarray(Object.keys(SOUND)),
    fc.array(fc.tuple(fc.oneof(fc.constantFrom(...Object.keys(SOUND)), odd), odd), {
      maxLength: 2,
    }),
  ) // prettier-ignore
  .map(([kept, more]) => [...kept.map((name): [string, string] => [name, SOUND[name]!]), ...more]);

const escaped = (text: string): string => encodeURIComponent(text.toWellFormed()).slice(0, 8_000);

const request = fc.record({
  path: fc.tuple(fc.constantFrom(...PATHS), odd, fc.boolean()).map(([path, text, raw]) => path.replace('{odd}', () => (raw ? text.replace(/[^\x21-\x7e]|[#?]/g, '') : escaped(text)))), // prettier-ignore
  method: fc.constantFrom('GET', 'GET', 'POST', 'POST', 'HEAD', 'PUT', 'DELETE', 'OPTIONS'),
  query: fc.boolean(),
  parameters,
  signedIn: fc.boolean(),
  body: fc.oneof(fc.constant(undefined), odd, fc.json()),
  type: fc.constantFrom('application/x-www-form-urlencoded', 'application/json', 'multipart/form-data; boundary=x', 'application/x-www-form-urlencoded; charset=utf-7', 'text/plain', ''), // prettier-ignore
  accept: fc.constantFrom('text/html', '*/*', 'application/json', 'text/html;q=0', ''),
  origin: fc.constantFrom(undefined, publicUrl, 'null', 'https://evil.example'),
  authorization: fc.constantFrom(undefined, 'Basic !!!', `Basic ${btoa(`${registered.client_id}:x`)}`, 'Bearer x', 'Basic'), // prettier-ignore
  pod: fc.nat(1),
});

test('[fuzz.pages] pages and OAuth routes', { timeout: FUZZ_TIMEOUT_MS }, async () => {
  const before = await heaps(stack);
  const runs = await fuzz(fc.array(request, { minLength: 1, maxLength: 8 }), async (requests) => {
    await Promise.all(
      requests.map(async (one) => {
        const form = one.parameters.map(([name, value]) => `${escaped(name)}=${escaped(value)}`).join('&'); // prettier-ignore
        const url = new URL(publicUrl);
        const posts = one.method === 'POST' || one.method === 'PUT';
        const answer = await send(`${url.origin}${one.path}${one.query ? `?${form}` : ''}`.slice(0, 14_000), {
          method: one.method,
          port: stack.ports[one.pod],
          timeoutMs: 15_000,
          headers: {
            Accept: one.accept,
            ...(one.signedIn && { Cookie: cookie }),
            ...(one.origin !== undefined && { Origin: one.origin }),
            ...(one.authorization !== undefined && { Authorization: one.authorization }),
            ...(posts && one.type !== '' && { 'Content-Type': one.type }),
          },
          ...(posts && { body: one.body ?? form }),
        });
        answer.close();
        const what = `${one.method} ${one.path.slice(0, 200)}: ${answer.status} ${answer.text.slice(0, 300)}`;
        expect(answer.status, what).toBeLessThan(500);
        expect(answer.text, what).not.toMatch(/\bat \S+ \(?\/|node_modules/);
        expect(answer.text, what).not.toContain('<script>alert(1)');
      }),
    );
  });
  expect(runs).toBeGreaterThan(5);
  await expectSound(stack, before);
}); // prettier-ignore
