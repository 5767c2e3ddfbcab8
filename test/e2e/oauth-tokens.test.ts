import { randomBytes } from 'node:crypto';
import { decodeJwt, decodeProtectedHeader, exportJWK, generateKeyPair, SignJWT } from 'jose';
import { afterAll, describe, expect, test } from 'vitest';
import { McpClient } from '../support/mcp-client.ts';
import { send, type Answer } from '../support/net.ts';
import { startOauthWorld, type Registered } from '../support/oauth-world.ts';
import { until } from '../support/until.ts';

// Cases S3 and O4 with tokens of the built-in authorization server: whose a session is, and which tokens are none.

const keyOf = (kid: string): string => `${kid}:${randomBytes(32).toString('base64')}`;
const first = keyOf('first');
const world = await startOauthWorld({
  env: { VIADUCT_SECRET_KEYS: first },
  upstream: { tools: { 'secret_*': { scopes: ['plain:secret'] } } },
});
afterAll(() => world.stop());
const { issuer, plain, stack } = world;
const RESOURCE = world.endpoint('plain');
const FULL = 'mcp:tools plain:secret';
const LIST = { jsonrpc: '2.0', id: 3, method: 'tools/list' };

async function tokenOf(user: string, client: Registered, scope: string): Promise<string> {
  const given = { clientId: client.client_id, resource: RESOURCE, scope };
  return (await world.tokens(await world.browser(user), given)).access_token;
}
const mcp = (token: string) =>
  new McpClient({ url: RESOURCE, ports: stack.ports, token, name: 'raw' });

const bare = ({ status, json }: Answer) => {
  const text = JSON.stringify(json ?? null).replace(/"requestId":"[^"]*"/, '');
  return { status, text };
};

describe('a session (S3)', async () => {
  const [mine, other] = await Promise.all([world.registered(), world.registered()]);
  const alice = await tokenOf('alice', mine, FULL);

  test.for<[string, () => Promise<string>]>([
    ['another user of the same client', () => tokenOf('bob', mine, FULL)],
    ['the same user with another client', () => tokenOf('alice', other, FULL)],
  ])('[oauth.sessions] is not there for %s', async ([, get]) => {
    const owner = await mcp(alice).initialize({ pod: 0 });
    const stream = await owner.listen({ pod: 0 });
    const stranger = owner.as({ token: await get() });
    const lost = stranger.as({});
    lost.sessionId = 'A'.repeat(22);
    for (const pod of [0, 1]) {
      const answer = await stranger.post(LIST, { pod });
      expect(answer.status).toBe(404);
      expect(bare(answer)).toEqual(bare(await lost.post(LIST, { pod })));
      expect(bare(await stranger.get({ pod }))).toEqual(bare(await lost.get({ pod })));
      expect(bare(await stranger.end({ pod }))).toEqual(bare(await lost.end({ pod })));
    }
    expect(stream.open).toBe(true);
    expect((await owner.listTools()).result).toBeDefined();
    await owner.end();
  });

  test('[oauth.sessions] a smaller grant of the same user and client neither runs nor replays', async () => {
    const owner = await mcp(alice).initialize({ pod: 0 });
    const call = owner.beginTool('secret_report', {}, { pod: 0, meta: { progressToken: 'p' } });
    const told = await call.stream();
    expect(JSON.stringify(await call.message())).toContain('the-secret-figures');
    const id = told.events.find((event) => event.id !== undefined)!.id!;

    const weak = owner.as({ token: await tokenOf('alice', mine, 'mcp:tools') });
    const ran = plain.ran['secret_report'];
    for (const pod of [0, 1]) {
      expect((await weak.get({ pod, lastEventId: id })).status).toBe(403);
      const params = { name: 'secret_report', arguments: {} };
      const refused = await weak.post({ ...LIST, method: 'tools/call', params }, { pod });
      expect(refused.status).toBe(403);
      expect(refused.headers['www-authenticate']).toContain('plain:secret');
      const names = (await weak.listTools({ pod })).result?.tools?.map(({ name }) => name);
      expect(names).not.toContain('secret_report');
    }
    expect(plain.ran['secret_report']).toBe(ran);
    await owner.end();
  });
});

