import { afterAll, expect, test } from 'vitest';
import { freePort, listen, send, sendJson } from '../support/net.ts';
import type { OauthClients } from '../support/oauth.ts';
import { startThirdParty } from '../support/third-party.ts';
import { makeCertificate } from '../support/tls.ts';
import { startWorld } from '../support/world.ts';

// `type: mcp` with our client id metadata document: publicUrl is https, and the authorization server is an https
// server with a certificate of a private authority that reads the document (issue 6, item 2).

const tls = makeCertificate();
const port = await freePort();
const publicUrl = `https://localhost:${String(port)}`;
const clients: OauthClients = {};
const server = await startThirdParty({ clients, tls });
server.registers = true;
server.metadata = {
  token_endpoint_auth_methods_supported: ['none'],
  client_id_metadata_document_supported: true,
};
const world = await startWorld({
  publicUrl,
  env: { NODE_EXTRA_CA_CERTS: tls.certFile },
  config: { connections: { 'acme-drive': { type: 'mcp', displayName: 'Notes' } } },
  prepare: ({ files }) => {
    files.intercept = ({ request, response, url }) => {
      if (url.pathname.startsWith('/.well-known/')) {
        const servers = { authorization_servers: [server.url] };
        sendJson(response, 200, { resource: files.endpoint, ...servers });
        return true;
      }
      const token = (request.headers.authorization ?? '').replace(/^Bearer /, '');
      if (server.isValid(token)) return false;
      sendJson(response, 401, {}, { 'www-authenticate': 'Bearer' });
      return true;
    };
  },
});
let turn = 0;
const front = await listen(
  async ({ request, response, url, body }) => {
    const headers = request.rawHeaders.filter((_value, index) => {
      const name = request.rawHeaders[index - (index % 2)]!;
      return !/^(connection|content-length)$/i.test(name);
    });
    const answer = await send(`${publicUrl}${url.pathname}${url.search}`, {
      method: request.method!,
      headers,
      port: world.stack.ports[turn++ % world.stack.ports.length],
      ...(body.length > 0 && { body }),
    });
    const { connection: _ours, 'transfer-encoding': _theirs, ...rest } = answer.headers;
    response.writeHead(answer.status, rest).end(answer.text);
  },
  { tls, port },
);
afterAll(async () => {
  await world.stop();
  await Promise.all([front.stop(), server.stop()]);
});

test('[own.document] we are the client that our document describes, and register nowhere', async () => {
  const id = `${publicUrl}/connect/client-metadata.json`;
  // What a server that takes such ids does before it shows anything (the draft, sections 3 and 4).
  const document = await send(id);
  expect(document.status).toBe(200);
  expect(document.headers['content-type']).toMatch(/^application\/json/);
  expect(document.json).toMatchObject({
    client_id: id,
    redirect_uris: [`${publicUrl}/connect/callback`],
    token_endpoint_auth_method: 'none',
  });
  clients[id] = {};
  const client = await world.client('ann').initialize();
  await world.connect(client, 'ann');
  expect(server.authorizations.at(-1)).toMatchObject({
    client_id: id,
    redirect_uri: `${publicUrl}/connect/callback`,
    resource: world.files.endpoint,
  });
  expect(server.tokenRequests.at(-1)!.form['client_id']).toBe(id);
  expect(server.registrations).toEqual([]);
  expect((await client.callTool('echo', { n: 1 })).result).toBeDefined();
});
