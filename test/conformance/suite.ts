import { readdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { Child, temporaryFolder } from '../support/process.ts';

export interface Check {
  readonly id: string;
  readonly status: string;
  readonly description: string;
  readonly errorMessage?: string;
}

export interface Scenario {
  readonly name: string;
  readonly checks: readonly Check[];
}

export interface Run {
  readonly scenarios: readonly Scenario[];
  readonly output: string;
  passed(name?: string): number;
  /** Failed checks, each with its scenario and what was wrong. */
  readonly failures: readonly string[];
}

export const program = join(
  dirname(createRequire(import.meta.url).resolve('@modelcontextprotocol/conformance/package.json')),
  'dist/index.js',
);

/** The official suite, as its own program, against one URL. */
export async function runSuite(url: string, version: string, only?: string): Promise<Run> {
  const folder = temporaryFolder();
  const what = only === undefined ? ['--suite', 'all'] : ['--scenario', only];
  const child = new Child('conformance', process.execPath, [
    ...[program, 'server', '--url', url, ...what, '--spec-version', version],
    ...['--output-dir', folder],
  ]);
  await child.ended;
  const scenarios = readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('checks.json'))
    .sort()
    .map((file) => ({
      name: dirname(file)
        .replace(/^server-/, '')
        .replace(/-\d{4}-\d\d-\d\dT.*$/, ''),
      checks: JSON.parse(readFileSync(join(folder, file), 'utf8')) as Check[],
    }));
  const all = scenarios.flatMap(({ name, checks }) => checks.map((check) => ({ name, ...check })));
  return {
    scenarios,
    output: child.output,
    passed: (name) =>
      all.filter((check) => check.status === 'SUCCESS' && (name ?? check.name) === check.name)
        .length,
    failures: all
      .filter(({ status }) => status === 'FAILURE')
      .map(({ name, id, errorMessage }) => `${name}: ${id}: ${errorMessage ?? ''}`),
  };
}
