import net from 'node:net';
import { afterAll, expect, test } from 'vitest';
import { textOf } from '../support/mcp-client.ts';
import { freePort } from '../support/net.ts';
import { startRedis } from '../support/redis-server.ts';
import { until } from '../support/until.ts';
import { startWorld } from '../support/world.ts';

// The reply to the claim of an answer is lost on its way back from Redis: the claim was made, and the gateway cannot
// know. It says 503, the client sends its answer again, and the upstream gets it (found by the failure suite).

const redis = await startRedis();
const port = await freePort();
const CLAIM = 'Takes the record of a request that an upstream made';
let swallow = false;
let swallowed = 0;
const wire = net.createServer({ noDelay: true }, (socket) => {
  const onward = net.connect({ port: redis.port, host: '127.0.0.1', noDelay: true });
  socket.on('data', (chunk) => {
    if (swallow && chunk.includes(CLAIM)) {
      swallow = false;
      swallowed += 1;
      onward.pause(); // the command goes out, and nothing comes back for longer than anybody waits
      setTimeout(() => onward.resume(), 1_500);
    }
    onward.write(chunk);
  });
  onward.on('data', (chunk) => socket.write(chunk));
  for (const one of [socket, onward]) one.on('error', () => one.destroy());
  socket.on('close', () => onward.destroy());
  onward.on('close', () => socket.destroy());
});
await new Promise<void>((resolve) => wire.listen(port, '127.0.0.1', resolve));
const world = await startWorld({
  pods: 1,
  workers: 0,
  plainUpstreams: ['plain'],
  redisUrlFor: () => `redis://127.0.0.1:${port}`,
});
afterAll(async () => {
  await world.stop();
  wire.close();
  await redis.stop();
});

test('[ask.again] an answer whose claim was not confirmed can be sent again, and arrives', async () => {
  const ann = await world.client('ann', { upstream: 'plain' }).initialize();
  const call = ann.beginTool('ask_form');
  const asked = await (await call.stream()).message('the question', ({ method }) => method === 'elicitation/create');
  const answer = { action: 'accept', content: { name: 'Ann' } };
  swallow = true;
  const first = await ann.answer(asked.id!, answer);
  expect([swallowed, first.status]).toEqual([1, 503]);
  await until('the answer is taken', async () => (await ann.answer(asked.id!, answer)).status === 202);
  expect(textOf(await call.message())).toBe(JSON.stringify(answer));
}, 60_000); // prettier-ignore
