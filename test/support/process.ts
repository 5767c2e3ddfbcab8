import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';

// Everything that a test starts ends with the test's own process, whichever way that ends: by pid on a normal
// exit, and, where util-linux has setpriv, by the kernel when that process is killed itself.
const running = new Set<Child>();
const folders = new Set<string>();
const setpriv =
  process.platform === 'linux' && spawnSync('setpriv', ['--version']).status === 0
    ? ['setpriv', '--pdeathsig', 'KILL', '--']
    : [];

process.on('exit', () => {
  for (const child of running) child.signal('SIGKILL');
  for (const folder of folders) rmSync(folder, { recursive: true, force: true });
});

export function temporaryFolder(): string {
  const folder = mkdtempSync(join(process.env['VIADUCT_TEST_FOLDER'] ?? tmpdir(), 'viaduct-test-'));
  folders.add(folder);
  return folder;
}

/** Where a program is, or an error that says how to get it. */
export function program(name: string, debianPackage: string, others: string[] = []): string {
  const path = `${process.env['PATH'] ?? ''}:/usr/local/sbin:/usr/sbin:/sbin`;
  for (const candidate of [name, ...others]) {
    const found = spawnSync('sh', ['-c', `command -v ${candidate}`], {
      env: { ...process.env, PATH: path },
      encoding: 'utf8',
    });
    if (found.status === 0) return found.stdout.trim();
  }
  throw new Error(`${name} is missing: apt-get install ${debianPackage} (npm run provision does)`);
}

export class Child {
  readonly name: string;
  stdout = '';
  stderr = '';
  code: number | NodeJS.Signals | undefined;
  readonly ended: Promise<number | NodeJS.Signals>;
  readonly #process: ChildProcess;

  constructor(
    name: string,
    command: string,
    args: string[],
    { env = {}, cwd }: { env?: Record<string, string | undefined>; cwd?: string } = {},
  ) {
    this.name = name;
    const [first = command, ...rest] = [...setpriv, command, ...args];
    this.#process = spawn(first, rest, {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, ...env },
      ...(cwd !== undefined && { cwd }),
    });
    running.add(this);
    this.#process.stdout?.setEncoding('utf8').on('data', (text: string) => (this.stdout += text));
    this.#process.stderr?.setEncoding('utf8').on('data', (text: string) => (this.stderr += text));
    this.ended = new Promise((resolve) => {
      const end = (code: number | NodeJS.Signals): void => {
        this.code = code;
        running.delete(this);
        resolve(code);
      };
      this.#process.once('error', (error) => {
        this.stderr += error.message;
        end(-1);
      });
      this.#process.once('close', (code, signal) => end(code ?? signal ?? -1));
    });
  }

  /** Of the program itself: setpriv replaces itself with it. */
  get pid(): number {
    return this.#process.pid!;
  }

  get running(): boolean {
    return this.code === undefined;
  }

  get output(): string {
    return this.stdout + this.stderr;
  }

  signal(signal: NodeJS.Signals): void {
    if (this.running) this.#process.kill(signal);
  }

  freeze(): void {
    this.signal('SIGSTOP');
  }

  thaw(): void {
    this.signal('SIGCONT');
  }

  async kill(): Promise<void> {
    this.signal('SIGKILL');
    await this.ended;
  }

  /** SIGTERM; the exit code, or an error when it is still there after `withinMs`. */
  async terminate(withinMs = 20_000): Promise<number | NodeJS.Signals> {
    this.signal('SIGTERM');
    const code = await Promise.race([this.ended, pause(withinMs, undefined)]);
    if (code === undefined) throw new Error(`${this.name} did not end in ${withinMs} ms`);
    return code;
  }
}
