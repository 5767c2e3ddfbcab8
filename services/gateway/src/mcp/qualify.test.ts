import { describe, expect, it } from 'vitest';
import { qualifyMessage, qualifyResponse } from './qualify.ts';

const response = (result: string): string => `{"jsonrpc":"2.0","id":1,"result":${result}}`;

describe('messages of one upstream on the endpoint of many', () => {
  it.each([
    [
      'tools/list',
      '{"tools":[{"x":1.0,"name":"a"},{"name":"b"}]}',
      '{"tools":[{"x":1.0,"name":"u__a"},{"name":"u__b"}]}',
    ],
    [
      'prompts/list',
      '{"prompts":[{"name":"a"}],"nextCursor":"c"}',
      '{"prompts":[{"name":"u__a"}],"nextCursor":"c"}',
    ],
    [
      'resources/list',
      '{"resources":[{"uri":"res://1","name":"n"}]}',
      '{"resources":[{"uri":"u+res://1","name":"n"}]}',
    ],
    [
      'resources/templates/list',
      '{"resourceTemplates":[{"uriTemplate":"res://{id}"}]}',
      '{"resourceTemplates":[{"uriTemplate":"u+res://{id}"}]}',
    ],
    [
      'resources/read',
      '{"contents":[{"uri":"res://1","text":"res://1"}]}',
      '{"contents":[{"uri":"u+res://1","text":"res://1"}]}',
    ],
    [
      'tools/call',
      '{"content":[{"type":"text","text":"t","uri":"no"},{"type":"resource_link","uri":"res://1"},{"type":"resource","resource":{"uri":"res://2"}}],"structuredContent":{"id":9007199254740993}}',
      '{"content":[{"type":"text","text":"t","uri":"no"},{"type":"resource_link","uri":"u+res://1"},{"type":"resource","resource":{"uri":"u+res://2"}}],"structuredContent":{"id":9007199254740993}}',
    ],
    [
      'prompts/get',
      '{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"res://2"}}}]}',
      '{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"u+res://2"}}}]}',
    ],
  ])('%s', (method, before, after) => {
    expect(qualifyResponse(response(before), method, 'u')).toBe(response(after));
  });

  it('qualifies the ids of required elicitations', () => {
    const error = (id: string): string =>
      `{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"m","data":{"elicitations":[{"elicitationId":"${id}"}]}}}`;
    expect(qualifyResponse(error('e1'), 'tools/call', 'u')).toBe(error('u__e1'));
  });

  it('qualifies what upstreams say on their own', () => {
    expect(
      qualifyMessage(
        '{"method":"notifications/resources/updated","params":{"uri":"res://1"}}',
        'notifications/resources/updated',
        'u',
      ),
    ).toBe('{"method":"notifications/resources/updated","params":{"uri":"u+res://1"}}');
    expect(
      qualifyMessage(
        '{"method":"notifications/elicitation/complete","params":{"elicitationId":"e"}}',
        'notifications/elicitation/complete',
        'u',
      ),
    ).toBe('{"method":"notifications/elicitation/complete","params":{"elicitationId":"u__e"}}');
  });
});
