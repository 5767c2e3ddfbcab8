/**
 * Clients of 2026-07-28 on the same URLs: every request stands for itself, says what its client can, and is answered
 * where it arrives. What to do with a request is decided here; what upstreams are asked goes along a path of their
 * own era (path.ts).
 *
 * No sessions, no ids to resume from: `Mcp-Session-Id` and `Last-Event-ID` are not even read.
 */
import type { Logger } from 'pino';
import type { Audit } from '@viaduct/shared/audit';
import type { Config } from '@viaduct/shared/config';
import type { Elicitations } from '@viaduct/shared/elicitations';
import { fail } from '@viaduct/shared/errors';
import type { Nudge } from '@viaduct/shared/event-bus';
import type { Keyring } from '@viaduct/shared/keyring';
import type { Metrics } from '@viaduct/shared/metrics';
import type { Principal } from '@viaduct/shared/principal';
import type { Redis } from '@viaduct/shared/redis/client';
import type { Connections, Injected } from '../../connections/connections.ts';
import type { Guard as AskGuard } from '../../elicitation/elicitation.ts';
import type { Eras } from '../../upstream/upstream.ts';
import type { Answer } from '../answer.ts';
import type { Credentials } from '../credentials.ts';
import type { Endpoint, Guard } from '../guard.ts';
import { LIST_FIELDS } from '../many.ts';
import type { Message, NotificationMessage, RequestMessage } from '../message.ts';
import { stringParam } from '../operations.ts';
import { createConnect } from './connect.ts';
import { checkVersion, readEnvelope, versionOf } from './envelope.ts';
import { createForward, methodNotFound } from './forward.ts';
import { createLists } from './lists.ts';
import type { Bridge, Caller } from './path.ts';
import { Reply } from './reply.ts';
import { createRequestStates, type RequestStates } from './request-state.ts';
import { Subscriptions } from './subscriptions.ts';
import { createToModern, type Round } from './to-modern.ts';
import { createToolBook } from './tool-book.ts';
import { createUnbridged } from './unbridged.ts';
import { Waiting } from './waiting.ts';

export { headerSaysModern, isModern } from './envelope.ts';

/** Methods of earlier revisions that this one has done away with. */
const REMOVED: ReadonlySet<string> = new Set([
  'initialize',
  'ping',
  'logging/setLevel',
  'resources/subscribe',
  'resources/unsubscribe',
]);

export interface ModernDeps {
  readonly config: Config;
  readonly redis: Redis;
  readonly keyring: Keyring;
  readonly eras: Eras;
  readonly elicitations: Elicitations;
  readonly connections: Connections;
  readonly credentials: Credentials;
  readonly guard: Guard;
  readonly metrics: Metrics;
  readonly audit: Audit;
  readonly log: Logger;
  readonly podId: string;
  respondError(answer: Answer, error: unknown): void;
  errorText(answer: Answer, error: unknown): string;
  /** The path to legacy upstreams; without one, they are refused in words. */
  readonly toLegacy?: (shared: PathDeps) => Bridge;
}

/** What a path may need of what is made here. */
export interface PathDeps {
  readonly states: RequestStates;
  readonly guard: AskGuard;
}

export interface Modern {
  post(answer: Answer, endpoint: Endpoint, principal: Principal, message: Message): Promise<void>;
  nudge(nudge: Nudge): void;
  gap(): void;
  /** Ends subscriptions and waits; running calls go on. */
  drain(): void;
  /** Ends the subscriptions and calls of a user whose tokens have been revoked. */
  endUser(userId: string): void;
  /** Calls still under way. */
  readonly running: number;
  stop(): Promise<void>;
}

