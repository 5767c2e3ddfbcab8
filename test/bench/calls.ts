/**
 * What one `tools/call` costs, beside what others need for less: CPU per request (user and system, as the kernel
 * charges them), throughput and latency, each as a ratio to a bare `node:http` proxy in front of the same upstream.
 *
 * Short slices of all candidates alternate in one run, since a shared machine swings by more than what is measured.
 * Every answer is checked; every session is ended and the upstream says so. Prints a table, writes
 * test/results/bench/calls.json.
 *
 *   npm run bench -w @viaduct/test [-- --alternatives --warm 8 --rounds 4 --seconds 1 --connections 16 --only 'viaduct|SDK']
 *   BENCH_PROF="--cpu-prof --cpu-prof-dir=/somewhere" npm run bench -w @viaduct/test -- --only 'pod, legacy, JSON'
 */
import { parseArgs } from 'node:util';
import { McpClient } from '../support/mcp-client.ts';
import { ModernClient } from '../support/modern-client.ts';
import { startAlternatives } from './alternatives.ts';
import { cpuPerRequest, Driver, nothing, quantile, type Measured, type Target } from './drive.ts';
import { difference, keep, redisCounts, startProgram, startSetting } from './setting.ts';

const { values } = parseArgs({
  options: {
    rounds: { type: 'string', default: '4' },
    seconds: { type: 'string', default: '1' },
    connections: { type: 'string', default: '16' },
    warm: { type: 'string', default: '3' },
    alternatives: { type: 'boolean', default: false },
    keep: { type: 'string', default: 'calls' },
    only: { type: 'string', default: '' },
  },
});
const rounds = Number(values.rounds);
const milliseconds = Number(values.seconds) * 1000;
const connections = Number(values.connections);

const setting = await startSetting({ pods: 2 });
const { stack, upstream } = setting;
const programs = await Promise.all(
  ['bare-proxy.ts', 'undici-proxy.ts', 'sdk-proxy.ts'].map((file) =>
    startProgram(file, [String(upstream.port)]),
  ),
);
const [bare, fast, sdk] = programs as [
  (typeof programs)[0],
  (typeof programs)[0],
  (typeof programs)[0],
];
const others = values.alternatives ? await startAlternatives() : {};
const token = setting.token('bench');
const host = new URL(stack.publicUrl).host;
const [first, second] = stack.pods as [(typeof stack.pods)[0], (typeof stack.pods)[0]];

/** Names in lower case, and no headers without a value: what node:http and undici both take. */
const plain = (headers: object): Record<string, string> =>
  Object.fromEntries(
    Object.entries(headers)
      .filter(([, value]) => value !== undefined)
      .map(([name, value]) => [name.toLowerCase(), String(value)]),
  );

const call =
  (tool: string, meta = '') =>
  (id: number) =>
    `{"jsonrpc":"2.0","id":${id},"method":"tools/call","params":{"name":"${tool}","arguments":{"text":"hello"}${meta}}}`;

/** A whole answer with the right id, in JSON or as the last event of a stream. */
function fault(id: number, status: number, text: string): string | undefined {
  const at = text.lastIndexOf('data: ');
  const json = at < 0 ? text : text.slice(at + 6);
  try {
    const { id: answered, result } = JSON.parse(json) as {
      id: number;
      result?: { content?: unknown[] };
    };
    if (status === 200 && answered === id && result?.content?.length === 1) return undefined;
  } catch {
    // Said below.
  }
  return `request ${id} was answered ${status} ${text.slice(0, 200)}`;
}

const clients: McpClient[] = [];
async function session(url: string, port: number): Promise<Record<string, string>> {
  const client = new McpClient({ url, ports: [port], token });
  await client.initialize({ pod: 0 });
  clients.push(client);
  return plain(client.headers());
}

const gateway = (path: string, pods: typeof stack.pods) => ({
  origins: pods.map((pod) => `http://127.0.0.1:${pod.port}`),
  path,
  pids: pods.map((pod) => pod.child.pid),
});
const program = ({ origin, child }: (typeof programs)[0], path = '/mcp') => ({
  origins: [origin],
  path,
  pids: [child.pid],
});

const legacy = {
  ...(await session(`${stack.publicUrl}/mcp/legacy`, first.port)),
  host,
};
const modernClient = new ModernClient({ url: `${stack.publicUrl}/mcp/modern`, token });
const modern = (tool: string) => ({
  headers: { ...plain(modernClient.headers('tools/call', { name: tool })), host },
  body: call(tool, `,"_meta":${JSON.stringify(modernClient.meta())}`),
});
const legacyTo = (tool: string) => ({ headers: legacy, body: call(tool) });
const direct = plain(new McpClient({ url: upstream.origin }).headers());

