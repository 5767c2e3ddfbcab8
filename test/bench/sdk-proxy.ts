/**
 * The usual way to build a gateway on the official SDK: a server and a client object for each session, kept in this
 * process. No authentication, no limits, one process only. argv: port of the upstream. Prints its own port.
 */
import { randomUUID } from 'node:crypto';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import {
  CallToolRequestSchema,
  CallToolResultSchema,
  ListToolsRequestSchema,
} from '@modelcontextprotocol/sdk/types.js';

const upstream = new URL(`http://127.0.0.1:${process.argv[2] ?? ''}/mcp`);
const sessions = new Map<string, StreamableHTTPServerTransport>();

async function open(): Promise<StreamableHTTPServerTransport> {
  const info = { name: 'sdk-proxy', version: '1' };
  const client = new Client(info);
  const toUpstream = new StreamableHTTPClientTransport(upstream);
  await client.connect(toUpstream);
  // eslint-disable-next-line @typescript-eslint/no-deprecated -- a proxy passes on what it does not know
  const server = new Server(info, { capabilities: { tools: {} } });
  server.setRequestHandler(ListToolsRequestSchema, ({ params }) => client.listTools(params));
  server.setRequestHandler(CallToolRequestSchema, ({ params }) =>
    client.request({ method: 'tools/call', params }, CallToolResultSchema),
  );
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    enableJsonResponse: true,
    onsessioninitialized: (id) => {
      sessions.set(id, transport);
    },
    onsessionclosed: async (id) => {
      sessions.delete(id);
      await toUpstream.terminateSession();
      await client.close();
    },
  });
  await server.connect(transport);
  return transport;
}

const server = http.createServer((req, res) => {
  const id = req.headers['mcp-session-id'];
  const known = typeof id === 'string' ? sessions.get(id) : undefined;
  const transport = known === undefined ? open() : Promise.resolve(known);
  transport
    .then((to) => to.handleRequest(req, res))
    .catch((error: unknown) => {
      res.writeHead(500).end(String(error));
    });
});
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`${(server.address() as AddressInfo).port}\n`);
});
