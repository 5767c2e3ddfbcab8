/**
 * Sends a client's message to one upstream of its session: with the leg that is open or opened now, with the
 * user's credential where the upstream has a connection, and as the bytes that came.
 */
import type { Logger } from 'pino';
import type { Principal } from '@viaduct/shared/principal';
import { methodLabel, type Metrics } from '@viaduct/shared/metrics';
import { legOf, request, UpstreamStatus, type Eras, type Upstream } from '../upstream/upstream.ts';
import type { Answer } from './answer.ts';
import { Call, type CallDeps, type CallOutcome } from './call.ts';
import { callKey, type Calls } from './calls.ts';
import type { Credentials, Injected } from './credentials.ts';
import type { LegacyToModern } from './legacy-to-modern/legacy-to-modern.ts';
import type { Dialect } from './dialect.ts';
import { within } from './budget.ts';
import type { Legs } from './legs.ts';
import { resultResponse, type NotificationMessage, type RequestMessage } from './message.ts';
import type { Session, UpstreamState } from './sessions.ts';
import { LISTENING } from '@viaduct/shared/event-bus';

/** The tool that a protected upstream shows until its user is connected (design, section 6). */
export const CONNECT_TOOL = 'connect';
const TELL_TIMEOUT_MS = 1_500;

export interface RelayInput {
  readonly answer: Answer;
  readonly session: Session;
  readonly principal: Principal;
  readonly upstream: Upstream;
  readonly message: RequestMessage;
  /** Tool name as the upstream knows it. */
  readonly tool: string | undefined;
  readonly credential: Injected | undefined;
  readonly scopes: string;
  readonly expiresAtMs: number;
  /** What goes upstream instead of the message's own bytes, when names must change. */
  readonly body?: string;
  toClient(text: string, parsed: Record<string, unknown>, final: boolean): string;
}

export interface Relay {
  call(input: RelayInput): Promise<void>;
  notify(
    session: Session,
    principal: Principal,
    upstream: Upstream,
    message: NotificationMessage,
  ): Promise<void>;
  /** The same request to several upstreams, whose answers nobody waits for long or reads. */
  tell(
    session: Session,
    principal: Principal,
    upstreams: readonly Upstream[],
    message: RequestMessage,
  ): Promise<void>;
}

