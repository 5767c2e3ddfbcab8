/**
 * The gateway's own need, a credential of the user's: asked for with `input_required` and a link, or refused in words
 * that say what the person can do (design, sections 6 and 9).
 *
 * An `accept` says that the link was opened, and nothing more (invariant 7): the retry waits for the recorded end of
 * the flow, and when that does not come in time it is given the same link again.
 */
import type { Config } from '@viaduct/shared/config';
import { isEnded, type Elicitation, type Elicitations } from '@viaduct/shared/elicitations';
import { fail, type GatewayError } from '@viaduct/shared/errors';
import type { Metrics } from '@viaduct/shared/metrics';
import type { Connections } from '../../connections/connections.ts';
import { canElicit, explainedRefusal, linkOf } from '../../elicitation/elicitation.ts';
import { resultResponse, type JsonObject } from '../message.ts';
import { META, metaText } from './envelope.ts';
import { namedBy } from './header-values.ts';
import type { Outgoing } from './path.ts';
import type { Carried } from './request-state.ts';
import type { Waiting } from './waiting.ts';

/** What the answer is called in `inputResponses`. Never beside an upstream's: those have rounds of their own. */
export const CONNECT_KEY = 'viaduct.connect';

type Asked = Pick<
  Outgoing,
  'principal' | 'requestId' | 'message' | 'envelope' | 'upstream' | 'reply' | 'seal'
> & {
  readonly endpoint: string;
};
/** What the upstream's own rounds left, to be handed on once there is a credential. */
export type Held = Pick<Extract<Carried, { kind: 'connect' }>, 'upstreamState' | 'inputResponses'>;

export interface Connect {
  /** Ends the reply with the link. @throws GatewayError missing_capability, rate_limited, … */
  ask(asked: Asked, held: Held, scopes?: string): Promise<void>;
  /**
   * A retry after `ask`: waits for the flow's end.
   *
   * @returns true when it ended well; false when the reply has been ended with what to do next
   */
  resume(asked: Asked, elicitationId: string, held: Held): Promise<boolean>;
}

export function createConnect(deps: {
  readonly config: Config;
  readonly connections: Pick<Connections, 'ask' | 'refused'>;
  readonly elicitations: Pick<Elicitations, 'move'>;
  readonly waiting: Waiting;
  readonly metrics: Pick<Metrics, 'capabilityRefusals'>;
}): Connect {
  const { config, connections, elicitations, waiting, metrics } = deps;

  const displayName = ({ upstream }: Asked): string => {
    const name = upstream.config.connection ?? '';
    return config.connections[name]?.displayName ?? name;
  };

  /** For clients and methods that cannot be asked: in words. */
  const refuse = (asked: Asked): GatewayError => {
    const text = explainedRefusal(config.publicUrl, displayName(asked));
    return namedBy(asked.message.method) === undefined
      ? fail('upstream_unavailable', text, { data: { reason: 'not_connected' } })
      : fail('missing_capability', text, {
          data: { reason: 'not_connected', requiredCapabilities: { elicitation: { url: {} } } },
        });
  };

  async function answer(asked: Asked, elicitation: Elicitation, held: Held): Promise<void> {
    const { message } = asked;
    const url = linkOf(config.publicUrl, elicitation.id);
    const requestState = await asked.seal({
      kind: 'connect',
      elicitationId: elicitation.id,
      ...held,
    });
    const params = { mode: 'url', message: elicitation.message, url };
    asked.reply.answer.seen.outcome = 'input_required';
    asked.reply.finish(
      resultResponse(message.idText, {
        resultType: 'input_required',
        inputRequests: { [CONNECT_KEY]: { method: 'elicitation/create', params } },
        requestState,
      }),
    );
  }

  const ask: Connect['ask'] = async (asked, held, scopes) => {
    const { principal, upstream, message, envelope, endpoint, requestId } = asked;
    const context = {
      endpoint,
      capabilities: metaText(message, META.capabilities),
      clientInfo: metaText(message, META.clientInfo),
      requestId,
      ...(scopes !== undefined && { scopes }),
    };
    const askable = namedBy(message.method) !== undefined;
    if (!askable || !canElicit(envelope.capabilities, 'url')) {
      await connections.refused(principal, upstream.config, context);
      if (askable) metrics.capabilityRefusals.inc({ mode: 'url' });
      throw refuse(asked);
    }
    await answer(asked, await connections.ask(principal, upstream.config, context), held);
  };

  return {
    ask,

    async resume(asked, elicitationId, held) {
      const { principal, message, reply } = asked;
      const { userId } = principal;
      const action = actionOf(message.params);
      if (action === 'decline') {
        // Before anybody has opened the link the person's no is the end of it; later the flow's own end counts.
        await elicitations.move(userId, elicitationId, 'declined', {
          reason: 'denied_here',
          from: 'created',
          cause: asked.requestId,
        });
        declined(asked, displayName(asked), config.publicUrl);
        return false;
      }
      const waitMs = action === 'accept' ? config.elicitation.connectWaitSeconds * 1000 : 0;
      const record = await waiting.untilEnded(userId, elicitationId, waitMs, reply);
      if (record?.state === 'completed') return true;
      if (reply.gone) return false;
      // The same link while it is good for anything; else a new one, with words about how the last one ended.
      if (record === undefined || isEnded(record.state)) await ask(asked, held);
      else await answer(asked, record, held);
      return false;
    },
  };
}

function actionOf(params: JsonObject | undefined): unknown {
  const response = (params?.['inputResponses'] as JsonObject | undefined)?.[CONNECT_KEY];
  return typeof response === 'object' && response !== null
    ? (response as JsonObject)['action']
    : undefined;
}

function declined({ message, reply }: Asked, name: string, publicUrl: string): void {
  const text =
    `You declined to connect ${name}, so this was not done. ` +
    `You can connect it at ${publicUrl}/connections in a browser and call again.`;
  if (message.method !== 'tools/call') {
    reply.fail(fail('upstream_unavailable', text, { data: { reason: 'declined' } }));
    return;
  }
  reply.finish(
    resultResponse(message.idText, {
      resultType: 'complete',
      content: [{ type: 'text', text }],
      isError: true,
    }),
  );
}
