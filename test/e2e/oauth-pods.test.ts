import { afterAll, expect, test } from 'vitest';
import { UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
  Client as ModernClient,
  StreamableHTTPClientTransport as ModernTransport,
  UnauthorizedError as ModernUnauthorized,
} from '@modelcontextprotocol/client';
import { listen, sendJson } from '../support/net.ts';
import { makeCertificate } from '../support/tls.ts';
import { REDIRECT, startOauthWorld, type Tokens } from '../support/oauth-world.ts';

// Everything that the authorization server knows is in Redis (case O9), and the official clients find their way.

// The official clients take https documents only.
const tls = makeCertificate();
const world = await startOauthWorld({ env: { NODE_EXTRA_CA_CERTS: tls.certFile } });
const site = await listen(
  ({ response }) => {
    sendJson(response, 200, {
      client_id: `${site.url}/client.json`,
      client_name: 'Published',
      redirect_uris: [REDIRECT],
      token_endpoint_auth_method: 'none',
    });
  },
  { tls },
);
afterAll(async () => {
  await world.stop();
  await site.stop();
});

/** The same numbers in every run (mulberry32). */
function seeded(seed: number): () => number {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
}

test('[oauth.permutations] a hundred flows, each step on a random pod, a restart within each', async () => {
  const random = seeded(20_260_728);
  const pick = (below: number): number => Math.floor(random() * below);
  const STEPS = 5;
  const flows = Array.from({ length: 100 }, (_, index) => ({
    index,
    pods: Array.from({ length: STEPS }, () => pick(2)),
    // The step before which this flow sees both pods restarted.
    restartBefore: 1 + pick(STEPS - 1),
    client: '',
    code: '',
    verifier: '',
    tokens: undefined as Tokens | undefined,
  }));
  const browsers = await Promise.all(
    Array.from({ length: 10 }, (_, index) => world.browser(`user${index}`)),
  );
  const tokensOf = (answer: { status: number; text: string; json: unknown }, what: string) => {
    expect(answer.status, `${what}: ${answer.text}`).toBe(200);
    return answer.json as Tokens;
  };

  async function step(flow: (typeof flows)[number], number: number): Promise<void> {
    const pod = flow.pods[number];
    const what = `flow ${flow.index}, step ${number}`;
    switch (number) {
      case 0:
        flow.client = (await world.registered({}, pod)).client_id;
        return;
      case 1: {
        // The balancer chooses the pods of a browser, one after the other.
        const given = await world.code(browsers[flow.index % browsers.length]!, {
          clientId: flow.client,
        });
        Object.assign(flow, { code: given.code, verifier: given.verifier });
        return;
      }
      case 2: {
        const form = {
          grant_type: 'authorization_code',
          client_id: flow.client,
          redirect_uri: REDIRECT,
          code: flow.code,
          code_verifier: flow.verifier,
        };
        flow.tokens = tokensOf(await world.token(form, pod), what);
        return;
      }
      case 3: {
        const form = {
          grant_type: 'refresh_token',
          client_id: flow.client,
          refresh_token: flow.tokens!.refresh_token,
        };
        flow.tokens = tokensOf(await world.token(form, pod), what);
        return;
      }
      default:
        expect((await world.call(flow.tokens!.access_token, '', pod)).status, what).toBe(200);
    }
  }
  // One at a time per browser: a person decides one thing after the other.
  const advance = (from: (flow: (typeof flows)[number]) => number, to: typeof from) =>
    Promise.all(
      browsers.map(async (_, lane) => {
        for (const flow of flows.filter(({ index }) => index % browsers.length === lane)) {
          for (let number = from(flow); number < to(flow); number++) await step(flow, number);
        }
      }),
    );

  await advance(
    () => 0,
    ({ restartBefore }) => restartBefore,
  );
  await Promise.all(
    world.stack.pods.map(async (pod) => {
      await pod.child.kill();
      await world.stack.restart(pod);
    }),
  );
  await advance(
    ({ restartBefore }) => restartBefore,
    () => STEPS,
  );
}, 180_000);

