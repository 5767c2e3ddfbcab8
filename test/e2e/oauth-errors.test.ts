import { afterAll, afterEach, describe, expect, test } from 'vitest';
import { send, type Answer } from '../support/net.ts';
import { REDIRECT, startOauthWorld } from '../support/oauth-world.ts';
import { until } from '../support/until.ts';

// What the authorization server says when it cannot answer: to machines in OAuth's own form (RFC 6749, 5.2; RFC 7591,
// 3.2.2), to people on a page, and while Redis is away 503, never a word about the client or its token (invariant 12).

const REGISTRATIONS = 5;
const world = await startOauthWorld({ config: { trustProxy: 1 } });
afterAll(() => world.stop());
const { issuer, stack } = world;

function expectOAuthError(answer: Answer, status: number, error: string): void {
  expect(answer.status, answer.text).toBe(status);
  expect(answer.headers['content-type']).toContain('application/json');
  expect(answer.headers['x-request-id']).toBeTruthy();
  expect(answer.json).toMatchObject({ error, error_description: expect.any(String) as string });
  expect(answer.text).not.toMatch(/<html|at .*\.js:/);
}

const post = (path: string, body: string, type: string, more: Record<string, string> = {}) =>
  send(`${issuer}${path}`, { method: 'POST', headers: { 'Content-Type': type, ...more }, body });
const FORM = 'application/x-www-form-urlencoded';
const JSON_TYPE = 'application/json';

describe('in OAuth’s own form', () => {
  const large = 'x'.repeat(80_000);
  test.for<[string, () => Promise<Answer>, number, string]>([
    ['a form that is too large', () => post('/token', `a=${large}`, FORM), 413, 'invalid_request'],
    ['the same at /revoke', () => post('/revoke', `token=${large}`, FORM), 413, 'invalid_request'],
    [
      'a registration that is too large',
      () => post('/register', JSON.stringify({ client_name: large }), JSON_TYPE),
      413,
      'invalid_request',
    ],
    [
      'a registration that is no JSON',
      () => post('/register', '{"redirect_uris":', JSON_TYPE),
      400,
      'invalid_request',
    ],
    [
      'a registration without redirects',
      () => post('/register', '{}', JSON_TYPE),
      400,
      'invalid_redirect_uri',
    ],
    ['an unknown address', () => send(`${issuer}/tokens`), 404, 'invalid_request'],
    ['GET at /token', () => send(`${issuer}/token`), 405, 'invalid_request'],
    [
      'DELETE at /register',
      () => send(`${issuer}/register`, { method: 'DELETE' }),
      405,
      'invalid_request',
    ],
    ['no grant type', () => post('/token', 'client_id=x', FORM), 401, 'invalid_client'],
    [
      'a foreign host',
      () => send(`${issuer}/token`, { method: 'POST', headers: { Host: 'evil.example' } }),
      403,
      'access_denied',
    ],
  ])('[oauth.errors] %s', async ([, ask, status, error]) => {
    expectOAuthError(await ask(), status, error);
  });

  test('[oauth.errors] a person gets a page', async () => {
    const page = await send(`${issuer}/authorize?client_id=nobody`, {
      headers: { Accept: 'text/html' },
    });
    expect(page.status).toBe(400);
    expect(page.headers['content-type']).toContain('text/html');
    expect(page.text).toContain('Nothing was granted');
  });
});

describe('registrations', async () => {
  const few = await startOauthWorld({
    config: {
      trustProxy: 1,
      limits: { registrations: { points: REGISTRATIONS, seconds: 300 } },
    },
  });
  afterAll(() => few.stop());
  const register = (address: string, pod: number): Promise<Answer> =>
    send(`${few.issuer}/register`, {
      method: 'POST',
      port: few.at(pod),
      headers: { 'Content-Type': JSON_TYPE, 'X-Forwarded-For': address },
      body: JSON.stringify({ redirect_uris: [REDIRECT], token_endpoint_auth_method: 'none' }),
    });

  test('[oauth.registrations] are limited by address over both pods, and nothing else is', async () => {
    for (let i = 0; i < REGISTRATIONS; i++) {
      expect((await register('192.0.2.7', i % 2)).status).toBe(201);
    }
    for (const pod of [0, 1]) {
      // What is left of the trusted proxy's word is the client's own invention (case R1).
      for (const address of ['192.0.2.7', '198.51.100.9, 192.0.2.7']) {
        const answer = await register(address, pod);
        expectOAuthError(answer, 429, 'temporarily_unavailable');
        expect(Number(answer.headers['retry-after'])).toBeGreaterThan(0);
        expect(answer.headers['ratelimit']).toContain('"registrations";r=0');
      }
    }
    expect((await register('192.0.2.8', 0)).status, 'another address').toBe(201);
    const token = await few.token({ grant_type: 'authorization_code', client_id: 'x' }, 0, {
      'X-Forwarded-For': '192.0.2.7',
    });
    expect(token.status, 'another route').toBe(401);
  });
});

describe.for(['frozen', 'killed'])('Redis is %s', (how) => {
  const away = async () => (how === 'frozen' ? stack.redis.freeze() : stack.redis.kill());
  const back = async () => (how === 'frozen' ? stack.redis.thaw() : stack.redis.start());
  let gone = false;

  async function heal(): Promise<void> {
    if (!gone) return;
    await back();
    gone = false;
    // Seen by a client: readiness may not have noticed a short outage.
    for (const pod of [0, 1]) {
      await until(`pod ${pod} works again`, async () => {
        return (await world.register({}, pod)).status === 201;
      });
    }
  }
  afterEach(heal);

  test('[oauth.store-away] every route is 503, and nothing is half done', async () => {
    const client = await world.registered();
    const browser = await world.browser('alice');
    const grant = await world.tokens(browser, { clientId: client.client_id });
    const refresh = {
      grant_type: 'refresh_token',
      client_id: client.client_id,
      refresh_token: grant.refresh_token,
    };
    const { url } = world.authorizeUrl({ clientId: client.client_id });
    const question = await browser.open(
      world.authorizeUrl({ clientId: client.client_id, extra: { prompt: 'consent' } }).url,
    );
    expect(question.url).toContain('/oauth/interaction/');
    const registered = () => stack.redis.client.keys('viaduct:oidc:*lient*');
    const before = await registered();

    await away();
    gone = true;
    const asked = [0, 1, 0, 1].flatMap((pod) => [
      world.token(refresh, pod),
      world.register({}, pod),
      post('/revoke', `client_id=${client.client_id}&token=${grant.refresh_token}`, FORM),
      send(url, { port: world.at(pod), headers: { Accept: 'text/html' } }),
      send(question.url, {
        port: world.at(pod),
        headers: {
          Accept: 'text/html',
          Cookie: [...browser.cookies.get('localhost')!].map((pair) => pair.join('=')).join('; '),
        },
      }),
    ]);
    for (const answer of await Promise.all(asked)) {
      expect(answer.status, answer.text).toBe(503);
      expect(Number(answer.headers['retry-after'])).toBeGreaterThan(0);
      expect(answer.headers['x-request-id']).toBeTruthy();
      expect(answer.headers.location).toBeUndefined();
    }
    await heal();

    // A registration whose reply was late may be there, whole; one that was refused at once is not.
    for (const key of await registered()) {
      if (!before.includes(key)) expect(await stack.redis.client.ttl(key)).toBeGreaterThan(0);
    }
    if (how === 'frozen') {
      const again = await world.token(refresh, 1);
      expect(again.status, again.text).toBe(200);
    }
  });
});
