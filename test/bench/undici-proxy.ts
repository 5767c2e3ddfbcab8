// A second yardstick: a reverse proxy with the fastest upstream leg that there is for Node. argv: port of the upstream.
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { Pool } from 'undici';

const pool = new Pool(`http://127.0.0.1:${process.argv[2] ?? ''}`, { pipelining: 1 });

const server = http.createServer((req, res) => {
  const chunks: Buffer[] = [];
  req.on('data', (chunk: Buffer) => chunks.push(chunk));
  req.on('end', () => {
    const { host: _host, connection: _connection, ...headers } = req.headers;
    const answer: Buffer[] = [];
    pool.dispatch(
      {
        path: req.url ?? '/',
        method: 'POST',
        headers: headers as Record<string, string>,
        body: Buffer.concat(chunks),
      },
      {
        onRequestStart: () => undefined,
        onResponseStart: (_controller, status, { connection: _c, ...answered }) => {
          res.writeHead(status, answered);
        },
        onResponseData: (_controller, chunk) => {
          answer.push(chunk);
        },
        onResponseEnd: () => res.end(Buffer.concat(answer).toString()),
        onResponseError: () => res.destroy(),
      },
    );
  });
});
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`${(server.address() as AddressInfo).port}\n`);
});
