import { decodeJwt, decodeProtectedHeader } from 'jose';
import { afterAll, describe, expect, test } from 'vitest';
import { send } from '../support/net.ts';
import { startStack } from '../support/stack.ts';
import { REDIRECT, startOauthWorld } from '../support/oauth-world.ts';

// The built-in authorization server over two pods, each request on the next one.

const world = await startOauthWorld();
afterAll(() => world.stop());
const { issuer, publicUrl } = world;

describe('metadata (case O1)', () => {
  test('[oauth.metadata] every place says the same, on both pods', async () => {
    const places = [
      `${publicUrl}/.well-known/oauth-authorization-server/oauth`,
      `${publicUrl}/.well-known/openid-configuration/oauth`,
      `${issuer}/.well-known/openid-configuration`,
      `${issuer}/.well-known/oauth-authorization-server`,
    ];
    const answers = await Promise.all(
      places.flatMap((place) => [0, 1].map((pod) => send(place, { port: world.at(pod) }))),
    );
    expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 200));
    expect(new Set(answers.map(({ text }) => text)).size).toBe(1);
    expect(answers[0]?.json).toMatchObject({
      issuer,
      authorization_endpoint: `${issuer}/authorize`,
      token_endpoint: `${issuer}/token`,
      registration_endpoint: `${issuer}/register`,
      jwks_uri: `${issuer}/jwks`,
      code_challenge_methods_supported: ['S256'],
      scopes_supported: ['mcp:tools'],
      authorization_response_iss_parameter_supported: true,
      client_id_metadata_document_supported: true,
    });
    const resource = await send(`${publicUrl}/.well-known/oauth-protected-resource/mcp/plain`);
    expect(resource.json).toMatchObject({
      resource: world.endpoint('plain'),
      authorization_servers: [issuer],
    });
    const jwks = await Promise.all(
      [0, 1].map((pod) => send(`${issuer}/jwks`, { port: world.at(pod) })),
    );
    expect(jwks[0]?.text).toBe(jwks[1]?.text);
    expect(jwks[0]?.text).not.toContain('"d"');
  });
});

describe('a token', () => {
  test('[oauth.code] is for one resource, of this user and client', async () => {
    const client = await world.registered();
    const browser = await world.browser('alice');
    const { code, verifier, answer } = await world.code(browser, {
      clientId: client.client_id,
      resource: `${world.endpoint('plain')}/`,
    });
    expect(answer.get('iss')).toBe(issuer);
    const form = {
      grant_type: 'authorization_code',
      client_id: client.client_id,
      redirect_uri: REDIRECT,
      code,
      code_verifier: verifier,
      resource: world.endpoint('plain').toUpperCase().replace('/MCP/PLAIN', '/mcp/plain'),
    };
    const both = await Promise.all([world.token(form, 0), world.token(form, 1)]);
    expect(both.map(({ status }) => status).sort()).toEqual([200, 400]);
    const tokens = both.find(({ status }) => status === 200)!.json as Record<string, unknown>;
    expect(both.find(({ status }) => status === 400)!.json).toMatchObject({
      error: 'invalid_grant',
    });
    const access = String(tokens['access_token']);
    expect(decodeProtectedHeader(access)).toMatchObject({ typ: 'at+jwt', alg: 'ES256' });
    expect(decodeJwt(access)).toMatchObject({
      iss: issuer,
      sub: 'alice',
      aud: world.endpoint('plain'),
      client_id: client.client_id,
      scope: 'mcp:tools',
      groups: [],
    });
    expect((await world.call(access, 'plain')).status).toBe(200);
    expect((await world.call(access)).status).toBe(401);
  });
});

describe('behind a public name', () => {
  test('[oauth.public] addresses and cookies are those of publicUrl, whatever a proxy says', async () => {
    const publicUrl = 'https://mcp.example.com';
    const stack = await startStack({
      publicUrl,
      workers: 0,
      pods: 1,
      config: {
        auth: {
          mode: 'builtin',
          builtin: {
            login: { type: 'oidc', issuer: 'https://idp.example.com', clientId: 'viaduct' },
            clients: [{ clientId: 'app', redirectUris: ['https://app.example.com/cb'] }],
          },
        },
      },
    });
    try {
      const port = stack.ports[0];
      const lies = { 'X-Forwarded-Host': 'evil.example', 'X-Forwarded-Proto': 'http' };
      const metadata = await send(`${publicUrl}/oauth/.well-known/openid-configuration`, {
        port,
        headers: lies,
      });
      expect(metadata.json).toMatchObject({
        issuer: `${publicUrl}/oauth`,
        token_endpoint: `${publicUrl}/oauth/token`,
        jwks_uri: `${publicUrl}/oauth/jwks`,
      });
      const url = new URL(`${publicUrl}/oauth/authorize`);
      const params = {
        response_type: 'code',
        client_id: 'app',
        redirect_uri: 'https://app.example.com/cb',
        code_challenge: 'E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM',
        code_challenge_method: 'S256',
      };
      for (const [name, value] of Object.entries(params)) url.searchParams.set(name, value);
      const answer = await send(url.href, { port, headers: lies });
      expect(answer.status).toBe(303);
      expect(answer.headers.location).toMatch(/^\/oauth\/interaction\/[\w-]+$/);
      const cookies = answer.headers['set-cookie'] ?? [];
      expect(cookies.length).toBeGreaterThan(0);
      for (const cookie of cookies) {
        expect(cookie).toMatch(/^__Secure-viaduct-oauth-/);
        expect(cookie).toMatch(/; secure/i);
        expect(cookie).toMatch(/; httponly/i);
        expect(cookie).toMatch(/; samesite=lax/i);
      }
    } finally {
      await stack.stop();
    }
  });
});
