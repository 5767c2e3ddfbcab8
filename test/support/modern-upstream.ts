import { randomUUID } from 'node:crypto';
import type { ServerResponse } from 'node:http';
import { listen, parse, sendJson, type Exchange, type Listener } from './net.ts';
import type { Members, Message, Result } from './net.ts';
import type { Received } from './legacy-upstream.ts';
import { TOOLS, ToolFailure, type Tool, type ToolContext } from './upstream-tools.ts';
import { Gate } from './until.ts';

const PREFIX = 'io.modelcontextprotocol/';
const VERSION = '2026-07-28';
const CACHEABLE = new Set([
  'server/discover',
  'tools/list',
  'prompts/list',
  'resources/list',
  'resources/templates/list',
  'resources/read',
]);

interface Listening {
  readonly filter: Members;
  emit(method: string, params?: Members): void;
  end(): void;
  cut(): void;
}

/** What a round left for the next one. */
interface Left {
  readonly tool: string;
  readonly answers: Members;
}

class InputRequired extends Error {
  readonly key: string;
  readonly request: Members;
  constructor(key: string, request: Members) {
    super('input required');
    this.key = key;
    this.request = request;
  }
}

/**
 * An MCP server of 2026-07-28 on bare node:http: no sessions, strict about headers, and it keeps the bytes of all that
 * reaches it. Its tools are those of the legacy one; what they ask becomes `input_required`.
 */
export interface ModernUpstream extends Listener {
  readonly name: string;
  readonly endpoint: string;
  readonly received: Received[];
  readonly tools: Record<string, Tool>;
  readonly ran: Record<string, number>;
  /** Requests whose response stream was closed before its end. */
  readonly cancelled: string[];
  readonly listening: Set<Listening>;
  /** `requestState` of the upstream's own that came back to it, JSON text as it stood in the body. */
  readonly statesBack: string[];
  /** What a `requestState` looks like. */
  makeState: () => string;
  pageSize: number;
  cacheScope: string;
  ttlMs: number;
  resources: { uri: string; name: string }[];
  refuses: ((request: Received) => boolean) | undefined;
  intercept: ((exchange: Exchange, received: Received) => boolean | Promise<boolean>) | undefined;
  requests(method: string): Received[];
  calls(tool: string): Received[];
  gate: (name: string) => Gate;
  /** To the subscriptions that asked for it; how many got it. */
  notify(method: string, params?: Members): number;
}

const frame = (data: string): string => `event: message\ndata: ${data}\n\n`;

function decode(value: string | string[] | undefined): string | undefined {
  if (typeof value !== 'string') return undefined;
  const encoded = /^=\?base64\?(.*)\?=$/.exec(value)?.[1];
  return encoded === undefined ? value : Buffer.from(encoded, 'base64').toString('utf8');
}

