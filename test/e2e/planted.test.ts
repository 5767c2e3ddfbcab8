import { afterAll, describe, expect, test } from 'vitest';
import { found, planted, takeLeaks } from '../support/planted.ts';
import { startWorld } from '../support/world.ts';

// The scan that every stack ends with (support/planted.ts; invariant 9) sees what it is there to see.

describe('a planted secret', () => {
  test.for([0, 1, 2, 3])('[scan.sees] is found in base64, %i bytes in', (offset) => {
    const text = `${'.'.repeat(offset)}${planted('any')}.`;
    expect(found(text)).toBeDefined();
    expect(found(Buffer.from(text).toString('base64'))).toBeDefined();
    expect(found(Buffer.from(text).toString('base64url'))).toBeDefined();
    expect(found(Buffer.from(text).toString('hex'))).toBeDefined();
  });

  test('[scan.sees] is not found where there is none', () => {
    const innocent = JSON.stringify({ planted: 'Secret', secretPlanted: 1 });
    expect(found(innocent)).toBeUndefined();
    expect(found(Buffer.from(innocent).toString('base64'))).toBeUndefined();
  });

  test('[scan.sees] shows when it reaches a client, on a stream or not, and in Redis at the end', async () => {
    const world = await startWorld({ pods: 1, workers: 0, plainUpstreams: ['plain'] });
    let ended: Promise<void> | undefined;
    afterAll(() => ended);
    const client = await world.client('ann', { upstream: 'plain' }).initialize();
    takeLeaks();
    await client.callTool('echo', { text: planted('relayed') });
    expect(takeLeaks().join('\n')).toContain('from port');
    await world.stack.redis.client.set('viaduct:somewhere', planted('stored'), 'EX', 60);
    ended = world.stop();
    await expect(ended).rejects.toThrow('Redis viaduct:somewhere');
    ended = undefined;
  });
});
