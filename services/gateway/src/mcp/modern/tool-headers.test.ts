import { describe, expect, test } from 'vitest';
import { headersFor, mismatchOf, toolHeaders } from './tool-headers.ts';

const schema = (properties: unknown, more: object = {}) => ({
  type: 'object',
  properties,
  ...more,
});
const mirrored = (properties: unknown) => {
  const found = toolHeaders(schema(properties));
  if (!found.valid) throw new Error(found.reason);
  return found.params;
};

describe('which definitions are valid (2026-07-28 server/tools, x-mcp-header)', () => {
  test('on strings, integers and booleans, also in nested objects', () => {
    const params = mirrored({
      region: { type: 'string', 'x-mcp-header': 'Region' },
      deep: schema({ n: { type: 'integer', 'x-mcp-header': 'N' } }),
      flag: { type: 'boolean', 'x-mcp-header': 'Flag' },
    });
    expect(params.map(({ header, path }) => [header, path.join('.')]).sort()).toEqual([
      ['mcp-param-flag', 'flag'],
      ['mcp-param-n', 'deep.n'],
      ['mcp-param-region', 'region'],
    ]);
  });

  test.for([
    ['empty', { a: { type: 'string', 'x-mcp-header': '' } }],
    ['no token', { a: { type: 'string', 'x-mcp-header': 'a b' } }],
    ['a line break', { a: { type: 'string', 'x-mcp-header': 'a\r\nb' } }],
    ['no string', { a: { type: 'string', 'x-mcp-header': 1 } }],
    ['a number', { a: { type: 'number', 'x-mcp-header': 'A' } }],
    ['an object', { a: { type: 'object', 'x-mcp-header': 'A' } }],
    ['no type', { a: { 'x-mcp-header': 'A' } }],
    ['several types', { a: { type: ['string', 'null'], 'x-mcp-header': 'A' } }],
    [
      'twice but for the case',
      { a: { type: 'string', 'x-mcp-header': 'A' }, b: { type: 'string', 'x-mcp-header': 'a' } },
    ],
    ['in items', { a: { type: 'array', items: { type: 'string', 'x-mcp-header': 'A' } } }],
    [
      'in items of properties',
      { a: { type: 'array', items: schema({ b: { type: 'string', 'x-mcp-header': 'A' } }) } },
    ],
    ['in oneOf', { a: { oneOf: [{ type: 'string', 'x-mcp-header': 'A' }] } }],
  ])('refused: %s', ([, properties]) => {
    expect(toolHeaders(schema(properties)).valid).toBe(false);
  });

  test('refused in $defs and at the root; data that looks like it is none', () => {
    expect(
      toolHeaders(schema({}, { $defs: { x: { type: 'string', 'x-mcp-header': 'A' } } })).valid,
    ).toBe(false);
    expect(toolHeaders({ type: 'string', 'x-mcp-header': 'A' }).valid).toBe(false);
    expect(toolHeaders(schema({ a: { default: { 'x-mcp-header': 1 } } })).valid).toBe(true);
    // a property of that name is a property
    expect(toolHeaders(schema({ 'x-mcp-header': { type: 'string' } })).valid).toBe(true);
    for (const odd of [undefined, null, true, 'x', []]) expect(toolHeaders(odd).valid).toBe(true);
  });

  test('a property named properties, and depth', () => {
    const params = mirrored({ properties: { type: 'string', 'x-mcp-header': 'P' } });
    expect(params[0]?.path).toEqual(['properties']);
    let deep: object = { type: 'string' };
    for (let i = 0; i < 5000; i++) deep = { items: deep };
    expect(toolHeaders(schema({ deep })).valid).toBe(true);
  });
});

describe('headers and body (Server Behavior for Custom Headers)', () => {
  const params = mirrored({
    region: { type: 'string', 'x-mcp-header': 'Region' },
    n: { type: 'integer', 'x-mcp-header': 'N' },
  });

  test('what a client sends', () => {
    expect(headersFor(params, { region: 'Zürich', n: -7 })).toEqual({
      'mcp-param-region': '=?base64?WsO8cmljaA==?=',
      'mcp-param-n': '-7',
    });
    expect(headersFor(params, { region: null })).toEqual({});
    expect(headersFor(params, undefined)).toEqual({});
  });

  test.for([
    [{ region: 'eu', n: 42 }, { 'mcp-param-region': 'eu', 'mcp-param-n': '42.0' }, true],
    [{ region: '=?base64?x?=' }, { 'mcp-param-region': '=?base64?PT9iYXNlNjQ/eD89?=' }, true],
    [{ region: null }, {}, true],
    [{}, {}, true],
    [{ region: 'eu' }, {}, false],
    [{ region: 'eu' }, { 'mcp-param-region': 'us' }, false],
    [{ region: null }, { 'mcp-param-region': 'eu' }, false],
    [{}, { 'mcp-param-n': '1' }, false],
    [{ n: 1 }, { 'mcp-param-n': '' }, false],
    [{ region: 'é' }, { 'mcp-param-region': 'é' }, false],
  ] as const)('%j with %j: %s', ([args, headers, good]) => {
    expect(mismatchOf(params, args, headers) === undefined).toBe(good);
  });
});
