import { describe, expect, test } from 'vitest';
import { decodeHeaderValue, encodeHeaderValue } from './header-values.ts';

describe('values of mirrored headers (2026-07-28 Streamable HTTP, Value Encoding)', () => {
  test.for([
    ['us-west1', 'us-west1'],
    ['Hello, 世界', '=?base64?SGVsbG8sIOS4lueVjA==?='],
    [' padded ', '=?base64?IHBhZGRlZCA=?='],
    ['line1\nline2', '=?base64?bGluZTEKbGluZTI=?='],
    ['=?base64?literal?=', '=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?='],
  ])('the examples of the specification: %j', ([value, header]) => {
    expect(encodeHeaderValue(value!)).toBe(header);
    expect(decodeHeaderValue(header!)).toBe(value);
  });

  test.for([
    '',
    ' ',
    '\t',
    'a\tb',
    'ü',
    '\u0000',
    '=?base64?',
    '?=',
    '=?base64??=',
    'a'.repeat(999),
  ])('there and back: %j', (value) => {
    expect(decodeHeaderValue(encodeHeaderValue(value))).toBe(value);
  });

  test.for(['=?base64?###?=', '=?base64?A?=', '=?base64?//8=?=', 'caf\u00e9', 'a\u0001b'])(
    'not a value: %j',
    (header) => {
      expect(decodeHeaderValue(header)).toBeUndefined();
    },
  );

  test('the markers are case-sensitive', () => {
    expect(decodeHeaderValue('=?BASE64?eA==?=')).toBe('=?BASE64?eA==?=');
  });
});
