import fc from 'fast-check';
import { expect } from 'vitest';
import { heapAfterCollection } from '../support/heap.ts';
import type { Stack } from '../support/stack.ts';

// How long, from which seed, and what a process must still be like afterwards.

const SECONDS = Number(process.env['FUZZ_SECONDS'] ?? 8);
const SEED = Number(process.env['FUZZ_SEED'] ?? 20_261_201);
const GROWTH_BYTES = 48 * 1024 * 1024;

export const FUZZ_TIMEOUT_MS = SECONDS * 1000 * 3 + 120_000;

/** Tries inputs until the time is over; what fails is made small, and told with the seed that finds it again. */
export async function fuzz<T>(input: fc.Arbitrary<T>, holds: (value: T) => Promise<void>): Promise<number> {
  let runs = 0;
  const property = fc.asyncProperty(input, async (value) => {
    runs++;
    await holds(value);
  });
  await fc.assert(property, {
    seed: SEED,
    numRuns: Number.MAX_SAFE_INTEGER,
    plugins: [fc.interruptAfterTimeLimit(SECONDS * 1000, { failOnInterrupt: false })],
    endOnFailure: false,
  });
  return runs;
} // prettier-ignore

export type HeapBefore = readonly number[];

export const heaps = (stack: Stack): Promise<HeapBefore> =>
  Promise.all(stack.pods.map(({ child }) => heapAfterCollection(child)));

/** Nobody has ended, nothing surprised the gateway, and what was taken has been given back. */
export async function expectSound(stack: Stack, before: HeapBefore): Promise<void> {
  for (const { name, child } of stack.pods) {
    expect(child.running, `${name}: ${child.output.slice(-2_000)}`).toBe(true);
  }
  const surprised = stack.output().split('\n').filter((line) => /"msg":"unexpected error"|"code":"internal"|"type":"internal"/.test(line)); // prettier-ignore
  expect(surprised.slice(0, 3)).toEqual([]);
  const after = await heaps(stack);
  for (const [i, bytes] of after.entries()) {
    expect(bytes - before[i]!, `growth of ${stack.pods[i]!.name}, bytes`).toBeLessThan(GROWTH_BYTES);
  }
} // prettier-ignore
