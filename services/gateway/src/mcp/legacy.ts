/**
 * The sessionful revisions (2025-03-26 to 2025-11-25) on one endpoint: POST, GET and DELETE as the transport
 * page of 2025-11-25 has them. What to send where is decided here; how a call travels is call.ts's.
 */
import type { Logger } from 'pino';
import type { Audit } from '@viaduct/shared/audit';
import type { Config } from '@viaduct/shared/config';
import { fail } from '@viaduct/shared/errors';
import type { JobQueue } from '@viaduct/shared/jobs';
import type { Principal } from '@viaduct/shared/principal';
import type { Redis } from '@viaduct/shared/redis/client';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import { LISTENING } from '@viaduct/shared/event-bus';
import { SESSION_ID } from '@viaduct/shared/redis/keys';
import type { Upstream } from '../upstream/upstream.ts';
import { BatchItemAnswer, type Answer } from './answer.ts';
import type { Asks } from './asks.ts';
import { callKey, type Calls } from './calls.ts';
import type { Credentials, Injected } from './credentials.ts';
import type { Endpoint, Guard } from './guard.ts';
import { initializeMany } from './initialize-many.ts';
import { initializeOne } from './initialize.ts';
import { sessionGone, type Legs } from './legs.ts';
import {
  LISTS_CHANGED,
  type Message,
  type NotificationMessage,
  type RequestMessage,
} from './message.ts';
import { LIST_FIELDS, type Many } from './many.ts';
import { hasToolRules, stringParam } from './operations.ts';
import { parseEventId } from './outlet.ts';
import { qualifyMessage, qualifyResponse } from './qualify.ts';
import type { Relay } from './relay.ts';
import { resumeCall, streamOfEvent, type ResumeDeps } from './resume.ts';
import type { Session, Sessions } from './sessions.ts';
import type { Streams } from './streams.ts';
import { isLegacyVersion } from './versions.ts';
import { filterTools } from './visibility.ts';

export type { Endpoint } from './guard.ts';

const LAST_VERSION_WITH_BATCHES = '2025-03-26';

export interface LegacyDeps {
  readonly config: Config;
  readonly redis: Redis;
  readonly sessions: Sessions;
  readonly streams: Streams;
  readonly legs: Legs;
  readonly asks: Asks;
  readonly calls: Calls;
  readonly relay: Relay;
  readonly credentials: Credentials;
  readonly guard: Guard;
  readonly audit: Audit;
  readonly resume: ResumeDeps;
  readonly many: Many;
  readonly jobs: Pick<JobQueue, 'enqueue'>;
  readonly scripts: Scripts;
  readonly log: Logger;
  /** An error as the JSON-RPC response that it becomes. */
  errorText(answer: Answer, error: unknown): string;
}

export interface Legacy {
  post(answer: Answer, endpoint: Endpoint, principal: Principal, message: Message): Promise<void>;
  /** A batch, for sessions of 2025-03-26 only (basic/index, Batching: receiving MUST be supported there). */
  batch(
    answer: Answer,
    endpoint: Endpoint,
    principal: Principal,
    messages: readonly Message[],
  ): Promise<void>;
  get(answer: Answer, endpoint: Endpoint, principal: Principal): Promise<void>;
  delete(answer: Answer, endpoint: Endpoint, principal: Principal): Promise<void>;
}

