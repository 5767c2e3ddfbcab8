/**
 * What calls cost that wait for a person (issue 4, Must show): a modern client, a legacy upstream that asks in the
 * middle, two pods. All calls are begun at the first pod and suspended there; then nothing happens for a while; then all
 * are answered at the second pod, and every result is checked.
 *
 * Memory is that of the first pod: live objects after a full collection (through its inspector), and what the kernel
 * counts as resident, each against a pod that has already served, and forgotten, as many calls (--warm). Redis
 * commands are those of INFO commandstats, heartbeats and health checks included and named. It counts over whole
 * periods of the heartbeat.
 *
 *   npm run bench:suspended -w @viaduct/test [-- --calls 1000 --warm 200 --seconds 15 --json]
 */
import { setTimeout as pause } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { heapAfterCollection, INSPECTED, residentBytes, socketsOf } from '../support/heap.ts';
import { startIdentityProvider } from '../support/identity-provider.ts';
import { startLegacyUpstream } from '../support/legacy-upstream.ts';
import { textOf } from '../support/mcp-client.ts';
import { answering, inputRequired, ModernClient } from '../support/modern-client.ts';
import type { Message } from '../support/net.ts';
import { startStack } from '../support/stack.ts';
import { until } from '../support/until.ts';

const { values } = parseArgs({
  options: {
    calls: { type: 'string', default: '1000' },
    warm: { type: 'string', default: '200' },
    seconds: { type: 'string', default: '15' },
    json: { type: 'boolean', default: false },
  },
});
const calls = Number(values.calls);
const warm = Number(values.warm);
const seconds = Number(values.seconds);
const AT_ONCE = 50;

// The whole run is bounded, whatever hangs; its children end with it.
setTimeout(() => {
  console.error('not finished within five minutes');
  process.exit(1);
}, 300_000).unref();

const many = { points: 1_000_000_000, seconds: 60 };
const idp = await startIdentityProvider({ clients: {} });
const upstream = await startLegacyUpstream({ name: 'bench' });
const stack = await startStack({
  pods: 2,
  workers: 0,
  env: { LOG_LEVEL: 'warn', ...INSPECTED },
  config: {
    auth: { mode: 'external', issuer: idp.url, audience: ['bench'] },
    upstreams: [{ name: 'bench', url: upstream.endpoint, allowPrivateNetwork: true }],
    limits: { user: many, userTool: many, userElicitations: many, address: many },
    elicitation: { ttlSeconds: 900 },
  },
}).catch(async (error: unknown) => {
  await Promise.all([idp.stop(), upstream.stop()]);
  throw error;
});
const holder = stack.pods[0]!.child;
const client = new ModernClient({
  url: `${stack.publicUrl}/mcp/bench`,
  ports: stack.ports,
  token: idp.mint({ sub: 'bench', aud: 'bench', scope: 'mcp:tools' }),
});

/** In order, some at a time. */
async function each<T, R>(all: readonly T[], act: (one: T) => Promise<R>): Promise<R[]> {
  const results: R[] = [];
  for (let from = 0; from < all.length; from += AT_ONCE) {
    results.push(...(await Promise.all(all.slice(from, from + AT_ONCE).map(act))));
  }
  return results;
}

const suspended = () => stack.metric('viaduct_suspended_calls');

async function suspend(serials: readonly number[]): Promise<Message[]> {
  const asked = await each(serials, (serial) => client.tool('ask_form', { serial }, { pod: 0 }));
  for (const one of asked) inputRequired(one);
  if ((await suspended()) !== serials.length) throw new Error('not all are suspended');
  return asked;
}

async function answerAll(asked: readonly Message[]): Promise<void> {
  await each([...asked.entries()], async ([serial, one]) => {
    const form = { action: 'accept', content: { serial } };
    const round = answering(one, () => form);
    const last = await client.tool('ask_form', { serial }, { pod: 1, ...round });
    if (textOf(last) !== JSON.stringify(form)) {
      throw new Error(`call ${serial}: ${JSON.stringify(last).slice(0, 300)}`);
    }
  });
  await until('nothing is suspended', async () => (await suspended()) === 0);
}

