import { createHmac, generateKeyPairSync, randomUUID, type KeyObject } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { exportJWK, SignJWT, type JWK } from 'jose';
import { pino } from 'pino';
import { beforeEach, describe, expect, it } from 'vitest';
import type { AuditEvent } from '@viaduct/shared/audit';
import { parseConfig } from '@viaduct/shared/config';
import { GatewayError } from '@viaduct/shared/errors';
import { createMetrics } from '@viaduct/shared/metrics';
import { userIdOf } from '@viaduct/shared/principal';
import { createAuthenticator, grants } from './auth.ts';

const ISSUER = 'https://idp.example.com/realms/acme';
const RESOURCE = 'https://gw.example.com/mcp/files';
const METADATA =
  'resource_metadata="https://gw.example.com/.well-known/oauth-protected-resource/mcp/files"';

interface SigningKey {
  kid: string;
  alg: string;
  privateKey: KeyObject;
  jwk: JWK;
}

async function createKey(alg: string, kid: string = randomUUID()): Promise<SigningKey> {
  const { privateKey, publicKey } =
    alg === 'EdDSA'
      ? generateKeyPairSync('ed25519')
      : alg.startsWith('ES')
        ? generateKeyPairSync('ec', { namedCurve: 'P-256' })
        : generateKeyPairSync('rsa', { modulusLength: 2048 });
  const jwk = { ...(await exportJWK(publicKey)), kid, use: 'sig', ...(alg !== 'PS256' && { alg }) };
  return { kid, alg, privateKey, jwk };
}

const rsa = await createKey('RS256', 'rsa-1');
const ec = await createKey('ES256', 'ec-1');
const ed = await createKey('EdDSA', 'ed-1');
const pss = await createKey('PS256', 'pss-1');

/** An identity provider behind an injected fetch. */
class Idp {
  keys = [rsa, ec, ed, pss];
  hits: string[] = [];
  broken = false;
  issuer = ISSUER;
  onlyOAuthMetadata = false;
  readonly fetch = (async (input: string | URL | Request): Promise<Response> => {
    const url = input instanceof Request ? input.url : String(input);
    this.hits.push(url);
    if (this.broken) return new Response('{}', { status: 500 });
    const metadata = { issuer: this.issuer, jwks_uri: 'https://idp.example.com/keys' };
    if (url === `${ISSUER}/.well-known/openid-configuration` && !this.onlyOAuthMetadata) {
      return Response.json(metadata);
    }
    if (url === 'https://idp.example.com/.well-known/oauth-authorization-server/realms/acme') {
      return Response.json(metadata);
    }
    if (url === 'https://idp.example.com/keys') {
      return Response.json({ keys: this.keys.map((key) => key.jwk) });
    }
    return new Response('', { status: 404 });
  }) as typeof fetch;
  get keyHits(): number {
    return this.hits.filter((url) => url.endsWith('/keys')).length;
  }
}

let now: number;
let idp: Idp;
beforeEach(() => {
  now = Date.now();
  idp = new Idp();
});

function setUp(auth: object = {}, more: object = {}) {
  const audited: AuditEvent[] = [];
  const metrics = createMetrics();
  const config = parseConfig(
    JSON.stringify({
      publicUrl: 'https://gw.example.com',
      auth: { mode: 'external', issuer: ISSUER, ...auth },
      upstreams: [
        {
          name: 'files',
          url: 'https://files.example.com/mcp',
          scopes: ['files:read'],
          tools: { 'delete_*': { scopes: ['files:write'], groups: ['admins'] } },
        },
      ],
      ...more,
    }),
    {},
  );
  const authenticator = createAuthenticator({
    config,
    metrics,
    audit: { record: (event) => void audited.push(event) },
    log: pino({ level: 'silent' }),
    fetch: idp.fetch,
    clock: () => now,
  });
  return { authenticator, audited, metrics };
}

