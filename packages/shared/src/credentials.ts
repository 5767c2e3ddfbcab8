/**
 * The credential to send for a user and a connection, refreshed once for all pods.
 *
 * An access token is refreshed ahead of its expiry under a lease, with a re-read before and a compare-and-set
 * after. Who does not get the lease waits and re-reads. `invalid_grant` forgets the credential only if it is still
 * the current one: the loser of a race must not delete what the winner has just stored (cases O6). A server that has dropped
 * the client that it once registered for us ends the grant in the same way. A third party
 * that is away costs nothing while the old token lives.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger } from 'pino';
import type { Audit } from './audit.ts';
import type { ConnectionConfig } from './config.ts';
import type { JobQueue } from './jobs.ts';
import type { Leases } from './lease.ts';
import type { Metrics } from './metrics.ts';
import { keys } from './redis/keys.ts';
import type { Registrations } from './registrations.ts';
import {
  connectionHash,
  type Credential,
  type OAuthCredential,
  type OAuthTarget,
  type ThirdParty,
} from './third-party.ts';
import type { Stored, Vault } from './vault.ts';

export type CredentialResult =
  | { readonly kind: 'ready'; readonly stored: Stored }
  /** The user has to connect (again). */
  | {
      readonly kind: 'missing';
      readonly reason: 'not_connected' | 'changed' | 'expired' | 'revoked' | 'rejected';
    }
  /** There is a grant, but no token that lives, and the third party cannot give one now. */
  | { readonly kind: 'unavailable'; readonly detail: string };

export interface Credentials {
  credentialFor(
    userId: string,
    connection: ConnectionConfig,
    cause: string,
  ): Promise<CredentialResult>;
  /** An upstream answered 401 to this version: a newer one, or a refreshed one, or it is forgotten. */
  rejected(
    userId: string,
    connection: ConnectionConfig,
    version: string,
    cause: string,
  ): Promise<CredentialResult>;
  /**
   * For the worker, ahead of expiry: refreshes what is about to be due and has been used since it was obtained.
   * Reading for this purpose is no use.
   */
  renew(
    userId: string,
    connection: ConnectionConfig,
    cause: string,
  ): Promise<'refreshed' | 'not_due' | 'unused' | 'gone' | 'unavailable'>;
  /** Plans `renew` for a credential that has just been stored. Best effort: on demand it works without. */
  plan(userId: string, connection: ConnectionConfig, credential: Credential, cause: string): void;
  /** Revokes at the third party (best effort) and forgets. False when there was nothing. */
  disconnect(userId: string, connection: ConnectionConfig, cause: string): Promise<boolean>;
}

export interface CredentialsDeps {
  readonly vault: Vault;
  readonly leases: Leases;
  readonly thirdParty: Pick<ThirdParty, 'refresh' | 'revoke'>;
  readonly registrations: Pick<Registrations, 'forget'>;
  readonly jobs: Pick<JobQueue, 'enqueue'>;
  readonly metrics: Pick<Metrics, 'tokenRefreshes'>;
  readonly audit: Audit;
  readonly log: Logger;
  readonly now?: () => number;
}

/** A call refreshes a token with this long to live, or a quarter of its life where that is shorter. */
const AHEAD_MS = 30_000;
/** What is stored and used within this is one use, the storing. */
const USED_AFTER_MS = 250;
/** Longer than a refresh may take (third-party.ts gives it 10 s). */
const LEASE_MS = 15_000;
const WAIT_MS = 12_000;
const POLL_MS = 50;
/** After a refresh that failed for a passing reason, this pod lets the third party be. */
const PAUSE_MS = 3_000;
/** A token that was renewed for being refused, and is refused again at this age: another one won't help either. */
const SECOND_REFUSAL_MS = 5_000;
const MAX_PAUSES = 1_000;

