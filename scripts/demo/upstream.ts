// The demo's upstream: an MCP server for Acme Drive, written with the official SDK. It keeps sessions in
// memory like most such servers, lists its tools to anybody, and needs the person's own Acme Drive token
// for calls.
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import type { AuthInfo } from '@modelcontextprotocol/sdk/server/auth/types.js';
import type { CallToolResult } from '@modelcontextprotocol/sdk/types.js';
import express from 'express';
import { z } from 'zod';

export interface Upstream {
  listen(port: number): Promise<void>;
}

export function createUpstream({ driveUrl }: { driveUrl: string }): Upstream {
  const sessions = new Map<string, StreamableHTTPServerTransport>();

  const open = async (): Promise<StreamableHTTPServerTransport> => {
    const transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (id) => void sessions.set(id, transport),
      onsessionclosed: (id) => void sessions.delete(id),
    });

    await createServer(driveUrl).connect(transport);
    return transport;
  };

  const app = express()
    .disable('x-powered-by')
    .use(express.json({ limit: '4mb' }));
  app.all('/mcp', async (req, res) => {
    const message = req.body as { method?: string } | undefined;
    const token = req.headers.authorization?.replace(/^Bearer /, '');
    if (message?.method === 'tools/call' && !(token && (await accountOf(driveUrl, token)))) {
      res.status(401).set('WWW-Authenticate', 'Bearer error="invalid_token"').end();
      return;
    }
    const id = req.headers['mcp-session-id'];
    const transport = typeof id === 'string' ? sessions.get(id) : undefined;
    if (id !== undefined && !transport) {
      res.status(404).json({
        jsonrpc: '2.0',
        id: null,
        error: { code: -32001, message: 'Session not found' },
      });
      return;
    }
    const auth: AuthInfo | undefined = token
      ? { token, clientId: 'acme-drive', scopes: [] }
      : undefined;
    await (transport ?? (await open())).handleRequest(
      Object.assign(req, auth ? { auth } : {}),
      res,
      message,
    );
  });

  return {
    listen: (port) =>
      new Promise((resolve, reject) => {
        app.listen(port, '127.0.0.1', (error) => {
          if (error) reject(error);
          else resolve();
        });
      }),
  };
}

function createServer(driveUrl: string): McpServer {
  const server = new McpServer({ name: 'acme-drive', version: '1.0.0' });
  const files = (auth: AuthInfo | undefined) =>
    fetchJson<Record<string, string>>(`${driveUrl}/api/files`, auth?.token ?? '');

  server.registerTool(
    'list_files',
    { title: 'List files', description: 'Names and sizes of the files in your Acme Drive.' },
    async ({ authInfo }) => {
      const owner = await accountOf(driveUrl, authInfo?.token ?? '');
      const lines = Object.entries(await files(authInfo)).map(
        ([name, content]) => `${name} (${content.length} bytes)`,
      );
      return text(`${owner ?? 'Nobody'}'s Acme Drive: ${lines.join(', ')}`);
    },
  );
  server.registerTool(
    'read_file',
    {
      title: 'Read a file',
      description: 'The content of one file in your Acme Drive.',
      inputSchema: { name: z.string().describe('as list_files names it') },
    },
    async ({ name }, { authInfo }) => {
      const content = (await files(authInfo))[name];
      return content === undefined
        ? { ...text(`There is no file ${name}.`), isError: true }
        : text(content);
    },
  );
  server.registerTool(
    'count_words',
    {
      title: 'Count words',
      description: 'Reads every file, slowly, and reports progress on the way.',
    },
    async ({ authInfo, _meta, sendNotification }) => {
      const contents = Object.values(await files(authInfo));
      let words = 0;
      for (const [index, content] of contents.entries()) {
        await sleep(700);
        words += content.split(/\s+/).filter(Boolean).length;
        if (_meta?.progressToken !== undefined) {
          await sendNotification({
            method: 'notifications/progress',
            params: {
              progressToken: _meta.progressToken,
              progress: index + 1,
              total: contents.length,
            },
          });
        }
      }
      return text(`${words} words in ${contents.length} files`);
    },
  );
  return server;
}

async function accountOf(driveUrl: string, token: string): Promise<string | undefined> {
  try {
    return (await fetchJson<{ name: string }>(`${driveUrl}/api/me`, token)).name;
  } catch {
    return undefined; // an unknown token, which the caller answers with 401
  }
}

async function fetchJson<T>(url: string, token: string): Promise<T> {
  const response = await fetch(url, { headers: { authorization: `Bearer ${token}` } });
  if (!response.ok) throw new Error(`Acme Drive answered ${response.status}`);
  return (await response.json()) as T;
}

function text(content: string): CallToolResult {
  return { content: [{ type: 'text', text: content }] };
}
