import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { ModernClient } from '../support/modern-client.ts';
import type { Members } from '../support/net.ts';
import { sendJson } from '../support/net.ts';
import type { OauthClients } from '../support/oauth.ts';
import { startThirdParty } from '../support/third-party.ts';
import { Gate, until } from '../support/until.ts';
import { MISSING_CREDENTIAL, startWorld } from '../support/world.ts';

// `type: mcp` (issue 6, item 2): an upstream that protects itself, from its 401 to a call that runs.

const clients: OauthClients = {};
const server = await startThirdParty({ clients });
server.registers = true;
server.metadata = { token_endpoint_auth_methods_supported: ['none'] };
let resourceMetadata: Members = {};
let scopeNeeded = 'notes.read';

const world = await startWorld({
  config: { connections: { 'acme-drive': { type: 'mcp', displayName: 'Notes' } } },
  prepare: ({ files }) => {
    const path = '/.well-known/oauth-protected-resource/mcp';
    files.intercept = ({ request, response, url }, { message }) => {
      if (url.pathname === path) {
        sendJson(response, 200, {
          resource: files.endpoint,
          authorization_servers: [server.url],
          scopes_supported: ['notes.read', 'notes.write'],
          ...resourceMetadata,
        });
        return true;
      }
      const token = (request.headers.authorization ?? '').replace(/^Bearer /, '');
      const at = `resource_metadata="${files.url}${path}"`;
      if (!server.isValid(token)) {
        sendJson(response, 401, {}, { 'www-authenticate': `Bearer ${at}, scope="notes.read"` });
        return true;
      }
      const granted = server.authorizations.at(-1)?.['scope']?.split(' ') ?? [];
      if (message?.method !== 'tools/call' || granted.includes(scopeNeeded)) return false;
      const error = `Bearer error="insufficient_scope", scope="${scopeNeeded}", ${at}`;
      sendJson(response, 403, {}, { 'www-authenticate': error });
      return true;
    };
  },
});
const { files } = world;
afterAll(async () => {
  await world.stop();
  await server.stop();
});
beforeEach(() => {
  scopeNeeded = 'notes.read';
});

describe("the upstream's own authorization server", () => {
  test('[own.connect] is found, a client registered once, and the token is for this resource', async () => {
    const client = await world.client('ann').initialize();
    await world.connect(client, 'ann');
    const answer = await client.callTool('echo', { n: 1 }, { pod: 1 });
    expect(answer.result, JSON.stringify(answer)).toBeDefined();
    const { resource, scope, client_id: clientId } = server.authorizations.at(-1)!;
    expect(resource).toBe(files.endpoint);
    expect(scope).toBe('notes.read');
    expect(clientId).toMatch(/^registered-/);
    expect(server.tokenRequests.at(-1)!.form['resource']).toBe(files.endpoint);

    const other = await world.client('ben').initialize();
    await world.connect(other, 'ben');
    expect((await other.callTool('echo', {})).result).toBeDefined();
    expect(server.registrations).toHaveLength(1);
    expect(server.registrations[0]).toMatchObject({
      redirect_uris: [`${world.publicUrl}/connect/callback`],
      application_type: 'web',
      grant_types: ['authorization_code', 'refresh_token'],
      token_endpoint_auth_method: 'none',
    });
    const dump = JSON.stringify(await world.stack.redis.dump());
    for (const secret of [...server.issued, clientId!]) expect(dump).not.toContain(secret);
  });

  test('[own.iss] an answer that names another issuer is refused (RFC 9207)', async () => {
    const client = await world.client('cid').initialize();
    const link = await world.askForLink(client);
    const browser = world.browser('cid');
    server.issOverride = 'https://evil.example';
    const before = server.exchanges;
    const page = await world.walk(browser, link.url);
    server.issOverride = undefined;
    expect(page.status).toBe(400);
    expect(page.visible).toContain('wrong place');
    expect(server.exchanges).toBe(before);
  });

  test('[own.step-up] a 403 insufficient_scope becomes a link that names the added scopes', async () => {
    const client = await world.client('dan').initialize();
    await world.connect(client, 'dan');
    scopeNeeded = 'notes.write';
    const { error } = await client.callTool('echo', {});
    expect(error?.code, JSON.stringify(error)).toBe(MISSING_CREDENTIAL);
    const link = error!.data!.elicitations![0]!;
    expect(link.message).toContain('notes.write');
    const browser = world.browser('dan');
    const page = await browser.open(link.url);
    expect(page.visible).toMatch(/Asked for in addition.*notes\.write/);
    await browser.submit({ decision: 'approve' });
    await world.untilState(browser, link.url, 'completed');
    expect(server.authorizations.at(-1)!['scope']!.split(' ').sort()).toEqual([
      'notes.read',
      'notes.write',
    ]);
    expect((await client.callTool('echo', {})).result).toBeDefined();
  });

  test('[own.step-up] for a modern client it is input_required with the same words', async () => {
    const client = new ModernClient({
      url: world.endpoint(),
      ports: world.stack.ports,
      token: world.token('dora'),
    });
    const first = await client.tool('echo', {});
    const link = first.result!['inputRequests'] as Record<string, { params: { url: string } }>;
    await world.walk(world.browser('dora'), link['viaduct.connect']!.params.url);
    await world.untilState(world.browser('dora'), link['viaduct.connect']!.params.url, 'completed');
    scopeNeeded = 'notes.write';
    const answer = await client.tool('echo', {});
    expect(answer.result?.['resultType'], JSON.stringify(answer)).toBe('input_required');
    expect(JSON.stringify(answer.result)).toContain('notes.write');
  });

  test('[own.metadata] our client id metadata document is public', async () => {
    const page = await world.browser().open(`${world.publicUrl}/connect/client-metadata.json`);
    expect(page.json).toMatchObject({
      client_id: `${world.publicUrl}/connect/client-metadata.json`,
      redirect_uris: [`${world.publicUrl}/connect/callback`],
    });
  });
});

