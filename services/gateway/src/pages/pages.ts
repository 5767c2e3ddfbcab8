/**
 * The pages that people see: `/connect/*`, `/connections`, `/login`, `/logout` (design, section 6).
 *
 * Promises: no resource of others; a strict CSP without inline anything; `frame-ancestors 'none'`; nothing cached;
 * a CSRF token and our own Origin on every POST; everything works without JavaScript. Non-duties: Host and
 * request ids (edge.ts, in front of this router), and unexpected errors (respond.ts, behind it).
 */
import express, { type Request, type Response, type Router } from 'express';
import { JWKS_PATH, type Assertions } from '@viaduct/shared/assertions';
import type { Egress } from '@viaduct/shared/egress';
import type { Keyring } from '@viaduct/shared/keyring';
import type { Redis } from '@viaduct/shared/redis/client';
import type { Config } from '@viaduct/shared/config';
import { builtinIssuer } from '../challenges.ts';
import type { OperatorCodes } from '../operator-codes.ts';
import type { AuthorizationServer } from '../oauth/oauth.ts';
import { CLIENT_METADATA_PATH, clientMetadata } from '@viaduct/shared/upstream-oauth';
import { createAccountPages } from './account.ts';
import { serveAsset } from './assets.ts';
import { createBrowsers, createCookies, type BrowserUser } from './browser.ts';
import { createAuthorizePages } from './authorize.ts';
import { createCallback } from './callback.ts';
import { createConnectPages } from './connect.ts';
import { createFrame, type PageServices, type Visit } from './frame.ts';
import { layout } from './layout.ts';
import {
  createDevelopmentLogin,
  DEVELOPMENT_LOGIN,
  developmentLoginPage,
  developmentUser,
} from './development-login.ts';
import { createLogin, safeReturnTo, type Login, type LoginProvider } from './login.ts';
import { createOperatorPage, OPERATOR_LOGIN } from './operator.ts';
import { allowFormsTo, securityHeaders } from './security.ts';
import { noticePage } from './views.ts';

export { html, type Html } from './html.ts';

export interface PagesDeps extends PageServices {
  readonly redis: Redis;
  readonly keyring: Keyring;
  readonly egress: Egress;
  readonly assertions: Assertions;
  /** The user of `auth.mode: none`. */
  readonly fixedUser?: BrowserUser;
  readonly authorizationServer?: AuthorizationServer;
  readonly isRevoked?: (userId: string, atMs: number) => boolean;
  readonly addressOf: (req: Request) => string;
  readonly operatorCodes: OperatorCodes;
}

/** Forms here hold a token, a decision, and sometimes a few keys that are typed or pasted. */
const FORM_LIMIT = '128kb';