async function memory() {
  const heap = await heapAfterCollection(holder);
  return { heap, resident: residentBytes(holder.pid), sockets: socketsOf(holder.pid) };
}

async function commands(): Promise<Map<string, number>> {
  const stats = await stack.redis.client.info('commandstats');
  return new Map([...stats.matchAll(/cmdstat_(\S+?):calls=(\d+)/g)].map((m) => [m[1]!, +m[2]!]));
}

/** Commands per second of everybody but this program, by name. */
async function whileIdle(): Promise<Record<string, number>> {
  const before = await commands();
  const began = performance.now();
  await pause(seconds * 1000); // what is measured is a length of time
  const after = await commands();
  const took = (performance.now() - began) / 1000;
  const rates = [...after]
    .filter(([name]) => name !== 'info')
    .map(([name, n]): [string, number] => [name, (n - (before.get(name) ?? 0)) / took])
    .filter(([, rate]) => rate > 0)
    .map(([name, rate]): [string, number] => [name, Number(rate.toFixed(2))]);
  return Object.fromEntries(rates);
}

const total = (rates: Record<string, number>): number =>
  Number(
    Object.values(rates)
      .reduce((sum, rate) => sum + rate, 0)
      .toFixed(2),
  );
const serials = (n: number): number[] => Array.from({ length: n }, (_, serial) => serial);

try {
  await answerAll(await suspend(serials(warm)));
  const idle = await whileIdle();
  const before = await memory();
  const asked = await suspend(serials(calls));
  const held = await memory();
  const waiting = await whileIdle();
  const began = performance.now();
  await answerAll(asked);
  const answeredMs = performance.now() - began;
  const after = await memory();
  const kept = await stack.redis.client.keys('viaduct:*{*}:*');
  const left = kept.filter((key) => /^viaduct:(suspended|call|held)/.test(key)).length;
  const perCall = (of: 'heap' | 'resident' | 'sockets'): number =>
    Number(((held[of] - before[of]) / calls / (of === 'sockets' ? 1 : 1024)).toFixed(2));
  const report = {
    calls,
    perSuspendedCall: {
      heapKb: perCall('heap'),
      residentKb: perCall('resident'),
      sockets: perCall('sockets'),
    },
    podMb: Object.fromEntries(
      Object.entries({ before, held, after }).map(([when, { heap, resident }]) => [
        when,
        { heap: (heap / 2 ** 20).toFixed(1), resident: (resident / 2 ** 20).toFixed(1) },
      ]),
    ),
    redisCommandsPerSecond: {
      nothingSuspended: { total: total(idle), ...idle },
      allSuspended: { total: total(waiting), ...waiting },
    },
    answered: { checked: asked.length, ms: Math.round(answeredMs), recordsLeft: left },
    upstreamRan: upstream.ran['ask_form'],
  };
  if (upstream.ran['ask_form'] !== calls + warm) throw new Error('a call ran twice, or never');
  if (values.json) console.log(JSON.stringify(report));
  else {
    const { heapKb, residentKb, sockets } = report.perSuspendedCall;
    console.log(`${calls} suspended calls, one pod holds them, the other takes the answers`);
    console.log(`per call: ${heapKb} KB heap, ${residentKb} KB resident, ${sockets} sockets`);
    console.log('the pod, MB:');
    console.table(report.podMb);
    console.log('Redis commands per second of both pods (set: heartbeats; ping: health checks):');
    console.table(report.redisCommandsPerSecond);
    console.log('answered at the other pod, all checked:', report.answered);
  }
} finally {
  await stack.stop();
  await Promise.all([idp.stop(), upstream.stop()]);
}
process.exit();
