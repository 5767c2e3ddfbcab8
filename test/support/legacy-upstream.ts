import { randomUUID } from 'node:crypto';
import type { IncomingHttpHeaders, ServerResponse } from 'node:http';
import { listen, parse, sendJson, type Exchange, type Listener } from './net.ts';
import type { Members, Message, RpcError } from './net.ts';
import {
  TOOLS,
  ToolFailure,
  type Tool,
  type ToolContext,
  type ToolOutcome,
} from './upstream-tools.ts';
import { Gate } from './until.ts';

export interface Received {
  method: string;
  headers: IncomingHttpHeaders;
  rawHeaders: string[];
  text: string;
  message: Message | undefined;
}

interface Waiting {
  resolve(result: unknown): void;
  reject(error: Error): void;
}

export interface UpstreamSession {
  id: string;
  version: string;
  capabilities: Members;
  clientInfo: unknown;
  listening: ServerResponse | undefined;
  waiting: Map<string, Waiting>;
  running: Map<string, { tool: string; abort: AbortController }>;
}

export interface UpstreamOptions {
  name?: string;
  versions?: string[];
}

/**
 * An MCP server of 2025-03-26 to 2025-11-25 on bare node:http: no SDK, so it sends exactly what a test wants and
 * keeps the bytes of all that reaches it.
 */
export interface LegacyUpstream extends Listener {
  readonly name: string;
  readonly endpoint: string;
  readonly received: Received[];
  readonly sessions: Map<string, UpstreamSession>;
  readonly tools: Record<string, Tool>;
  /** Answers to other methods, with all that a tool may do. */
  readonly methods: Record<string, Tool['run']>;
  /** What initialize declares. */
  capabilities: Members;
  /** Tool calls that ran, by tool. */
  readonly ran: Record<string, number>;
  /** `notifications/cancelled` that named a running call. */
  readonly cancelled: string[];
  readonly answers: Message[];
  initialized: number;
  ended: number;
  /** Refuses a request (401 with a challenge of its own) when it gives true. */
  refuses: ((request: Received) => boolean) | undefined;
  /** Takes over an answer when it gives true. */
  intercept: ((exchange: Exchange, received: Received) => boolean | Promise<boolean>) | undefined;
  calls(tool: string): Received[];
  requests(method: string): Received[];
  gate: (name: string) => Gate;
  /** On the listening streams of all sessions, or of one; how many got it. */
  notify(method: string, params?: Members, session?: UpstreamSession): number;
  listening(): number;
  /** As a restarted server: no session is known any more. */
  forget(): void;
}

export const FOREIGN_CHALLENGE =
  'Bearer realm="upstream", resource_metadata="https://elsewhere.example/.well-known/oauth-protected-resource"';

const frame = (data: string): string => `event: message\ndata: ${data}\n\n`;

