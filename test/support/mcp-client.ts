import { send, type Answer, type Headers, type Members, type Message, type Result } from './net.ts';
import type { EventStream } from './event-stream.ts';

export interface ClientOptions {
  url: string;
  /** Ports of the pods, for requests that name one. */
  ports?: readonly number[];
  token?: string | undefined;
  name?: string;
  version?: string;
  capabilities?: unknown;
}

export interface At {
  /** Index of a pod; without it the request goes where the URL leads. */
  pod?: number | undefined;
  headers?: Headers;
  timeoutMs?: number;
}

export interface CallOptions extends At {
  id?: string | number;
  /** The progress token, or other members of `_meta`. */
  meta?: Members;
  /** Answers what the server asks on this call's stream. */
  onAsk?: (message: Message) => Members;
  /** Where those answers are posted. */
  answerAt?: number;
}

export const BOTH_MODES = { elicitation: { form: {}, url: {} } };

/** A request under way. */
export class Call {
  readonly id: string | number;
  /** The HTTP answer: at once for a stream, with the body otherwise. */
  readonly http: Promise<Answer>;
  readonly #client: McpClient;
  readonly #options: CallOptions;

  constructor(client: McpClient, id: string | number, http: Promise<Answer>, options: CallOptions) {
    this.id = id;
    this.http = http;
    this.#client = client;
    this.#options = options;
    http.catch(() => undefined);
  }

  async stream(): Promise<EventStream> {
    const { stream, status, text } = await this.http;
    if (!stream) throw new Error(`no stream but ${status}: ${text.slice(0, 300)}`);
    return stream;
  }

  /** The JSON-RPC response; what the server asks meanwhile is answered by `onAsk`. */
  async message(): Promise<Message> {
    const { stream, json, status, text } = await this.http;
    if (!stream) {
      if (!json) throw new Error(`no JSON but ${status}: ${text.slice(0, 300)}`);
      return json;
    }
    const seen = new Set<Message>();
    for (;;) {
      const next = await stream.message(
        `the answer to ${JSON.stringify(this.id)}`,
        (message) => !seen.has(message) && (this.#isMine(message) || isAsk(message)),
        this.#options.timeoutMs ?? 20_000,
      );
      if (this.#isMine(next)) return next;
      seen.add(next);
      const result = this.#options.onAsk?.(next);
      if (!result) continue;
      const posted = await this.#client.answer(next.id!, result, { pod: this.#options.answerAt });
      if (posted.status !== 202) throw new Error(`the answer was answered ${posted.status}`);
    }
  }

  async result(): Promise<Result> {
    const message = await this.message();
    if (!message.result) throw new Error(`no result: ${JSON.stringify(message).slice(0, 400)}`);
    return message.result;
  }

  /** The final message's text as it came. */
  async raw(): Promise<string> {
    const final = await this.message();
    const { stream, text } = await this.http;
    return stream?.events.find(({ message }) => message === final)?.data ?? text;
  }

  /** The client goes away without a word. */
  async drop(): Promise<void> {
    (await this.http).close();
  }

  #isMine(message: Message): boolean {
    return message.method === undefined && message.id === this.id;
  }
}

const isAsk = (message: Message): boolean =>
  message.method !== undefined && message.id !== undefined;

/**
 * A legacy client (2025-03-26 to 2025-11-25) on the bare wire. It keeps a session id and nothing else, so any
 * of its requests can be sent to any pod.
 */
export class McpClient {
  readonly url: string;
  readonly ports: readonly number[];
  readonly version: string;
  readonly name: string;
  capabilities: unknown;
  token: string | undefined;
  sessionId: string | undefined;
  negotiated: string | undefined;
  initializeResult: Result | undefined;
  #nextId = 1;

  constructor(options: ClientOptions) {
    this.url = options.url;
    this.ports = options.ports ?? [];
    this.token = options.token;
    this.name = options.name ?? 'Test Client';
    this.version = options.version ?? '2025-11-25';
    this.capabilities = 'capabilities' in options ? options.capabilities : BOTH_MODES;
  }

