import type { McpClient } from './mcp-client.ts';
import type { ModernUpstream } from './modern-upstream.ts';
import { startModernWorld, type ModernWorld } from './modern-world.ts';
import type { Members } from './net.ts';
import { says } from './upstream-tools.ts';
import type { WorldClient, WorldOptions } from './world.ts';

export const ALL = {
  elicitation: { form: {}, url: {} },
  sampling: {},
  roots: { listChanged: true },
};

export interface BridgedWorld extends ModernWorld {
  /** A sessionful client of a modern upstream; `upstream: ''` is the endpoint of many. */
  legacy(user: string, options?: WorldClient): McpClient;
}

/** The usual world, with clients that have sessions in front of upstreams that have none. */
export async function startBridgedWorld(options: WorldOptions = {}): Promise<BridgedWorld> {
  const modern = await startModernWorld(options);
  const { world, alpha, beta, url } = modern;
  for (const upstream of [alpha, beta]) addAskingTools(upstream);
  return {
    ...modern,
    legacy: (user, { upstream = 'alpha', capabilities = ALL, token, ...rest } = {}) =>
      world
        .client(user, {
          upstream,
          token: token ?? world.idp.mint({ sub: user, aud: url(upstream), ...rest.claims }),
          ...rest,
        })
        .as({ url: url(upstream), capabilities }),
  };
}

function addAskingTools(upstream: ModernUpstream): void {
  upstream.tools['ask_model'] = {
    description: 'Asks the model',
    run: async (_args, { ask }) =>
      says(
        await ask('sampling/createMessage', {
          messages: [{ role: 'user', content: { type: 'text', text: 'Say hi' } }],
          maxTokens: 10,
        }),
      ),
  };
  upstream.tools['ask_roots'] = {
    description: 'Asks for roots',
    run: async (_args, { ask }) => says(await ask('roots/list', {})),
  };
  upstream.tools['ask_twice'] = {
    description: 'Asks a form, then a link, then a form',
    run: async (_args, { ask }) => {
      const form = { type: 'object', properties: { name: { type: 'string' } } };
      const first = await ask('elicitation/create', { message: 'One?', requestedSchema: form });
      const link = await ask('elicitation/create', {
        ...{ mode: 'url', url: 'https://pay.example/two', message: 'Two' },
      });
      const last = await ask('elicitation/create', { message: 'Three?', requestedSchema: form });
      return says([first, link, last]);
    },
  };
  upstream.tools['region'] = {
    description: 'Mirrors two arguments',
    inputSchema: {
      type: 'object',
      properties: {
        region: { type: 'string', 'x-mcp-header': 'Region' },
        n: { type: 'integer', 'x-mcp-header': 'Count' },
      },
    },
    run: (args: Members) => says(args),
  };
  upstream.tools['broken'] = {
    description: 'Mirrors what must not be mirrored',
    inputSchema: {
      type: 'object',
      properties: { n: { type: 'number', 'x-mcp-header': 'N' } },
    },
    run: () => says('never'),
  };
}
