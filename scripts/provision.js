// Makes a fresh clone ready: npm packages (Node 24 among them), the build, and the commands that come
// from the system. Runs on Node 20 without node_modules, asks nothing where nobody can answer, and
// says in one line what it installs or what is missing.
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, readFileSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import { environment, machinePath, ProvisionError, root, say } from './environment.js';
import { provideCommands } from './system-commands.js';

const OLDEST_NODE = [22, 19];

/**
 * What each purpose needs from the system. Optional commands make it better, their absence is told.
 * @type {Record<'start' | 'test', { required: string[], optional: string[] }>}
 */
const NEEDS = {
  start: { required: ['redis-server'], optional: ['haproxy'] },
  test: {
    required: ['redis-server', 'haproxy', 'chromium', 'openssl'],
    optional: ['promtool', 'alertmanager', 'buildah'],
  },
};

/**
 * @param {'start' | 'test'} purpose
 * @returns {{ environment: NodeJS.ProcessEnv }} the environment for what runs next
 */
export function provision(purpose) {
  installPackages();
  checkNode();
  const commands = provideCommands(NEEDS[purpose]);
  build();
  return { environment: environment(commands) };
}

/** `npm ci`, unless node_modules holds what the lock file names. */
function installPackages() {
  if (packagesAreCurrent()) return;
  say('installing npm packages (npm ci)');
  // By the machine's own Node: `npm ci` removes the one in node_modules.
  run('npm', ['ci', '--no-audit', '--no-fund', '--loglevel=error'], {
    ...process.env,
    PATH: machinePath(),
  });
}

function packagesAreCurrent() {
  const installed = packagesOf(join(root, 'node_modules', '.package-lock.json'));
  const wanted = packagesOf(join(root, 'package-lock.json'));
  return Object.entries(wanted).every(([path, { version, optional, link }]) => {
    if (link || !path.includes('node_modules/')) return true;
    const found = installed[path];
    return found ? found.version === version : optional;
  });
}

/**
 * @param {string} lockFile
 * @returns {Record<string, { version?: string, optional?: boolean, link?: boolean }>}
 */
function packagesOf(lockFile) {
  return existsSync(lockFile) ? JSON.parse(readFileSync(lockFile, 'utf8')).packages : {};
}

function checkNode() {
  const version = execFileSync('node', ['--version'], { env: environment(), encoding: 'utf8' });
  const [major = 0, minor = 0] = version.slice(1).split('.').map(Number);
  const [oldestMajor = 0, oldestMinor = 0] = OLDEST_NODE;
  if (major > oldestMajor || (major === oldestMajor && minor >= oldestMinor)) return;
  throw new ProvisionError(
    `Node ${version.trim()} is too old and npm has no newer one for ${process.platform} ` +
      `${process.arch}: install Node 24 from nodejs.org`,
  );
}

function build() {
  say('building');
  // What turbo says matters only when it fails.
  run('npm', ['run', '--silent', 'build'], environment(), 'quiet');
}

/**
 * @param {string} command
 * @param {string[]} args
 * @param {NodeJS.ProcessEnv} env
 * @param {'quiet'} [quiet]
 */
function run(command, args, env, quiet) {
  const result = spawnSync(command, args, {
    cwd: root,
    env,
    encoding: 'utf8',
    maxBuffer: 64 * 1024 * 1024,
    // Progress and errors of npm are on stderr; the rest is talk.
    stdio: quiet ? ['ignore', 'pipe', 'pipe'] : ['ignore', 'ignore', 'inherit'],
  });
  if (result.status === 0) return;
  if (quiet) console.error(`${result.stdout}${result.stderr}`.trimEnd());
  throw new ProvisionError(
    `${command} ${args.join(' ')} failed${result.error ? `: ${result.error.message}` : ''}`,
  );
}

const called = process.argv[1];
if (called && realpathSync(called) === import.meta.filename) {
  try {
    provision(process.argv[2] === 'start' ? 'start' : 'test');
    say('ready');
  } catch (error) {
    if (!(error instanceof ProvisionError)) throw error;
    say(error.message);
    process.exitCode = 1;
  }
}
