import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { Child } from '../support/process.ts';

// That it works, with slices that measure nothing: what it measures is for people to read, not for a test to judge.

const root = new URL('../', import.meta.url).pathname;

test(
  '[bench.calls] every candidate answers rightly, and no session is left',
  { timeout: 120_000 },
  async () => {
    const args = ['--rounds', '1', '--seconds', '0.1', '--warm', '0.1', '--connections', '4'];
    const bench = new Child('bench', process.execPath, [
      `${root}bench/calls.ts`,
      ...args,
      ...['--keep', 'calls-smoke'],
    ]);
    expect(await bench.ended, bench.output).toBe(0);
    const { table } = JSON.parse(readFileSync(`${root}results/bench/calls-smoke.json`, 'utf8')) as {
      table: { candidate: string; requests: number }[];
    };
    expect(table.map(({ candidate }) => candidate)).toContain('viaduct two pods, legacy, JSON');
    for (const { candidate, requests } of table) expect(requests, candidate).toBeGreaterThan(0);
  },
);
