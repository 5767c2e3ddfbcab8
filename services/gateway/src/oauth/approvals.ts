/**
 * What users have allowed which OAuth client: remembered per user *and* client, with the redirects and the scopes it
 * was given for (MCP security best practices, Confused Deputy). And the grants that came of it, so that they can be
 * taken back.
 */
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';
import { destroyGrant } from './adapter.ts';
import { redirectIdentity } from './redirects.ts';

export interface Approved {
  readonly clientId: string;
  readonly clientName?: string;
  readonly host?: string;
  readonly redirects: readonly string[];
  /** By resource. */
  readonly scopes: Readonly<Record<string, readonly string[]>>;
  readonly approvedAtMs: number;
  readonly grants: readonly string[];
}

export interface Asked {
  readonly clientId: string;
  readonly clientName?: string;
  readonly host?: string;
  readonly redirectUri: string;
  readonly resource: string;
  readonly scopes: readonly string[];
}

export interface Account {
  readonly subject: string;
  readonly groups: readonly string[];
}

const MAX_GRANTS = 20;

export function covers(approved: Approved, asked: Asked): boolean {
  const scopes = approved.scopes[asked.resource];
  return (
    scopes !== undefined &&
    approved.redirects.includes(redirectIdentity(asked.redirectUri)) &&
    asked.scopes.every((scope) => scopes.includes(scope))
  );
}

export function createApprovals(deps: { readonly redis: Redis; readonly ttlSeconds: number }) {
  const { redis, ttlSeconds } = deps;

  async function find(userId: string, clientId: string): Promise<Approved | undefined> {
    const text = await redis.hget(keys.oidcApproved(userId), clientId);
    return text === null ? undefined : (JSON.parse(text) as Approved);
  }

  return {
    find,

    async list(userId: string): Promise<Approved[]> {
      const all = Object.values(await redis.hgetall(keys.oidcApproved(userId)));
      return all.map((text) => JSON.parse(text) as Approved);
    },

    async save(userId: string, asked: Asked, grantId: string): Promise<void> {
      const before = await find(userId, asked.clientId);
      const { clientId, clientName, host, resource } = asked;
      const grants = [...(before?.grants ?? []), grantId];
      // A client that signs in again and again leaves its older refresh tokens behind.
      const surplus = grants.splice(0, Math.max(0, grants.length - MAX_GRANTS));
      await Promise.all(surplus.map((id) => destroyGrant(redis, id)));
      const entry: Approved = {
        clientId,
        ...(clientName !== undefined && { clientName }),
        ...(host !== undefined && { host }),
        redirects: [
          ...new Set([...(before?.redirects ?? []), redirectIdentity(asked.redirectUri)]),
        ],
        scopes: {
          ...before?.scopes,
          [resource]: [...new Set([...(before?.scopes[resource] ?? []), ...asked.scopes])],
        },
        approvedAtMs: Date.now(),
        grants,
      };
      const key = keys.oidcApproved(userId);
      await redis.hset(key, clientId, JSON.stringify(entry));
      await redis.expire(key, ttlSeconds);
    },

    /** The approval, and what was issued on its strength. */
    async forget(userId: string, clientId: string): Promise<boolean> {
      const entry = await find(userId, clientId);
      if (entry === undefined) return false;
      await redis.hdel(keys.oidcApproved(userId), clientId);
      await Promise.all(entry.grants.map((grantId) => destroyGrant(redis, grantId)));
      return true;
    },

    async account(userId: string): Promise<Account | undefined> {
      const text = await redis.get(keys.oidcAccount(userId));
      return text === null ? undefined : (JSON.parse(text) as Account);
    },

    /** What tokens say of the user until the next login: as long as a refresh token may live. */
    async saveAccount(userId: string, account: Account): Promise<void> {
      await redis.set(keys.oidcAccount(userId), JSON.stringify(account), 'EX', ttlSeconds);
    },

    async forgetAccount(userId: string): Promise<void> {
      await redis.del(keys.oidcAccount(userId));
    },
  };
}
export type Approvals = ReturnType<typeof createApprovals>;
