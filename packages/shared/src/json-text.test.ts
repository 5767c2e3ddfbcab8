import { describe, expect, it } from 'vitest';
import {
  applyEdits,
  arrayItems,
  documentSlice,
  DuplicateMember,
  findPath,
  objectMembers,
  removeMembers,
  setMember,
  sliceOf,
} from './json-text.ts';

const AWKWARD =
  ' { "a" : 1.0 , "b\\u0062":"x\\"}\\\\" ,"c":{"d":[1,{"e":"]"},-0]},"big":9007199254740993 } ';

describe('json-text', () => {
  it('finds members by their decoded name and keeps their spelling', () => {
    const members = objectMembers(AWKWARD);
    expect([...(members?.keys() ?? [])]).toEqual(['a', 'bb', 'c', 'big']);
    expect([...(members?.values() ?? [])].map((s) => sliceOf(AWKWARD, s))).toEqual([
      '1.0',
      '"x\\"}\\\\"',
      '{"d":[1,{"e":"]"},-0]}',
      '9007199254740993',
    ]);
    expect(sliceOf(AWKWARD, documentSlice(AWKWARD))).toBe(AWKWARD.trim());
  });

  it('refuses a member that occurs twice, whatever its spelling', () => {
    expect(() => objectMembers('{"method":"a","m\\u0065thod":"b"}')).toThrow(DuplicateMember);
  });

  it('splits arrays', () => {
    const text = '[ 1, "a,b" ,{"x":[2]} ]';
    expect(arrayItems(text)?.map((s) => sliceOf(text, s))).toEqual(['1', '"a,b"', '{"x":[2]}']);
    expect(arrayItems('[]')).toEqual([]);
    expect(arrayItems('{}')).toBeUndefined();
  });

  it('sets and removes members and leaves the rest as it was', () => {
    expect(applyEdits('{}', [setMember('{}', 0, 'a', '1')])).toBe('{"a":1}');
    expect(applyEdits('{"b":1.0}', [setMember('{"b":1.0}', 0, 'a', '1')])).toBe('{"a":1,"b":1.0}');
    expect(applyEdits('{"b": 1.0 }', [setMember('{"b": 1.0 }', 0, 'b', '2')])).toBe('{"b": 2 }');
  });

  it.each([
    ['{"a":1,"b":2,"c":3}', ['a'], '{"b":2,"c":3}'],
    ['{"a":1,"b":2,"c":3}', ['b'], '{"a":1,"c":3}'],
    ['{"a":1,"b":2,"c":3}', ['c'], '{"a":1,"b":2}'],
    ['{"a":1,"b":2,"c":3}', ['a', 'b', 'c'], '{}'],
    ['{"a":1,"b":2,"c":3}', ['a', 'c'], '{"b":2}'],
    ['{"a":1,"b":2,"c":3,"d":4}', ['b', 'c'], '{"a":1,"d":4}'],
    ['{ "a:\\"" : ":" , "b" : 2 }', ['b'], '{ "a:\\"" : ":"}'],
    ['{ "x":1, "a:\\"" : ":" }', ['x'], '{"a:\\"" : ":" }'],
    ['{"a":1}', ['z'], '{"a":1}'],
  ])('removes from %s', (text, names, expected) => {
    expect(applyEdits(text, removeMembers(text, 0, names))).toBe(expected);
  });

  it('finds paths', () => {
    const at = findPath(AWKWARD, ['c', 'd']);
    expect(at && sliceOf(AWKWARD, at)).toBe('[1,{"e":"]"},-0]');
    expect(findPath(AWKWARD, ['a', 'd'])).toBeUndefined();
  });

  it('does not recurse', () => {
    const deep = `{"a":${'['.repeat(200_000)}${']'.repeat(200_000)},"b":1}`;
    expect(objectMembers(deep)?.size).toBe(2);
  });
});