export function createLegacy(deps: LegacyDeps): Legacy {
  const { config, sessions, streams, guard } = deps;
  const graceMs = config.auth.streamGraceSeconds * 1000;
  const only = (endpoint: Endpoint): Upstream => endpoint.upstreams[0]!;

  /**
   * The session of this request, within all limits: one round trip to Redis for all of it.
   * @throws GatewayError rate_limited before session_not_found
   */
  async function enter(
    answer: Answer,
    endpoint: Endpoint,
    principal: Principal,
    tool?: string,
  ): Promise<Session> {
    const sessionId = sessionIdOf(answer);
    if (!SESSION_ID.test(sessionId)) {
      await guard.within(answer, endpoint, principal, tool);
      throw sessionGone();
    }
    const charge = guard.charge(answer, endpoint, principal, tool);
    const { name, names } = endpoint;
    const session = await sessions.load(principal, sessionId, name, names, charge);
    if (session === undefined) throw sessionGone();
    return session;
  }

  /** What anything on this endpoint needs, whatever the message. */
  function admit(answer: Answer, endpoint: Endpoint, principal: Principal): void {
    guard.authorize(answer, endpoint, principal, endpoint.name === '' ? undefined : only(endpoint));
  }

  async function initialize(
    answer: Answer,
    endpoint: Endpoint,
    principal: Principal,
    message: RequestMessage,
  ): Promise<void> {
    if (endpoint.name !== '') guard.authorize(answer, endpoint, principal, only(endpoint));
    await guard.within(answer, endpoint, principal);
    const flow = {
      sessions,
      legs: deps.legs,
      credential: (p: Principal, u: Upstream) =>
        deps.credentials.peek(p, u).then((c) => c?.headers),
      onStarted: (session: Session) => {
        deps.audit.record({
          type: 'session.started',
          requestId: answer.requestId,
          userId: principal.userId,
          clientId: principal.clientId,
          sessionId: session.sessionId,
          endpoint: session.endpoint,
          protocolVersion: session.protocolVersion,
        });
        const { userId, sessionId } = session;
        deps.jobs
          .enqueue(
            'end-session',
            { userId, sessionId, requestId: answer.requestId },
            { delayMs: config.sessions.ttlSeconds * 1000 + 1_000 },
          )
          .catch((error: unknown) => {
            // Its upstream session then ends when the upstream thinks so.
            deps.log.warn({ err: error, sessionId }, 'the end of a session could not be scheduled');
          });
      },
    };
    if (endpoint.name !== '') {
      await initializeOne(flow, { principal, upstream: only(endpoint), message, answer });
    } else {
      await initializeMany(
        {
          ...flow,
          scripts: deps.scripts,
          ttlSeconds: config.sessions.ttlSeconds,
          log: deps.log,
          async onJoined(session) {
            for (const text of LISTS_CHANGED) await streams.send(session, LISTENING, text);
          },
        },
        { principal, upstreams: guard.visible(principal, endpoint.upstreams), message, answer },
      );
    }
  }

  async function request(
    answer: Answer,
    endpoint: Endpoint,
    principal: Principal,
    message: RequestMessage,
  ): Promise<void> {
    if (message.method === 'initialize') {
      await initialize(answer, endpoint, principal, message);
      return;
    }
    const tool = message.method === 'tools/call' ? stringParam(message.params, 'name') : undefined;
    if (endpoint.name !== '') guard.authorize(answer, endpoint, principal, only(endpoint), tool);
    // Started in the same tick as the session's load: one round trip to Redis for all of it.
    const credential =
      endpoint.name === '' || only(endpoint).config.connection === undefined
        ? undefined
        : deps.credentials.peek(principal, only(endpoint), answer.requestId);
    const [session] =
      credential === undefined
        ? [await enter(answer, endpoint, principal, tool)]
        : await Promise.all([enter(answer, endpoint, principal, tool), credential]);
    if (message.method === 'ping') {
      answer.json(200, `{"jsonrpc":"2.0","id":${message.idText},"result":{}}`);
      return;
    }
    if (message.method === 'logging/setLevel') {
      const level = stringParam(message.params, 'level');
      if (level !== undefined) await sessions.setLevel(session, level);
    }
    if (endpoint.name === '') await requestMany(answer, endpoint, principal, session, message);
    else {
      const upstream = only(endpoint);
      await forward(answer, endpoint, principal, session, message, { upstream, tool, credential });
    }
  }

  /** To one upstream, once scopes and groups allow it. */
  async function forward(
    answer: Answer,
    endpoint: Endpoint,
    principal: Principal,
    session: Session,
    message: RequestMessage,
    to: {
      upstream: Upstream;
      tool: string | undefined;
      credential?: Promise<Injected | undefined> | undefined;
      body?: string;
    },
  ): Promise<void> {
    const { upstream, tool, body } = to;
    const needed = guard.authorize(answer, endpoint, principal, upstream, tool);
    if (tool !== undefined) guard.checkGroups(answer, endpoint, principal, upstream, tool);
    await deps.relay.call({
      answer,
      session,
      principal,
      upstream,
      message,
      tool,
      credential: await (to.credential ??
        deps.credentials.peek(principal, upstream, answer.requestId)),
      scopes: needed.join(' '),
      expiresAtMs: principal.expiresAtMs + graceMs,
      ...(body !== undefined && { body }),
      toClient: outbound(endpoint, principal, upstream, message.method),
    });
  }

  /** What changes on the way back: hidden tools, and names on the endpoint of many. Mostly nothing. */
  function outbound(
    endpoint: Endpoint,
    principal: Principal,
    upstream: Upstream,
    method: string,
  ): (text: string, parsed: Record<string, unknown>, final: boolean) => string {
    if (endpoint.name === '') {
      return (text, parsed, final) =>
        final
          ? qualifyResponse(text, method, upstream.name)
          : qualifyMessage(text, String(parsed['method']), upstream.name);
    }
    if (method === 'tools/list' && hasToolRules(upstream.config)) {
      return (text, parsed, final) =>
        final ? filterTools(text, parsed, (tool) => guard.allows(principal, upstream, tool)) : text;
    }
    return (text) => text;
  }

  async function requestMany(
    answer: Answer,
    endpoint: Endpoint,
    principal: Principal,
    session: Session,
    message: RequestMessage,
  ): Promise<void> {
    if (Object.hasOwn(LIST_FIELDS, message.method)) {
      answer.json(200, await deps.many.list(session, principal, endpoint.upstreams, message));
      return;
    }
    if (message.method === 'logging/setLevel') {
      await deps.relay.tell(
        session,
        principal,
        guard.visible(principal, endpoint.upstreams),
        message,
      );
      answer.json(200, `{"jsonrpc":"2.0","id":${message.idText},"result":{}}`);
      return;
    }
    const routed = await deps.many.route(session, principal, endpoint.upstreams, message);
    await forward(answer, endpoint, principal, session, message, routed);
  }

  /** For scopes as a call keeps them. */
  const requireScopesOf =
    (answer: Answer, endpoint: Endpoint, principal: Principal) =>
    (scopes: string): void => {
      if (scopes === '') return;
      guard.requireScopes(answer, endpoint, principal, scopes.split(' '));
    };

  async function notification(
    answer: Answer,
    endpoint: Endpoint,
    principal: Principal,
    message: NotificationMessage,
  ): Promise<void> {
    const session = await enter(answer, endpoint, principal);
    if (message.method === 'notifications/cancelled') {
      const params = message.members.get('params');
      const id = message.params?.['requestId'];
      if (params !== undefined && (typeof id === 'string' || typeof id === 'number')) {
        // A weaker token of the same user and client may not end what it could not have begun.
        await deps.calls.cancel(
          session,
          callKey(id),
          stringParam(message.params, 'reason'),
          requireScopesOf(answer, endpoint, principal),
        );
      }
    } else if (endpoint.name !== '' || message.method !== 'notifications/initialized') {
      // On the endpoint of many each upstream has been told when it was opened.
      await Promise.all(
        guard
          .visible(principal, endpoint.upstreams)
          .map((u) => deps.relay.notify(session, principal, u, message)),
      );
    }
    answer.empty(202);
  }

  async function resumeOrListen(
    answer: Answer,
    endpoint: Endpoint,
    principal: Principal,
    session: Session,
  ): Promise<void> {
    const expiresAtMs = principal.expiresAtMs + graceMs;
    const event = parseEventId(header(answer, 'last-event-id') ?? '');
    const stream = event && (await streamOfEvent(deps.redis, session, event));
    if (event !== undefined && stream !== undefined && stream !== LISTENING) {
      await resumeCall(deps.resume, {
        session,
        principal,
        answer,
        stream,
        after: event.entryId,
        expiresAtMs,
        requireScopes: requireScopesOf(answer, endpoint, principal),
      });
      return;
    }
    const opened = await streams.listen(session, principal, answer.req, answer.res, {
      headers: answer.headers,
      // An id that is unknown here replays nothing; what nobody has had yet still comes.
      after: stream === LISTENING ? event?.entryId : undefined,
      expiresAtMs,
    });
    if (opened === undefined && !answer.answered && !answer.gone) throw sessionGone();
  }

  async function post(
    answer: Answer,
    endpoint: Endpoint,
    principal: Principal,
    message: Message,
  ): Promise<void> {
    checkVersionHeader(answer);
    if (message.kind !== 'request' || endpoint.name === '') admit(answer, endpoint, principal);
    switch (message.kind) {
      case 'request':
        await request(answer, endpoint, principal, message);
        return;
      case 'notification':
        await notification(answer, endpoint, principal, message);
        return;
      case 'response': {
        const session = await enter(answer, endpoint, principal);
        await deps.asks.answer(session, principal, message, (name) => {
          const asking = endpoint.upstreams.find((upstream) => upstream.name === name);
          if (asking !== undefined) {
            guard.requireScopes(answer, endpoint, principal, asking.config.scopes);
          }
        });
        // An answer to nothing, or a late one, is taken and ignored.
        answer.empty(202);
      }
    }
  }

  return {
    post,

    async batch(answer, endpoint, principal, messages) {
      checkVersionHeader(answer);
      const session = await sessions.load(
        principal,
        sessionIdOf(answer),
        endpoint.name,
        endpoint.names,
      );
      if (session === undefined) throw sessionGone();
      if (session.protocolVersion !== LAST_VERSION_WITH_BATCHES) {
        throw fail(
          'invalid_request',
          `Batches ended with ${LAST_VERSION_WITH_BATCHES}. Send one message per request.`,
        );
      }
      const items = messages.map((message) => ({ message, item: new BatchItemAnswer(answer) }));
      // Each item is authorised and counted as if it had come alone.
      await Promise.all(
        items.map(async ({ message, item }) => {
          if (message.kind !== 'notification') item.idText = message.idText;
          try {
            if (message.kind === 'request' && message.method === 'initialize') {
              throw fail('invalid_request', 'initialize must not be part of a batch.');
            }
            await post(item, endpoint, principal, message);
          } catch (error) {
            item.json(200, deps.errorText(item, error));
          }
        }),
      );
      const texts = items
        .filter(({ message }) => message.kind === 'request')
        .flatMap(({ item }) => (item.text === undefined ? [] : [item.text]));
      if (texts.length === 0) answer.empty(202);
      else answer.json(200, `[${texts.join(',')}]`);
    },

    async get(answer, endpoint, principal) {
      checkVersionHeader(answer);
      admit(answer, endpoint, principal);
      const session = await enter(answer, endpoint, principal);
      await resumeOrListen(answer, endpoint, principal, session);
    },

    async delete(answer, endpoint, principal) {
      checkVersionHeader(answer);
      admit(answer, endpoint, principal);
      const sessionId = sessionIdOf(answer);
      const [ended] = await Promise.all([
        sessions.end(principal, sessionId, endpoint.name, endpoint.names),
        guard.within(answer, endpoint, principal),
      ]);
      if (ended === undefined) throw sessionGone();
      deps.legs.end(ended);
      deps.audit.record({
        type: 'session.ended',
        requestId: answer.requestId,
        userId: principal.userId,
        clientId: principal.clientId,
        sessionId,
        reason: 'deleted',
      });
      answer.empty(204);
    },
  };
}

function header(answer: Answer, name: string): string | undefined {
  const value = answer.req.headers[name];
  return typeof value === 'string' ? value : undefined;
}

/** @throws GatewayError invalid_request without the header; a malformed id names no session */
function sessionIdOf(answer: Answer): string {
  const sessionId = header(answer, 'mcp-session-id');
  if (sessionId === undefined || sessionId === '') {
    throw fail(
      'invalid_request',
      'The Mcp-Session-Id header is missing. Send initialize first and use the id that it returns.',
    );
  }
  return sessionId;
}

/** 2025-11-25 transports, Protocol Version Header: an unsupported one is 400; without it, the session knows. */
function checkVersionHeader(answer: Answer): void {
  const version = header(answer, 'mcp-protocol-version');
  if (version === undefined || isLegacyVersion(version)) return;
  throw fail(
    'invalid_request',
    `The protocol version ${JSON.stringify(version.slice(0, 32))} is not supported.`,
  );
}
