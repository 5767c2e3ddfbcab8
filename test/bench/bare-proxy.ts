// The yardstick: the least that a reverse proxy on node:http can do. argv: port of the upstream. Prints its own port.
import http from 'node:http';
import type { AddressInfo } from 'node:net';

const agent = new http.Agent({ keepAlive: true, maxSockets: 256 });
const port = Number(process.argv[2]);

const server = http.createServer((req, res) => {
  const upstream = http.request(
    {
      host: '127.0.0.1',
      port,
      method: req.method ?? 'GET',
      path: req.url ?? '/',
      headers: req.headers,
      agent,
    },
    (answer) => {
      res.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.pipe(res);
    },
  );
  upstream.on('error', () => res.writeHead(502).end());
  req.pipe(upstream);
});
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`${(server.address() as AddressInfo).port}\n`);
});
