/**
 * What an operator can do: end a session, put a user out, cancel a flow or send it on its way again, drain a pod.
 * Each carries a token against forgery, and is in the audit, with who did it, before it is done. Each works at any
 * pod, whichever pod it concerns.
 */
import { randomBytes, timingSafeEqual } from 'node:crypto';
import { Router, type Request, type Response } from 'express';
import type { Audit } from '@viaduct/shared/audit';
import type { Config } from '@viaduct/shared/config';
import {
  ELICITATION_ID,
  isEnded,
  type Elicitation,
  type Elicitations,
} from '@viaduct/shared/elicitations';
import { secretJobSuffix, type JobQueue } from '@viaduct/shared/jobs';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys, podChannel, SESSION_ID } from '@viaduct/shared/redis/keys';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import { cookieOf, type Access } from './access.ts';

export interface ActionsDeps {
  readonly config: Pick<Config, 'connections'>;
  readonly redis: Redis;
  readonly scripts: Pick<Scripts, 'endSession'>;
  readonly elicitations: Pick<Elicitations, 'load' | 'ownerOf' | 'move'>;
  readonly jobs: Pick<JobQueue, 'enqueue'>;
  readonly audit: Audit;
  readonly access: Access;
  revoke(userId: string, connections: boolean, requestId: string): Promise<{ sessions: number }>;
}

export interface Actions {
  readonly router: Router;
  /** The token for the forms of one answer; its twin goes into a cookie that no other site's request carries. */
  token(req: Request, res: Response): string;
}

const POD_ID = /^[A-Za-z0-9._-]{1,270}$/;
export const USER_ID = /^[A-Za-z0-9_-]{22}$/;
const TOKEN = /^[\w-]{24}$/;

