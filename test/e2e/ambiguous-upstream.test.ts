import { afterAll, expect, test } from 'vitest';
import { manyClient } from '../support/many.ts';
import { startWorld } from '../support/world.ts';

// An upstream may say what is JSON and still has two meanings. That is one call's trouble, whatever the endpoint has
// to look for in it, and never the end of a pod.

const world = await startWorld({ plainUpstreams: ['plain'] });
afterAll(() => world.stop());
const plain = world.plain['plain']!;

const SHAPES: Record<string, string> = {
  'content twice': '{"content":[],"content":[{"type":"text","text":"x"}]}',
  'a uri twice': '{"content":[{"type":"resource_link","uri":"a://1","uri":"a://2","name":"n"}]}',
};

test.each(Object.entries(SHAPES))('[upstream.twice] %s', async (_name, raw) => {
  plain.tools['odd'] = { description: 'says it twice', run: () => Promise.resolve({ raw }) };
  const many = await manyClient(world, 'ann').initialize();
  for (const pod of [0, 1]) {
    const message = await many.callTool('plain__odd', {}, { pod });
    expect(message.error).toMatchObject({ code: -32603, data: { reason: 'upstream_invalid' } });
  }
  // On the endpoint of one there is nothing to look for, and it passes as it is.
  const one = await world.client('ann', { upstream: 'plain' }).initialize();
  expect(await one.beginTool('odd', {}).raw()).toContain(raw);
  expect(world.stack.pods.every(({ child }) => child.running)).toBe(true);
});