const seconds = () => Math.floor(now / 1000);
interface Minted {
  key?: SigningKey;
  header?: object;
  claims?: Record<string, unknown>;
}
function mint({ key = rsa, header = {}, claims = {} }: Minted = {}): Promise<string> {
  // prettier-ignore
  const payload: Record<string, unknown> = {
    iss: ISSUER, sub: 'alice', aud: RESOURCE, client_id: 'c-1', scope: 'mcp:tools files:read',
    iat: seconds(), exp: seconds() + 600, ...claims,
  };
  // jose takes undefined for absent, as JSON does.
  return new SignJWT(JSON.parse(JSON.stringify(payload)) as Record<string, unknown>)
    .setProtectedHeader({ alg: key.alg, kid: key.kid, typ: 'at+jwt', ...header })
    .sign(key.privateKey);
}
/** A token in pieces that no library would make. */
const forge = (header: object, claims: object, signature: (data: string) => string) => {
  const encode = (part: object) => Buffer.from(JSON.stringify(part)).toString('base64url');
  const data = `${encode(header)}.${encode(claims)}`;
  return `${data}.${signature(data)}`;
};

function request(headers: [string, string][], url = '/mcp/files'): IncomingMessage {
  const seen: Record<string, string> = {};
  for (const [name, value] of headers) seen[name.toLowerCase()] ??= value;
  return { url, headers: seen, rawHeaders: headers.flat() } as unknown as IncomingMessage;
}
const bearer = (token: string) => request([['Authorization', `Bearer ${token}`]]);

async function refusal(work: Promise<unknown>): Promise<GatewayError> {
  try {
    await work;
  } catch (error) {
    if (error instanceof GatewayError) return error;
    throw error;
  }
  throw new Error('it was accepted');
}

// Case O4.
describe('a good token', () => {
  it('is a principal', async () => {
    const { authenticator } = setUp();
    const token = await mint({ claims: { groups: ['admins', 7], scp: ['x', 'y'] } });
    expect(await authenticator.authenticate(bearer(token), RESOURCE)).toEqual({
      userId: userIdOf(ISSUER, 'alice'),
      issuer: ISSUER,
      subject: 'alice',
      clientId: 'c-1',
      scopes: new Set(['mcp:tools', 'files:read', 'x', 'y']),
      groups: ['admins'],
      audience: [RESOURCE],
      expiresAtMs: (seconds() + 600) * 1000,
    });
  });

  it.each<[string, () => Minted]>([
    ['RS256', () => ({ key: rsa })],
    ['PS256', () => ({ key: pss })],
    ['ES256', () => ({ key: ec })],
    ['EdDSA', () => ({ key: ed })],
    ['no typ', () => ({ header: { typ: undefined } })],
    ['typ JWT', () => ({ header: { typ: 'JWT' } })],
    ['typ application/at+jwt', () => ({ header: { typ: 'application/at+jwt' } })],
    ['a list of audiences', () => ({ claims: { aud: ['https://other.example', RESOURCE] } })],
    ['a slash after the audience', () => ({ claims: { aud: `${RESOURCE}/` } })],
    [
      'an upper-case host in the audience',
      () => ({ claims: { aud: 'HTTPS://GW.example.com:443/mcp/files' } }),
    ],
    ['iat and nbf in 5 s', () => ({ claims: { iat: seconds() + 5, nbf: seconds() + 5 } })],
    ['exp 5 s ago', () => ({ claims: { exp: seconds() - 5 } })],
    ['azp for client_id', () => ({ claims: { client_id: undefined, azp: 'c-2' } })],
    ['cid for client_id (Okta)', () => ({ claims: { client_id: undefined, cid: 'c-2' } })],
    ['appid for client_id (Entra)', () => ({ claims: { client_id: undefined, appid: 'c-2' } })],
    ['no scope', () => ({ claims: { scope: undefined } })],
  ])('may have %s', async (_, minted) => {
    const { authenticator } = setUp();
    const principal = await authenticator.authenticate(bearer(await mint(minted())), RESOURCE);
    expect(principal.subject).toBe('alice');
  });

  it.each(['bearer', 'BEARER', 'BeArEr', 'Bearer  ', 'bearer   '])(
    'comes as %s',
    async (scheme) => {
      const { authenticator } = setUp();
      const req = request([['Authorization', `${scheme} ${await mint()}`]]);
      expect((await authenticator.authenticate(req, RESOURCE)).clientId).toBe('c-1');
    },
  );

  it('may be for a configured audience instead, and then for every endpoint', async () => {
    const { authenticator } = setUp({ audience: ['viaduct'] });
    const token = await mint({ claims: { aud: ['viaduct', 'x'] } });
    await authenticator.authenticate(bearer(token), RESOURCE);
    await authenticator.authenticate(bearer(token), 'https://gw.example.com/mcp');
    const other = await refusal(authenticator.authenticate(bearer(await mint()), RESOURCE));
    expect(other.status).toBe(401);
  });
});

