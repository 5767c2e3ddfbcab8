import { expect, test } from 'vitest';
import { runChaos, tableOf, type Report } from '../chaos/run.ts';

// The short form of `npm run chaos`: a fixed seed, every kind of fault once, tens of clients of both revisions, and
// the checker over their own logs (issue 8, item 3). Longer runs: docs/reliability.md.

const CI = { seed: 20_261_201, pauseMs: [400, 1_200] } as const;

/** What the run was like, for whoever reads the log of a failed one. */
function told(report: Report): Report {
  const { findings, unexpected, faults, ...figures } = report;
  console.log(`${tableOf(report)}\n${JSON.stringify(figures)}`);
  expect(unexpected).toEqual([]);
  expect(findings).toEqual([]);
  expect(faults.length).toBeGreaterThan(0);
  return report;
}

test('[chaos.standalone] pods, workers, Redis, network and neighbours break; nothing is lost, doubled or misdelivered', async () => {
  const report = told(await runChaos({ ...CI, lengthMs: 36_000, clients: 20, topology: 'standalone' })); // prettier-ignore
  expect(report.calls['result']).toBeGreaterThan(50);
  expect(report.told).toBeGreaterThan(0);
}, 300_000);

test('[chaos.cluster] the same on a Redis Cluster that loses a primary', async () => {
  const report = told(await runChaos({ ...CI, lengthMs: 9_000, clients: 10, topology: 'cluster', faults: ['redis-kill'] })); // prettier-ignore
  expect(report.calls['result']).toBeGreaterThan(20);
}, 300_000);

test('[chaos.pairs] the same with two things broken at once', async () => {
  const report = told(await runChaos({ ...CI, lengthMs: 20_000, clients: 20, topology: 'standalone', pairs: true })); // prettier-ignore
  expect(report.calls['result']).toBeGreaterThan(20);
}, 300_000);
