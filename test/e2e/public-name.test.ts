import { afterAll, expect, test } from 'vitest';
import { startIdentityProvider } from '../support/identity-provider.ts';
import { startLegacyUpstream } from '../support/legacy-upstream.ts';
import { McpClient } from '../support/mcp-client.ts';
import { send, type Headers } from '../support/net.ts';
import { startStack } from '../support/stack.ts';
import { makeCertificate } from '../support/tls.ts';

// As in production: publicUrl is https and not loopback, TLS ends before the pods, the identity provider has a
// certificate of a private authority (case H2; design, sections 5 and 6).

const PUBLIC = 'https://gw.example.com';
const tls = makeCertificate();
const secret = 'login-secret-of-this-test';
const idp = await startIdentityProvider({ clients: { viaduct: { secret } }, tls });
const plain = await startLegacyUpstream({ name: 'plain' });
const stack = await startStack({
  publicUrl: PUBLIC,
  pods: 1,
  workers: 0,
  env: { NODE_EXTRA_CA_CERTS: tls.certFile },
  config: {
    auth: {
      mode: 'external',
      issuer: idp.url,
      login: { clientId: 'viaduct', clientSecret: secret },
    },
    upstreams: [{ name: 'plain', url: plain.endpoint, allowPrivateNetwork: true }],
  },
});
afterAll(async () => {
  await stack.stop();
  await Promise.all([idp.stop(), plain.stop()]);
});

const url = `${PUBLIC}/mcp/plain`;
const client = new McpClient({ url, ports: stack.ports, token: idp.mint({ aud: url }) });
const initialize = (headers: Headers = {}) =>
  client.post(client.initializeMessage(), { pod: 0, headers });

test('[H2] the public name is served, other names, ports and origins are not', async () => {
  expect((await initialize()).status).toBe(200);
  expect((await initialize({ Origin: PUBLIC })).status).toBe(200);
  const before = plain.received.length;
  for (const Origin of [
    `${PUBLIC}:8443`,
    'http://gw.example.com',
    `${PUBLIC}.evil.net`,
    'https://evil-gw.example.com',
    'https://gw.example.com@evil.net',
    'null',
  ]) {
    expect((await initialize({ Origin })).status, Origin).toBe(403);
  }
  for (const Host of ['localhost', '127.0.0.1', 'gw.example.com.evil.net', 'gw.example.com:8443']) {
    expect((await initialize({ Host })).status, Host).toBe(403);
  }
  expect(plain.received.length).toBe(before);
  expect((await stack.pods[0]!.admin('/healthz/live')).status, 'the admin listener').toBe(200);
});

test('[H2] forwarding headers choose no address: metadata and challenge say publicUrl', async () => {
  const headers = { 'X-Forwarded-Host': 'evil.example', Forwarded: 'host=evil.example;proto=http' };
  const nobody = new McpClient({ url, ports: stack.ports, token: undefined });
  const answer = await nobody.post(nobody.initializeMessage(), { pod: 0, headers });
  expect(answer.status).toBe(401);
  expect(answer.headers['www-authenticate']).toContain(
    `${PUBLIC}/.well-known/oauth-protected-resource/mcp/plain`,
  );
});

test('[pages.cookies] cookies are __Host-, Secure, HttpOnly and Lax', async () => {
  const answer = await send(`${PUBLIC}/login`, { port: stack.ports[0] });
  expect(answer.status).toBeGreaterThanOrEqual(302);
  expect(answer.status).toBeLessThanOrEqual(303);
  expect(answer.headers.location).toMatch(new RegExp(`^${idp.url}/authorize`));
  const redirect = new URL(answer.headers.location!).searchParams.get('redirect_uri');
  expect(redirect).toBe(`${PUBLIC}/login/callback`);
  const cookies = answer.headers['set-cookie'] ?? [];
  expect(cookies.length).toBeGreaterThan(0);
  for (const cookie of cookies) {
    expect(cookie).toMatch(/^__Host-[\w-]+=/);
    for (const flag of [/; *Secure/i, /; *HttpOnly/i, /; *SameSite=Lax/i, /; *Path=\/(;|$)/i]) {
      expect(cookie).toMatch(flag);
    }
    expect(cookie).not.toMatch(/; *Domain=/i);
  }
});
