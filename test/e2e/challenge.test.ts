import { afterAll, describe, expect, test } from 'vitest';
import { send } from '../support/net.ts';
import { startWorld } from '../support/world.ts';

// What tells a client where to get a token, and which (RFC 9728, RFC 6750; issue 2, item 5; design, section 6).

const world = await startWorld({
  pods: 1,
  workers: 0,
  plainUpstreams: ['plain'],
  connection: {},
  upstream: {
    connection: undefined,
    scopes: ['files:read'],
    tools: { 'secret_*': { scopes: ['files:secret'] }, count: { groups: ['admins'] } },
  },
});
afterAll(() => world.stop());
const { publicUrl, idp, files } = world;

const parameters = (challenge = ''): Record<string, string> =>
  Object.fromEntries([...challenge.matchAll(/(\w+)="([^"]*)"/g)].map((m) => [m[1]!, m[2]!]));

describe('resource metadata', () => {
  test.for(['files', 'plain'])('[auth.metadata] of /mcp/%s', async (name) => {
    const path = `/.well-known/oauth-protected-resource/mcp/${name}`;
    for (const slash of ['', '/']) {
      const { status, json, headers } = await send(`${publicUrl}${path}${slash}`);
      expect(status).toBe(200);
      expect(headers['content-type']).toMatch(/^application\/json/);
      expect(json).toMatchObject({
        resource: `${publicUrl}/mcp/${name}`,
        authorization_servers: [idp.url],
        scopes_supported: ['mcp:tools'],
        bearer_methods_supported: ['header'],
      });
    }
  });

  test('[auth.metadata] of something that is not there is 404', async () => {
    expect(
      (await send(`${publicUrl}/.well-known/oauth-protected-resource/mcp/nothing`)).status,
    ).toBe(404);
  });

  test('[auth.metadata] says publicUrl whatever the request says', async () => {
    const path = '/.well-known/oauth-protected-resource/mcp/files';
    const { json } = await send(`${publicUrl}${path}`, {
      headers: { 'X-Forwarded-Host': 'evil.example', 'X-Forwarded-Proto': 'https' },
    });
    expect(json?.['resource']).toBe(`${publicUrl}/mcp/files`);
  });
});

describe('the challenge', () => {
  test('[auth.challenge] 401 names the metadata and the base scopes only', async () => {
    const client = world.client('x', { token: null });
    const answer = await client.post(client.initializeMessage(0));
    expect(answer.status).toBe(401);
    expect(parameters(answer.headers['www-authenticate'])).toEqual({
      resource_metadata: `${publicUrl}/.well-known/oauth-protected-resource/mcp/files`,
      scope: 'mcp:tools',
    });
    expect(answer.json).toMatchObject({ jsonrpc: '2.0', id: 0 });
  });

  test('[auth.step-up] 403 names all scopes of the operation, and no others', async () => {
    const missingAll = world.client('ann', { claims: { scope: 'openid' } });
    const first = await missingAll.post(missingAll.initializeMessage());
    expect(first.status).toBe(403);
    const asked = parameters(first.headers['www-authenticate']);
    expect(asked['error']).toBe('insufficient_scope');
    expect(asked['scope']!.split(' ').sort()).toEqual(['files:read', 'mcp:tools']);
    expect(asked['resource_metadata']).toContain('/.well-known/oauth-protected-resource/mcp/files');
    expect(first.json).toMatchObject({ id: 'init' });

    const reader = await world
      .client('ann', { claims: { scope: 'mcp:tools files:read' } })
      .initialize();
    expect((await reader.callTool('echo', {})).result).toBeDefined();
    const call = reader.beginTool('secret_report', {}, { id: 'secret' });
    const refused = await call.http;
    expect(refused.status).toBe(403);
    const more = parameters(refused.headers['www-authenticate']);
    expect(more['scope']!.split(' ').sort()).toEqual(['files:read', 'files:secret', 'mcp:tools']);
    expect(refused.json?.id).toBe('secret');
    expect(files.ran['secret_report']).toBeUndefined();

    const full = reader.as({ token: world.token('ann', { scope: more['scope']! }) });
    expect((await full.callTool('secret_report', {})).result).toBeDefined();
  });

  test('[auth.groups] a tool for a group does not exist for others', async () => {
    const scope = 'mcp:tools files:read';
    const outsider = await world.client('ben', { claims: { scope } }).initialize();
    const refused = await outsider.callTool('count', {});
    const unknown = await outsider.callTool('no-such-tool', {});
    expect(refused.error?.code).toBe(unknown.error?.code);
    expect(files.ran['count']).toBeUndefined();
    const names = (await outsider.listTools()).result!.tools!.map(({ name }) => name);
    expect(names).toContain('echo');
    expect(names).not.toContain('count');
    expect(world.stack.audit('group.refused').length).toBeGreaterThan(0);

    const claims = { scope, groups: ['admins'] };
    const member = await world.client('ben', { claims }).initialize();
    expect((await member.callTool('count', {})).result).toBeDefined();
    expect(JSON.stringify(await member.listTools())).toContain('"count"');
  });

  test('[auth.step-up] expired comes before insufficient', async () => {
    const client = world.client('ann', { claims: { scope: 'openid', expiresIn: -600 } });
    const { status, headers } = await client.post(client.initializeMessage());
    expect(status).toBe(401);
    expect(headers['www-authenticate']).toContain('error="invalid_token"');
  });
});

describe('the endpoint', () => {
  test('[http.slash] a trailing slash makes no difference, and never a redirect', async () => {
    const client = world.client('ann', { claims: { scope: 'mcp:tools files:read' } });
    const slashed = client.as({ url: `${client.url}/` });
    const answer = await slashed.post(slashed.initializeMessage());
    expect(answer.status).toBe(200);
    const denied = await slashed.as({ token: undefined }).post(slashed.initializeMessage());
    expect(parameters(denied.headers['www-authenticate'])['resource_metadata']).toBe(
      `${publicUrl}/.well-known/oauth-protected-resource/mcp/files`,
    );
  });

  test('[http.unknown-upstream] an upstream that is not there is 404', async () => {
    const client = world.client('ann').as({ url: world.endpoint('nothing') });
    expect((await client.post(client.initializeMessage())).status).toBe(404);
  });

  test('[http.methods] other methods are 405 with Allow', async () => {
    const client = world.client('ann');
    for (const method of ['PUT', 'PATCH']) {
      const answer = await client.send(method, '{}');
      expect(answer.status).toBe(405);
      expect(answer.headers.allow).toMatch(/POST/);
    }
  });
});
