// What upstream.ts is, for gateways that start their server themselves: one JSON-RPC message a line.
import { createInterface } from 'node:readline';

interface Message {
  id?: number | string;
  method?: string;
  params?: { protocolVersion?: string };
}

createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, method, params } = JSON.parse(line) as Message;
  if (id === undefined) return;
  const results: Record<string, unknown> = {
    initialize: {
      protocolVersion: params?.protocolVersion,
      capabilities: { tools: {} },
      serverInfo: { name: 'bench', version: '1' },
    },
    'tools/list': { tools: [{ name: 'echo', inputSchema: { type: 'object' } }] },
    'tools/call': { content: [{ type: 'text', text: 'x'.repeat(200) }] },
  };
  const result = results[method ?? ''];
  const answer = result === undefined ? { error: { code: -32601, message: 'no' } } : { result };
  process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', id, ...answer })}\n`);
});