describe('what others say about themselves', () => {
  const refusedFor = async (user: string): Promise<string> => {
    const fresh = await startWorldOf();
    try {
      const client = await fresh.client(user).initialize();
      const link = await fresh.askForLink(client);
      const browser = fresh.browser(user);
      await browser.open(link.url);
      const page = await browser.submit({ decision: 'approve' });
      expect(page.status).toBe(502);
      expect(await fresh.stack.redis.client.keys('viaduct:vault:*')).toEqual([]);
      return page.visible;
    } finally {
      await fresh.stop();
    }
  };
  /** A world of one pod, so that no metadata is known yet. */
  const startWorldOf = () =>
    startWorld({
      pods: 1,
      config: { connections: { 'acme-drive': { type: 'mcp', displayName: 'Notes' } } },
      prepare: ({ files: own }) => {
        own.intercept = ({ response, url }) => {
          if (url.pathname.startsWith('/.well-known/')) {
            sendJson(response, 200, {
              resource: own.endpoint,
              authorization_servers: [server.url],
              ...resourceMetadata,
            });
          } else sendJson(response, 401, {}, { 'www-authenticate': 'Bearer' });
          return true;
        };
      },
    });

  test.for<[string, Members, Members]>([
    ['another issuer', {}, { issuer: 'https://evil.example' }],
    ['another resource', { resource: 'https://evil.example/mcp' }, {}],
    ['no PKCE', {}, { code_challenge_methods_supported: ['plain'] }],
    ['a private address', { authorization_servers: ['https://169.254.169.254/'] }, {}],
    ['a private address in decimal', { authorization_servers: ['https://2852039166/'] }, {}],
    ['a private address in octal', { authorization_servers: ['https://0251.0376.0251.0376/'] }, {}],
    ['a private address in hex', { authorization_servers: ['https://0xa9fea9fe/'] }, {}],
    ['a mapped address', { authorization_servers: ['https://[::ffff:10.0.0.1]/'] }, {}],
    ['a translated address', { authorization_servers: ['https://[64:ff9b::a00:1]/'] }, {}],
    ['5 MB of metadata', {}, { padding: 'x'.repeat(5_000_000) }],
  ])('[own.refused] %s is refused, and nothing is stored', async ([, resource, metadata]) => {
    const usual = server.metadata;
    resourceMetadata = resource;
    server.metadata = { ...usual, ...metadata };
    try {
      expect(await refusedFor('eva')).toMatch(/cannot be (connected|reached)/);
    } finally {
      resourceMetadata = {};
      server.metadata = usual;
    }
  });
});

test('[own.refresh] a refresh goes to the same server as the same client', async () => {
  server.expiresInSeconds = 2;
  const client = await world.client('flo').initialize();
  await world.connect(client, 'flo');
  server.expiresInSeconds = 3600;
  const newest = server.issued.findLast((value) => value.includes('access'))!;
  await until('the token has run out', () => !server.isValid(newest));
  const before = server.refreshes;
  expect((await client.callTool('echo', {})).result).toBeDefined();
  expect(server.refreshes - before).toBeLessThanOrEqual(1);
  const { form } = server.tokenRequests.findLast(({ grant }) => grant === 'refresh_token')!;
  expect(form).toMatchObject({ resource: files.endpoint });
  expect(form['client_id']).toMatch(/^registered-/);
});

describe('a registration that the server has dropped', () => {
  const dropped = (): void => {
    for (const id of Object.keys(clients)) clients[id] = { secret: 'another' };
  };

  test('[own.dropped] shows at the exchange: the flow fails, the next link registers anew and works', async () => {
    const client = await world.client('gil').initialize();
    const browser = world.browser('gil');
    const gate = new Gate();
    server.gates.token = gate;
    const link = await world.askForLink(client);
    await world.walk(browser, link.url);
    await until('the code is on its way', () => gate.arrived > 0);
    dropped();
    gate.open();
    server.gates.token = undefined;
    await world.untilState(browser, link.url, 'failed');
    const page = await browser.open(`${link.url}/status`);
    expect(page.visible).toContain('introduces itself again');
    const registrations = server.registrations.length;
    await world.connect(client, 'gil');
    expect(server.registrations.length).toBe(registrations + 1);
    expect((await client.callTool('echo', {})).result).toBeDefined();
  });

  test('[own.dropped] shows at a refresh: the next call gives a link, and not an error for ever', async () => {
    server.expiresInSeconds = 2;
    const client = await world.client('hal').initialize();
    await world.connect(client, 'hal');
    server.expiresInSeconds = 3600;
    const newest = server.issued.findLast((value) => value.includes('access'))!;
    await until('the token has run out', () => !server.isValid(newest));
    dropped();
    const registrations = server.registrations.length;
    await world.askForLink(client);
    await world.connect(client, 'hal');
    expect(server.registrations.length).toBe(registrations + 1);
    expect((await client.callTool('echo', {})).result).toBeDefined();
  });
});