describe('what is no token of ours (O4)', async () => {
  const client = await world.registered();
  const browser = await world.browser('alice');
  const given = { clientId: client.client_id, resource: RESOURCE };
  const tokens = await world.tokens(browser, { ...given, scope: 'mcp:tools openid' });
  const claims = decodeJwt(tokens.access_token);
  const { kid = '' } = decodeProtectedHeader(tokens.access_token);
  const jwks = await send(`${issuer}/jwks`);
  const stranger = await generateKeyPair('ES256', { extractable: true });
  const header = { alg: 'ES256', typ: 'at+jwt', kid };
  const base64 = (value: object): string =>
    Buffer.from(JSON.stringify(value)).toString('base64url');
  const [head = '', body = '', signature = ''] = tokens.access_token.split('.');

  test('[oauth.tokens] the real one is', async () => {
    for (const pod of [0, 1])
      expect((await world.call(tokens.access_token, 'plain', pod)).status).toBe(200);
  });

  test.for<[string, () => string | Promise<string>]>([
    ['no signature', () => `${base64({ ...header, alg: 'none' })}.${body}.`],
    [
      'HMAC with the public key',
      () =>
        new SignJWT(claims)
          .setProtectedHeader({ ...header, alg: 'HS256' })
          .sign(Buffer.from(jwks.text)),
    ],
    [
      'another key under our key’s name',
      () => new SignJWT(claims).setProtectedHeader(header).sign(stranger.privateKey),
    ],
    [
      'a key that the token brings itself',
      async () =>
        new SignJWT(claims)
          .setProtectedHeader({ ...header, jwk: await exportJWK(stranger.publicKey) })
          .sign(stranger.privateKey),
    ],
    [
      'other claims under our signature',
      () => `${head}.${base64({ ...claims, sub: 'bob' })}.${signature}`,
    ],
    ['the ID token', () => String(tokens['id_token'])],
    ['the refresh token', () => tokens.refresh_token],
    [
      'a token for another endpoint',
      async () =>
        (await world.tokens(browser, { ...given, resource: world.endpoint('other') })).access_token,
    ],
    [
      'a token for the endpoint of all',
      async () =>
        (await world.tokens(browser, { ...given, resource: world.endpoint() })).access_token,
    ],
  ])('[oauth.tokens] %s', async ([, make]) => {
    const token = await make();
    for (const pod of [0, 1]) {
      const answer = await world.call(token, 'plain', pod);
      expect(answer.status, answer.text).toBe(401);
      expect(answer.headers['www-authenticate']).toContain('error="invalid_token"');
    }
  });
});

test('[oauth.signing-keys] a new signing key signs at once, and the old one is taken while it is in the ring', async () => {
  const client = await world.registered();
  const before = await tokenOf('alice', client, 'mcp:tools');
  const ring = async (keys: string): Promise<string[]> => {
    stack.env['VIADUCT_SECRET_KEYS'] = keys;
    for (const pod of stack.pods) {
      await pod.child.terminate();
      await stack.restart(pod);
      await until(`${pod.name} is ready`, async () => {
        return (await pod.admin('/healthz/ready')).status === 200;
      });
    }
    const { json } = await send(`${issuer}/jwks`);
    return (json?.['keys'] as { kid: string }[]).map(({ kid }) => kid);
  };
  const kidOf = (token: string): string => decodeProtectedHeader(token).kid ?? '';
  const second = keyOf('second');

  // Both pods know the key before one signs with it: two rollouts (docs/upgrade.md).
  expect(await ring(`${first},${second}`)).toEqual([kidOf(before), expect.any(String)]);
  const kids = await ring(`${second},${first}`);
  expect(kids).toHaveLength(2);
  const after = await tokenOf('alice', client, 'mcp:tools');
  expect(kidOf(after)).toBe(kids[0]);
  expect(kidOf(after)).not.toBe(kidOf(before));
  for (const pod of [0, 1]) {
    expect((await world.call(before, 'plain', pod)).status).toBe(200);
    expect((await world.call(after, 'plain', pod)).status).toBe(200);
  }

  expect(await ring(second)).toEqual([kidOf(after)]);
  for (const pod of [0, 1]) {
    expect((await world.call(before, 'plain', pod)).status).toBe(401);
    expect((await world.call(after, 'plain', pod)).status).toBe(200);
  }
});
