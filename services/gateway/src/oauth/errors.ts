/**
 * Errors of the authorization server for machines, in OAuth's own form (RFC 6749, 5.2; RFC 7591, 3.2.2):
 * `{ error, error_description, request_id }`, whether oidc-provider, the edge or Redis is at fault. Redis away is 503
 * with Retry-After and `temporarily_unavailable` (RFC 6749, 4.1.2.1), never a word about the client or its token.
 * Where people are (`/oauth/authorize`, `/oauth/interaction`) an error is a page.
 */
import type { ErrorRequestHandler } from 'express';
import { isStoreError, storeUnavailable, type ErrorCode } from '@viaduct/shared/errors';
import type { Responder } from '../respond.ts';
import type { ErrorContext } from './provider.ts';

export const METADATA = '/.well-known/oauth-authorization-server';
export const OPENID = '/.well-known/openid-configuration';

export type ErrorPage = (error: { title: string; message: string; requestId: string }) => string;

const NAMES: Partial<Record<ErrorCode, string>> = {
  rate_limited: 'temporarily_unavailable',
  store_unavailable: 'temporarily_unavailable',
  unavailable: 'temporarily_unavailable',
  draining: 'temporarily_unavailable',
  internal: 'server_error',
  forbidden: 'access_denied',
};

export function createOAuthErrors({ explain }: Pick<Responder, 'explain'>): ErrorRequestHandler {
  // Express tells error handlers by their four parameters.
  return (error: unknown, _req, res, _next) => {
    const requestId = String(res.getHeader('X-Request-Id') ?? '');
    const refused = explain(error, requestId);
    if (res.headersSent) {
      res.destroy();
      return;
    }
    res.set({
      ...refused.headers,
      'Cache-Control': 'no-store',
      'X-Content-Type-Options': 'nosniff',
    });
    res.status(refused.status).json({
      error: NAMES[refused.code] ?? 'invalid_request',
      error_description: refused.message,
      request_id: requestId,
    });
  };
}

/** Which of oidc-provider's requests met a Redis that was away; it knows only that something failed. */
export class StoreFaults {
  readonly #met = new WeakSet<object>();

  /** False for any other error. */
  note(ctx: object, error: unknown): boolean {
    if (!isStoreError(error)) return false;
    this.#met.add(ctx);
    return true;
  }

  /** Puts 503 in the place of what the answer has become; false where nothing has to be. */
  correct(ctx: ErrorContext): boolean {
    if (!this.#met.has(ctx)) return false;
    const { status, message, headers } = storeUnavailable(undefined);
    ctx.status = status;
    // A redirect would have told the client that the request is over.
    ctx.remove('Location');
    for (const [name, value] of Object.entries(headers)) ctx.set(name, value);
    ctx.set('Cache-Control', 'no-store');
    ctx.body = { error: 'temporarily_unavailable', error_description: message };
    return true;
  }
}

/** Everything but where people are: there, errors are pages. */
export function isForMachines(url: string): boolean {
  const [path = ''] = url.split('?');
  if (path === `${METADATA}/oauth` || path === `${OPENID}/oauth`) return true;
  return path.startsWith('/oauth/') && !/^\/oauth\/(authorize|interaction)(\/|$)/.test(path);
}

interface Words {
  readonly title: string;
  readonly message: string;
}

const STORE_AWAY: Words = {
  title: 'Not reachable just now',
  message:
    'What this needs cannot be reached. Nothing was granted; load the page again in a moment.',
};
const badRequest = (why: string): Words => ({
  title: 'This request cannot be answered',
  message: `The application sent you here with a request that is not in order: ${why}. Nothing was granted; go back to the application and begin again.`,
});

function showError(ctx: ErrorContext, page: Words, errorPage: ErrorPage): void {
  ctx.type = 'html';
  ctx.set('Cache-Control', 'no-store');
  ctx.set(
    'Content-Security-Policy',
    "default-src 'none'; style-src 'self'; img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
  );
  ctx.set('X-Frame-Options', 'DENY');
  ctx.set('X-Content-Type-Options', 'nosniff');
  ctx.set('Referrer-Policy', 'no-referrer');
  ctx.body = errorPage({
    ...page,
    requestId: String(ctx.res.getHeader('X-Request-Id') ?? ''),
  });
}

export function showBadRequest(ctx: ErrorContext, why: string, errorPage: ErrorPage): void {
  showError(ctx, badRequest(why), errorPage);
}

export function showStoreAway(ctx: ErrorContext, errorPage: ErrorPage): void {
  showError(ctx, STORE_AWAY, errorPage);
}
