import { afterAll, describe, expect, test } from 'vitest';
import { listen, send, sendJson } from '../support/net.ts';
import { REDIRECT, startOauthWorld } from '../support/oauth-world.ts';

// Consent is per user and client, and comes before anything is issued (MCP security best practices, Confused Deputy).

const world = await startOauthWorld();
const documents = new Map<string, unknown>();
const cacheControl = new Map<string, string>();
const fetched: string[] = [];
const site = await listen(({ url, response }) => {
  fetched.push(url.pathname);
  const document = documents.get(url.pathname);
  if (document === undefined) sendJson(response, 404, {});
  else {
    const cache = cacheControl.get(url.pathname);
    response.writeHead(200, {
      'content-type': 'application/json',
      ...(cache !== undefined && { 'cache-control': cache }),
    });
    response.end(JSON.stringify(document));
  }
});
afterAll(async () => {
  await world.stop();
  await site.stop();
});
const { issuer, publicUrl } = world;

const publish = (path: string, metadata: Record<string, unknown> = {}): string => {
  const clientId = `${site.url}${path}`;
  documents.set(path, {
    client_id: clientId,
    client_name: 'Published client',
    redirect_uris: ['https://app.example/callback'],
    token_endpoint_auth_method: 'none',
    ...metadata,
  });
  return clientId;
};

describe('the consent page', () => {
  test('[oauth.consent] names client, scopes and redirect, warns, and is asked once', async () => {
    const client = await world.registered({ client_name: '<b>Nice</b> assistant' });
    const browser = await world.browser('alice');
    const { url } = world.authorizeUrl({
      clientId: client.client_id,
      resource: world.endpoint('plain'),
    });
    const page = await browser.open(url);
    expect(page.status).toBe(200);
    expect(page.visible).toContain('<b>Nice</b> assistant');
    expect(page.visible).toContain(client.client_id);
    expect(page.visible).toContain(REDIRECT);
    expect(page.visible).toContain(world.endpoint('plain'));
    expect(page.visible).toContain('mcp:tools');
    expect(page.visible).toMatch(/not verified/);
    expect(page.visible).toMatch(/program on this computer/);
    expect(page.headers['content-security-policy']).toContain("frame-ancestors 'none'");
    const stopped = await browser.submit({ decision: 'approve', stopAt: REDIRECT });
    expect(stopped.stoppedAt).toContain('code=');
    const again = await browser.open(
      world.authorizeUrl({ clientId: client.client_id, resource: world.endpoint('plain') }).url,
      { stopAt: REDIRECT },
    );
    expect(again.stoppedAt).toContain('code=');
    const more = await browser.open(world.authorizeUrl({ clientId: client.client_id }).url, {
      stopAt: REDIRECT,
    });
    expect(more.stoppedAt, 'another resource is another question').toBeUndefined();
  });

  test('[oauth.deputy] a stranger’s client gets the page and nothing else', async () => {
    const known = await world.registered();
    const browser = await world.browser('victim');
    await world.tokens(browser, { clientId: known.client_id });
    const before = world.stack.audit('client.approved').length;
    const attacker = await world.registered({
      client_name: 'Test client',
      redirect_uris: ['https://attacker.example/steal'],
    });
    const page = await browser.open(
      world.authorizeUrl({
        clientId: attacker.client_id,
        redirectUri: 'https://attacker.example/steal',
      }).url,
      { stopAt: 'attacker.example' },
    );
    expect(page.stoppedAt).toBeUndefined();
    expect(page.forms.some(({ buttons }) => buttons.some(({ value }) => value === 'approve'))).toBe(
      true,
    );
    // the known client's id with the attacker's redirect
    const mixed = await browser.open(
      world.authorizeUrl({
        clientId: known.client_id,
        redirectUri: 'https://attacker.example/steal',
      }).url,
      { stopAt: 'attacker.example' },
    );
    expect([mixed.stoppedAt, mixed.status]).toEqual([undefined, 400]);
    expect(world.stack.audit('client.approved').length).toBe(before);
    // the attacker's own request, decided in the victim's browser
    const elsewhere = await world.browser('attacker');
    const own = await elsewhere.open(
      world.authorizeUrl({
        clientId: attacker.client_id,
        redirectUri: 'https://attacker.example/steal',
      }).url,
    );
    const lured = await browser.open(own.url);
    expect(lured.status).toBe(404);
  });

  test('[oauth.deny] no is an answer, with iss and state', async () => {
    const client = await world.registered();
    const browser = await world.browser('dora');
    const { url, state } = world.authorizeUrl({ clientId: client.client_id });
    await browser.open(url);
    const page = await browser.submit({ decision: 'deny', stopAt: REDIRECT });
    const answer = new URL(page.stoppedAt!).searchParams;
    expect(Object.fromEntries(answer)).toMatchObject({
      error: 'access_denied',
      state,
      iss: issuer,
    });
  });

  test('[oauth.withdraw] /connections shows it, and takes it back with its tokens', async () => {
    const client = await world.registered({ client_name: 'Revocable' });
    const browser = await world.browser('erin');
    const tokens = await world.tokens(browser, { clientId: client.client_id });
    const list = await browser.open(`${publicUrl}/connections`);
    expect(list.visible).toContain('Revocable');
    await browser.press('/connections/applications/withdraw');
    expect(browser.page?.visible).not.toContain('Revocable');
    const refused = await world.token({
      grant_type: 'refresh_token',
      client_id: client.client_id,
      refresh_token: tokens.refresh_token,
    });
    expect([refused.status, refused.json?.error]).toEqual([400, 'invalid_grant']);
    const page = await browser.open(world.authorizeUrl({ clientId: client.client_id }).url, {
      stopAt: REDIRECT,
    });
    expect(page.stoppedAt).toBeUndefined();
  });

  test('[oauth.forged-form] a decision from elsewhere, or without its token, counts for nothing', async () => {
    const client = await world.registered();
    const browser = await world.browser('frank');
    const page = await browser.open(world.authorizeUrl({ clientId: client.client_id }).url);
    const action = page.forms.find(({ buttons }) => buttons.length > 1)!.action;
    const bare = await browser.open(action, {
      method: 'POST',
      body: 'decision=approve',
      stopAt: REDIRECT,
    });
    expect([bare.status, bare.stoppedAt]).toEqual([403, undefined]);
    for (const origin of ['null', 'https://evil.example', `${publicUrl}.evil.example`]) {
      const forged = await browser.open(action, {
        method: 'POST',
        body: 'decision=approve',
        headers: { Origin: origin },
      });
      expect(forged.status, origin).toBe(403);
    }
  });
});

