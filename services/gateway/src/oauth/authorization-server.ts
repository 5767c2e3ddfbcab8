/**
 * The built-in authorization server (`auth.mode: builtin`): oidc-provider behind our edge, and what the pages need
 * to ask a person.
 *
 * Promises: nothing is issued, and nothing remembered, before the user has approved this client (or has before: same
 * redirect, same resource, no further scope); every document says the same issuer; token, registration, key and
 * metadata endpoints can be read by any origin because they look at no cookie; the authorization endpoint by none.
 * Does not show pages (pages/authorize.ts) and does not know who is logged in (pages/browser.ts).
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { Router, type ErrorRequestHandler, type Request, type Response } from 'express';
import type { Provider } from 'oidc-provider';
import { addressSubject } from '@viaduct/shared/address';
import type { Audit } from '@viaduct/shared/audit';
import type { BuiltinAuth, Config } from '@viaduct/shared/config';
import type { Egress } from '@viaduct/shared/egress';
import { fail, storeUnavailable } from '@viaduct/shared/errors';
import type { Keyring } from '@viaduct/shared/keyring';
import type { Logger } from '@viaduct/shared/log';
import { rateLimited, type Limits, type Wanted } from '@viaduct/shared/rate-limit';
import type { Redis } from '@viaduct/shared/redis/client';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import { builtinIssuer } from '../challenges.ts';
import type { Edge } from '../edge.ts';
import type { Responder } from '../respond.ts';
import { createAdapters } from './adapter.ts';
import { covers, createApprovals, type Approved, type Asked } from './approvals.ts';
import { createDocuments, documentUrl } from './documents.ts';
import {
  createOAuthErrors,
  type ErrorPage,
  isForMachines,
  METADATA,
  OPENID,
  showBadRequest,
  showStoreAway,
  StoreFaults,
} from './errors.ts';
import { createProvider } from './provider.ts';
import { isLoopbackRedirect } from './redirects.ts';
import { shapeForm, shapeQuery, shapeRegistration } from './shape.ts';
import type { SigningKeys } from './signing-keys.ts';

/** One authorization request that waits for its user. */
export interface Question extends Asked {
  readonly uid: string;
  /** Who says what the client is: the operator, the owner of its URL, or only itself. */
  readonly vouched: 'configuration' | 'url' | 'nobody';
  readonly loopback: boolean;
  /** The client wants the page (`prompt=consent`), or a new login. */
  readonly prompts: readonly string[];
  /** When the person has to have shown who they are: for this very request, or not longer ago than that. */
  readonly proof?: 'now' | { readonly sinceMs: number };
}

export interface Decider {
  readonly userId: string;
  readonly subject: string;
  readonly groups?: readonly string[];
  readonly provenAtMs?: number;
}

export interface AuthorizationServer {
  /** Mount before anything that refuses foreign origins. */
  readonly router: Router;
  /** The request whose cookie this browser has; undefined if there is none. */
  question(req: Request, res: Response, uid: string): Promise<Question | undefined>;
  remembered(user: Decider, question: Question): Promise<boolean>;
  /** Remembers, grants, and sends the browser back to the client. */
  approve(req: Request, res: Response, user: Decider, question: Question): Promise<void>;
  deny(req: Request, res: Response): Promise<void>;
  approvals(userId: string): Promise<Approved[]>;
  /** False when there was nothing. */
  withdraw(userId: string, clientId: string): Promise<boolean>;
  /** Every approval of a user, and the account: no token is issued for it before the next login. */
  withdrawAll(userId: string): Promise<void>;
}

export interface AuthorizationServerDeps {
  readonly config: Config;
  readonly auth: BuiltinAuth;
  readonly redis: Redis;
  readonly scripts: Pick<Scripts, 'consumeOnce'>;
  readonly keyring: Keyring;
  readonly signing: SigningKeys;
  readonly egress: Egress;
  readonly edge: Edge;
  readonly limits: Pick<Limits, 'checkAll'>;
  readonly audit: Audit;
  readonly log: Logger;
  readonly isUp: () => boolean;
  readonly explain: Responder['explain'];
  readonly errorPage: ErrorPage;
}

