/**
 * The operators' console, on the admin listener only. Who reaches it: with `console.access: loopback` (the default in
 * development) who comes from this machine, which is also where `kubectl port-forward` comes from, so that the
 * cluster's own roles decide; `off` (the default otherwise) nobody. There is no login of its own yet.
 *
 * Promises: every action carries a token against forgery and is audited before it is done. Non-duties: nothing here
 * shows a secret, and none of it is needed for the gateway to work.
 */
import { randomBytes, timingSafeEqual } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createBullBoard } from '@bull-board/api';
import { BullMQAdapter } from '@bull-board/api/bullMQAdapter';
import { ExpressAdapter } from '@bull-board/express';
import express, { type Request, type Response, type Router } from 'express';
import helmet from 'helmet';
import type { Audit } from '@viaduct/shared/audit';
import type { Config } from '@viaduct/shared/config';
import { isLoopbackHost } from '@viaduct/shared/config';
import { ELICITATION_ID, isEnded, type Elicitations } from '@viaduct/shared/elicitations';
import type { JobQueue } from '@viaduct/shared/jobs';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys, podChannel, SESSION_ID } from '@viaduct/shared/redis/keys';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import { createRecords } from './records.ts';
import {
  elicitationsView,
  elicitationView,
  page,
  podsView,
  sessionsView,
  type Frame,
  type Health,
} from './views.ts';

export interface ConsoleDeps {
  readonly config: Pick<Config, 'console' | 'development'>;
  readonly redis: Redis;
  readonly scripts: Pick<Scripts, 'endSession'>;
  readonly elicitations: Pick<Elicitations, 'load' | 'ownerOf' | 'move'>;
  readonly jobs: Pick<JobQueue, 'enqueue' | 'all'>;
  readonly audit: Audit;
  readonly podId: string;
  upstreams(): Health[];
  /** Of this pod: name of the limit and requests answered 429. */
  limitsHit(): Promise<[string, number][]>;
}

/** bull-board styles elements in place. */
const BOARD_POLICY =
  "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; frame-ancestors 'none'; base-uri 'self'";
const COOKIE = 'viaduct_console';
const POD_ID = /^[A-Za-z0-9._-]{1,270}$/;
const USER_ID = /^[A-Za-z0-9_-]{22}$/;
const LOOPBACK = /^(127\.|::1$|::ffff:127\.)/;
const asset = (name: string) => readFileSync(new URL(`./assets/${name}`, import.meta.url), 'utf8');

