/**
 * The identity provider's signing keys: found by discovery or given, kept, and fetched again when a token
 * names one that is not among them.
 *
 * Promises: a new key works with the first token that names it; a flood of made-up key ids costs one request
 * per cooldown (case O4); while the identity provider is away, known keys go on working; when there never were
 * any, the caller learns that it is not the token's fault. Nobody waits longer than `waitMs`.
 */
import {
  createRemoteJWKSet,
  customFetch,
  errors,
  type FlattenedJWSInput,
  type JWSHeaderParameters,
} from 'jose';
import type { Logger } from 'pino';
import { isSecureUrl, type ExternalAuth } from '@viaduct/shared/config';
import { fail } from '@viaduct/shared/errors';

export type Fetch = typeof globalThis.fetch;
type KeySet = ReturnType<typeof createRemoteJWKSet>;
type Key = Awaited<ReturnType<KeySet>>;

export interface IssuerKeys {
  /** For `jwtVerify`. @throws GatewayError `unavailable`, or jose's own errors */
  readonly find: (header: JWSHeaderParameters, token: FlattenedJWSInput) => Promise<Key>;
  /** Begins to load, so that the first request finds keys. Never throws. */
  warm(): void;
}

export interface IssuerKeysDeps {
  readonly auth: ExternalAuth;
  readonly development: boolean;
  readonly log: Logger;
  readonly fetch?: Fetch;
  /** Epoch milliseconds. */
  readonly clock?: () => number;
  readonly waitMs?: number;
}

/** One request to the identity provider. */
const FETCH_TIMEOUT_MS = 5_000;
/** Between two fetches for key ids that turn out not to exist; one that brings a new key costs nothing. */
const COOLDOWN_MS = 5_000;
/** Between attempts while there are no keys at all. */
const RETRY_MS = 1_000;
/** Older keys are fetched again beside the request, so that a withdrawn one stops working. */
const REFRESH_AFTER_MS = 600_000;

export function createIssuerKeys(deps: IssuerKeysDeps): IssuerKeys {
  const {
    auth,
    development,
    log,
    fetch = globalThis.fetch,
    clock = Date.now,
    waitMs = 2_000,
  } = deps;
  let keySet: KeySet | undefined;
  let fetchedAt = -Infinity;
  let notBefore = -Infinity;
  let lastFetchFailed = false;
  let pending: Promise<void> | undefined;

  async function discover(): Promise<URL> {
    if (auth.jwksUri !== undefined) return new URL(auth.jwksUri);
    const faults: string[] = [];
    for (const url of metadataUrls(auth.issuer)) {
      const response = await fetch(url, {
        redirect: 'error',
        headers: { Accept: 'application/json' },
        signal: AbortSignal.timeout(FETCH_TIMEOUT_MS),
      });
      if (!response.ok) {
        faults.push(`${url}: ${response.status}`);
        await response.body?.cancel();
        continue;
      }
      const metadata = (await response.json()) as { issuer?: unknown; jwks_uri?: unknown };
      // RFC 8414, 3.3 and OpenID Connect Discovery, 4.3: identical, or it must not be used.
      if (metadata.issuer !== auth.issuer) {
        faults.push(`${url}: its issuer is not the configured one`);
        continue;
      }
      const jwksUri = typeof metadata.jwks_uri === 'string' ? URL.parse(metadata.jwks_uri) : null;
      if (jwksUri !== null && isSecureUrl(jwksUri, development)) return jwksUri;
      faults.push(`${url}: has no jwks_uri that may be used`);
    }
    throw new Error(`no usable metadata: ${faults.join('; ')}`);
  }

  async function load(): Promise<void> {
    try {
      // After a failure also the address is looked up again: it may have moved.
      if (keySet === undefined || lastFetchFailed || clock() - fetchedAt > REFRESH_AFTER_MS) {
        const next = remoteKeys(await discover(), fetch);
        await next.reload();
        keySet = next;
      } else {
        await keySet.reload();
      }
      fetchedAt = clock();
      lastFetchFailed = false;
    } catch (error) {
      lastFetchFailed = true;
      notBefore = clock() + (keySet === undefined ? RETRY_MS : COOLDOWN_MS);
      log.warn({ err: error, issuer: auth.issuer }, 'keys of the identity provider not fetched');
      throw error;
    }
  }

  /** One fetch at a time; whoever needs it joins the one under way. */
  function reload(): Promise<void> {
    pending ??= load().finally(() => {
      pending = undefined;
    });
    pending.catch(() => undefined); // every waiter sees it; without waiters it has been logged
    return pending;
  }

  const away = (cause?: unknown) =>
    fail('unavailable', 'The identity provider is not reachable. Try again in a moment.', {
      headers: { 'Retry-After': '2' },
      cause,
    });

  async function reloadInTime(): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error('the identity provider is slow')), waitMs);
    });
    try {
      await Promise.race([reload(), late]);
    } catch (error) {
      throw away(error);
    } finally {
      clearTimeout(timer);
    }
  }

  return {
    warm() {
      void reload();
    },

    async find(header, token) {
      if (keySet === undefined) {
        if (pending === undefined && clock() < notBefore) throw away();
        await reloadInTime();
      } else if (clock() - fetchedAt > REFRESH_AFTER_MS && clock() >= notBefore) {
        void reload();
      }
      if (keySet === undefined) throw away();
      try {
        return await keySet(header, token);
      } catch (error) {
        if (!(error instanceof errors.JWKSNoMatchingKey)) throw error;
        if (pending === undefined) {
          // Whether such a key exists could not be asked lately: that is no verdict on the token.
          if (clock() < notBefore) throw lastFetchFailed ? away(error) : error;
          notBefore = clock() + COOLDOWN_MS;
        }
        await reloadInTime();
        const key = await keySet(header, token);
        // Not fruitless: another rotation may follow at once, and nobody can make keys appear at will.
        notBefore = -Infinity;
        return key;
      }
    },
  };
}

/** jose's own caching is off: when to fetch is decided above. */
function remoteKeys(url: URL, fetch: Fetch): KeySet {
  return createRemoteJWKSet(url, {
    cooldownDuration: Infinity,
    cacheMaxAge: Infinity,
    timeoutDuration: FETCH_TIMEOUT_MS,
    [customFetch]: fetch,
  });
}

/** OpenID Connect Discovery, 4; then RFC 8414, 3.1, which puts the well-known part before the path. */
function metadataUrls(issuer: string): string[] {
  const { origin, pathname } = new URL(issuer);
  const path = pathname.replace(/\/$/, '');
  return [
    `${origin}${path}/.well-known/openid-configuration`,
    `${origin}/.well-known/oauth-authorization-server${path}`,
  ];
}
