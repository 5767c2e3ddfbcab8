/**
 * The MCP endpoints: a raw `node:http` handler, because a framework costs as much as the rest of the path
 * (design, section 10). Every request proves itself, is read once, and goes to the revision that it speaks.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Logger } from 'pino';
import type { Audit } from '@viaduct/shared/audit';
import type { Config } from '@viaduct/shared/config';
import type { Elicitations } from '@viaduct/shared/elicitations';
import type { EventBus, Nudge } from '@viaduct/shared/event-bus';
import { fail, type GatewayError } from '@viaduct/shared/errors';
import type { JobQueue } from '@viaduct/shared/jobs';
import type { Keyring } from '@viaduct/shared/keyring';
import type { Leases } from '@viaduct/shared/lease';
import { methodLabel, type Metrics } from '@viaduct/shared/metrics';
import type { Principal } from '@viaduct/shared/principal';
import type { Limits, Verdict } from '@viaduct/shared/rate-limit';
import type { Redis } from '@viaduct/shared/redis/client';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import { isTracing, traced, traceId } from '@viaduct/shared/tracing';
import { createEras, type Era, type Upstream, type Upstreams } from '../upstream/upstream.ts';
import { Answer } from './answer.ts';
import { createAsks } from './asks.ts';
import { Calls } from './calls.ts';
import { createCredentials, type Connections } from './credentials.ts';
import { createGuard } from './guard.ts';
import {
  checkAcceptForGet,
  checkAcceptForPost,
  checkContentType,
  endpointName,
  readBody,
} from './http.ts';
import { createLegacy, type Endpoint } from './legacy.ts';
import { createLegacyToModern } from './legacy-to-modern/legacy-to-modern.ts';
import { createModernListener } from './legacy-to-modern/listener.ts';
import { createMirrored } from './legacy-to-modern/mirrored.ts';
import { createResourceSubscriptions } from './legacy-to-modern/resource-subscriptions.ts';
import { RoundAnswers } from './legacy-to-modern/round-answers.ts';
import { createLegs } from './legs.ts';
import { Listeners } from './listeners.ts';
import { createMany } from './many.ts';
import { parseBody, type Message } from './message.ts';
import { createModern, headerSaysModern, isModern } from './modern/modern.ts';
import { createToLegacy } from './modern/to-legacy.ts';
import { createToolBook } from './modern/tool-book.ts';
import { qualifyMessage } from './qualify.ts';
import { createRelay } from './relay.ts';
import { createSessions } from './sessions.ts';
import { Streams } from './streams.ts';

export type { Connections } from './credentials.ts';

export interface McpDeps {
  readonly config: Config;
  readonly redis: Redis;
  readonly scripts: Scripts;
  readonly bus: EventBus;
  readonly leases: Leases;
  readonly jobs: Pick<JobQueue, 'enqueue'>;
  readonly limits: Limits;
  readonly upstreams: Upstreams;
  readonly connections: Connections;
  readonly elicitations: Elicitations;
  readonly keyring: Keyring;
  readonly metrics: Metrics;
  readonly audit: Audit;
  readonly log: Logger;
  readonly podId: string;
  /** Whoever has been proven before, without waiting. */
  recognize(req: IncomingMessage, resource: string): Principal | undefined;
  authenticate(req: IncomingMessage, resource: string, requestId: string): Promise<Principal>;
  /** @throws GatewayError when this user has too much open here */
  admit(req: IncomingMessage, userId: string): void;
  requireScopes(
    principal: Principal,
    needed: readonly string[],
    resource: string,
    requestId: string,
  ): void;
  hasScopes(principal: Principal, needed: readonly string[]): boolean;
  /** A 401 is on its way: counts against the address that it goes to. */
  onUnauthenticated(req: IncomingMessage): Promise<void>;
  tooMany(verdict: Verdict, requestId: string, principal: Principal): GatewayError;
  /** The only renderer of errors on this endpoint. */
  respondError(answer: Answer, error: unknown): void;
  errorText(answer: Answer, error: unknown): string;
}

