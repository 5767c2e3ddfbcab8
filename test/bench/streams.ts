/**
 * What listening costs: many sessions with an open stream each on one pod (memory, CPU and Redis commands while nothing
 * happens), and what happens when that pod is killed and all clients come back at another at once.
 *
 * Clients are bare sockets: a client object each would be most of what is measured. The upstream opens no listening
 * streams of its own (405), so this is the gateway's own share. Loopback, bounded by --streams and by the limit of open
 * files, which it says when it is too low.
 *
 *   npm run bench:streams -w @viaduct/test [-- --streams 10000 --seconds 15]
 */
import net from 'node:net';
import { setTimeout as pause } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { heapAfterCollection, INSPECTED, residentBytes } from '../support/heap.ts';
import { McpClient } from '../support/mcp-client.ts';
import { cpuOf, quantile } from './drive.ts';
import { difference, keep, redisCounts, startSetting } from './setting.ts';

const { values } = parseArgs({
  options: {
    streams: { type: 'string', default: '10000' },
    seconds: { type: 'string', default: '15' },
  },
});
const wanted = Number(values.streams);
const seconds = Number(values.seconds);
const AT_ONCE = 40;
const USERS = 100;

const setting = await startSetting({ pods: 2, env: INSPECTED });
const { stack } = setting;
const [first, second] = stack.pods as [(typeof stack.pods)[0], (typeof stack.pods)[0]];
const host = new URL(stack.publicUrl).host;
const tokens = Array.from({ length: USERS }, (_, i) => setting.token(`user-${i}`));

interface Listener {
  readonly client: McpClient;
  socket: net.Socket | undefined;
}

/** One GET on a socket of its own; resolves with the milliseconds until the stream's head is there. */
function listen(listener: Listener, port: number): Promise<number> {
  const began = performance.now();
  return new Promise((resolve, reject) => {
    const socket = net.connect(port, '127.0.0.1');
    listener.socket = socket;
    socket.setEncoding('latin1');
    socket.once('data', (head: string) => {
      if (!head.startsWith('HTTP/1.1 200') || !head.includes('text/event-stream')) {
        reject(new Error(`no stream: ${head.slice(0, 200)}`));
        return;
      }
      socket.on('data', () => undefined);
      resolve(performance.now() - began);
    });
    socket.once('error', reject);
    socket.once('close', () => {
      reject(new Error('the stream was closed'));
    });
    const headers = Object.entries(listener.client.headers())
      .filter(([name, value]) => name !== 'Content-Type' && value !== undefined)
      .map(([name, value]) => `${name}: ${String(value)}\r\n`)
      .join('');
    socket.write(`GET /mcp/legacy HTTP/1.1\r\nHost: ${host}\r\n${headers}\r\n`);
  });
}

async function each<T>(all: readonly T[], act: (one: T) => Promise<void>): Promise<void> {
  let next = 0;
  const loop = async (): Promise<void> => {
    while (next < all.length) await act(all[next++]!);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, loop));
}

const listeners = Array.from({ length: wanted }, (_, i): Listener => ({
  client: new McpClient({
    url: `${stack.publicUrl}/mcp/legacy`,
    ports: stack.ports,
    token: tokens[i % USERS],
  }),
  socket: undefined,
}));

const KB = 1024;
const memory = async () => ({
  heap: await heapAfterCollection(first.child),
  resident: residentBytes(first.child.pid),
});

try {
  await each(listeners, async ({ client }) => {
    await client.initialize({ pod: 0 });
  });
  const before = await memory();
  const opened: number[] = [];
  await each(listeners, async (listener) => {
    opened.push(await listen(listener, first.port));
  });
  const open = await stack.metric('viaduct_streams_open');
  if (open !== wanted) throw new Error(`${open} of ${wanted} streams are open`);
  const held = await memory();

  const cpu = cpuOf([first.child.pid]);
  const counts = await redisCounts(stack);
  const began = performance.now();
  await pause(seconds * 1000); // what is measured is a length of time
  const took = (performance.now() - began) / 1000;
  const redisPerSecond = difference(counts, await redisCounts(stack), took);
  const after = cpuOf([first.child.pid]);

  // The pod is gone without a word; everybody comes back at the other one at once.
  first.child.signal('SIGKILL');
  await first.child.ended;
  const killed = performance.now();
  let failed = 0;
  const back: number[] = [];
  await each(listeners, async (listener) => {
    listener.socket?.destroy();
    try {
      await listen(listener, second.port);
      back.push(performance.now() - killed);
    } catch {
      failed++;
    }
  });
  const report = {
    streams: wanted,
    'KB of heap per stream': Number(((held.heap - before.heap) / wanted / KB).toFixed(1)),
    'KB resident per stream': Number(((held.resident - before.resident) / wanted / KB).toFixed(1)),
    'resident, MB': Math.round(held.resident / KB / KB),
    'opening, p50 ms': Math.round(quantile(opened, 0.5)),
    'CPU while idle': `${((100 * (after.user + after.system - cpu.user - cpu.system)) / took).toFixed(1)} %`,
    'reconnected after a kill': back.length,
    'failed to reconnect': failed,
    'reconnect p50, s': Number((quantile(back, 0.5) / 1000).toFixed(2)),
    'reconnect last, s': Number((quantile(back, 1) / 1000).toFixed(2)),
  };
  console.table(report);
  console.log(
    'Redis per second while idle, heartbeats and health checks included:',
    redisPerSecond,
  );
  keep('streams', { ...report, redisPerSecond });
  for (const { socket } of listeners) socket?.destroy();
  await each(listeners, async ({ client }) => {
    await client.end({ pod: 1 });
  });
  const left = await setting.sessionsLeft();
  if (left !== 0) throw new Error(`${left} upstream sessions were not ended`);
} finally {
  await setting.stop();
}
process.exit();
