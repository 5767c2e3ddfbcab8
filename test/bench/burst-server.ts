/** Streams and nothing else: GET opens one, POST writes one event to all. What a burst costs at the least. Prints its port. */
import http, { type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

const open = new Set<ServerResponse>();
const server = http.createServer({ noDelay: true }, (req, res) => {
  if (req.method === 'GET') {
    res.writeHead(200, { 'Content-Type': 'text/event-stream' });
    res.flushHeaders();
    open.add(res);
    res.once('close', () => open.delete(res));
    return;
  }
  const chunks: Buffer[] = [];
  req.on('data', (chunk: Buffer) => chunks.push(chunk));
  req.on('end', () => {
    const event = `id: 1\ndata: ${Buffer.concat(chunks).toString()}\n\n`;
    for (const stream of open) stream.write(event);
    res.writeHead(204).end();
  });
});
server.listen(0, '127.0.0.1', () => {
  console.log((server.address() as AddressInfo).port);
});
