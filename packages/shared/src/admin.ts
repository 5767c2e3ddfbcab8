/**
 * The cluster-internal listener of each service: probes and metrics. No Host or Origin check (probes come by
 * address), no authentication: reachability is the network policy's to limit. Nothing here is on the public
 * listener. The console, where there is one, guards itself.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Logger } from 'pino';
import type { Metrics } from './metrics.ts';
import { isTracing } from './tracing.ts';

/** Shape of an Express router or app. */
export type AdminExtension = (
  req: IncomingMessage,
  res: ServerResponse,
  next: (error?: unknown) => void,
) => void;

export interface AdminOptions {
  readonly host: string;
  /** 0 takes a free one. */
  readonly port: number;
  /** `ready`, or why not (`starting`, `draining`, `redis is not reachable`): that is what a probe sees. */
  readonly ready: () => string;
  readonly metrics: Pick<Metrics, 'text' | 'contentType' | 'openMetrics'>;
  readonly log: Logger;
  /** Asked for every other path. */
  readonly extra?: AdminExtension;
}

export interface AdminListener {
  /** @throws when the port is taken */
  start(): Promise<{ port: number }>;
  stop(): Promise<void>;
}

export function createAdminListener(options: AdminOptions): AdminListener {
  const { host, port, ready, metrics, log, extra } = options;

  const respond = async (req: IncomingMessage, res: ServerResponse): Promise<void> => {
    const path = (req.url ?? '/').replace(/\?.*$/s, '');
    const readable = req.method === 'GET' || req.method === 'HEAD';
    switch (readable ? path : '') {
      case '/healthz/live':
        // Alive is who can answer at all: Redis being away is no reason to be restarted.
        json(res, 200, { status: 'live' });
        return;
      case '/healthz/ready': {
        const state = ready();
        if (state === 'ready') json(res, 200, { status: 'ready' });
        else json(res, 503, { status: 'not ready', reason: state });
        return;
      }
      case '/metrics': {
        // Exemplars are traces' ids: without traces there is nothing that the plain format lacks.
        const wanted =
          isTracing() && /application\/openmetrics-text/i.test(req.headers.accept ?? '');
        const { text, contentType } = wanted
          ? await metrics.openMetrics()
          : { text: await metrics.text(), contentType: metrics.contentType };
        res.writeHead(200, { 'Content-Type': contentType, 'Cache-Control': 'no-store' });
        res.end(text);
        return;
      }
      default:
        if (extra === undefined) {
          json(res, 404, { error: 'not found' });
          return;
        }
        extra(req, res, (error) => {
          if (error !== undefined) log.error({ err: error, path }, 'admin request failed');
          if (res.headersSent) res.destroy();
          else if (error === undefined) json(res, 404, { error: 'not found' });
          else json(res, 500, { error: 'internal error' });
        });
    }
  };

  const server = createServer((req, res) => {
    respond(req, res).catch((error: unknown) => {
      log.error({ err: error }, 'admin request failed');
      if (res.headersSent) res.destroy();
      else json(res, 500, { error: 'internal error' });
    });
  });

  return {
    start: () =>
      new Promise((resolve, reject) => {
        server.once('error', reject);
        server.listen(port, host, () => {
          server.off('error', reject);
          resolve({ port: (server.address() as AddressInfo).port });
        });
      }),
    stop: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

function json(res: ServerResponse, status: number, value: unknown): void {
  res.writeHead(status, { 'Content-Type': 'application/json', 'Cache-Control': 'no-store' });
  res.end(JSON.stringify(value));
}
