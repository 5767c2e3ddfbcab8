// `npm test`: everything, from a fresh clone. Provisions, builds, checks (format, lint, types,
// cycles, knip), runs the unit tests and then the suites in /test. With arguments, only the suites
// in /test, and only the files that match: `npm test -- e2e/main-job`.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdirSync, openSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { ProvisionError, root, say } from './environment.js';
import { provision } from './provision.js';

/** Once more on a three-primary Cluster and behind Sentinels: every kind of key and script. Any file can be run so. */
const ON_OTHER_REDIS = [
  ...['main-job', 'sessions', 'session-life', 'resume', 'streams', 'credential'],
  ...['connection-refresh', 'flow-outcomes', 'consent', 'limits', 'modern-rounds'],
  ...['bridge-modern-legacy.test', 'oauth-refresh', 'console'],
].map((name) => `e2e/${name}`);

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
// Five minutes of clients that come and go need few of the machine's cycles: they run beside the suites.
const soak = filters.length === 0 ? startSoak() : undefined;
say('suites in test/');
sound.push(
  vitest('suites', join(root, 'test'), soak ? ['--exclude', 'soak/soak.test.ts'] : filters),
);
if (soak) {
  for (const topology of ['cluster', 'sentinel']) {
    say(`some of them on Redis as a ${topology}`);
    const args = ['--maxWorkers', '2', ...ON_OTHER_REDIS];
    sound.push(vitest(topology, join(root, 'test'), args, { VIADUCT_TEST_REDIS: topology }));
  }
  sound.push(await soak);
}

const total = { passed: 0, failed: 0, skipped: 0 };
const reports = soak ? ['unit', 'suites', 'cluster', 'sentinel', 'soak'] : ['suites'];
for (const name of reports) {
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
 * @param {string[]} args
 * @param {NodeJS.ProcessEnv} more
 */
function vitest(name, cwd, args = [], more = {}) {
  return run('vitest', vitestArguments(name, args), cwd, more);
}

/**
 * @param {string} name
 * @param {string[]} args
 */
function vitestArguments(name, args) {
  const report = `--outputFile.json=${join(results, `${name}.json`)}`;
  return ['run', '--reporter=default', '--reporter=json', report, ...args];
}

/** @returns {Promise<boolean>} whether it was sound; what it printed is then on our output too */
async function startSoak() {
  const log = join(results, 'soak.log');
  const out = openSync(log, 'w');
  const child = spawn('vitest', vitestArguments('soak', ['soak/soak.test.ts']), {
    cwd: join(root, 'test'),
    env,
    stdio: ['ignore', out, out],
  });
  closeSync(out);
  const [code] = await once(child, 'exit');
  process.stdout.write(readFileSync(log, 'utf8'));
  return code === 0;
}

/**
 * @param {string} command
 * @param {string[]} args
 * @param {NodeJS.ProcessEnv} more
 */
function run(command, args, cwd = root, more = {}) {
  return spawnSync(command, args, { cwd, env: { ...env, ...more }, stdio: 'inherit' }).status === 0;
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
