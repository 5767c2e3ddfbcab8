/**
 * Sessionful clients in front of upstreams of 2026-07-28: every request says for itself what the session knows, the
 * session lives here only, and what the upstream asks goes back as requests to the client (design record 004).
 *
 * What this is not: a server. It knows how to speak; what may be sent, and where an answer goes, is relay.ts's,
 * call.ts's and asks.ts's, the same as for sessionful upstreams.
 */
import { fail } from '@viaduct/shared/errors';
import { DuplicateMember } from '@viaduct/shared/json-text';
import type { Principal } from '@viaduct/shared/principal';
import {
  request,
  tryParse,
  type Leg,
  type RpcReply,
  type Upstream,
} from '../../upstream/upstream.ts';
import type { Dialect, UpstreamResponse } from '../dialect.ts';
import { errorText, objectsIn, type JsonObject, type RequestMessage } from '../message.ts';
import { modernLeg } from '../modern/header-values.ts';
import type { Session, UpstreamState } from '../sessions.ts';
import { filterTools } from '../visibility.ts';
import { offers } from './listener.ts';
import type { Mirrored, Headers } from './mirrored.ts';
import { levelOf, modernRequest, stringAt, targetOf } from './requests.ts';
import type { ResourceSubscriptions } from './resource-subscriptions.ts';
import { legacyResponse } from './responses.ts';
import { RoundTrip, type RoundTripDeps } from './round-trip.ts';

export interface ToModernCall {
  readonly session: Session;
  readonly principal: Principal;
  readonly upstream: Upstream;
  readonly leg: UpstreamState;
  readonly message: RequestMessage;
  readonly requestId: string;
  /** The message with the upstream's own names. */
  readonly text: string;
  /** The credential of the moment. */
  credential(): Leg['credential'];
  toClient(text: string, parsed: JsonObject, final: boolean): string;
}

/** A request of the gateway's own in a session. */
export interface OwnRequest {
  readonly session: Session;
  readonly upstream: Upstream;
  readonly credential: Leg['credential'];
  /** As a sessionful upstream would get it. */
  readonly body: string;
  readonly id: string;
  readonly method: string;
  readonly timeoutMs: number;
}

export interface LegacyToModern {
  /** The response to what such an upstream has no request for; undefined when it is the upstream's to answer. */
  own(call: ToModernCall): Promise<string | undefined>;
  /** @throws GatewayError invalid_request, invalid_params */
  dialect(call: ToModernCall): Promise<Dialect>;
  /** @throws GatewayError; UpstreamStatus */
  ask(own: OwnRequest): Promise<RpcReply>;
}

/** Requests of this era that no sessionful client has. */
const NOT_FOR_SESSIONS: ReadonlySet<string> = new Set(['server/discover', 'subscriptions/listen']);

export function createLegacyToModern(
  deps: RoundTripDeps & {
    readonly mirrored: Mirrored;
    readonly subscriptions: ResourceSubscriptions;
  },
): LegacyToModern {
  const { mirrored, subscriptions } = deps;

  function hideTools(
    caller: { readonly userId: string; readonly upstream: Upstream },
    reply: UpstreamResponse,
  ): UpstreamResponse {
    const tools = (reply.parsed['result'] as JsonObject | undefined)?.['tools'];
    if (!Array.isArray(tools)) return reply;
    const hidden = mirrored.learn(caller, objectsIn(tools));
    if (hidden.size === 0) return reply;
    const text = filterTools(reply.text, reply.parsed, (name) => !hidden.has(name));
    return { text, parsed: tryParse(text) ?? reply.parsed };
  }

  async function subscribe(call: ToModernCall, wanted: boolean): Promise<string> {
    const { session, upstream, leg, message, text } = call;
    if (!offers(leg.capabilities).subscribe) return methodNotFound(message);
    const uri = stringAt(text, ['params', 'uri']);
    if (uri === undefined) {
      return errorText(message.idText, { code: -32602, message: `${message.method} needs a uri.` });
    }
    await subscriptions.set(session, upstream.name, uri, wanted);
    return done(message);
  }

  return {
    async own(call) {
      const { message, leg } = call;
      switch (message.method) {
        case 'resources/subscribe':
          return subscribe(call, true);
        case 'resources/unsubscribe':
          return subscribe(call, false);
        case 'logging/setLevel': {
          // The session has it already; each request says it from now on.
          const known = JSON.parse(leg.capabilities ?? '{}') as JsonObject;
          if (known['logging'] === undefined) return methodNotFound(message);
          if (levelOf(String(message.params?.['level'])) !== undefined) return done(message);
          return errorText(message.idText, {
            code: -32602,
            message: 'There is no such log level.',
          });
        }
        default:
          return NOT_FOR_SESSIONS.has(message.method) ? methodNotFound(message) : undefined;
      }
    },

    async dialect(call) {
      const { session, principal, upstream, message, requestId, text } = call;
      const { userId } = principal;
      const modern = modernRequest(text, message.method, session);
      const target = targetOf(modern, message.method);
      const headers = (again: boolean): Promise<Headers | undefined> =>
        message.method !== 'tools/call' || target === undefined
          ? Promise.resolve({})
          : mirrored.headersFor(
              { self: session, userId, upstream, credential: call.credential() },
              target,
              modern,
              again,
            );
      let paramHeaders: Headers | undefined;
      try {
        paramHeaders = await headers(false);
      } catch (error) {
        if (!(error instanceof DuplicateMember)) throw error;
        throw fail('invalid_request', `The arguments are ambiguous: ${error.message}.`);
      }
      if (paramHeaders === undefined) {
        throw fail('invalid_params', `Unknown tool: ${(target ?? '').slice(0, 200)}`, {
          status: 200,
        });
      }
      return new RoundTrip(deps, {
        session,
        principal,
        upstream,
        message,
        requestId,
        request: modern,
        target,
        paramHeaders,
        credential: call.credential,
        paramHeadersNow: () => headers(true),
        hideTools: (reply) => hideTools({ userId, upstream }, reply),
        toClient: (out, method) => call.toClient(out, { method }, false),
      });
    },

    async ask({ session, upstream, credential, body, id, method, timeoutMs }) {
      const text = modernRequest(body, method, session);
      const leg = modernLeg(method, targetOf(text, method), credential);
      const reply = await request(upstream, text, leg, { id, timeoutMs });
      const about = { method, idText: JSON.stringify(id) };
      const shown =
        method === 'tools/list'
          ? hideTools(
              { userId: session.userId, upstream },
              { text: reply.text, parsed: { ...reply.parsed } },
            )
          : { text: reply.text, parsed: { ...reply.parsed } };
      return {
        text: legacyResponse(shown.text, shown.parsed, about),
        parsed: shown.parsed,
        sessionId: undefined,
      };
    },
  };
}

const done = ({ idText }: RequestMessage): string => `{"jsonrpc":"2.0","id":${idText},"result":{}}`;

const methodNotFound = ({ idText, method }: RequestMessage): string =>
  errorText(idText, { code: -32601, message: `Method not found: ${method.slice(0, 200)}` });
