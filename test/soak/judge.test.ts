import { expect, test } from 'vitest';
import { judge } from './judge.ts';

const series = (valueAt: (i: number) => number) => ({
  name: 'heap',
  points: Array.from({ length: 60 }, (_, i) => ({ atMs: i * 5_000, value: valueAt(i) })),
});
const MARGIN = { absolute: 4, relative: 0.02 };
const noise = (i: number): number => 3 * Math.sin(i * 1.7);

test.each<[string, (i: number) => number, boolean]>([
  ['a flat line', () => 50, true],
  ['noise', (i) => 50 + noise(i), true],
  ['caches that fill first', (i) => (i < 20 ? 30 + i : 50), true],
  ['something that shrinks', (i) => 80 - i / 2, true],
  ['a leak under noise', (i) => 50 + i * 0.4 + noise(i), false],
  ['a leak that begins late', (i) => (i < 30 ? 50 : 50 + (i - 30)), false],
])('[soak.judge] %s', (_name, valueAt, flat) => {
  expect(judge(series(valueAt), MARGIN).flat).toBe(flat);
});

test('[soak.judge] too little to say anything is an error', () => {
  expect(() => judge({ name: 'x', points: [] }, MARGIN)).toThrow('too few');
});
