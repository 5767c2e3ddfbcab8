import { afterAll, afterEach, describe, expect, test } from 'vitest';
import { ALL } from '../support/bridged-world.ts';
import { startCells, type Era } from '../support/cells.ts';
import { McpClient } from '../support/mcp-client.ts';
import { ModernClient } from '../support/modern-client.ts';
import type { Message } from '../support/net.ts';

// What an upstream answers with may be JSON and still no answer: a result that is none, an error that is none, both,
// or a member that stands twice. Clients of every revision get one explained error for it, in JSON and in a stream
// (invariant 5 ends where clients would disagree, or wait forever).

const at = await startCells();
afterAll(() => at.stop());
afterEach(() => {
  for (const upstream of Object.values(at.upstreams)) upstream.intercept = undefined;
});

const SHAPES: Record<string, string> = {
  'a result of null': '"result":null',
  'a result that is a list': '"result":[]',
  'an error of null': '"error":null',
  'a number for an error': '"error":5',
  'an error without a code': '"error":{"message":"no"}',
  'an error whose code is text': '"error":{"code":"x","message":"no"}',
  'both a result and an error': '"result":{},"error":{"code":1,"message":"no"}',
  'a result of null and an error': '"result":null,"error":{"code":1,"message":"no"}',
};
/** Only clients of another revision than the upstream's have to read these; the others get what came. */
const TWICE: Record<string, string> = {
  'two results': '"result":{"content":[]},"result":{"content":[]}',
  'two errors': '"error":{"code":1,"message":"a"},"error":{"code":2,"message":"b"}',
};

/** A request of this method is answered with these members, in JSON or as an event. */
function say(era: Era, members: string, how: 'json' | 'event', method = 'tools/call'): void {
  at.upstreams[era].intercept = ({ response }, { message, text }) => {
    if (message?.method !== method) return false;
    const id = /"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)/.exec(text)![1]!;
    const answer = `{"jsonrpc":"2.0","id":${id},${members}}`;
    if (how === 'json') response.writeHead(200, { 'content-type': 'application/json' });
    else response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.end(how === 'json' ? answer : `data: ${answer}\n\n`);
    return true;
  };
}

const CLIENTS: Record<Era, (upstream: Era) => Promise<() => Promise<Message>>> = {
  legacy: async (upstream) => {
    const options = { url: at.url(upstream), token: at.token('ann', upstream), capabilities: ALL };
    const client = await new McpClient(options).initialize();
    return () => client.callTool('echo', {});
  },
  modern: async (upstream) => {
    const options = { url: at.url(upstream), token: at.token('ann', upstream), capabilities: ALL };
    const client = new ModernClient(options);
    await client.tool('echo', {}); // the gateway knows this upstream
    return () => client.tool('echo', {});
  },
};
const ERAS: Era[] = ['legacy', 'modern'];
const CELLS = ERAS.flatMap((client) => ERAS.map((upstream) => ({ client, upstream })));
const INVALID = { code: -32603, data: { reason: 'upstream_invalid' } };

describe.each(CELLS)('$client client, $upstream upstream', ({ client, upstream }) => {
  const crosses = client !== upstream;
  test.each(Object.entries({ ...SHAPES, ...(crosses && TWICE) }))(
    '[upstream.no-answer] %s',
    async (_name, members) => {
      const call = await CLIENTS[client](upstream);
      for (const how of ['json', 'event'] as const) {
        say(upstream, members, how);
        const { error, id } = await call();
        expect([how, error]).toEqual([how, expect.objectContaining({ code: INVALID.code })]);
        expect(error!.data).toMatchObject(INVALID.data);
        expect(id).toBeDefined();
        at.upstreams[upstream].intercept = undefined;
        expect((await call()).result, 'the next one is as ever').toBeDefined();
      }
    },
  );
});

test.each(CELLS)(
  '[upstream.no-item] what is no tool in a list spoils nothing: $client client, $upstream upstream',
  async ({ client, upstream }) => {
    const options = { url: at.url(upstream), token: at.token('ann', upstream), capabilities: ALL };
    const one = client === 'legacy' ? await new McpClient(options).initialize() : undefined;
    say(upstream, '"result":{"tools":[{"name":"echo","inputSchema":{}},null,5,[]]}', 'json', 'tools/list');
    const listed = await (one?.listTools() ?? new ModernClient(options).call('tools/list'));
    expect(listed.error).toBeUndefined();
    expect(listed.result?.tools?.[0]?.name).toBe('echo');
  },
); // prettier-ignore

test.each(ERAS)('[upstream.no-answer] a first answer with two meanings, %s upstream', async (upstream) => {
  const options = { url: at.url(upstream), token: at.token('bob', upstream), capabilities: ALL };
  const first = upstream === 'legacy' ? 'initialize' : 'server/discover';
  const twice = '"result":{"protocolVersion":"2025-11-25","supportedVersions":["2026-07-28"],"capabilities":{},"capabilities":{},"serverInfo":{"name":"x","version":"1"}}';
  const client = new McpClient(options);
  say(upstream, twice, 'json', first);
  const { json } = await client.post(client.initializeMessage());
  expect(json?.error?.data?.reason).not.toBe('internal');
  expect(json?.result ?? json?.error).toBeDefined();
}); // prettier-ignore

test('[upstream.no-method] an upstream’s -32601 inside a known method is read by modern clients; an unknown method is 404', async () => {
  const options = { url: at.url('legacy'), token: at.token('ann', 'legacy'), capabilities: {} };
  const client = new ModernClient(options);
  const refused = client.beginTool('ask_form');
  expect((await refused.message()).error?.code).toBe(-32601);
  expect((await refused.http).status).toBe(200);
  const unknown = client.begin('made/up');
  expect((await unknown.message()).error?.code).toBe(-32601);
  expect((await unknown.http).status).toBe(404);
});
