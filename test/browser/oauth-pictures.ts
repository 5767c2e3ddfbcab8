import type { Page } from 'playwright-core';
import { approve, signIn } from '../support/chromium.ts';
import { listen, sendJson } from '../support/net.ts';
import { REDIRECT, startOauthWorld } from '../support/oauth-world.ts';

/** One picture: brings a page into the state that it shows. */
export type OauthScene = (page: Page, user: string) => Promise<void>;

const TITLE = { name: 'Claude Desktop', web: 'https://claude.example/callback' };

/** The pages of the built-in authorization server (issue 5), each with the kind of client that it warns of. */
export async function startOauthScenes(): Promise<{
  readonly scenes: Readonly<Record<string, OauthScene>>;
  stop(): Promise<void>;
}> {
  const document: Record<string, unknown> = {};
  const site = await listen(({ response }) => {
    sendJson(response, 200, document);
  });
  const documentUrl = `${site.url}/client.json`;
  Object.assign(document, {
    client_id: documentUrl,
    client_name: 'Inspector',
    redirect_uris: [REDIRECT],
    token_endpoint_auth_method: 'none',
  });
  const world = await startOauthWorld({
    builtin: {
      clients: [{ clientId: 'desk', name: 'Desk Assistant', redirectUris: [TITLE.web] }],
    },
    upstream: { scopes: ['files:read'], tools: { 'delete_*': { scopes: ['files:write'] } } },
  });
  const ask = async (page: Page, user: string, clientId: string, redirectUri: string) => {
    const scope = 'mcp:tools files:read files:write';
    const given = { clientId, redirectUri, scope, resource: world.endpoint('plain') };
    await page.goto(world.authorizeUrl(given).url);
    await signIn(page, user);
    await approve(page).waitFor();
  };
  const stranger = (redirect: string) =>
    world.registered({ client_name: TITLE.name, redirect_uris: [redirect] });

  return {
    scenes: {
      'oauth-login': async (page) => {
        const client = await stranger(TITLE.web);
        const given = { clientId: client.client_id, redirectUri: TITLE.web };
        await page.goto(world.authorizeUrl(given).url);
        await page.locator('input[name=user]').waitFor();
      },
      'oauth-known': (page, user) => ask(page, user, 'desk', TITLE.web),
      'oauth-unverified': async (page, user) =>
        ask(page, user, (await stranger(TITLE.web)).client_id, TITLE.web),
      'oauth-localhost': async (page, user) =>
        ask(page, user, (await stranger(REDIRECT)).client_id, REDIRECT),
      'oauth-document': (page, user) => ask(page, user, documentUrl, REDIRECT),
      'oauth-error': async (page) => {
        await page.goto(world.authorizeUrl({ clientId: 'nobody' }).url);
      },
      'oauth-approved': async (page, user) => {
        await ask(page, user, 'desk', TITLE.web);
        await page.route(`${TITLE.web}*`, (route) => route.fulfill({ body: 'back' }));
        await approve(page).click();
        await page.waitForURL(`${TITLE.web}*`);
        await page.goto(`${world.publicUrl}/connections`);
      },
    },
    stop: async () => {
      await world.stop();
      await site.stop();
    },
  };
}