export function createCredentials(deps: CredentialsDeps): Credentials {
  const { vault, thirdParty, metrics, audit, log } = deps;
  const now = deps.now ?? Date.now;
  /** Refreshes running in this process, so that one pod's parallel calls share one. */
  const running = new Map<string, Promise<CredentialResult>>();
  const pausedUntil = new Map<string, number>();

  const lives = ({ credential }: Stored, aheadMs: number): boolean => {
    const expiresAtMs = expiryOf(credential);
    return expiresAtMs === undefined || expiresAtMs - now() > aheadMs;
  };

  const ready = (stored: Stored): CredentialResult => ({ kind: 'ready', stored });

  /** @param use whether this reading is a use, which renews the credential's time to live */
  async function current(
    userId: string,
    connection: ConnectionConfig,
    use = true,
  ): Promise<Stored | Extract<CredentialResult, { kind: 'missing' }>> {
    const stored = await (use ? vault.load : vault.peek)(userId, connection.name);
    if (stored === undefined) return { kind: 'missing', reason: 'not_connected' };
    if (stored.credential.connectionHash !== connectionHash(connection)) {
      return { kind: 'missing', reason: 'changed' };
    }
    return stored;
  }

  async function forget(
    userId: string,
    connection: ConnectionConfig,
    version: string,
    reason: 'expired' | 'revoked' | 'rejected',
    cause: string,
  ): Promise<CredentialResult> {
    if (await vault.forget(userId, connection.name, version)) {
      audit.record({
        type: 'credential.forgotten',
        userId,
        requestId: cause,
        connection: connection.name,
        reason,
      });
      return { kind: 'missing', reason };
    }
    // Somebody was faster: what is there now is newer than what was refused.
    const after = await current(userId, connection);
    return 'kind' in after ? after : ready(after);
  }

  /** Under the lease: `stale` is the version that is not good enough. */
  async function refreshNow(
    userId: string,
    connection: ConnectionConfig,
    stale: string,
    why: 'due' | 'refused',
    cause: string,
  ): Promise<CredentialResult> {
    const before = await current(userId, connection, false);
    if ('kind' in before) return before;
    if (before.version !== stale) return ready(before);
    const name = connection.name;
    const target = targetOf(connection, before.credential);
    if (target === undefined || before.credential.kind !== 'oauth') return ready(before);
    const outcome = await thirdParty.refresh(target, before.credential);
    if (outcome.kind === 'granted') {
      const credential: OAuthCredential = {
        ...outcome.credential,
        ...(why === 'refused' && { renewedForRefusal: true as const }),
      };
      const version = await vault.replace(userId, name, credential, before.version);
      if (version !== false) {
        metrics.tokenRefreshes.inc({ connection: name, outcome: 'refreshed' });
        audit.record({ type: 'credential.refreshed', userId, requestId: cause, connection: name });
        plan(userId, connection, credential, cause);
        return ready({ credential, version });
      }
      metrics.tokenRefreshes.inc({ connection: name, outcome: 'superseded' });
      const after = await current(userId, connection, false);
      if (!('kind' in after)) return ready(after);
      // The user has disconnected while this was under way: what came back must not outlive that.
      await thirdParty.revoke(target, credential);
      return after;
    }
    metrics.tokenRefreshes.inc({ connection: name, outcome: outcome.kind });
    log.warn(
      { userId, connection: name, requestId: cause, outcome: outcome.kind, detail: outcome.detail },
      'a third-party token could not be refreshed',
    );
    if (outcome.kind === 'invalid_grant') {
      return forget(userId, connection, before.version, 'revoked', cause);
    }
    if (outcome.kind === 'unknown_client' && isOwnClient(connection)) {
      // With the client that it was given to, a grant is worth nothing; the next flow registers another.
      await deps.registrations.forget(target.issuer ?? '', target.clientId);
      return forget(userId, connection, before.version, 'revoked', cause);
    }
    pause(before.version);
    return { kind: 'unavailable', detail: outcome.detail };
  }

  function pause(version: string): void {
    if (pausedUntil.size >= MAX_PAUSES) pausedUntil.clear();
    pausedUntil.set(version, now() + PAUSE_MS);
  }

  async function refreshLeased(
    userId: string,
    connection: ConnectionConfig,
    stale: string,
    why: 'due' | 'refused',
    cause: string,
  ): Promise<CredentialResult> {
    const key = keys.lease(userId, `refresh:${connection.name}`);
    const until = now() + WAIT_MS;
    for (;;) {
      const turn = await deps.leases.withLease(key, { ttlMs: LEASE_MS, waitMs: 0 }, () =>
        refreshNow(userId, connection, stale, why, cause),
      );
      if (turn.held) return turn.value;
      await sleep(POLL_MS);
      // Reading is cheaper than knocking: the winner's result shows itself here.
      const after = await current(userId, connection, false);
      if ('kind' in after || after.version !== stale) return 'kind' in after ? after : ready(after);
      if (now() > until) return { kind: 'unavailable', detail: 'another refresh takes too long' };
    }
  }

  function refresh(
    userId: string,
    connection: ConnectionConfig,
    stale: string,
    why: 'due' | 'refused',
    cause: string,
  ): Promise<CredentialResult> {
    const id = `${userId} ${connection.name}`;
    const shared = running.get(id);
    if (shared !== undefined) return shared;
    const own = refreshLeased(userId, connection, stale, why, cause).finally(() =>
      running.delete(id),
    );
    running.set(id, own);
    return own;
  }

  const plan: Credentials['plan'] = (userId, connection, credential, cause) => {
    if (credential.kind !== 'oauth' || credential.refreshToken === undefined) return;
    const { expiresAtMs } = credential;
    if (expiresAtMs === undefined) return;
    // Twice as early as calls do it, so that no call has to wait for it.
    const delayMs = Math.max(0, expiresAtMs - now() - 2 * aheadOf(credential));
    const payload = { userId, connection: connection.name, requestId: cause || 'none' };
    deps.jobs
      .enqueue('refresh-connection', payload, { delayMs, suffix: String(expiresAtMs) })
      .catch((error: unknown) => {
        log.warn({ err: error, userId, connection: connection.name }, 'no refresh is planned');
      });
  };

  return {
    plan,

    async renew(userId, connection, cause) {
      const stored = await vault.peek(userId, connection.name);
      if (stored?.credential.kind !== 'oauth') return 'gone';
      const { credential, version } = stored;
      if (credential.connectionHash !== connectionHash(connection)) return 'gone';
      if (credential.refreshToken === undefined) return 'gone';
      if (lives(stored, 2 * aheadOf(credential) + 1_000)) return 'not_due';
      if (stored.lastUsedMs - credential.obtainedAtMs < USED_AFTER_MS) return 'unused';
      const result = await refresh(userId, connection, version, 'due', cause);
      if (result.kind === 'unavailable') return 'unavailable';
      return result.kind === 'ready' ? 'refreshed' : 'gone';
    },

    async credentialFor(userId, connection, cause) {
      const stored = await current(userId, connection);
      if ('kind' in stored) return stored;
      if (lives(stored, aheadOf(stored.credential))) return ready(stored);
      if (stored.credential.kind !== 'oauth' || stored.credential.refreshToken === undefined) {
        if (lives(stored, 0)) return ready(stored);
        return forget(userId, connection, stored.version, 'expired', cause);
      }
      const paused = (pausedUntil.get(stored.version) ?? 0) > now();
      const result: CredentialResult = paused
        ? { kind: 'unavailable', detail: 'tried a moment ago' }
        : await refresh(userId, connection, stored.version, 'due', cause);
      // Away, but the old token still lives: better than an error.
      return result.kind === 'unavailable' && lives(stored, 0) ? ready(stored) : result;
    },

    async rejected(userId, connection, version, cause) {
      const stored = await current(userId, connection);
      if ('kind' in stored) return stored;
      if (stored.version !== version) return ready(stored);
      if (stored.credential.kind !== 'oauth') {
        return forget(userId, connection, version, 'rejected', cause);
      }
      const { refreshToken, renewedForRefusal, obtainedAtMs } = stored.credential;
      const again = renewedForRefusal === true && now() - obtainedAtMs < SECOND_REFUSAL_MS;
      if (refreshToken === undefined || again) {
        return forget(userId, connection, version, 'rejected', cause);
      }
      return refresh(userId, connection, version, 'refused', cause);
    },

    async disconnect(userId, connection, cause) {
      const stored = await vault.load(userId, connection.name).catch((error: unknown) => {
        // Sealed with a key that is gone: it cannot be revoked any more, but it can be forgotten.
        log.warn(
          { err: error, userId, connection: connection.name },
          'forgetting what cannot be read',
        );
        return undefined;
      });
      const forgotten = await vault.forget(userId, connection.name);
      if (stored === undefined) return forgotten;
      const target = targetOf(connection, stored.credential);
      const reason =
        target === undefined || stored.credential.kind !== 'oauth'
          ? 'unsupported'
          : await thirdParty.revoke(target, stored.credential);
      audit.record({
        type: 'credential.revoked',
        userId,
        requestId: cause,
        connection: connection.name,
        reason,
      });
      return true;
    },
  };
}

