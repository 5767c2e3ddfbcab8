import { defineConfig } from 'vitest/config';

// Everything with I/O: real Redis, real processes from dist/. Files run two at a time; in CI one after the other,
// since each brings two pods and a worker of its own and the machine has two cores.
export default defineConfig({
  test: {
    include: ['{e2e,failure,chaos,fuzz,soak,conformance,browser}/**/*.test.ts', '*.test.ts'],
    maxWorkers: process.env['CI'] === undefined ? 2 : 1,
    globalSetup: 'support/run-folder.ts',
    testTimeout: 30_000,
    hookTimeout: 60_000,
    passWithNoTests: true,
  },
});
