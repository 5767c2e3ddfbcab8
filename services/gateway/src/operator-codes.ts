/**
 * How a person who is signed in on the public listener becomes an operator in the console, which has another origin:
 * a code that is good once, for half a minute, in the one browser that asked for it.
 *
 * The console makes a secret, keeps it in a cookie and sends its hash along (the challenge); the public listener,
 * which knows the person and their groups, gives a code; the console takes it if its cookie fits. Nobody can send an
 * operator's browser into somebody else's session (login CSRF), and a code that leaks opens nothing.
 */
import { createHash, randomBytes } from 'node:crypto';
import { SealError, type Keyring } from '@viaduct/shared/keyring';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';

export interface Operator {
  readonly userId: string;
  /** As the login says; only shown. */
  readonly displayName?: string | undefined;
}

export interface OperatorCodes {
  issue(operator: Operator, challenge: string): Promise<string>;
  /** Undefined for an unknown or spent code, and for one of another browser, which stays good in its own. */
  take(code: string, secret: string): Promise<Operator | undefined>;
}

const SECONDS = 30;
const RANDOM = /^[A-Za-z0-9_-]{43}$/;

export const newSecret = (): string => randomBytes(32).toString('base64url');
export const challengeOf = (secret: string): string =>
  createHash('sha256').update(secret).digest('base64url');

export function createOperatorCodes(deps: {
  readonly redis: Redis;
  readonly keyring: Pick<Keyring, 'seal' | 'open'>;
}): OperatorCodes {
  const { redis, keyring } = deps;
  return {
    async issue({ userId, displayName }, challenge) {
      const code = newSecret();
      const hash = challengeOf(code);
      const text = JSON.stringify({ userId, displayName, challenge });
      const sealed = await keyring.seal('cookie', text, { operator: hash });
      await redis.set(keys.operatorCode(hash), sealed, 'EX', SECONDS);
      return code;
    },

    async take(code, secret) {
      if (!RANDOM.test(code) || !RANDOM.test(secret)) return undefined;
      const hash = challengeOf(code);
      const key = keys.operatorCode(hash);
      const sealed = await redis.get(key);
      if (sealed === null) return undefined;
      try {
        const found = JSON.parse(
          await keyring.open('cookie', sealed, { operator: hash }),
        ) as Operator & { challenge: string };
        const { userId, displayName, challenge } = found;
        if (challenge !== challengeOf(secret)) return undefined;
        // Of two at once, one finds it there to delete.
        return (await redis.del(key)) === 1 ? { userId, displayName } : undefined;
      } catch (error) {
        if (error instanceof SealError) return undefined;
        throw error;
      }
    },
  };
}