export interface Mcp {
  /** True when the path is one of ours; the answer is then ours too. */
  owns(pathname: string): boolean;
  handle(
    req: IncomingMessage,
    res: ServerResponse,
    context: { pathname: string; requestId: string; headers: Readonly<Record<string, string>> },
  ): Promise<void>;
  nudge(nudge: Nudge): void;
  gap(): void;
  start(): void;
  /** Ends streams so that their clients come back elsewhere; running calls go on. */
  drain(): void;
  /** Ends what this pod holds for a user whose tokens have been revoked. */
  endUser(userId: string): void;
  /** Calls still under way. */
  readonly running: number;
  /** What this pod has found out an upstream to speak. */
  eraOf(upstream: Upstream): Era | undefined;
  stop(): Promise<void>;
}

export function createMcp(deps: McpDeps): Mcp {
  const { config, redis, scripts, metrics, log, podId, upstreams } = deps;
  const ttlSeconds = config.sessions.ttlSeconds;
  const endpoints = endpointsOf(config, upstreams);
  const many = (endpoint: string): boolean => endpoint === '';
  const sessions = createSessions({ config, redis, scripts });
  const eras = createEras({ log });
  const askGuard = { development: config.development, ...config.elicitation.formGuard };
  const legs = createLegs({
    redis,
    scripts,
    sessions,
    leases: deps.leases,
    upstreams,
    eras,
    ttlSeconds,
    log,
  });
  const credentials = createCredentials({ config, connections: deps.connections, metrics });
  const rounds = new RoundAnswers({ redis, log });
  const asks = createAsks({
    redis,
    scripts,
    upstreams,
    ttlSeconds,
    podId,
    rounds,
    metrics,
    log,
    credential: (principal, upstream) =>
      credentials.peek(principal, upstream).then((c) => c?.headers),
    toClient: (session, upstream, text, method) =>
      many(session.endpoint) ? qualifyMessage(text, method, upstream) : text,
    guard: askGuard,
    audit: ({ session, upstream, ...event }) => {
      const { userId, clientId, sessionId } = session;
      const about = { userId, clientId, sessionId, upstream };
      deps.audit.record(
        event.type === 'capability.refused'
          ? { type: event.type, ...about, mode: event.mode }
          : { type: event.type, ...about, detail: event.detail, refused: event.refuse },
      );
    },
  });
  const subscriptions = createResourceSubscriptions({
    redis,
    scripts,
    podId,
    ttlSeconds,
    log,
    refresh: (session, upstream) => listeners.refresh(session, upstream),
  });
  const toModern = createLegacyToModern({
    asks,
    rounds,
    eras,
    metrics,
    audit: deps.audit,
    guard: askGuard,
    mirrored: createMirrored({ book: createToolBook({ log, audit: deps.audit }), log }),
    subscriptions,
  });
  const listeners: Listeners = new Listeners({
    modern: (input) => createModernListener({ subscriptions, credentials, log }, input),
    legs,
    asks,
    log,
    streams: () => streams,
    upstreamsOf: (endpoint, principal) =>
      (endpoints.get(endpoint)?.upstreams ?? []).filter((upstream) =>
        deps.hasScopes(principal, upstream.config.scopes),
      ),
    credential: (principal, upstream) =>
      credentials.peek(principal, upstream).then((c) => c?.headers),
    toClient: (session, upstream, text, parsed) =>
      many(session.endpoint) ? qualifyMessage(text, String(parsed['method']), upstream) : text,
  });
  const streams: Streams = new Streams({
    redis,
    scripts,
    bus: deps.bus,
    config,
    metrics,
    log,
    podId,
    events: {
      onListening: (session, principal) => {
        listeners.open(session, principal);
      },
      onSilent: (session) => {
        listeners.close(session);
      },
      onEnded: () => undefined,
    },
  });
  const calls = new Calls({ redis, podId, streamAfterMs: config.sessions.streamAfterMs, log });
  const relay = createRelay({
    call: { scripts, streams, asks, podId, sessions: config.sessions, log },
    calls,
    legs,
    toModern,
    eras,
    credentials,
    metrics,
    log,
  });
  const guard = createGuard(deps);
  const legacy = createLegacy({
    config,
    redis,
    scripts,
    sessions,
    streams,
    legs,
    asks,
    calls,
    relay,
    credentials,
    guard,
    audit: deps.audit,
    log,
    resume: { redis, scripts, streams, podId, ttlSeconds, log },
    many: createMany({
      legs,
      toModern,
      credentials,
      log,
      allows: guard.allows,
      visible: guard.visible,
    }),
    jobs: deps.jobs,
    errorText: deps.errorText,
  });

  const modern = createModern({
    config,
    redis,
    keyring: deps.keyring,
    eras,
    elicitations: deps.elicitations,
    connections: deps.connections,
    credentials,
    guard,
    metrics,
    audit: deps.audit,
    log,
    podId,
    respondError: deps.respondError,
    errorText: deps.errorText,
    toLegacy: ({ guard }) => createToLegacy({ ...deps, sessions, legs, guard }),
  });

  async function prove(answer: Answer, endpoint: Endpoint): Promise<Principal> {
    try {
      const principal = await deps.authenticate(answer.req, endpoint.resource, answer.requestId);
      deps.admit(answer.req, principal.userId);
      return principal;
    } catch (error) {
      await deps.onUnauthenticated(answer.req);
      throw error;
    }
  }

  /** Almost every request brings a token that has been verified before: then nothing has to be awaited. */
  function principalOf(answer: Answer, endpoint: Endpoint): Principal | Promise<Principal> {
    const known = deps.recognize(answer.req, endpoint.resource);
    if (known === undefined) return prove(answer, endpoint);
    deps.admit(answer.req, known.userId);
    return known;
  }

  async function post(answer: Answer, endpoint: Endpoint): Promise<void> {
    const { req } = answer;
    // Who is known is not waited for; else little of the body is read before its sender has proven who it is.
    let known: Principal | Promise<Principal>;
    try {
      known = principalOf(answer, endpoint);
    } catch (error) {
      known = Promise.reject(error instanceof Error ? error : new Error(String(error)));
    }
    const proof = known instanceof Promise ? known : undefined;
    const reading = readBody(req, config.body.maxBytes, proof);
    let who: Principal;
    let body: Buffer;
    try {
      if (proof !== undefined) reading.catch(() => undefined); // what is wrong with the body is asked below
      who = known instanceof Promise ? await known : known;
      body = await reading;
    } catch (error) {
      // A failure of either waits for the other, so that the answer can echo the id.
      await reading.then(
        (read) => {
          readId(answer, read);
        },
        () => undefined,
      );
      throw error;
    }
    checkContentType(req.headers['content-type']);
    const message = parseBody(body, answer);
    if (!Array.isArray(message)) {
      answer.seen.method = message.kind === 'response' ? 'response' : methodLabel(message.method);
    }
    checkAcceptForPost(req.headers.accept);
    if (!isTracing()) return dispatch(answer, endpoint, who, message);
    const method = answer.seen.method || 'batch';
    await traced(
      {
        name: method,
        kind: 'server',
        parent: parentOf(req, message),
        attributes: {
          'mcp.method.name': method,
          'network.transport': 'tcp',
          'network.protocol.name': 'http',
          'viaduct.endpoint': endpoint.name,
          'viaduct.request_id': answer.requestId,
        },
      },
      () => {
        answer.seen.traceId = traceId();
        return dispatch(answer, endpoint, who, message);
      },
    );
  }

  async function dispatch(
    answer: Answer,
    endpoint: Endpoint,
    principal: Principal,
    message: Message | Message[],
  ): Promise<void> {
    if (Array.isArray(message)) {
      answer.seen.method = 'batch';
      answer.idText = 'null';
      await legacy.batch(answer, endpoint, principal, message);
      return;
    }
    if (isModern(answer.req.headers, message)) {
      answer.seen.era = 'modern';
      await modern.post(answer, endpoint, principal, message);
      return;
    }
    await legacy.post(answer, endpoint, principal, message);
  }

  /** One count and one line for each message, whatever became of it. */
  function observe({ seen, res, startedAt, requestId, req }: Answer): void {
    const status = res.statusCode;
    const outcome = seen.outcome || (status < 400 ? 'ok' : status < 500 ? 'refused' : 'error');
    const method = seen.method || (req.method === 'POST' ? 'invalid' : `http_${req.method ?? ''}`);
    const label =
      method.startsWith('http_') && !/^http_(GET|DELETE)$/.test(method) ? 'other' : method;
    const total = performance.now() - startedAt;
    const { era, upstream } = seen;
    metrics.requests.inc({ era, method: label, upstream, outcome });
    metrics.requestDuration.observe({ era, method: label }, total / 1000, seen.traceId);
    metrics.gatewayOverhead.observe(Math.max(0, total - seen.upstreamMs) / 1000);
    if (log.isLevelEnabled('debug')) {
      log.debug({ requestId, method: label, upstream: seen.upstream, outcome, status }, 'request');
    }
  }

  async function route(answer: Answer, pathname: string): Promise<void> {
    const endpoint = endpoints.get(endpointName(pathname) ?? '?');
    if (endpoint === undefined) throw fail('not_found', 'There is no MCP server at this path.');
    answer.seen.upstream = endpoint.name;
    switch (answer.req.method) {
      case 'POST':
        await post(answer, endpoint);
        return;
      case 'GET': {
        const principal = await principalOf(answer, endpoint);
        checkHasSessions(answer);
        checkAcceptForGet(answer.req.headers.accept);
        await legacy.get(answer, endpoint, principal);
        return;
      }
      case 'DELETE': {
        const principal = await principalOf(answer, endpoint);
        checkHasSessions(answer);
        await legacy.delete(answer, endpoint, principal);
        return;
      }
      default:
        throw fail('method_not_allowed', 'Use POST, GET or DELETE.', {
          headers: { Allow: 'POST, GET, DELETE, OPTIONS' },
        });
    }
  }

  return {
    owns: (pathname) => pathname === '/mcp' || pathname.startsWith('/mcp/'),
    async handle(req, res, { pathname, requestId, headers }) {
      const answer = new Answer(req, res, { requestId, headers });
      try {
        await route(answer, pathname);
      } catch (error) {
        deps.respondError(answer, error);
      }
      observe(answer);
    },
    nudge(nudge) {
      streams.nudge(nudge);
      calls.nudge(nudge);
      rounds.nudge(nudge);
      subscriptions.nudge(nudge);
      modern.nudge(nudge);
    },
    gap() {
      streams.gap();
      rounds.gap();
      modern.gap();
    },
    start() {
      streams.start();
    },
    drain() {
      streams.drain();
      modern.drain();
    },
    endUser(userId) {
      streams.endUser(userId);
      modern.endUser(userId);
    },
    eraOf: eras.known,
    get running() {
      return calls.size + modern.running;
    },
    async stop() {
      await Promise.all([calls.abandonAll(), modern.stop()]);
      listeners.stop();
      streams.stop();
    },
  };
}

