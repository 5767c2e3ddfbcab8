import { describe, expect, test } from 'vitest';
import { parseBody, type RequestMessage } from '../message.ts';
import { requestDigest } from './digest.ts';

const digest = (params: string, method = 'tools/call') =>
  requestDigest(
    parseBody(Buffer.from(`{"jsonrpc":"2.0","id":1,"method":"${method}","params":${params}}`), {
      idText: '',
    }) as RequestMessage,
  );
const base = digest('{"name":"t","arguments":{"a":1,"b":["x",{"c":null}]}}');

describe('what binds a retry to its request', () => {
  test.for([
    '{"arguments":{"b":["\\u0078",{"c":null}],"a":1},"name":"t"}',
    '{ "name" : "t", "arguments" : { "a" : 1, "b" : [ "x", { "c" : null } ] } }',
    '{"name":"t","arguments":{"a":1,"b":["x",{"c":null}]},"_meta":{"x":1},"requestState":"s","inputResponses":{"k":{}}}',
  ])('the same request: %s', (params) => {
    expect(digest(params)).toBe(base);
  });

  test.for([
    '{"name":"u","arguments":{"a":1,"b":["x",{"c":null}]}}',
    '{"name":"t","arguments":{"a":1,"b":["x",{"c":0}]}}',
    '{"name":"t","arguments":{"a":1.0,"b":["x",{"c":null}]}}',
    '{"name":"t","arguments":{"a":1,"b":["x","c",null]}}',
    '{"name":"t","arguments":{"a":1,"b":["x",{"c":null}]},"more":1}',
    '{"name":"t"}',
  ])('another one: %s', (params) => {
    expect(digest(params)).not.toBe(base);
  });

  test('another method, and integers that a double cannot tell apart', () => {
    expect(digest('{"name":"t"}', 'prompts/get')).not.toBe(digest('{"name":"t"}'));
    expect(digest('{"n":9007199254740993}')).not.toBe(digest('{"n":9007199254740992}'));
  });

  test('what stands twice is taken as it is spelled', () => {
    const twice = '{"name":"t","arguments":{"a":1,"a":2}}';
    expect(digest(twice)).toBe(digest(twice));
    expect(digest(twice)).not.toBe(digest('{"name":"t","arguments":{"a":2,"a":1}}'));
  });

  test('depth costs no stack', () => {
    const deep = `{"name":"t","arguments":${'['.repeat(50_000)}${']'.repeat(50_000)}}`;
    expect(digest(deep)).toBe(digest(deep));
  });
});