export function createModern(deps: ModernDeps): Modern {
  const { config, redis, keyring, eras, credentials, guard, metrics, audit, log, podId } = deps;
  const rounds = new Set<Round>();
  const states = createRequestStates({
    keyring,
    redis,
    audit,
    ttlSeconds: config.elicitation.ttlSeconds,
  });
  const askGuard = { development: config.development, ...config.elicitation.formGuard };
  const bridge = deps.toLegacy?.({ states, guard: askGuard });
  const paths = {
    modern: createToModern({ eras, log, rounds, metrics, audit, guard: askGuard }),
    legacy: bridge ?? createUnbridged(),
  };
  const book = createToolBook({ log, audit });
  const lists = createLists({
    eras,
    paths,
    credentials,
    book,
    log,
    allows: ({ principal }, upstream, tool) => guard.allows(principal, upstream, tool),
  });
  const waiting = new Waiting({ elicitations: deps.elicitations, podId });
  const connect = createConnect({
    config,
    connections: deps.connections,
    elicitations: deps.elicitations,
    waiting,
    metrics,
  });
  const forward = createForward({
    eras,
    paths,
    guard,
    credentials,
    connect,
    states,
    lists,
    book,
  });
  const subscriptions = new Subscriptions({
    eras,
    paths,
    credentials,
    log,
    graceMs: config.auth.streamGraceSeconds * 1000,
  });
  const replyDeps = {
    streamAfterMs: config.sessions.streamAfterMs,
    keepAliveMs: config.sessions.keepAliveSeconds * 1000,
    metrics,
    respondError: deps.respondError,
    errorText: deps.errorText,
  };
  let running = 0;

  async function request(
    answer: Answer,
    endpoint: Endpoint,
    principal: Principal,
    message: RequestMessage,
  ): Promise<void> {
    subscriptions.checkId(answer.req.socket, message.idText);
    const envelope = readEnvelope(answer.req.headers, message);
    if (REMOVED.has(message.method)) throw methodNotFound(message);
    const many = endpoint.name === '';
    const upstream = many ? undefined : endpoint.upstreams[0]!;
    const tool = message.method === 'tools/call' ? stringParam(message.params, 'name') : undefined;
    guard.authorize(answer, endpoint, principal, upstream, tool);
    // Begun in the same tick as the limits: one round trip to Redis for all of it.
    const { requestId } = answer;
    const credential = upstream && credentials.peek(principal, upstream, requestId);
    await Promise.all([guard.within(answer, endpoint, principal, tool), credential]);

    const caller: Caller = { principal, requestId, message, envelope };
    const reply = new Reply(answer, replyDeps);
    try {
      await serve(caller, reply, endpoint, credential);
    } catch (error) {
      reply.fail(error);
    }
  }

  async function serve(
    caller: Caller,
    reply: Reply,
    endpoint: Endpoint,
    credential: Promise<Injected | undefined> | undefined,
  ): Promise<void> {
    const { message, principal } = caller;
    const many = endpoint.name === '';
    if (message.method === 'subscriptions/listen') {
      const upstreams = guard.visible(principal, endpoint.upstreams);
      await subscriptions.listen(caller, reply, upstreams, many);
      return;
    }
    running++;
    try {
      if (many && message.method === 'server/discover') {
        reply.finish(await lists.discover(caller, guard.visible(principal, endpoint.upstreams)));
      } else if (many && Object.hasOwn(LIST_FIELDS, message.method)) {
        reply.finish(await lists.merged(caller, guard.visible(principal, endpoint.upstreams)));
      } else await forward({ ...caller, reply, endpoint, credential });
    } finally {
      running--;
    }
  }

  /** This revision defines none that clients send over HTTP (Streamable HTTP, Sending Messages): taken, ignored. */
  async function notification(
    answer: Answer,
    endpoint: Endpoint,
    principal: Principal,
    message: NotificationMessage,
  ): Promise<void> {
    const { headers } = answer.req;
    const version = versionOf(message) ?? String(headers['mcp-protocol-version']);
    checkVersion(headers, version);
    guard.authorize(answer, endpoint, principal, undefined);
    await guard.within(answer, endpoint, principal);
    answer.empty(202);
  }

  return {
    async post(answer, endpoint, principal, message) {
      switch (message.kind) {
        case 'request':
          await request(answer, endpoint, principal, message);
          return;
        case 'notification':
          await notification(answer, endpoint, principal, message);
          return;
        case 'response':
          throw fail(
            'invalid_request',
            'A response cannot be sent here. Answers go into inputResponses of the repeated request.',
          );
      }
    },
    nudge(nudge) {
      waiting.nudge(nudge);
      bridge?.nudge(nudge);
    },
    gap() {
      waiting.gap();
      bridge?.gap();
    },
    drain() {
      waiting.release();
      subscriptions.drain();
    },
    endUser(userId) {
      subscriptions.endUser(userId);
      for (const round of [...rounds]) if (round.userId === userId) round.lost();
      bridge?.endUser(userId);
    },
    get running() {
      return running + (bridge?.running ?? 0);
    },
    async stop() {
      subscriptions.drain();
      for (const round of [...rounds]) round.lost();
      await bridge?.stop();
    },
  };
}
