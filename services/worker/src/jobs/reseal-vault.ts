/**
 * Key rotation: what older keys have sealed is sealed again with the new first key, so that the old ones can go.
 *
 * Promises: each entry changes by compare-and-swap, so a refresh at the same time wins and nothing is lost; the
 * cursor is stored after each batch, so a dead worker's successor goes on where it was; an entry whose key is gone
 * stays as it is and is counted by that key's id. The one place that uses SCAN: it runs once per new key, and a
 * second time a while later, for what pods of the rollout have sealed with the old key meanwhile.
 */
import type { Audit } from '@viaduct/shared/audit';
import type { JobPayload, JobQueue } from '@viaduct/shared/jobs';
import { SealError, type Keyring } from '@viaduct/shared/keyring';
import type { Metrics } from '@viaduct/shared/metrics';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys, readVaultKey, VAULT_PATTERN } from '@viaduct/shared/redis/keys';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import type { JobContext } from '../workers.ts';

export interface ResealVaultDeps {
  readonly redis: Redis;
  readonly scripts: Pick<Scripts, 'compareAndSwap'>;
  readonly keyring: Keyring;
  readonly jobs: Pick<JobQueue, 'enqueue'>;
  readonly metrics: Pick<Metrics, 'resealed'>;
  readonly audit: Audit;
}

export type ResealVault = (
  payload: JobPayload<'reseal-vault'>,
  context: Pick<JobContext, 'log'>,
) => Promise<void>;

const BATCH = 200;
/** How long it is remembered that a key has been seen to. */
const DONE_SECONDS = 30 * 86_400;
const SECOND_PASS_MS = 15 * 60_000;

/** At the start of a worker: is the first key a new one? */
export async function planReseal(
  deps: Pick<ResealVaultDeps, 'redis' | 'keyring' | 'jobs'>,
  requestId: string,
): Promise<boolean> {
  const { kid } = deps.keyring;
  if ((await deps.redis.hget(keys.reseal(kid), 'done')) !== null) return false;
  await deps.jobs.enqueue('reseal-vault', { kid, pass: 1, requestId });
  return true;
}

export function createResealVault(deps: ResealVaultDeps): ResealVault {
  const { redis, scripts, keyring, metrics, audit } = deps;

  async function reseal(key: string): Promise<'resealed' | 'kept' | 'unreadable' | undefined> {
    const about = readVaultKey(key);
    const sealed = about && (await redis.get(key));
    if (about === undefined || sealed === null || sealed === undefined) return undefined;
    if (keyring.kidOf(sealed) === keyring.kid) return undefined;
    const context = { userId: about.userId, connection: about.connection };
    let text: string;
    try {
      text = await keyring.open('vault', sealed, context);
    } catch (error) {
      if (error instanceof SealError) return 'unreadable';
      throw error;
    }
    const again = await keyring.seal('vault', text, context);
    return (await scripts.compareAndSwap([key], [sealed, again])) === 1 ? 'resealed' : 'kept';
  }

  return async ({ kid, pass, requestId }, { log }) => {
    // A worker of before the rollout cannot do it; the next attempt finds one that can.
    if (kid !== keyring.kid) throw new Error(`this worker does not seal with key ${kid}`);
    const progress = keys.reseal(kid);
    const primaries = 'nodes' in redis ? redis.nodes('master') : [redis];
    const missing = new Map<string, number>();
    const [at, from] = ((await redis.hget(progress, 'cursor')) ?? '0 0').split(' ');
    if (from !== '0') log.info({ kid, cursor: from }, 'resealing goes on where it was');
    for (let node = Number(at); node < primaries.length; node++) {
      let cursor = node === Number(at) ? (from ?? '0') : '0';
      do {
        const [next, found] = await primaries[node]!.scan(
          cursor,
          'MATCH',
          VAULT_PATTERN,
          'COUNT',
          BATCH,
        );
        for (const key of found) {
          const outcome = await reseal(key);
          if (outcome === undefined) continue;
          metrics.resealed.inc({ outcome });
          await redis.hincrby(progress, outcome, 1);
          if (outcome !== 'unreadable') continue;
          const gone = keyring.kidOf((await redis.get(key)) ?? '') ?? 'unknown';
          missing.set(gone, (missing.get(gone) ?? 0) + 1);
        }
        cursor = next;
        await redis.hset(progress, 'cursor', `${String(node)} ${cursor}`);
        await redis.expire(progress, DONE_SECONDS);
      } while (cursor !== '0');
    }
    const [resealed, unreadable] = await redis.hmget(progress, 'resealed', 'unreadable');
    await redis.hset(progress, { cursor: '0 0', done: Date.now() });
    for (const [gone, count] of missing) {
      log.warn(
        { kid: gone, count },
        `credentials are sealed with key ${gone}, which is not configured`,
      );
    }
    const counts = { resealed: Number(resealed ?? 0), unreadable: Number(unreadable ?? 0) };
    log.info({ kid, pass, ...counts }, 'the vault is sealed with the first key');
    audit.record({ type: 'vault.resealed', requestId, kid, ...counts });
    if (pass === 1) {
      await deps.jobs.enqueue(
        'reseal-vault',
        { kid, pass: 2, requestId },
        { delayMs: SECOND_PASS_MS },
      );
    }
  };
}
