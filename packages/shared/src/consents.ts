/**
 * Which OAuth client a user has approved for which connection. A credential in the vault serves a client only
 * with this approval (design, section 9): else one client's consent would be every client's (MCP 2025-11-25,
 * security best practices, Confused Deputy).
 *
 * Also remembers *wishes*: clients that were refused for want of a credential or an approval, so that the
 * connections page can offer them to people whose client cannot open links.
 */
import type { Config } from './config.ts';
import type { Redis } from './redis/client.ts';
import { keys } from './redis/keys.ts';

export interface Approval {
  readonly connection: string;
  readonly clientId: string;
  readonly clientName?: string;
  readonly approvedAtMs: number;
  readonly elicitationId: string;
}

export interface Wish {
  readonly connection: string;
  readonly clientId: string;
  readonly clientName?: string;
  readonly endpoint: string;
  readonly upstream: string;
  readonly requestId: string;
  readonly capabilities: string;
  readonly atMs: number;
}

export interface Consents {
  approved(userId: string, connection: string, clientId: string): Promise<boolean>;
  list(userId: string): Promise<Approval[]>;
  /** All clients of this connection. */
  forget(userId: string, connection: string): Promise<void>;
  wish(userId: string, wish: Wish): Promise<void>;
  wishes(userId: string): Promise<Wish[]>;
  fulfil(userId: string, connection: string, clientId: string): Promise<void>;
}

export interface ConsentsDeps {
  readonly redis: Redis;
  readonly config: Pick<Config, 'vault'>;
}

const WISH_SECONDS = 7 * 86_400;
const MAX_WISHES = 20;

/** Connection names have no space, so the field is unambiguous whatever a client id looks like. */
const fieldOf = (connection: string, clientId: string): string => `${connection} ${clientId}`;

/** What `elicitations.complete` writes in the same step as the credential. */
export function consentEntry(approval: Approval): { field: string; value: string } {
  return {
    field: fieldOf(approval.connection, approval.clientId),
    value: JSON.stringify(approval),
  };
}

export function createConsents({ redis, config }: ConsentsDeps): Consents {
  const ttlSeconds = Math.ceil(config.vault.idleDays * 86_400);

  const all = async <T>(key: string): Promise<[field: string, value: T][]> =>
    Object.entries(await redis.hgetall(key)).map(([field, value]) => [
      field,
      JSON.parse(value) as T,
    ]);

  return {
    async approved(userId, connection, clientId) {
      const key = keys.consent(userId);
      // Sent together (autopipelining): an approval in use lives as long as the credential that it opens.
      const [value] = await Promise.all([
        redis.hget(key, fieldOf(connection, clientId)),
        redis.expire(key, ttlSeconds),
      ]);
      return value !== null;
    },

    async list(userId) {
      return (await all<Approval>(keys.consent(userId))).map(([, approval]) => approval);
    },

    async forget(userId, connection) {
      const key = keys.consent(userId);
      const fields = (await redis.hkeys(key)).filter((field) => field.startsWith(`${connection} `));
      if (fields.length > 0) await redis.hdel(key, ...fields);
    },

    async wish(userId, wish) {
      const key = keys.wish(userId);
      await redis.hset(key, fieldOf(wish.connection, wish.clientId), JSON.stringify(wish));
      await redis.expire(key, WISH_SECONDS);
      if ((await redis.hlen(key)) <= MAX_WISHES) return;
      const oldest = (await all<Wish>(key)).sort(([, a], [, b]) => b.atMs - a.atMs);
      const surplus = oldest.slice(MAX_WISHES).map(([field]) => field);
      if (surplus.length > 0) await redis.hdel(key, ...surplus);
    },

    async wishes(userId) {
      const found = (await all<Wish>(keys.wish(userId))).map(([, wish]) => wish);
      return found.sort((a, b) => b.atMs - a.atMs);
    },

    async fulfil(userId, connection, clientId) {
      await redis.hdel(keys.wish(userId), fieldOf(connection, clientId));
    },
  };
}
