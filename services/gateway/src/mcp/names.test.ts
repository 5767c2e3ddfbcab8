import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { MAX_NAME, qualifyName, qualifyUri, splitName, splitUri } from './names.ts';

describe('names on the endpoint of many', () => {
  it.each(['echo', '__', 'a__b', '_x', 'x_', 'ü.-/ '])('round-trips %s', (name) => {
    expect(splitName(qualifyName('files', name))).toEqual({ upstream: 'files', name, cut: false });
  });

  it('cuts past 128 characters and ends in 8 hex digits of the SHA-256', () => {
    const long = 'n'.repeat(200);
    const cut = qualifyName('files', long);
    const hash = createHash('sha256').update(`files__${long}`).digest('hex').slice(0, 8);
    expect(cut).toHaveLength(MAX_NAME);
    expect(cut.endsWith(`_${hash}`)).toBe(true);
    expect(splitName(cut)?.cut).toBe(true);
    expect(qualifyName('files', `${long}x`)).not.toBe(cut);
    expect(qualifyName('f', 'n'.repeat(125))).toBe(`f__${'n'.repeat(125)}`);
  });

  it('knows no upstream in a bare name', () => {
    expect(splitName('echo')).toBeUndefined();
    expect(splitName('__echo')).toBeUndefined();
    expect(splitUri('file:///x')).toBeUndefined();
  });

  it('keeps URIs valid', () => {
    const uri = qualifyUri('my-files', 'res://doc/1+2');
    expect(new URL(uri).protocol).toBe('my-files+res:');
    expect(splitUri(uri)).toEqual({ upstream: 'my-files', uri: 'res://doc/1+2' });
  });
});
