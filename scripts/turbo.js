// Runs turbo with its telemetry off: `node scripts/turbo.js TASK…`.
import { spawn } from 'node:child_process';
import { environment, root } from './environment.js';

const child = spawn(
  'turbo',
  ['run', ...process.argv.slice(2), '--concurrency=2', '--output-logs=errors-only'],
  { cwd: root, env: environment(), stdio: 'inherit' },
);
child.once('error', (error) => {
  console.error(`turbo did not start: ${error.message}`);
  process.exitCode = 1;
});
child.once('exit', (code) => {
  process.exitCode = code ?? 1;
});
