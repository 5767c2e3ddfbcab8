// Commands that npm cannot bring: found on the machine, or installed by apt-get or brew where that
// needs no answer from a person. Runs on Node 20 without node_modules.
import { spawnSync } from 'node:child_process';
import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';
import { machinePath, ProvisionError, say } from './environment.js';

/**
 * @typedef {object} Known
 * @property {string[]} names what the command may be called, best first
 * @property {string[]} [apt] Debian's packages
 * @property {string[]} [brew] Homebrew's arguments
 * @property {string} purpose
 */

/** @type {Record<string, Known>} */
const KNOWN = {
  'redis-server': {
    names: ['redis-server', 'valkey-server'],
    apt: ['redis-server'],
    brew: ['redis'],
    purpose: 'sessions and events live in Redis',
  },
  haproxy: {
    names: ['haproxy'],
    apt: ['haproxy'],
    brew: ['haproxy'],
    purpose: 'the load balancer in front of the pods',
  },
  chromium: {
    names: [
      'chromium',
      'chromium-browser',
      'google-chrome',
      '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome',
      '/Applications/Chromium.app/Contents/MacOS/Chromium',
    ],
    apt: ['chromium', 'fonts-liberation'],
    brew: ['--cask', 'chromium'],
    purpose: 'the browser tests',
  },
  promtool: {
    names: ['promtool'],
    apt: ['prometheus'],
    brew: ['prometheus'],
    purpose: 'the tests of the alerts',
  },
  alertmanager: {
    // Debian's name for it is the second.
    names: ['alertmanager', 'prometheus-alertmanager'],
    apt: ['prometheus-alertmanager'],
    brew: ['alertmanager'],
    purpose: 'the tests of the way from an alert to a person',
  },
  buildah: {
    names: ['buildah'],
    apt: ['buildah'],
    purpose: 'the test that builds the images',
  },
  openssl: {
    names: ['openssl'],
    apt: ['openssl'],
    brew: ['openssl'],
    purpose: 'test certificates',
  },
};

/**
 * Finds or installs the commands, and returns the environment variables that tell where they are:
 * VIADUCT_REDIS_SERVER, VIADUCT_HAPROXY, VIADUCT_CHROMIUM, VIADUCT_OPENSSL. Without redis-server,
 * REDIS_URL (as given) or VIADUCT_DOCKER (an engine that answers) may stand in.
 * @param {{ required: string[], optional: string[] }} needs
 * @returns {Record<string, string>}
 */
export function provideCommands({ required, optional }) {
  const wanted = [...required, ...optional];
  const missing = wanted.filter((name) => !find(name));
  if (missing.length > 0) install(missing);

  /** @type {Record<string, string>} */
  const where = {};
  const faults = [];
  for (const name of wanted) {
    const path = find(name);
    if (path) {
      where[`VIADUCT_${name.replace('-', '_').toUpperCase()}`] = path;
    } else if (name === 'redis-server' && process.env['REDIS_URL']) {
      say('no redis-server: using REDIS_URL');
    } else if (name === 'redis-server' && dockerAnswers()) {
      say('no redis-server: using Docker');
      where['VIADUCT_DOCKER'] = 'docker';
    } else {
      const line = `${name} is missing (${KNOWN[name]?.purpose}): ${howToGet(name)}`;
      if (required.includes(name)) faults.push(line);
      else say(line);
    }
  }
  if (faults.length > 0) throw new ProvisionError(faults.join('\nviaduct: '));
  return where;
}

/** @param {string} name */
function find(name) {
  const folders = machinePath().split(delimiter);
  for (const candidate of KNOWN[name]?.names ?? [name]) {
    if (candidate.startsWith('/')) {
      if (executable(candidate)) return candidate;
      continue;
    }
    const folder = folders.find((f) => f && executable(join(f, candidate)));
    if (folder) return join(folder, candidate);
  }
  return undefined;
}

/** @param {string} path */
function executable(path) {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false; // not there, or not ours to run: the same to us
  }
}

/** @param {string[]} names */
function install(names) {
  const apt = aptGet();
  if (apt) {
    /** @param {string[]} some */
    const packagesOf = (some) => some.flatMap((name) => KNOWN[name]?.apt ?? []);
    const options = ['--yes', '--no-install-recommends', '-o', 'DPkg::Lock::Timeout=300'];
    /** @param {string[]} some */
    const lineFor = (some) => [...apt, 'install', ...options, ...packagesOf(some)];
    say(`installing ${names.join(', ')} (${[...apt, 'install', ...packagesOf(names)].join(' ')})`);
    if (quietly(lineFor(names))) return;
    // A fresh image has no package lists, an old one has outdated ones.
    quietly([...apt, 'update']);
    if (quietly(lineFor(names))) return;
    // One that this release does not have keeps none of the others out.
    for (const name of names) quietly(lineFor([name]), 'tell');
  } else if (locate('brew')) {
    for (const name of names) {
      const args = ['install', ...(KNOWN[name]?.brew ?? [name])];
      say(`installing ${name} (brew ${args.join(' ')})`);
      quietly(['brew', ...args], 'tell');
    }
  }
}

/** How to call apt-get as root, or undefined where that would need what we don't have. */
function aptGet() {
  if (!locate('apt-get')) return undefined;
  if (process.getuid?.() === 0) return ['apt-get'];
  if (!locate('sudo')) return undefined;
  if (spawnSync('sudo', ['-n', 'true'], { stdio: 'ignore' }).status === 0) {
    return ['sudo', '-n', 'apt-get'];
  }
  const personThere = process.stdin.isTTY && process.stdout.isTTY && !process.env['CI'];
  return personThere ? ['sudo', 'apt-get'] : undefined;
}

/**
 * @param {string[]} line
 * @param {'tell'} [tell] print the output when it fails
 */
function quietly([command = '', ...args], tell) {
  const result = spawnSync(command, args, {
    encoding: 'utf8',
    env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive', HOMEBREW_NO_AUTO_UPDATE: '1' },
    // sudo asks for its password on the terminal, not on these.
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  if (result.status === 0) return true;
  if (tell) {
    const output = `${result.stdout}${result.stderr}`.trim().split('\n').slice(-5).join('\n  ');
    say(`${command} ${args[0] ?? ''} failed:\n  ${output}`);
  }
  return false;
}

/** @param {string} command */
function locate(command) {
  return machinePath()
    .split(delimiter)
    .some((folder) => folder && executable(join(folder, command)));
}

function dockerAnswers() {
  return (
    locate('docker') &&
    spawnSync('docker', ['info'], { stdio: 'ignore', timeout: 10_000 }).status === 0
  );
}

/** @param {string} name */
function howToGet(name) {
  const known = KNOWN[name];
  const ways = [
    process.platform === 'darwin'
      ? `brew install ${(known?.brew ?? [name]).join(' ')}`
      : `as root, apt-get install ${(known?.apt ?? [name]).join(' ')}`,
  ];
  if (name === 'redis-server') ways.push('start Docker', 'set REDIS_URL');
  return ways.join(', or ');
}
