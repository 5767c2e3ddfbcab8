/**
 * The third party's credential on its way into a call: present, missing, refused. Knows the words for each era's
 * client; what a connection is, and how it comes to be, is connections/'s.
 */
import type { Config } from '@viaduct/shared/config';
import type { Metrics } from '@viaduct/shared/metrics';
import type { Principal } from '@viaduct/shared/principal';
import type { Connections, Injected } from '../connections/connections.ts';
import { canElicit, explainedRefusal, linkOf, urlRequired } from '../elicitation/elicitation.ts';
import type { Upstream } from '../upstream/upstream.ts';
import { errorText, resultResponse, type RequestMessage } from './message.ts';
import { capabilitiesOf, type Session } from './sessions.ts';

export interface AskContext {
  readonly principal: Principal;
  readonly session: Session;
  readonly requestId: string;
}

export interface Credentials {
  /** The credential, if there is one and this client may use it. Undefined also without a connection. */
  peek(principal: Principal, upstream: Upstream, requestId?: string): Promise<Injected | undefined>;
  /** The upstream refused this one: a newer one, or undefined and the user has to connect again. */
  rejected(
    principal: Principal,
    upstream: Upstream,
    version: string,
    requestId: string,
  ): Promise<Injected | undefined>;
  /** The answer to a legacy client's request that cannot go on without a credential. */
  missing(
    context: AskContext,
    upstream: Upstream,
    message: RequestMessage,
    /** What the upstream wants in addition, separated by spaces. */
    scopes?: string,
  ): Promise<string>;
  /** Has this upstream its own OAuth, so that the user can be asked for more scope? */
  stepsUp(upstream: Upstream): boolean;
}

export function createCredentials(deps: {
  config: Config;
  connections: Connections;
  metrics: Metrics;
}): Credentials {
  const { config, connections, metrics } = deps;
  return {
    peek: (principal, upstream, requestId) =>
      upstream.config.connection === undefined
        ? Promise.resolve(undefined)
        : connections.peek(principal, upstream.config, requestId),
    rejected: (principal, upstream, version, requestId) =>
      connections.rejected(principal, upstream.config, version, requestId),

    stepsUp: (upstream) => config.connections[upstream.config.connection ?? '']?.type === 'mcp',

    async missing({ principal, session, requestId }, upstream, message, scopes) {
      const context = {
        sessionId: session.sessionId,
        endpoint: session.endpoint,
        capabilities: session.capabilitiesText,
        clientInfo: session.clientInfoText,
        requestId,
        ...(scopes !== undefined && { scopes }),
      };
      if (!canElicit(capabilitiesOf(session), 'url')) {
        await connections.refused(principal, upstream.config, context);
        metrics.capabilityRefusals.inc({ mode: 'url' });
        const name = upstream.config.connection ?? '';
        const text = explainedRefusal(
          config.publicUrl,
          config.connections[name]?.displayName ?? name,
        );
        return message.method === 'tools/call'
          ? resultResponse(message.idText, { content: [{ type: 'text', text }], isError: true })
          : errorText(message.idText, {
              code: -32603,
              message: text,
              data: { reason: 'not_connected', requestId },
            });
      }
      const elicitation = await connections.ask(principal, upstream.config, context);
      return errorText(
        message.idText,
        urlRequired(elicitation, linkOf(config.publicUrl, elicitation.id)),
      );
    },
  };
}

export type { Connections, Injected } from '../connections/connections.ts';
