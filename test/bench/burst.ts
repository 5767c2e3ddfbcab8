/**
 * One event for each of many listening sessions of one pod, all at once, as when an upstream tells everybody that its
 * tools have changed: milliseconds from the beginning of the burst to the byte on each client's socket, beside a bare
 * server that writes to as many streams in one loop. Bursts of both alternate. The events go the whole way: log, nudge,
 * log read, socket.
 *
 *   npm run bench:burst -w @viaduct/test [-- --streams 2000 --rounds 5]
 */
import net from 'node:net';
import { parseArgs } from 'node:util';
import { createEventBus, LISTENING } from '@viaduct/shared/event-bus';
import { createMetrics } from '@viaduct/shared/metrics';
import { createScripts } from '@viaduct/shared/redis/scripts';
import { McpClient } from '../support/mcp-client.ts';
import { userIdOf } from '../support/oauth.ts';
import { until } from '../support/until.ts';
import { quantile } from './drive.ts';
import { keep, startProgram, startSetting } from './setting.ts';

const { values } = parseArgs({
  options: {
    streams: { type: 'string', default: '2000' },
    rounds: { type: 'string', default: '5' },
  },
});
const wanted = Number(values.streams);
const rounds = Number(values.rounds);
const USERS = 100;
const AT_ONCE = 20;
const MARK = 'burst-of-the-benchmark';
const message = JSON.stringify({ jsonrpc: '2.0', method: 'notifications/message', params: { level: 'info', data: MARK } }); // prettier-ignore

/** When each of its streams has had the event of this burst. */
class Side {
  readonly #sockets: net.Socket[] = [];
  #arrived: number[] = [];

  open(port: number, request: string): Promise<void> {
    return new Promise((resolve, reject) => {
      const socket = net.connect(port, '127.0.0.1');
      this.#sockets.push(socket);
      socket.setEncoding('latin1');
      socket.once('data', (head: string) => {
        if (!head.startsWith('HTTP/1.1 200')) reject(new Error(`no stream: ${head.slice(0, 200)}`));
        socket.on('data', (text: string) => {
          if (text.includes(MARK)) this.#arrived.push(performance.now());
        });
        resolve();
      });
      socket.once('error', reject);
      socket.write(request);
    });
  }

  /** Milliseconds from the beginning to each arrival. */
  async burst(send: () => Promise<void>): Promise<number[]> {
    this.#arrived = [];
    const began = performance.now();
    await send();
    await until('all have it', () => this.#arrived.length >= wanted, { timeoutMs: 30_000 });
    return this.#arrived.map((at) => at - began);
  }

  close(): void {
    for (const socket of this.#sockets) socket.destroy();
  }
}

const setting = await startSetting({ pods: 1 });
const { stack } = setting;
const bare = await startProgram('burst-server.ts');
const bus = createEventBus({
  scripts: createScripts(stack.redis.client),
  sessions: { ttlSeconds: 3_600, eventLogMaxLen: 1_000 },
  podId: '',
  metrics: createMetrics(),
});
const host = new URL(stack.publicUrl).host;
const clients = Array.from({ length: wanted }, (_, i) => {
  const user = `user-${i % USERS}`;
  const url = `${stack.publicUrl}/mcp/legacy`;
  return { user, client: new McpClient({ url, ports: stack.ports, token: setting.token(user) }) };
});
const ours = new Side();
const theirs = new Side();
async function each<T>(all: readonly T[], act: (one: T) => Promise<void>): Promise<void> {
  let next = 0;
  const loop = async (): Promise<void> => {
    while (next < all.length) await act(all[next++]!);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, loop));
}

try {
  await each(clients, async ({ client }) => {
    await client.initialize({ pod: 0 });
    const headers = Object.entries(client.headers())
      .filter(([name, value]) => name !== 'Content-Type' && value !== undefined)
      .map(([name, value]) => `${name}: ${String(value)}\r\n`)
      .join('');
    await ours.open(stack.ports[0]!, `GET /mcp/legacy HTTP/1.1\r\nHost: ${host}\r\n${headers}\r\n`);
    await theirs.open(bare.port, 'GET / HTTP/1.1\r\nHost: bare\r\n\r\n');
  });
  const addresses = clients.map(({ user, client }) => ({
    userId: userIdOf(setting.idp.url, user),
    sessionId: client.sessionId!,
  }));
  const [mine, raw]: [number[], number[]] = [[], []];
  for (let round = 0; round <= rounds; round++) {
    const r = await theirs.burst(async () => {
      await fetch(bare.origin, { method: 'POST', body: message });
    });
    const m = await ours.burst(async () => {
      await Promise.all(addresses.map((address) => bus.append(address, LISTENING, message)));
    });
    if (round === 0) continue; // code that has run for the first time
    raw.push(...r);
    mine.push(...m);
  }
  const row = (all: number[]) => ({ 'p50 ms': quantile(all, 0.5), 'p99 ms': quantile(all, 0.99), 'last ms': Math.max(...all) }); // prettier-ignore
  const report = { streams: wanted, bare: row(raw), viaduct: row(mine), 'p99, bare = 1': quantile(mine, 0.99) / quantile(raw, 0.99) }; // prettier-ignore
  console.log(JSON.stringify(report, null, 2));
  keep('burst', report);
  ours.close();
  await each(clients, async ({ client }) => {
    await client.end();
  });
} finally {
  ours.close();
  theirs.close();
  await bare.child.kill();
  await setting.stop();
}
