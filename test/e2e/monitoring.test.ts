import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { createMetrics } from '@viaduct/shared/metrics';
import { hasCommand } from '../support/manifests.ts';
import { startWorld } from '../support/world.ts';

// Metrics' page, dashboards and alerts (issue 7, items 2 and 3): generated, current, and about what there is.

const root = join(import.meta.dirname, '../..');
const folder = join(root, 'deploy/k8s/components/monitoring');
const promtool = hasCommand('promtool', '--version');

interface Rule {
  alert?: string;
  record?: string;
  expr: string;
  annotations?: { runbook_url: string };
}
const rules = (
  parse(readFileSync(join(folder, 'rules.yaml'), 'utf8')) as { groups: { rules: Rule[] }[] }
).groups.flatMap((group) => group.rules);

interface Panel {
  title: string;
  targets?: { expr: string }[];
}
const panels = readdirSync(join(folder, 'dashboards')).flatMap((file) => {
  const { panels } = JSON.parse(readFileSync(join(folder, 'dashboards', file), 'utf8')) as {
    panels: Panel[];
  };
  return panels.flatMap(({ title, targets = [] }) =>
    targets.map(({ expr }) => ({ where: `${file}: ${title}`, expr })),
  );
});

/** `viaduct_…` and the few of Node's that are used, each as it stands in a query. */
const NAMES = /\b(?:viaduct|process|nodejs)_[a-z0-9_]+|\bviaduct:[a-z0-9_:]+/g;

test('[monitoring.generated] what is written from the code is what the code says', () => {
  const { status, stderr } = spawnSync('npm', ['run', '-s', 'monitoring', '--', '--check'], {
    cwd: root,
    encoding: 'utf8',
  });
  expect(stderr).not.toContain('stale');
  expect(status).toBe(0);
});

describe('queries', async () => {
  const world = await startWorld({ pods: 1, workers: 1 });
  afterAll(() => world.stop());

  test('[monitoring.queries] dashboards and alerts ask only for metrics and labels that there are', async () => {
    const [pod] = world.stack.pods;
    const text = `${await pod!.metrics()}${await world.stack.workers[0]!.metrics()}`;
    const exported = new Set(
      [...text.matchAll(/^# TYPE (\S+) (\S+)$/gm)].flatMap(([, name, type]) =>
        type === 'histogram' ? [`${name}_bucket`, `${name}_sum`, `${name}_count`] : [name!],
      ),
    );
    const recorded = new Set(rules.flatMap(({ record }) => record ?? []));
    const labels = new Map(
      createMetrics()
        .describe()
        .flatMap(({ name, labels }) =>
          ['', '_bucket', '_count', '_sum'].map((end) => [name + end, labels] as const),
        ),
    );
    const queries = [
      ...panels,
      ...rules.map(({ alert, record, expr }) => ({ where: alert ?? record!, expr })),
    ];
    expect(queries.length).toBeGreaterThan(50);
    for (const { where, expr } of queries) {
      for (const [name] of expr.matchAll(NAMES)) {
        expect(exported.has(name) || recorded.has(name), `${where}: ${name}`).toBe(true);
      }
      for (const [, name, matchers] of expr.matchAll(/\b(viaduct_[a-z0-9_]+)\{([^}]*)\}/g)) {
        for (const [, label] of matchers!.matchAll(/([a-z]+)[=!]/g)) {
          if (label !== 'le') expect(labels.get(name!), `${where}: ${name}`).toContain(label);
        }
      }
    }
  });
});

test('[monitoring.runbooks] every alert has a runbook that says what to look at and what to do', () => {
  for (const { alert, annotations } of rules) {
    if (alert === undefined) continue;
    const file = join(root, 'docs/runbooks', `${alert}.md`);
    expect(annotations?.runbook_url).toContain(`docs/runbooks/${alert}.md`);
    expect(existsSync(file), file).toBe(true);
    const text = readFileSync(file, 'utf8');
    for (const heading of ['## What people notice', '## Look', '## Do']) {
      expect(text, alert).toContain(heading);
    }
  }
});

interface RuleTest {
  alert_rule_test?: { alertname: string; exp_alerts: unknown[] }[];
}

test('[monitoring.rules] each alert is tested where it has to fire and where it must not', () => {
  const { tests } = parse(readFileSync(join(folder, 'rules.test.yaml'), 'utf8')) as {
    tests: RuleTest[];
  };
  const cases = tests.flatMap(({ alert_rule_test = [] }) => alert_rule_test);
  const names = (fires: boolean): string[] => [
    ...new Set(
      cases
        .filter(({ exp_alerts }) => exp_alerts.length > 0 === fires)
        .map(({ alertname }) => alertname),
    ),
  ];
  const all = rules.flatMap(({ alert }) => alert ?? []);
  expect(all).toHaveLength(15);
  expect(names(true).sort()).toEqual([...all].sort());
  expect(names(false).sort()).toEqual([...all].sort());
});

describe.skipIf(!promtool)('promtool', () => {
  test.each([
    ['check', 'rules', 'rules.yaml'],
    ['test', 'rules', 'rules.test.yaml'],
  ])('[monitoring.rules] promtool %s %s %s', (...args) => {
    const { status, stdout, stderr } = spawnSync('promtool', args, {
      cwd: folder,
      encoding: 'utf8',
    });
    expect(`${stdout}${stderr}`.trim(), 'its complaints').not.toMatch(/FAILED/);
    expect(status).toBe(0);
  });
});