function endpointsOf(config: Config, upstreams: Upstreams): ReadonlyMap<string, Endpoint> {
  const endpoint = (name: string, path: string, behind: Endpoint['upstreams']): Endpoint => ({
    name,
    resource: config.publicUrl + path,
    upstreams: behind,
    names: behind.map((upstream) => upstream.name),
  });
  return new Map([
    ['', endpoint('', '/mcp', upstreams.all)],
    ...upstreams.all.map((upstream): [string, Endpoint] => [
      upstream.name,
      endpoint(upstream.name, `/mcp/${upstream.name}`, [upstream]),
    ]),
  ]);
}

/** 2026-07-28 has neither streams of their own nor sessions to end (Streamable HTTP, Earlier Revisions). */
function checkHasSessions(answer: Answer): void {
  if (!headerSaysModern(answer.req.headers)) return;
  answer.seen.era = 'modern';
  throw fail('method_not_allowed', 'This revision of MCP uses POST only.', {
    headers: { Allow: 'POST, OPTIONS' },
  });
}

/** MCP's own word first (SEP-414): the header may be that of something in between. */
function parentOf(req: IncomingMessage, message: Message | Message[]): string | undefined {
  if (!Array.isArray(message) && message.kind !== 'response') {
    const meta = message.params?.['_meta'] as { traceparent?: unknown } | null | undefined;
    if (typeof meta?.traceparent === 'string') return meta.traceparent;
  }
  const { traceparent } = req.headers;
  return typeof traceparent === 'string' ? traceparent : undefined;
}

/** For the answer to a request that failed before it was looked at: its id, if it has one. */
function readId(answer: Answer, body: Buffer): void {
  try {
    parseBody(body, answer);
  } catch {
    // What is wrong with the body is not what this answer is about.
  }
}