export async function startLegacyUpstream(options: UpstreamOptions = {}): Promise<LegacyUpstream> {
  const { name = 'files', versions = ['2025-11-25', '2025-06-18', '2025-03-26'] } = options;
  const gates = new Map<string, Gate>();
  let serial = 100;

  const rpcError = (
    response: ServerResponse,
    status: number,
    message: Message | undefined,
    text: string,
  ): void =>
    sendJson(response, status, {
      jsonrpc: '2.0',
      id: message?.id ?? null,
      error: { code: -32000, message: text },
    });

  const initialize = (response: ServerResponse, message: Message): void => {
    upstream.initialized += 1;
    const asked = message.params as {
      protocolVersion: string;
      capabilities: Members;
      clientInfo: unknown;
    };
    const session: UpstreamSession = {
      id: `up-${randomUUID()}`,
      version: versions.includes(asked.protocolVersion) ? asked.protocolVersion : versions[0]!,
      capabilities: asked.capabilities,
      clientInfo: asked.clientInfo,
      listening: undefined,
      waiting: new Map(),
      running: new Map(),
    };
    upstream.sessions.set(session.id, session);
    const result = {
      protocolVersion: session.version,
      capabilities: upstream.capabilities,
      serverInfo: { name, version: '1.2.3', 'x-kept': 'yes' },
      instructions: `How to use ${name}`,
    };
    sendJson(
      response,
      200,
      { jsonrpc: '2.0', id: message.id, result },
      { 'mcp-session-id': session.id },
    );
  };

  const listenFor = (response: ServerResponse, session: UpstreamSession): void => {
    session.listening?.end();
    session.listening = response;
    response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' });
    response.flushHeaders();
    response.on('close', () => {
      if (session.listening === response) session.listening = undefined;
    });
  };

  const takeAnswer = (session: UpstreamSession, message: Message): void => {
    upstream.answers.push(message);
    const key = JSON.stringify(message.id);
    const waiting = session.waiting.get(key);
    session.waiting.delete(key);
    if (message.error) {
      waiting?.reject(
        new ToolFailure(message.error.code, message.error.message, message.error.data),
      );
    } else waiting?.resolve(message.result);
  };

  const runTool = async (
    exchange: Exchange,
    session: UpstreamSession,
    message: Message,
  ): Promise<void> => {
    const { response, body } = exchange;
    const params = message.params as { name: string; arguments?: Members; _meta?: Members };
    const method = message.method ?? '';
    const own = Object.hasOwn(upstream.methods, method) ? upstream.methods[method] : undefined;
    const tool = own ? { run: own } : upstream.tools[params.name];
    // the id goes back as it came, whatever a number it was
    const id = /"id"\s*:\s*(-?\d+)/.exec(body.toString('utf8'))?.[1];
    const rawId = typeof message.id === 'number' && id ? id : JSON.stringify(message.id);
    const key = JSON.stringify(message.id);
    const abort = new AbortController();
    session.running.set(key, { tool: params.name, abort });
    const emit = (data: string): void => {
      if (!response.headersSent) response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(frame(data));
    };
    const context: ToolContext = {
      progressToken: params._meta?.['progressToken'],
      signal: abort.signal,
      clientCapabilities: session.capabilities,
      gate: upstream.gate,
      notify: (method, own) => emit(JSON.stringify({ jsonrpc: '2.0', method, params: own })),
      ask: (method, own) =>
        new Promise((resolve, reject) => {
          const askId = serial++;
          session.waiting.set(String(askId), { resolve, reject });
          emit(JSON.stringify({ jsonrpc: '2.0', id: askId, method, params: own }));
        }),
    };
    let outcome: ToolOutcome;
    let error: RpcError | undefined;
    try {
      if (!tool) throw new ToolFailure(-32602, `Unknown tool: ${params.name}`);
      const ranAs = own ? message.method! : params.name;
      upstream.ran[ranAs] = (upstream.ran[ranAs] ?? 0) + 1;
      outcome = await tool.run((own ? params : params.arguments) ?? {}, context);
    } catch (thrown) {
      const failure =
        thrown instanceof ToolFailure ? thrown : new ToolFailure(-32603, String(thrown));
      error = { code: failure.code, message: failure.message };
      if (failure.data !== undefined) error.data = failure.data as Members;
    } finally {
      session.running.delete(key);
    }
    if (!error && outcome === undefined) {
      if (!response.headersSent) response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.end();
      return;
    }
    const rest = error
      ? `"error":${JSON.stringify(error)}`
      : `"result":${outcome && 'raw' in outcome ? String(outcome.raw) : JSON.stringify(outcome)}`;
    const text = `{"jsonrpc":"2.0","id":${rawId},${rest}}`;
    if (response.headersSent) response.end(frame(text));
    else response.writeHead(200, { 'content-type': 'application/json' }).end(text);
  };

  const listTools = (response: ServerResponse, message: Message): void => {
    const tools = Object.entries(upstream.tools).map(([toolName, tool]) => ({
      name: toolName,
      description: tool.description,
      inputSchema: tool.inputSchema ?? { type: 'object' },
    }));
    sendJson(response, 200, { jsonrpc: '2.0', id: message.id, result: { tools } });
  };

  const serve = async (exchange: Exchange): Promise<void> => {
    const { request, response, body, url } = exchange;
    const text = body.toString('utf8');
    const message = parse(text);
    const entry: Received = {
      method: request.method ?? '',
      headers: request.headers,
      rawHeaders: request.rawHeaders,
      text,
      message,
    };
    upstream.received.push(entry);
    if (await upstream.intercept?.(exchange, entry)) return;
    if (url.pathname !== '/mcp') {
      sendJson(response, 404, { error: 'not_found' });
      return;
    }
    if (upstream.refuses?.(entry)) {
      sendJson(response, 401, { error: 'unauthorized' }, { 'www-authenticate': FOREIGN_CHALLENGE });
      return;
    }
    if (message?.method === 'initialize') {
      initialize(response, message);
      return;
    }
    const sessionId = request.headers['mcp-session-id'];
    if (typeof sessionId !== 'string') {
      rpcError(response, 400, message, 'no session header');
      return;
    }
    const session = upstream.sessions.get(sessionId);
    if (!session) {
      rpcError(response, 404, message, 'no such session');
      return;
    }
    const version = request.headers['mcp-protocol-version'];
    if (version !== undefined && version !== session.version) {
      rpcError(response, 400, message, `not the negotiated version: ${String(version)}`);
      return;
    }
    if (request.method === 'GET') {
      listenFor(response, session);
      return;
    }
    if (request.method === 'DELETE') {
      upstream.ended += 1;
      session.listening?.end();
      upstream.sessions.delete(session.id);
      response.writeHead(204).end();
      return;
    }
    if (!message || Array.isArray(message)) {
      rpcError(response, 400, undefined, 'not one message');
      return;
    }
    if (message.method === undefined) takeAnswer(session, message);
    if (message.method === undefined || message.id === undefined) {
      const running = session.running.get(JSON.stringify(message.params?.['requestId']));
      if (message.method === 'notifications/cancelled' && running) {
        upstream.cancelled.push(running.tool);
        running.abort.abort();
      }
      response.writeHead(202).end();
      return;
    }
    if (message.method === 'tools/call' || Object.hasOwn(upstream.methods, message.method)) {
      return runTool(exchange, session, message);
    }
    if (message.method === 'tools/list') {
      listTools(response, message);
      return;
    }
    if (message.method === 'ping' || message.method === 'logging/setLevel') {
      sendJson(response, 200, { jsonrpc: '2.0', id: message.id, result: {} });
      return;
    }
    const error = { code: -32601, message: `Unknown method: ${message.method}` };
    sendJson(response, 200, { jsonrpc: '2.0', id: message.id, error });
  };

  const listener = await listen(serve);
  const upstream: LegacyUpstream = {
    ...listener,
    name,
    endpoint: `${listener.url}/mcp`,
    received: [],
    sessions: new Map(),
    tools: { ...TOOLS },
    methods: {},
    capabilities: { tools: { listChanged: true }, logging: {} },
    ran: {},
    cancelled: [],
    answers: [],
    initialized: 0,
    ended: 0,
    refuses: undefined,
    intercept: undefined,
    calls: (tool) =>
      upstream.requests('tools/call').filter(({ message }) => message?.params?.['name'] === tool),
    requests: (method) => upstream.received.filter(({ message }) => message?.method === method),
    gate: (gateName) => {
      const gate = gates.get(gateName) ?? new Gate();
      gates.set(gateName, gate);
      return gate;
    },
    notify: (method, params, only) => {
      const targets = only ? [only] : [...upstream.sessions.values()];
      const data = JSON.stringify({ jsonrpc: '2.0', method, ...(params && { params }) });
      const open = targets.filter((session) => session.listening);
      for (const session of open) session.listening?.write(frame(data));
      return open.length;
    },
    listening: () => [...upstream.sessions.values()].filter((session) => session.listening).length,
    forget: () => {
      for (const session of upstream.sessions.values()) session.listening?.end();
      upstream.sessions.clear();
    },
  };
  return upstream;
}
