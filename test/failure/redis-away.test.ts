import { afterAll, describe, expect, test } from 'vitest';
import type { Answer } from '../support/net.ts';
import { send } from '../support/net.ts';
import { startWorld } from '../support/world.ts';
import { until } from '../support/until.ts';

// Redis away: 503 with Retry-After while it is away, on every route, never 401 or 404 for a valid token; readiness false,
// liveness true; heals without a restart (invariant 12; issue 2, item 4; case R2).

const world = await startWorld({ plainUpstreams: ['plain'] });
afterAll(() => world.stop());
const { stack } = world;

function expectAway(answer: Answer, what: string): void {
  expect(answer.status, what).toBe(503);
  expect(Number(answer.headers['retry-after']), what).toBeGreaterThan(0);
  expect(answer.headers['x-request-id'], what).toBeTruthy();
}

async function ready(status: number): Promise<void> {
  for (const pod of stack.pods) {
    await until(`${pod.name} readiness is ${status}`, async () => {
      return (await pod.admin('/healthz/ready')).status === status;
    });
    expect((await pod.admin('/healthz/live')).status).toBe(200);
  }
}

/** The cookies of a person's browser at the gateway. */
async function loggedIn(user: string): Promise<string> {
  const browser = world.browser(user);
  expect((await browser.open(`${world.publicUrl}/connections`)).status).toBe(200);
  return [...browser.cookies.get('localhost')!].map((pair) => pair.join('=')).join('; ');
}

/** By itself, and seen by a client: readiness may not have noticed a short outage. */
async function healed(): Promise<void> {
  await ready(200);
  const client = world.client('visitor', { upstream: 'plain' });
  for (const pod of [0, 1]) {
    await until(`pod ${pod} works again`, async () => {
      return (await client.post(client.initializeMessage(), { pod })).status === 200;
    });
  }
}

describe.for(['frozen', 'killed'])('Redis is %s', (how) => {
  const away = async () => (how === 'frozen' ? stack.redis.freeze() : stack.redis.kill());
  const back = async () => (how === 'frozen' ? stack.redis.thaw() : stack.redis.start());

  test(`[redis.away] requests fail fast with 503, and it heals by itself`, async () => {
    const client = await world.client(`ann-${how}`, { upstream: 'plain' }).initialize();
    const fresh = world.client(`ben-${how}`, { upstream: 'plain' });
    const cookie = await loggedIn(`ann-${how}`);

    await away();
    try {
      const message = { jsonrpc: '2.0', id: 7, method: 'tools/list' };
      for (const pod of [0, 1, 0, 1]) {
        const answer = await client.post(message, { pod });
        expectAway(answer, 'POST');
        expect(answer.json).toMatchObject({
          id: 7,
          error: { data: { requestId: expect.any(String) as string } },
        });
      }
      expectAway(await client.post(message, { pod: 0 }), 'POST');
      expectAway(await client.get({ pod: 1 }), 'GET');
      expectAway(await client.end({ pod: 0 }), 'DELETE');
      expectAway(await fresh.post(fresh.initializeMessage(), { pod: 1 }), 'initialize');
      expectAway(
        await client.notify('notifications/cancelled', { requestId: 1 }, { pod: 0 }),
        'notification',
      );

      // every route knows by now, those too that would not have asked Redis
      await ready(503);
      const id = 'x'.repeat(22);
      for (const path of ['/connections', `/connect/${id}`, `/connect/${id}/status`, '/login']) {
        const answer = await send(`${world.publicUrl}${path}`, {
          port: stack.ports[0],
          headers: { Cookie: cookie, Accept: 'text/html' },
        });
        expectAway(answer, path);
        expect(answer.headers['content-type']).toMatch(/^text\/html/);
      }
      const nobody = world.client('x', { token: null, upstream: 'plain' });
      const unauthorized = await nobody.post(message, { pod: 1 });
      expect(unauthorized.status, 'no token is still no token').toBe(401);
      expect(await stack.metric('viaduct_redis_up')).toBe(0);
    } finally {
      await back();
      await healed();
    }
    const old = await client.post({ jsonrpc: '2.0', id: 8, method: 'tools/list' });
    // frozen: the session is still there; killed: this Redis has lost it, and 404 says so
    expect(old.status).toBe(how === 'frozen' ? 200 : 404);
    expect(stack.pods.every((pod) => pod.child.running)).toBe(true);
    expect(stack.workers.every((worker) => worker.child.running)).toBe(true);
  });

  test(`[redis.away] requests of every kind at the very moment: all of them fail meanwhile`, async () => {
    const clients = await Promise.all(
      Array.from({ length: 6 }, () => {
        return world.client(`dan-${how}`, { upstream: 'plain' }).initialize();
      }),
    );
    const fresh = world.client(`eve-${how}`, { upstream: 'plain' });
    const nobody = world.client('x', { token: null, upstream: 'plain' });
    const message = { jsonrpc: '2.0', id: 7, method: 'tools/list' };
    const cookie = await loggedIn(`dan-${how}`);
    const call = { ...message, method: 'tools/call', params: { name: 'echo', arguments: {} } };
    await away();
    try {
      const at = { pod: 0 };
      const answers = await Promise.all([
        ...clients.map((client) => client.post(message, at)),
        ...clients.map((client) => client.post(call, at)),
        ...clients.map((client) => client.get(at)),
        fresh.post(fresh.initializeMessage(), at),
        clients[0]!.end(at),
        send(`${world.publicUrl}/connections`, {
          port: stack.ports[0],
          headers: { Cookie: cookie },
        }),
        nobody.post(message, at),
      ]);
      const unauthorized = answers.pop()!;
      expect(unauthorized.status).toBe(401);
      expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 503));
    } finally {
      await back();
      await healed();
    }
  });

  test(`[redis.away] a stream that was open survives, or its client comes back, and hears of what comes later`, async () => {
    const client = await world.client(`cleo-${how}`).initialize();
    const stream = await client.listen();
    await away();
    await ready(503);
    await back();
    await healed();
    const listening = how === 'frozen' && stream.open;
    const next = listening ? client : await world.client(`cleo-${how}`).initialize();
    const current = listening ? stream : await next.listen();
    const asked = await world.askForLink(next);
    await world.walk(world.browser(`cleo-${how}`), asked.url);
    await current.notification('notifications/elicitation/complete', 30_000);
  });
});

describe('limits.onStoreFailure: deny', async () => {
  const strict = await startWorld({
    pods: 1,
    workers: 0,
    config: { limits: { onStoreFailure: 'deny' } },
  });
  afterAll(() => strict.stop());

  test('[redis.deny] without Redis even a request without a token is 503', async () => {
    const nobody = strict.client('x', { token: null });
    const message = { jsonrpc: '2.0', id: 1, method: 'tools/list' };
    expect((await nobody.post(message)).status).toBe(401);
    strict.stack.redis.freeze();
    expectAway(await nobody.post(message), 'POST without a token');
    strict.stack.redis.thaw();
  });
});
