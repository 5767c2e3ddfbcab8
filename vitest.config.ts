import { defineConfig } from 'vitest/config';

// Unit tests: pure logic, beside its source. They run against shared's sources, so they need no build.
export default defineConfig({
  resolve: {
    alias: [
      {
        find: /^@viaduct\/shared\/(.*)$/,
        replacement: `${import.meta.dirname}/packages/shared/src/$1.ts`,
      },
    ],
  },
  test: {
    include: ['packages/*/src/**/*.test.ts', 'services/*/src/**/*.test.ts'],
    maxWorkers: 2,
    passWithNoTests: true,
  },
});
