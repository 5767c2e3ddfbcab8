import { describe, expect, it } from 'vitest';
import {
  clientInfoFor,
  faultOf,
  inputRequest,
  legacyCapabilities,
  legacyRequest,
  modernResponse,
  withProgressToken,
} from './legacy-words.ts';

const P = 'io.modelcontextprotocol/';

describe('what initialize declares', () => {
  it.each([
    [{}, {}],
    [{ elicitation: {} }, { elicitation: { form: {} } }],
    [{ elicitation: { url: {} } }, { elicitation: { url: {} } }],
    [{ elicitation: { form: {}, url: {} } }, { elicitation: { form: {}, url: {} } }],
    [{ elicitation: true, sampling: null, roots: 1 }, {}],
    [
      { roots: { listChanged: true }, sampling: { tools: {}, own: {} } },
      { roots: {}, sampling: { tools: {} } },
    ],
    [{ experimental: { anything: {} }, extensions: { x: {} } }, {}],
  ])('%j -> %j', (declared, wanted) => {
    expect(legacyCapabilities(declared)).toEqual(wanted);
  });

  it('names a client that earlier revisions can read', () => {
    const info = '{"name": "a", "version": "1", "x": 1.0}';
    expect(clientInfoFor(info)).toBe(info);
    expect(clientInfoFor('{"name":"a"}')).toBe('{"name":"viaduct","version":"1"}');
    expect(clientInfoFor('{}')).toBe('{"name":"viaduct","version":"1"}');
  });
});

describe('a request without its envelope', () => {
  const meta = `"${P}protocolVersion":"2026-07-28","${P}clientCapabilities":{"elicitation":{}}`;

  it('keeps the bytes of the rest', () => {
    const text = `{ "jsonrpc":"2.0","id":0,"method":"tools/call","params":{"requestState":"s","name":"x","arguments":{"n": 9223372036854775807, "f":1.0},"inputResponses":{},"_meta":{${meta},"progressToken":7,"traceparent":"00-1"}} }`;
    expect(legacyRequest(text, 'v-1')).toBe(
      '{ "jsonrpc":"2.0","id":"v-1","method":"tools/call","params":{"name":"x","arguments":{"n": 9223372036854775807, "f":1.0},"_meta":{"progressToken":"v-1","traceparent":"00-1"}} }',
    );
  });

  it('leaves no empty _meta behind', () => {
    const text = `{"jsonrpc":"2.0","id":"a","method":"tools/list","params":{"_meta":{${meta}}}}`;
    expect(legacyRequest(text, 'v-2')).toBe(
      '{"jsonrpc":"2.0","id":"v-2","method":"tools/list","params":{}}',
    );
  });
});

describe('a response on its way back', () => {
  const back = (text: string, idText: string): string =>
    modernResponse(text, JSON.parse(text) as Record<string, unknown>, idText);

  it('has the id of the client and its own bytes', () => {
    expect(
      back('{"jsonrpc":"2.0","id":"v-1","result":{"n":1.0,"big":9007199254740993}}', '0'),
    ).toBe('{"jsonrpc":"2.0","id":0,"result":{"n":1.0,"big":9007199254740993}}');
  });

  it('cannot pretend to ask', () => {
    expect(
      back('{"jsonrpc":"2.0","id":"v-1","result":{"resultType":"input_required"}}', '"a"'),
    ).toBe('{"jsonrpc":"2.0","id":"a","result":{"resultType":"complete"}}');
  });

  it('says -32602 for -32002 and leaves other codes', () => {
    expect(
      back(
        '{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"m","data":{"uri":"x"}}}',
        '1',
      ),
    ).toContain('"code":-32602,"message":"m","data":{"uri":"x"}');
    expect(back('{"jsonrpc":"2.0","id":1,"error":{"code":1234,"message":"m"}}', '1')).toContain(
      '"code":1234',
    );
  });
});

it('gives a progress token back with its type', () => {
  const text =
    '{"method":"notifications/progress","params":{"progressToken":"v-1","progress":1.0}}';
  const out = withProgressToken(text, JSON.parse(text) as Record<string, unknown>, {
    text: '0',
    value: 0,
  });
  expect(out.text).toBe(
    '{"method":"notifications/progress","params":{"progressToken":0,"progress":1.0}}',
  );
  expect(out.parsed['params']).toMatchObject({ progressToken: 0 });
});

it('takes the id off a URL elicitation', () => {
  const text =
    '{"jsonrpc":"2.0","id":5,"method":"elicitation/create","params":{"mode":"url","elicitationId":"e","url":"https://a.example/","message":"m"}}';
  expect(inputRequest(text, 'elicitation/create')).toBe(
    '{"method":"elicitation/create","params":{"mode":"url","url":"https://a.example/","message":"m"}}',
  );
  expect(inputRequest('{"jsonrpc":"2.0","id":5,"method":"roots/list"}', 'roots/list')).toBe(
    '{"method":"roots/list"}',
  );
});

describe('answers', () => {
  it.each([
    ['elicitation/create', { action: 'accept', content: { a: 1 } }, true],
    ['elicitation/create', { action: 'cancel' }, true],
    ['elicitation/create', { action: 'yes' }, false],
    ['elicitation/create', { action: 'accept', content: 'x' }, false],
    ['elicitation/create', 'accept', false],
    [
      'sampling/createMessage',
      { role: 'assistant', content: { type: 'text', text: 'x' }, model: 'm' },
      true,
    ],
    ['sampling/createMessage', { roots: [] }, false],
    ['roots/list', { roots: [] }, true],
    ['roots/list', { action: 'accept' }, false],
  ])('%s %j', (method, answer, good) => {
    expect(faultOf(method, answer) === undefined).toBe(good);
  });
});
