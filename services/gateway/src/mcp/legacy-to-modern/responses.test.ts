import { describe, expect, it } from 'vitest';
import { describe as describeServer } from './discover.ts';
import { offers } from './listener.ts';
import { headersOf } from './mirrored.ts';
import { explained, lacking, legacyResponse, withoutSubscription } from './responses.ts';

const respond = (text: string, method: string, idText = '7'): string =>
  legacyResponse(text, JSON.parse(text) as Record<string, unknown>, { method, idText });

describe('responses of modern upstreams', () => {
  it('lose resultType and the id of a later round, and keep the rest', () => {
    expect(
      respond(
        '{"jsonrpc":"2.0","id":"r-2","result":{"z":-0,"resultType":"complete","ttlMs":1.0,"n":9223372036854775807}}',
        'tools/call',
      ),
    ).toBe('{"jsonrpc":"2.0","id":7,"result":{"z":-0,"ttlMs":1.0,"n":9223372036854775807}}');
  });

  it('lose the hints of what can be kept', () => {
    expect(
      respond(
        '{"id":7,"result":{"resultType":"complete","tools":[],"ttlMs":0,"cacheScope":"private"}}',
        'tools/list',
      ),
    ).toBe('{"id":7,"result":{"tools":[]}}');
  });

  it.each([
    [{ code: -32602, message: 'Resource not found' }, -32002],
    [{ code: -32602, message: 'x', data: { uri: 'a:b' } }, -32002],
    [{ code: -32602, message: 'cursor' }, -32602],
    [{ code: -32603, message: 'Resource not found' }, -32603],
  ])('say in their own code what was not found: %j', (error, code) => {
    const text = JSON.stringify({ jsonrpc: '2.0', id: 7, error });
    expect(JSON.parse(respond(text, 'resources/read'))).toMatchObject({ error: { code } });
    expect(respond(text, 'prompts/get')).toBe(text);
  });

  it('are words where there is no code', () => {
    const text = lacking('files', { elicitation: { url: {} }, sampling: {} });
    expect(text).toContain('elicitation (url), sampling');
    expect(JSON.parse(explained({ method: 'tools/call', idText: '"a"' }, text, 'x'))).toEqual({
      jsonrpc: '2.0',
      id: 'a',
      result: { content: [{ type: 'text', text }], isError: true },
    });
    expect(
      JSON.parse(explained({ method: 'prompts/get', idText: '1' }, text, 'why', { n: 1 })),
    ).toMatchObject({ error: { code: -32603, data: { reason: 'why', n: 1 } } });
  });
});

describe('notifications of a subscription', () => {
  const id = '"io.modelcontextprotocol/subscriptionId":"x"';
  it.each([
    [`{"method":"m","params":{"_meta":{${id}}}}`, '{"method":"m"}'],
    [`{"method":"m","params":{"uri":"u","_meta":{${id}}}}`, '{"method":"m","params":{"uri":"u"}}'],
    [
      `{"method":"m","params":{"_meta":{"k":1.0,${id}}}}`,
      '{"method":"m","params":{"_meta":{"k":1.0}}}',
    ],
    ['{"method":"m","params":{"_meta":{}}}', '{"method":"m","params":{"_meta":{}}}'],
    ['{"method":"m"}', '{"method":"m"}'],
  ])('%s', (text, expected) => {
    expect(withoutSubscription(text)).toBe(expected);
  });
});

describe('what a modern server says of itself', () => {
  it('becomes a result of initialize with the bytes of its parts', () => {
    const text =
      '{"id":1,"result":{"capabilities":{"tools":{"listChanged":true,"x":1.0},"extensions":{}},"instructions":"i","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","v":1.0}}}}';
    expect(describeServer(text, 'files')).toEqual({
      capabilities: '{"tools":{"listChanged":true,"x":1.0}}',
      result:
        '"capabilities":{"tools":{"listChanged":true,"x":1.0}},"serverInfo":{"name":"s","v":1.0},"instructions":"i"',
    });
    expect(describeServer('{"id":1,"result":{}}', 'files').result).toContain('"name":"files"');
  });

  it('tells what it will say on its own', () => {
    expect(offers('{"tools":{"listChanged":true},"resources":{"subscribe":true}}')).toEqual({
      lists: { toolsListChanged: true, promptsListChanged: false, resourcesListChanged: false },
      subscribe: true,
    });
    expect(offers(undefined).subscribe).toBe(false);
  });
});

describe('mirrored arguments', () => {
  const param = (name: string) => ({
    header: `mcp-param-${name}`,
    path: name.split('.'),
    type: 'string' as const,
  });
  it('are spelled as in the request', () => {
    const args = '{"a":9007199254740993,"b":1.0,"c":null,"d":{"e":"ü"},"f":true,"g":[1]}';
    expect(
      headersOf(
        ['a', 'b', 'c', 'd.e', 'f', 'g', 'h'].map(param),
        `{"params":{"arguments":${args}}}`,
      ),
    ).toEqual({
      'mcp-param-a': '9007199254740993',
      'mcp-param-b': '1',
      'mcp-param-d.e': '=?base64?w7w=?=',
      'mcp-param-f': 'true',
    });
  });
});
