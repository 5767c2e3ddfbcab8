import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { decodeJwt, exportJWK, generateKeyPair, SignJWT } from 'jose';
import { afterAll, describe, expect, test } from 'vitest';
import { CookieBrowser } from '../support/cookie-browser.ts';
import { startIdentityProvider } from '../support/identity-provider.ts';
import { McpClient } from '../support/mcp-client.ts';
import { ModernClient } from '../support/modern-client.ts';
import { listen, send, sendJson } from '../support/net.ts';
import { startOauthWorld, type Tokens } from '../support/oauth-world.ts';
import { Child } from '../support/process.ts';
import { until } from '../support/until.ts';

// Who is behind a token: people of the company's provider, people of a development login, machines; and how one of
// them is put out.

const pair = await generateKeyPair('ES256', { extractable: true });
const jwks = await listen(async ({ response }) => {
  sendJson(response, 200, { keys: [{ ...(await exportJWK(pair.publicKey)), alg: 'ES256' }] });
});
const secret = randomBytes(18).toString('hex');
const world = await startOauthWorld({
  builtin: {
    login: { type: 'development', groups: { admin: ['admins'] } },
    clients: [
      { clientId: 'keyed', jwksUri: `${jwks.url}/keys`, grantTypes: ['client_credentials'] },
      {
        clientId: 'nightly',
        clientSecret: secret,
        grantTypes: ['client_credentials'],
        scopes: ['mcp:tools'],
      },
    ],
  },
  upstream: { tools: { 'echo*': { scopes: ['plain:echo'], groups: ['admins'] } } },
});
afterAll(async () => {
  await world.stop();
  await jwks.stop();
});

const mcp = (token: string, upstream = 'plain') =>
  new McpClient({ url: world.endpoint(upstream), ports: world.stack.ports, token });

describe('machines', () => {
  test('[oauth.machine] client_credentials gives a principal that is the client', async () => {
    const basic = Buffer.from(`nightly:${secret}`).toString('base64');
    const answer = await world.token(
      { grant_type: 'client_credentials', resource: world.endpoint('plain') },
      0,
      { Authorization: `Basic ${basic}` },
    );
    expect(answer.status, answer.text).toBe(200);
    const token = (answer.json as unknown as Tokens).access_token;
    expect(decodeJwt(token)).toMatchObject({
      sub: 'nightly',
      client_id: 'nightly',
      aud: world.endpoint('plain'),
      scope: 'mcp:tools',
    });
    expect((answer.json as unknown as Tokens).refresh_token).toBeUndefined();
    expect((await world.call(token, 'plain', 1)).status).toBe(200);
    const wrong = await world.token({ grant_type: 'client_credentials' }, 0, {
      Authorization: `Basic ${Buffer.from('nightly:wrong').toString('base64')}`,
    });
    expect([wrong.status, wrong.json?.error]).toEqual([401, 'invalid_client']);
    // no person can be that principal
    const browser = new CookieBrowser();
    await browser.open(`${world.publicUrl}/connections`);
    const refused = await browser.submit({ fields: { user: 'nightly' } });
    expect(refused.status).toBe(400);
  });
});

test('[oauth.key-client] private_key_jwt: an assertion counts once, on all pods', async () => {
  const assertion = await new SignJWT({})
    .setProtectedHeader({ alg: 'ES256' })
    .setIssuer('keyed')
    .setSubject('keyed')
    .setAudience(world.issuer)
    .setJti(randomBytes(12).toString('hex'))
    .setIssuedAt()
    .setExpirationTime('1m')
    .sign(pair.privateKey);
  const form = {
    grant_type: 'client_credentials',
    client_id: 'keyed',
    client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
    client_assertion: assertion,
  };
  const first = await world.token(form, 0);
  expect(first.status, first.text).toBe(200);
  expect((await world.call((first.json as unknown as Tokens).access_token)).status).toBe(200);
  const replay = await world.token(form, 1);
  expect([replay.status, replay.json?.error]).toEqual([401, 'invalid_client']);
});

