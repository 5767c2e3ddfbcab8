import { afterAll, describe, expect, test } from 'vitest';
import type { EventStream } from '../support/event-stream.ts';
import type { UrlElicitation } from '../support/net.ts';
import { startWorld, type World } from '../support/world.ts';
import { never, until } from '../support/until.ts';

// An event costs one PUBLISH, whether there are 2 pods or 200 (invariant 3). Redis itself counts.

const COMPLETE = 'notifications/elicitation/complete';

/** Completions for as many users, each listening on another pod than the one that was called. */
async function complete(world: World, users: string[]): Promise<void> {
  const podCount = world.stack.pods.length;
  const flows: { user: string; stream: EventStream; asked: UrlElicitation }[] = [];
  for (const [i, user] of users.entries()) {
    const client = await world.client(user).initialize({ pod: i % podCount });
    const stream = await client.listen({ pod: (i + 1) % podCount });
    const asked = await world.askForLink(client, { pod: i % podCount });
    flows.push({ user, stream, asked });
  }
  for (const { user, stream, asked } of flows) {
    await world.walk(world.browser(user), asked.url);
    await stream.notification(COMPLETE);
  }
  await never('a completion on another stream', () =>
    flows.some(({ stream }) => stream.named(COMPLETE).length !== 1),
  );
}

async function published(world: World): Promise<number> {
  const { redis } = world.stack;
  return (await redis.calls('publish')) + (await redis.calls('spublish'));
}

describe.for([2, 6])('%i pods', (pods) => {
  test(`[bus.one-publish] one PUBLISH per completion`, async () => {
    const world = await startWorld({ pods });
    try {
      const before = await published(world);
      await complete(world, ['ann', 'ben', 'cleo', 'dan', 'eva']);
      expect((await published(world)) - before).toBe(5);

      // nobody listens to everything
      const { client } = world.stack.redis;
      expect(await client.pubsub('NUMPAT')).toBe(0);
      const channels = (await client.pubsub('CHANNELS', '*')) as string[];
      const counts = (await client.pubsub('NUMSUB', ...channels)) as (string | number)[];
      expect(channels.filter((name) => name.startsWith('viaduct:pod:'))).toHaveLength(pods);
      expect(counts.filter((_, i) => i % 2 === 1)).toEqual(channels.map(() => 1));
    } finally {
      await world.stop();
    }
  });
});

describe('two pods', async () => {
  const world = await startWorld();
  afterAll(() => world.stop());

  test('[bus.idle] streams that stand open publish nothing', async () => {
    const client = await world.client('fin').initialize({ pod: 0 });
    const stream = await client.listen({ pod: 1 });
    const before = await published(world);
    await never('a PUBLISH', async () => (await published(world)) > before, {
      forMs: 1_500,
      everyMs: 200,
    });
    expect(stream.open).toBe(true);
  });

  test('[bus.stored] with nobody listening the event waits in the log for the next GET', async () => {
    const client = await world.client('gil').initialize({ pod: 0 });
    const asked = await world.connect(client, 'gil');
    const log = `viaduct:log:{${world.userId('gil')}}:${client.sessionId}`;
    const entries = await world.stack.redis.client.xrange(log, '-', '+');
    expect(JSON.stringify(entries)).toContain(asked.elicitationId);
    const stream = await client.listen({ pod: 1 });
    const message = await stream.notification(COMPLETE);
    expect(message.params).toMatchObject({ elicitationId: asked.elicitationId });
  });

  test('[bus.upstream] an upstream’s own event reaches the one stream, whichever pod holds it', async () => {
    const one = await world.client('hal').initialize({ pod: 0 });
    const two = await world.client('ida').initialize({ pod: 1 });
    const streams = [await one.listen({ pod: 1 }), await two.listen({ pod: 0 })];
    await until('the pods listen at the upstream', () => world.files.listening() >= 2);
    const before = await published(world);
    const sessions = [...world.files.sessions.values()].filter((session) => session.listening);
    const reached = world.files.notify(
      'notifications/tools/list_changed',
      undefined,
      sessions.at(-1),
    );
    expect(reached).toBe(1);
    const total = () =>
      streams.flatMap((stream) => stream.named('notifications/tools/list_changed')).length;
    await until('the notification', total);
    await never('a second copy', () => total() > 1);
    expect((await published(world)) - before).toBeLessThanOrEqual(1);
  });

  test('[bus.dead-pod] the heartbeat of a killed pod runs out', async () => {
    const { client } = world.stack.redis;
    const heartbeats = () => client.keys('viaduct:pod:pod2*');
    const [key] = await until('a heartbeat', heartbeats);
    expect(await client.pttl(key!)).toBeGreaterThan(0);
    expect(await client.pttl(key!)).toBeLessThanOrEqual(10_000);
    await world.stack.pods[1]!.child.kill();
    await until('the heartbeat is gone', async () => !(await client.exists(key!)), {
      timeoutMs: 15_000,
    });
    await world.stack.restart(world.stack.pods[1]!);
    const [again] = await until('a heartbeat', heartbeats);
    expect(again, 'a restarted pod is a new pod').not.toBe(key);
  });
});
