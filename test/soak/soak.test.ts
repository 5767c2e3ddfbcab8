import { expect, test } from 'vitest';
import { runSoak, tableOf } from './run.ts';

// The short form of `npm run soak`. SOAK_MINUTES for a longer one.

const MINUTES = Number(process.env['SOAK_MINUTES'] ?? 5);

test('[soak] heap, what is open and keys in Redis stay as they are while clients come and go', async () => {
  const report = await runSoak({ lengthMs: MINUTES * 60_000, clients: 12, everyMs: 5_000 });
  console.log(tableOf(report));
  expect(report.findings).toEqual([]);
  expect(report.immortal, 'keys without a time to live').toEqual([]);
  expect(report.verdicts.filter(({ flat }) => !flat)).toEqual([]);
  expect(report.calls).toBeGreaterThan(50);
}, MINUTES * 60_000 + 300_000); // prettier-ignore