test('[oauth.key-client] one assertion at both pods at the same moment is accepted once', async () => {
  for (let round = 0; round < 5; round++) {
    const assertion = await new SignJWT({})
      .setProtectedHeader({ alg: 'ES256' })
      .setIssuer('keyed')
      .setSubject('keyed')
      .setAudience(world.issuer)
      .setJti(randomBytes(12).toString('hex'))
      .setIssuedAt()
      .setExpirationTime('1m')
      .sign(pair.privateKey);
    const form = {
      grant_type: 'client_credentials',
      client_id: 'keyed',
      client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
      client_assertion: assertion,
    };
    const answers = await Promise.all([0, 1, 0, 1].map((pod) => world.token(form, pod)));
    expect(answers.map(({ status }) => status).sort()).toEqual([200, 401, 401, 401]);
  }
});

describe('scopes and groups', () => {
  test('[oauth.scopes] one challenge with all that is missing, and one further grant that gives it', async () => {
    const client = await world.registered();
    const browser = await world.browser('admin');
    const resource = world.endpoint('plain');
    const few = await world.tokens(browser, { clientId: client.client_id, resource });
    const challenge = await world.call(few.access_token, 'other');
    expect(challenge.status, 'a token for one resource is none for another').toBe(401);
    const first = mcp(few.access_token);
    await first.initialize();
    const refused = await first.beginTool('echo', { text: 'hi' }).http;
    expect(refused.status).toBe(403);
    const header = String(refused.headers['www-authenticate']);
    expect(header).toContain('error="insufficient_scope"');
    const scope = /scope="([^"]*)"/.exec(header)![1]!;
    expect(scope.split(' ').sort()).toEqual(['mcp:tools', 'plain:echo']);
    const more = await world.tokens(browser, { clientId: client.client_id, resource, scope });
    const second = mcp(more.access_token);
    await second.initialize();
    expect((await second.callTool('echo', { text: 'hi' })).result).toBeDefined();
  });

  test('[oauth.groups] a tool of a group is there for its people only', async () => {
    const client = await world.registered();
    const options = {
      clientId: client.client_id,
      resource: world.endpoint('plain'),
      scope: 'mcp:tools plain:echo',
    };
    const names = async (user: string): Promise<string[]> => {
      const tokens = await world.tokens(await world.browser(user), options);
      const one = mcp(tokens.access_token);
      await one.initialize();
      const { result } = await one.listTools();
      return (result?.tools ?? []).map(({ name }) => name);
    };
    expect(await names('admin')).toContain('echo');
    expect(await names('nobody')).not.toContain('echo');
  });
});

describe('revocation of a user', () => {
  test('[oauth.revoke-user] tokens, streams, refresh and browser end on both pods within a second', async () => {
    const client = await world.registered();
    const browser = await world.browser('leaver');
    const tokens = await world.tokens(browser, {
      clientId: client.client_id,
      resource: world.endpoint('plain'),
    });
    const stays = await world.tokens(await world.browser('stayer'), {
      clientId: client.client_id,
      resource: world.endpoint('plain'),
    });
    const one = mcp(tokens.access_token);
    await one.initialize();
    const stream = await one.listen({ pod: 1 });
    const admin = world.stack.pods[0]!;
    const answer = await send(`http://127.0.0.1:${admin.adminPort}/users/revoke`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ subject: 'leaver' }),
    });
    expect([answer.status, answer.json]).toEqual([
      200,
      { userId: world.userId('leaver'), sessions: 1, connections: false },
    ]);
    await until('the stream has ended', () => stream.ended, { timeoutMs: 3_000, everyMs: 20 });
    for (const pod of [0, 1]) {
      await until(
        'the token is refused',
        async () => (await world.call(tokens.access_token, 'plain', pod)).status === 401,
        { timeoutMs: 3_000, everyMs: 20 },
      );
    }
    const refresh = await world.token({
      grant_type: 'refresh_token',
      client_id: client.client_id,
      refresh_token: tokens.refresh_token,
    });
    expect([refresh.status, refresh.json?.error]).toEqual([400, 'invalid_grant']);
    const page = await browser.open(`${world.publicUrl}/connections`);
    expect(page.url).toContain('/login');
    expect((await world.call(stays.access_token, 'plain')).status).toBe(200);
    const open = await send(`${world.publicUrl}/users/revoke`, { method: 'POST', body: '{}' });
    expect(open.status, 'not on the public listener').toBe(404);
  });
});