/** The server and client that a credential came from; undefined where there is none to ask. */
export function targetOf(
  connection: ConnectionConfig,
  credential: Credential,
): OAuthTarget | undefined {
  if (connection.type === 'oauth') return connection;
  return credential.kind === 'oauth' ? credential.target : undefined;
}

/** A client that this gateway has got by itself; one of the operator's is the operator's to mend. */
export const isOwnClient = (connection: ConnectionConfig): boolean =>
  connection.type === 'mcp' && connection.clientId === undefined;

const expiryOf = (credential: Credential): number | undefined =>
  credential.kind === 'oauth' ? credential.expiresAtMs : undefined;

function aheadOf(credential: Credential): number {
  const expiresAtMs = expiryOf(credential);
  if (expiresAtMs === undefined) return AHEAD_MS;
  return Math.min(AHEAD_MS, (expiresAtMs - credential.obtainedAtMs) / 4);
}

/** A credential as the headers that its connection wants it in (`inject` of the configuration). */
export function injectHeaders(
  { inject }: ConnectionConfig,
  credential: Credential | { readonly kind: 'secret'; readonly values: Record<string, string> },
): Record<string, string> {
  const values: Readonly<Record<string, string>> =
    credential.kind === 'secret' ? credential.values : { accessToken: credential.accessToken };
  const value = inject.value.replace(
    /\{\{\s*([A-Za-z][A-Za-z0-9_]*)\s*\}\}/g,
    (_match, name: string) => values[name] ?? '',
  );
  return { [inject.header]: value };
}
