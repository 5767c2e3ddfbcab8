import { afterAll, describe, expect, test } from 'vitest';
import type { EventStream } from '../support/event-stream.ts';
import type { Call, McpClient } from '../support/mcp-client.ts';
import { textOf } from '../support/mcp-client.ts';
import { startWorld } from '../support/world.ts';
import { never, until } from '../support/until.ts';

// `Last-Event-ID` replays exactly the missed events of that stream, from any pod (cases E3, E4; issue 2, item 7).

const world = await startWorld({
  workers: 0,
  plainUpstreams: ['plain'],
  config: { sessions: { streamAfterMs: 100 } },
});
afterAll(() => world.stop());
const plain = world.plain['plain']!;
const progress = (stream: EventStream) =>
  stream.named('notifications/progress').map(({ params }) => params!['message']);

/** A call that has sent two steps and waits; the client knows the first one's id and is gone. */
async function dropped(
  client: McpClient,
  tag: string,
  pod: number,
): Promise<{ call: Call; first: string }> {
  const call = client.beginTool('steps', { tag }, { pod, meta: { progressToken: tag } });
  const stream = await call.stream();
  const event = await stream.event(
    'step 1',
    ({ message }) => message?.params?.['message'] === `${tag}1`,
  );
  await stream.event('step 2', ({ message }) => message?.params?.['message'] === `${tag}2`);
  await call.drop();
  return { call, first: event.id! };
}

describe('a call whose stream was lost', () => {
  test('[E3] each resumed stream has the rest of its own call, and of no other', async () => {
    const client = await world.client('ann', { upstream: 'plain' }).initialize();
    const a = await dropped(client, 'a', 0);
    const b = await dropped(client, 'b', 1);
    plain.gate('a').open();
    plain.gate('b').open();
    for (const [{ call, first }, tag, pod] of [
      [a, 'a', 1],
      [b, 'b', 0],
    ] as const) {
      const stream = await client.listen({ pod, lastEventId: first });
      const answer = await stream.message(
        'the answer',
        ({ id, method }) => !method && id === call.id,
      );
      expect(textOf(answer)).toBe(`${tag} done`);
      expect(progress(stream)).toEqual([`${tag}2`, `${tag}3`, `${tag}4`]);
      expect(stream.messages.filter(({ method }) => method === undefined)).toHaveLength(1);
      await stream.ended();
    }
  });

  test('[E4] going away is no cancellation: the call ends upstream, and its answer waits on any pod', async () => {
    const client = await world.client('ben', { upstream: 'plain' }).initialize();
    const { call, first } = await dropped(client, 'gone', 0);
    plain.gate('gone').open();
    // the answer came while nobody was there
    const log = `viaduct:log:{${world.userId('ben')}}:${client.sessionId}`;
    await until('the answer is in the log', async () => {
      return JSON.stringify(await world.stack.redis.client.xrange(log, '-', '+')).includes(
        'gone done',
      );
    });
    expect(plain.cancelled).toEqual([]);
    const stream = await client.listen({ pod: 1, lastEventId: first });
    expect(textOf(await stream.message('the answer', ({ id }) => id === call.id))).toBe(
      'gone done',
    );
    await stream.ended();
  });

  test('[E4] the client is back before the answer: it comes live, from the pod that holds the upstream', async () => {
    const client = await world.client('cleo', { upstream: 'plain' }).initialize();
    const { call, first } = await dropped(client, 'live', 0);
    const stream = await client.listen({ pod: 1, lastEventId: first });
    await stream.event('step 2 again', ({ message }) => message?.params?.['message'] === 'live2');
    plain.gate('live').open();
    expect(textOf(await stream.message('the answer', ({ id }) => id === call.id))).toBe(
      'live done',
    );
    expect(progress(stream)).toEqual(['live2', 'live3', 'live4']);
  });

  test('[E4] resumed twice, each resumption has everything after its own id', async () => {
    const client = await world.client('dan', { upstream: 'plain' }).initialize();
    const { call, first } = await dropped(client, 'twice', 1);
    plain.gate('twice').open();
    for (const pod of [0, 1]) {
      const stream = await client.listen({ pod, lastEventId: first });
      await stream.message('the answer', ({ id }) => id === call.id);
      expect(progress(stream)).toEqual(['twice2', 'twice3', 'twice4']);
      const last = stream.events.at(-2)!.id!;
      const rest = await client.listen({ pod: 1 - pod, lastEventId: last });
      await rest.message('the answer', ({ id }) => id === call.id);
      expect(rest.messages).toHaveLength(1);
    }
  });

  test('[call.holder-killed] the pod that ran the call is killed: an explained error, and no second run', async () => {
    const client = await world.client('eva', { upstream: 'plain' }).initialize({ pod: 1 });
    const call = client.beginTool('hold', { gate: 'lost' }, { pod: 0 });
    const stream = await call.stream();
    const priming = stream.lastEventId!;
    const ran = plain.ran['hold'];
    await world.stack.pods[0]!.child.kill();
    await stream.ended();
    const resumed = await client.listen({ pod: 1, lastEventId: priming });
    const answer = await resumed.message('the answer', ({ id }) => id === call.id, 25_000);
    expect(answer.error).toMatchObject({ code: -32603, data: { reason: 'upstream_call_lost' } });
    expect(plain.ran['hold']).toBe(ran);
    await world.stack.restart(world.stack.pods[0]!);
  }, 60_000);
});

