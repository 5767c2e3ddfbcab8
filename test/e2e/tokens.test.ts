import { afterAll, describe, expect, test } from 'vitest';
import { hmac, type Claims } from '../support/identity-provider.ts';
import type { Answer, Headers } from '../support/net.ts';
import { startWorld } from '../support/world.ts';
import { Gate, until } from '../support/until.ts';

// Access tokens (issue 2, item 5; case O4): who may come in, and what the identity provider's faults do.

const world = await startWorld({ workers: 0, plainUpstreams: ['plain', 'other'] });
afterAll(() => world.stop());
const { idp } = world;
const plain = world.plain['plain']!;
const endpoint = world.endpoint('plain');
const claims = (more: Claims = {}): Claims => ({
  sub: 'ann',
  aud: endpoint,
  client_id: 'test-client',
  scope: 'mcp:tools',
  ...more,
});

let serial = 0;
/** initialize with this Authorization header, at one pod after the other. */
function knock(
  token: string | undefined,
  headers: Headers = {},
  pod = serial++ % 2,
): Promise<Answer> {
  const client = world.client('x', { token: token ?? null, upstream: 'plain' });
  return client.post(client.initializeMessage(), { pod, headers });
}

async function expectRefused(answer: Answer, before: number): Promise<void> {
  expect(answer.status).toBe(401);
  const challenge = answer.headers['www-authenticate']!;
  expect(challenge).toMatch(/^Bearer /);
  expect(challenge).toContain(
    `resource_metadata="${world.publicUrl}/.well-known/oauth-protected-resource/mcp/plain"`,
  );
  expect(answer.json).toMatchObject({ jsonrpc: '2.0', id: 'init' });
  expect(plain.received.length, 'nothing reached the upstream').toBe(before);
}

describe('a token that is good', () => {
  test.for<[string, () => string]>([
    ['RS256', () => idp.mint(claims())],
    ['ES256', () => idp.mint(claims(), { alg: 'ES256' })],
    ['EdDSA', () => idp.mint(claims(), { alg: 'EdDSA' })],
    [
      'several audiences, ours among them',
      () => idp.mint(claims({ aud: ['https://x.example', endpoint] })),
    ],
    ['the audience with a slash at its end', () => idp.mint(claims({ aud: `${endpoint}/` }))],
    ['issued 5 s in the future', () => idp.mint(claims({ issuedIn: 5, notBeforeIn: 5 }))],
    ['expired 5 s ago, within the leeway', () => idp.mint(claims({ expiresIn: -5 }))],
    ['more scopes than needed', () => idp.mint(claims({ scope: 'openid mcp:tools files:read' }))],
  ])('[O4] %s', async ([, token]) => {
    expect((await knock(token())).status).toBe(200);
  });

  test('[O4] the scheme in any case', async () => {
    for (const scheme of ['bearer', 'BEARER']) {
      const answer = await knock(undefined, { Authorization: `${scheme} ${idp.mint(claims())}` });
      expect(answer.status).toBe(200);
    }
  });
});

