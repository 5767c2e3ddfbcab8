// Processes of the demo: each logs to its own file, and is ended by its own pid on every way out.
import { spawn, type ChildProcess } from 'node:child_process';
import { createWriteStream, mkdirSync, readFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

export interface Process {
  readonly name: string;
  readonly pid: number;
  readonly log: string;
  /** Resolves when the process is gone, with its exit code or signal. */
  readonly ended: Promise<number | string>;
}

export interface StartOptions {
  readonly env?: NodeJS.ProcessEnv;
  readonly cwd?: string;
}

export interface Processes {
  start(name: string, command: string, args: readonly string[], o?: StartOptions): Process;
  /** SIGTERM to all, newest first so that nobody loses what it depends on; SIGKILL after a while. */
  end(): Promise<void>;
}

export function createProcesses(
  logFolder: string,
  onUnexpectedEnd: (p: Process) => void,
): Processes {
  mkdirSync(logFolder, { recursive: true });
  const running: { process: Process; child: ChildProcess }[] = [];
  let ending = false;

  // The last resort when this process dies before end() has run.
  process.once('exit', () => {
    for (const { child } of running) child.kill('SIGKILL');
  });

  return {
    start(name, command, args, { env, cwd } = {}) {
      const log = join(logFolder, `${name}.log`);
      const file = createWriteStream(log);
      const child = spawn(command, args, {
        env: env ?? process.env,
        cwd,
        stdio: ['ignore', 'pipe', 'pipe'],
        // A group of its own: Ctrl-C reaches this process only, and end() decides the order.
        detached: true,
      });
      child.stdout.pipe(file, { end: false });
      child.stderr.pipe(file, { end: false });
      const ended = new Promise<number | string>((resolve) => {
        child.once('error', (error) => {
          file.write(`${error.message}\n`);
          resolve(error.message);
        });
        child.once('exit', (code, signal) => resolve(code ?? signal ?? 'unknown'));
      });
      const entry = { process: { name, pid: child.pid ?? 0, log, ended }, child };
      running.push(entry);
      void ended.then(() => {
        file.end();
        running.splice(running.indexOf(entry), 1);
        if (!ending) onUnexpectedEnd(entry.process);
      });
      return entry.process;
    },

    async end() {
      ending = true;
      for (const { process: started, child } of running.toReversed()) {
        child.kill('SIGTERM');
        const done = await Promise.race([started.ended, sleep(8000, 'late', { ref: false })]);
        if (done === 'late') {
          child.kill('SIGKILL');
          await started.ended;
        }
      }
    },
  };
}

/** Waits until `check` holds; a process that ends before it does is the better explanation. */
export async function ready(
  started: Process,
  check: () => Promise<boolean>,
  timeoutMs = 20_000,
): Promise<void> {
  const deadline = Date.now() + timeoutMs;
  let over: number | string | undefined;
  void started.ended.then((code) => {
    over = code;
  });
  while (over === undefined && Date.now() < deadline) {
    if (await check()) return;
    await sleep(50);
  }
  const why = over === undefined ? `not ready after ${timeoutMs / 1000} s` : `ended (${over})`;
  const tail = readFileSync(started.log, 'utf8').trim().split('\n').slice(-5).join('\n  ');
  throw new Error(`${started.name} ${why}; its last lines:\n  ${tail}`);
}

export async function answersOk(url: string): Promise<boolean> {
  try {
    const response = await fetch(url, { signal: AbortSignal.timeout(1000) });
    await response.body?.cancel();
    return response.ok;
  } catch {
    return false; // nobody listens yet
  }
}

const taken = new Set<number>();

/** The wished port if it is free, else the next one in steps of ten. */
export async function freePort(wished: number): Promise<number> {
  for (let port = wished; port < wished + 500; port += 10) {
    if (taken.has(port) || !(await isFree(port))) continue;
    taken.add(port);
    return port;
  }
  throw new Error(`no free port from ${wished} on`);
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(false));
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
  });
}
