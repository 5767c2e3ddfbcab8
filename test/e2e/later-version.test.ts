import { afterAll, expect, test } from 'vitest';
import { textOf } from '../support/mcp-client.ts';
import { startWorld } from '../support/world.ts';

// Two versions beside each other during a rollout: what a later one wrote in another form is neither misread nor
// destroyed by this one (issue 7, item 7). Members that this version does not know stay where they are.

const world = await startWorld({ plainUpstreams: ['plain'] });
afterAll(() => world.stop());
const redis = world.stack.redis.client;
const only = async (pattern: string): Promise<string> => {
  const keys = await redis.keys(pattern);
  expect(keys).toHaveLength(1);
  return keys[0]!;
};

test('[version.session] a session of a later version is 503 here, and stays', async () => {
  const ann = await world.client('ann', { upstream: 'plain' }).initialize();
  const key = await only('viaduct:session:*');
  await redis.hset(key, 'v', '2', 'shape', 'of things to come');
  const before = await redis.hgetall(key);
  for (const pod of [0, 1]) {
    const message = { jsonrpc: '2.0', id: 'mine', method: 'tools/list' };
    for (const answer of [await ann.post(message, { pod }), await ann.get({ pod })]) {
      expect(answer.status).toBe(503);
      expect(Number(answer.headers['retry-after'])).toBeGreaterThan(0);
    }
    expect((await ann.post(message, { pod })).json?.error?.message).toContain('later version');
    const stranger = world.client('ben', { upstream: 'plain' });
    stranger.sessionId = ann.sessionId!;
    expect((await stranger.post(message, { pod })).status, 'and tells a stranger nothing').toBe(
      404,
    );
  }
  expect(await redis.hgetall(key)).toEqual(before);

  await redis.hset(key, 'v', '1');
  expect(textOf(await ann.callTool('echo', { n: 1 }))).toBe('{"n":1}');
  expect(await redis.hget(key, 'shape')).toBe('of things to come');
  await ann.end();
});

test.for<[string, Record<string, string>]>([
  ['in another form', { v: '2' }],
  ['in a state that this version does not know', { state: 'reviewed' }],
])('[version.elicitation] one %s is not there, and stays', async ([, changed]) => {
  const eva = await world.client('eva').initialize();
  const asked = await world.askForLink(eva);
  const id = new URL(asked.url).pathname.split('/').at(-1)!;
  const key = await only(`viaduct:elicitation:*:${id}`);
  await redis.hset(key, changed);
  const before = await redis.hgetall(key);
  const browser = world.browser('eva');
  for (const path of [asked.url, `${asked.url}/status`]) {
    expect((await browser.open(path)).status, path).toBe(404);
  }
  const again = await world.askForLink(eva, { pod: 1 });
  expect(again.url).not.toBe(asked.url);
  expect((await browser.open(again.url)).status).toBe(200);
  const after = await redis.hgetall(key);
  expect(after).toEqual(before);
  await eva.end();
});
