/**
 * `type: token-exchange` (RFC 8693): the user's verified identity becomes a token for an upstream inside the company.
 * What is exchanged is the gateway's own short-lived statement about the user (assertions.ts), never the token that
 * the client presented. The result is cached, sealed like any credential, until shortly before its expiry.
 */
import type { Assertions } from './assertions.ts';
import type { Audit } from './audit.ts';
import type { TokenExchangeConnection } from './config.ts';
import type { CredentialResult } from './credentials.ts';
import type { Leases } from './lease.ts';
import type { Metrics } from './metrics.ts';
import type { Principal } from './principal.ts';
import { keys } from './redis/keys.ts';
import { connectionHash, type GrantFailure, type ThirdParty } from './third-party.ts';
import type { Vault } from './vault.ts';

export type ExchangeResult =
  | Extract<CredentialResult, { kind: 'ready' }>
  | { readonly kind: Exclude<GrantFailure, 'invalid_grant'>; readonly detail: string };

export interface TokenExchange {
  tokenFor(
    principal: Principal,
    connection: TokenExchangeConnection,
    cause: string,
    /** A version that the upstream has refused. */
    refused?: string,
  ): Promise<ExchangeResult>;
}

export interface TokenExchangeDeps {
  readonly vault: Pick<Vault, 'load' | 'store'>;
  readonly leases: Leases;
  readonly thirdParty: Pick<ThirdParty, 'exchangeToken'>;
  readonly assertions: Assertions;
  readonly metrics: Pick<Metrics, 'tokenRefreshes'>;
  readonly audit: Audit;
}

const AHEAD_MS = 30_000;
const LEASE = { ttlMs: 15_000, waitMs: 12_000 } as const;
/** A token this young that is refused: another one will not help. */
const YOUNG_MS = 5_000;
/** For answers without `expires_in`. */
const DEFAULT_SECONDS = 300;

export function createTokenExchange(deps: TokenExchangeDeps): TokenExchange {
  const { vault, thirdParty, assertions, metrics, audit } = deps;

  async function cached(
    userId: string,
    connection: TokenExchangeConnection,
    refused?: string,
  ): Promise<ExchangeResult | undefined> {
    const stored = await vault.load(userId, connection.name).catch(() => undefined);
    if (stored?.credential.kind !== 'oauth') return undefined;
    const { obtainedAtMs, expiresAtMs = 0, connectionHash: hash } = stored.credential;
    if (stored.version === refused) {
      return Date.now() - obtainedAtMs < YOUNG_MS
        ? { kind: 'denied', detail: 'the upstream refuses a fresh token' }
        : undefined;
    }
    const ahead = Math.min(AHEAD_MS, (expiresAtMs - obtainedAtMs) / 4);
    const good = hash === connectionHash(connection) && expiresAtMs - Date.now() > ahead;
    return good ? { kind: 'ready', stored } : undefined;
  }

  return {
    async tokenFor(principal, connection, cause, refused) {
      const { userId } = principal;
      const found = await cached(userId, connection, refused);
      if (found !== undefined) return found;
      const key = keys.lease(userId, `exchange:${connection.name}`);
      const turn = await deps.leases.withLease(key, LEASE, async (): Promise<ExchangeResult> => {
        const meanwhile = await cached(userId, connection, refused);
        if (meanwhile !== undefined) return meanwhile;
        const assertion = await assertions.sign(principal, connection.tokenEndpoint);
        const outcome = await thirdParty.exchangeToken(connection, assertion);
        metrics.tokenRefreshes.inc({
          connection: connection.name,
          outcome: outcome.kind === 'granted' ? 'exchanged' : outcome.kind,
        });
        if (outcome.kind !== 'granted') {
          const kind = outcome.kind === 'invalid_grant' ? 'denied' : outcome.kind;
          return { kind, detail: outcome.detail };
        }
        const { expiresAtMs = Date.now() + DEFAULT_SECONDS * 1000 } = outcome.credential;
        const credential = { ...outcome.credential, expiresAtMs };
        const seconds = Math.max(1, Math.ceil((expiresAtMs - Date.now()) / 1000));
        const version = await vault.store(userId, connection.name, credential, seconds);
        audit.record({
          type: 'credential.stored',
          userId,
          clientId: principal.clientId,
          requestId: cause,
          connection: connection.name,
        });
        return { kind: 'ready', stored: { credential, version } };
      });
      return turn.held
        ? turn.value
        : { kind: 'unavailable', detail: 'another exchange takes too long' };
    },
  };
}
