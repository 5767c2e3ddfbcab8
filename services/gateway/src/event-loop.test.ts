import { expect, it } from 'vitest';
import { nextShare } from './event-loop.ts';

const run = (...late: boolean[]) =>
  late.reduce<number[]>((shares, one) => [...shares, nextShare(shares.at(-1) ?? 0, one)], []);

it('sheds more each second that is late, up to everything, and less each that is not, down to nothing', () => {
  expect(run(true, true, true, true, true)).toEqual([1 / 8, 1 / 4, 1 / 2, 1, 1]);
  expect(run(true, true, true, false, false, false)).toEqual([1 / 8, 1 / 4, 1 / 2, 1 / 4, 1 / 8, 0]);
  expect(run(false)).toEqual([0]);
}); // prettier-ignore
