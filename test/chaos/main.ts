import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { TOPOLOGIES, type Topology } from '../support/topologies.ts';
import { runChaos, tableOf } from './run.ts';
import { FAULTS, type Fault } from './schedule.ts';

// npm run chaos -w @viaduct/test -- --seed 1 --minutes 10 --redis standalone|sentinel|cluster [--clients 200]
//   [--faults pod-kill,redis-freeze] [--pairs] [--out folder]

const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: String(Date.now() % 1_000_000) },
    minutes: { type: 'string', default: '5' },
    redis: { type: 'string', default: 'standalone' },
    clients: { type: 'string', default: '200' },
    faults: { type: 'string' },
    pairs: { type: 'boolean', default: false },
    out: { type: 'string' },
  },
});
const topology = TOPOLOGIES.find((one) => one === values.redis);
const faults = (values.faults?.split(',') ?? [...FAULTS]).filter((one): one is Fault =>
  (FAULTS as readonly string[]).includes(one),
);
if (topology === undefined || faults.length === 0) {
  throw new Error(`--redis is one of ${TOPOLOGIES.join(', ')}; --faults of ${FAULTS.join(', ')}`);
}
const say = (line: string): void => void process.stdout.write(`${line}\n`);

const report = await runChaos({
  seed: Number(values.seed),
  lengthMs: Number(values.minutes) * 60_000,
  clients: Number(values.clients),
  topology: topology satisfies Topology,
  faults,
  pairs: values.pairs,
  say,
  ...(values.out !== undefined && { folder: values.out }),
});
const { findings, unexpected, faults: inflicted, ...figures } = report;
say(`\n${tableOf(report)}\n`);
say(JSON.stringify(figures, null, 2));
for (const { rule, client, detail } of findings) say(`FOUND ${rule} (${client}): ${detail}`);
for (const line of unexpected) say(`UNEXPECTED ${line}`);
if (values.out !== undefined) writeFileSync(join(values.out, 'report.json'), JSON.stringify(report, null, 2)); // prettier-ignore
const sound = findings.length === 0 && unexpected.length === 0;
say(sound ? `nothing lost in ${inflicted.length} faults` : `seed ${report.seed}: ${findings.length + unexpected.length} findings`); // prettier-ignore
process.exit(sound ? 0 : 1);
