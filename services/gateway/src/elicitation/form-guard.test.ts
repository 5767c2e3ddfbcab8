import { describe, expect, it } from 'vitest';
import { badLink, findSecretField, wordsOf } from './form-guard.ts';

const form = (properties: Record<string, unknown>): unknown => ({ type: 'object', properties });

describe('form guard', () => {
  it.each([
    ['name', { password: { type: 'string' } }],
    ['camel case', { userApiKey: { type: 'string' } }],
    ['upper case', { APIKey: { type: 'string' } }],
    ['snake case', { access_token: { type: 'string' } }],
    ['plural', { passwords: { type: 'string' } }],
    ['title', { x: { type: 'string', title: 'Credit card number' } }],
    ['description', { x: { type: 'string', description: 'Enter the password of your account' } }],
    ['format', { x: { type: 'string', format: 'password' } }],
    ['writeOnly', { x: { type: 'string', writeOnly: true } }],
    ['nesting', { x: { type: 'object', properties: { pin: { type: 'string' } } } }],
    ['composition', { x: { anyOf: [{ type: 'object', properties: { cvv: {} } }] } }],
  ])('refuses a secret by %s', (_why, properties) => {
    expect(findSecretField(form(properties))).toBeDefined();
  });

  it.each([
    [
      'innocent names',
      { name: {}, age: {}, spinning: {}, keyboard: {}, monkey: {}, tokenizer: {} },
    ],
    ['prose that mentions tokens', { limit: { description: 'At most this many tokens are used' } }],
    ['a key that is none', { sortKey: { type: 'string' }, key: { type: 'string' } }],
  ])('lets %s pass', (_why, properties) => {
    expect(findSecretField(form(properties))).toBeUndefined();
  });

  it('takes words of the operator', () => {
    const schema = form({ employeeNumber: { type: 'string' } });
    expect(findSecretField(schema)).toBeUndefined();
    expect(findSecretField(schema, ['employee number'])?.field).toBe('employeeNumber');
  });

  it('splits names into words', () => {
    expect(wordsOf('userAPIKey2_x-y')).toEqual(['user', 'api', 'key2', 'x', 'y']);
  });

  it('does not recurse', () => {
    let deep: unknown = form({ password: {} });
    for (let i = 0; i < 50_000; i++) deep = form({ a: deep });
    expect(findSecretField(deep)?.because).toBe('more parts than can be checked');
  });
});

describe('links of upstreams', () => {
  it.each([
    ['https://pay.example/x?y=1', false, true],
    ['http://pay.example/x', true, false],
    ['http://localhost:3000/x', true, true],
    ['http://localhost:3000/x', false, false],
    ['https://user:pw@pay.example/', false, false],
    ['javascript:alert(1)', true, false],
    ['/relative', true, false],
    [undefined, true, false],
  ])('%s (development: %s) -> %s', (url, development, ok) => {
    expect(badLink(url, development) === undefined).toBe(ok);
  });
});
