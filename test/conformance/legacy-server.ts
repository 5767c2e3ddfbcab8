import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import {
  StreamableHTTPServerTransport,
  type EventStore,
} from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import {
  CallToolRequestSchema,
  CompleteRequestSchema,
  ErrorCode,
  GetPromptRequestSchema,
  isInitializeRequest,
  ListPromptsRequestSchema,
  ListResourcesRequestSchema,
  ListResourceTemplatesRequestSchema,
  ListToolsRequestSchema,
  McpError,
  ReadResourceRequestSchema,
  ResultSchema,
  SetLevelRequestSchema,
  SubscribeRequestSchema,
  UnsubscribeRequestSchema,
  type JSONRPCMessage,
} from '@modelcontextprotocol/sdk/types.js';
import {
  inputSchemaOf,
  PROMPTS,
  readResource,
  RESOURCE_TEMPLATES,
  RESOURCES,
  type Tool,
} from './features.ts';

const RETRY_MS = 500;

/** Keeps what was sent on each stream, in order, for clients that come back. */
class Kept implements EventStore {
  readonly #events: { id: string; stream: string; message: JSONRPCMessage }[] = [];

  storeEvent(stream: string, message: JSONRPCMessage): Promise<string> {
    const id = `${stream}.${this.#events.length}`;
    this.#events.push({ id, stream, message });
    return Promise.resolve(id);
  }

  async replayEventsAfter(
    last: string,
    { send }: { send: (id: string, message: JSONRPCMessage) => Promise<void> },
  ): Promise<string> {
    const at = this.#events.findIndex(({ id }) => id === last);
    const stream = this.#events[at]?.stream ?? '';
    for (const event of this.#events.slice(at + 1)) {
      if (event.stream === stream && 'jsonrpc' in event.message)
        await send(event.id, event.message);
    }
    return stream;
  }
}

function createServer(tools: Record<string, Tool>): McpServer {
  // handlers of our own: the tables are the whole point, and the registry would rewrite schemas
  const mcp = new McpServer(
    { name: 'conformance', version: '1.0.0' },
    {
      capabilities: {
        tools: { listChanged: true },
        prompts: { listChanged: true },
        resources: { subscribe: true, listChanged: true },
        logging: {},
        completions: {},
      },
    },
  );
  const { server } = mcp;
  const none = () => ({});

  server.setRequestHandler(ListToolsRequestSchema, () => ({
    tools: Object.entries(tools).map(([name, tool]) => ({
      name,
      description: tool.description,
      inputSchema: inputSchemaOf(tool),
    })),
  }));
  server.setRequestHandler(CallToolRequestSchema, async ({ params }, extra) => {
    const tool = tools[params.name];
    if (!tool) throw new McpError(ErrorCode.InvalidParams, `Unknown tool: ${params.name}`);
    const outcome = await tool.run(params.arguments ?? {}, {
      progressToken: extra._meta?.progressToken,
      notify: (method, own) => extra.sendNotification({ method, params: own }),
      ask: (method, own) => extra.sendRequest({ method, params: own }, ResultSchema),
      announce: (method, own) => server.notification({ method, ...(own && { params: own }) }),
      signal: extra.signal,
      closeStream: () => extra.closeSSEStream?.(),
    });
    return outcome;
  });

  server.setRequestHandler(ListPromptsRequestSchema, () => ({
    prompts: Object.entries(PROMPTS).map(([name, { description, arguments: args }]) => ({
      name,
      description,
      ...(args && { arguments: args }),
    })),
  }));
  server.setRequestHandler(GetPromptRequestSchema, ({ params }) => {
    const prompt = PROMPTS[params.name];
    if (!prompt) throw new McpError(ErrorCode.InvalidParams, `Unknown prompt: ${params.name}`);
    return { messages: prompt.get(params.arguments ?? {}) };
  });

  server.setRequestHandler(ListResourcesRequestSchema, () => ({ resources: RESOURCES }));
  server.setRequestHandler(ListResourceTemplatesRequestSchema, () => ({
    resourceTemplates: RESOURCE_TEMPLATES,
  }));
  server.setRequestHandler(ReadResourceRequestSchema, ({ params: { uri } }) => {
    const content = readResource(uri);
    if (!content) throw new McpError(-32002, 'Resource not found', { uri });
    return { contents: [content] };
  });
  server.setRequestHandler(SubscribeRequestSchema, none);
  server.setRequestHandler(UnsubscribeRequestSchema, none);
  server.setRequestHandler(SetLevelRequestSchema, none);
  server.setRequestHandler(CompleteRequestSchema, ({ params }) => ({
    completion: {
      values: ['paris', 'park', 'party'].filter((word) => word.startsWith(params.argument.value)),
      hasMore: false,
    },
  }));
  return mcp;
}

export interface LegacyServer {
  handle(request: IncomingMessage, response: ServerResponse, body: unknown): Promise<void>;
  readonly sessions: number;
}

/** The revisions with sessions, as the official SDK serves them. */
export function createLegacyServer(tools: Record<string, Tool>): LegacyServer {
  const transports = new Map<string, StreamableHTTPServerTransport>();

  const open = async (): Promise<StreamableHTTPServerTransport> => {
    const transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      eventStore: new Kept(),
      retryInterval: RETRY_MS,
      onsessioninitialized: (id) => {
        transports.set(id, transport);
      },
      onsessionclosed: (id) => {
        transports.delete(id);
      },
    });
    await createServer(tools).connect(transport);
    return transport;
  };

  const refuse = (response: ServerResponse, status: number, message: string): void => {
    response
      .writeHead(status, { 'content-type': 'application/json' })
      .end(JSON.stringify({ jsonrpc: '2.0', id: null, error: { code: -32000, message } }));
  };

  return {
    get sessions() {
      return transports.size;
    },
    handle: async (request, response, body) => {
      const id = request.headers['mcp-session-id'];
      if (typeof id === 'string') {
        const transport = transports.get(id);
        if (transport) await transport.handleRequest(request, response, body);
        else refuse(response, 404, 'no such session');
      } else if (isInitializeRequest(body)) {
        await (await open()).handleRequest(request, response, body);
      } else refuse(response, 400, 'no session header');
    },
  };
}
