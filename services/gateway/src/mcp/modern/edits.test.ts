import { describe, expect, test } from 'vitest';
import { applyEdits } from '@viaduct/shared/json-text';
import { setMembers, setPath } from './edits.ts';

const members = (text: string, values: Record<string, string>) =>
  applyEdits(text, setMembers(text, 0, values));
const path = (text: string, at: [string, ...string[]], value: string) =>
  applyEdits(text, setPath(text, 0, at, value));

describe('edits that keep the rest of a text', () => {
  test.for([
    ['{}', '{"b":2,"c":3}'],
    ['{ "a" : 1.0 }', '{"b":2,"c":3, "a" : 1.0 }'],
    ['{"b":9,"a":1.0}', '{"c":3,"b":2,"a":1.0}'],
    ['{"new":1}', '{"b":2,"c":3,"new":1}'],
  ])('several members at once: %s', ([text, wanted]) => {
    expect(members(text!, { b: '2', c: '3' })).toBe(wanted);
  });

  test.for([
    ['{"method":"x"}', '{"params":{"_meta":{"id":0}},"method":"x"}'],
    ['{"params":{}}', '{"params":{"_meta":{"id":0}}}'],
    ['{"params":{"_meta":{"k":1e400},"u":1}}', '{"params":{"_meta":{"id":0,"k":1e400},"u":1}}'],
    ['{"params":{"_meta":{"id":"old"}}}', '{"params":{"_meta":{"id":0}}}'],
    ['{"params":null}', '{"params":{"_meta":{"id":0}}}'],
  ])('a path, made where it is missing: %s', ([text, wanted]) => {
    expect(path(text!, ['params', '_meta', 'id'], '0')).toBe(wanted);
  });
});
