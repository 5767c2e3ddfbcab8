import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { createRemoteJWKSet, jwtVerify } from 'jose';
import * as oidc from 'openid-client';
import { afterAll, expect, test } from 'vitest';
import { startRoundRobin } from '../support/balancer.ts';
import { CookieBrowser } from '../support/cookie-browser.ts';
import { startIdentityProvider } from '../support/identity-provider.ts';
import { startLegacyUpstream } from '../support/legacy-upstream.ts';
import { McpClient, textOf } from '../support/mcp-client.ts';
import { freePort } from '../support/net.ts';
import { startThirdParty } from '../support/third-party.ts';
import { AWKWARD_RESULT } from '../support/upstream-tools.ts';
import { until } from '../support/until.ts';

// The fakes against other people's clients, without the product: a fake that lies makes every other test lie.

const clients = { app: { secret: 'a+b/c:d' } };
const idp = await startIdentityProvider({ clients });
const acme = await startThirdParty({ clients });
const upstream = await startLegacyUpstream();
afterAll(() => Promise.all([idp.stop(), acme.stop(), upstream.stop()]));
const CALLBACK = 'http://127.0.0.1:9/callback';

async function grant(issuer: string, browser: CookieBrowser, scope: string) {
  const config = await oidc.discovery(new URL(issuer), 'app', 'a+b/c:d', undefined, {
    // eslint-disable-next-line @typescript-eslint/no-deprecated -- the fakes speak http on loopback
    execute: [oidc.allowInsecureRequests],
    algorithm: scope === 'openid' ? 'oidc' : 'oauth2',
  });
  const verifier = oidc.randomPKCECodeVerifier();
  const state = oidc.randomState();
  const nonce = oidc.randomNonce();
  const url = oidc.buildAuthorizationUrl(config, {
    redirect_uri: CALLBACK,
    scope,
    state,
    ...(scope === 'openid' && { nonce }),
    code_challenge: await oidc.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
  });
  const page = await browser.open(url.href, { stopAt: `^${CALLBACK}` });
  const tokens = await oidc.authorizationCodeGrant(config, new URL(page.stoppedAt!), {
    pkceCodeVerifier: verifier,
    expectedState: state,
    ...(scope === 'openid' && { expectedNonce: nonce }),
  });
  return { config, tokens };
}

test('[fakes] openid-client logs in at the identity provider; its form sets the cookie', async () => {
  const browser = new CookieBrowser();
  await browser.open(`${idp.url}/authorize?client_id=app&redirect_uri=${CALLBACK}`);
  await browser.submit({ fields: { user: 'ann' }, stopAt: `^${CALLBACK}` });
  const { config, tokens } = await grant(idp.url, browser, 'openid');
  expect(tokens.claims()?.sub).toBe('ann');
  expect((await oidc.fetchUserInfo(config, tokens.access_token, 'ann')).sub).toBe('ann');
});

test('[fakes] jose verifies minted tokens of every algorithm, and none of an old key', async () => {
  for (const alg of ['RS256', 'ES256', 'EdDSA'] as const) {
    const keys = createRemoteJWKSet(new URL(`${idp.url}/jwks`));
    const token = idp.mint({ sub: 'ann', aud: 'x' }, { alg });
    const { payload } = await jwtVerify(token, keys, { issuer: idp.url, audience: 'x' });
    expect(payload.sub).toBe('ann');
    idp.rotate(alg);
    const fresh = createRemoteJWKSet(new URL(`${idp.url}/jwks`));
    await expect(jwtVerify(token, fresh)).rejects.toMatchObject({
      code: 'ERR_JWKS_NO_MATCHING_KEY',
    });
  }
});

test('[fakes] the third party rotates refresh tokens and revokes on reuse', async () => {
  const { config, tokens } = await grant(acme.url, new CookieBrowser(), 'drive.read');
  expect(acme.isValid(tokens.access_token)).toBe(true);
  const next = await oidc.refreshTokenGrant(config, tokens.refresh_token!);
  expect(next.refresh_token).not.toBe(tokens.refresh_token);
  await expect(oidc.refreshTokenGrant(config, tokens.refresh_token!)).rejects.toMatchObject({
    error: 'invalid_grant',
  });
  expect(acme.isValid(next.access_token)).toBe(false);
  expect([acme.exchanges, acme.refreshes, acme.reuses]).toEqual([1, 1, 1]);
});

test('[fakes] the official client speaks with the upstream through the balancer', async () => {
  const other = await startLegacyUpstream({ name: 'unused' });
  const port = await freePort();
  const balancer = await startRoundRobin(port, [upstream.port, other.port]);
  balancer.only(0);
  const client = new Client({ name: 'x', version: '1' }, { capabilities: { elicitation: {} } });
  client.setRequestHandler(ElicitRequestSchema, () => ({
    action: 'accept',
    content: { name: 'Ann' },
  }));
  const transport = new StreamableHTTPClientTransport(new URL(`http://localhost:${port}/mcp`));
  await client.connect(transport);
  expect((await client.listTools()).tools.length).toBe(Object.keys(upstream.tools).length);
  const progress: number[] = [];
  upstream.gate('fakes').open();
  await client.callTool({ name: 'steps', arguments: { tag: 'fakes' } }, undefined, {
    onprogress: (step) => progress.push(step.progress),
  });
  expect(progress).toEqual([1, 2, 3, 4]);
  expect(JSON.stringify(await client.callTool({ name: 'ask_form', arguments: {} }))).toContain(
    'Ann',
  );
  await until('the client listens', () => upstream.listening() > 0);
  await client.close();
  await balancer.stop();
  await other.stop();
});

test('[fakes] the bare client: bytes, cancellation, resumption of nothing', async () => {
  const client = await new McpClient({ url: upstream.endpoint }).initialize();
  expect(await client.beginTool('awkward').raw()).toContain(AWKWARD_RESULT);
  const held = client.beginTool('hold', { gate: 'never' }, { id: 5 });
  await until('it runs', () => upstream.ran['hold']);
  await client.notify('notifications/cancelled', { requestId: 5 });
  await (await held.stream()).ended();
  expect(upstream.cancelled).toEqual(['hold']);
  expect(textOf(await client.callTool('echo', { é: '😀' }))).toBe('{"é":"😀"}');
  expect((await client.end()).status).toBe(204);
  expect((await client.listTools()).error).toBeDefined();
});
