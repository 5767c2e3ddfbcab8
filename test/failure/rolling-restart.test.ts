import { setTimeout as pause } from 'node:timers/promises';
import { afterAll, expect, test } from 'vitest';
import { textOf, type McpClient } from '../support/mcp-client.ts';
import { until } from '../support/until.ts';
import { startWorld } from '../support/world.ts';

// A rollout (issue 7, “Must show”; case R5): both pods are replaced, one after the other, behind haproxy and under
// load, with streams open, slow calls running and people in the middle of flows. Nobody notices.

const STREAMS = 200;
const SLOW = 50;
const PENDING = 20;

const world = await startWorld({
  plainUpstreams: ['plain'],
  balancer: 'haproxy',
  config: { drain: { delaySeconds: 3, timeoutSeconds: 30 } },
});
afterAll(() => world.stop());
const { stack } = world;
const plain = world.plain['plain']!;
const last = (lastEventId: string | undefined) =>
  lastEventId === undefined ? {} : { lastEventId };

test('[rollout] two pods are replaced under load: no request fails, no result and no completion is lost', async () => {
  const failures: string[] = [];
  let served = 0;
  let going = true;
  const steady = await world.client('steady', { upstream: 'plain' }).initialize();
  const load = async (): Promise<void> => {
    for (let i = 0; going; i++) {
      const answer = await steady
        .post({ jsonrpc: '2.0', id: i, method: 'tools/list' })
        .catch((error: unknown) => String(error));
      if (typeof answer === 'string') failures.push(answer);
      else if (answer.status !== 200) failures.push(`${answer.status} ${answer.text}`);
      else served++;
      await pause(20); // the pace of the load, not a wait for anything
    }
  };
  const loads = [load(), load()];

  const listeners = await Promise.all(
    Array.from({ length: STREAMS }, async (_, index) => {
      const client = await world.client(`listener${index}`, { upstream: 'plain' }).initialize();
      return { client, stream: await client.listen() };
    }),
  );
  const people = await Promise.all(
    Array.from({ length: PENDING }, async (_, index) => {
      const user = `person${index}`;
      const client = await world.client(user).initialize();
      const stream = await client.listen();
      return { user, client, stream, streams: [stream], asked: await world.askForLink(client) };
    }),
  );
  const callers = await Promise.all(
    Array.from({ length: SLOW }, async (_, index) => {
      const client = await world.client(`caller${index}`, { upstream: 'plain' }).initialize();
      // Half of them on each pod: those end while their pod drains, long after it was told to stop.
      const turn = index % 2;
      const headers = { 'X-Test-Pod': `pod${turn + 1}` };
      const call = client.beginTool(
        'hold',
        { gate: `slow${turn}` },
        { headers, timeoutMs: 80_000 },
      );
      return { client, call, expected: `held slow${turn}` };
    }),
  );
  await until('the slow calls run', () => plain.ran['hold'] === SLOW);

  for (const [turn, pod] of stack.pods.entries()) {
    pod.child.signal('SIGTERM');
    await until('it is not ready', async () => (await pod.admin('/healthz/ready')).status === 503);
    // results come while the pod drains, and people end their flows
    plain.gate(`slow${turn}`).open();
    for (const { user, asked } of people.filter((_, index) => index % 4 === turn)) {
      await world.walk(world.browser(user), asked.url);
    }
    expect(await pod.child.ended).toBe(0);
    await stack.restart(pod);
    for (const listener of listeners)
      listener.stream = await follow(listener.client, listener.stream);
    for (const person of people) {
      person.stream = await follow(person.client, person.stream);
      if (person.stream !== person.streams.at(-1)) person.streams.push(person.stream);
    }
  }

  for (const { client, call, expected } of callers) {
    const answer = await call.message().catch(async () => {
      const { lastEventId } = await call.stream();
      const resumed = await client.listen(last(lastEventId));
      return resumed.message('the answer', ({ id }) => id === call.id);
    });
    expect(textOf(answer)).toBe(expected);
  }
  expect(plain.ran['hold'], 'no call ran twice').toBe(SLOW);

  // The others end their flows on the new pods. Each client hears of it once, over all the streams that it has had.
  const COMPLETE = 'notifications/elicitation/complete';
  for (const [index, { user, client, streams, asked }] of people.entries()) {
    if (index % 4 > 1) await world.walk(world.browser(user), asked.url);
    const heard = () => streams.flatMap((stream) => stream.named(COMPLETE));
    await until(`${user} has heard`, () => heard().length > 0, { timeoutMs: 20_000 });
    expect(heard().map(({ params }) => params?.['elicitationId'])).toEqual([asked.elicitationId]);
    expect(textOf(await client.callTool('echo', { a: 1 }))).toBe('{"a":1}');
  }
  // Whoever only listened still hears what happens.
  await until('their upstream is listened to again', () => plain.listening() >= STREAMS, {
    timeoutMs: 30_000,
  });
  plain.notify('notifications/tools/list_changed');
  for (const { stream } of listeners) {
    await stream.message('the news', ({ method }) => method === 'notifications/tools/list_changed');
  }
  going = false;
  await Promise.all(loads);
  expect(failures).toEqual([]);
  expect(served).toBeGreaterThan(100);
}, 120_000);

/** What a client does: when its stream has ended, it comes back with the last id that it has. */
async function follow(client: McpClient, stream: Awaited<ReturnType<McpClient['listen']>>) {
  if (stream.open) return stream;
  return client.listen(last(stream.lastEventId));
}
