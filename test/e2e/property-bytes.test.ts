import fc from 'fast-check';
import { afterAll, describe, expect, test } from 'vitest';
import { cut, cuts, jsonText } from '../support/json-text.ts';
import type { McpClient } from '../support/mcp-client.ts';
import { postPieces, writePieces, type PiecesAnswer } from '../support/pieces.ts';
import { startWorld } from '../support/world.ts';

// Relay, don't rebuild (invariant 5; case J6): whatever JSON allows, cut into packets in whatever way, passes byte
// for byte, to the upstream and to the client, in JSON and on a stream.

const RUNS = Number(process.env['VIADUCT_PROPERTY_RUNS'] ?? 60);
const world = await startWorld({ workers: 0, plainUpstreams: ['plain'] });
afterAll(() => world.stop());
const plain = world.plain['plain']!;
const one = await world.client('ann', { upstream: 'plain' }).initialize();
const many = world
  .client('ann', { claims: { aud: `${world.publicUrl}/mcp` } })
  .as({ url: `${world.publicUrl}/mcp` });
await many.initialize();

const ids = fc.constantFrom('1', '0', '-7', '"a"', '""', '"1"', '"\\u00e9😀"', '9007199254740991');
const pods = fc.integer({ min: 0, max: 1 });

/** What the upstream answers next, in which pieces; and what it got. */
let answerWith: { type: string; pieces: Buffer[] } = { type: '', pieces: [] };
let received: Buffer = Buffer.alloc(0);
plain.intercept = async ({ response, body }, { message }) => {
  if (message?.method !== 'tools/call') return false;
  received = body;
  response.socket?.setNoDelay(true);
  response.writeHead(200, { 'content-type': answerWith.type });
  await writePieces(response, answerWith.pieces);
  return true;
};

/** A request with its members in some order, around a document. */
function request(id: string, name: string, order: readonly string[], document: string): Buffer {
  const members: Record<string, string> = {
    jsonrpc: '"2.0"',
    id,
    method: '"tools/call"',
    params: `{"name": "${name}","arguments":{"document":${document}},"_meta":{"corp.example/t":${document}}}`,
    'x-own': document,
  };
  return Buffer.from(`{${order.map((key) => `"${key}" :${members[key]!}`).join(',\n')}}`);
}

const order = fc.shuffledSubarray(['jsonrpc', 'id', 'method', 'params', 'x-own'], { minLength: 5 });

function post(client: McpClient, pod: number, pieces: Buffer[]): Promise<PiecesAnswer> {
  return postPieces(client.url, client.ports[pod]!, client.headers(), pieces);
}

const frame = (message: string): string =>
  `${message
    .split('\n')
    .map((line) => `data: ${line}`)
    .join('\n')}\n\n`;

describe('random documents in random pieces', { timeout: 120_000 }, () => {
  test('[relay.property] arguments reach the upstream byte for byte', async () => {
    await fc.assert(
      fc.asyncProperty(jsonText(), ids, order, cuts, pods, async (document, id, keys, at, pod) => {
        answerWith = {
          type: 'application/json',
          pieces: [Buffer.from(`{"jsonrpc":"2.0","id":${id},"result":{}}`)],
        };
        const body = request(id, 'echo', keys, document);
        const answer = await post(one, pod, cut(body, at));
        expect(answer.status).toBe(200);
        expect(received.toString('utf8')).toBe(body.toString('utf8'));
      }),
      { numRuns: RUNS },
    );
  });

  test('[relay.property] on the endpoint of many only the name changes', async () => {
    await fc.assert(
      fc.asyncProperty(jsonText(), ids, order, cuts, pods, async (document, id, keys, at, pod) => {
        const result = `{"content":[],"structuredContent":{"d":${document}}}`;
        const text = `{"jsonrpc":"2.0","id":${id},"result":${result}}`;
        answerWith = { type: 'application/json', pieces: cut(Buffer.from(text), at) };
        const answer = await post(many, pod, [request(id, 'plain__echo', keys, document)]);
        expect(received.toString('utf8')).toBe(
          request(id, 'echo', keys, document).toString('utf8'),
        );
        expect(answer.body.toString('utf8')).toBe(text);
      }),
      { numRuns: RUNS },
    );
  });

  test('[relay.property] results reach the client byte for byte', async () => {
    await fc.assert(
      fc.asyncProperty(jsonText(), ids, cuts, pods, async (document, id, at, pod) => {
        const text = ` {"x":${document} ,"id": ${id},"result":{"content":[],"d":${document}},"jsonrpc":"2.0"}\n`;
        answerWith = { type: 'application/json', pieces: cut(Buffer.from(text), at) };
        const answer = await post(one, pod, [
          request(id, 'echo', ['id', 'jsonrpc', 'method', 'params'], '1'),
        ]);
        expect(answer.body.toString('utf8')).toBe(text);
      }),
      { numRuns: RUNS },
    );
  });

  test('[relay.property] so do the messages of a stream', async () => {
    // SSE has no way to carry a carriage return
    await fc.assert(
      fc.asyncProperty(
        jsonText([' ', '\t', '\n']),
        ids,
        cuts,
        pods,
        async (document, id, at, pod) => {
          const note = `{"jsonrpc":"2.0", "method":"notifications/message","params":{"level":"info","data":${document}}}`;
          const text = `{"id": ${id},"result":{"content":[],"d":${document}},"jsonrpc":"2.0"}`;
          const events = Buffer.from(frame(note) + ': a comment\n\n' + frame(text));
          answerWith = { type: 'text/event-stream', pieces: cut(events, at) };
          const answer = await post(one, pod, [
            request(id, 'echo', ['id', 'jsonrpc', 'method', 'params'], '1'),
          ]);
          await answer.stream!.ended();
          const data = answer.stream!.events.map((event) => event.data).filter((one) => one !== '');
          expect(data).toEqual([note, text]);
        },
      ),
      { numRuns: RUNS },
    );
  });
});