export function createPages(deps: PagesDeps): Router {
  const { config, redis, keyring, egress, audit, log } = deps;
  const browsers = createBrowsers({
    redis,
    keyring,
    config,
    ...(deps.isRevoked !== undefined && { isRevoked: deps.isRevoked }),
  });
  const provider = loginProvider(config);
  const login: Login | undefined =
    provider === undefined
      ? config.auth.mode === 'builtin'
        ? createDevelopmentLogin()
        : undefined
      : createLogin({
          provider,
          publicUrl: config.publicUrl,
          development: config.development,
          egress,
          keyring,
          cookies: createCookies(config),
          log,
        });
  const frame = createFrame({
    config,
    audit,
    limits: deps.limits,
    browsers,
    login,
    fixedUser: deps.fixedUser,
    addressOf: deps.addressOf,
  });
  const connect = createConnectPages(deps, frame);
  const account = createAccountPages(deps, frame);
  const callback = createCallback(deps, frame);
  const server = deps.authorizationServer;

  const router = express.Router();
  const page =
    <P>(run: (visit: Visit, params: P) => Promise<void>) =>
    async (req: Request<P & Record<string, string>>, res: Response): Promise<void> => {
      await run(frame.visit(req as Request, res), req.params);
    };

  router.get('/assets/:file', serveAsset);
  // For authorization servers, not for people: public, the same for everybody, and cacheable.
  const publish = (path: string, document: object): void => {
    router.get(path, (_req, res) => {
      res.set('Cache-Control', 'public, max-age=300').json(document);
    });
  };
  publish(CLIENT_METADATA_PATH, clientMetadata(config.publicUrl));
  publish(JWKS_PATH, deps.assertions.jwks);
  router.use(
    ['/connect', '/connections', '/login', '/logout', '/oauth/interaction'],
    securityHeaders(config),
    express.urlencoded({ extended: false, limit: FORM_LIMIT }),
  );

  router.get('/connect/callback', page(callback));
  router.get(
    '/connect/:id',
    page<{ id: string }>((visit, { id }) => connect.consent(visit, id)),
  );
  router.post(
    '/connect/:id',
    page<{ id: string }>((visit, { id }) => connect.decide(visit, id)),
  );
  router.get(
    '/connect/:id/status',
    page<{ id: string }>((visit, { id }) => connect.status(visit, id)),
  );
  router.get(
    '/connections',
    page((visit) => account.list(visit)),
  );
  router.post(
    '/connections/:name/connect',
    page<{ name: string }>((visit, { name }) => account.connect(visit, name)),
  );
  router.post(
    '/connections/:name/disconnect',
    page<{ name: string }>((visit, { name }) => account.disconnect(visit, name)),
  );

  router.get(
    '/login',
    page(async (visit) => {
      const { req, res } = visit;
      await frame.guest(visit);
      const returnTo = safeReturnTo(req.query['to']);
      if (login === undefined) res.redirect(303, returnTo);
      else await login.begin(req, res, returnTo, req.query['again'] === '1');
    }),
  );
  const operator = createOperatorPage(deps, frame, deps.operatorCodes);
  router.get(
    `${OPERATOR_LOGIN}/:challenge`,
    page<{ challenge: string }>((visit, { challenge }) => operator(visit, challenge)),
  );
  router.get(
    '/login/callback',
    page(async (visit) => finishLogin(visit)),
  );
  router.post(
    '/logout',
    page(async (visit) => {
      const known = await frame.form(visit);
      if (known === undefined) return;
      await browsers.end(visit.req, visit.res);
      audit.record({ type: 'logout', userId: known.session.userId, requestId: visit.requestId });
      frame.notice(visit, {
        kind: 'good',
        title: 'You are signed out',
        text: 'Of Viaduct, that is; your sign-in service may still know you.',
        links: [{ href: '/login', text: 'Sign in again' }],
      });
    }),
  );

  if (server !== undefined) {
    const authorize = createAuthorizePages(deps, frame, server);
    router.get(
      '/oauth/interaction/:uid',
      page<{ uid: string }>((visit, { uid }) => authorize.ask(visit, uid)),
    );
    router.post(
      '/oauth/interaction/:uid',
      page<{ uid: string }>((visit, { uid }) => authorize.decide(visit, uid)),
    );
    router.post(
      '/connections/applications/withdraw',
      page((visit) => account.withdraw(visit)),
    );
  }

  if (config.auth.mode === 'builtin' && config.auth.builtin.login.type === 'development') {
    const { groups } = config.auth.builtin.login;
    const taken = machineClients(config);
    router.get(
      DEVELOPMENT_LOGIN,
      page(async (visit) => {
        const returnTo = safeReturnTo(visit.req.query['to']);
        // Browsers hold a form to its policy over every redirect that follows.
        const onward = returnTo.startsWith(OPERATOR_LOGIN) ? config.console.url : undefined;
        if (onward !== undefined) allowFormsTo(visit.res, onward);
        frame.show(visit, developmentLoginPage(returnTo));
      }),
    );
    router.post(
      DEVELOPMENT_LOGIN,
      page(async (visit) => {
        const { req, res, requestId } = visit;
        if (!frame.sameOrigin(visit)) return;
        await frame.guest(visit);
        const form = req.body as Record<string, unknown>;
        const returnTo = safeReturnTo(form['to']);
        const issuer = builtinIssuer(config.publicUrl);
        const user = developmentUser(form['user'], { issuer, groups, taken });
        if (user === undefined) {
          const problem = 'That is no name for a person here: no spaces, and not that of a client.';
          frame.show(visit, developmentLoginPage(returnTo, problem), { status: 400 });
          return;
        }
        await browsers.end(req, res);
        await browsers.create(res, { ...user, provenFor: returnTo });
        audit.record({ type: 'login.completed', userId: user.userId, requestId });
        res.redirect(303, returnTo);
      }),
    );
  }

  async function finishLogin(visit: Visit): Promise<void> {
    const { req, res, requestId } = visit;
    if (login === undefined) {
      res.redirect(303, '/connections');
      return;
    }
    await frame.guest(visit);
    const result = await login.finish(req, res);
    if (result.kind === 'user') {
      // A new login is a new session: whatever cookie was there before is worth nothing any more.
      await browsers.end(req, res);
      await browsers.create(res, result.user);
      audit.record({ type: 'login.completed', userId: result.user.userId, requestId });
      res.redirect(303, result.returnTo);
      return;
    }
    audit.record({
      type: 'login.refused',
      reason: result.reason,
      requestId,
      address: deps.addressOf(req),
    });
    const to = encodeURIComponent(result.returnTo ?? '/connections');
    const unconfirmed = result.reason === 'denied' || result.reason === 'not_asked_again';
    frame.notice(
      visit,
      {
        kind: 'bad',
        title: 'You are not signed in',
        text: unconfirmed
          ? 'Your sign-in service did not confirm who you are.'
          : 'The sign-in was begun in another browser, took too long, or did not come back as it should.',
        links: [{ href: `/login?to=${to}`, text: 'Sign in' }],
      },
      { status: unconfirmed ? 403 : 400 },
    );
  }

  return router;
}

/** For respond.ts: unexpected errors in the frame of the pages. */
export function errorPage(error: { title: string; message: string; requestId: string }): string {
  const { title, body } = noticePage({ kind: 'bad', title: error.title, text: error.message });
  return layout({ title, body, requestId: error.requestId });
}

/** The OpenID provider of browser logins; undefined where nobody logs in at one. */
function loginProvider({ auth, publicUrl, ...config }: Config): LoginProvider | undefined {
  const { groupsClaim } = auth;
  if (auth.mode === 'external') {
    const { issuer, login: client } = auth;
    return { issuer, client, scopes: ['profile'], groupsClaim, subjectIssuer: issuer };
  }
  if (auth.mode === 'builtin' && auth.builtin.login.type === 'oidc') {
    const { issuer, scopes, ...client } = auth.builtin.login;
    return {
      issuer,
      client,
      scopes,
      groupsClaim,
      subjectIssuer: builtinIssuer(publicUrl),
      taken: machineClients({ auth, publicUrl, ...config }),
    };
  }
  return undefined;
}

/** The subject of a machine's token is its client id (RFC 9068, 5): no person may have the same. */
function machineClients({ auth }: Config): ReadonlySet<string> {
  const clients = auth.mode === 'builtin' ? auth.builtin.clients : [];
  return new Set(
    clients
      .filter(({ grantTypes }) => grantTypes.includes('client_credentials'))
      .map(({ clientId }) => clientId),
  );
}