describe('client id metadata documents', () => {
  test('[oauth.document] a client that is a URL is asked about by its host, and gets tokens', async () => {
    const clientId = publish('/client.json');
    const redirectUri = 'https://app.example/callback';
    const browser = await world.browser('gina');
    const page = await browser.open(world.authorizeUrl({ clientId, redirectUri }).url);
    expect(page.visible).toContain(new URL(site.url).host);
    const tokens = await world.tokens(browser, { clientId, redirectUri });
    expect((await world.call(tokens.access_token)).status).toBe(200);
  });

  test.for([
    ['private, max-age=3600', 3_600],
    ['max-age=9999999', 86_400],
    ['no-store', 60],
    [undefined, 300],
  ] as const)(
    '[oauth.document-cache] Cache-Control: %s is kept for %i seconds, for all pods',
    async ([cache, seconds]) => {
      const path = `/kept-${seconds}.json`;
      if (cache !== undefined) cacheControl.set(path, cache);
      const redirectUri = 'https://app.example/callback';
      const { url } = world.authorizeUrl({ clientId: publish(path), redirectUri });
      const keysBefore = new Set(await world.stack.redis.client.keys('viaduct:oidc:document:*'));
      for (const pod of [0, 1]) {
        const answer = await send(url, { port: world.stack.ports[pod] });
        expect(answer.status).toBe(303);
      }
      expect(fetched.filter((one) => one === path)).toEqual([path]);
      const now = await world.stack.redis.client.keys('viaduct:oidc:document:*');
      const [kept] = now.filter((key) => !keysBefore.has(key));
      const ttl = await world.stack.redis.client.ttl(kept!);
      expect(ttl).toBeLessThanOrEqual(seconds);
      expect(ttl).toBeGreaterThan(seconds - 30);
    },
  );

  test('[oauth.document-bad] a document that is not what it says is refused', async () => {
    const redirectUri = 'https://app.example/callback';
    const bad = [
      publish('/other.json', { client_id: 'https://someone.example/client.json' }),
      publish('/secret.json', {
        client_secret: 'x',
        token_endpoint_auth_method: 'client_secret_post',
      }),
      publish('/redirect.json', { redirect_uris: ['http://app.example/callback'] }),
      `${site.url}/missing.json`,
      'https://127.0.0.1:1/client.json',
      'https://169.254.169.254/latest',
    ];
    const browser = await world.browser('hank');
    for (const clientId of bad) {
      const page = await browser.open(world.authorizeUrl({ clientId, redirectUri }).url, {
        stopAt: 'app.example',
      });
      expect([page.stoppedAt, page.status], clientId).toEqual([undefined, 400]);
    }
  });
});

