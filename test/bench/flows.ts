/**
 * The main job in numbers: a call without a credential, the link, login, consent, the third party, the worker's
 * exchange, and the completion on the one stream that waits for it. Many people at once, over 2 and over 6 pods, each
 * person's session on one pod and their browser on whichever comes.
 *
 * Delivery latency is the gateway's own measure, from the append to the log until the write to the socket
 * (viaduct_bus_delivery_seconds); beside it the whole time from the third party's redirect until the event is there.
 *
 *   npm run bench:flows -w @viaduct/test [-- --flows 200 --at-once 8 --pods 2,6]
 */
import { parseArgs } from 'node:util';
import { readMetric } from '../support/stack.ts';
import { startWorld, type World } from '../support/world.ts';
import { quantile } from './drive.ts';
import { difference, keep, redisCounts } from './setting.ts';

const { values } = parseArgs({
  options: {
    flows: { type: 'string', default: '200' },
    'at-once': { type: 'string', default: '8' },
    pods: { type: 'string', default: '2,6' },
  },
});
const flows = Number(values.flows);
const atOnce = Number(values['at-once']);
const COMPLETE = 'notifications/elicitation/complete';

interface Times {
  readonly whole: number[];
  readonly completion: number[];
}

async function flow(world: World, i: number, times: Times): Promise<void> {
  const pod = i % world.stack.pods.length;
  const user = `user-${i}`;
  const began = performance.now();
  const client = await world.client(user).initialize({ pod });
  const stream = await client.listen({ pod });
  const asked = await world.askForLink(client, { pod });
  const browser = world.browser(user);
  await browser.open(asked.url);
  const away = await browser.submit({
    decision: 'approve',
    stopAt: `^${world.acme.url}/authorize`,
  });
  const back = performance.now();
  await browser.open(away.stoppedAt!);
  const { atMs, message } = await stream.event(
    'completion',
    (event) => event.message?.method === COMPLETE,
    60_000,
  );
  if (message?.params?.['elicitationId'] !== asked.elicitationId)
    throw new Error('somebody else’s completion');
  times.completion.push(atMs - back);
  times.whole.push(atMs - began);
  if (stream.named(COMPLETE).length !== 1) throw new Error('a completion came twice');
  await client.end({ pod });
}

/** The upper bound of the bucket that holds the quantile, in milliseconds. */
async function delivered(world: World, q: number): Promise<string> {
  const texts = await Promise.all(world.stack.pods.map((pod) => pod.metrics()));
  const bounds = new Map<string, number>();
  for (const text of texts) {
    for (const [, le = ''] of text.matchAll(
      /viaduct_bus_delivery_seconds_bucket\{le="([^"]+)"\}/g,
    )) {
      const below = readMetric(text, 'viaduct_bus_delivery_seconds_bucket', { le });
      bounds.set(le, (bounds.get(le) ?? 0) + below);
    }
  }
  const total = bounds.get('+Inf') ?? 0;
  const found = [...bounds].find(([, below]) => below >= total * q);
  return found === undefined ? '-' : `≤ ${(Number(found[0]) * 1000).toFixed(2)}`;
}

const rows: Record<string, unknown>[] = [];
const redis: Record<string, unknown> = {};
for (const pods of values.pods.split(',').map(Number)) {
  const world = await startWorld({ pods, workers: 1, env: { LOG_LEVEL: 'warn' } });
  try {
    const warm: Times = { whole: [], completion: [] };
    for (let i = 0; i < pods; i++) await flow(world, flows + i, warm);
    const times: Times = { whole: [], completion: [] };
    const before = await redisCounts(world.stack);
    const began = performance.now();
    let next = 0;
    const loop = async (): Promise<void> => {
      while (next < flows) await flow(world, next++, times);
    };
    await Promise.all(Array.from({ length: atOnce }, loop));
    const took = (performance.now() - began) / 1000;
    const counts = difference(before, await redisCounts(world.stack), flows);
    redis[`${pods} pods`] = counts;
    rows.push({
      pods,
      flows,
      'completions per second': Number((flows / took).toFixed(1)),
      'PUBLISH per flow': counts['publish'],
      'append → socket p50, ms': await delivered(world, 0.5),
      'append → socket p99, ms': await delivered(world, 0.99),
      'redirect → event p50, ms': Math.round(quantile(times.completion, 0.5)),
      'redirect → event p99, ms': Math.round(quantile(times.completion, 0.99)),
      'whole flow p50, ms': Math.round(quantile(times.whole, 0.5)),
    });
  } finally {
    await world.stop();
  }
}
console.table(rows);
console.log('Redis commands and bytes per flow, BullMQ, heartbeats and health checks included:');
console.table(redis);
keep('flows', { rows, redis });
process.exit();