export function createAuthorizationServer(deps: AuthorizationServerDeps): AuthorizationServer {
  const { config, auth, redis, keyring, edge, audit, log } = deps;
  const { builtin, baseScopes } = auth;
  const issuer = builtinIssuer(config.publicUrl);
  const approvals = createApprovals({ redis, ttlSeconds: builtin.refreshTokenSeconds + 86_400 });
  const documents = createDocuments({
    redis,
    egress: deps.egress,
    audit,
    development: config.development,
  });
  const provider = createProvider({
    config,
    auth,
    issuer,
    keyring,
    signing: deps.signing,
    egress: deps.egress,
    approvals,
    adapter: createAdapters({
      redis,
      scripts: deps.scripts,
      keyring,
      builtin,
      document: (clientId) =>
        builtin.clientIdMetadataDocuments ? documents.load(clientId) : Promise.resolve(undefined),
    }),
    renderError: (ctx, message) => {
      showBadRequest(ctx, message, deps.errorPage);
    },
  });
  const faults = new StoreFaults();
  listen(provider, audit, log, faults);
  provider.use(async (ctx, next) => {
    await next();
    if (faults.correct(ctx) && ctx.path.startsWith('/authorize')) {
      showStoreAway(ctx, deps.errorPage);
      return;
    }
    if (ctx.method === 'GET' && (ctx.path === METADATA || ctx.path === OPENID)) {
      Object.assign(ctx.body as object, {
        scopes_supported: baseScopes,
        ...(builtin.clientIdMetadataDocuments && { client_id_metadata_document_supported: true }),
        protected_resources: [
          `${config.publicUrl}/mcp`,
          ...config.upstreams.map(({ name }) => `${config.publicUrl}/mcp/${name}`),
        ],
      });
      ctx.set('Cache-Control', 'public, max-age=60');
    }
  });

  const handle = provider.callback() as (
    req: IncomingMessage,
    res: ServerResponse,
  ) => Promise<void>;
  const publicAddress = new URL(config.publicUrl);
  const clientScopes = new Map(builtin.clients.map(({ clientId, scopes }) => [clientId, scopes]));

  /** A machine that names no scope gets what it was registered for; a refresh keeps what it has. */
  const scopeOfForm = (req: IncomingMessage) => (form: URLSearchParams) => {
    if (form.get('grant_type') !== 'client_credentials') return '';
    const basic = /^Basic (.+)$/i.exec(req.headers.authorization ?? '')?.[1] ?? '';
    const [user = ''] = Buffer.from(basic, 'base64').toString('utf8').split(':');
    const clientId = form.get('client_id') ?? safeDecode(user);
    return (clientScopes.get(clientId) ?? baseScopes).join(' ');
  };

  async function serve(req: Request, res: Response): Promise<void> {
    const address = edge.addressOf(req);
    const path = req.path;
    if (req.method === 'POST') {
      const subject = addressSubject(address);
      const wanted: Wanted[] = [{ limit: 'address', subject }];
      if (path === '/register') wanted.push({ limit: 'registrations', subject });
      const verdict = await deps.limits.checkAll(wanted);
      if (verdict !== undefined) {
        audit.record({
          type: 'rate.limited',
          limit: verdict.limit,
          address,
          requestId: String(res.getHeader('X-Request-Id')),
        });
        throw rateLimited(verdict);
      }
    }
    if (req.method === 'GET' && path === '/authorize') {
      shapeQuery(req, baseScopes.join(' '));
      forgetSession(req);
    } else if (path.startsWith('/authorize/')) {
      // The way back to a request that the cookie names. What else the address says is nobody's parameter, and
      // oidc-provider stumbles over a client without a redirect there.
      req.url = path;
    } else if (req.method === 'POST' && (path === '/token' || path === '/revoke')) {
      await shapeForm(req, path === '/token' ? scopeOfForm(req) : () => '');
    } else if (req.method === 'POST' && path === '/register' && isJson(req)) {
      await shapeRegistration(req);
    }
    // oidc-provider builds URLs from the request. What is public is publicUrl's alone, never a proxy's word.
    req.originalUrl = `/oauth${req.url}`;
    req.headers['x-forwarded-proto'] = publicAddress.protocol.slice(0, -1);
    req.headers['x-forwarded-host'] = publicAddress.host;
    await handle(req, res);
  }

  const router = Router({ caseSensitive: true, strict: false });
  const own = new Set(['/authorize']);
  const up: (req: Request, res: Response, next: (error?: unknown) => void) => void = (
    _req,
    _res,
    next,
  ) => {
    next(deps.isUp() ? undefined : storeUnavailable(undefined));
  };
  const open = edge.middleware('public');
  const closed = edge.middleware('own');
  router.get([`${METADATA}/oauth`, `${OPENID}/oauth`], open, async (req, res) => {
    req.url = METADATA;
    await serve(req, res);
  });
  router.options([`${METADATA}/oauth`, `${OPENID}/oauth`], open);
  router.use('/oauth', (req, res, next) => {
    // Our own pages come later, behind the pages' headers.
    if (req.path.startsWith('/interaction/')) {
      next('router');
      return;
    }
    const mine = own.has(req.path) || req.path.startsWith('/authorize/');
    (mine ? closed : open)(req, res, next);
  });
  router.use('/oauth', up, async (req, res, next) => {
    const allowed = methodsOf(req.path);
    if (allowed === undefined) next(fail('not_found', 'There is nothing at this address.'));
    else if (!allowed.includes(req.method)) {
      const headers = { Allow: allowed.join(', ') };
      next(fail('method_not_allowed', `Use ${allowed.join(' or ')} here.`, { headers }));
    } else await serve(req, res);
  });
  const forMachines = createOAuthErrors(deps);
  const answerError: ErrorRequestHandler = (error, req, res, next) => {
    if (isForMachines(req.originalUrl)) forMachines(error, req, res, next);
    else next(error);
  };
  router.use(answerError);

  return {
    router,

    async question(req, res, uid) {
      try {
        const details = await provider.interactionDetails(req, res);
        if (details.uid !== uid) return undefined;
        const { params, prompt, iat } = details;
        const text = (name: string): string => {
          const value = params[name];
          return typeof value === 'string' ? value : '';
        };
        const client = await provider.Client.find(text('client_id'));
        if (client === undefined) return undefined;
        const resource = text('resource');
        const name = resource.slice(`${config.publicUrl}/mcp`.length + 1);
        const limit = clientScopes.get(client.clientId);
        const known = new Set(scopesFor(config, name));
        const url = documentUrl(client.clientId, config.development);
        const configured = clientScopes.has(client.clientId);
        const redirectUri = text('redirect_uri');
        const clientName = client.clientName;
        const host = url?.host ?? (client.clientUri && URL.parse(client.clientUri)?.host);
        const prompts = prompt.reasons.flatMap((reason) =>
          reason.endsWith('_prompt') ? [reason.slice(0, -7)] : [],
        );
        return {
          uid,
          clientId: client.clientId,
          ...(clientName !== undefined && { clientName: clientName.slice(0, 100) }),
          ...(typeof host === 'string' && { host }),
          vouched: configured ? 'configuration' : url !== undefined ? 'url' : 'nobody',
          redirectUri,
          loopback: isLoopbackRedirect(redirectUri),
          resource,
          scopes: text('scope')
            .split(' ')
            .filter((scope) => known.has(scope) && (limit?.includes(scope) ?? true)),
          prompts,
          ...proofFor(iat, prompts.includes('login'), params['max_age']),
        };
      } catch (error) {
        if ((error as Error).name === 'SessionNotFound') return undefined;
        throw error;
      }
    },

    async remembered(user, question) {
      if (question.prompts.length > 0) return false;
      // Anybody on this machine can pass for a client whose id is public and whose redirect is a port of it
      // (RFC 8252, 8.6); an id that we made is known to the one installation that registered it.
      if (question.loopback && question.vouched === 'url') return false;
      const approved = await approvals.find(user.userId, question.clientId);
      return approved !== undefined && covers(approved, question);
    },

    async approve(req, res, user, question) {
      const { subject, userId, provenAtMs = 0 } = user;
      const { clientId, resource, scopes } = question;
      const grant = new provider.Grant({ accountId: subject, clientId });
      grant.addOIDCScope('openid offline_access');
      grant.addResourceScope(resource, scopes.join(' '));
      const grantId = await grant.save();
      await approvals.saveAccount(userId, { subject, groups: user.groups ?? [] });
      await approvals.save(userId, question, grantId);
      await provider.interactionFinished(
        req,
        res,
        {
          login: {
            accountId: subject,
            remember: false,
            ...(provenAtMs > 0 && { ts: Math.floor(provenAtMs / 1000) }),
          },
          consent: { grantId },
        },
        { mergeWithLastSubmission: false },
      );
    },

    async deny(req, res) {
      await provider.interactionFinished(
        req,
        res,
        { error: 'access_denied', error_description: 'the user has denied this' },
        { mergeWithLastSubmission: false },
      );
    },

    approvals: approvals.list,
    withdraw: approvals.forget,

    async withdrawAll(userId) {
      await approvals.forgetAccount(userId);
      const all = await approvals.list(userId);
      for (const { clientId } of all) await approvals.forget(userId, clientId);
    },
  };
}