export function createActions(deps: ActionsDeps): Actions {
  const { redis, elicitations, jobs, audit, access } = deps;
  const cookie = access.cookie('token');
  const router = Router();
  const requestIdOf = (res: Response): string => String(res.getHeader('X-Request-Id'));

  /** Every action: the token first, then the audit, then the deed. */
  function on(
    path: string,
    action: string,
    run: (
      form: Form,
      res: Response,
      audited: (about: Record<string, string>) => void,
    ) => Promise<void> | void,
  ): void {
    router.post(path, async (req, res) => {
      const form = (req.body ?? {}) as Form;
      const wanted = Buffer.from(cookieOf(req, cookie.name));
      const given = Buffer.from(form['csrf'] ?? '');
      const address = req.socket.remoteAddress;
      const requestId = requestIdOf(res);
      if (
        wanted.length === 0 ||
        wanted.length !== given.length ||
        !timingSafeEqual(wanted, given)
      ) {
        audit.record({ type: 'csrf.refused', path: req.path, address, requestId });
        res.status(403).json({ error: 'the form is not of this console: reload it' });
        return;
      }
      const operator = access.operator(res)?.userId;
      await run(form, res, (about) => {
        audit.record({ type: 'console.action', action, operator, address, requestId, ...about });
      });
    });
  }

  on('/console/sessions/end', 'session.end', async (form, res, audited) => {
    const { user: userId = '', session: sessionId = '' } = form;
    if (!USER_ID.test(userId) || !SESSION_ID.test(sessionId)) {
      res.status(400).json({ error: 'no such session' });
      return;
    }
    audited({ userId, sessionId });
    const names = [keys.session, keys.log, keys.streams, keys.listeners, keys.pending];
    await deps.scripts.endSession(
      names.map((key) => key(userId, sessionId)),
      ['', '', userId, sessionId],
    );
    // Its upstream sessions are ended as those of an expired one.
    const job = { userId, sessionId, requestId: requestIdOf(res) };
    await jobs.enqueue('end-session', job, { suffix: 'console' });
    done(res, `/console/sessions?user=${userId}`, 'The session has ended.');
  });

  on('/console/users/revoke', 'user.revoke', async (form, res, audited) => {
    const { user: userId = '', connections } = form;
    if (!USER_ID.test(userId)) {
      res.status(400).json({ error: 'no such user' });
      return;
    }
    const too = connections === 'yes';
    audited({ userId, connections: String(too) });
    const { sessions } = await deps.revoke(userId, too, requestIdOf(res));
    const what = too ? ', and what was connected is disconnected' : '';
    const notice = `The user is out: ${sessions} sessions have ended${what}.`;
    done(res, `/console/sessions?user=${userId}`, notice);
  });

  on('/console/elicitations/cancel', 'elicitation.cancel', async ({ id = '' }, res, audited) => {
    const record = await find(id);
    if (record === undefined) {
      res.status(404).json({ error: 'no such elicitation' });
      return;
    }
    const { userId } = record;
    audited({ userId, elicitationId: id });
    const result = await elicitations.move(userId, id, 'cancelled', { reason: 'withdrawn' });
    const notice = result === 'moved' ? 'The flow is cancelled.' : 'The flow had ended already.';
    done(res, `/console/elicitations?id=${id}`, notice);
  });

  on('/console/elicitations/retry', 'elicitation.retry', async ({ id = '' }, res, audited) => {
    const record = await find(id);
    if (record === undefined) {
      res.status(404).json({ error: 'no such elicitation' });
      return;
    }
    audited({ userId: record.userId, elicitationId: id });
    done(res, `/console/elicitations?id=${id}`, await retry(record));
  });

  on('/console/pods/drain', 'pod.drain', async ({ pod = '' }, res, audited) => {
    if (!POD_ID.test(pod)) {
      res.status(404).json({ error: 'no such pod' });
      return;
    }
    audited({ pod });
    // On a Cluster PUBLISH counts the listeners of one node only; the heartbeat is the same everywhere.
    const alive = await redis.exists(keys.pod(pod));
    await redis.publish(podChannel(pod), 'drain\n\n\n');
    done(res, '/console/pods', alive > 0 ? 'The pod drains and then ends.' : 'That pod is gone.');
  });

  on('/console/leave', 'leave', (_form, res, audited) => {
    audited({});
    access.leave(res);
    res.redirect(303, '/console');
  });

  async function find(id: string): Promise<Elicitation | undefined> {
    const owner = ELICITATION_ID.test(id) ? await elicitations.ownerOf(id) : undefined;
    return owner === undefined ? undefined : elicitations.load(owner, id);
  }

  /**
   * A job that got lost before it began can be given again: the record has the code, sealed, and the first worker that
   * claims it is the only one. Once an exchange has begun, its code may have been sent, and is not sent twice.
   */
  async function retry(record: Elicitation): Promise<string> {
    const { userId, id, requestId, state, tries } = record;
    if (isEnded(state)) {
      return 'It has ended. The person’s next call gives a new link; nothing is to be done here.';
    }
    if (state === 'created' || state === 'opened') {
      return 'It waits for the person, not for us: they have to open the link and decide.';
    }
    if (state === 'exchanging') {
      return 'A worker has begun, and what it has sent may be sent once only. It ends by itself within a minute.';
    }
    const job = { userId, elicitationId: id, requestId };
    const suffix = `again${Date.now().toString(36)}`;
    if (deps.config.connections[record.connection]?.type === 'secret') {
      await jobs.enqueue('check-secret', job, { suffix: `${secretJobSuffix(tries)}-${suffix}` });
    } else await jobs.enqueue('exchange-code', job, { suffix });
    return 'Its job is in the queue again.';
  }

  return {
    router,
    token(req, res) {
      const known = cookieOf(req, cookie.name);
      if (TOKEN.test(known)) return known;
      const fresh = randomBytes(18).toString('base64url');
      res.cookie(cookie.name, fresh, cookie.attributes);
      return fresh;
    },
  };
}

type Form = Partial<Record<string, string>>;

function done(res: Response, path: string, notice: string): void {
  res.redirect(303, `${path}${path.includes('?') ? '&' : '?'}done=${encodeURIComponent(notice)}`);
}
