import type { ServerResponse } from 'node:http';
import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { bent, objectText, oddText, type Members } from './messages.ts';
import { mutate, mutations } from './raw.ts';

// What an upstream may answer with, right in most of it and wrong somewhere.

export interface OddAnswer {
  readonly how:
    | 'json'
    | 'events'
    | 'bytes'
    | 'cut'
    | 'silent'
    | 'endless'
    | 'gzip bomb'
    | 'wrong length'
    | 'no http';
  readonly status: number;
  readonly type: string;
  /** JSON texts; in `{{id}}` goes the id of the request. */
  readonly messages: readonly string[];
  readonly bytes: Parameters<typeof mutate>[1];
}

const ID = '"{{id}}"';
const result: fc.Arbitrary<string> = fc
  .tuple(fc.constantFrom('tools', 'content', 'prompts', 'resources', 'capabilities', 'inputRequests'), oddText)
  .chain(([member, odd]) =>
    bent([
      ['content', '[{"type":"text","text":"x"}]'],
      [member, odd],
      ['resultType', '"complete"'],
      ['protocolVersion', '"2025-11-25"'],
      ['capabilities', '{"tools":{}}'],
      ['serverInfo', '{"name":"f","version":"1"}'],
      ['supportedVersions', '["2026-07-28"]'],
      ['requestState', '"s"'],
      ['nextCursor', '"c"'],
      ['tools', '[{"name":"echo","inputSchema":{"type":"object"}},{"name":1},null]'],
    ]),
  )
  .chain((members) => fc.subarray([...members], { minLength: 1 }))
  .map(objectText); // prettier-ignore

const error = bent([
  ['code', '-32601'],
  ['message', '"no"'],
  ['data', '{"elicitations":[{"mode":"url","elicitationId":"e","url":"https://pay.example/","message":"m"}]}'],
]).map(objectText); // prettier-ignore

const response = fc.oneof(
  result.map((text): Members => [['jsonrpc', '"2.0"'], ['id', ID], ['result', text]]),
  error.map((text): Members => [['jsonrpc', '"2.0"'], ['id', ID], ['error', text]]),
  oddText.map((text): Members => [['jsonrpc', '"2.0"'], ['id', text], ['result', '{}']]),
  oddText.map((text): Members => [['jsonrpc', '"2.0"'], ['id', ID], ['result', text]]),
  oddText.map((text): Members => [['jsonrpc', '"2.0"'], ['id', ID], ['error', text]]),
); // prettier-ignore

const other = fc
  .tuple(
    fc.constantFrom('notifications/progress', 'notifications/message', 'notifications/tools/list_changed', 'notifications/cancelled', 'notifications/elicitation/complete', 'elicitation/create', 'sampling/createMessage', 'roots/list', 'ping', '', '__proto__'),
    oddText,
    fc.option(fc.constantFrom('1', '"a"', 'null', '1.5', '{}')),
  )
  .map(([method, params, id]): Members => [['jsonrpc', '"2.0"'], ...(id === null ? [] : [['id', id] as const]), ['method', JSON.stringify(method)], ['params', params]]); // prettier-ignore

const message = fc
  .oneof({ arbitrary: response, weight: 3 }, { arbitrary: other, weight: 2 })
  .chain(bent)
  .map(objectText);

export const oddAnswer: fc.Arbitrary<OddAnswer> = fc.record({
  how: fc.oneof(
    { arbitrary: fc.constantFrom<OddAnswer['how']>('json', 'events'), weight: 30 },
    { arbitrary: fc.constantFrom<OddAnswer['how']>('bytes', 'cut', 'wrong length', 'no http', 'gzip bomb'), weight: 8 },
    { arbitrary: fc.constantFrom<OddAnswer['how']>('silent', 'endless'), weight: 1 },
  ),
  status: fc.oneof(
    { arbitrary: fc.constant(200), weight: 8 },
    { arbitrary: fc.constantFrom(201, 202, 204, 206, 301, 307, 400, 403, 404, 405, 409, 429, 500, 503, 599), weight: 2 },
  ),
  type: fc.oneof(
    { arbitrary: fc.constant(''), weight: 8 },
    { arbitrary: fc.constantFrom('text/html', 'application/json', 'text/event-stream', 'text/event-stream; charset=utf-16', 'application/json; charset=latin1', 'nonsense', 'multipart/mixed'), weight: 2 },
  ),
  messages: fc.array(message, { maxLength: 4 }),
  bytes: mutations,
}); // prettier-ignore

const BOMB = gzipSync(Buffer.alloc(64 * 1024 * 1024, 0x20));
const frame = (text: string): string => `id: 1\nevent: message\ndata: ${text}\n\n`;

/** Says it; everything that lasts ends when the other side leaves. */
export function say(response: ServerResponse, odd: OddAnswer, idText: string): void {
  const texts = odd.messages.map((text) => text.replaceAll(ID, idText));
  const eventful = odd.how === 'events' || odd.how === 'endless';
  const type = odd.type || (eventful ? 'text/event-stream' : 'application/json');
  const body = eventful ? texts.map(frame).join('') : (texts[0] ?? '');
  const head = { 'content-type': type };
  switch (odd.how) {
    case 'json':
    case 'events':
      response.writeHead(odd.status, head).end(body);
      return;
    case 'bytes':
      response.writeHead(odd.status, head).end(mutate(Buffer.from(body), odd.bytes));
      return;
    case 'cut':
      response.writeHead(odd.status, head);
      response.write(body.slice(0, Math.ceil(body.length / 2)), () => response.destroy());
      return;
    case 'silent':
      response.on('close', () => response.destroy());
      return;
    case 'endless': {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const timer = setInterval(() => response.write(frame(texts[0] ?? '{}')), 5);
      response.on('close', () => clearInterval(timer));
      return;
    }
    case 'gzip bomb':
      response.writeHead(200, { ...head, 'content-encoding': 'gzip' }).end(BOMB);
      return;
    case 'wrong length':
      response.writeHead(odd.status, { ...head, 'content-length': Buffer.byteLength(body) + 10 });
      response.write(body, () => response.destroy());
      return;
    case 'no http':
      response.socket?.end(mutate(Buffer.from(`HTTP/1.1 ${odd.status} OK\r\ncontent-type: ${type}\r\n\r\n${body}`), odd.bytes)); // prettier-ignore
      return;
  }
}