const all: Target[] = [
  { name: 'bare node:http proxy', ...program(bare), headers: direct, body: call('echo'), fault },
  { name: 'direct upstream', ...program(upstream), headers: direct, body: call('echo'), fault },
  { name: 'bare undici proxy', ...program(fast), headers: direct, body: call('echo'), fault },
  {
    name: 'viaduct one pod, legacy, JSON',
    ...gateway('/mcp/legacy', [first]),
    ...legacyTo('echo'),
    fault,
  },
  {
    name: 'viaduct one pod, legacy, SSE',
    ...gateway('/mcp/legacy', [first]),
    ...legacyTo('stream'),
    fault,
  },
  {
    name: 'viaduct one pod, modern, JSON',
    ...gateway('/mcp/modern', [first]),
    ...modern('echo'),
    fault,
  },
  {
    name: 'viaduct one pod, modern, SSE',
    ...gateway('/mcp/modern', [first]),
    ...modern('stream'),
    fault,
  },
  {
    name: 'viaduct two pods, legacy, JSON',
    ...gateway('/mcp/legacy', [first, second]),
    ...legacyTo('echo'),
    fault,
  },
  {
    name: 'bare node:http proxy, SSE',
    ...program(bare),
    headers: direct,
    body: call('stream'),
    fault,
  },
  {
    name: 'SDK server + client, no auth, JSON',
    ...program(sdk),
    headers: await session(`${sdk.origin}/mcp`, sdk.port),
    body: call('echo'),
    fault,
  },
];
for (const [name, at] of Object.entries(others)) {
  all.push({
    name: `${name}, stdio, no auth`,
    ...program(at),
    headers: await session(`${at.origin}/mcp`, at.port),
    body: call('echo'),
    fault,
  });
}
const wanted = values.only === '' ? [] : values.only.split('|');
const targets = all.filter(
  ({ name }, i) => i === 0 || wanted.length === 0 || wanted.some((word) => name.includes(word)),
);

interface Row {
  readonly driver: Driver;
  readonly closed: Measured;
  readonly paced: Measured;
  redis: Record<string, number>;
}

function report(rows: readonly Row[]): void {
  const base = rows[0]!;
  const ratio = (of: number, to: number): number => Number((of / to).toFixed(2));
  const perSecond = ({ requests, wallSeconds }: Measured): number => requests / wallSeconds;
  const table = rows.map(({ driver, closed, paced }) => ({
    candidate: driver.target.name,
    requests: closed.requests + paced.requests,
    'CPU, bare = 1': ratio(cpuPerRequest(closed), cpuPerRequest(base.closed)),
    µs: Math.round(cpuPerRequest(closed)),
    'of it kernel': `${Math.round((100 * closed.systemSeconds) / (closed.userSeconds + closed.systemSeconds))} %`,
    'throughput, bare = 1': ratio(perSecond(closed), perSecond(base.closed)),
    'paced p50, ms': Number(quantile(paced.latencies, 0.5).toFixed(2)),
    'paced p99, ms': Number(quantile(paced.latencies, 0.99).toFixed(2)),
  }));
  console.table(table);
  const redis = Object.fromEntries(rows.map((row) => [row.driver.target.name, row.redis]));
  console.log('Redis commands (those inside scripts included) and bytes per call:');
  console.table(
    Object.fromEntries(Object.entries(redis).filter(([name]) => name.startsWith('viaduct'))),
  );
  keep(values.keep, { rounds, milliseconds, connections, table, redis });
}

try {
  const rows = targets.map((target): Row => ({
    driver: new Driver(target, connections),
    closed: nothing(),
    paced: nothing(),
    redis: {},
  }));
  // Optimised code is what pods run for hours: whoever has more code takes longer to get there.
  for (const { driver } of rows) {
    await driver.closed(nothing(), Number(values.warm) * 1000, connections);
  }
  for (let round = 0; round < rounds; round++) {
    for (const row of rows) {
      const before = round === 0 ? await redisCounts(stack) : undefined;
      const from = row.closed.requests;
      await row.driver.closed(row.closed, milliseconds, connections);
      if (before !== undefined) {
        row.redis = difference(before, await redisCounts(stack), row.closed.requests - from);
      }
    }
  }
  // The same rate for everybody: a quarter of what the bare proxy can do here, so that nobody is driven to the wall.
  const base = rows[0]!.closed;
  const rate = base.requests / base.wallSeconds / 4;
  for (let round = 0; round < rounds; round++) {
    for (const row of rows) await row.driver.paced(row.paced, milliseconds, rate);
  }
  report(rows);
  await Promise.all(rows.map(({ driver }) => driver.close()));
  for (const client of clients) await client.end();
  const left = await setting.sessionsLeft();
  if (left !== 0) throw new Error(`${left} upstream sessions were not ended`);
} finally {
  for (const { child } of [...programs, ...Object.values(others)]) await child.kill();
  await setting.stop();
}
