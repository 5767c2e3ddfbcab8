/**
 * The browser's own session: who has logged in here. Distinct from MCP sessions and worth nothing on /mcp.
 *
 * Promises: the cookie is 256 random bits, HttpOnly, SameSite=Lax, `__Host-` and Secure except on loopback http;
 * Redis holds only its hash as a key and a sealed value; a login always makes a new one (no fixation). CSRF
 * tokens are MACs over the session's hash, so every tab's form stays good as long as the login.
 */
import { createHash, randomBytes } from 'node:crypto';
import type { Request, Response } from 'express';
import type { Config } from '@viaduct/shared/config';
import { SealError, type Keyring } from '@viaduct/shared/keyring';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';

export interface BrowserUser {
  readonly userId: string;
  readonly issuer: string;
  readonly subject: string;
  /** As the login says; only shown to the user. */
  readonly displayName?: string;
  /** When the person last showed who they are, as far as that is known; 0 where it is not. */
  readonly provenAtMs?: number;
  /** The page that asked for that, if one did. */
  readonly provenFor?: string;
  /** As of the login; they go into access tokens of the built-in authorization server. */
  readonly groups?: readonly string[];
}

export interface BrowserSession extends BrowserUser {
  /** Names the session without being its secret; flows are bound to it. */
  readonly hash: string;
}

export interface Browsers {
  load(req: Request): Promise<BrowserSession | undefined>;
  create(res: Response, user: BrowserUser): Promise<BrowserSession>;
  end(req: Request, res: Response): Promise<void>;
  csrfToken(session: BrowserSession): string;
  csrfMatches(session: BrowserSession, token: unknown): boolean;
}

export interface BrowsersDeps {
  readonly redis: Redis;
  readonly keyring: Pick<Keyring, 'seal' | 'open' | 'mac' | 'verifyMac'>;
  readonly config: Pick<Config, 'publicUrl'>;
  /** Has this user been put out since? */
  readonly isRevoked?: (userId: string, atMs: number) => boolean;
}

/** A working day; afterwards the identity provider is asked again, mostly unnoticed. */
const SESSION_SECONDS = 8 * 3_600;
const TOKEN = /^[A-Za-z0-9_-]{43}$/;

/** Names and attributes of design section 6. */
export function createCookies(config: Pick<Config, 'publicUrl'>) {
  const secure = config.publicUrl.startsWith('https:');
  const prefix = secure ? '__Host-viaduct-' : 'viaduct-';
  const attributes = `Path=/; HttpOnly; SameSite=Lax${secure ? '; Secure' : ''}`;
  return {
    set(res: Response, name: string, value: string, maxAgeSeconds: number): void {
      res.append(
        'Set-Cookie',
        `${prefix}${name}=${value}; ${attributes}; Max-Age=${String(maxAgeSeconds)}`,
      );
    },
    clear(res: Response, name: string): void {
      res.append('Set-Cookie', `${prefix}${name}=; ${attributes}; Max-Age=0`);
    },
    get(req: Request, name: string): string | undefined {
      return parse(req).find(([key]) => key === prefix + name)?.[1];
    },
    /** Names with this beginning, without the common prefix. */
    named(req: Request, beginning: string): string[] {
      return parse(req)
        .filter(([key]) => key.startsWith(prefix + beginning))
        .map(([key]) => key.slice(prefix.length));
    },
  };
}
export type Cookies = ReturnType<typeof createCookies>;

function parse(req: Request): [name: string, value: string][] {
  return (req.headers.cookie ?? '').split(';').map((pair) => {
    const at = pair.indexOf('=');
    return [pair.slice(0, Math.max(at, 0)).trim(), pair.slice(at + 1).trim()];
  });
}

export function createBrowsers({ redis, keyring, config, isRevoked }: BrowsersDeps): Browsers {
  const cookies = createCookies(config);
  const hashOf = (token: string): string => createHash('sha256').update(token).digest('base64url');
  const tokenOf = (req: Request): string | undefined => {
    const token = cookies.get(req, 'session');
    return token !== undefined && TOKEN.test(token) ? token : undefined;
  };

  return {
    async load(req) {
      const token = tokenOf(req);
      if (token === undefined) return undefined;
      const hash = hashOf(token);
      const sealed = await redis.get(keys.browser(hash));
      if (sealed === null) return undefined;
      try {
        const user = JSON.parse(
          await keyring.open('cookie', sealed, { browser: hash }),
        ) as BrowserUser & { atMs?: number };
        if (isRevoked?.(user.userId, user.atMs ?? 0) === true) return undefined;
        return { ...user, hash };
      } catch (error) {
        // Its key has been retired, or it is not ours: logging in again mends both.
        if (error instanceof SealError) return undefined;
        throw error;
      }
    },

    async create(res, user) {
      const token = randomBytes(32).toString('base64url');
      const hash = hashOf(token);
      const { userId, issuer, subject, displayName, groups, provenAtMs, provenFor } = user;
      const text = JSON.stringify({
        userId,
        issuer,
        subject,
        displayName,
        groups,
        provenAtMs,
        provenFor,
        atMs: Date.now(),
      });
      const sealed = await keyring.seal('cookie', text, { browser: hash });
      await redis.set(keys.browser(hash), sealed, 'EX', SESSION_SECONDS);
      cookies.set(res, 'session', token, SESSION_SECONDS);
      return { ...user, hash };
    },

    async end(req, res) {
      const token = tokenOf(req);
      cookies.clear(res, 'session');
      if (token !== undefined) await redis.del(keys.browser(hashOf(token)));
    },

    csrfToken: (session) => keyring.mac('csrf', session.hash),
    csrfMatches: (session, token) =>
      typeof token === 'string' && keyring.verifyMac('csrf', session.hash, token),
  };
}