describe('an event id that is not one of this session', () => {
  test('[E3] another user’s, another session’s: nothing of theirs is told', async () => {
    const owner = await world.client('fay', { upstream: 'plain' }).initialize();
    const { call, first } = await dropped(owner, 'own', 0);
    plain.gate('own').open();
    const complete = await owner.listen({ lastEventId: first });
    await complete.message('the answer', ({ id }) => id === call.id);

    const strangers = [
      await world.client('gus', { upstream: 'plain' }).initialize(),
      await world.client('fay', { upstream: 'plain' }).initialize(),
      await world.client('fay', { upstream: 'plain', claims: { client_id: 'other' } }).initialize(),
    ];
    for (const stranger of strangers) {
      for (const pod of [0, 1]) {
        const stream = await stranger.listen({ pod, lastEventId: first });
        await never('an event is replayed', () => stream.messages.length > 0, { forMs: 250 });
        stream.close();
      }
    }
  });

  test.for<[string, string]>([
    ['nonsense', 'nonsense-123'],
    ['empty', ''],
    ['very long', 'x'.repeat(10_000)],
    ['a Redis id', '0-0'],
    ['the smallest', '0'],
    ['the largest', '18446744073709551615-18446744073709551615'],
    ['a range', '- +'],
    ['a key', '{*}:g:0-0'],
  ])('[E3] %s: nothing is replayed, and the stream opens', async ([, lastEventId]) => {
    const client = await world.client('hal', { upstream: 'plain' }).initialize();
    const { call, first } = await dropped(client, `h${lastEventId.slice(0, 9)}`, 0);
    plain.gate(`h${lastEventId.slice(0, 9)}`).open();
    await (
      await client.listen({ lastEventId: first })
    ).message('its answer', ({ id }) => id === call.id);
    for (const pod of [0, 1]) {
      const stream = await client.listen({ pod, lastEventId });
      await never('an event is replayed', () => stream.messages.length > 0, { forMs: 250 });
      expect(stream.open).toBe(true);
      stream.close();
    }
  });

  test('[E3] an id of the listening stream replays that stream only', async () => {
    const client = await world.client('ida', { upstream: 'plain' }).initialize({ pod: 0 });
    const listening = await client.listen({ pod: 0 });
    await until('an upstream event', () => {
      plain.notify('notifications/tools/list_changed');
      return listening.lastEventId;
    });
    const { lastEventId } = listening;
    listening.close();
    const { call, first } = await dropped(client, 'beside', 1);
    plain.gate('beside').open();
    await (
      await client.listen({ lastEventId: first })
    ).message('the answer', ({ id }) => id === call.id);
    const resumed = await client.listen({ pod: 1, lastEventId: lastEventId! });
    await never('an event of the call', () =>
      resumed.messages.some(({ method, id }) => id === call.id || method?.endsWith('/progress')),
    );
    expect(resumed.open).toBe(true);
  });
});