export function createConsole(deps: ConsoleDeps): Router {
  const { config, redis, elicitations, jobs, audit, podId } = deps;
  const records = createRecords(deps);
  const access = config.console.access ?? (config.development ? 'loopback' : 'off');
  const router = express.Router();
  const css = asset('console.css');
  const js = asset('console.js');

  router.use('/console', (req, res, next) => {
    const [host = ''] = (req.headers.host ?? '').split(/:\d+$/);
    // The Host of a page that has had its name pointed at this machine is that page's.
    const near = LOOPBACK.test(req.socket.remoteAddress ?? '') && isLoopbackHost(host);
    if (access === 'off' || !near) {
      res.status(404).json({ error: 'not found' });
      return;
    }
    next();
  });
  router.use(
    '/console',
    helmet({
      contentSecurityPolicy: {
        useDefaults: false,
        directives: {
          'default-src': ["'none'"],
          'style-src': ["'self'"],
          'script-src': ["'self'"],
          'connect-src': ["'self'"],
          'form-action': ["'self'"],
          'frame-ancestors': ["'none'"],
          'base-uri': ["'none'"],
        },
      },
      strictTransportSecurity: false,
    }),
    (_req, res, next) => {
      res.set('Cache-Control', 'no-store');
      next();
    },
    express.urlencoded({ extended: false, limit: '4kb' }),
  );

  router.get('/console/assets/console.css', (_req, res) => {
    res.type('text/css').send(css);
  });
  router.get('/console/assets/console.js', (_req, res) => {
    res.type('text/javascript').send(js);
  });

  router.get('/console', async (req, res) => {
    const frame = frameOf(req, res);
    const body = podsView(frame, await records.pods(), deps.upstreams(), await deps.limitsHit());
    res.send(page(frame, '/console', 'Pods and upstreams', body));
  });

  router.get('/console/sessions', async (req, res) => {
    const frame = frameOf(req, res);
    const userId = text(req.query['user']);
    const sessions = USER_ID.test(userId) ? await records.sessionsOf(userId) : undefined;
    res.send(page(frame, '/console/sessions', 'Sessions', sessionsView(frame, userId, sessions)));
  });

  router.get('/console/elicitations', async (req, res) => {
    const frame = frameOf(req, res);
    const path = '/console/elicitations';
    const id = text(req.query['id']);
    if (id === '') {
      res.send(page(frame, path, 'Elicitations', elicitationsView(await records.unfinished())));
      return;
    }
    const record = ELICITATION_ID.test(id) ? await records.elicitation(id) : undefined;
    if (record === undefined) {
      const notice = 'There is no such elicitation, or it ended more than a day ago.';
      const body = elicitationsView(await records.unfinished());
      res.status(404).send(page({ ...frame, notice }, path, 'Elicitations', body));
      return;
    }
    const body = elicitationView(frame, record, isEnded(record.state));
    res.send(page(frame, path, `Elicitation: ${record.state}`, body));
  });

  // To look at only: its buttons would act without a token against forgery, and without a trace.
  router.use('/console/queues', (_req, res, next) => {
    res.set('Content-Security-Policy', BOARD_POLICY);
    next();
  });
  router.use('/console/queues', createBoard());

  router.post('/console/sessions/end', async (req, res) => {
    if (!mayAct(req, res)) return;
    const { user: userId, session: sessionId } = fieldsOf(req);
    if (!USER_ID.test(userId ?? '') || !SESSION_ID.test(sessionId ?? '')) {
      res.status(400).json({ error: 'no such session' });
      return;
    }
    const address = { userId: userId!, sessionId: sessionId! };
    act(req, 'session.end', address);
    await deps.scripts.endSession(sessionKeys(address), ['', '', userId!, sessionId!]);
    // Its upstream sessions are ended as those of an expired one.
    const requestId = `console-${randomBytes(8).toString('hex')}`;
    await jobs.enqueue('end-session', { ...address, requestId }, { suffix: 'console' });
    done(res, `/console/sessions?user=${userId!}`, 'The session has ended.');
  });

  router.post('/console/elicitations/cancel', async (req, res) => {
    if (!mayAct(req, res)) return;
    const id = fieldsOf(req)['id'] ?? '';
    const owner = ELICITATION_ID.test(id) ? await elicitations.ownerOf(id) : undefined;
    if (owner === undefined) {
      res.status(404).json({ error: 'no such elicitation' });
      return;
    }
    act(req, 'elicitation.cancel', { userId: owner, elicitationId: id });
    const result = await elicitations.move(owner, id, 'cancelled', { reason: 'withdrawn' });
    const notice = result === 'moved' ? 'The flow is cancelled.' : 'The flow had ended already.';
    done(res, `/console/elicitations?id=${id}`, notice);
  });

  router.post('/console/pods/drain', async (req, res) => {
    if (!mayAct(req, res)) return;
    const pod = fieldsOf(req)['pod'] ?? '';
    if (!POD_ID.test(pod)) {
      res.status(404).json({ error: 'no such pod' });
      return;
    }
    act(req, 'pod.drain', { pod });
    const heard = await redis.publish(podChannel(pod), 'drain\n\n\n');
    done(res, '/console', heard > 0 ? 'The pod drains and then ends.' : 'That pod is gone.');
  });

  function createBoard(): Router {
    const adapter = new ExpressAdapter();
    adapter.setBasePath('/console/queues');
    createBullBoard({
      queues: jobs.all().map((queue) => new BullMQAdapter(queue, { readOnlyMode: true })),
      serverAdapter: adapter,
      options: { uiConfig: { boardTitle: 'Viaduct queues' } },
    });
    return adapter.getRouter() as Router;
  }

  /** The token is in a cookie that no other site's request carries, and in every form. */
  function frameOf(req: Request, res: Response): Frame {
    let csrf = cookieOf(req);
    if (csrf === '') {
      csrf = randomBytes(18).toString('base64url');
      res.cookie(COOKIE, csrf, { httpOnly: true, sameSite: 'strict', path: '/console' });
    }
    const notice = text(req.query['done']).slice(0, 200);
    return { podId, csrf, ...(notice !== '' && { notice }) };
  }

  function mayAct(req: Request, res: Response): boolean {
    const wanted = Buffer.from(cookieOf(req));
    const given = Buffer.from(fieldsOf(req)['csrf'] ?? '');
    if (wanted.length > 0 && wanted.length === given.length && timingSafeEqual(wanted, given)) {
      return true;
    }
    audit.record({ type: 'csrf.refused', path: req.path, address: req.socket.remoteAddress });
    res.status(403).json({ error: 'the form is not of this console: reload it' });
    return false;
  }

  function act(req: Request, action: string, about: Record<string, string>): void {
    audit.record({ type: 'console.action', action, address: req.socket.remoteAddress, ...about });
  }

  return router;
}

const text = (value: unknown): string => (typeof value === 'string' ? value.trim() : '');

function fieldsOf(req: Request): Partial<Record<string, string>> {
  return (req.body ?? {}) as Partial<Record<string, string>>;
}

function cookieOf(req: Request): string {
  return (
    new RegExp(`(?:^|;\\s*)${COOKIE}=([\\w-]{24})(?:;|$)`).exec(req.headers.cookie ?? '')?.[1] ?? ''
  );
}

function done(res: Response, path: string, notice: string): void {
  res.redirect(303, `${path}${path.includes('?') ? '&' : '?'}done=${encodeURIComponent(notice)}`);
}

function sessionKeys({ userId, sessionId }: { userId: string; sessionId: string }): string[] {
  return [keys.session, keys.log, keys.streams, keys.listeners, keys.pending].map((key) =>
    key(userId, sessionId),
  );
}