describe('a bad token', () => {
  const claims = () => ({
    iss: ISSUER,
    sub: 'alice',
    aud: RESOURCE,
    client_id: 'c-1',
    iat: seconds(),
    exp: seconds() + 600,
  });
  const pem = () => rsa.jwk.n ?? '';
  it.each<[string, string, () => string | Promise<string>]>([
    ['words', 'malformed', () => 'not-a-token'],
    ['expired', 'expired', () => mint({ claims: { exp: seconds() - 31 } })],
    ['no exp', 'claims', () => mint({ claims: { exp: undefined } })],
    ['exp as text', 'claims', () => mint({ claims: { exp: String(seconds() + 600) } })],
    ['nbf in 10 min', 'not_yet_valid', () => mint({ claims: { nbf: seconds() + 600 } })],
    [
      'iat in 10 min',
      'not_yet_valid',
      () => mint({ claims: { iat: seconds() + 600, exp: seconds() + 1200 } }),
    ],
    ['other issuer', 'issuer', () => mint({ claims: { iss: 'https://evil.example' } })],
    ['issuer with a slash', 'issuer', () => mint({ claims: { iss: `${ISSUER}/` } })],
    ['no issuer', 'issuer', () => mint({ claims: { iss: undefined } })],
    ['no audience', 'claims', () => mint({ claims: { aud: undefined } })],
    ['another path', 'audience', () => mint({ claims: { aud: 'https://gw.example.com/mcp' } })],
    ['a longer path', 'audience', () => mint({ claims: { aud: `${RESOURCE}-two` } })],
    ['a fragment', 'audience', () => mint({ claims: { aud: `${RESOURCE}#a` } })],
    ['the client as audience', 'audience', () => mint({ claims: { aud: 'c-1' } })],
    ['an empty list of audiences', 'audience', () => mint({ claims: { aud: [] } })],
    ['no subject', 'claims', () => mint({ claims: { sub: undefined } })],
    ['an empty subject', 'claims', () => mint({ claims: { sub: '' } })],
    ['no client', 'claims', () => mint({ claims: { client_id: undefined } })],
    ['an ID token (nonce)', 'type', () => mint({ header: { typ: 'JWT' }, claims: { nonce: 'n' } })],
    [
      'an ID token (at_hash)',
      'type',
      () => mint({ header: { typ: 'JWT' }, claims: { at_hash: 'h' } }),
    ],
    ['a logout token', 'type', () => mint({ header: { typ: 'logout+jwt' } })],
    ['a DPoP proof', 'type', () => mint({ header: { typ: 'dpop+jwt' } })],
    ['a DPoP-bound token', 'sender_constrained', () => mint({ claims: { cnf: { jkt: 'x' } } })],
    ['alg none', 'algorithm', () => forge({ alg: 'none', typ: 'JWT' }, claims(), () => '')],
    ['alg None', 'algorithm', () => forge({ alg: 'None', typ: 'JWT' }, claims(), () => '')],
    [
      'HS256 with the public key',
      'algorithm',
      () =>
        forge({ alg: 'HS256', kid: 'rsa-1' }, claims(), (data) =>
          createHmac('sha256', pem()).update(data).digest('base64url'),
        ),
    ],
    ['the key of another algorithm', 'unknown_key', () => mint({ key: { ...ec, kid: 'rsa-1' } })],
    [
      'an altered signature',
      'signature',
      async () =>
        (await mint()).replace(
          /\.([^.])([^.]*)$/,
          (_, first: string, rest: string) => `.${first === 'A' ? 'B' : 'A'}${rest}`,
        ),
    ],
    [
      'a foreign payload',
      'signature',
      async () => {
        const [head, , sig] = (await mint()).split('.');
        return [head, (await mint({ claims: { sub: 'bob' } })).split('.')[1], sig].join('.');
      },
    ],
    [
      'an unknown critical header',
      'algorithm',
      () => forge({ alg: 'RS256', kid: 'rsa-1', crit: ['x'], x: 1 }, claims(), () => 'AAAA'),
    ],
  ])('%s: %s', async (_, reason, token) => {
    const { authenticator, audited, metrics } = setUp();
    const error = await refusal(authenticator.authenticate(bearer(await token()), RESOURCE, 'r-1'));
    expect(error.status).toBe(401);
    const challenge = error.headers['WWW-Authenticate'];
    expect(challenge).toMatch(/^Bearer error="invalid_token", error_description="[^"\\]+", /);
    expect(challenge).toContain(METADATA);
    expect(challenge).toMatch(/, scope="mcp:tools"$/);
    expect(audited).toEqual([
      { type: 'auth.refused', reason, endpoint: RESOURCE, requestId: 'r-1' },
    ]);
    expect(await metrics.text()).toContain(`viaduct_auth_failures_total{reason="${reason}"} 1`);
  });

  it.each<[string, [string, string][], string | undefined]>([
    ['none', [], undefined],
    ['another scheme', [['Authorization', 'Basic YWxpY2U6cHc=']], undefined],
    ['a scheme only', [['Authorization', 'Bearer']], 'malformed'],
    ['a list', [['Authorization', 'Bearer a, Bearer b']], 'malformed'],
    ['a quote', [['Authorization', 'Bearer "abc"']], 'malformed'],
  ])('%s', async (_, headers, reason) => {
    const { authenticator, audited } = setUp();
    const error = await refusal(authenticator.authenticate(request(headers), RESOURCE));
    expect(error.status).toBe(401);
    if (reason === undefined) {
      expect(error.headers['WWW-Authenticate']).toBe(`Bearer ${METADATA}, scope="mcp:tools"`);
      expect(audited).toEqual([]);
    } else expect(audited).toMatchObject([{ reason }]);
  });

  it('in the URL, or beside another one, is refused although good', async () => {
    const { authenticator, audited } = setUp();
    const token = await mint();
    const inUrl = request([], `/mcp/files?access_token=${token}`);
    expect((await refusal(authenticator.authenticate(inUrl, RESOURCE))).status).toBe(401);
    const header: [string, string] = ['Authorization', `Bearer ${token}`];
    const twice = request([header, ['authorization', header[1]]]);
    expect((await refusal(authenticator.authenticate(twice, RESOURCE))).status).toBe(401);
    expect(audited.map((event) => 'reason' in event && event.reason)).toEqual([
      'in_url',
      'several',
    ]);
  });
});

