import { afterAll, describe, expect, test } from 'vitest';
import type { EventStream } from '../support/event-stream.ts';
import { textOf } from '../support/mcp-client.ts';
import { startWorld } from '../support/world.ts';
import { never, until } from '../support/until.ts';

// Streams as proxies and clients need them (cases E1, E2; design, section 9 "A slow call").

const world = await startWorld({
  plainUpstreams: ['plain'],
  config: { sessions: { keepAliveSeconds: 1, streamAfterMs: 100 } },
});
afterAll(() => world.stop());
const { stack } = world;
const plain = world.plain['plain']!;
const LOG = 'notifications/message';

async function breathes(stream: EventStream): Promise<void> {
  const before = stream.comments.length;
  await until('two keep-alive comments', () => stream.comments.length >= before + 2);
  // a comment is no event: it carries no id and surfaces as nothing
  expect(stream.raw).not.toMatch(/^:.*\n+id:/m);
}

describe('an open stream', () => {
  test('[E1] a listening stream and a silent call both show that they live', async () => {
    const client = await world.client('ann', { upstream: 'plain' }).initialize();
    const listening = await client.listen();
    const call = client.beginTool('hold', { gate: 'e1' });
    const calling = await call.stream();
    await Promise.all([breathes(listening), breathes(calling)]);
    expect(listening.messages).toEqual([]);
    expect(calling.messages).toEqual([]);
    plain.gate('e1').open();
    expect(textOf(await call.message())).toBe('held e1');
    await calling.ended();
  });

  test('[E1] carries the headers that keep proxies from holding it back', async () => {
    const client = await world.client('ben', { upstream: 'plain' }).initialize();
    const gzip = { 'Accept-Encoding': 'gzip, br' };
    const call = client.beginTool('hold', { gate: 'e1h' }, { headers: gzip });
    const answers = [await client.get({ headers: gzip }), await call.http];
    for (const answer of answers) {
      expect(answer.headers['content-type']).toMatch(/^text\/event-stream/);
      expect(answer.headers['x-accel-buffering']).toBe('no');
      expect(answer.headers['cache-control']).toMatch(/no-cache|no-store/);
      expect(answer.headers['cache-control']).toContain('no-transform');
      expect(answer.headers['content-encoding']).toBeUndefined();
      expect(answer.headers['content-length']).toBeUndefined();
      answer.close();
    }
    plain.gate('e1h').open();
  });

  test('[call.fast] a fast call is plain JSON and leaves nothing in the log', async () => {
    const client = await world.client('cleo', { upstream: 'plain' }).initialize();
    const { headers } = await client.beginTool('echo', {}).http;
    expect(headers['content-type']).toMatch(/^application\/json/);
    const log = `viaduct:log:{${world.userId('cleo')}}:${client.sessionId}`;
    expect(await stack.redis.client.xlen(log)).toBe(0);
  });

  test('[call.priming] a 2025-11-25 client gets an id first, an older one a comment; every event has an id', async () => {
    for (const version of ['2025-11-25', '2025-06-18', '2025-03-26']) {
      const client = await world.client('dan', { upstream: 'plain', version }).initialize();
      const call = client.beginTool(
        'steps',
        { tag: `prime-${version}` },
        { meta: { progressToken: 1 } },
      );
      const stream = await call.stream();
      await stream.notification('notifications/progress');
      const [first] = stream.events;
      if (version === '2025-11-25') {
        expect(first).toMatchObject({ data: '' });
        expect(first!.id).toBeTruthy();
      } else {
        expect(first!.message, 'no empty event for a client that would choke on it').toBeDefined();
      }
      plain.gate(`prime-${version}`).open();
      await call.message();
      const ids = stream.events.map(({ id }) => id);
      expect(ids.every(Boolean)).toBe(true);
      expect(new Set(ids).size).toBe(ids.length);
      expect(
        stream.named('notifications/progress').map(({ params }) => params!['progress']),
      ).toEqual([1, 2, 3, 4]);
    }
  });
});

describe('two listening streams of a session', () => {
  test('[E2] a newer one takes over at once, and each message is on exactly one', async () => {
    const client = await world.client('eva', { upstream: 'plain' }).initialize({ pod: 0 });
    const old = await client.listen({ pod: 0 });
    await until('the upstream is listened to', () => plain.listening() > 0);
    const answer = await client.get({ pod: 1 });
    expect(answer.status).toBe(200);
    const next = answer.stream!;
    // numbered, so that every copy can be told
    let n = 0;
    const copies = (stream: EventStream, number: number) =>
      stream.named(LOG).filter(({ params }) => params!['data'] === number).length;
    await until('an upstream event on the new stream', () => {
      plain.notify(LOG, { level: 'info', data: ++n });
      return next.named(LOG).length;
    });
    const last = ++n;
    plain.notify(LOG, { level: 'info', data: last });
    await until('the last one, on the new stream', () => copies(next, last));
    await never('two copies of one event', () => {
      for (let i = 1; i <= last; i++) if (copies(old, i) + copies(next, i) > 1) return true;
      return copies(old, last) > 0;
    });
    for (const stream of [old, next]) stream.close();
  });

  test('[E2] the pod of the old one hangs: the new one gets everything, and nothing comes twice when it wakes', async () => {
    const client = await world.client('fay').initialize({ pod: 0 });
    const old = await client.listen({ pod: 0 });
    const asked = await world.askForLink(client, { pod: 1 });
    stack.pods[0]!.child.freeze();
    stack.roundRobin!.only(1);
    try {
      const answer = await client.get({ pod: 1 });
      expect(answer.status).toBe(200);
      const next = answer.stream!;
      await world.walk(world.browser('fay'), asked.url);
      await next.notification('notifications/elicitation/complete');
      stack.pods[0]!.child.thaw();
      stack.roundRobin!.only();
      await stack.pods[0]!.ready();
      await never('a duplicate', () => {
        const all = [...old.messages, ...next.messages];
        return all.filter(({ method }) => method?.endsWith('/complete')).length > 1;
      });
      next.close();
    } finally {
      stack.pods[0]!.child.thaw();
      stack.roundRobin!.only();
      old.close();
    }
  }, 60_000);
});
