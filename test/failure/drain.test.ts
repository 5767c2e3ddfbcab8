import http from 'node:http';
import { afterAll, expect, test } from 'vitest';
import { textOf } from '../support/mcp-client.ts';
import { startWorld } from '../support/world.ts';
import { Gate, until } from '../support/until.ts';

// SIGTERM → not ready, delay, streams end with `retry`, running calls finish, exit 0 (issue 2, item 10; case R5).

const world = await startWorld({
  plainUpstreams: ['plain'],
  config: { drain: { delaySeconds: 2, timeoutSeconds: 30 } },
});
afterAll(() => world.stop());
const { acme, stack } = world;
const plain = world.plain['plain']!;

test('[drain] a pod told to stop serves on for a while, hands its clients over, and loses no call', async () => {
  const [pod, other] = [stack.pods[0]!, stack.pods[1]!];
  const client = await world.client('ann', { upstream: 'plain' }).initialize({ pod: 0 });
  const stream = await client.listen({ pod: 0 });
  const running = client.beginTool('hold', { gate: 'drain' }, { pod: 0, timeoutMs: 40_000 });
  const fast = client.beginTool('hold', { gate: 'soon' }, { pod: 0, timeoutMs: 40_000 });
  await until('both calls run', () => plain.ran['hold'] === 2);

  pod.child.signal('SIGTERM');
  await until('it is not ready', async () => (await pod.admin('/healthz/ready')).status === 503);
  expect((await pod.admin('/healthz/live')).status).toBe(200);
  // until the balancers have seen it, it works as before
  const during = await client.post(
    { jsonrpc: '2.0', id: 'during', method: 'tools/list' },
    { pod: 0 },
  );
  expect(during.status).toBe(200);
  plain.gate('soon').open();
  expect(textOf(await fast.message())).toBe('held soon');

  await stream.ended(20_000);
  expect(stream.retryMs).toBeGreaterThan(0);
  const elsewhere = await client.listen({ pod: 1, ...lastId(stream.lastEventId) });
  expect(pod.child.running, 'a call is still running').toBe(true);

  plain.gate('drain').open();
  // its client got the answer on the call's own stream, or gets it where it comes back
  const answer = await running.message().catch(async () => {
    const { lastEventId } = await running.stream();
    const resumed = await client.listen({ pod: 1, ...lastId(lastEventId) });
    return resumed.message('the answer', ({ id }) => id === running.id);
  });
  expect(textOf(answer)).toBe('held drain');
  expect(plain.ran['hold'], 'no call ran twice').toBe(2);

  expect(await pod.child.ended).toBe(0);
  expect((await other.admin('/healthz/ready')).status).toBe(200);
  expect(elsewhere.open).toBe(true);
  expect(textOf(await client.callTool('echo', { a: 1 }))).toBe('{"a":1}');
  await stack.restart(pod);
}, 60_000);

const lastId = (lastEventId: string | undefined) =>
  lastEventId === undefined ? {} : { lastEventId };

test('[drain.kept] whoever keeps a connection for its next request is told not to, long before it is closed', async () => {
  const pod = stack.pods[1]!;
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const ask = () =>
    new Promise<string | undefined>((resolve, reject) => {
      http
        .get({ host: '127.0.0.1', port: pod.port, path: '/mcp', agent }, (response) => {
          response.resume();
          response.on('end', () => resolve(response.headers.connection));
        })
        .on('error', reject);
    });
  expect(await ask()).toBe('keep-alive');
  pod.child.signal('SIGTERM');
  await until('it is not ready', async () => (await pod.admin('/healthz/ready')).status === 503);
  expect(await ask()).toBe('close');
  expect(await pod.child.ended).toBe(0);
  agent.destroy();
  await stack.restart(pod);
});

test('[drain.idle] a pod with nothing to do is gone soon after the delay', async () => {
  const pod = stack.pods[1]!;
  expect(await pod.child.terminate(15_000)).toBe(0);
  await stack.restart(pod);
});

test('[drain.deadline] a call that never ends does not hold a pod past its deadline', async () => {
  const hasty = await startWorld({
    pods: 1,
    plainUpstreams: ['plain'],
    config: { drain: { delaySeconds: 0, timeoutSeconds: 2 } },
  });
  try {
    const client = await hasty.client('ben', { upstream: 'plain' }).initialize();
    const call = client.beginTool('hold', { gate: 'never' });
    await until('the call runs', () => hasty.plain['plain']!.ran['hold'] === 1);
    await hasty.stack.pods[0]!.child.terminate(15_000);
    await call.message().catch(() => undefined);
  } finally {
    await hasty.stop();
  }
});

test('[drain.worker] a worker told to stop finishes its job first', async () => {
  const client = await world.client('cleo').initialize();
  const asked = await world.askForLink(client);
  const gate = new Gate();
  acme.gates.token = gate;
  const browser = world.browser('cleo');
  await world.walk(browser, asked.url);
  await until('the exchange is under way', () => gate.arrived > 0);
  const worker = stack.workers[0]!;
  worker.child.signal('SIGTERM');
  await until('the worker is not ready', async () => {
    return (await worker.admin('/healthz/ready').catch(() => undefined))?.status !== 200;
  });
  gate.open();
  expect(await worker.child.ended).toBe(0);
  expect(await world.state(browser, asked.url)).toBe('completed');
  expect(acme.exchanges).toBe(1);
}, 60_000);
