/**
 * Storage of oidc-provider in Redis, so that any pod goes on with what another began (case O9).
 *
 * Promises: every key has a TTL; names are hashes and values sealed, so a copy of Redis holds no token that works;
 * what may be used once is marked by one script, and the mark is never unmade by a late write; a refresh token that
 * was rotated less than `refreshGraceSeconds` ago still reads as unused, and its successor is the same one for every
 * pod (provider.ts). Does not decide what expires when: oidc-provider does.
 */
import { createHash } from 'node:crypto';
import { errors, type Adapter, type AdapterPayload } from 'oidc-provider';
import { SealError, type Keyring } from '@viaduct/shared/keyring';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import { checkRedirects } from './redirects.ts';

export interface AdapterDeps {
  readonly redis: Redis;
  readonly scripts: Pick<Scripts, 'consumeOnce'>;
  readonly keyring: Pick<Keyring, 'seal' | 'open'>;
  readonly builtin: { readonly refreshTokenSeconds: number; readonly refreshGraceSeconds: number };
  /** Client ids that are URLs; undefined for any other. */
  readonly document: (clientId: string) => Promise<AdapterPayload | undefined>;
}

/** What a grant has issued, and goes with it. */
const ISSUED = new Set(['AccessToken', 'AuthorizationCode', 'RefreshToken']);
/** A registered client that nobody has approved yet. */
const UNUSED_CLIENT_SECONDS = 86_400;
/** Models without a time of their own. */
const DEFAULT_SECONDS = 86_400;

const hashOf = (id: string): string =>
  createHash('sha256').update(id).digest('base64url').slice(0, 32);

export function createAdapters(deps: AdapterDeps): (model: string) => Adapter {
  const { redis, scripts, keyring, builtin } = deps;
  const usedClientSeconds = builtin.refreshTokenSeconds + UNUSED_CLIENT_SECONDS;

  return (model) => {
    const keyOf = (id: string): string => keys.oidc(model, hashOf(id));

    async function open(key: string): Promise<AdapterPayload | undefined> {
      const sealed = await redis.get(key);
      if (sealed === null) return undefined;
      try {
        return JSON.parse(await keyring.open('oauth', sealed, { key })) as AdapterPayload;
      } catch (error) {
        // Its key has been retired: it is gone, as if it had expired.
        if (error instanceof SealError) return undefined;
        throw error;
      }
    }

    async function withUse(payload: AdapterPayload | undefined, id: string) {
      if (payload === undefined || (model !== 'RefreshToken' && model !== 'AuthorizationCode')) {
        return payload;
      }
      const used = await redis.get(keys.oidcUsed(model, hashOf(id)));
      if (used === null) return payload;
      const graceMs = model === 'RefreshToken' ? builtin.refreshGraceSeconds * 1000 : 0;
      if (Date.now() < Number(used) + graceMs) return payload;
      return { ...payload, consumed: Math.floor(Number(used) / 1000) };
    }

    return {
      async upsert(id, payload, expiresIn) {
        const key = keyOf(id);
        if (model === 'Client') checkRedirects(payload);
        const seconds = Math.max(
          1,
          Math.ceil(expiresIn ?? (model === 'Client' ? UNUSED_CLIENT_SECONDS : DEFAULT_SECONDS)),
        );
        const sealed = await keyring.seal('oauth', JSON.stringify(payload), { key });
        if (model === 'RefreshToken') {
          // Twenty refreshes at once write the same successor; one that comes late must not renew it.
          await redis.set(key, sealed, 'EX', seconds, 'NX');
        } else if (model === 'ReplayDetection') {
          // oidc-provider looks before it writes; of two pods that saw nothing, one is first.
          const first = await redis.set(key, sealed, 'EX', seconds, 'NX');
          if (first === null) throw new errors.InvalidClientAuth('the assertion was used already');
        } else {
          await redis.set(key, sealed, 'EX', seconds);
        }
        const { grantId, uid, clientId } = payload;
        if (ISSUED.has(model) && typeof grantId === 'string') {
          const members = keys.oidcMembers(hashOf(grantId));
          await Promise.all([redis.sadd(members, key), redis.expire(members, usedClientSeconds)]);
        }
        if (model === 'Session' && typeof uid === 'string') {
          await redis.set(keys.oidcUid(hashOf(uid)), key, 'EX', seconds);
        }
        if ((model === 'Grant' || model === 'RefreshToken') && typeof clientId === 'string') {
          // Nothing happens for clients of the configuration: they have no key.
          await redis.expire(keys.oidc('Client', hashOf(clientId)), usedClientSeconds);
        }
      },

      async find(id) {
        const found = await withUse(await open(keyOf(id)), id);
        if (found !== undefined || model !== 'Client') return found;
        return deps.document(id);
      },

      async findByUid(uid) {
        const key = await redis.get(keys.oidcUid(hashOf(uid)));
        return key === null ? undefined : open(key);
      },

      findByUserCode: () => Promise.resolve(undefined),

      async consume(id) {
        const used = keys.oidcUsed(model, hashOf(id));
        const reply = await scripts.consumeOnce([used, keyOf(id)], [Date.now()]);
        if (reply === 1 || model === 'RefreshToken') return;
        throw new errors.InvalidGrant(
          reply === 0 ? 'it has been used already' : 'it has been withdrawn',
        );
      },

      async destroy(id) {
        await redis.del(keyOf(id));
      },

      async revokeByGrantId(grantId) {
        const members = keys.oidcMembers(hashOf(grantId));
        const issued = (await redis.smembers(members)).filter((key) =>
          key.startsWith(keys.oidc(model, '').replace(/\{\}$/, '')),
        );
        await Promise.all(issued.map((key) => redis.del(key)));
      },
    };
  };
}

/** A grant and everything that it has issued. */
export async function destroyGrant(redis: Redis, grantId: string): Promise<void> {
  const members = keys.oidcMembers(hashOf(grantId));
  const issued = await redis.smembers(members);
  await redis.del(keys.oidc('Grant', hashOf(grantId)));
  await Promise.all([...issued, members].map((key) => redis.del(key)));
}