test('[oauth.revoke-running] a call of the 2026-07-28 revision that runs ends with the user, here and at the upstream', async () => {
  const client = await world.registered();
  const { access_token: token } = await world.tokens(await world.browser('runner'), {
    clientId: client.client_id,
    resource: world.endpoint('plain'),
  });
  const modern = new ModernClient({
    url: world.endpoint('plain'),
    ports: world.stack.ports,
    token,
  });
  const { ran, cancelled } = world.plain;
  const before = { ran: ran['hold'] ?? 0, cancelled: cancelled.length };
  const call = modern.tool('hold', { gate: 'never' }, { pod: 1 });
  await until('it runs', () => (ran['hold'] ?? 0) > before.ran);
  const answer = await send(`http://127.0.0.1:${world.stack.pods[0]!.adminPort}/users/revoke`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ subject: 'runner' }),
  });
  expect(answer.status).toBe(200);
  expect((await call).error).toBeDefined();
  await until('the upstream is told', () => cancelled.length > before.cancelled);
});

test('[oauth.revoke-cli] npm run revoke-user ends the user’s tokens on both pods', async () => {
  const client = await world.registered();
  const tokens = await world.tokens(await world.browser('quitter'), {
    clientId: client.client_id,
    resource: world.endpoint('plain'),
  });
  expect((await world.call(tokens.access_token, 'plain')).status).toBe(200);
  const script = join(import.meta.dirname, '../../scripts/revoke-user.js');
  const admin = `http://127.0.0.1:${world.stack.pods[1]!.adminPort}`;
  const command = new Child('revoke-user', process.execPath, [script, 'quitter', '--admin', admin]);
  expect(await command.ended, command.output).toBe(0);
  expect(JSON.parse(command.stdout)).toEqual({
    userId: world.userId('quitter'),
    sessions: 1,
    connections: false,
  });
  for (const pod of [0, 1]) {
    await until(
      `pod ${pod} refuses the token`,
      async () => (await world.call(tokens.access_token, 'plain', pod)).status === 401,
      { timeoutMs: 10_000, everyMs: 20 },
    );
  }
  const nobody = new Child('revoke-user', process.execPath, [script]);
  expect(await nobody.ended).toBe(2);
});

describe('the company’s provider', () => {
  test('[oauth.oidc-login] subject and groups come from it; pages and tokens know one user', async () => {
    const idpSecret = randomBytes(18).toString('hex');
    const idp = await startIdentityProvider({ clients: { viaduct: { secret: idpSecret } } });
    const company = await startOauthWorld({
      builtin: {
        login: { type: 'oidc', issuer: idp.url, clientId: 'viaduct', clientSecret: idpSecret },
      },
      upstream: {
        tools: { 'echo*': { groups: ['alice-team'] }, slow: { groups: ['another-team'] } },
      },
    });
    try {
      const client = await company.registered();
      const browser = new CookieBrowser().setCookie('127.0.0.1', 'idp_user', 'alice');
      browser.setCookie('localhost', 'idp_user', 'alice');
      const tokens = await company.tokens(browser, { clientId: client.client_id });
      expect(decodeJwt(tokens.access_token)).toMatchObject({ iss: company.issuer, sub: 'alice' });
      const logins = company.stack.audit('login.completed');
      expect(logins[0]?.audit?.['userId']).toBe(company.userId('alice'));
      const approved = company.stack.audit('client.approved');
      expect(approved[0]?.audit?.['userId']).toBe(company.userId('alice'));
      expect((await company.call(tokens.access_token)).status).toBe(200);
      // the groups of the company's login decide about tools
      expect(decodeJwt(tokens.access_token)['groups']).toEqual(['alice-team']);
      const one = new McpClient({
        url: company.endpoint(),
        ports: company.stack.ports,
        token: tokens.access_token,
      });
      await one.initialize();
      const tools = (await one.listTools()).result?.tools?.map(({ name }) => name);
      expect(tools).toContain('plain__echo');
      expect(tools).not.toContain('plain__slow');
    } finally {
      await company.stop();
      await idp.stop();
    }
  });
});
