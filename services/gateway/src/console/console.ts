/**
 * The operators' console, on the admin listener only: who waits, for what, since when; pods, sessions, connections,
 * queues. Who reaches it is access.ts' to say, what can be done is actions.ts'.
 *
 * Promises: nothing here shows a secret, and none of it is needed for the gateway to work. What it shows is that of
 * all pods, out of Redis, whichever pod is asked.
 */
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createBullBoard } from '@bull-board/api';
import { BullMQAdapter } from '@bull-board/api/bullMQAdapter';
import { ExpressAdapter } from '@bull-board/express';
import express, { type Request, type Response, type Router } from 'express';
import helmet from 'helmet';
import type { Audit } from '@viaduct/shared/audit';
import type { Config } from '@viaduct/shared/config';
import { ELICITATION_ID, isEnded, type Elicitations } from '@viaduct/shared/elicitations';
import type { JobQueue } from '@viaduct/shared/jobs';
import type { Keyring } from '@viaduct/shared/keyring';
import type { Redis } from '@viaduct/shared/redis/client';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import type { OperatorCodes } from '../operator-codes.ts';
import { createAccess } from './access.ts';
import { createActions, USER_ID, type ActionsDeps } from './actions.ts';
import { page, type Frame } from './layout.ts';
import { createRecords } from './records.ts';
import {
  connectionsView,
  elicitationsView,
  elicitationView,
  podsView,
  sessionsView,
  waitingView,
  type UpstreamEntry,
} from './views.ts';

export interface ConsoleDeps {
  readonly config: Pick<Config, 'console' | 'development' | 'publicUrl' | 'connections'>;
  readonly redis: Redis;
  readonly scripts: Pick<Scripts, 'endSession'>;
  readonly elicitations: Pick<Elicitations, 'load' | 'ownerOf' | 'move'>;
  readonly jobs: Pick<JobQueue, 'enqueue' | 'all'>;
  readonly audit: Audit;
  readonly keyring: Pick<Keyring, 'seal' | 'open'>;
  readonly codes: OperatorCodes;
  readonly isRevoked: (userId: string, atMs: number) => boolean;
  readonly revoke: ActionsDeps['revoke'];
  readonly podId: string;
  readonly upstreams: readonly UpstreamEntry[];
}

/** bull-board styles elements in place. */
const BOARD_POLICY =
  "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; frame-ancestors 'none'; base-uri 'self'";
const asset = (name: string) => readFileSync(new URL(`./assets/${name}`, import.meta.url), 'utf8');

export function createConsole(deps: ConsoleDeps): Router {
  const { jobs, podId } = deps;
  const access = createAccess(deps);
  const actions = createActions({ ...deps, access });
  const records = createRecords(deps);
  const router = express.Router();
  const css = asset('console.css');
  const js = asset('console.js');

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
      res.set({ 'Cache-Control': 'no-store', 'X-Request-Id': randomUUID() });
      next();
    },
  );
  router.get('/console/enter', access.enter);
  router.use('/console', access.guard, express.urlencoded({ extended: false, limit: '4kb' }));

  router.get('/console/assets/console.css', (_req, res) => {
    res.type('text/css').send(css);
  });
  router.get('/console/assets/console.js', (_req, res) => {
    res.type('text/javascript').send(js);
  });

  router.get('/console', async (req, res) => {
    const frame = frameOf(req, res);
    const [waiting, pods] = await Promise.all([records.unfinished(), records.pods()]);
    res.send(page(frame, '/console', 'Who waits', waitingView(waiting, pods, deps.upstreams)));
  });

  router.get('/console/pods', async (req, res) => {
    const frame = frameOf(req, res);
    const body = podsView(frame, await records.pods(), deps.upstreams);
    res.send(page(frame, '/console/pods', 'Pods and upstreams', body));
  });

  router.get('/console/sessions', async (req, res) => {
    const frame = frameOf(req, res);
    const userId = text(req.query['user']);
    const sessions = USER_ID.test(userId) ? await records.sessionsOf(userId) : undefined;
    const body = sessionsView(frame, userId, sessions);
    res.send(page(frame, '/console/sessions', 'Sessions', body));
  });

  router.get('/console/connections', async (req, res) => {
    const frame = frameOf(req, res);
    const body = connectionsView(await records.connections());
    res.send(page(frame, '/console/connections', 'Connections', body));
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
  router.use(actions.router);

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

  function frameOf(req: Request, res: Response): Frame {
    const notice = text(req.query['done']).slice(0, 200);
    const operator = access.operator(res);
    return {
      podId,
      csrf: actions.token(req, res),
      ...(operator !== undefined && { operator: operator.displayName ?? operator.userId }),
      ...(notice !== '' && { notice }),
    };
  }

  return router;
}

const text = (value: unknown): string => (typeof value === 'string' ? value.trim() : '');
