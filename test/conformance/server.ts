import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { TOOLS, type Tool } from './features.ts';
import { createLegacyServer } from './legacy-server.ts';

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
  const legacy = createLegacyServer({ ...TOOLS, ...more });
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
    await legacy.handle(request, response, text === '' ? undefined : JSON.parse(text));
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
