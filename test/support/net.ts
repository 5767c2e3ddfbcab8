import http from 'node:http';
import https from 'node:https';
import net, { type AddressInfo } from 'node:net';
import { EventStream } from './event-stream.ts';
import { inspect } from './planted.ts';

/** One JSON-RPC message, or any other JSON object: as loose as the wire. */
export interface Message {
  jsonrpc?: string;
  id?: string | number | null;
  method?: string;
  params?: Members;
  result?: Result;
  error?: RpcError;
  [member: string]: unknown;
}

export type Members = Record<string, unknown>;

export interface RpcError {
  code: number;
  message: string;
  data?: {
    requestId?: string;
    reason?: string;
    elicitations?: UrlElicitation[];
    [member: string]: unknown;
  };
}

export interface UrlElicitation {
  mode: string;
  elicitationId: string;
  url: string;
  message: string;
}

export interface Result {
  content?: { type: string; text?: string }[];
  isError?: boolean;
  structuredContent?: unknown;
  protocolVersion?: string;
  tools?: { name: string; [member: string]: unknown }[];
  [member: string]: unknown;
}

export type Headers = Record<string, string | string[] | undefined>;

export interface Answer {
  status: number;
  headers: http.IncomingHttpHeaders;
  url: string;
  /** The body of anything but an event stream. */
  text: string;
  json: Message | undefined;
  stream: EventStream | undefined;
  close(): void;
}

export interface SendOptions {
  method?: string;
  /** Name/value pairs in order when a list: duplicates and odd cases go out as given. */
  headers?: Headers | string[];
  body?: string | Buffer;
  /** Where to connect instead of the URL's own port; the Host header stays the URL's. */
  port?: number | undefined;
  /** Send the body without a Content-Length. */
  chunked?: boolean;
  timeoutMs?: number;
}

function flatten(headers: Headers | string[]): string[] {
  if (Array.isArray(headers)) return [...headers];
  return Object.entries(headers).flatMap(([name, value]) =>
    value === undefined ? [] : [value].flat().flatMap((one) => [name, one]),
  );
}

/**
 * One request on a connection of its own: no pool, no redirect, no header that the caller did not give
 * (except Host, Content-Length and Connection). Resolves with the whole body, or at once for an event stream.
 */
export function send(url: string, options: SendOptions = {}): Promise<Answer> {
  const { method = 'GET', headers = {}, body, port, chunked = false, timeoutMs = 20_000 } = options;
  const target = new URL(url);
  const lines = flatten(headers);
  const has = (name: string) =>
    lines.some((line, index) => index % 2 === 0 && line.toLowerCase() === name);
  if (!has('host')) lines.push('Host', target.host);
  if (body !== undefined && !has('content-length') && !has('transfer-encoding')) {
    if (chunked) lines.push('Transfer-Encoding', 'chunked');
    else lines.push('Content-Length', String(Buffer.byteLength(body)));
  }
  lines.push('Connection', 'close');
  const secure = target.protocol === 'https:' && port === undefined;

  return new Promise((resolve, reject) => {
    const request = (secure ? https : http).request({
      host: port !== undefined || target.hostname === 'localhost' ? '127.0.0.1' : target.hostname,
      port: port ?? target.port,
      method,
      path: `${target.pathname}${target.search}`,
      headers: lines,
      setHost: false,
      agent: false,
      ...(secure && { rejectUnauthorized: false }),
    });
    const timer = setTimeout(() => {
      request.destroy(new Error(`${method} ${target.pathname}: no answer in ${timeoutMs} ms`));
    }, timeoutMs);
    request.on('error', (error) => {
      clearTimeout(timer);
      reject(error);
    });
    request.on('response', (response) => {
      const answer = {
        status: response.statusCode ?? 0,
        headers: response.headers,
        url,
        close: () => {
          request.destroy();
          response.destroy();
        },
      };
      response.on('error', () => undefined);
      if (/text\/event-stream/i.test(response.headers['content-type'] ?? '')) {
        clearTimeout(timer);
        const stream = new EventStream(response, answer.close, Number(port ?? target.port));
        resolve({ ...answer, text: '', json: undefined, stream });
        return;
      }
      const chunks: Buffer[] = [];
      response.on('data', (chunk: Buffer) => chunks.push(chunk));
      response.on('close', () => {
        clearTimeout(timer);
        if (!response.complete) {
          reject(new Error(`${method} ${target.pathname}: cut off in the middle of the answer`));
          return;
        }
        const text = Buffer.concat(chunks).toString('utf8');
        inspect(Number(port ?? target.port), `${response.rawHeaders.join('\n')}\n${text}`);
        resolve({ ...answer, text, json: parse(text), stream: undefined });
      });
    });
    request.end(body);
  });
}

/** undefined when it is no JSON object. */
export function parse(text: string): Message | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null ? (value as Message) : undefined;
  } catch {
    return undefined;
  }
}

const given = new Set<number>();

/** A port that nobody listens on, outside the range from which the system takes ports for outgoing connections. */
export async function freePort(): Promise<number> {
  for (let attempt = 0; attempt < 500; attempt++) {
    const port = 10_000 + Math.floor(Math.random() * 22_000);
    if (given.has(port)) continue;
    const free = await new Promise<boolean>((resolve) => {
      const probe = net.createServer();
      probe.once('error', () => resolve(false));
      probe.listen(port, '127.0.0.1', () => probe.close(() => resolve(true)));
    });
    if (!free) continue;
    given.add(port);
    return port;
  }
  throw new Error('no free port');
}

export interface Exchange {
  request: http.IncomingMessage;
  response: http.ServerResponse;
  url: URL;
  body: Buffer;
  form: URLSearchParams;
}

export interface Listener {
  port: number;
  url: string;
  stop: () => Promise<void>;
}

/** A small server for a fake: the handler gets the request with its body read. */
export async function listen(
  handler: (exchange: Exchange) => void | Promise<void>,
  { tls, port = 0 }: { tls?: { key: string; cert: string } | undefined; port?: number } = {},
): Promise<Listener> {
  const serve: http.RequestListener = (request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const body = Buffer.concat(chunks);
      const url = new URL(request.url ?? '/', `http://${request.headers.host ?? 'localhost'}`);
      const form = new URLSearchParams(body.toString('utf8'));
      Promise.resolve(handler({ request, response, url, body, form })).catch((error: unknown) => {
        if (!response.headersSent) response.writeHead(500, { 'content-type': 'text/plain' });
        response.end(`fake: ${String(error)}`);
      });
    });
  };
  const server = tls ? https.createServer(tls, serve) : http.createServer(serve);
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, '127.0.0.1', resolve);
  });
  const at = (server.address() as AddressInfo).port;
  return {
    port: at,
    url: tls ? `https://localhost:${at}` : `http://127.0.0.1:${at}`,
    stop: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

export function sendJson(
  response: http.ServerResponse,
  status: number,
  value: unknown,
  headers: http.OutgoingHttpHeaders = {},
): void {
  response.writeHead(status, {
    'content-type': 'application/json',
    'cache-control': 'no-store',
    ...headers,
  });
  response.end(JSON.stringify(value));
}

export function redirect(
  response: http.ServerResponse,
  to: string,
  parameters: Record<string, string | null | undefined> = {},
): void {
  const location = new URL(to);
  for (const [name, value] of Object.entries(parameters)) {
    if (value != null) location.searchParams.set(name, value);
  }
  response.writeHead(302, { location: location.href, 'cache-control': 'no-store' });
  response.end();
}
