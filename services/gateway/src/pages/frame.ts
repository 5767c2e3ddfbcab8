/**
 * What the routes of the pages share: who is there, is this form ours, and the frame around each answer.
 */
import type { Request, Response } from 'express';
import type { Audit } from '@viaduct/shared/audit';
import type { Config } from '@viaduct/shared/config';
import type { Consents } from '@viaduct/shared/consents';
import type { Credentials } from '@viaduct/shared/credentials';
import type { Elicitations } from '@viaduct/shared/elicitations';
import type { Flows } from '@viaduct/shared/flows';
import type { JobQueue } from '@viaduct/shared/jobs';
import type { Logger } from '@viaduct/shared/log';
import { addressSubject } from '@viaduct/shared/address';
import { rateLimited, type Limits } from '@viaduct/shared/rate-limit';
import type { ThirdParty } from '@viaduct/shared/third-party';
import type { UpstreamOAuth } from '@viaduct/shared/upstream-oauth';
import type { Vault } from '@viaduct/shared/vault';
import { builtinIssuer } from '../challenges.ts';
import type { AuthorizationServer } from '../oauth/oauth.ts';
import type { Browsers, BrowserSession, BrowserUser } from './browser.ts';
import type { Html } from './html.ts';
import { layout, type Live } from './layout.ts';
import type { Login } from './login.ts';
import { noticePage, type NoticeView } from './views.ts';

export interface PageServices {
  readonly config: Config;
  readonly elicitations: Elicitations;
  readonly flows: Flows;
  readonly thirdParty: ThirdParty;
  readonly credentials: Credentials;
  readonly consents: Consents;
  readonly vault: Vault;
  readonly upstreamOAuth: UpstreamOAuth;
  readonly jobs: JobQueue;
  readonly limits: Limits;
  readonly audit: Audit;
  readonly log: Logger;
  readonly authorizationServer?: AuthorizationServer;
}

/** One request for a page. */
export interface Visit {
  readonly req: Request;
  readonly res: Response;
  readonly requestId: string;
}

export interface KnownVisit extends Visit {
  readonly session: BrowserSession;
}

export interface ShowOptions {
  readonly status?: number;
  readonly session?: BrowserSession;
  readonly live?: Live;
}

export interface Frame {
  visit(req: Request, res: Response): Visit;
  show(visit: Visit, page: { title: string; body: Html }, options?: ShowOptions): void;
  notice(visit: Visit, notice: NoticeView, options?: ShowOptions): void;
  /** The one page for what does not exist, and for what is somebody else's. */
  notFound(visit: Visit, session: BrowserSession): void;
  session(visit: Visit): Promise<BrowserSession | undefined>;
  /** The session, or undefined after the browser has been sent to log in. */
  known(visit: Visit, returnTo: string): Promise<KnownVisit | undefined>;
  /** Sends the browser to show who it is, though somebody is signed in. */
  askAgain(visit: Visit, returnTo: string): Promise<void>;
  /**
   * For every POST: same origin, and the CSRF token of this session. Undefined after it has been refused.
   */
  form(visit: Visit): Promise<KnownVisit | undefined>;
  csrf(session: BrowserSession): string;
  /** Does this form come from a page of ours? False after it has been refused. */
  sameOrigin(visit: Visit): boolean;
  /** Nobody is signed in: one more request of this address. @throws GatewayError `rate_limited` */
  guest(visit: Visit): Promise<void>;
}

/** Back to this very page, as whoever the sign-in service then says it is. */
const anotherAccount = ({ req }: Visit): string =>
  `/login?again=1&to=${encodeURIComponent(req.path)}`;

export interface FrameDeps {
  readonly config: Config;
  readonly audit: Audit;
  readonly limits: Pick<Limits, 'check'>;
  readonly browsers: Browsers;
  readonly login: Login | undefined;
  /** `auth.mode: none`: everybody is this user, and nobody logs in. */
  readonly fixedUser: BrowserUser | undefined;
  readonly addressOf: (req: Request) => string;
}

