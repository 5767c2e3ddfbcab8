import { parseArgs } from 'node:util';
import { runSoak, tableOf } from './run.ts';

// npm run soak -w @viaduct/test -- --minutes 60 [--clients 24]

const { values } = parseArgs({
  options: {
    minutes: { type: 'string', default: '60' },
    clients: { type: 'string', default: '24' },
  },
});
const say = (line: string): void => void process.stdout.write(`${line}\n`);
const lengthMs = Number(values.minutes) * 60_000;
const report = await runSoak({
  lengthMs,
  clients: Number(values.clients),
  everyMs: Math.max(5_000, lengthMs / 120),
  say,
});
say(`\n${tableOf(report)}\n`);
say(`${report.calls} tool calls; keys ${JSON.stringify(report.kinds)}`);
for (const { rule, client, detail } of report.findings) say(`FOUND ${rule} (${client}): ${detail}`);
for (const key of report.immortal) say(`NO TTL ${key}`);
const sound =
  report.verdicts.every(({ flat }) => flat) &&
  report.findings.length === 0 &&
  report.immortal.length === 0;
process.exit(sound ? 0 : 1);
