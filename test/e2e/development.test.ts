import { afterAll, expect, test } from 'vitest';
import { startLegacyUpstream } from '../support/legacy-upstream.ts';
import { McpClient, textOf } from '../support/mcp-client.ts';
import { CookieBrowser } from '../support/cookie-browser.ts';
import { startStack } from '../support/stack.ts';
import { startThirdParty } from '../support/third-party.ts';

// auth.mode: none, on a loopback publicUrl: one fixed principal, and everything else as in production (design,
// section 5; issue 2, item 5). Keys are generated when none are given.

const upstream = await startLegacyUpstream();
const acme = await startThirdParty({ clients: { 'acme-client': { secret: 'acme-secret' } } });
const stack = await startStack({
  pods: 1,
  config: {
    auth: { mode: 'none' },
    upstreams: [
      { name: 'files', url: upstream.endpoint, connection: 'acme', allowPrivateNetwork: true },
    ],
    connections: {
      acme: {
        type: 'oauth',
        displayName: 'Acme',
        // without discovery
        authorizationEndpoint: `${acme.url}/authorize`,
        tokenEndpoint: `${acme.url}/token`,
        clientId: 'acme-client',
        clientSecret: 'acme-secret',
        scopes: ['drive.read'],
        inject: { header: 'X-Acme-Token', value: 'token {{accessToken}}' },
      },
    },
  },
});
afterAll(async () => {
  await stack.stop();
  await Promise.all([upstream.stop(), acme.stop()]);
});

test('[auth.none] the main job needs no token and no login, and endpoints may be written out', async () => {
  const client = new McpClient({ url: `${stack.publicUrl}/mcp/files`, ports: stack.ports });
  await client.initialize();
  const stream = await client.listen();
  const { error } = await client.callTool('echo', {});
  const asked = error!.data!.elicitations![0]!;
  const browser = new CookieBrowser();
  await browser.open(asked.url);
  await browser.submit({ decision: 'approve' });
  await stream.notification('notifications/elicitation/complete');
  expect(textOf(await client.callTool('echo', { a: 1 }))).toBe('{"a":1}');
  const sent = upstream.calls('echo').at(-1)!.headers;
  expect(acme.isValid((sent['x-acme-token'] as string).replace('token ', ''))).toBe(true);
  expect(sent.authorization).toBeUndefined();
});

test('[auth.none] a token that is sent all the same is not looked at, and goes nowhere', async () => {
  const client = new McpClient({ url: `${stack.publicUrl}/mcp/files`, token: 'whatever' });
  await client.initialize();
  for (const { rawHeaders } of upstream.received)
    expect(rawHeaders.join()).not.toContain('whatever');
});