export async function startModernUpstream(
  options: { name?: string } = {},
): Promise<ModernUpstream> {
  const { name = 'modern' } = options;
  const gates = new Map<string, Gate>();
  const states = new Map<string, Left>();

  /** What is wrong with the headers of a request. */
  function headerFault({ headers, message }: Received): string | undefined {
    const params = message?.params ?? {};
    const meta = (params['_meta'] ?? {}) as Members;
    const version = headers['mcp-protocol-version'];
    if (version !== meta[`${PREFIX}protocolVersion`])
      return `MCP-Protocol-Version: ${String(version)}`;
    if (headers['mcp-method'] !== message?.method)
      return `Mcp-Method: ${String(headers['mcp-method'])}`;
    const member = { 'tools/call': 'name', 'prompts/get': 'name', 'resources/read': 'uri' }[
      message?.method ?? ''
    ];
    const named = member === undefined ? undefined : params[member];
    if (named !== undefined && decode(headers['mcp-name']) !== named) {
      return `Mcp-Name: ${String(headers['mcp-name'])}`;
    }
    if (message?.method !== 'tools/call') return undefined;
    const schema = upstream.tools[params['name'] as string]?.inputSchema;
    const args = (params['arguments'] ?? {}) as Members;
    for (const [key, property] of Object.entries((schema?.['properties'] ?? {}) as Members)) {
      const header = (property as Members)['x-mcp-header'];
      if (typeof header !== 'string') continue;
      const given = decode(headers[`mcp-param-${header.toLowerCase()}`]);
      const wanted = args[key] as string | number | boolean | null | undefined;
      if (given !== (wanted == null ? undefined : String(wanted))) {
        return `Mcp-Param-${header}: ${String(given)}`;
      }
    }
    return undefined;
  }

  const serve = async (exchange: Exchange): Promise<void> => {
    const { request, response, body, url } = exchange;
    const text = body.toString('utf8');
    const message = parse(text);
    const { headers, rawHeaders } = request;
    const entry: Received = { method: request.method ?? '', headers, rawHeaders, text, message };
    upstream.received.push(entry);
    if (await upstream.intercept?.(exchange, entry)) return;
    const error = (status: number, code: number, words: string, data?: Members): void =>
      sendJson(response, status, {
        jsonrpc: '2.0',
        id: message?.id ?? null,
        error: { code, message: words, ...(data && { data }) },
      });
    if (url.pathname !== '/mcp') {
      sendJson(response, 404, { error: 'not_found' });
      return;
    }
    if (upstream.refuses?.(entry)) {
      sendJson(response, 401, { error: 'unauthorized' });
      return;
    }
    if (request.method !== 'POST') {
      sendJson(response, 405, {});
      return;
    }
    const method = message?.method;
    if (!message || method === undefined) {
      error(400, -32600, 'not a request');
      return;
    }
    if (method === 'initialize') {
      error(400, -32022, 'no sessions here', { supported: [VERSION] });
      return;
    }
    const params = message.params ?? {};
    const meta = (params['_meta'] ?? {}) as Members;
    if (meta[`${PREFIX}clientCapabilities`] === undefined) {
      error(400, -32602, 'no capabilities');
      return;
    }
    const fault = headerFault(entry);
    if (fault !== undefined) {
      error(400, -32020, `Header mismatch: ${fault}`);
      return;
    }
    if (meta[`${PREFIX}protocolVersion`] !== VERSION) {
      error(400, -32022, 'unsupported', { supported: [VERSION] });
      return;
    }
    await answer(entry, response, message, method, params, meta);
  };

  async function answer(
    entry: Received,
    response: ServerResponse,
    message: Message,
    method: string,
    params: Members,
    meta: Members,
  ): Promise<void> {
    const abort = new AbortController();
    const what = method === 'tools/call' ? String(params['name']) : method;
    response.on('close', () => {
      if (response.writableFinished) return;
      upstream.cancelled.push(what);
      abort.abort();
    });
    const emit = (data: unknown): void => {
      if (!response.headersSent) response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(frame(JSON.stringify(data)));
    };
    if (method === 'subscriptions/listen') {
      subscribe(response, message, params, emit);
      return;
    }
    const finish = (rest: string, status = 200): void => {
      if (abort.signal.aborted) return;
      const text = `{"jsonrpc":"2.0","id":${JSON.stringify(message.id)},${rest}}`;
      if (response.headersSent) response.end(frame(text));
      else response.writeHead(status, { 'content-type': 'application/json' }).end(text);
    };
    const fail = (code: number, words: string, data?: unknown, status?: number): void =>
      finish(`"error":${JSON.stringify({ code, message: words, data })}`, status);

    const given = params['requestState'] as string | undefined;
    const left = given === undefined ? undefined : states.get(given);
    if (given !== undefined) {
      const at = /"requestState":("(?:[^"\\]|\\.)*")/.exec(entry.text)?.[1];
      upstream.statesBack.push(at ?? '');
      if (left?.tool !== what) {
        fail(-32602, 'not a state of mine');
        return;
      }
    }
    const answers = { ...left?.answers, ...(params['inputResponses'] as Members | undefined) };
    let asked = 0;
    const context: ToolContext = {
      progressToken: meta['progressToken'],
      signal: abort.signal,
      clientCapabilities: meta[`${PREFIX}clientCapabilities`] as Members,
      gate: upstream.gate,
      notify: (named, own) => emit({ jsonrpc: '2.0', method: named, params: own }),
      ask: (asks, own) => {
        const key = `q${++asked}`;
        if (Object.hasOwn(answers, key)) return Promise.resolve(answers[key]);
        return Promise.reject(new InputRequired(key, { method: asks, params: own }));
      },
    };
    try {
      const result = await run(method, params, context);
      if (result === undefined) return void response.end();
      if ('raw' in result) {
        finish(`"result":${String(result.raw)}`);
        return;
      }
      const hints = CACHEABLE.has(method)
        ? { ttlMs: upstream.ttlMs, cacheScope: upstream.cacheScope }
        : {};
      finish(`"result":${JSON.stringify({ resultType: 'complete', ...result, ...hints })}`);
    } catch (thrown) {
      if (thrown instanceof InputRequired) {
        const requestState = upstream.makeState();
        states.set(requestState, { tool: what, answers });
        const inputRequests = { [thrown.key]: thrown.request };
        finish(
          `"result":${JSON.stringify({ resultType: 'input_required', inputRequests, requestState })}`,
        );
        return;
      }
      if (!(thrown instanceof ToolFailure)) throw thrown;
      fail(thrown.code, thrown.message, thrown.data, thrown.code === -32601 ? 404 : 200);
    }
  }

  function subscribe(
    response: ServerResponse,
    message: Message,
    params: Members,
    emit: (data: unknown) => void,
  ): void {
    const tag = { [`${PREFIX}subscriptionId`]: message.id };
    const listening: Listening = {
      filter: (params['notifications'] ?? {}) as Members,
      emit: (method, own) => emit({ jsonrpc: '2.0', method, params: { ...own, _meta: tag } }),
      end: () => {
        emit({ jsonrpc: '2.0', id: message.id, result: { resultType: 'complete', _meta: tag } });
        response.end();
      },
      cut: () => response.destroy(),
    };
    upstream.listening.add(listening);
    response.on('close', () => upstream.listening.delete(listening));
    listening.emit('notifications/subscriptions/acknowledged', { notifications: listening.filter });
  }

  function page<T>(
    all: readonly T[],
    cursor: string | undefined,
  ): { items: readonly T[]; more: Members } {
    if (upstream.pageSize === 0) return { items: all, more: {} };
    const from = cursor === undefined ? 0 : Number(/^at:(\d+)$/.exec(cursor)?.[1]);
    if (Number.isNaN(from)) throw new ToolFailure(-32602, 'not a cursor of mine');
    const to = from + upstream.pageSize;
    return { items: all.slice(from, to), more: to < all.length ? { nextCursor: `at:${to}` } : {} };
  }

  async function run(
    method: string,
    params: Members,
    context: ToolContext,
  ): Promise<Result | { raw: string } | undefined> {
    const { name: asked, uri, cursor } = params;
    switch (method) {
      case 'server/discover':
        return {
          supportedVersions: [VERSION],
          capabilities: {
            tools: { listChanged: true },
            prompts: { listChanged: true },
            resources: { listChanged: true, subscribe: true },
            completions: {},
            logging: {},
          },
          instructions: `instructions of ${name}`,
          _meta: { [`${PREFIX}serverInfo`]: { name, version: '1.0.0' } },
        };
      case 'tools/list': {
        const { items, more } = page(Object.entries(upstream.tools), cursor as string | undefined);
        const tools = items.map(([tool, { description, inputSchema }]) => ({
          name: tool,
          description,
          inputSchema: inputSchema ?? { type: 'object' },
        }));
        return { tools, ...more };
      }
      case 'tools/call': {
        const tool = upstream.tools[asked as string];
        if (!tool) throw new ToolFailure(-32602, `Unknown tool: ${String(asked)}`);
        upstream.ran[asked as string] = (upstream.ran[asked as string] ?? 0) + 1;
        return tool.run((params['arguments'] ?? {}) as Members, context);
      }
      case 'prompts/list':
        return { prompts: [{ name: 'greet', description: 'Greets' }] };
      case 'prompts/get': {
        if (asked === 'asking') {
          const said = await context.ask('roots/list', {});
          return {
            messages: [{ role: 'user', content: { type: 'text', text: JSON.stringify(said) } }],
          };
        }
        const text = `Hello from ${name}`;
        return { messages: [{ role: 'user', content: { type: 'text', text } }] };
      }
      case 'resources/list':
        return { resources: upstream.resources };
      case 'resources/templates/list':
        return { resourceTemplates: [{ uriTemplate: 'res://doc/{id}', name: 'doc' }] };
      case 'resources/read':
        if (!upstream.resources.some((one) => one.uri === uri)) {
          throw new ToolFailure(-32602, 'Resource not found', { uri });
        }
        return {
          contents: [{ uri, mimeType: 'text/plain', text: `${name}: ${String(uri)}` }],
        };
      case 'completion/complete':
        return { completion: { values: [`${name}-done`], total: 1, hasMore: false } };
      default:
        throw new ToolFailure(-32601, `Method not found: ${method}`);
    }
  }

  const listener = await listen(serve);
  const upstream: ModernUpstream = {
    ...listener,
    name,
    endpoint: `${listener.url}/mcp`,
    received: [],
    tools: { ...TOOLS },
    ran: {},
    cancelled: [],
    listening: new Set(),
    statesBack: [],
    makeState: () => `${name}.${randomUUID()}.ü"\\/=`,
    pageSize: 0,
    cacheScope: 'private',
    ttlMs: 0,
    resources: [{ uri: 'res://doc/1', name: 'doc-1' }],
    refuses: undefined,
    intercept: undefined,
    requests: (method) => upstream.received.filter(({ message }) => message?.method === method),
    calls: (tool) =>
      upstream.requests('tools/call').filter(({ message }) => message?.params?.['name'] === tool),
    gate: (gateName) => {
      const gate = gates.get(gateName) ?? new Gate();
      gates.set(gateName, gate);
      return gate;
    },
    notify: (method, params) => {
      const wants = ({ filter }: Listening): boolean => {
        if (method === 'notifications/resources/updated') {
          return ((filter['resourceSubscriptions'] ?? []) as unknown[]).includes(params?.['uri']);
        }
        const kind = /notifications\/(\w+)\/list_changed/.exec(method)?.[1];
        return filter[`${kind}ListChanged`] === true;
      };
      const wanted = [...upstream.listening].filter(wants);
      for (const one of wanted) one.emit(method, params);
      return wanted.length;
    },
  };
  return upstream;
}
