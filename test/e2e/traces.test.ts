import { randomBytes } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import { afterAll, describe, expect, test } from 'vitest';
import { startCollector, type Collector } from '../support/collector.ts';
import { hasCommand } from '../support/manifests.ts';
import { startPrometheus } from '../support/prometheus.ts';
import { MISSING_CREDENTIAL, startWorld, type World } from '../support/world.ts';
import { startModernWorld } from '../support/modern-world.ts';
import { accept, answering, inputRequired } from '../support/modern-client.ts';
import type { Message } from '../support/net.ts';
import { until } from '../support/until.ts';

// One trace from the client through pods, bus, job, third party and upstream (issue 7, item 4).

const collector = await startCollector();
afterAll(() => collector.stop());
const telemetry = { otlpEndpoint: collector.url };
const newTrace = () => {
  const id = randomBytes(16).toString('hex');
  return { id, traceparent: `00-${id}-${randomBytes(8).toString('hex')}-01` };
};

async function untilSteps(trace: string, wanted: RegExp[]): Promise<void> {
  const missing = () =>
    wanted.filter((one) => !collector.steps(trace).some((step) => one.test(step)));
  await until('the whole trace has been sent', () => missing().length === 0, {
    timeoutMs: 30_000,
  }).catch((error: unknown) => {
    const seen = collector.steps(trace).join('\n');
    throw new Error(`missing: ${missing().join(', ')}\nof:\n${seen}`, { cause: error });
  });
}

/** What the upstream got names the gateway's own span of this call, in both places. */
function expectCarried(
  from: Collector,
  trace: string,
  { headers, message }: { headers: IncomingHttpHeaders; message: Message | undefined },
): void {
  const sent = headers['traceparent'] as string;
  const meta = message?.params?.['_meta'] as { traceparent: string };
  expect(meta.traceparent).toBe(sent);
  const [, traceId, spanId] = sent.split('-');
  expect(traceId).toBe(trace);
  expect(from.spans.find((span) => span.spanId === spanId)).toMatchObject({
    kind: 'client',
    name: 'tools/call',
    attributes: { 'mcp.method.name': 'tools/call' },
  });
}

/** Every parent of a trace's spans is one of its spans, or the client's. */
function expectWhole(trace: string, traceparent: string): void {
  const mine = collector.spans.filter(({ traceId }) => traceId === trace);
  const known = new Set([traceparent.split('-')[2], ...mine.map(({ spanId }) => spanId)]);
  expect(mine.filter(({ parentSpanId }) => !known.has(parentSpanId))).toEqual([]);
}

function expectNothingSecret(world: World, more: string[]): void {
  const all = collector.texts.join('\n');
  for (const secret of [...world.secrets, ...world.acme.issued, ...more]) {
    expect(all.includes(secret)).toBe(false);
  }
}

