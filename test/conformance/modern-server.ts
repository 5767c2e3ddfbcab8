import { randomBytes } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { toNodeHandler } from '@modelcontextprotocol/node';
import {
  CLIENT_CAPABILITIES_META_KEY,
  createMcpHandler,
  createRequestStateCodec,
  fromJsonSchema,
  McpServer,
  ProtocolError,
  ResourceNotFoundError,
  type CallToolResult,
  type GetPromptResult,
  type InputRequiredResult,
  type ServerContext,
} from '@modelcontextprotocol/server';
import {
  inputSchemaOf,
  PROMPTS,
  readResource,
  RESOURCE_TEMPLATES,
  RESOURCES,
  says,
  type Outcome,
  type Tool,
} from './features.ts';
import {
  asksMore,
  HEADER_TOOL,
  PLAIN_TOOLS,
  ROUND_PROMPT,
  ROUND_TOOLS,
  type Needs,
  type Round,
} from './modern-features.ts';

/** What the tables hold is the wire's own form; the SDK's types are narrower, and its schemas check it as it leaves. */
const asResult = (outcome: Outcome): CallToolResult => outcome as unknown as CallToolResult;

/** What this request says of itself in its `_meta` (basic, General Fields). */
const declared = ({ mcpReq }: ServerContext, key: string): unknown =>
  (mcpReq.envelope as Record<string, unknown> | undefined)?.[key];

const roundOf = (ctx: ServerContext): Round => ({
  responses: ctx.mcpReq.inputResponses,
  state: ctx.mcpReq.requestState<Record<string, unknown>>(),
  declared: (declared(ctx, CLIENT_CAPABILITIES_META_KEY) ?? {}) as Record<string, unknown>,
});

export interface ModernServer {
  handle(request: IncomingMessage, response: ServerResponse, body: unknown): Promise<void>;
}

/** Revision 2026-07-28, as the official SDK serves it: a fresh server for each request, nothing kept between them. */
export function createModernServer(tools: Record<string, Tool>): ModernServer {
  const seal = createRequestStateCodec<Record<string, unknown>>({ key: randomBytes(32) });

  const ask = async ({ inputRequests, state }: Needs): Promise<InputRequiredResult> =>
    ({
      resultType: 'input_required',
      inputRequests,
      ...(state !== undefined && {
        requestState: await seal.mint({ ...state, nonce: randomBytes(8).toString('hex') }),
      }),
    }) as InputRequiredResult;

  function create(): McpServer {
    const mcp = new McpServer(
      { name: 'conformance', version: '1.0.0' },
      {
        capabilities: {
          tools: { listChanged: true },
          prompts: { listChanged: true },
          resources: { subscribe: true, listChanged: true },
          completions: {},
        },
        requestState: { verify: seal.verify },
      },
    );
    for (const [name, tool] of Object.entries({ ...tools, ...PLAIN_TOOLS })) {
      const inputSchema = fromJsonSchema<Record<string, unknown>>(inputSchemaOf(tool));
      mcp.registerTool(name, { description: tool.description, inputSchema }, async (args, ctx) =>
        asResult(await tool.run(args, runningIn(ctx))),
      );
    }
    for (const [name, { description, run }] of Object.entries(ROUND_TOOLS)) {
      const inputSchema = fromJsonSchema({ type: 'object' });
      mcp.registerTool(name, { description, inputSchema }, async (_args, ctx) => {
        const answer = run(roundOf(ctx));
        return asksMore(answer) ? ask(answer) : asResult(answer);
      });
    }
    const { name, description, inputSchema } = HEADER_TOOL;
    const schema = fromJsonSchema<{ region?: string }>(inputSchema);
    mcp.registerTool(name, { description, inputSchema: schema }, ({ region }) =>
      asResult(says(`region=${region ?? 'none'}`)),
    );
    for (const [trigger, publish] of Object.entries(triggers)) {
      mcp.registerTool(trigger, { description: 'Tells listeners of a change' }, () => {
        publish();
        return asResult(says('told'));
      });
    }

    const { server } = mcp;
    server.setRequestHandler('prompts/list', () => ({
      prompts: [
        ...Object.entries(PROMPTS).map(([prompt, { description: words, arguments: args }]) => ({
          name: prompt,
          description: words,
          ...(args && { arguments: args }),
        })),
        { name: ROUND_PROMPT.name, description: ROUND_PROMPT.description },
      ],
    }));
    server.setRequestHandler('prompts/get', async ({ params }, ctx) => {
      if (params.name === ROUND_PROMPT.name) {
        const answer = ROUND_PROMPT.run(roundOf(ctx));
        if (asksMore(answer)) return ask(answer);
        return { messages: [{ role: 'user', content: answer.content[0] }] } as GetPromptResult;
      }
      const prompt = PROMPTS[params.name];
      if (!prompt) throw new ProtocolError(-32602, `Unknown prompt: ${params.name}`);
      return { messages: prompt.get(params.arguments ?? {}) } as unknown as GetPromptResult;
    });
    server.setRequestHandler('resources/list', () => ({ resources: RESOURCES }));
    server.setRequestHandler('resources/templates/list', () => ({
      resourceTemplates: RESOURCE_TEMPLATES,
    }));
    server.setRequestHandler('resources/read', ({ params: { uri } }) => {
      const content = readResource(uri);
      if (!content) throw new ResourceNotFoundError(uri);
      return { contents: [content as { uri: string; text: string }] };
    });
    server.setRequestHandler('completion/complete', ({ params }) => ({
      completion: {
        values: ['paris', 'park', 'party'].filter((word) => word.startsWith(params.argument.value)),
        hasMore: false,
      },
    }));
    return mcp;
  }

  const handler = createMcpHandler(create);
  const triggers = {
    test_trigger_tool_change: () => {
      handler.notify.toolsChanged();
    },
    test_trigger_prompt_change: () => {
      handler.notify.promptsChanged();
    },
  };
  const serve = toNodeHandler(handler);
  return {
    handle: async (request, response, body) => {
      const { method = '', url = '/' } = request;
      await serve(Object.assign(request, { method, url }), response, body);
    },
  };
}

/** A tool of every revision, in this one: it can notify, and ask nothing while it runs. */
function runningIn(ctx: ServerContext): Parameters<Tool['run']>[1] {
  const { mcpReq } = ctx;
  const unavailable = (): never => {
    throw new ProtocolError(-32603, 'not in this revision');
  };
  return {
    progressToken: mcpReq._meta?.progressToken,
    notify: async (method, params) => {
      const unasked =
        method === 'notifications/message' &&
        declared(ctx, 'io.modelcontextprotocol/logLevel') === undefined;
      if (!unasked) await mcpReq.notify({ method, params });
    },
    ask: unavailable,
    announce: unavailable,
    signal: mcpReq.signal,
    closeStream: unavailable,
  };
}
