/**
 * Browser login at the identity provider: OpenID Connect code flow with PKCE, state, nonce and `iss`. Whoever comes
 * back is the user `userIdOf(issuer, subject)`, the same as of that person's access tokens.
 *
 * The transaction lies in a sealed cookie of its own per attempt, so that two tabs that log in at once don't
 * overwrite each other, and a callback in another browser finds nothing (login CSRF).
 */
import { randomBytes } from 'node:crypto';
import type { Request, Response } from 'express';
import {
  AuthorizationResponseError,
  ClientError,
  allowInsecureRequests,
  authorizationCodeGrant,
  buildAuthorizationUrl,
  calculatePKCECodeChallenge,
  customFetch,
  discovery,
  None,
  ClientSecretBasic,
  ClientSecretPost,
  type ClientAuth,
  type Configuration,
} from 'openid-client';
import { createFetch, type Egress } from '@viaduct/shared/egress';
import { fail } from '@viaduct/shared/errors';
import { SealError, type Keyring } from '@viaduct/shared/keyring';
import type { Logger } from '@viaduct/shared/log';
import { userIdOf } from '@viaduct/shared/principal';
import type { BrowserUser, Cookies } from './browser.ts';

export type LoginResult =
  | { readonly kind: 'user'; readonly user: BrowserUser; readonly returnTo: string }
  | { readonly kind: 'refused'; readonly reason: string; readonly returnTo?: string };

export interface Login {
  /**
   * 303 to the identity provider; `again`: which is to ask who it is, whoever is signed in there.
   * @throws GatewayError when it cannot be reached
   */
  begin(req: Request, res: Response, returnTo: string, again?: boolean): Promise<void>;
  finish(req: Request, res: Response): Promise<LoginResult>;
}

/** The OpenID client of browser logins, and who its subjects are here. */
export interface LoginProvider {
  readonly issuer: string;
  /** Absent where browser logins are not set up. */
  readonly client: { readonly clientId: string; readonly clientSecret?: string } | undefined;
  readonly scopes: readonly string[];
  readonly groupsClaim: string;
  /** The issuer of access tokens, where it is not the provider itself (the built-in authorization server). */
  readonly subjectIssuer: string;
  /** Subjects that mean somebody else: machine clients. */
  readonly taken?: ReadonlySet<string>;
}

export interface LoginDeps {
  readonly provider: LoginProvider;
  readonly publicUrl: string;
  readonly development: boolean;
  readonly egress: Egress;
  readonly keyring: Pick<Keyring, 'seal' | 'open'>;
  readonly cookies: Cookies;
  readonly log: Logger;
}

interface Transaction {
  readonly state: string;
  readonly nonce: string;
  readonly codeVerifier: string;
  readonly returnTo: string;
  readonly again: boolean;
  readonly expiresAtMs: number;
}

const TRANSACTION_SECONDS = 600;
/** Abandoned attempts leave their cookies for ten minutes; more would fill the request's headers. */
const MAX_TRANSACTIONS = 4;
/** They go into every access token, and those into headers. */
const MAX_GROUPS = 100;
const METADATA_TTL_MS = 60 * 60_000;
const TIMEOUT_SECONDS = 8;
/** Between their clock and ours. */
const SKEW_MS = 60_000;
const STATE = /^[A-Za-z0-9_-]{43}$/;

/** Where a login may lead back to: our own pages, and nothing that a link's author could choose freely. */
export function safeReturnTo(path: unknown): string {
  return typeof path === 'string' &&
    /^\/(connections|(connect|oauth\/interaction|login\/operator)\/[A-Za-z0-9_-]{1,64}|connect\/[A-Za-z0-9_-]{1,64}\/status)$/.test(
      path,
    )
    ? path
    : '/connections';
}

