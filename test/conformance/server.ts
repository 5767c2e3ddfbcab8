import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { classifyInboundRequest } from '@modelcontextprotocol/server';
import { TOOLS, type Tool } from './features.ts';
import { createLegacyServer } from './legacy-server.ts';
import { createModernServer } from './modern-server.ts';

export interface ConformanceServer {
  readonly url: string;
  readonly sessions: number;
  stop(): Promise<void>;
}

const LOOPBACK = /^(localhost|127\.0\.0\.1|\[::1\])(:\d+)?$/i;

/** A server on loopback answers to loopback names only (transports, Security Warning). */
function isForeign({ headers: { host, origin } }: http.IncomingMessage): boolean {
  if (!LOOPBACK.test(host ?? '')) return true;
  return origin !== undefined && !(URL.canParse(origin) && LOOPBACK.test(new URL(origin).host));
}

/** A server of ours that passes the official suite by itself: the measure for what the gateway adds. */
export async function startConformanceServer(
  more: Record<string, Tool> = {},
): Promise<ConformanceServer> {
  const tools = { ...TOOLS, ...more };
  const legacy = createLegacyServer(tools);
  const modern = createModernServer(tools);
  const serve = async (
    request: http.IncomingMessage,
    response: http.ServerResponse,
  ): Promise<void> => {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    if (isForeign(request)) {
      response.writeHead(403).end();
      return;
    }
    const text = Buffer.concat(chunks).toString('utf8');
    const body: unknown = text === '' ? undefined : JSON.parse(text);
    const [version] = [request.headers['mcp-protocol-version']].flat();
    const [method] = [request.headers['mcp-method']].flat();
    const { kind } = classifyInboundRequest({
      httpMethod: request.method ?? '',
      ...(version !== undefined && { protocolVersionHeader: version }),
      ...(method !== undefined && { mcpMethodHeader: method }),
      body,
    });
    // Malformed claims to the later revision are its to refuse, too (versioning, Era by request).
    await (kind === 'legacy' ? legacy : modern).handle(request, response, body);
  };
  const server = http.createServer((request, response) => {
    serve(request, response).catch((error: unknown) => {
      if (!response.headersSent) response.writeHead(500, { 'content-type': 'text/plain' });
      response.end(String(error));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://localhost:${(server.address() as AddressInfo).port}/mcp`,
    get sessions() {
      return legacy.sessions;
    },
    stop: () =>
      new Promise((resolve) => {
        server.close(() => {
          resolve();
        });
        server.closeAllConnections();
      }),
  };
}