describe('a token that is not', () => {
  const evil = (alg: string, secret?: string) => () =>
    idp.forge({ alg, typ: 'at+jwt' }, claims(), secret === undefined ? undefined : hmac(secret));

  test.for<[string, () => string]>([
    ['none at all but words', () => 'not-a-token'],
    ['expired', () => idp.mint(claims({ expiresIn: -600 }))],
    ['not valid for another ten minutes', () => idp.mint(claims({ notBeforeIn: 600 }))],
    ['another issuer', () => idp.mint(claims({ iss: 'https://idp.example' }))],
    ['the issuer with a slash', () => idp.mint(claims({ iss: `${idp.url}/` }))],
    ['no audience', () => idp.mint(claims({ aud: undefined }))],
    ['another endpoint’s audience', () => idp.mint(claims({ aud: world.endpoint('other') }))],
    ['the whole gateway’s audience', () => idp.mint(claims({ aud: `${world.publicUrl}/mcp` }))],
    ['the client id as audience', () => idp.mint(claims({ aud: 'test-client' }))],
    ['an audience that begins like ours', () => idp.mint(claims({ aud: `${endpoint}-two` }))],
    ['alg none', evil('none')],
    ['alg None', evil('None')],
    ['HS256 with the public key as secret', () => evil('HS256', idp.publicKeyPem())()],
    [
      'a signature of another token',
      () => {
        const [head, body] = idp.mint(claims()).split('.');
        return `${head}.${body}.${idp.mint(claims({ sub: 'ben' })).split('.')[2]}`;
      },
    ],
    [
      'a payload of another token',
      () => {
        const [head, , signature] = idp.mint(claims()).split('.');
        return `${head}.${idp.mint(claims({ sub: 'ben' })).split('.')[1]}.${signature}`;
      },
    ],
    ['an ID token', () => idp.idToken('ann')],
    ['no subject', () => idp.mint(claims({ sub: undefined as unknown as string }))],
  ])('[O4] %s', async ([, token]) => {
    const before = plain.received.length;
    const answer = await knock(token());
    await expectRefused(answer, before);
    expect(answer.headers['www-authenticate']).toContain('error="invalid_token"');
  });

  test('[O4] no token: a challenge without an error', async () => {
    const before = plain.received.length;
    const answer = await knock(undefined);
    await expectRefused(answer, before);
    expect(answer.headers['www-authenticate']).not.toContain('error=');
  });

  test('[O4] another scheme, or a token in the address', async () => {
    const before = plain.received.length;
    const token = idp.mint(claims());
    await expectRefused(
      await knock(undefined, { Authorization: `Basic ${btoa('ann:pw')}` }),
      before,
    );
    const client = world
      .client('x', { token: null, upstream: 'plain' })
      .as({ url: `${endpoint}?access_token=${token}` });
    await expectRefused(await client.post(client.initializeMessage()), before);
  });

  test('[O4] two Authorization headers are never a way in', async () => {
    const before = plain.received.length;
    const good = `Bearer ${idp.mint(claims())}`;
    for (const pair of [
      [good, good],
      [good, 'Bearer x'],
      ['Bearer x', good],
    ]) {
      const answer = await knock(undefined, { Authorization: pair });
      expect([400, 401]).toContain(answer.status);
    }
    expect(plain.received.length).toBe(before);
  });

  test('[auth.expiry] a session outlives its first token but not without a valid one', async () => {
    const client = await world.client('cleo', { upstream: 'plain' }).initialize();
    const expired = client.as({ token: idp.mint(claims({ sub: 'cleo', expiresIn: -600 })) });
    const refused = await expired.post({ jsonrpc: '2.0', id: 1, method: 'tools/list' });
    expect(refused.status).toBe(401);
    const renewed = client.as({ token: idp.mint(claims({ sub: 'cleo' })) });
    expect((await renewed.listTools()).result).toBeDefined();
  });

  test('[auth.cache] a verified token is taken no longer than it lives', async () => {
    // the leeway is 30 s: this token dies within a second or two
    const token = idp.mint(claims({ sub: 'dan', expiresIn: -28 }));
    const client = world.client('dan', { token, upstream: 'plain' });
    for (const pod of [0, 1]) {
      await until(`pod ${pod} refuses it`, async () => {
        return (await client.post(client.initializeMessage(), { pod })).status === 401;
      });
    }
  });

  test('[auth.stream] a stream ends soon after its token', async () => {
    const client = await world.client('eva', { upstream: 'plain' }).initialize();
    const short = client.as({ token: idp.mint(claims({ sub: 'eva', expiresIn: -27 })) });
    const stream = await short.listen();
    await stream.ended(20_000);
  });
});

describe('the identity provider’s keys', () => {
  test('[O4] a new key works at once on both pods', async () => {
    await knock(idp.mint(claims()), {}, 0);
    idp.rotate();
    for (const pod of [0, 1]) {
      const answer = await knock(idp.mint(claims()), {}, pod);
      expect(answer.status).toBe(200);
    }
  });

  test('[O4] a flood of made-up keys asks for the key set once a while, and hurts nobody', async () => {
    const good = idp.mint(claims());
    expect((await knock(good)).status).toBe(200);
    const before = idp.count('/jwks');
    const flood = Array.from({ length: 200 }, (_, i) =>
      knock(idp.mint(claims({ n: i }), { kid: `made-up-${i}` })),
    );
    const statuses = new Set((await Promise.all(flood)).map(({ status }) => status));
    expect([...statuses]).toEqual([401]);
    expect(idp.count('/jwks') - before, 'one by each pod at most').toBeLessThanOrEqual(2);
    expect((await knock(good)).status).toBe(200);
    expect((await knock(idp.mint(claims()))).status).toBe(200);
  });

  test('[O4] with the key set broken, known keys go on', async () => {
    for (const pod of [0, 1]) expect((await knock(idp.mint(claims()), {}, pod)).status).toBe(200);
    idp.keysBroken = true;
    try {
      for (const pod of [0, 1]) expect((await knock(idp.mint(claims()), {}, pod)).status).toBe(200);
      const unknown = await knock(idp.mint(claims(), { kid: 'unknown' }));
      expect([401, 503]).toContain(unknown.status);
    } finally {
      idp.keysBroken = false;
    }
  });
});

test('[O4] an identity provider that does not answer makes no 401 and holds up nobody for long', async () => {
  const gate = new Gate();
  const late = await startWorld({
    pods: 1,
    workers: 0,
    plainUpstreams: ['plain'],
    prepare: ({ idp: slow }) => (slow.gate = gate),
  });
  try {
    const client = late.client('ann', { upstream: 'plain' });
    const waiting = client.post(client.initializeMessage());
    const nobody = late.client('x', { token: null, upstream: 'plain' });
    expect((await nobody.post(nobody.initializeMessage())).status).toBe(401);
    const answer = await waiting;
    expect(answer.status).toBe(503);
    expect(Number(answer.headers['retry-after'])).toBeGreaterThan(0);
    late.idp.gate = undefined;
    gate.open();
    await until(
      'it heals',
      async () => (await client.post(client.initializeMessage())).status === 200,
    );
  } finally {
    gate.open();
    await late.stop();
  }
});