export function createLogin(deps: LoginDeps): Login {
  const { provider: idp, publicUrl, keyring, cookies, log } = deps;
  const redirectUri = `${publicUrl}/login/callback`;
  /** A cache of the issuer's metadata. */
  let cached: { at: number; value: Promise<Configuration> } | undefined;

  const cookieName = (state: string): string => `login-${state.slice(0, 12)}`;
  const random = (): string => randomBytes(32).toString('base64url');

  function provider(): Promise<Configuration> {
    if (cached === undefined || Date.now() - cached.at > METADATA_TTL_MS) {
      const value = discover();
      cached = { at: Date.now(), value };
      value.catch(() => {
        if (cached?.value === value) cached = undefined;
      });
    }
    return cached.value;
  }

  async function discover(): Promise<Configuration> {
    const { client: login } = idp;
    if (login === undefined) {
      throw fail('unavailable', 'Signing in with a browser is not set up on this gateway.', {
        detail: 'auth.login is missing in the configuration',
      });
    }
    const issuer = new URL(idp.issuer);
    // eslint-disable-next-line @typescript-eslint/no-deprecated -- loopback http, in development alone
    const execute: ((c: Configuration) => void)[] = deps.development ? [allowInsecureRequests] : [];
    return discovery(issuer, login.clientId, undefined, clientAuth(login.clientSecret), {
      [customFetch]: createFetch({
        egress: deps.egress,
        development: deps.development,
        trustedOrigins: new Set([issuer.origin]),
      }),
      timeout: TIMEOUT_SECONDS,
      execute,
    });
  }

  async function reachable(): Promise<Configuration> {
    try {
      return await provider();
    } catch (error) {
      if (!(error instanceof ClientError) && !(error instanceof TypeError)) throw error;
      throw fail('unavailable', 'The sign-in service cannot be reached. Try again in a moment.', {
        headers: { 'Retry-After': '5' },
        detail: error.message,
      });
    }
  }

  async function takeTransaction(req: Request, res: Response): Promise<Transaction | undefined> {
    const state = req.query['state'];
    if (typeof state !== 'string' || !STATE.test(state)) return undefined;
    const sealed = cookies.get(req, cookieName(state));
    if (sealed === undefined) return undefined;
    cookies.clear(res, cookieName(state));
    try {
      const text = await keyring.open('cookie', sealed, { login: state });
      const transaction = JSON.parse(text) as Transaction;
      return transaction.expiresAtMs > Date.now() ? transaction : undefined;
    } catch (error) {
      if (error instanceof SealError) return undefined;
      throw error;
    }
  }

  return {
    async begin(req, res, returnTo, again = false) {
      const configuration = await reachable();
      const transaction: Transaction = {
        state: random(),
        nonce: random(),
        codeVerifier: random(),
        returnTo: safeReturnTo(returnTo),
        again,
        expiresAtMs: Date.now() + TRANSACTION_SECONDS * 1000,
      };
      const { state } = transaction;
      const sealed = await keyring.seal('cookie', JSON.stringify(transaction), { login: state });
      const open = cookies.named(req, 'login-');
      for (const name of open.slice(0, Math.max(0, open.length - MAX_TRANSACTIONS + 1))) {
        cookies.clear(res, name);
      }
      cookies.set(res, cookieName(state), sealed, TRANSACTION_SECONDS);
      const url = buildAuthorizationUrl(configuration, {
        redirect_uri: redirectUri,
        scope: [...new Set(['openid', ...idp.scopes])].join(' '),
        state,
        nonce: transaction.nonce,
        code_challenge: await calculatePKCECodeChallenge(transaction.codeVerifier),
        code_challenge_method: 'S256',
        ...(again && { prompt: 'login' }),
      });
      res.redirect(303, url.href);
    },

    async finish(req, res) {
      const transaction = await takeTransaction(req, res);
      if (transaction === undefined) return { kind: 'refused', reason: 'unknown_state' };
      const { returnTo, nonce, state, codeVerifier, again } = transaction;
      const configuration = await reachable();
      const current = new URL(publicUrl + req.originalUrl);
      try {
        const answer = await authorizationCodeGrant(configuration, current, {
          pkceCodeVerifier: codeVerifier,
          expectedState: state,
          expectedNonce: nonce,
          idTokenExpected: true,
        });
        const claims = answer.claims();
        if (claims?.iss !== idp.issuer) {
          return { kind: 'refused', reason: 'wrong_issuer', returnTo };
        }
        const displayName = [claims['name'], claims['preferred_username']].find(
          (name) => typeof name === 'string' && name !== '',
        );
        if (idp.taken?.has(claims.sub) === true) {
          return { kind: 'refused', reason: 'subject_taken', returnTo };
        }
        const begunAtMs = transaction.expiresAtMs - TRANSACTION_SECONDS * 1000;
        const saidMs = (claims.auth_time ?? 0) * 1000;
        if (again && saidMs > 0 && saidMs < begunAtMs - SKEW_MS) {
          return { kind: 'refused', reason: 'not_asked_again', returnTo };
        }
        const groups = claims[idp.groupsClaim];
        const user: BrowserUser = {
          userId: userIdOf(idp.subjectIssuer, claims.sub),
          issuer: idp.subjectIssuer,
          subject: claims.sub,
          // Whoever is let in without being asked may have been asked hours ago (OpenID Connect Core, 2: auth_time).
          provenAtMs: again ? Date.now() : saidMs,
          ...(again && { provenFor: returnTo }),
          groups: Array.isArray(groups)
            ? groups.filter((group) => typeof group === 'string').slice(0, MAX_GROUPS)
            : [],
          ...(typeof displayName === 'string' && { displayName: displayName.slice(0, 100) }),
        };
        return { kind: 'user', user, returnTo };
      } catch (error) {
        // Only its name: the causes of openid-client's errors hold codes and answers.
        const reason = error instanceof AuthorizationResponseError ? 'denied' : 'failed';
        const code = (error as { code?: unknown }).code;
        log.warn({ reason, outcome: typeof code === 'string' ? code : 'error' }, 'login failed');
        return { kind: 'refused', reason, returnTo };
      }
    },
  };
}

/** As the metadata wants it; client_secret_basic is the default (OpenID Connect Discovery, 3). */
function clientAuth(secret: string | undefined): ClientAuth {
  if (secret === undefined) return None();
  const basic = ClientSecretBasic(secret);
  const post = ClientSecretPost(secret);
  return (server, client, body, headers) => {
    const methods = server.token_endpoint_auth_methods_supported;
    const useBasic = methods === undefined || methods.includes('client_secret_basic');
    (useBasic ? basic : post)(server, client, body, headers);
  };
}
