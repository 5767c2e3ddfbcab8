/**
 * Writes what is generated for monitoring: docs/metrics.md, Grafana's dashboards, and the rules, both as a plain
 * rule file and as a PrometheusRule. With `--check` it writes nothing and exits 1 when something is stale;
 * `--runbooks URL` is where your people read docs/runbooks.
 */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parseArgs } from 'node:util';
import { stringify } from 'yaml';
import { createMetrics } from '@viaduct/shared/metrics';
import { ruleGroups } from './alerts.ts';
import { dashboardJson, dashboards } from './dashboards.ts';
import { metricsPage } from './metrics-page.ts';

const root = join(import.meta.dirname, '../..');
const folder = 'deploy/k8s/components/monitoring';
const HEAD = '# Written by `npm run monitoring` from scripts/monitoring/alerts.ts.\n';
const { check, runbooks } = parseArgs({
  options: {
    check: { type: 'boolean', default: false },
    runbooks: { type: 'string', default: 'https://viaduct.example.com/docs/runbooks' },
  },
}).values;
const rules = ruleGroups(runbooks.replace(/\/$/, ''));
const yaml = (value: unknown): string => HEAD + stringify(value, { lineWidth: 0 });

const files = new Map<string, string>([
  ['docs/metrics.md', metricsPage(createMetrics().describe())],
  [`${folder}/rules.yaml`, yaml({ groups: rules })],
  [
    `${folder}/prometheus-rule.yaml`,
    yaml({
      apiVersion: 'monitoring.coreos.com/v1',
      kind: 'PrometheusRule',
      metadata: { name: 'viaduct' },
      spec: { groups: rules },
    }),
  ],
  ...dashboards.map((dashboard): [string, string] => [
    `${folder}/dashboards/${dashboard.file}.json`,
    `${JSON.stringify(dashboardJson(dashboard), null, 2)}\n`,
  ]),
]);

for (const [name, text] of files) {
  const path = join(root, name);
  if (check) {
    if (readFileSync(path, 'utf8') === text) continue;
    console.error(`${name} is stale: npm run monitoring`);
    process.exitCode = 1;
  } else {
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, text);
  }
}
