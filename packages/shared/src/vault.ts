/**
 * Third-party credentials, sealed. The sealed text itself is the version: it changes with every write, so
 * compare-and-set on it refuses whoever read an older one (cases O6, R4).
 *
 * Promises: a credential opens only for the user and the connection that it was sealed for; an entry unused for
 * `vault.idleDays` is gone, and reading renews it. Nothing here logs, and no error repeats what was sealed.
 */
import type { Config } from './config.ts';
import { fail } from './errors.ts';
import { SealError, type Keyring } from './keyring.ts';
import type { Redis } from './redis/client.ts';
import { keys } from './redis/keys.ts';
import type { Scripts } from './redis/scripts.ts';
import type { Credential } from './third-party.ts';

export interface Stored {
  readonly credential: Credential;
  /** Sealed text; opaque to callers, and not for logs. */
  readonly version: string;
}

export interface PeekedAt extends Stored {
  /** From the time to live, which every use renews: good to a clock's difference. */
  readonly lastUsedMs: number;
}

export interface Vault {
  /** @throws GatewayError when it was sealed with a key that is gone; the message names the key id */
  load(userId: string, connection: string): Promise<Stored | undefined>;
  /** As `load`, but it is no use: neither renewed nor counted as used. */
  peek(userId: string, connection: string): Promise<PeekedAt | undefined>;
  /** For scripts that write the vault themselves (`elicitations.complete`). */
  seal(userId: string, connection: string, credential: Credential): Promise<string>;
  /** Whatever was there before; for what can be had again at any time. Use does not prolong it by itself. */
  store(
    userId: string,
    connection: string,
    credential: Credential,
    ttlSeconds: number,
  ): Promise<string>;
  /** False when `expectedVersion` is no longer what is stored; nothing is written then. */
  replace(
    userId: string,
    connection: string,
    credential: Credential,
    expectedVersion: string,
  ): Promise<string | false>;
  /** With a version: only if it is still the one. */
  forget(userId: string, connection: string, expectedVersion?: string): Promise<boolean>;
}

export interface VaultDeps {
  readonly redis: Redis;
  readonly scripts: Pick<Scripts, 'compareAndSwap' | 'compareAndDelete'>;
  readonly keyring: Pick<Keyring, 'seal' | 'open'>;
  readonly config: Pick<Config, 'vault'>;
}

/** Opened entries by sealed text: a cache that spares the fast path a decryption, never a source of truth. */
const CACHE_SIZE = 500;

export function createVault({ redis, scripts, keyring, config }: VaultDeps): Vault {
  const ttlSeconds = Math.ceil(config.vault.idleDays * 86_400);
  const opened = new Map<string, Credential>();

  const remember = (version: string, credential: Credential): void => {
    const oldest = opened.keys().next();
    if (opened.size >= CACHE_SIZE && oldest.done !== true) opened.delete(oldest.value);
    opened.set(version, credential);
  };

  const seal: Vault['seal'] = async (userId, connection, credential) =>
    keyring.seal('vault', JSON.stringify(credential), { userId, connection });

  async function openVersion(userId: string, connection: string, version: string): Promise<Stored> {
    const known = opened.get(version);
    if (known !== undefined) return { credential: known, version };
    let text: string;
    try {
      text = await keyring.open('vault', version, { userId, connection });
    } catch (error) {
      if (!(error instanceof SealError)) throw error;
      throw fail('internal', `The stored credential cannot be read: ${error.message}.`, {
        data: { reason: 'credential_unreadable' },
        cause: error,
      });
    }
    const credential = JSON.parse(text) as Credential;
    remember(version, credential);
    return { credential, version };
  }

  return {
    seal,

    async load(userId, connection) {
      // Reads and renews in one command: use is what keeps a credential.
      const version = await redis.getex(keys.vault(userId, connection), 'EX', ttlSeconds);
      return version === null ? undefined : openVersion(userId, connection, version);
    },

    async peek(userId, connection) {
      const key = keys.vault(userId, connection);
      const [version, ttlMs] = await Promise.all([redis.get(key), redis.pttl(key)]);
      if (version === null) return undefined;
      const stored = await openVersion(userId, connection, version);
      return { ...stored, lastUsedMs: Date.now() - Math.max(0, ttlSeconds * 1000 - ttlMs) };
    },

    async store(userId, connection, credential, seconds) {
      const version = await seal(userId, connection, credential);
      await redis.set(keys.vault(userId, connection), version, 'EX', Math.min(seconds, ttlSeconds));
      return version;
    },

    async replace(userId, connection, credential, expectedVersion) {
      const version = await seal(userId, connection, credential);
      // The time to live stays: a refresh is no use, and must not keep what nobody uses.
      const set = await scripts.compareAndSwap(
        [keys.vault(userId, connection)],
        [expectedVersion, version],
      );
      opened.delete(expectedVersion);
      return set === 1 ? version : false;
    },

    async forget(userId, connection, expectedVersion) {
      const key = keys.vault(userId, connection);
      if (expectedVersion === undefined) return (await redis.del(key)) === 1;
      opened.delete(expectedVersion);
      return (await scripts.compareAndDelete([key], [expectedVersion])) === 1;
    },
  };
}
