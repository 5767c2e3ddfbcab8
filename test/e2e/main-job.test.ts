import { afterAll, describe, expect, test } from 'vitest';
import { MISSING_CREDENTIAL, startWorld } from '../support/world.ts';
import type { EventStream } from '../support/event-stream.ts';
import { textOf } from '../support/mcp-client.ts';
import { send } from '../support/net.ts';
import { never, until } from '../support/until.ts';

// The main job, end to end: two pods behind haproxy, one worker, one Redis (issue 2; design, sections 2 and 9).
// `X-Test-Pod` tells haproxy which pod takes a request; everything else is its own round robin.

const world = await startWorld({ balancer: 'haproxy' });
afterAll(() => world.stop());

const { acme, files, stack } = world;
const on = (pod: 1 | 2) => ({ headers: { 'X-Test-Pod': `pod${pod}` } });
const COMPLETE = 'notifications/elicitation/complete';
/** haproxy checks five times a second. */
const served = (pod: 1 | 2) =>
  until(`haproxy sends requests to pod${pod}`, async () => {
    const answer = await send(`${world.publicUrl}/nothing`, on(pod));
    return answer.headers['x-test-served-by'] === `pod${pod}`;
  });
const completions = (stream: EventStream) => stream.named(COMPLETE);

describe('a tool that needs the person’s own credential', () => {
  test('[main.link] the call is answered with one link that tells nothing about anybody', async () => {
    const alice = await world.client('alice-link').initialize(on(1));
    const call = alice.beginTool('echo', { text: 'first' }, on(2));
    const { error } = await call.message();
    const { status, headers } = await call.http;
    expect(headers['x-test-served-by']).toBe('pod2');
    expect(status).toBe(200);
    expect(error?.code).toBe(MISSING_CREDENTIAL);
    expect(error?.data?.elicitations).toHaveLength(1);
    const asked = error!.data!.elicitations![0]!;
    expect(asked.mode).toBe('url');
    expect(asked.url).toBe(`${world.publicUrl}/connect/${asked.elicitationId}`);
    expect(asked.message).toContain('Acme Drive');
    for (const personal of ['alice', '@', world.userId('alice-link'), alice.sessionId!]) {
      expect(asked.url).not.toContain(personal);
    }
    expect(files.calls('echo'), 'the call was not sent upstream').toHaveLength(0);
  });

  test('[main.same-link] while the flow is open, a further call gets the same link', async () => {
    const alice = await world.client('alice-again').initialize(on(1));
    const [first, second, third] = await Promise.all([
      world.askForLink(alice, on(1)),
      world.askForLink(alice, on(2)),
      world.askForLink(alice, on(1)),
    ]);
    expect(second.elicitationId).toBe(first.elicitationId);
    expect(third.elicitationId).toBe(first.elicitationId);
    const otherSession = await world.client('alice-again').initialize(on(2));
    const other = await world.askForLink(otherSession, on(1));
    expect(other.elicitationId).not.toBe(first.elicitationId);
  });

  test('[main.one-stream] the completion reaches the stream of the session that asked, once, and no other', async () => {
    const alice = await world.client('alice').initialize(on(1));
    const secondSession = await world.client('alice').initialize(on(2));
    const bob = await world.client('bob').initialize(on(2));
    const own = await alice.listen(on(1));
    const others = [await secondSession.listen(on(2)), await bob.listen(on(2))];

    const asked = await world.askForLink(alice, on(2));
    const browser = world.browser('alice');
    await browser.open(asked.url);
    const atAcme = await browser.submit({ decision: 'approve', stopAt: `^${acme.url}/authorize` });
    const page = await browser.open(atAcme.stoppedAt!);
    expect(new URL(page.url).pathname).toBe(`/connect/${asked.elicitationId}/status`);

    const arrived = await own.event('completion', ({ message }) => message?.method === COMPLETE);
    expect(arrived.message?.params).toMatchObject({ elicitationId: asked.elicitationId });
    expect(arrived.message).not.toHaveProperty('id');
    await never('a second copy', () =>
      [own, ...others].some((stream, i) => completions(stream).length > (i === 0 ? 1 : 0)),
    );
    expect([own, ...others].every((stream) => stream.open)).toBe(true);

    // and the retry, on the pod that holds no stream, carries the third party's token
    const retry = await alice.callTool('echo', { text: 'retry' }, on(2));
    expect(textOf(retry)).toBe('{"text":"retry"}');
    const upstreamCall = files.calls('echo').find(({ text }) => text.includes('"retry"'))!;
    const sent = upstreamCall.headers.authorization?.replace('Bearer ', '') ?? '';
    expect(acme.isValid(sent), 'the third party’s token was sent upstream').toBe(true);
    expect(await stack.metric('viaduct_bus_events_total')).toBeGreaterThanOrEqual(1);
  });

  test('[main.token-legs] the client’s token never reaches the upstream, the third party’s never the client', async () => {
    const carol = await world.client('carol').initialize(on(1));
    await world.connect(carol, 'carol');
    const call = carol.beginTool('echo', { text: 'legs' }, on(2));
    const answer = await call.raw();
    for (const secret of acme.issued) expect(answer).not.toContain(secret);
    for (const { rawHeaders, text } of files.received) {
      expect(rawHeaders.join('\n') + text).not.toContain(carol.token);
    }
  });

  test('[main.second-session] a second session of the same client calls at once; another user still gets a link', async () => {
    const dave = await world.client('dave').initialize(on(1));
    await world.connect(dave, 'dave');
    const second = await world.client('dave').initialize(on(2));
    expect(textOf(await second.callTool('echo', { text: 'two' }, on(1)))).toBe('{"text":"two"}');
    const erin = await world.client('erin').initialize(on(2));
    await world.askForLink(erin, on(1));
  });
});

describe('the pod that holds the stream is killed', () => {
  test('[main.owner-killed] the client comes back at the other pod with Last-Event-ID and gets the completion', async () => {
    const frank = await world.client('frank').initialize(on(1));
    const stream = await frank.listen(on(1));
    await until('the pod listens at the upstream', () => files.listening() > 0);
    // an event before, so that the client has an id to come back with
    const session = [...files.sessions.values()].at(-1)!;
    await until('an event of the upstream got through', () => {
      files.notify('notifications/tools/list_changed', undefined, session);
      return stream.lastEventId;
    });
    const lastEventId = stream.lastEventId!;

    const asked = await world.askForLink(frank, on(2));
    await stack.pods[0]!.child.kill();
    await stream.ended();
    const browser = world.browser('frank');
    await world.walk(browser, asked.url);
    await world.untilState(browser, asked.url, 'completed');

    const resumed = await frank.listen({ lastEventId });
    const message = await resumed.notification(COMPLETE);
    expect(message.params).toMatchObject({ elicitationId: asked.elicitationId });
    await never('a second copy', () => completions(resumed).length > 1);
    expect(textOf(await frank.callTool('echo', { text: 'on' }))).toBe('{"text":"on"}');
    await stack.restart(stack.pods[0]!);
    await served(1);
  });

  test('[main.owner-killed] … or gets it live, when it came back before the person was done', async () => {
    const grace = await world.client('grace').initialize(on(2));
    const stream = await grace.listen(on(2));
    const asked = await world.askForLink(grace, on(1));
    await stack.pods[1]!.child.kill();
    await stream.ended();
    const again = await grace.listen();
    const browser = world.browser('grace');
    await world.walk(browser, asked.url);
    const message = await again.notification(COMPLETE);
    expect(message.params).toMatchObject({ elicitationId: asked.elicitationId });
    await stack.restart(stack.pods[1]!);
  });
});
