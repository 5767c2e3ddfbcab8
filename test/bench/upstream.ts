/**
 * An MCP server that does nothing but answer: `/mcp` speaks 2025-11-25 with sessions, `/modern` 2026-07-28. The tool
 * `echo` is answered as JSON, `stream` as events: one progress notification, then the result. It keeps no account of
 * sessions but a count (`GET /sessions`), so that a run can show that it ended what it began. Prints its port.
 */
import http from 'node:http';
import type { AddressInfo } from 'node:net';

interface Message {
  id?: number | string;
  method?: string;
  params?: { protocolVersion?: string; name?: string; cursor?: string };
}

const TEXT = 'x'.repeat(200);
const TOOLS = Number(process.env['BENCH_TOOLS'] ?? 2);
const tools = Array.from({ length: TOOLS }, (_, i) => ({
  name: ['echo', 'stream'][i] ?? `tool-${i}`,
  description: `What tool ${i} does, in the words that such descriptions have, for a model to choose it by.`,
  inputSchema: { type: 'object', properties: { text: { type: 'string', description: 'Any' } } },
}));
let sessions = 0;

function resultOf({ method, params }: Message, modern: boolean): unknown {
  switch (method) {
    case 'initialize':
      return {
        protocolVersion: params?.protocolVersion,
        capabilities: { tools: {} },
        serverInfo: { name: 'bench', version: '1' },
      };
    case 'server/discover':
      return {
        supportedVersions: ['2026-07-28'],
        capabilities: { tools: {} },
        resultType: 'complete',
        ttlMs: 0,
        cacheScope: 'private',
      };
    case 'tools/list':
      return { tools, ...(modern && { resultType: 'complete', ttlMs: 0, cacheScope: 'private' }) };
    default:
      return { content: [{ type: 'text', text: TEXT }], ...(modern && { resultType: 'complete' }) };
  }
}

const server = http.createServer((req, res) => {
  if (req.url === '/sessions') {
    res.end(String(sessions));
    return;
  }
  if (req.method === 'DELETE') {
    sessions--;
    res.writeHead(204).end();
    return;
  }
  const chunks: Buffer[] = [];
  req.on('data', (chunk: Buffer) => chunks.push(chunk));
  req.on('end', () => {
    const body = Buffer.concat(chunks).toString();
    const message = (body === '' ? {} : JSON.parse(body)) as Message;
    if (message.id === undefined) {
      res.writeHead(message.method === undefined ? 405 : 202).end();
      return;
    }
    const result = resultOf(message, req.url === '/modern');
    const text = JSON.stringify({ jsonrpc: '2.0', id: message.id, result });
    if (message.params?.name === 'stream') {
      const progress =
        '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}';
      res.writeHead(200, { 'content-type': 'text/event-stream' });
      res.end(`data: ${progress}\n\ndata: ${text}\n\n`);
      return;
    }
    const opens = message.method === 'initialize';
    if (opens) sessions++;
    res.writeHead(200, {
      'content-type': 'application/json',
      'content-length': Buffer.byteLength(text),
      ...(opens && { 'mcp-session-id': `s${sessions}` }),
    });
    res.end(text);
  });
});
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`${(server.address() as AddressInfo).port}\n`);
});