/** OpenID Connect Core, 3.1.2.1: `prompt=login` is a login of now, and so is `max_age=0`. */
function proofFor(askedAt: number, login: boolean, maxAge: unknown): Pick<Question, 'proof'> {
  if (login || (maxAge !== undefined && Number(maxAge) === 0)) return { proof: 'now' };
  return maxAge === undefined ? {} : { proof: { sinceMs: (askedAt - Number(maxAge)) * 1000 } };
}

const scopesFor = (config: Config, name: string): string[] => [
  ...config.auth.baseScopes,
  ...config.upstreams
    .filter((one) => name === '' || one.name === name)
    .flatMap((one) => [...one.scopes, ...Object.values(one.tools).flatMap((tool) => tool.scopes)]),
];

const READ = ['GET', 'HEAD'];
const METHODS: readonly (readonly [RegExp, readonly string[]])[] = [
  [/^\/authorize\/?$/, [...READ, 'POST']],
  [/^\/authorize\/[A-Za-z0-9_-]+\/?$/, READ],
  [/^\/(token|register|revoke)\/?$/, ['POST']],
  [/^\/jwks\/?$/, READ],
  [/^\/\.well-known\/(openid-configuration|oauth-authorization-server)\/?$/, READ],
];
/** What oidc-provider serves at a path below `/oauth`; undefined for any other. */
const methodsOf = (path: string): readonly string[] | undefined =>
  METHODS.find(([pattern]) => pattern.test(path))?.[1];

