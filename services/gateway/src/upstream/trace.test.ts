import { describe, expect, it } from 'vitest';
import { withTraceparent } from './trace.ts';

const ID = '00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01';

describe('withTraceparent', () => {
  it.each([
    [
      '{"jsonrpc":"2.0","id":1,"method":"ping"}',
      `{"params":{"_meta":{"traceparent":"${ID}"}},"jsonrpc":"2.0","id":1,"method":"ping"}`,
    ],
    [
      '{"id":1,"method":"tools/call","params":{"n":1.0}}',
      `{"id":1,"method":"tools/call","params":{"_meta":{"traceparent":"${ID}"},"n":1.0}}`,
    ],
    [
      '{"id":1,"method":"x","params":{"_meta":{ "traceparent" : "old", "big":9007199254740993 }}}',
      `{"id":1,"method":"x","params":{"_meta":{ "traceparent" : "${ID}", "big":9007199254740993 }}}`,
    ],
    ['{"id":1,"method":"x","params":[1]}', '{"id":1,"method":"x","params":[1]}'],
    ['{"method":"notifications/x"}', '{"method":"notifications/x"}'],
    ['{"id":1,"result":{}}', '{"id":1,"result":{}}'],
  ])('%s', (before, after) => {
    expect(withTraceparent(before, ID)).toBe(after);
  });
});