describe('a verified token', () => {
  it('is remembered, and never past its end', async () => {
    const { authenticator } = setUp({ clockSkewSeconds: 0 });
    const token = await mint({ claims: { exp: seconds() + 60 } });
    const first = await authenticator.authenticate(bearer(token), RESOURCE);
    idp.keys = [];
    idp.broken = true;
    now += 59_000;
    expect(await authenticator.authenticate(bearer(token), RESOURCE)).toBe(first);
    now += 2_000;
    expect((await refusal(authenticator.authenticate(bearer(token), RESOURCE))).status).toBe(401);
  });

  it('is checked for the resource each time', async () => {
    const { authenticator } = setUp();
    const token = await mint();
    await authenticator.authenticate(bearer(token), RESOURCE);
    const other = authenticator.authenticate(bearer(token), 'https://gw.example.com/mcp');
    expect((await refusal(other)).headers['WWW-Authenticate']).toContain('error="invalid_token"');
  });
});

describe('the keys of the issuer', () => {
  it('are found by OpenID discovery, or by RFC 8414', async () => {
    await setUp().authenticator.authenticate(bearer(await mint()), RESOURCE);
    idp.onlyOAuthMetadata = true;
    await setUp().authenticator.authenticate(bearer(await mint()), RESOURCE);
    expect(idp.keyHits).toBe(2);
  });

  it('are not taken from metadata of another issuer: our fault, not the token’s', async () => {
    idp.issuer = `${ISSUER}/`;
    const error = await refusal(setUp().authenticator.authenticate(bearer(await mint()), RESOURCE));
    expect(error).toMatchObject({ status: 503, code: 'unavailable' });
  });

  it('may change: the first token of a new key works, twice in a row', async () => {
    const { authenticator } = setUp();
    await authenticator.authenticate(bearer(await mint()), RESOURCE);
    for (const alg of ['RS256', 'EdDSA']) {
      const key = await createKey(alg);
      idp.keys = [key];
      const principal = await authenticator.authenticate(bearer(await mint({ key })), RESOURCE);
      expect(principal.subject).toBe('alice');
    }
    expect(idp.keyHits).toBe(3);
  });

  it('cost one request per cooldown under a flood of made-up ids', async () => {
    const { authenticator } = setUp();
    await authenticator.authenticate(bearer(await mint()), RESOURCE);
    const before = idp.keyHits;
    const flood = Array.from({ length: 100 }, async (_, i) =>
      refusal(
        authenticator.authenticate(bearer(await mint({ key: { ...rsa, kid: `x${i}` } })), RESOURCE),
      ),
    );
    const statuses = (await Promise.all(flood)).map((error) => error.status);
    expect(new Set(statuses)).toEqual(new Set([401]));
    expect(idp.keyHits - before).toBe(1);
    now += 5_001;
    await refusal(
      authenticator.authenticate(bearer(await mint({ key: { ...rsa, kid: 'y' } })), RESOURCE),
    );
    expect(idp.keyHits - before).toBe(2);
    const principal = await authenticator.authenticate(
      bearer(await mint({ claims: { jti: 'n' } })),
      RESOURCE,
    );
    expect(principal.subject).toBe('alice');
  });

  it('are fetched once for many first requests', async () => {
    const { authenticator } = setUp();
    const tokens = await Promise.all(
      Array.from({ length: 10 }, (_, i) => mint({ claims: { jti: String(i) } })),
    );
    await Promise.all(tokens.map((token) => authenticator.authenticate(bearer(token), RESOURCE)));
    expect(idp.hits).toHaveLength(2); // metadata and keys
  });

  it('are not asked for by a token of another issuer', async () => {
    const { authenticator } = setUp();
    await authenticator.authenticate(bearer(await mint()), RESOURCE);
    const token = await mint({
      key: { ...rsa, kid: 'foreign' },
      claims: { iss: 'https://x.example' },
    });
    await refusal(authenticator.authenticate(bearer(token), RESOURCE));
    expect(idp.keyHits).toBe(1);
  });

  it('are fetched again after a while, so that a withdrawn one stops working', async () => {
    const { authenticator } = setUp();
    await authenticator.authenticate(bearer(await mint()), RESOURCE);
    idp.keys = [ec];
    now += 600_001;
    const inBetween = await mint({ claims: { jti: 'a' } });
    await authenticator.authenticate(bearer(inBetween), RESOURCE); // nobody waits for the fetch
    await new Promise(setImmediate);
    const late = await mint({ claims: { jti: 'b' } });
    expect((await refusal(authenticator.authenticate(bearer(late), RESOURCE))).status).toBe(401);
  });

  it('go on working while the key set is broken; an unknown one is no 401 then', async () => {
    const { authenticator } = setUp();
    await authenticator.authenticate(bearer(await mint()), RESOURCE);
    idp.broken = true;
    for (let minute = 0; minute < 15; minute++) {
      now += 60_000;
      const token = await mint({ claims: { jti: String(minute) } });
      expect((await authenticator.authenticate(bearer(token), RESOURCE)).subject).toBe('alice');
    }
    const stranger = await mint({ key: { ...rsa, kid: 'unknown' } });
    for (let i = 0; i < 2; i++) {
      expect((await refusal(authenticator.authenticate(bearer(stranger), RESOURCE))).status).toBe(
        503,
      );
    }
  });

  it('that never were there are 503 with Retry-After, and it heals', async () => {
    const { authenticator } = setUp();
    idp.broken = true;
    for (let i = 0; i < 3; i++) {
      const error = await refusal(authenticator.authenticate(bearer(await mint()), RESOURCE));
      expect(error.status).toBe(503);
      expect(error.headers['Retry-After']).toBe('2');
    }
    expect(idp.hits.length).toBeLessThanOrEqual(2); // no attempt per request
    idp.broken = false;
    now += 1_001;
    const principal = await authenticator.authenticate(bearer(await mint()), RESOURCE);
    expect(principal.subject).toBe('alice');
  });

  it('may share an id', async () => {
    const twin = await createKey('RS256', 'rsa-1');
    idp.keys = [twin, rsa];
    const { authenticator } = setUp();
    for (const key of [rsa, twin]) {
      const principal = await authenticator.authenticate(bearer(await mint({ key })), RESOURCE);
      expect(principal.subject).toBe('alice');
    }
    const stranger = await createKey('RS256', 'rsa-1');
    const error = await refusal(
      authenticator.authenticate(bearer(await mint({ key: stranger })), RESOURCE),
    );
    expect(error.status).toBe(401);
  });
});

