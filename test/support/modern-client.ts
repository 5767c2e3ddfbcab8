import type { EventStream } from './event-stream.ts';
import { BOTH_MODES, type At } from './mcp-client.ts';
import { send, type Answer, type Headers, type Members, type Message, type Result } from './net.ts';

export const MODERN = '2026-07-28';
const PREFIX = 'io.modelcontextprotocol/';
export const SUBSCRIPTION_ID = `${PREFIX}subscriptionId`;
export const LOG_LEVEL = `${PREFIX}logLevel`;

export interface ModernOptions {
  url: string;
  ports?: readonly number[];
  token?: string | undefined;
  name?: string;
  version?: string;
  capabilities?: unknown;
}

export interface ModernCallOptions extends At {
  id?: string | number;
  /** Members of `_meta`, over the usual ones; undefined takes one out. */
  meta?: Members;
}

/** What a retry carries. */
export interface Answers {
  requestState?: unknown;
  inputResponses?: unknown;
}

/** A header value as 2026-07-28 wants it encoded; written here anew, so that it can disagree with the product. */
export function headerValue(value: string): string {
  const plain = /^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$/.test(value);
  if (plain && !(value.startsWith('=?base64?') && value.endsWith('?='))) return value;
  return `=?base64?${Buffer.from(value).toString('base64')}?=`;
}

/** One request under way. */
export class ModernCall {
  readonly id: string | number;
  readonly http: Promise<Answer>;

  constructor(id: string | number, http: Promise<Answer>) {
    this.id = id;
    this.http = http;
    http.catch(() => undefined);
  }

  async message(timeoutMs = 20_000): Promise<Message> {
    const { stream, json, status, text } = await this.http;
    if (stream) {
      const mine = (one: Message) => one.method === undefined && one.id === this.id;
      return stream.message(`the answer to ${JSON.stringify(this.id)}`, mine, timeoutMs);
    }
    if (!json) throw new Error(`no JSON but ${status}: ${text.slice(0, 300)}`);
    return json;
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

  async notifications(): Promise<Message[]> {
    const { stream } = await this.http;
    return stream?.messages.filter(({ method }) => method !== undefined) ?? [];
  }

  /** The client closes its response stream. */
  async drop(): Promise<void> {
    (await this.http).close();
  }
}

/** A client of 2026-07-28 on the bare wire: every request stands for itself and can go to any pod. */
export class ModernClient {
  readonly url: string;
  readonly ports: readonly number[];
  readonly name: string;
  readonly version: string;
  token: string | undefined;
  capabilities: unknown;
  #nextId = 1;

  constructor(options: ModernOptions) {
    this.url = options.url;
    this.ports = options.ports ?? [];
    this.token = options.token;
    this.name = options.name ?? 'Modern Test Client';
    this.version = options.version ?? MODERN;
    this.capabilities = 'capabilities' in options ? options.capabilities : BOTH_MODES;
  }

  as(changes: Partial<ModernOptions>): ModernClient {
    const { url, ports, token, name, version, capabilities } = this;
    return new ModernClient({ url, ports, token, name, version, capabilities, ...changes });
  }

  meta(more: Members = {}): Members {
    return {
      [`${PREFIX}protocolVersion`]: this.version,
      [`${PREFIX}clientInfo`]: { name: this.name, version: '1.0.0' },
      [`${PREFIX}clientCapabilities`]: this.capabilities,
      ...more,
    };
  }

  body(method: string, params: Members = {}, options: ModernCallOptions = {}): Message {
    const id = options.id ?? this.#nextId++;
    return { jsonrpc: '2.0', id, method, params: { ...params, _meta: this.meta(options.meta) } };
  }

  headers(method: string, params: Members = {}): Headers {
    const member = { 'tools/call': 'name', 'prompts/get': 'name', 'resources/read': 'uri' }[method];
    const name = member === undefined ? undefined : (params[member] as string | undefined);
    return {
      'Content-Type': 'application/json',
      Accept: 'application/json, text/event-stream',
      Authorization: this.token === undefined ? undefined : `Bearer ${this.token}`,
      'MCP-Protocol-Version': this.version,
      'Mcp-Method': method,
      'Mcp-Name': name === undefined ? undefined : headerValue(name),
    };
  }

  send(method: string, body: string | Buffer | undefined, at: At = {}): Promise<Answer> {
    return send(this.url, {
      method,
      headers: { ...this.headers('?'), 'Mcp-Method': undefined, ...at.headers },
      port: at.pod === undefined ? undefined : this.ports[at.pod],
      ...(body !== undefined && { body }),
      ...(at.timeoutMs !== undefined && { timeoutMs: at.timeoutMs }),
    });
  }

  /** A message as it is given, with the headers that belong to it; `at.headers` replace some. */
  post(message: Message | string, at: At = {}): Promise<Answer> {
    const parsed = typeof message === 'string' ? (JSON.parse(message) as Message) : message;
    const headers = this.headers(parsed.method ?? '?', parsed.params);
    return this.send('POST', typeof message === 'string' ? message : JSON.stringify(message), {
      ...at,
      headers: { ...headers, ...at.headers },
    });
  }

  begin(method: string, params: Members = {}, options: ModernCallOptions = {}): ModernCall {
    const body = this.body(method, params, options);
    return new ModernCall(body.id!, this.post(body, options));
  }

  call(method: string, params?: Members, options?: ModernCallOptions): Promise<Message> {
    return this.begin(method, params, options).message();
  }

  beginTool(
    name: string,
    args: Members = {},
    { requestState, inputResponses, ...options }: ModernCallOptions & Answers = {},
  ): ModernCall {
    const round = {
      ...(requestState !== undefined && { requestState }),
      ...(inputResponses !== undefined && { inputResponses }),
    };
    return this.begin('tools/call', { name, arguments: args, ...round }, options);
  }

  tool(name: string, args?: Members, options?: ModernCallOptions & Answers): Promise<Message> {
    return this.beginTool(name, args, options).message();
  }

  /** An open subscription, acknowledged. */
  async listen(
    notifications: Members,
    options: ModernCallOptions = {},
  ): Promise<{ stream: EventStream; acknowledged: Message; id: string | number }> {
    const call = this.begin('subscriptions/listen', { notifications }, options);
    const { stream, status, text } = await call.http;
    if (!stream) throw new Error(`no subscription but ${status}: ${text.slice(0, 300)}`);
    const acknowledged = await stream.notification('notifications/subscriptions/acknowledged');
    return { stream, acknowledged, id: call.id };
  }
}

export interface InputRequired extends Result {
  inputRequests: Record<string, { method: string; params: Members }>;
  requestState: string;
}

/** @throws when the result is no `input_required` */
export function inputRequired(message: Message): InputRequired {
  const { result } = message;
  if (result?.['resultType'] !== 'input_required') {
    throw new Error(`not input_required: ${JSON.stringify(message).slice(0, 400)}`);
  }
  return result as InputRequired;
}

/** The retry that answers everything an `input_required` asks. */
export function answering(message: Message, answer: (params: Members) => unknown): Answers {
  const { inputRequests, requestState } = inputRequired(message);
  const inputResponses = Object.fromEntries(
    Object.entries(inputRequests).map(([key, { params }]) => [key, answer(params)]),
  );
  return { requestState, inputResponses };
}

export const accept = (): Members => ({ action: 'accept' });