test('[oauth.pods] a rolling restart between any two steps changes nothing', async () => {
  const restart = async () => {
    for (const pod of world.stack.pods) {
      await pod.child.kill();
      await world.stack.restart(pod);
    }
  };
  const client = await world.registered({}, 0);
  await restart();
  const browser = await world.browser('bob');
  const page = await browser.open(world.authorizeUrl({ clientId: client.client_id }).url);
  expect(page.status).toBe(200);
  await restart();
  const { code, verifier } = await world.code(browser, { clientId: client.client_id });
  await restart();
  const answer = await world.token({
    grant_type: 'authorization_code',
    client_id: client.client_id,
    redirect_uri: REDIRECT,
    code,
    code_verifier: verifier,
  });
  expect(answer.status, answer.text).toBe(200);
  const tokens = answer.json as unknown as Tokens;
  await restart();
  expect((await world.call(tokens.access_token)).status).toBe(200);
  const next = await world.token({
    grant_type: 'refresh_token',
    client_id: client.client_id,
    refresh_token: tokens.refresh_token,
  });
  expect(next.status).toBe(200);
}, 60_000);

/** What an application keeps; the person's browser is driven by the test. */
function provider(clientMetadataUrl?: string) {
  const kept: Record<string, unknown> = {};
  let sentTo: URL | undefined;
  return {
    sentTo: () => sentTo!.href,
    redirectUrl: REDIRECT,
    ...(clientMetadataUrl !== undefined && { clientMetadataUrl }),
    clientMetadata: {
      client_name: 'Official client',
      redirect_uris: [REDIRECT],
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: 'none',
    },
    clientInformation: () => kept['client'] as never,
    saveClientInformation: (value: unknown) => void (kept['client'] = value),
    tokens: () => kept['tokens'] as never,
    saveTokens: (value: unknown) => void (kept['tokens'] = value),
    redirectToAuthorization: (url: URL) => void (sentTo = url),
    saveCodeVerifier: (value: string) => void (kept['verifier'] = value),
    codeVerifier: () => kept['verifier'] as string,
    saveDiscoveryState: (value: unknown) => void (kept['discovery'] = value),
    discoveryState: () => kept['discovery'] as never,
    client: () => kept['client'] as { client_id: string } | undefined,
  };
}

async function approve(user: string, url: string): Promise<URLSearchParams> {
  const browser = await world.browser(user);
  let page = await browser.open(url, { stopAt: REDIRECT });
  if (page.stoppedAt === undefined)
    page = await browser.submit({ decision: 'approve', stopAt: REDIRECT });
  return new URL(page.stoppedAt!).searchParams;
}

for (const how of ['registration', 'metadata document'] as const) {
  test(`[oauth.sdk] the official v1 client, from 401 to a tool by ${how}`, async () => {
    const auth = provider(how === 'registration' ? undefined : `${site.url}/client.json`);
    const url = new URL(world.endpoint('plain'));
    const client = new Client({ name: 'v1', version: '1' });
    const transport = new StreamableHTTPClientTransport(url, { authProvider: auth });
    await expect(client.connect(transport as never)).rejects.toBeInstanceOf(UnauthorizedError);
    const answer = await approve('carol', auth.sentTo());
    await transport.finishAuth(answer.get('code')!);
    await client.connect(new StreamableHTTPClientTransport(url, { authProvider: auth }));
    expect((await client.listTools()).tools.length).toBeGreaterThan(0);
    if (how !== 'registration') expect(auth.client()?.client_id).toBe(`${site.url}/client.json`);
    await client.close();
  });

  test(`[oauth.sdk] the official v2 client, from 401 to a tool by ${how}`, async () => {
    const auth = provider(how === 'registration' ? undefined : `${site.url}/client.json`);
    const url = new URL(world.endpoint('plain'));
    const client = new ModernClient({ name: 'v2', version: '1' });
    const transport = new ModernTransport(url, { authProvider: auth });
    await expect(client.connect(transport)).rejects.toBeInstanceOf(ModernUnauthorized);
    const answer = await approve('dave', auth.sentTo());
    await transport.finishAuth(answer);
    await client.connect(new ModernTransport(url, { authProvider: auth }));
    expect((await client.listTools()).tools.length).toBeGreaterThan(0);
    await client.close();
  });
}
