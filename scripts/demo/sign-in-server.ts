// A small OpenID provider with a one-click development sign-in: no passwords, a button per person.
// The demo's identity provider and its third party are both made of it. In memory, for one machine.
import { createSecretKey, generateKeyPairSync, randomBytes } from 'node:crypto';
import express from 'express';
import { interactionPolicy, Provider, type Configuration, type JWK } from 'oidc-provider';
import { createMemoryAdapters } from './memory-adapter.ts';

export interface Person {
  readonly name: string;
  readonly email: string;
  readonly groups: readonly string[];
}

export const PEOPLE: Readonly<Record<string, Person>> = {
  alice: { name: 'Alice', email: 'alice@example.com', groups: ['engineering'] },
  bob: { name: 'Bob', email: 'bob@example.com', groups: ['sales'] },
};

const DAY = 86_400;

export interface SignInServerOptions {
  readonly issuer: string;
  readonly title: string;
  /** Sets the two servers' cookies apart: cookies on localhost don't know ports. */
  readonly cookiePrefix: string;
  /** What the page says before the buttons; with it, the buttons give consent too. */
  readonly asks?: (clientId: string, scope: string) => string;
  readonly configuration: Configuration;
}

export interface SignInServer {
  readonly app: express.Express;
  readonly provider: Provider;
  listen(port: number): Promise<void>;
}

export function createSignInServer(options: SignInServerOptions): SignInServer {
  const provider = new Provider(options.issuer, {
    adapter: createMemoryAdapters(),
    jwks: { keys: [signingKey()] },
    cookies: {
      keys: [randomBytes(32).toString('base64url')],
      names: {
        interaction: `${options.cookiePrefix}_interaction`,
        resume: `${options.cookiePrefix}_resume`,
        session: `${options.cookiePrefix}_session`,
      },
    },
    claims: { openid: ['sub'], profile: ['name'], email: ['email'], groups: ['groups'] },
    findAccount: (_ctx, sub) => {
      const person = PEOPLE[sub];
      return person && { accountId: sub, claims: () => ({ sub, ...person }) };
    },
    interactions: {
      policy: prompts(),
      url: (_ctx, interaction) => `/interaction/${interaction.uid}`,
    },
    clientBasedCORS: () => true,
    ...options.configuration,
    ttl: {
      AccessToken: 600,
      Grant: DAY,
      IdToken: 3600,
      Interaction: 3600,
      RefreshToken: DAY,
      Session: DAY,
      ...options.configuration.ttl,
    },
    features: { devInteractions: { enabled: false }, ...options.configuration.features },
  });

  const app = express().disable('x-powered-by');
  app.get('/interaction/:uid', async (req, res) => {
    const { params } = await provider.interactionDetails(req, res);
    const clientId = String(params['client_id']);
    const scope = typeof params['scope'] === 'string' ? params['scope'] : '';
    res.type('html').send(page(options, clientId, scope));
  });
  app.post('/interaction/:uid', express.urlencoded({ extended: false }), async (req, res) => {
    const { params, grantId } = await provider.interactionDetails(req, res);
    const choice = (req.body as { choice?: string } | undefined)?.choice ?? '';
    if (!PEOPLE[choice]) {
      const refusal = { error: 'access_denied', error_description: 'the person said no' };
      await provider.interactionFinished(req, res, refusal, { mergeWithLastSubmission: false });
      return;
    }
    const clientId = String(params['client_id']);
    const grant =
      (grantId === undefined ? undefined : await provider.Grant.find(grantId)) ??
      new provider.Grant({ accountId: choice, clientId });
    if (typeof params['scope'] === 'string') grant.addOIDCScope(params['scope']);
    const consent = { grantId: await grant.save() };
    await provider.interactionFinished(
      req,
      res,
      { login: { accountId: choice }, ...(options.asks ? { consent } : {}) },
      { mergeWithLastSubmission: false },
    );
  });

  return {
    app,
    provider,
    listen(port) {
      app.use(provider.callback());
      return new Promise((resolve, reject) => {
        app.listen(port, '127.0.0.1', (error) => {
          if (error) reject(error);
          else resolve();
        });
      });
    },
  };
}

/** A client secret for one run of the demo. */
export const secret = (): string => createSecretKey(randomBytes(24)).export().toString('base64url');

/** As usual, but a native client (which registers a loopback redirect) asks no second time. */
function prompts(): interactionPolicy.DefaultPolicy {
  const policy = interactionPolicy.base();
  policy.get('consent')?.checks.remove('native_client_prompt');
  return policy;
}

function signingKey(): JWK {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  return { ...privateKey.export({ format: 'jwk' }), alg: 'RS256', use: 'sig', kid: 'demo' };
}

function page({ title, asks }: SignInServerOptions, clientId: string, scope: string): string {
  const verb = asks ? 'Allow as' : 'Continue as';
  const buttons = Object.entries(PEOPLE).map(
    ([id, { name }]) => `<button name="choice" value="${id}">${verb} ${name}</button>`,
  );
  if (asks) buttons.push('<button name="choice" value="deny" class="quiet">Deny</button>');
  return `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escapeHtml(title)}</title>
<style>
  :root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
  body { display: grid; place-content: center; min-height: 90vh; margin: 1rem; }
  main { max-width: 24rem; }
  button { display: block; width: 100%; margin: .5rem 0; padding: .7rem; font: inherit; }
  button.quiet { background: none; border: 0; }
  small { opacity: .7; }
</style>
<main>
  <h1>${escapeHtml(title)}</h1>
  <p>${escapeHtml(asks?.(clientId, scope) ?? 'Who are you?')}</p>
  <form method="post">${buttons.join('\n')}</form>
  <small>A stand-in for the demo: no password, nothing leaves this machine.</small>
</main>
</html>`;
}

function escapeHtml(text: string): string {
  return text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}
