import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { startDnsStub } from '../support/dns-stub.ts';
import { listen, sendJson, type Members } from '../support/net.ts';
import { startThirdParty } from '../support/third-party.ts';
import { startWorld, type World } from '../support/world.ts';

// Where other people's words may lead a real gateway and a real worker (issue 6, item 7 and bad input). Written
// addresses, false issuers and large metadata are in connection-mcp.test.ts.

const server = await startThirdParty({ clients: {} });
server.registers = true;
const usual = { token_endpoint_auth_methods_supported: ['none'] };
const dns = await startDnsStub([]);
/** Something inside, which nobody may be led to. */
const inside = await listen(({ response }) => {
  visits++;
  sendJson(response, 200, {});
});
let visits = 0;
/** What the upstream says about itself; a function answers by itself. */
let about: Members | 'never ends' | { redirect: string } = {};

/** One pod, so that nothing is known yet of the servers of another test. */
async function startFresh(): Promise<World> {
  const fresh = await startWorld({
    pods: 1,
    env: dns.env,
    config: { connections: { 'acme-drive': { type: 'mcp', displayName: 'Notes' } } },
    prepare: ({ files }) => {
      files.intercept = ({ request, response, url }) => {
        const token = (request.headers.authorization ?? '').replace(/^Bearer /, '');
        if (url.pathname.startsWith('/.well-known/')) {
          if (about === 'never ends') {
            response.writeHead(200, { 'content-type': 'application/json' });
            const drip = setInterval(() => response.write(' '), 50);
            response.on('close', () => clearInterval(drip));
          } else if ('redirect' in about) {
            response.writeHead(302, { location: about.redirect as string }).end();
          } else {
            const servers = { authorization_servers: [server.url] };
            sendJson(response, 200, { resource: files.endpoint, ...servers, ...about });
          }
          return true;
        }
        if (server.isValid(token)) return false;
        sendJson(response, 401, {}, { 'www-authenticate': 'Bearer' });
        return true;
      };
    },
  });
  worlds.push(fresh);
  return fresh;
}
const worlds: World[] = [];

/** The page that the person gets who approves. */
async function refused(world: World, user: string): Promise<string> {
  const client = await world.client(user).initialize();
  const link = await world.askForLink(client);
  const browser = world.browser(user);
  await browser.open(link.url);
  const page = await browser.submit({ decision: 'approve' });
  expect(page.status, page.visible).toBe(502);
  await nothingStored(world, user);
  return page.visible;
}

async function nothingStored(world: World, user: string): Promise<void> {
  const { client } = world.stack.redis;
  expect(await client.keys(`viaduct:vault:{${world.userId(user)}}:*`)).toEqual([]);
}

beforeEach(() => {
  server.metadata = usual;
  server.tokenMembers = {};
  server.redirects.clear();
  about = {};
  visits = 0;
  dns.asked.length = 0;
});
afterAll(async () => {
  await Promise.all(worlds.map((world) => world.stop()));
  await Promise.all([server.stop(), inside.stop(), dns.stop()]);
});

describe('answers of the DNS', () => {
  const named = (): string => `http://rebind.localhost:${new URL(server.url).port}`;
  const at = (url: string): Members => ({
    ...usual,
    issuer: url,
    authorization_endpoint: `${url}/authorize`,
    token_endpoint: `${url}/token`,
    registration_endpoint: `${url}/register`,
  });

  test('[egress.rebinding] are asked for once a connection, and judged anew at the next', async () => {
    const world = await startFresh();
    // The first connection goes where the first answer led; whoever resolved a second time for it would show here.
    dns.answers = [['127.0.0.1'], ['10.0.0.1']];
    about = { authorization_servers: [named()] };
    server.metadata = at(named());
    const registrations = server.registrations.length;
    expect(await refused(world, 'ann')).toContain('rebind.localhost is not a public address');
    expect(dns.asked.length).toBeGreaterThanOrEqual(2);
    expect(new Set(dns.asked)).toEqual(new Set(['rebind.localhost']));
    expect(server.registrations.length, 'nothing reached it by the second answer').toBe(
      registrations,
    );
    expect(await world.stack.redis.client.keys('viaduct:registration:*')).toEqual([]);
  });

  test('[egress.rebinding] are refused for one private address among others', async () => {
    const world = await startFresh();
    dns.answers = [['127.0.0.1', '169.254.169.254']];
    about = { authorization_servers: [named()] };
    server.metadata = at(named());
    expect(await refused(world, 'ben')).toContain('not a public address');
  });
});

describe('redirects are nobody’s word', () => {
  test.for<[string, () => void]>([
    ['the upstream’s metadata', () => (about = { redirect: `${inside.url}/latest/meta-data` })],
    [
      'the server’s metadata',
      () => {
        const to = `${inside.url}/.well-known/oauth-authorization-server`;
        server.redirects.set('/.well-known/openid-configuration', to);
        server.redirects.set('/.well-known/oauth-authorization-server', to);
      },
    ],
    ['its registration', () => server.redirects.set('/register', `${inside.url}/register`)],
  ])('[egress.redirects] %s leads nowhere', async ([, arrange]) => {
    const world = await startFresh();
    arrange();
    expect(await refused(world, 'cid')).toMatch(/cannot be (connected|reached)/);
    expect(visits).toBe(0);
  });

  test('[egress.redirects] nor do its token and revocation endpoints', async () => {
    const world = await startFresh();
    const client = await world.client('dan').initialize();
    server.redirects.set('/token', `${inside.url}/token`);
    const link = await world.askForLink(client);
    const browser = world.browser('dan');
    await world.walk(browser, link.url);
    await world.untilState(browser, link.url, 'failed');
    await nothingStored(world, 'dan');
    server.redirects.delete('/token');
    await world.connect(client, 'dan');
    server.redirects.set('/revoke', `${inside.url}/revoke`);
    await browser.open(`${world.publicUrl}/connections`);
    await browser.press('/connections/acme-drive/disconnect');
    await nothingStored(world, 'dan');
    expect(visits).toBe(0);
  });
});

test('[egress.endless] metadata that never ends is given up, and the page says so', async () => {
  const world = await startFresh();
  about = 'never ends';
  expect(await refused(world, 'eva')).toContain('cannot be reached');
});

test('[egress.token-type] a token of another kind than asked for is refused, and nothing stored', async () => {
  const world = await startFresh();
  const client = await world.client('flo').initialize();
  const browser = world.browser('flo');
  for (const members of [
    { token_type: 'mac' },
    { token_type: 'DPoP' },
    { token_type: 7 },
    { access_token: { value: 'x' } },
    { access_token: '' },
    { expires_in: 'soon' },
  ]) {
    server.tokenMembers = members;
    const link = await world.askForLink(client);
    await world.walk(browser, link.url);
    await world.untilState(browser, link.url, 'failed');
    const page = await browser.open(`${link.url}/status`);
    expect(page.visible, JSON.stringify(members)).toContain('could not be connected');
    await nothingStored(world, 'flo');
  }
  server.tokenMembers = {};
  await world.connect(client, 'flo');
  expect((await client.callTool('echo', {})).result).toBeDefined();
});
