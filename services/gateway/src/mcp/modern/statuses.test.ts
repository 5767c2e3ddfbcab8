import { expect, test } from 'vitest';
import { errorStatus } from './statuses.ts';

test.each([
  ['made/up', -32601, 200, 404],
  ['made/up', -32601, 404, 404],
  ['tools/call', -32601, 200, 200],
  ['prompts/list', -32601, 200, 200],
  ['prompts/list', -32601, 404, 404],
  ['tools/call', -32021, 200, 400],
  ['tools/call', -32022, 400, 400],
  ['tools/call', -32602, 400, 400],
  ['tools/call', -32602, 200, 200],
  ['tools/call', -32603, 500, 200],
])('%s %i of an upstream’s HTTP %i is HTTP %i', (method, code, upstreamStatus, status) => {
  expect(errorStatus(method, code, upstreamStatus)).toBe(status);
});
