/**
 * Who may see the console. `loopback`: who comes from this machine, which is also where `kubectl port-forward` comes
 * from, so that the cluster's own roles decide. `operators`: people of one group of the company's login, sent over
 * from the public listener (operator-codes.ts). `off`: nobody.
 *
 * An operator's session here is a sealed cookie for an hour; then the way over the public listener is taken again,
 * mostly unseen, and the group is looked at again.
 */
import type { Request, RequestHandler, Response } from 'express';
import type { Audit } from '@viaduct/shared/audit';
import { isLoopbackHost, type Config } from '@viaduct/shared/config';
import { SealError, type Keyring } from '@viaduct/shared/keyring';
import { challengeOf, newSecret, type Operator, type OperatorCodes } from '../operator-codes.ts';

export interface AccessDeps {
  readonly config: Pick<Config, 'console' | 'development' | 'publicUrl'>;
  readonly keyring: Pick<Keyring, 'seal' | 'open'>;
  readonly codes: OperatorCodes;
  readonly audit: Audit;
  /** Has this user been put out since? */
  readonly isRevoked: (userId: string, atMs: number) => boolean;
}

export interface CookieAttributes {
  readonly httpOnly: true;
  readonly sameSite: 'lax' | 'strict';
  readonly secure: boolean;
  readonly path: '/';
}

export interface Access {
  /** Lets through who may be here; sends away, or sends to sign in, who may not. */
  readonly guard: RequestHandler;
  /** `GET /console/enter?code=`: back from the public listener. Before `guard`. */
  readonly enter: RequestHandler;
  /** `POST /console/leave`, after the form has been checked. */
  leave(res: Response): void;
  /** For cookies of the console: `__Host-` and Secure where its address is https. */
  readonly cookie: (name: string) => {
    readonly name: string;
    readonly attributes: CookieAttributes;
  };
  /** After `guard`; undefined where people have no names here (`loopback`). */
  operator(res: Response): Operator | undefined;
}

const SESSION_SECONDS = 3_600;
const ENTER_SECONDS = 600;
const LOOPBACK = /^(127\.|::1$|::ffff:127\.)/;

export function createAccess(deps: AccessDeps): Access {
  const { config, keyring, codes, audit, isRevoked } = deps;
  const settings = config.console;
  const access = settings.access ?? (config.development ? 'loopback' : 'off');
  const own = settings.url === undefined ? undefined : new URL(settings.url);
  const secure = own?.protocol === 'https:';
  const attributes = { httpOnly: true, sameSite: 'lax', secure, path: '/' } as const;
  const nameOf = (name: string): string => `${secure ? '__Host-' : ''}viaduct-console-${name}`;
  const SESSION = nameOf('operator');
  const SECRET = nameOf('enter');

  /** The Host of a page that has had its name pointed at this machine is that page's. */
  const isNear = ({ headers, socket }: Request): boolean =>
    LOOPBACK.test(socket.remoteAddress ?? '') &&
    isLoopbackHost((headers.host ?? '').replace(/:\d+$/, ''));

  async function load(req: Request): Promise<Operator | undefined> {
    const sealed = cookieOf(req, SESSION);
    if (sealed === '') return undefined;
    try {
      const text = await keyring.open('cookie', sealed, { operator: 'session' });
      const { atMs, ...operator } = JSON.parse(text) as Operator & { atMs: number };
      const old = Date.now() - atMs > SESSION_SECONDS * 1000;
      return old || isRevoked(operator.userId, atMs) ? undefined : operator;
    } catch (error) {
      if (error instanceof SealError) return undefined;
      throw error;
    }
  }

  const notThere = (res: Response): void => {
    res.status(404).json({ error: 'not found' });
  };

  return {
    guard: async (req, res, next) => {
      if (access === 'loopback' && isNear(req)) {
        next();
        return;
      }
      if (access !== 'operators' || req.headers.host !== own?.host) {
        notThere(res);
        return;
      }
      const operator = await load(req);
      if (operator !== undefined) {
        res.locals['operator'] = operator;
        next();
      } else if (req.method !== 'GET') {
        res.status(403).json({ error: 'your session has ended: open the console again' });
      } else {
        const secret = newSecret();
        res.cookie(SECRET, secret, { ...attributes, maxAge: ENTER_SECONDS * 1000 });
        res.redirect(303, `${config.publicUrl}/login/operator/${challengeOf(secret)}`);
      }
    },

    enter: async (req, res) => {
      if (access !== 'operators' || req.headers.host !== own?.host) {
        notThere(res);
        return;
      }
      const code = req.query['code'];
      const secret = cookieOf(req, SECRET);
      res.clearCookie(SECRET, attributes);
      const operator = typeof code === 'string' ? await codes.take(code, secret) : undefined;
      if (operator === undefined) {
        const address = req.socket.remoteAddress;
        audit.record({ type: 'console.refused', reason: 'unknown_code', address });
        res.status(403).json({ error: 'this way in is used up: open the console again' });
        return;
      }
      const { userId } = operator;
      const text = JSON.stringify({ ...operator, atMs: Date.now() });
      const sealed = await keyring.seal('cookie', text, { operator: 'session' });
      res.cookie(SESSION, sealed, { ...attributes, maxAge: SESSION_SECONDS * 1000 });
      audit.record({ type: 'console.entered', userId, address: req.socket.remoteAddress });
      res.redirect(303, '/console');
    },

    leave(res) {
      res.clearCookie(SESSION, attributes);
    },

    cookie: (name) => ({ name: nameOf(name), attributes: { ...attributes, sameSite: 'strict' } }),

    operator: (res) => res.locals['operator'] as Operator | undefined,
  };
}

export function cookieOf(req: Request, name: string): string {
  const found = (req.headers.cookie ?? '')
    .split(';')
    .find((pair) => pair.trim().startsWith(`${name}=`));
  return found?.trim().slice(name.length + 1) ?? '';
}