export function createFrame(deps: FrameDeps): Frame {
  const { browsers, fixedUser, audit, config } = deps;

  const show: Frame['show'] = ({ res, requestId }, { title, body }, options = {}) => {
    const { session, live, status = 200 } = options;
    const page = layout({
      title,
      body,
      requestId,
      ...(live !== undefined && { live }),
      ...(session !== undefined && {
        session: {
          ...(session.displayName !== undefined && { displayName: session.displayName }),
          csrf: browsers.csrfToken(session),
          fixed: fixedUser !== undefined,
        },
      }),
    });
    res.status(status).type('html').send(page);
  };

  const notice: Frame['notice'] = (visit, view, options) => show(visit, noticePage(view), options);

  async function session(visit: Visit): Promise<BrowserSession | undefined> {
    const { req, res } = visit;
    const found = await browsers.load(req);
    // A session of another mode or issuer is none.
    const issuer = config.auth.mode === 'builtin' ? builtinIssuer(config.publicUrl) : undefined;
    if (
      found !== undefined &&
      (fixedUser === undefined || found.userId === fixedUser.userId) &&
      (issuer === undefined || found.issuer === issuer)
    ) {
      return found;
    }
    if (fixedUser !== undefined) return browsers.create(res, fixedUser);
    await guest(visit);
    return undefined;
  }

  async function guest({ req, requestId }: Visit): Promise<void> {
    const address = deps.addressOf(req);
    const verdict = await deps.limits.check('address', addressSubject(address));
    if (verdict.allowed) return;
    audit.record({ type: 'rate.limited', limit: 'address', requestId, address });
    throw rateLimited(verdict);
  }

  async function logIn({ req, res }: Visit, returnTo: string, again = false): Promise<void> {
    if (deps.login === undefined) throw new Error('no login and no fixed user');
    await deps.login.begin(req, res, returnTo, again);
  }

  /** The edge lets further origins (allowedOrigins) through for MCP; a form on a page is ours alone. */
  function isForeign({ req }: Visit): boolean {
    const origin = req.get('origin');
    const site = req.get('sec-fetch-site');
    return (
      (origin !== undefined && origin !== config.publicUrl) ||
      (origin === undefined && site !== undefined && site !== 'same-origin' && site !== 'none')
    );
  }

  function refuseForm(visit: Visit, session: BrowserSession | undefined, text: string): void {
    audit.record({
      type: 'csrf.refused',
      path: visit.req.path.replace(/[A-Za-z0-9_-]{22}/, ':id'),
      requestId: visit.requestId,
      userId: session?.userId,
      address: deps.addressOf(visit.req),
    });
    notice(
      visit,
      { kind: 'bad', title: 'This form was not accepted', text },
      { status: 403, ...(session !== undefined && { session }) },
    );
  }

  return {
    visit: (req, res) => ({ req, res, requestId: String(res.getHeader('X-Request-Id') ?? '') }),
    show,
    notice,
    session,
    guest,
    csrf: (known) => browsers.csrfToken(known),

    notFound(visit, known) {
      notice(
        visit,
        {
          kind: 'bad',
          title: 'There is no such link',
          text:
            'It may be misspelled, too old, or not meant for the account that you are signed in with. ' +
            'Links belong to the person whose application asked.',
          links: [
            { href: '/connections', text: 'Your connections' },
            ...(fixedUser === undefined
              ? [{ href: anotherAccount(visit), text: 'Use another account' }]
              : []),
          ],
        },
        { status: 404, session: known },
      );
    },

    async known(visit, returnTo) {
      const found = await session(visit);
      if (found !== undefined) return { ...visit, session: found };
      await logIn(visit, returnTo);
      return undefined;
    },

    askAgain: (visit, returnTo) => logIn(visit, returnTo, true),

    sameOrigin(visit) {
      if (!isForeign(visit)) return true;
      refuseForm(visit, undefined, 'It came from another website. Nothing was changed.');
      return false;
    },

    async form(visit) {
      const { req } = visit;
      const foreign = isForeign(visit);
      const found = await browsers.load(req);
      if (found === undefined) await guest(visit);
      if (foreign) {
        refuseForm(visit, undefined, 'It came from another website. Nothing was changed.');
        return undefined;
      }
      const token = (req.body as Record<string, unknown> | undefined)?.['csrf'];
      if (found === undefined || !browsers.csrfMatches(found, token)) {
        refuseForm(
          visit,
          found,
          'The page may have been open for too long. Nothing was changed; go back, reload it and try again.',
        );
        return undefined;
      }
      return { ...visit, session: found };
    },
  };
}
