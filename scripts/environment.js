// Where the project lies, the environment that its commands run in, and how the scripts speak. Runs on
// Node 20 without node_modules.
import { delimiter, join, resolve } from 'node:path';

export const root = resolve(import.meta.dirname, '..');
const bin = join(root, 'node_modules', '.bin');
// Debian keeps daemons where an ordinary user's PATH doesn't look.
const DAEMON_FOLDERS = ['/usr/local/sbin', '/usr/sbin', '/sbin', '/opt/homebrew/bin'];

/**
 * The caller's environment with the project's own commands first on PATH: among them Node 24, which
 * comes as an npm package, since the machine's own Node may be older.
 * @param {NodeJS.ProcessEnv} extra
 * @returns {NodeJS.ProcessEnv}
 */
export function environment(extra = {}) {
  return {
    ...process.env,
    PATH: [bin, machinePath()].join(delimiter),
    TURBO_TELEMETRY_DISABLED: '1',
    TURBO_NO_UPDATE_NOTIFIER: '1',
    ...extra,
  };
}

/** PATH as the machine has it, without the folders that npm puts in front for its scripts. */
export function machinePath() {
  const own = (process.env['PATH'] ?? '')
    .split(delimiter)
    .filter((folder) => !/[\\/]node_modules[\\/]\.bin$|[\\/]node-gyp-bin$/.test(folder));
  return [...new Set([...own, ...DAEMON_FOLDERS])].join(delimiter);
}

/** @param {string} line */
export const say = (line) => console.log(`viaduct: ${line}`);

/** A fault that the person has to mend; its message says how. Shown without a stack trace. */
export class ProvisionError extends Error {}
