import net from 'node:net';
import { afterAll, expect, test } from 'vitest';
import { textOf } from '../support/mcp-client.ts';
import { startModernUpstream } from '../support/modern-upstream.ts';
import { freePort } from '../support/net.ts';
import { startRedis } from '../support/redis-server.ts';
import { startWorld } from '../support/world.ts';

// The nudge that an answer has come is lost on its way to the pod that waits for it, and nothing else is: the pod looks
// by itself (invariant 4; found by the failure suite on a Cluster).

const redis = await startRedis();
const port = await freePort();
let lost = 0;
const wire = net.createServer({ noDelay: true }, (socket) => {
  const onward = net.connect({ port: redis.port, host: '127.0.0.1', noDelay: true });
  socket.on('data', (chunk) => onward.write(chunk));
  onward.on('data', (chunk) => {
    if (chunk.includes('\nanswered\n')) lost += 1;
    else socket.write(chunk);
  });
  for (const one of [socket, onward]) one.on('error', () => one.destroy());
  socket.on('close', () => onward.destroy());
  onward.on('close', () => socket.destroy());
});
await new Promise<void>((resolve) => wire.listen(port, '127.0.0.1', resolve));
const alpha = await startModernUpstream({ name: 'alpha' });
const world = await startWorld({
  workers: 0,
  ownUpstreams: [{ name: 'alpha', url: alpha.endpoint }],
  redisUrlFor: () => `redis://127.0.0.1:${port}`,
});
afterAll(async () => {
  await world.stop();
  await alpha.stop();
  wire.close();
  await redis.stop();
});

test('[nudge.lost] an answer that came to another pod is found without a nudge', async () => {
  const ann = await world.client('ann', { upstream: 'alpha' }).initialize();
  const answer = { action: 'accept', content: { name: 'Ann' } };
  const call = ann.beginTool('ask_form', {}, { pod: 0, onAsk: () => answer, answerAt: 1 });
  expect(textOf(await call.message())).toBe(JSON.stringify(answer));
  expect(lost).toBe(1);
}, 60_000);
