import { mkdirSync, readFileSync, renameSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { textOf } from '../support/mcp-client.ts';
import { until } from '../support/until.ts';
import { startWorld } from '../support/world.ts';

// A changed configuration without a restart (issue 7, item 7; design, section 5).

const world = await startWorld({ pods: 1, workers: 1, plainUpstreams: ['plain', 'later'] });
afterAll(() => world.stop());
const { stack } = world;
const plain = world.plain['plain']!;
const [pod, worker] = [stack.pods[0]!, stack.workers[0]!];

const original = readFileSync(stack.configFile, 'utf8');
const without = (name: string): string => {
  const config = JSON.parse(original) as { upstreams: { name: string }[] };
  config.upstreams = config.upstreams.filter((upstream) => upstream.name !== name);
  return JSON.stringify(config);
};
const taken = (): number =>
  stack.logs().filter(({ msg }) => msg === 'the changed configuration is in use').length;
const pids = () => [pod.child.running, worker.child.running];

test('[reload.rewrite] a rewritten file is taken by gateway and worker; calls finish and streams come back', async () => {
  const client = await world.client('ann', { upstream: 'plain' }).initialize();
  const stream = await client.listen();
  const slow = client.beginTool('hold', { gate: 'reload' }, { timeoutMs: 40_000 });
  await until('the call runs', () => plain.ran['hold'] === 1);

  writeFileSync(stack.configFile, without('later'));
  await until('both have taken it', () => taken() === 2);
  // the old generation ends its streams as a draining pod does
  await stream.ended(20_000);
  expect(stream.retryMs).toBeGreaterThan(0);
  const again = await client.listen({
    ...(stream.lastEventId !== undefined && { lastEventId: stream.lastEventId }),
  });
  expect((await world.client('ann', { upstream: 'later' }).post({})).status).toBe(404);
  expect(textOf(await client.callTool('echo', { a: 1 }))).toBe('{"a":1}');

  plain.gate('reload').open();
  const answer = await slow.message().catch(async () => {
    const { lastEventId } = await slow.stream();
    const resumed = await client.listen({ ...(lastEventId !== undefined && { lastEventId }) });
    return resumed.message('the answer', ({ id }) => id === slow.id);
  });
  expect(textOf(answer)).toBe('held reload');
  expect(plain.ran['hold'], 'no call ran twice').toBe(1);
  expect(again.open).toBe(true);
  expect(pids()).toEqual([true, true]);
  await until(
    'one generation is left',
    async () => (await stack.redis.client.keys('viaduct:pod:*')).length === 1,
  );
}, 60_000);

test('[reload.symlink] the swapped symlink of a ConfigMap is noticed', async () => {
  const folder = dirname(stack.configFile);
  for (const [version, text] of [
    ['v1', without('later')],
    ['v2', original],
  ] as const) {
    mkdirSync(join(folder, version));
    writeFileSync(join(folder, version, 'viaduct.yaml'), text);
  }
  const before = taken();
  const swap = (version: string): void => {
    symlinkSync(version, join(folder, '..data_tmp'));
    renameSync(join(folder, '..data_tmp'), join(folder, '..data'));
  };
  swap('v1');
  symlinkSync(join('..data', 'viaduct.yaml'), join(folder, 'link'));
  renameSync(join(folder, 'link'), stack.configFile);
  swap('v2');
  await until('both have taken it', () => taken() === before + 2);
  const client = await world.client('ben', { upstream: 'later' }).initialize();
  expect((await client.listTools()).result?.tools).toBeDefined();
});

test('[reload.refused] what cannot change without a restart is refused with its path', async () => {
  writeFileSync(
    stack.configFile,
    original.replace(/"publicUrl": "[^"]*"/, '"publicUrl": "http://localhost:1"'),
  );
  const refusals = (): number =>
    stack.output().split('configuration refused, the old one stays: publicUrl').length - 1;
  await until('both say so', () => refusals() === 2);
  const client = await world.client('cleo', { upstream: 'plain' }).initialize();
  expect(textOf(await client.callTool('echo', { b: 2 }))).toBe('{"b":2}');
  writeFileSync(stack.configFile, original);
  await until('and that it is well again', () =>
    stack.logs().some(({ msg }) => msg === 'the configuration file is again the one in use'),
  );
});
