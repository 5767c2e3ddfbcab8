import { describe, expect, it } from 'vitest';
import { modernCapabilities, modernRequest, ownRequest, retryOf, targetOf } from './requests.ts';

const self = { capabilitiesText: '{}', clientInfoText: '{"name":"c"}', level: '' };
const META =
  '"io.modelcontextprotocol/protocolVersion":"2026-07-28",' +
  '"io.modelcontextprotocol/clientInfo":{"name":"c"},' +
  '"io.modelcontextprotocol/clientCapabilities":{}';

describe('requests for modern upstreams', () => {
  it('say who asks, and keep the bytes of everything else', () => {
    const text =
      '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{"x":1.0,"progressToken":9007199254740993},"arguments":{"n":1e400}}}';
    expect(modernRequest(text, 'tools/call', self)).toBe(
      text.replace('"_meta":{', `"_meta":{${META},`),
    );
  });

  it.each([
    ['no params', '{"jsonrpc":"2.0","id":1,"method":"tools/list"}'],
    ['empty params', '{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}'],
    ['_meta that is none', '{"id":1,"method":"tools/list","params":{"_meta":null}}'],
  ])('also with %s', (_what, text) => {
    const { params } = JSON.parse(modernRequest(text, 'tools/list', self)) as { params: object };
    expect(params).toEqual({ _meta: JSON.parse(`{${META}}`) as object });
  });

  it('put ours over what a client pretends, and take out members of a retry', () => {
    const text =
      '{"id":1,"method":"tools/call","params":{"requestState":"s","name":"t","inputResponses":{},"_meta":{"io.modelcontextprotocol/clientCapabilities":{"sampling":{}}}}}';
    const { params } = JSON.parse(
      modernRequest(text, 'tools/call', { ...self, level: 'error' }),
    ) as { params: Record<string, unknown> };
    expect(params).toEqual({
      name: 't',
      _meta: {
        ...(JSON.parse(`{${META}}`) as object),
        'io.modelcontextprotocol/logLevel': 'error',
      },
    });
  });

  it('leave out a level that there is not', () => {
    expect(ownRequest({ ...self, level: 'loud' }, 'x', 'tools/list')).not.toContain('logLevel');
  });

  it('refuse what two readers could read differently', () => {
    const text = '{"id":1,"method":"tools/list","params":{"_meta":{"a":1,"a":2}}}';
    expect(() => modernRequest(text, 'tools/list', self)).toThrow(/ambiguous/);
  });

  it('declare what the gateway can carry, as the client wrote it', () => {
    expect(modernCapabilities('{"roots":{"listChanged":true},"tasks":{},"elicitation":{}}')).toBe(
      '{"elicitation":{},"roots":{}}',
    );
    expect(modernCapabilities('{"sampling":{"tools":{"n":1.0}}}')).toBe(
      '{"sampling":{"tools":{"n":1.0}}}',
    );
  });

  it('are repeated with another id, the answers, and the state exactly as given', () => {
    const request = '{"id":1,"method":"tools/call","params":{"name":"t","_meta":{}}}';
    const state = '"\\u00fc\\/ \\"=="';
    expect(
      retryOf(request, { id: 'r', inputResponses: { 'a"b': '{"n":1.0}' }, requestState: state }),
    ).toBe(
      `{"id":"r","method":"tools/call","params":{"inputResponses":{"a\\"b":{"n":1.0}},"requestState":${state},"name":"t","_meta":{}}}`,
    );
    expect(retryOf(request, { id: 'r', inputResponses: undefined, requestState: undefined })).toBe(
      request.replace('1', '"r"'),
    );
  });

  it('know what they are about', () => {
    expect(targetOf('{"params":{"name":"\\u00e9"}}', 'tools/call')).toBe('é');
    expect(targetOf('{"params":{"uri":"x:y"}}', 'resources/read')).toBe('x:y');
    expect(targetOf('{"params":{"uri":"x:y"}}', 'tools/list')).toBeUndefined();
    expect(targetOf('{"params":{"name":7}}', 'tools/call')).toBeUndefined();
  });
});
