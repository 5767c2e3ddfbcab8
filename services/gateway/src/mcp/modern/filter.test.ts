import { describe, expect, test } from 'vitest';
import { admits, both, either, everythingIn, lenient, readFilter, writeFilter } from './filter.ts';

describe('filters of subscriptions (2026-07-28 basic/patterns/subscriptions)', () => {
  const asked = readFilter({
    toolsListChanged: true,
    promptsListChanged: false,
    resourceSubscriptions: ['a://x', 'a://d/', 'a://x'],
  });

  test('what is not asked for is not there', () => {
    expect(writeFilter(asked)).toEqual({
      toolsListChanged: true,
      resourceSubscriptions: ['a://x', 'a://d/'],
    });
    expect(writeFilter(readFilter({}))).toEqual({});
  });

  test.for([
    ['notifications/tools/list_changed', undefined, true],
    ['notifications/prompts/list_changed', undefined, false],
    ['notifications/resources/list_changed', undefined, false],
    ['notifications/resources/updated', { uri: 'a://x' }, true],
    ['notifications/resources/updated', { uri: 'a://x/part' }, true],
    ['notifications/resources/updated', { uri: 'a://x#part' }, true],
    ['notifications/resources/updated', { uri: 'a://d/file' }, true],
    ['notifications/resources/updated', { uri: 'a://xy' }, false],
    ['notifications/resources/updated', { uri: 1 }, false],
    ['notifications/resources/updated', undefined, false],
    ['notifications/message', { level: 'error' }, false],
    ['toString', {}, false],
  ] as const)('%s %j: %s', ([method, params, good]) => {
    expect(admits(asked, method, params)).toBe(good);
  });

  test.for([
    undefined,
    null,
    [],
    'x',
    { toolsListChanged: 1 },
    { resourceSubscriptions: 'a://x' },
    { resourceSubscriptions: [1] },
  ])('not a filter: %j', (value) => {
    expect(() => readFilter(value)).toThrow();
    expect(writeFilter(lenient(value))).toEqual({});
  });

  test('of several upstreams', () => {
    const one = lenient({ toolsListChanged: true, resourceSubscriptions: ['a://x'] });
    const two = lenient({ promptsListChanged: true, resourceSubscriptions: ['b://y'] });
    expect(writeFilter(either(one, two))).toEqual({
      toolsListChanged: true,
      promptsListChanged: true,
      resourceSubscriptions: ['a://x', 'b://y'],
    });
    expect(writeFilter(both(asked, one))).toEqual({
      toolsListChanged: true,
      resourceSubscriptions: ['a://x'],
    });
    expect(everythingIn(one)).toEqual([
      { method: 'notifications/tools/list_changed' },
      { method: 'notifications/resources/updated', uri: 'a://x' },
    ]);
  });
});