const isJson = (req: IncomingMessage): boolean =>
  /^application\/json\b/i.test(req.headers['content-type'] ?? '');

const safeDecode = (text: string): string => {
  try {
    return decodeURIComponent(text.replaceAll('+', ' '));
  } catch {
    return ''; // no client has such a name; oidc-provider refuses the header itself
  }
};

/** Each authorization begins without oidc-provider's own session: who is there is the browser session's to say. */
function forgetSession(req: IncomingMessage): void {
  const cookies = (req.headers.cookie ?? '').split(';').map((pair) => pair.trim());
  req.headers.cookie = cookies
    .filter((pair) => !/^[\w-]*viaduct-oauth-session/.test(pair))
    .join('; ');
}

/** oidc-provider's events in our records. Its errors hold no tokens, but their causes may. */
function listen(provider: Provider, audit: Audit, log: Logger, faults: StoreFaults): void {
  const requestIdOf = (ctx: { res: ServerResponse }): string =>
    String(ctx.res.getHeader('X-Request-Id') ?? '');
  provider.on('registration_create.success', (ctx, client) => {
    audit.record({
      type: 'client.registered',
      clientId: client.clientId,
      requestId: requestIdOf(ctx),
    });
  });
  provider.on('grant.revoked', (ctx) => {
    audit.record({
      type: 'grant.revoked',
      clientId: ctx.oidc.client?.clientId,
      requestId: requestIdOf(ctx),
    });
  });
  provider.on('server_error', (ctx, error: Error) => {
    if (faults.note(ctx, error)) {
      log.warn({ requestId: requestIdOf(ctx), err: error }, 'redis is not reachable');
    } else
      log.error({ requestId: requestIdOf(ctx), err: error }, 'the authorization server failed');
  });
}
