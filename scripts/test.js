// `npm test`: everything, from a fresh clone. Provisions, builds, checks (format, lint, types,
// cycles, knip), runs the unit tests and then the suites in /test. With arguments, only the suites
// in /test, and only the files that match: `npm test -- e2e/main-job`.
import { spawnSync } from 'node:child_process';
import { mkdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { ProvisionError, root, say } from './environment.js';
import { provision } from './provision.js';

const results = join(root, 'test', 'results');
const filters = process.argv.slice(2);

/** @type {NodeJS.ProcessEnv} */
let env;
try {
  env = provision('test').environment;
} catch (error) {
  if (!(error instanceof ProvisionError)) throw error;
  say(error.message);
  process.exit(1);
}

rmSync(results, { recursive: true, force: true });
mkdirSync(results, { recursive: true });

const sound = [];
if (filters.length === 0) {
  say('checking format, lint, types, cycles, unused code');
  sound.push(run('npm', ['run', '--silent', 'check:static']));
  say('unit tests');
  sound.push(vitest('unit', root));
}
say('suites in test/');
sound.push(vitest('suites', join(root, 'test')));

const total = { passed: 0, failed: 0, skipped: 0 };
for (const name of filters.length === 0 ? ['unit', 'suites'] : ['suites']) {
  const figures = read(name);
  if (!figures) {
    sound.push(false);
    say(`${name}: the runner left no report`);
    continue;
  }
  total.passed += figures.passed;
  total.failed += figures.failed;
  total.skipped += figures.skipped;
}
if (total.passed + total.failed === 0) {
  sound.push(false);
  say('no test was run');
}
if (!sound[0] && filters.length === 0) say('the static checks failed: npm run check');

const good = sound.every(Boolean) && total.failed === 0;
const skipped = total.skipped > 0 ? `, ${total.skipped} skipped` : '';
console.log(`\n${total.passed} passed, ${total.failed} failed${skipped}`);
process.exitCode = good ? 0 : 1;

/**
 * @param {string} name
 * @param {string} cwd
 */
function vitest(name, cwd) {
  const report = `--outputFile.json=${join(results, `${name}.json`)}`;
  return run(
    'vitest',
    ['run', '--reporter=default', '--reporter=json', report, ...(cwd === root ? [] : filters)],
    cwd,
  );
}

/**
 * @param {string} command
 * @param {string[]} args
 */
function run(command, args, cwd = root) {
  return spawnSync(command, args, { cwd, env, stdio: 'inherit' }).status === 0;
}

/**
 * The figures of one runner. A file that fails before its first test counts as one failed test, or
 * it would not be seen in the sum.
 * @param {string} name
 */
function read(name) {
  /** @type {{ status: string, assertionResults: { status: string }[] }[]} */
  let files;
  try {
    files = JSON.parse(readFileSync(join(results, `${name}.json`), 'utf8')).testResults;
  } catch {
    return undefined; // the runner died before its report: the caller says so
  }
  const tests = files.flatMap((file) => file.assertionResults.map((test) => test.status));
  const failed = tests.filter((status) => status === 'failed').length;
  const passed = tests.filter((status) => status === 'passed').length;
  const stillborn = files.filter(
    (file) =>
      file.status === 'failed' && !file.assertionResults.some((test) => test.status === 'failed'),
  ).length;
  return { passed, failed: failed + stillborn, skipped: tests.length - passed - failed };
}
