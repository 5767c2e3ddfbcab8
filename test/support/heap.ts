import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import type { Child } from './process.ts';
import { until } from './until.ts';

/** Start the product with this, and `heapAfterCollection` and `keepBusy` reach into its processes. */
export const INSPECTED = { NODE_OPTIONS: '--inspect=127.0.0.1:0' };

type Ask = (method: string, params?: object) => Promise<Record<string, unknown>>;

async function inspect<T>(child: Child, work: (ask: Ask) => Promise<T>): Promise<T> {
  const url = await until(
    'the inspector listens',
    () => /Debugger listening on (ws:\S+)/.exec(child.stderr)?.[1],
  );
  const socket = new WebSocket(url);
  const answers = new Map<number, (result: Record<string, unknown>) => void>();
  socket.onmessage = ({ data }) => {
    const { id, result } = JSON.parse(String(data)) as {
      id: number;
      result: Record<string, unknown>;
    };
    answers.get(id)?.(result);
  };
  await new Promise((resolve, reject) => {
    socket.onopen = resolve;
    socket.onerror = reject;
  });
  let last = 0;
  try {
    return await work((method, params = {}) => {
      const id = ++last;
      return new Promise((resolve) => {
        answers.set(id, resolve);
        socket.send(JSON.stringify({ id, method, params }));
      });
    });
  } finally {
    socket.close();
  }
}

/** Bytes of live objects: what is left after a full collection. */
export const heapAfterCollection = (child: Child): Promise<number> =>
  inspect(child, async (ask) => {
    await ask('HeapProfiler.collectGarbage');
    const { usedSize } = await ask('Runtime.getHeapUsage');
    return Number(usedSize);
  });

/** Keeps a process's event loop busy, `ms` at a time. Resolves to what ends that. */
export async function keepBusy(child: Child, ms: number): Promise<() => Promise<void>> {
  const run = (expression: string) =>
    inspect(child, async (ask) => {
      await ask('Runtime.evaluate', { expression });
    });
  await run(
    `globalThis.busy = setInterval(() => { const end = performance.now() + ${ms}; while (performance.now() < end); }, 0)`,
  );
  return () => run('clearInterval(globalThis.busy)');
}

/** Open sockets of a process, as the kernel counts them. */
export function socketsOf(pid: number): number {
  return readdirSync(`/proc/${pid}/fd`).filter((fd) => {
    try {
      return readlinkSync(`/proc/${pid}/fd/${fd}`).startsWith('socket:');
    } catch {
      return false; // closed meanwhile
    }
  }).length;
}

export const residentBytes = (pid: number): number =>
  Number(/^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) * 1024;
