import { randomBytes } from 'node:crypto';
import { afterAll, expect, test } from 'vitest';
import { createKeyring } from '@viaduct/shared/keyring';
import { until } from '../support/until.ts';
import { startWorld } from '../support/world.ts';

// Key rotation (issue 6, item 5): a worker killed in the middle of resealing; its successor goes on where it was.

const raw = { first: randomBytes(32), second: randomBytes(32) };
const line = (kid: keyof typeof raw): string => `${kid}:${raw[kid].toString('base64')}`;
const world = await startWorld({ env: { VIADUCT_SECRET_KEYS: line('first') } });
afterAll(() => world.stop());
const { redis, workers } = world.stack;
const kidOf = (sealed: string): unknown =>
  (JSON.parse(Buffer.from(sealed.split('.')[0]!, 'base64url').toString()) as { kid: unknown }).kid;

const ENTRIES = 3_000;

test('[rotate.resume] a worker killed in the middle: its successor goes on at the cursor, and all is sealed anew', async () => {
  const client = await world.client('ann').initialize();
  await world.connect(client, 'ann');
  // Many users' worth of entries, as the product seals them.
  const keyring = createKeyring([{ kid: 'first', key: raw.first }]);
  for (let n = 0; n < ENTRIES; n++) {
    const userId = randomBytes(16).toString('base64url');
    const context = { userId, connection: 'acme-drive' };
    const sealed = await keyring.seal('vault', JSON.stringify({ kind: 'secret', n }), context);
    await redis.client.set(`viaduct:vault:{${userId}}:acme-drive`, sealed, 'EX', 3_600);
  }
  world.stack.env['VIADUCT_SECRET_KEYS'] = `${line('second')},${line('first')}`;
  // As a rollout does it: whoever seals with the new key comes after everybody can open it.
  for (const pod of world.stack.pods) {
    await pod.child.kill();
    await world.stack.restart(pod);
  }
  const progress = 'viaduct:reseal:second';
  const [worker] = workers;
  await worker!.child.kill();
  await world.stack.restart(worker!);
  await until(
    'it is in the middle',
    async () => Number(await redis.client.hget(progress, 'resealed')) > 300,
    {
      timeoutMs: 60_000,
      everyMs: 2,
    },
  );
  await worker!.child.kill();
  const left = await redis.client.hgetall(progress);
  expect(left['done']).toBeUndefined();
  expect(Number(left['resealed'])).toBeLessThan(ENTRIES);
  expect(left['cursor']).toMatch(/^0 [1-9]\d*$/);

  await world.stack.restart(worker!);
  await until('it is done', async () => (await redis.client.hget(progress, 'done')) !== null, {
    timeoutMs: 90_000,
  });
  const goesOn = world.stack.logs().filter(({ msg }) => msg === 'resealing goes on where it was');
  expect(goesOn.at(-1)).toMatchObject({ cursor: left['cursor']!.split(' ')[1] });
  for (const key of await redis.client.keys('viaduct:vault:*')) {
    expect(kidOf((await redis.client.get(key))!), key).toBe('second');
  }
  expect((await client.callTool('echo', {})).result).toBeDefined();
}, 240_000);