  /** The same caller and session with something changed: another token, another endpoint. */
  as(changes: Partial<ClientOptions>): McpClient {
    const { url, ports, token, name, version, capabilities } = this;
    const twin = new McpClient({ url, ports, token, name, version, capabilities, ...changes });
    twin.sessionId = this.sessionId;
    twin.negotiated = this.negotiated;
    return twin;
  }

  headers(): Headers {
    return {
      'Content-Type': 'application/json',
      Accept: 'application/json, text/event-stream',
      Authorization: this.token === undefined ? undefined : `Bearer ${this.token}`,
      'Mcp-Session-Id': this.sessionId,
      'MCP-Protocol-Version': this.negotiated,
    };
  }

  send(method: string, body: string | Buffer | undefined, at: At = {}): Promise<Answer> {
    const drop = method === 'POST' ? {} : { 'Content-Type': undefined };
    return send(this.url, {
      method,
      headers: { ...this.headers(), ...drop, ...at.headers },
      port: at.pod === undefined ? undefined : this.ports[at.pod],
      ...(body !== undefined && { body }),
      ...(at.timeoutMs !== undefined && { timeoutMs: at.timeoutMs }),
    });
  }

  post(message: unknown, at: At = {}): Promise<Answer> {
    return this.send('POST', typeof message === 'string' ? message : JSON.stringify(message), at);
  }

  initializeMessage(id: string | number = 'init'): Message {
    const params: Members = {
      protocolVersion: this.version,
      capabilities: this.capabilities,
      clientInfo: { name: this.name, version: '1.0.0' },
    };
    return { jsonrpc: '2.0', id, method: 'initialize', params };
  }

  async initialize(at: At = {}): Promise<this> {
    const call = new Call(this, 'init', this.post(this.initializeMessage(), at), at);
    this.initializeResult = await call.result();
    const { headers } = await call.http;
    this.sessionId = headers['mcp-session-id'] as string | undefined;
    if (!this.sessionId) throw new Error('initialize gave no Mcp-Session-Id');
    this.negotiated = this.initializeResult.protocolVersion;
    const { status, text } = await this.notify('notifications/initialized', undefined, at);
    if (status !== 202) throw new Error(`notifications/initialized: ${status} ${text}`);
    return this;
  }

  notify(method: string, params?: Members, at: At = {}): Promise<Answer> {
    return this.post({ jsonrpc: '2.0', method, ...(params && { params }) }, at);
  }

  answer(id: string | number, result: Members, at: At = {}): Promise<Answer> {
    return this.post({ jsonrpc: '2.0', id, result }, at);
  }

  begin(method: string, params: Members | undefined, options: CallOptions = {}): Call {
    const id = options.id ?? this.#nextId++;
    const message = { jsonrpc: '2.0', id, method, ...(params && { params }) };
    return new Call(this, id, this.post(message, options), options);
  }

  beginTool(name: string, args: Members = {}, options: CallOptions = {}): Call {
    const meta = options.meta && { _meta: options.meta };
    return this.begin('tools/call', { name, arguments: args, ...meta }, options);
  }

  callTool(name: string, args?: Members, options?: CallOptions): Promise<Message> {
    return this.beginTool(name, args, options).message();
  }

  listTools(at: At = {}): Promise<Message> {
    return this.begin('tools/list', undefined, at).message();
  }

  get(at: At & { lastEventId?: string } = {}): Promise<Answer> {
    const resume = at.lastEventId !== undefined && { 'Last-Event-ID': at.lastEventId };
    return this.send('GET', undefined, {
      ...at,
      headers: { Accept: 'text/event-stream', ...resume, ...at.headers },
    });
  }

  /** The listening stream, or the rest of an earlier stream. */
  async listen(at: At & { lastEventId?: string } = {}): Promise<EventStream> {
    const { stream, status, text } = await this.get(at);
    if (!stream) throw new Error(`GET gave no stream but ${status}: ${text.slice(0, 300)}`);
    return stream;
  }

  end(at: At = {}): Promise<Answer> {
    return this.send('DELETE', undefined, at);
  }
}

/** The text of a tool's first content block. */
export const textOf = (message: Message): string | undefined => message.result?.content?.[0]?.text;