describe('a client with a session', async () => {
  const world = await startWorld({ config: { telemetry } });
  afterAll(() => world.stop());

  test('[trace.legacy] the call, the flow that it needed and its second try are one trace', async () => {
    const { id, traceparent } = newTrace();
    const client = await world.client('ann').initialize({ pod: 0 });
    const stream = await client.listen({ pod: 1 });
    const call = () =>
      client.callTool('echo', { text: 'my-words' }, { pod: 0, meta: { traceparent } });
    const { error } = await call();
    expect(error?.code).toBe(MISSING_CREDENTIAL);
    await world.walk(world.browser('ann'), error!.data!.elicitations![0]!.url);
    await stream.message('the completion', ({ method }) => (method ?? '').endsWith('complete'));
    expect((await call()).result).toBeDefined();
    await untilSteps(id, [
      /^pod1 server tools\/call$/,
      /^pod\d server GET \/connect\/callback$/,
      /^worker1 consumer job exchange-code$/,
      /^worker1 client POST$/,
      /^pod2 consumer bus event$/,
      /^pod1 client tools\/call$/,
    ]);
    expectWhole(id, traceparent);
    expectCarried(collector, id, world.files.calls('echo').at(-1)!);
    expect(world.acme.traces.at(-1)).toContain(id);
    expectNothingSecret(world, [client.token!, 'my-words']);
  });

  test.skipIf(!hasCommand('prometheus', '--version'))(
    '[trace.exemplar] Prometheus finds the way from a bucket of the latency to the trace of a call in it',
    async () => {
      const prometheus = await startPrometheus(world.stack);
      try {
        const { id, traceparent } = newTrace();
        const client = await world.client('eve').initialize();
        await client.callTool('echo', {}, { pod: 1, meta: { traceparent } });
        await until('it has been scraped', async () =>
          (await prometheus.exemplars('viaduct_request_duration_seconds_bucket')).includes(id),
        );
        const [up] = await prometheus.query('min(up)');
        expect(up?.value[1], 'every process is understood').toBe('1');
        expect(await prometheus.query('viaduct_requests_total')).not.toEqual([]);
        await client.end();
      } finally {
        await prometheus.stop();
      }
    },
  );

  test('[trace.legacy] the header alone will do; who is not sampled stays so', async () => {
    const client = await world.client('ann').initialize();
    const byHeader = newTrace();
    const headers = { traceparent: byHeader.traceparent };
    await client.callTool('echo', {}, { pod: 1, headers });
    const unsampled = newTrace();
    const meta = { traceparent: unsampled.traceparent.replace(/01$/, '00') };
    await client.callTool('echo', {}, { pod: 1, meta });
    expect(world.files.calls('echo').at(-1)!.headers['traceparent']).toMatch(
      new RegExp(`^00-${unsampled.id}-[0-9a-f]{16}-00$`),
    );
    const last = newTrace();
    await client.callTool('echo', {}, { pod: 1, meta: { traceparent: last.traceparent } });
    await untilSteps(byHeader.id, [/^pod2 server tools\/call$/, /^pod2 client tools\/call$/]);
    await untilSteps(last.id, [/^pod2 client tools\/call$/]);
    expect(collector.steps(unsampled.id)).toEqual([]);
  });
});

describe('a client of 2026-07-28', async () => {
  const at = await startModernWorld({
    config: { telemetry, elicitation: { ttlSeconds: 60, connectWaitSeconds: 20 } },
  });
  afterAll(() => at.stop());
  const { world, drive } = at;

  test('[trace.modern] the question, the flow and the retry that waits at another pod are one trace', async () => {
    const { id, traceparent } = newTrace();
    const client = at.client('bea', {
      upstream: 'drive',
      capabilities: { elicitation: { url: {} } },
    });
    const meta = { traceparent };
    const first = await client.tool('echo', {}, { pod: 0, meta });
    const [asked] = Object.values(inputRequired(first).inputRequests);
    const link = asked!.params['url'] as string;
    const retry = client.tool('echo', {}, { pod: 1, meta, ...answering(first, accept) });
    const record = `viaduct:elicitation:{${world.userId('bea')}}:${link.split('/').at(-1)!}`;
    await until('the retry waits', async () =>
      ((await world.stack.redis.client.hget(record, 'waiters')) ?? '').includes('pod2'),
    );
    await world.walk(world.browser('bea'), link);
    expect((await retry).result).toBeDefined();
    await untilSteps(id, [
      /^pod1 server tools\/call$/,
      /^pod2 server tools\/call$/,
      /^worker1 consumer job exchange-code$/,
      /^worker1 client POST$/,
      /^pod2 consumer bus elicitation$/,
      /^pod2 client tools\/call$/,
    ]);
    expectWhole(id, traceparent);
    expectCarried(collector, id, drive.calls('echo').at(-1)!);
    expect(world.acme.traces.at(-1)).toContain(id);
    expectNothingSecret(world, [client.token!]);
  });
});

test('[trace.off] without telemetry the upstream gets the client’s _meta as it was, and no header', async () => {
  const world = await startWorld({ workers: 0, plainUpstreams: ['plain'] });
  try {
    const client = await world.client('ann', { upstream: 'plain' }).initialize();
    const { traceparent } = newTrace();
    const params = `{ "name":"echo","arguments":{"n":1.0}, "_meta":{ "traceparent" : "${traceparent}","x":9007199254740993 } }`;
    const answer = await client.post(
      `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":${params}}`,
      { headers: { traceparent } },
    );
    expect(answer.status).toBe(200);
    const got = world.plain['plain']!.calls('echo').at(-1)!;
    expect(got.text).toContain(params);
    expect(got.headers['traceparent']).toBeUndefined();
  } finally {
    await world.stop();
  }
});
