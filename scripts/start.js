// `npm start`: provisions, then hands over to scripts/demo/demo.ts on Node 24. Runs on Node 20 without
// node_modules. `-- --headless` approves by itself, `-- --headless --once` ends after the success.
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { ProvisionError, root, say } from './environment.js';
import { provision } from './provision.js';

try {
  const { environment } = provision('start');
  const demo = join(root, 'scripts', 'demo', 'demo.ts');
  const child = spawn('node', [demo, ...process.argv.slice(2)], {
    cwd: root,
    env: environment,
    stdio: 'inherit',
  });
  // Ctrl-C reaches the demo by itself, since it shares the terminal; it needs time to end its children.
  process.on('SIGINT', () => undefined);
  for (const signal of /** @type {const} */ (['SIGTERM', 'SIGHUP'])) {
    process.on(signal, () => child.kill(signal));
  }
  child.once('exit', (code) => {
    process.exitCode = code ?? 1;
  });
} catch (error) {
  if (!(error instanceof ProvisionError)) throw error;
  say(error.message);
  process.exitCode = 1;
}
