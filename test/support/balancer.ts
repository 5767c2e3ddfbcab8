import { writeFileSync } from 'node:fs';
import http from 'node:http';
import { join } from 'node:path';
import { freePort, send } from './net.ts';
import { Child, program, temporaryFolder } from './process.ts';
import { until } from './until.ts';

export interface Balancer {
  readonly port: number;
  stop: () => Promise<void>;
}

export interface RoundRobin extends Balancer {
  /** Requests per pod so far. */
  readonly served: number[];
  /** Sends everything to these pods only; without arguments to all again. */
  only(...pods: number[]): void;
}

/**
 * Round robin by request, the hardest neighbour for a gateway with state: two requests on one client connection
 * go to two pods. A pod that refuses the connection is skipped; nothing is checked ahead of time.
 */
export async function startRoundRobin(port: number, pods: readonly number[]): Promise<RoundRobin> {
  const served = pods.map(() => 0);
  let allowed = pods.map((_, index) => index);
  let turn = 0;

  const forward = (
    request: http.IncomingMessage,
    response: http.ServerResponse,
    body: Buffer,
    triesLeft: number,
  ): void => {
    const pod = allowed[turn++ % allowed.length];
    if (pod === undefined || triesLeft === 0) {
      response.writeHead(503, { 'content-type': 'text/plain' }).end('no pod answers');
      return;
    }
    const headers: string[] = [];
    for (let i = 0; i < request.rawHeaders.length; i += 2) {
      const name = request.rawHeaders[i] ?? '';
      if (/^(connection|keep-alive|transfer-encoding|content-length)$/i.test(name)) continue;
      headers.push(name, request.rawHeaders[i + 1] ?? '');
    }
    headers.push(
      'X-Forwarded-For',
      '127.0.0.1',
      'X-Forwarded-Proto',
      'http',
      'Connection',
      'close',
    );
    if (body.length > 0 || request.method === 'POST') {
      headers.push('Content-Length', String(body.length));
    }
    const onward = http.request({
      host: '127.0.0.1',
      port: pods[pod],
      method: request.method,
      path: request.url,
      headers,
      setHost: false,
      agent: false,
    });
    onward.setNoDelay(true);
    onward.on('response', (answer) => {
      served[pod] = (served[pod] ?? 0) + 1;
      const lines: string[] = [];
      for (let i = 0; i < answer.rawHeaders.length; i += 2) {
        const name = answer.rawHeaders[i] ?? '';
        if (/^(connection|keep-alive|transfer-encoding)$/i.test(name)) continue;
        lines.push(name, answer.rawHeaders[i + 1] ?? '');
      }
      response.writeHead(answer.statusCode ?? 502, lines);
      response.flushHeaders();
      answer.on('data', (chunk: Buffer) => response.write(chunk));
      answer.on('end', () => response.end());
      answer.on('close', () => {
        if (!answer.complete) response.destroy();
      });
      answer.on('error', () => response.destroy());
    });
    onward.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'ECONNREFUSED') forward(request, response, body, triesLeft - 1);
      else if (!response.headersSent) response.writeHead(502).end();
      else response.destroy();
    });
    response.on('close', () => onward.destroy());
    onward.end(body);
  };

  const server = http.createServer({ keepAliveTimeout: 5_000 }, (request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => forward(request, response, Buffer.concat(chunks), pods.length + 1));
    response.on('error', () => undefined);
  });
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
  return {
    port,
    served,
    only: (...chosen) => (allowed = chosen.length > 0 ? chosen : pods.map((_, index) => index)),
    stop: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

/**
 * haproxy as an operator sets it up: round robin, readiness checks, every chunk passed on at once. For the test
 * alone, a request may name the pod it wants (`X-Test-Pod: pod1`), and each answer names the one that gave it
 * (`X-Test-Served-By`).
 */
export async function startHaproxy(
  port: number,
  pods: readonly { port: number; adminPort: number }[],
): Promise<Balancer> {
  const file = join(temporaryFolder(), 'haproxy.cfg');
  const stats = await freePort();
  writeFileSync(
    file,
    `global
  nbthread 1
defaults
  mode http
  timeout connect 2s
  timeout check 2s
  timeout client 10m
  timeout server 10m
  option http-no-delay
  option redispatch 1
  retries 2
frontend public
  bind 127.0.0.1:${port}
  default_backend pods
frontend up
  bind 127.0.0.1:${stats}
  http-request return status 200 if { nbsrv(pods) eq ${pods.length} }
  http-request return status 503
backend pods
  balance roundrobin
  option forwardfor
  option httpchk GET /healthz/ready
  http-check expect status 200
  default-server check inter 200ms fall 3 rise 1
  http-response set-header X-Test-Served-By %s
${pods.map((_, i) => `  use-server pod${i + 1} if { req.hdr(X-Test-Pod) -m str pod${i + 1} }`).join('\n')}
${pods.map((pod, i) => `  server pod${i + 1} 127.0.0.1:${pod.port} port ${pod.adminPort}`).join('\n')}
`,
  );
  const haproxy = new Child('haproxy', program('haproxy', 'haproxy'), ['-db', '-f', file]);
  await until('haproxy sees every pod', async () => {
    if (!haproxy.running) throw new Error(`haproxy ended: ${haproxy.output.slice(-500)}`);
    const seen = await send(`http://127.0.0.1:${stats}/`).catch(() => undefined);
    return seen?.status === 200;
  });
  return { port, stop: () => haproxy.kill() };
}
