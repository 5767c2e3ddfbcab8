import { afterAll, expect, test } from 'vitest';
import { startWorld } from '../support/world.ts';
import { Gate, never, until } from '../support/until.ts';

// A worker killed in the middle of its job (invariant 11; design, section 7: taken over within 15 s; section 6: after
// a crash in the middle of an exchange a code is never sent twice).

const world = await startWorld();
afterAll(() => world.stop());
const { acme, stack } = world;
const COMPLETE = 'notifications/elicitation/complete';
const TAKEN_OVER = { timeoutMs: 25_000 };

test('[worker.killed-before] killed between taking the job and finishing it: the flow completes once', async () => {
  const alice = await world.client('alice').initialize({ pod: 0 });
  const stream = await alice.listen({ pod: 0 });
  const asked = await world.askForLink(alice, { pod: 1 });
  const browser = world.browser('alice');
  await browser.open(asked.url);
  const { stoppedAt } = await browser.submit({
    decision: 'approve',
    stopAt: `^${acme.url}/authorize`,
  });

  const gate = new Gate();
  acme.gates.discovery = gate; // before the exchange can begin, the worker asks where to send the code
  await browser.open(stoppedAt!);
  await until('the worker is at the third party’s discovery', () => gate.arrived > 0);
  await stack.workers[0]!.child.kill();
  acme.gates.discovery = undefined;
  gate.open();
  await stack.restart(stack.workers[0]!);

  const message = await stream.notification(COMPLETE, TAKEN_OVER.timeoutMs);
  expect(message.params).toMatchObject({ elicitationId: asked.elicitationId });
  await world.untilState(browser, asked.url, 'completed');
  await never('a second exchange or completion', () => {
    return acme.exchanges > 1 || stream.named(COMPLETE).length > 1;
  });
  expect(acme.tokenRequests).toHaveLength(1);
  expect((await alice.callTool('echo', {}, { pod: 1 })).result).toBeDefined();
}, 60_000);

test('[worker.killed-during] killed in the middle of the exchange: failed, and the code is not sent again', async () => {
  const bob = await world.client('bob').initialize();
  const stream = await bob.listen();
  const asked = await world.askForLink(bob);
  const browser = world.browser('bob');
  const before = acme.tokenRequests.length;
  const gate = new Gate();
  acme.gates.token = gate;
  await world.walk(browser, asked.url);
  await until('the code is at the third party', () => gate.arrived > 0);
  await stack.workers[0]!.child.kill();
  acme.gates.token = undefined;
  await stack.restart(stack.workers[0]!);

  await world.untilState(browser, asked.url, 'failed', TAKEN_OVER.timeoutMs);
  gate.open();
  expect(acme.tokenRequests).toHaveLength(before + 1);
  expect(stream.named(COMPLETE)).toHaveLength(0);

  const next = await world.askForLink(bob);
  expect(next.elicitationId).not.toBe(asked.elicitationId);
  await world.walk(browser, next.url);
  await stream.notification(COMPLETE);
}, 60_000);

test('[worker.away] with no worker at all the page says that it is working, and a worker that comes finishes', async () => {
  await stack.workers[0]!.child.kill();
  const carol = await world.client('carol').initialize();
  const stream = await carol.listen();
  const asked = await world.askForLink(carol);
  const browser = world.browser('carol');
  const page = await world.walk(browser, asked.url);
  expect(page.status).toBe(200);
  expect(await world.state(browser, asked.url)).toBe('authorized');
  await stack.restart(stack.workers[0]!);
  await stream.notification(COMPLETE, TAKEN_OVER.timeoutMs);
}, 60_000);

test('[worker.frozen] a worker that freezes over its job and wakes up later writes nothing twice', async () => {
  const dave = await world.client('dave').initialize();
  const stream = await dave.listen();
  const asked = await world.askForLink(dave);
  const browser = world.browser('dave');
  await browser.open(asked.url);
  const { stoppedAt } = await browser.submit({
    decision: 'approve',
    stopAt: `^${acme.url}/authorize`,
  });
  const exchanges = acme.exchanges;
  const gate = new Gate();
  acme.gates.token = gate;
  await browser.open(stoppedAt!);
  await until('the code is at the third party', () => gate.arrived > 0);
  const frozen = stack.workers[0]!;
  frozen.child.freeze();
  acme.gates.token = undefined;
  await stack.addWorker();
  const ended = ['failed', 'completed'];
  await until(
    'the flow has ended without the frozen worker',
    async () => ended.includes((await world.state(browser.clone(), asked.url)) ?? ''),
    TAKEN_OVER,
  );
  const state = await world.state(browser.clone(), asked.url);
  gate.open();
  frozen.child.thaw();
  await never(
    'a late write changes the end',
    async () => {
      return (await world.state(browser.clone(), asked.url)) !== state;
    },
    { forMs: 1_000, everyMs: 100 },
  );
  expect(acme.exchanges - exchanges).toBeLessThanOrEqual(1);
  expect(stream.named(COMPLETE)).toHaveLength(state === 'completed' ? 1 : 0);
}, 60_000);
