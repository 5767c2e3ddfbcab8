import {
  Client as ModernSdkClient,
  StreamableHTTPClientTransport as ModernSdkTransport,
} from '@modelcontextprotocol/client';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
  ElicitRequestSchema,
  ElicitationCompleteNotificationSchema,
  ToolListChangedNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';
import { afterAll, describe, expect, test } from 'vitest';
import { startWorld } from '../support/world.ts';
import { until } from '../support/until.ts';

// The official clients, as people run them: through the balancer, a new pod for every request. What they do when
// a session is gone is theirs; 404 is what tells them (case S1).

const world = await startWorld({ plainUpstreams: ['plain'] });
afterAll(() => world.stop());
const { stack } = world;
const plain = world.plain['plain']!;
const capabilities = { elicitation: { form: {}, url: {} } };
const requestInit = (user: string, upstream?: string) => ({
  headers: { Authorization: `Bearer ${world.token(user, {}, upstream)}` },
});

async function v1(user: string, upstream = 'plain') {
  const client = new Client({ name: 'sdk v1', version: '1.0.0' }, { capabilities });
  const completed: string[] = [];
  let changes = 0;
  client.setRequestHandler(ElicitRequestSchema, () => ({
    action: 'accept',
    content: { name: 'Ann' },
  }));
  client.setNotificationHandler(ElicitationCompleteNotificationSchema, ({ params }) => {
    completed.push(params.elicitationId);
  });
  client.setNotificationHandler(ToolListChangedNotificationSchema, () => {
    changes += 1;
  });
  client.onerror = () => undefined;
  const transport = () =>
    new StreamableHTTPClientTransport(new URL(world.endpoint(upstream)), {
      requestInit: requestInit(user, upstream),
      reconnectionOptions: {
        initialReconnectionDelay: 50,
        maxReconnectionDelay: 500,
        reconnectionDelayGrowFactor: 1.5,
        maxRetries: 20,
      },
    });
  // the SDK's own types disagree with exactOptionalPropertyTypes
  const connect = () => client.connect(transport());
  await connect();
  return { client, connect, completed, changes: () => changes };
}

describe('SDK v1', () => {
  test('[sdk.v1] tools, progress, a form, an error, list_changed', async () => {
    const { client, changes } = await v1('ann');
    const { tools } = await client.listTools();
    expect(tools.map(({ name }) => name)).toContain('echo');
    const progress: number[] = [];
    plain.gate('v1').open();
    await client.callTool({ name: 'steps', arguments: { tag: 'v1' } }, undefined, {
      onprogress: (step) => progress.push(step.progress),
    });
    expect(progress).toEqual([1, 2, 3, 4]);
    const asked = await client.callTool({ name: 'ask_form', arguments: {} });
    expect(JSON.stringify(asked)).toContain('Ann');
    await expect(client.callTool({ name: 'fail', arguments: {} })).rejects.toMatchObject({
      code: -32123,
    });
    await until('list_changed', () => {
      plain.notify('notifications/tools/list_changed');
      return changes();
    });
    await client.close();
  });

  test('[sdk.v1] the main job, with the pod that holds its stream killed on the way', async () => {
    const { client, completed } = await v1('ben', 'files');
    const refused = await client
      .callTool({ name: 'echo', arguments: {} })
      .catch((error: unknown) => error);
    expect(refused).toMatchObject({ code: -32042 });
    const { elicitations } = refused as { elicitations: { url: string; elicitationId: string }[] };
    const asked = elicitations[0]!;
    const holder = await until('one pod holds the stream', async () => {
      for (const pod of stack.pods) {
        const text = await pod.metrics();
        if (/^viaduct_streams_open\{.*\} [1-9]/m.test(text)) return pod;
      }
      return undefined;
    });
    await holder.child.kill();
    const browser = world.browser('ben');
    await world.walk(browser, asked.url);
    await until('the client hears of it by itself', () => completed.includes(asked.elicitationId), {
      timeoutMs: 20_000,
    });
    const result = await client.callTool({ name: 'echo', arguments: { a: 1 } });
    expect(JSON.stringify(result)).toContain('{\\"a\\":1}');
    await client.close();
    await stack.restart(holder);
  }, 60_000);

  test('[S1] after a rolling restart and a lost store it is told 404, connects anew, and goes on', async () => {
    const { client, connect } = await v1('cleo');
    await client.callTool({ name: 'echo', arguments: {} });
    for (const pod of stack.pods) {
      await pod.child.terminate();
      await stack.restart(pod);
      await client.callTool({ name: 'echo', arguments: {} }); // the session outlives its pods
    }
    await stack.redis.client.flushall();
    await expect(client.callTool({ name: 'echo', arguments: {} })).rejects.toMatchObject({
      code: 404,
    });
    await client.close();
    await connect();
    expect((await client.listTools()).tools.length).toBeGreaterThan(0);
    await client.close();
  }, 60_000);
});

describe('SDK v2 in its legacy mode', () => {
  test('[sdk.v2] tools, progress, a form, and 404 after a lost store', async () => {
    const client = new ModernSdkClient(
      { name: 'sdk v2', version: '1.0.0' },
      { capabilities, versionNegotiation: { mode: 'legacy' } },
    );
    client.setRequestHandler('elicitation/create', () => ({
      action: 'accept',
      content: { name: 'Ann' },
    }));
    const connect = () =>
      client.connect(
        new ModernSdkTransport(new URL(world.endpoint('plain')), {
          requestInit: requestInit('dan', 'plain'),
        }),
      );
    await connect();
    expect((await client.listTools()).tools.map(({ name }) => name)).toContain('echo');
    const progress: number[] = [];
    plain.gate('v2').open();
    await client.callTool(
      { name: 'steps', arguments: { tag: 'v2' } },
      { onprogress: (step) => progress.push(step.progress) },
    );
    expect(progress).toEqual([1, 2, 3, 4]);
    expect(JSON.stringify(await client.callTool({ name: 'ask_form', arguments: {} }))).toContain(
      'Ann',
    );
    await stack.redis.client.flushall();
    await expect(client.callTool({ name: 'echo', arguments: {} })).rejects.toThrow(/404/);
    await client.close();
    await connect();
    expect((await client.listTools()).tools.length).toBeGreaterThan(0);
    await client.close();
  });
});