export function createRelay(deps: {
  call: CallDeps;
  calls: Calls;
  legs: Legs;
  toModern: LegacyToModern;
  eras: Pick<Eras, 'doubt'>;
  credentials: Credentials;
  metrics: Metrics;
  log: Logger;
}): Relay {
  const { legs, credentials, calls, metrics, log } = deps;

  /** What a client sees of an upstream that lets nobody in without a credential. */
  async function unauthorized(input: RelayInput): Promise<string> {
    const { message, upstream } = input;
    switch (message.method) {
      case 'tools/list':
        return resultResponse(message.idText, { tools: [connectTool(upstream.name)] });
      case 'prompts/list':
        return resultResponse(message.idText, { prompts: [] });
      case 'resources/list':
        return resultResponse(message.idText, { resources: [] });
      case 'resources/templates/list':
        return resultResponse(message.idText, { resourceTemplates: [] });
      default:
        return missing(input);
    }
  }

  const missing = (
    { principal, session, answer, upstream, message }: RelayInput,
    scopes?: string,
  ): Promise<string> => {
    const context = { principal, session, requestId: answer.requestId };
    return credentials.missing(context, upstream, message, scopes);
  };

  async function call(input: RelayInput): Promise<void> {
    const { session, principal, upstream, message, answer } = input;
    const connected = upstream.config.connection !== undefined;
    let { credential } = input;
    if (connected && credential === undefined && message.method === 'tools/call') {
      answer.json(200, await missing(input));
      return;
    }
    let leg: UpstreamState;
    try {
      leg = await legs.ensure(session, upstream, credential?.headers);
    } catch (error) {
      if (!connected || !(error instanceof UpstreamStatus)) throw error;
      if (error.scopes !== undefined && credentials.stepsUp(upstream)) {
        answer.json(200, await missing(input, error.scopes));
        return;
      }
      if (error.upstreamStatus !== 401) throw error;
      answer.json(200, await unauthorized(input));
      return;
    }
    const joined = session.upstreams.find((u) => u.name === upstream.name)?.sid === undefined;
    if (joined && connected && input.tool === CONNECT_TOOL) {
      // The flow that this tool starts has ended well; the upstream's real tools are there now.
      answer.json(200, connectedResult(message, upstream.name));
      await deps.call.streams.send(
        session,
        LISTENING,
        '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}',
      );
      return;
    }
    /** In the words of an upstream without sessions. */
    const translated = (to: UpstreamState) => ({
      ...{ session, principal, upstream, leg: to, message, requestId: answer.requestId },
      text: input.body ?? message.text,
      credential: () => credential?.headers,
      toClient: input.toClient,
    });
    const dialectFor = (to: UpstreamState): Promise<Dialect | undefined> =>
      to.era === 'modern' ? deps.toModern.dialect(translated(to)) : Promise.resolve(undefined);
    const own = leg.era === 'modern' ? await deps.toModern.own(translated(leg)) : undefined;
    if (own !== undefined) {
      answer.json(200, own);
      return;
    }
    let refusals = 0;
    const running = new Call(
      deps.call,
      {
        session,
        principal,
        upstream,
        message,
        answer,
        scopes: input.scopes,
        expiresAtMs: input.expiresAtMs,
        body: input.body ?? message.bytes ?? message.text,
        address: (state) => legOf(state, credential?.headers),
        async reopen(stale, doubt) {
          if (doubt) deps.eras.doubt(upstream);
          const opened = await legs.ensure(session, upstream, credential?.headers, stale);
          return { leg: opened, dialect: await dialectFor(opened) };
        },
        stepsUp: credentials.stepsUp(upstream),
        async onUnauthorized(stepUp) {
          if (!connected) throw upstreamRefused(upstream);
          if (stepUp !== undefined) return { text: await missing(input, stepUp) };
          if (credential === undefined) return { text: await unauthorized(input) };
          const sent: Injected = credential;
          const fresh = await credentials.rejected(
            principal,
            upstream,
            sent.version,
            answer.requestId,
          );
          refusals++;
          if (fresh === undefined || refusals > 1) return { text: await missing(input) };
          credential = fresh;
          return 'again';
        },
        toClient: input.toClient,
        dialect: await dialectFor(leg),
      },
      leg,
    );
    const id = callKey(message.id);
    calls.add(session, id, running);
    let outcome: CallOutcome;
    try {
      outcome = await running.run();
    } finally {
      calls.remove(session, id, running);
    }
    answer.seen.outcome = outcome.outcome;
    answer.seen.upstreamMs = outcome.upstreamMs;
    metrics.upstreamDuration.observe(
      { upstream: upstream.name, outcome: outcome.outcome },
      outcome.upstreamMs / 1000,
    );
  }

  return {
    call,
    async tell(session, principal, upstreams, message) {
      await Promise.all(
        upstreams.map(async (upstream) => {
          try {
            const credential = await credentials.peek(principal, upstream);
            await legs.use(session, upstream, credential?.headers, async (leg) => {
              if (leg.era === 'modern') return; // hears it with the next request
              await request(upstream, message.text, legOf(leg, credential?.headers), {
                id: message.id,
                timeoutMs: TELL_TIMEOUT_MS,
              });
            });
          } catch (error) {
            log.info({ err: error, upstream: upstream.name }, 'an upstream could not be told');
          }
        }),
      );
    },
    async notify(session, principal, upstream, message) {
      try {
        const credential = await credentials.peek(principal, upstream);
        const told = legs.use(session, upstream, credential?.headers, async (leg) => {
          if (leg.era === 'modern') return; // clients of that era have nothing to notify
          const address = legOf(leg, credential?.headers);
          const sent = upstream.post(message.bytes ?? message.text, address);
          const reply = await sent.reply;
          if (reply.kind === 'events') sent.abort();
          if (reply.status === 404) throw new UpstreamStatus(upstream.name, reply);
        });
        // Its order before the next request is kept, but nobody waits for an upstream that hangs.
        await within(told, TELL_TIMEOUT_MS);
      } catch (error) {
        // A notification has no answer to carry an error; the next request will say what is wrong.
        log.info(
          { err: error, upstream: upstream.name, method: methodLabel(message.method) },
          'a notification did not reach the upstream',
        );
      }
    },
  };
}

function upstreamRefused(upstream: Upstream): UpstreamStatus {
  return new UpstreamStatus(upstream.name, {
    kind: 'body',
    status: 401,
    contentType: '',
    body: Buffer.alloc(0),
    sessionId: undefined,
    wwwAuthenticate: undefined,
    retryAfter: undefined,
  });
}

export function connectTool(name: string): Record<string, unknown> {
  return {
    name: CONNECT_TOOL,
    title: `Connect ${name}`,
    description: `The server "${name}" needs your account before it shows what it offers. Call this tool to connect it.`,
    inputSchema: { type: 'object', properties: {}, additionalProperties: false },
  };
}

function connectedResult(message: RequestMessage, name: string): string {
  const text = `The server "${name}" is connected. List the tools again to see what it offers.`;
  return resultResponse(message.idText, { content: [{ type: 'text', text }] });
}