describe('requests that are not in order', () => {
  test('[oauth.pkce] no PKCE, plain PKCE, wrong resource, two resources', async () => {
    const client = await world.registered();
    const browser = await world.browser('ian');
    const clientId = client.client_id;
    const errorOf = async (options: Parameters<typeof world.authorizeUrl>[0]) => {
      const page = await browser.open(world.authorizeUrl(options).url, { stopAt: REDIRECT });
      const { hash, searchParams } = new URL(page.stoppedAt ?? 'none:');
      // what belongs in a fragment by its response type is refused there
      return new URLSearchParams(hash.slice(1)).get('error') ?? searchParams.get('error');
    };
    expect(await errorOf({ clientId, extra: { code_challenge: undefined } })).toBe(
      'invalid_request',
    );
    expect(await errorOf({ clientId, extra: { code_challenge_method: 'plain' } })).toBe(
      'invalid_request',
    );
    for (const resource of [
      'https://elsewhere.example/mcp',
      `${publicUrl}/mcp/unknown`,
      `${publicUrl}/mcp#x`,
      [world.endpoint(), world.endpoint('plain')],
    ]) {
      expect(await errorOf({ clientId, resource }), String(resource)).toBe('invalid_target');
    }
    expect(await errorOf({ clientId, extra: { response_type: 'token' } })).toBe(
      'unsupported_response_type',
    );
  });

  test('[oauth.redirects] exact, but for the port of loopback; registration refuses what is unsafe', async () => {
    const client = await world.registered({ redirect_uris: ['http://127.0.0.1/callback'] });
    const browser = await world.browser('jane');
    const { answer } = await world.code(browser, {
      clientId: client.client_id,
      redirectUri: 'http://127.0.0.1:43211/callback',
    });
    expect(answer.get('code')).toBeTruthy();
    const page = await browser.open(
      world.authorizeUrl({
        clientId: client.client_id,
        redirectUri: 'http://127.0.0.1:43211/other',
      }).url,
      { stopAt: '127.0.0.1' },
    );
    expect([page.stoppedAt, page.status]).toEqual([undefined, 400]);
    for (const uri of [
      'http://app.example/callback',
      'javascript:alert(1)',
      'https://a.example/#x',
    ]) {
      const answer = await world.register({ redirect_uris: [uri] });
      expect(answer.status, uri).toBe(400);
    }
  });

  test('[oauth.way-back] the way back takes no parameters: one without its cookie is an error page', async () => {
    const { client_id } = await world.registered();
    const parameters = ['', `client_id=${client_id}`, `client_id=${client_id}&redirect_uri=${encodeURIComponent(REDIRECT)}&state=s`]; // prettier-ignore
    for (const query of parameters) {
      for (const method of ['GET', 'HEAD']) {
        const answer = await send(`${issuer}/authorize/abc?${query}`, { method });
        expect(answer.status, `${method} ${query}`).toBe(400);
        expect(answer.headers.location).toBeUndefined();
        expect(answer.headers['content-security-policy']).toContain("frame-ancestors 'none'");
      }
    }
  });

  test('[oauth.cors] any origin reads tokens, keys and metadata; errors too; authorize is for navigation', async () => {
    const headers = {
      Origin: 'https://inspector.example',
      'Content-Type': 'application/x-www-form-urlencoded',
    };
    const answers = await Promise.all([
      send(`${issuer}/token`, {
        method: 'POST',
        headers,
        body: 'grant_type=refresh_token&client_id=x&refresh_token=y',
      }),
      send(`${issuer}/jwks`, { headers }),
      send(`${issuer}/.well-known/openid-configuration`, { headers }),
      send(`${publicUrl}/.well-known/oauth-authorization-server/oauth`, { headers }),
      send(`${issuer}/register`, {
        method: 'POST',
        headers: { ...headers, 'Content-Type': 'application/json' },
        body: '{}',
      }),
    ]);
    expect(answers.map(({ status }) => status)).toEqual([401, 200, 200, 200, 400]);
    for (const answer of answers) {
      expect(['*', 'https://inspector.example']).toContain(
        answer.headers['access-control-allow-origin'],
      );
      expect(answer.headers['x-request-id']).toBeTruthy();
    }
    for (const path of ['token', 'register', 'jwks']) {
      const preflight = await send(`${issuer}/${path}`, {
        method: 'OPTIONS',
        headers: { Origin: 'https://inspector.example', 'Access-Control-Request-Method': 'POST' },
      });
      expect(preflight.status, path).toBe(204);
    }
    const authorize = await send(`${issuer}/authorize?client_id=x`, { headers });
    expect(authorize.status).toBe(403);
    expect(authorize.headers['access-control-allow-origin']).toBeUndefined();
  });
});
