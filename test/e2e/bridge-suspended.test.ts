import { afterAll, describe, expect, test } from 'vitest';
import { textOf } from '../support/mcp-client.ts';
import { accept, answering, ModernClient } from '../support/modern-client.ts';
import { until } from '../support/until.ts';
import { says } from '../support/upstream-tools.ts';
import { startWorld } from '../support/world.ts';

// Suspended calls of a modern client on a legacy upstream (issue 4, item 5): what they cost while nothing happens, and
// what becomes of them when their pod stops or the store is away.

const at = await startWorld({
  workers: 0,
  plainUpstreams: ['plain'],
  config: { elicitation: { ttlSeconds: 300, connectWaitSeconds: 5 } },
});
afterAll(() => at.stop());
const plain = at.plain['plain']!;
const { redis, pods } = at.stack;

const client = (user: string): ModernClient =>
  new ModernClient({
    url: at.endpoint('plain'),
    ports: at.stack.ports,
    token: at.token(user, {}, 'plain'),
  });
const ann = client('ann');
const ask = (serial: number) => ann.tool('ask_form', { serial }, { pod: 0 });
const suspended = () => at.stack.metric('viaduct_suspended_calls');

/** Commands of each kind so far, without the test's own and those of health checks. */
async function commands(): Promise<Record<string, number>> {
  const stats = await redis.client.info('commandstats');
  const counts: Record<string, number> = {};
  for (const [, name, calls] of stats.matchAll(/cmdstat_(\S+?):calls=(\d+)/g)) {
    if (!/^(info|ping|set|client)/.test(name!)) counts[name!] = Number(calls);
  }
  return counts;
}

const heartbeats = () => redis.calls('set');

describe('calls that wait', () => {
  test('[bridge.quiet] cost no commands but the heartbeats of their pods', async () => {
    const serials = Array.from({ length: 200 }, (_, i) => i);
    const firsts = await Promise.all(serials.map(ask));
    expect(await suspended()).toBe(serials.length);
    const before = await commands();
    const beats = await heartbeats();
    // Two rounds of heartbeats of both pods: time enough for anything that polls.
    await until(
      'the pods have been alive for a while',
      async () => (await heartbeats()) >= beats + 4,
    );
    expect(await commands()).toEqual(before);

    const last = await Promise.all(
      firsts.map((first, serial) =>
        ann.tool(
          'ask_form',
          { serial },
          { pod: 1, ...answering(first, () => ({ action: 'accept', content: { serial } })) },
        ),
      ),
    );
    expect(last.map((message) => JSON.parse(textOf(message)!) as unknown)).toEqual(
      serials.map((serial) => ({ action: 'accept', content: { serial } })),
    );
    expect(await suspended()).toBe(0);
    const left = await redis.client.keys('viaduct:*call:*');
    expect([...left, ...(await redis.client.keys('viaduct:suspended:*'))]).toEqual([]);
  });

  test('[bridge.quiet] a plain call leaves no record and costs one round trip', async () => {
    await ann.tool('echo', {}, { pod: 0 });
    const before = await commands();
    await ann.tool('echo', {}, { pod: 0 });
    const after = await commands();
    const more = Object.keys(after).filter((name) => after[name] !== before[name]);
    // What the limits do, and nothing else.
    for (const name of more)
      expect(name).toMatch(/^(multi|exec|incr.*|.*expire|pttl|ttl|eval.*|get)$/);
  });
});

describe('a pod that stops', () => {
  test('[bridge.drain] serves retries while it drains, and says then what has become of the rest', async () => {
    const [early, late] = await Promise.all([ask(1001), ask(1002)]);
    const runs = plain.ran['ask_form'];
    const answers = plain.answers.length;
    pods[0]!.child.signal('SIGTERM');
    await until('it drains', async () =>
      (await at.stack.pods[0]!.metrics()).includes('viaduct_drain_state 2'),
    );
    const served = await ann.tool(
      'ask_form',
      { serial: 1001 },
      { pod: 1, ...answering(early, accept) },
    );
    expect(textOf(served)).toContain('accept');
    await until('it has stopped', () => !pods[0]!.child.running, { timeoutMs: 20_000 });
    expect(pods[0]!.child.code).toBe(0);
    expect(plain.answers.slice(answers).map(({ result }) => result)).toEqual([
      { action: 'accept' },
      { action: 'cancel' },
    ]);
    const { error } = await ann.tool(
      'ask_form',
      { serial: 1002 },
      { pod: 1, ...answering(late, accept) },
    );
    expect(error).toMatchObject({ code: -32603, data: { reason: 'upstream_call_lost' } });
    expect(plain.ran['ask_form']).toBe(runs);
    await at.stack.restart(pods[0]!);
  });
});

describe('a store that is away', () => {
  test('[bridge.store] for a moment costs no call that goes on', async () => {
    plain.tools['then_hold'] = {
      description: 'Asks, then waits at a gate',
      run: async (_args, { ask: asks, gate }) => {
        await asks('elicitation/create', { message: 'Who?', requestedSchema: { type: 'object' } });
        await gate('store').pass();
        return says('held');
      },
    };
    const first = await ann.tool('then_hold', {}, { pod: 0 });
    const retry = ann.tool('then_hold', {}, { pod: 1, ...answering(first, accept) });
    await until('the answer is there', () => plain.gate('store').arrived);
    redis.freeze();
    plain.gate('store').open();
    await until(
      'the pods miss the store',
      async () => (await pods[0]!.admin('/healthz/ready')).status === 503,
    );
    redis.thaw();
    expect(textOf(await retry)).toBe('held');
    expect(plain.ran['then_hold']).toBe(1);
  });
});
