/**
 * Clients that authorization servers have registered for us (RFC 7591): one per issuer, sealed, never shown to
 * another issuer. A server may drop one at any time; it says so at its token endpoint, and then the next flow
 * registers anew.
 */
import { createHash } from 'node:crypto';
import { SealError, type Keyring } from './keyring.ts';
import type { Redis } from './redis/client.ts';
import { keys } from './redis/keys.ts';
import type { Scripts } from './redis/scripts.ts';

export interface RegisteredClient {
  readonly clientId: string;
  readonly clientSecret?: string;
}

export interface Registrations {
  find(issuer: string): Promise<RegisteredClient | undefined>;
  store(issuer: string, client: RegisteredClient, seconds: number): Promise<void>;
  /** Only if it is still this client: who comes late must not end a newer registration. */
  forget(issuer: string, clientId: string): Promise<boolean>;
  /** Under which one pod registers for all. */
  leaseKey(issuer: string): string;
}

export interface RegistrationsDeps {
  readonly redis: Redis;
  readonly scripts: Pick<Scripts, 'compareAndDelete'>;
  readonly keyring: Pick<Keyring, 'seal' | 'open'>;
  readonly publicUrl: string;
}

export function createRegistrations(deps: RegistrationsDeps): Registrations {
  const { redis, scripts, keyring, publicUrl } = deps;
  const hashOf = (issuer: string): string =>
    createHash('sha256').update(`${issuer}\n${publicUrl}`).digest('base64url');

  async function open(issuer: string, sealed: string): Promise<RegisteredClient | undefined> {
    try {
      return JSON.parse(await keyring.open('registration', sealed, { issuer })) as RegisteredClient;
    } catch (error) {
      if (error instanceof SealError) return undefined; // its key is gone: register again
      throw error;
    }
  }

  return {
    leaseKey: (issuer) => keys.lease('registration', hashOf(issuer)),

    async find(issuer) {
      const sealed = await redis.get(keys.registration(hashOf(issuer)));
      return sealed === null ? undefined : open(issuer, sealed);
    },

    async store(issuer, client, seconds) {
      const sealed = await keyring.seal('registration', JSON.stringify(client), { issuer });
      await redis.set(keys.registration(hashOf(issuer)), sealed, 'EX', seconds);
    },

    async forget(issuer, clientId) {
      const key = keys.registration(hashOf(issuer));
      const sealed = await redis.get(key);
      if (sealed === null || (await open(issuer, sealed))?.clientId !== clientId) return false;
      return (await scripts.compareAndDelete([key], [sealed])) === 1;
    },
  };
}
