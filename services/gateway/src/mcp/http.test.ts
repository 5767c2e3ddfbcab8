import { describe, expect, it } from 'vitest';
import { accepts, checkAcceptForPost, checkContentType, endpointName } from './http.ts';

describe('media types (cases H1)', () => {
  it.each([
    [undefined, true],
    ['*/*', true],
    ['application/json, text/event-stream', true],
    ['text/event-stream,application/json', true],
    ['APPLICATION/JSON, Text/Event-Stream', true],
    ['application/json;q=0.5, text/event-stream', true],
    ['application/*, text/*', true],
    ['application/json', false],
    ['text/event-stream', false],
    ['application/json;q=0.5, text/event-stream;q=0', false],
    ['*/*, text/event-stream;q=0', false],
    ['text/html', false],
  ])('Accept: %s on POST -> %s', (value, ok) => {
    const check = (): void => checkAcceptForPost(value);
    if (ok) expect(check).not.toThrow();
    else expect(check).toThrow('Accept');
  });

  it.each([
    ['application/json', true],
    ['Application/JSON', true],
    ['application/json; charset=utf-8', true],
    ['application/json;charset="UTF-8"', true],
    ['application/json; charset=latin1', false],
    ['text/plain', false],
    ['application/x-www-form-urlencoded', false],
    [undefined, false],
  ])('Content-Type: %s -> %s', (value, ok) => {
    const check = (): void => checkContentType(value);
    if (ok) expect(check).not.toThrow();
    else expect(check).toThrow('Content-Type');
  });

  it('takes the most specific range', () => {
    expect(accepts('text/*;q=0, text/event-stream', 'text/event-stream')).toBe(true);
  });
});

describe('paths', () => {
  it.each([
    ['/mcp', ''],
    ['/mcp/', ''],
    ['/mcp/files', 'files'],
    ['/mcp/files/', 'files'],
    ['/mcp/files/x', undefined],
    ['/mcp//', undefined],
    ['/mcp/Files', undefined],
    ['/mcpx', undefined],
  ])('%s', (path, name) => {
    expect(endpointName(path)).toBe(name);
  });
});
