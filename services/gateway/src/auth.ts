/**
 * Bearer token in, principal out; and the challenges that tell a client what to do instead (RFC 6750,
 * RFC 9728, MCP authorization).
 *
 * Promises: a principal is proven by a signature of the configured issuer for this very resource, and by
 * nothing else; a token that was verified once costs a hash and a map on later requests, and never outlives
 * its `exp` there; expired comes before everything else that may be missing (case O7); faults of the identity
 * provider are 503, never 401.
 * Does not decide what an operation needs: callers bring the scopes.
 */
import { hash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import type { Logger } from 'pino';
import type { Audit } from '@viaduct/shared/audit';
import type { Config } from '@viaduct/shared/config';
import { fail } from '@viaduct/shared/errors';
import type { Metrics } from '@viaduct/shared/metrics';
import { userIdOf, type Principal } from '@viaduct/shared/principal';
import { Refused, verifyAccessToken } from './access-token.ts';
import { builtinIssuer, createChallenges } from './challenges.ts';
import { countHeader } from './edge.ts';
import { createIssuerKeys, type Fetch, type IssuerKeys } from './issuer-keys.ts';
import { createTokenCache, type VerifiedToken } from './token-cache.ts';

export interface Authenticator {
  /** Begins to load the issuer's keys, so that the first request finds them. */
  warm(): void;
  /**
   * @param resource URL of the endpoint called, `<publicUrl>/mcp[/<upstream>]`
   * @throws GatewayError `unauthorized` with the challenge, or `unavailable` without keys
   */
  authenticate(req: IncomingMessage, resource: string, requestId?: string): Promise<Principal>;
  /** Who has been proven before, for this resource, by the token of this request: without waiting for anything. */
  recognize(req: IncomingMessage, resource: string): Principal | undefined;
  /** Are these, beside the base scopes, covered? */
  hasScopes(principal: Principal, needed: readonly string[]): boolean;
  /**
   * Base scopes and `needed` (the upstream's and the tool's), all in one challenge.
   *
   * @throws GatewayError `insufficient_scope`
   */
  requireScopes(
    principal: Principal,
    needed: readonly string[],
    resource: string,
    requestId?: string,
  ): void;
}

export interface AuthenticatorDeps {
  readonly config: Config;
  readonly log: Logger;
  readonly metrics: Pick<Metrics, 'authFailures' | 'scopeChallenges'>;
  readonly audit: Audit;
  /** Of the built-in authorization server. */
  readonly builtinKeys?: Pick<IssuerKeys, 'find'>;
  /** Have this user's tokens of that time been revoked? */
  readonly isRevoked?: (userId: string, issuedAtMs: number) => boolean;
  readonly fetch?: Fetch;
  /** Epoch milliseconds. */
  readonly clock?: () => number;
}

export function createAuthenticator(deps: AuthenticatorDeps): Authenticator {
  const { config, metrics, audit } = deps;
  const { auth } = config;
  const challenges = createChallenges(config);
  const prover = auth.mode === 'none' ? createDeveloper(config) : createProver(auth, deps);

  function unauthorized(error: Refused, resource: string, requestId: string | undefined) {
    const { reason, message } = error;
    metrics.authFailures.inc({ reason });
    if (reason !== 'missing') {
      audit.record({ type: 'auth.refused', reason, endpoint: resource, requestId });
    }
    const challenge =
      reason === 'missing'
        ? challenges.login(resource)
        : challenges.invalidToken(resource, message);
    return fail('unauthorized', `${message}.`, {
      headers: { 'WWW-Authenticate': challenge },
      ...(error.cause instanceof Error && { detail: error.cause.message }),
    });
  }

  const covered = (principal: Principal, scopes: readonly string[]): boolean =>
    scopes.every((scope) => grants(principal.scopes, scope));

  return {
    warm: () => prover.warm(),

    async authenticate(req, resource, requestId) {
      try {
        return await prover.prove(req, resource);
      } catch (error) {
        if (error instanceof Refused) throw unauthorized(error, resource, requestId);
        throw error;
      }
    },

    recognize: (req, resource) => prover.recognize(req, resource),

    hasScopes: covered,

    requireScopes(principal, needed, resource, requestId) {
      if (covered(principal, auth.baseScopes) && covered(principal, needed)) return;
      const scopes = [...new Set([...auth.baseScopes, ...needed])];
      metrics.scopeChallenges.inc();
      const { userId, clientId } = principal;
      audit.record({
        type: 'scope.challenged',
        scopes,
        endpoint: resource,
        requestId,
        userId,
        clientId,
      });
      throw fail('insufficient_scope', `This needs the scopes ${scopes.join(' ')}.`, {
        headers: { 'WWW-Authenticate': challenges.insufficientScope(resource, scopes) },
        data: { scopes },
      });
    },
  };
}

interface Prover {
  warm(): void;
  recognize(req: IncomingMessage, resource: string): Principal | undefined;
  /** @throws Refused, or GatewayError `unavailable` */
  prove(req: IncomingMessage, resource: string): Promise<Principal>;
}

type TokenAuth = Exclude<Config['auth'], { mode: 'none' }>;

function keysOf(auth: TokenAuth, deps: AuthenticatorDeps): Pick<IssuerKeys, 'find' | 'warm'> {
  const { config, log, fetch, clock = Date.now } = deps;
  if (auth.mode === 'builtin') {
    if (deps.builtinKeys === undefined) throw new Error('builtin needs its own keys');
    return { find: deps.builtinKeys.find, warm: () => undefined };
  }
  const { development } = config;
  return createIssuerKeys({ auth, development, log, clock, ...(fetch && { fetch }) });
}

function createProver(auth: TokenAuth, deps: AuthenticatorDeps): Prover {
  const { config, clock = Date.now, isRevoked } = deps;
  const keys = keysOf(auth, deps);
  const { groupsClaim, clockSkewSeconds } = auth;
  const issuer = auth.mode === 'builtin' ? builtinIssuer(config.publicUrl) : auth.issuer;
  const rules = { issuer, groupsClaim, clockSkewSeconds };
  const audience = auth.mode === 'external' ? auth.audience : undefined;
  const cache = createTokenCache();
  const keyOf = (token: string): string => hash('sha256', token, 'binary');

  /** Per request: the same token comes to endpoints that it is for, and to others. */
  function fault({ principal, resources, issuedAtMs }: VerifiedToken, resource: string) {
    const meant = audience
      ? audience.some((accepted) => principal.audience.includes(accepted))
      : resources.has(resource);
    if (!meant) return 'audience';
    return isRevoked?.(principal.userId, issuedAtMs) === true ? 'revoked' : undefined;
  }

  return {
    warm: () => keys.warm(),
    recognize(req, resource) {
      const header = req.headers.authorization;
      if (header?.startsWith('Bearer ') !== true) return undefined;
      if (countHeader(req, 'authorization') > 1) return undefined;
      const verified = cache.get(keyOf(header.slice(7)), clock());
      return verified === undefined || fault(verified, resource) !== undefined
        ? undefined
        : verified.principal;
    },
    async prove(req, resource) {
      const token = readToken(req);
      const key = keyOf(token);
      let verified = cache.get(key, clock());
      if (verified === undefined) {
        verified = await verifyAccessToken(token, rules, keys, clock());
        cache.set(key, verified, clock());
      }
      const reason = fault(verified, resource);
      if (reason !== undefined) throw new Refused(reason);
      return verified.principal;
    },
  };
}

/** The one token of a request. @throws Refused */
function readToken(req: IncomingMessage): string {
  const header = req.headers.authorization;
  if (header === undefined) {
    // RFC 6750, 2.3 and MCP, Token Requirements: URLs end in logs and histories.
    throw new Refused(/[?&]access_token=/.test(req.url ?? '') ? 'in_url' : 'missing');
  }
  // Node keeps the first of several; a proxy in front may have checked the last.
  if (countHeader(req, 'authorization') > 1) throw new Refused('several');
  if (header.startsWith('Bearer ')) return header.slice(7).trimStart();
  // Any other spelling: the scheme's case, more spaces, another scheme (RFC 9110, 11.1).
  const match = /^([!#$%&'*+.^_`|~0-9a-z-]+)(?: +(.*))?$/i.exec(header);
  if (match?.[1]?.toLowerCase() !== 'bearer') throw new Refused(match ? 'missing' : 'malformed');
  return match[2] ?? '';
}

/**
 * Does the set cover the scope? A broader one implies narrower ones (MCP 2026-07-28, Scope Challenge Handling:
 * MUST): `files` and `files:*` cover `files:read`. Only whole segments of `:` count; `chat.write` says nothing
 * about `chat.write.public`.
 */
export function grants(granted: ReadonlySet<string>, scope: string): boolean {
  if (granted.has(scope)) return true;
  for (let at = scope.lastIndexOf(':'); at > 0; at = scope.lastIndexOf(':', at - 1)) {
    const broader = scope.slice(0, at);
    if (granted.has(broader) || granted.has(`${broader}:*`)) return true;
  }
  return false;
}

/** The one person of `auth.mode: none`, in browsers as well as in clients. */
export function developerOf({ publicUrl }: Pick<Config, 'publicUrl'>): {
  userId: string;
  issuer: string;
  subject: string;
} {
  const subject = 'developer';
  return { userId: userIdOf(publicUrl, subject), issuer: publicUrl, subject };
}

/** `auth.mode: none`: one person who may do everything that is configured. */
function createDeveloper(config: Config): Prover {
  const rules = config.upstreams.flatMap((upstream) => Object.values(upstream.tools));
  const principal: Principal = {
    ...developerOf(config),
    clientId: 'development',
    scopes: new Set([
      ...config.auth.baseScopes,
      ...config.upstreams.flatMap((upstream) => upstream.scopes),
      ...rules.flatMap((rule) => rule.scopes),
    ]),
    groups: [...new Set(rules.flatMap((rule) => rule.groups))],
    audience: [],
    expiresAtMs: Infinity,
  };
  return {
    warm: () => undefined,
    recognize: () => principal,
    prove: async () => principal,
  };
}
