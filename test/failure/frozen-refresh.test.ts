import { afterAll, expect, test } from 'vitest';
import { Gate, never, until } from '../support/until.ts';
import { startWorld } from '../support/world.ts';

// Case R4: a worker freezes in the middle of a refresh for longer than its locks last; another does the work, and what
// the frozen one writes when it wakes up is refused.

const world = await startWorld();
afterAll(() => world.stop());
const { acme, stack } = world;

test('[R4.refresh] the late write of a frozen worker is refused, and the vault holds the newer token', async () => {
  // A provider that does not rotate: both answers would do, so that only the fence decides which one stays.
  acme.omitRefreshToken = true;
  const client = await world.client('ann').initialize();
  acme.expiresInSeconds = 20;
  await world.connect(client, 'ann');
  acme.expiresInSeconds = 3600;
  const stored = performance.now();
  await until('some use later', () => performance.now() - stored > 500);
  expect((await client.callTool('echo', {})).result).toBeDefined();
  const gate = new Gate();
  acme.gates.token = gate;
  await until('the worker is at the token endpoint', () => gate.arrived > 0, { timeoutMs: 30_000 });
  const frozen = stack.workers[0]!;
  frozen.child.freeze();
  acme.gates.token = undefined;
  await stack.addWorker();
  const vault = `viaduct:vault:{${world.userId('ann')}}:acme-drive`;
  const before = await stack.redis.client.get(vault);
  await until(
    'somebody else has refreshed',
    async () => {
      await client.callTool('echo', {}).catch(() => undefined);
      return (await stack.redis.client.get(vault)) !== before;
    },
    { timeoutMs: 60_000, everyMs: 500 },
  );
  const theirs = await stack.redis.client.get(vault);
  const refreshed = acme.refreshes;
  gate.open();
  frozen.child.thaw();
  await until('the frozen one has its answer, too', () => acme.refreshes > refreshed);
  await never('its write', async () => (await stack.redis.client.get(vault)) !== theirs, {
    forMs: 1_500,
    everyMs: 100,
  });
  expect(stack.audit('credential.refreshed')).toHaveLength(1);
  expect((await client.callTool('echo', {})).result).toBeDefined();
}, 180_000);