// Case O7.
describe('scopes', () => {
  it('are asked for all at once, and no others', async () => {
    const { authenticator, audited } = setUp();
    const principal = await authenticator.authenticate(
      bearer(await mint({ claims: { scope: 'files:read other' } })),
      RESOURCE,
    );
    const needed = ['files:read', 'files:write'];
    expect(authenticator.hasScopes(principal, needed)).toBe(false);
    let thrown: unknown;
    try {
      authenticator.requireScopes(principal, needed, RESOURCE, 'r-1');
    } catch (error) {
      thrown = error;
    }
    expect(thrown).toMatchObject({ status: 403, code: 'insufficient_scope' });
    expect((thrown as GatewayError).headers['WWW-Authenticate']).toBe(
      `Bearer error="insufficient_scope", error_description="The token lacks scopes that this operation needs", ${METADATA}, scope="mcp:tools files:read files:write"`,
    );
    expect(audited).toMatchObject([
      { type: 'scope.challenged', scopes: ['mcp:tools', ...needed], requestId: 'r-1' },
    ]);
    const wider = await authenticator.authenticate(
      bearer(await mint({ claims: { scope: 'mcp:tools files' } })),
      RESOURCE,
    );
    expect(() => authenticator.requireScopes(wider, needed, RESOURCE)).not.toThrow();
  });

  it('come after expiry', async () => {
    const { authenticator } = setUp();
    const token = await mint({ claims: { scope: '', exp: seconds() - 600 } });
    const error = await refusal(authenticator.authenticate(bearer(token), RESOURCE));
    expect(error.status).toBe(401);
    expect(error.headers['WWW-Authenticate']).toContain('error="invalid_token"');
  });

  it.each([
    ['files:read', 'files:read', true],
    ['files', 'files:read', true],
    ['files:*', 'files:read', true],
    ['org:files', 'org:files:read', true],
    ['org', 'org:files:read', true],
    ['files:read', 'files', false],
    ['files:write', 'files:read', false],
    ['file', 'files:read', false],
    ['files:re', 'files:read', false],
    ['chat.write', 'chat.write.public', false],
    ['*', 'files:read', false],
    ['', ':x', false],
  ])('%s granted, %s needed: %s', (granted, needed, enough) => {
    expect(grants(new Set([granted]), needed)).toBe(enough);
  });
});

describe('mode none', () => {
  it('is one developer who may do all that is configured', async () => {
    const { authenticator } = setUp(
      { mode: 'none', issuer: undefined },
      { publicUrl: 'http://localhost:8080' },
    );
    const principal = await authenticator.authenticate(request([]), 'http://localhost:8080/mcp');
    expect(principal).toMatchObject({
      userId: userIdOf('http://localhost:8080', 'developer'),
      clientId: 'development',
      groups: ['admins'],
      expiresAtMs: Infinity,
    });
    expect(authenticator.hasScopes(principal, ['files:read', 'files:write'])).toBe(true);
    expect(idp.hits).toEqual([]);
  });
});
