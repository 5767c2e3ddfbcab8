import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ElicitationCompleteNotificationSchema,
  ListRootsRequestSchema,
  LoggingMessageNotificationSchema,
  ResourceUpdatedNotificationSchema,
  ToolListChangedNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';
import { afterAll, expect, test } from 'vitest';
import { says, type Tool } from '../conformance/features.ts';
import { startConformanceServer } from '../conformance/server.ts';
import { startStack } from '../support/stack.ts';
import { until } from '../support/until.ts';

// The official client and the official server, and between them two pods of which each request takes one by chance:
// thirty features of the protocol, and again with a pod killed on the way (issue 3, Must show).

const LINK = { mode: 'url', elicitationId: 'e1', url: 'https://pay.example/', message: 'Pay' };
const BIG = '{"n":[1,2,3],"deep":{"é":"😀"}}';
const asking = (method: string, params = {}): Tool => ({
  description: `Asks ${method}`,
  run: async (_args, { ask }) => says(JSON.stringify(await ask(method, params))),
});
let started = 0;
let stopped = 0;
const server = await startConformanceServer({
  ask_roots: asking('roots/list'),
  ask_ping: asking('ping'),
  ask_link: asking('elicitation/create', LINK),
  announce: {
    description: 'Says something on its own',
    run: async ({ method, params }, { announce }) => {
      await announce(String(method), params as Record<string, unknown> | undefined);
      return says('announced');
    },
  },
  structured: {
    description: 'Structured content and _meta',
    run: () => ({
      content: [],
      structuredContent: JSON.parse(BIG) as object,
      _meta: { 'corp.example/x': 1 },
    }),
  },
  endless: {
    description: 'Runs until it is cancelled',
    run: (_args, { signal }) => {
      started += 1;
      return new Promise((_resolve, reject) => {
        signal.addEventListener('abort', () => {
          stopped += 1;
          reject(new Error('cancelled'));
        });
      });
    },
  },
});
const PLENTY = { points: 1_000_000, seconds: 60 };
const stack = await startStack({
  workers: 0,
  config: {
    auth: { mode: 'none' },
    upstreams: [{ name: 'all', url: server.url, allowPrivateNetwork: true }],
    limits: { user: PLENTY, userTool: PLENTY, userElicitations: PLENTY, address: PLENTY },
  },
});
afterAll(async () => {
  await stack.stop();
  await server.stop();
});

/** Park and Miller's: the same requests on the same pods for the same seed, as far as their order is the same. */
function chance(seed: number): () => number {
  let state = seed % 2_147_483_647;
  return () => (state = (state * 48_271) % 2_147_483_647) / 2_147_483_647;
}

async function connect(seed: number) {
  const next = chance(seed);
  const client = new Client(
    { name: 'sdk v1', version: '1.0.0' },
    { capabilities: { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} } },
  );
  const seen = { logs: 0, updated: 0, changed: 0, completed: 0, action: 'accept' };
  client.setRequestHandler(ElicitRequestSchema, ({ params }) =>
    params.mode === 'url'
      ? { action: 'accept' }
      : seen.action === 'accept'
        ? { action: 'accept', content: { username: 'ann', email: 'a@b.c' } }
        : { action: 'decline' },
  );
  client.setRequestHandler(CreateMessageRequestSchema, () => ({
    role: 'assistant',
    model: 'test',
    content: { type: 'text', text: 'Bonjour' },
  }));
  client.setRequestHandler(ListRootsRequestSchema, () => ({ roots: [{ uri: 'file:///home' }] }));
  client.setNotificationHandler(LoggingMessageNotificationSchema, () => void (seen.logs += 1));
  client.setNotificationHandler(ResourceUpdatedNotificationSchema, () => void (seen.updated += 1));
  client.setNotificationHandler(ToolListChangedNotificationSchema, () => void (seen.changed += 1));
  client.setNotificationHandler(
    ElicitationCompleteNotificationSchema,
    () => void (seen.completed += 1),
  );
  client.onerror = () => undefined; // it tells of every reconnect
  const transport = new StreamableHTTPClientTransport(new URL(`${stack.publicUrl}/mcp/all`), {
    fetch: (url, init) => {
      // a balancer that takes any pod that its check finds alive
      const alive = stack.pods.flatMap(({ child }, i) => (child.running ? [i] : []));
      stack.roundRobin!.only(alive[Math.floor(next() * alive.length)]!);
      return fetch(url, init);
    },
    reconnectionOptions: {
      initialReconnectionDelay: 50,
      maxReconnectionDelay: 500,
      reconnectionDelayGrowFactor: 1.5,
      maxRetries: 50,
    },
  });
  await client.connect(transport);
  return { client, seen };
}

type Connected = Awaited<ReturnType<typeof connect>>;
type Feature = [name: string, obtained: (connected: Connected) => Promise<unknown>];

const tool = (name: string, args = {}) => ({ name, arguments: args });
const textOf = async (client: Client, name: string, args = {}): Promise<string> => {
  const { content } = await client.callTool(tool(name, args));
  return (content as { text: string }[])[0]!.text;
};
/** Announced until it has been heard: a stream that is just on its way to another pod does not matter. */
const heard = async (
  { client, seen }: Connected,
  what: 'updated' | 'changed' | 'completed',
  method: string,
  params?: Record<string, unknown>,
) => {
  const before = seen[what];
  await until(
    method,
    async () => {
      await client.callTool(tool('announce', { method, params }));
      return seen[what] > before;
    },
    { everyMs: 100, timeoutMs: 20_000 },
  );
};
const rejected = (promise: Promise<unknown>) =>
  promise.then(
    () => undefined,
    (error: unknown) => error as { code?: number; data?: unknown },
  );

const FEATURES: Feature[] = [
  ['initialize', async ({ client }) => expect(client.getServerVersion()?.name).toBe('conformance')],
  [
    'capabilities',
    async ({ client }) => expect(client.getServerCapabilities()?.resources?.subscribe).toBe(true),
  ],
  ['ping', ({ client }) => client.ping()],
  [
    'tools/list',
    async ({ client }) => expect((await client.listTools()).tools.length).toBeGreaterThan(15),
  ],
  [
    'schemas',
    async ({ client }) => {
      const { tools } = await client.listTools();
      expect(
        tools.find(({ name }) => name === 'json_schema_2020_12_tool')?.inputSchema,
      ).toHaveProperty('$defs.address.$anchor');
    },
  ],
  [
    'text',
    async ({ client }) => expect(await textOf(client, 'test_simple_text')).toContain('simple text'),
  ],
  [
    'image',
    async ({ client }) =>
      expect(JSON.stringify(await client.callTool(tool('test_image_content')))).toContain(
        'image/png',
      ),
  ],
  [
    'audio',
    async ({ client }) =>
      expect(JSON.stringify(await client.callTool(tool('test_audio_content')))).toContain(
        'audio/wav',
      ),
  ],
  [
    'embedded resource',
    async ({ client }) =>
      expect(JSON.stringify(await client.callTool(tool('test_embedded_resource')))).toContain(
        'test://embedded-resource',
      ),
  ],
  [
    'structured content and _meta',
    async ({ client }) => {
      const result = await client.callTool(tool('structured'));
      expect(result.structuredContent).toEqual(JSON.parse(BIG));
      expect(result._meta).toEqual({ 'corp.example/x': 1 });
    },
  ],
  [
    'a tool’s error',
    async ({ client }) =>
      expect((await client.callTool(tool('test_error_handling'))).isError).toBe(true),
  ],
  [
    'a protocol error',
    async ({ client }) =>
      expect((await rejected(client.callTool(tool('none'))))?.code).toBe(-32602),
  ],
  ['logging/setLevel', ({ client }) => client.setLoggingLevel('debug')],
  [
    'log messages',
    async ({ client, seen }) => {
      const before = seen.logs;
      await client.callTool(tool('test_tool_with_logging'));
      expect(seen.logs - before).toBe(3);
    },
  ],
  [
    'progress',
    async ({ client }) => {
      const steps: number[] = [];
      await client.callTool(tool('test_tool_with_progress'), undefined, {
        onprogress: ({ progress }) => steps.push(progress),
      });
      expect(steps).toEqual([0, 50, 100]);
    },
  ],
  [
    'sampling',
    async ({ client }) =>
      expect(await textOf(client, 'test_sampling', { prompt: 'Hi' })).toContain('Bonjour'),
  ],
  [
    'a form accepted',
    async ({ client }) =>
      expect(await textOf(client, 'test_elicitation', { message: '?' })).toContain('ann'),
  ],
  [
    'a form declined',
    async ({ client, seen }) => {
      seen.action = 'decline';
      expect(await textOf(client, 'test_elicitation', { message: '?' })).toContain('decline');
      seen.action = 'accept';
    },
  ],
  ['a link', async ({ client }) => expect(await textOf(client, 'ask_link')).toContain('accept')],
  [
    'its completion',
    (connected) =>
      heard(connected, 'completed', 'notifications/elicitation/complete', { elicitationId: 'e1' }),
  ],
  [
    'roots',
    async ({ client }) => expect(await textOf(client, 'ask_roots')).toContain('file:///home'),
  ],
  [
    'ping from the server',
    async ({ client }) => expect(await textOf(client, 'ask_ping')).toBe('{}'),
  ],
  [
    'resources/list',
    async ({ client }) => expect((await client.listResources()).resources).toHaveLength(3),
  ],
  [
    'text of a resource',
    async ({ client }) =>
      expect(JSON.stringify(await client.readResource({ uri: 'test://static-text' }))).toContain(
        'static text',
      ),
  ],
  [
    'bytes of a resource',
    async ({ client }) =>
      expect(
        (await client.readResource({ uri: 'test://static-binary' })).contents[0],
      ).toHaveProperty('blob'),
  ],
  [
    'templates',
    async ({ client }) =>
      expect((await client.listResourceTemplates()).resourceTemplates).toHaveLength(1),
  ],
  [
    'a template read',
    async ({ client }) =>
      expect(
        JSON.stringify(await client.readResource({ uri: 'test://template/7/data' })),
      ).toContain('ID: 7'),
  ],
  [
    'no such resource',
    async ({ client }) =>
      expect((await rejected(client.readResource({ uri: 'test://none' })))?.code).toBe(-32002),
  ],
  [
    'subscribe and be told',
    async (connected) => {
      await connected.client.subscribeResource({ uri: 'test://watched-resource' });
      await heard(connected, 'updated', 'notifications/resources/updated', {
        uri: 'test://watched-resource',
      });
    },
  ],
  ['unsubscribe', ({ client }) => client.unsubscribeResource({ uri: 'test://watched-resource' })],
  [
    'prompts/list',
    async ({ client }) => expect((await client.listPrompts()).prompts).toHaveLength(4),
  ],
  [
    'a prompt with arguments',
    async ({ client }) => {
      const prompt = { name: 'test_prompt_with_arguments', arguments: { arg1: 'x', arg2: 'y' } };
      expect(JSON.stringify(await client.getPrompt(prompt))).toContain("arg1='x', arg2='y'");
    },
  ],
  [
    'completion',
    async ({ client }) => {
      const ref = { type: 'ref/prompt', name: 'test_prompt_with_arguments' } as const;
      const { completion } = await client.complete({
        ref,
        argument: { name: 'arg1', value: 'par' },
      });
      expect(completion.values).toEqual(['paris', 'park', 'party']);
    },
  ],
  ['list_changed', (connected) => heard(connected, 'changed', 'notifications/tools/list_changed')],
  [
    'a stream that the server closes',
    async ({ client }) => expect(await textOf(client, 'test_reconnection')).toContain('answered'),
  ],
  [
    'cancellation',
    async ({ client }) => {
      const [before, ended] = [started, stopped];
      const stop = new AbortController();
      const call = rejected(client.callTool(tool('endless'), undefined, { signal: stop.signal }));
      await until('it runs', () => started > before);
      stop.abort('enough');
      expect(await call).toBeDefined();
      await until('the server stops', () => stopped > ended);
    },
  ],
  [
    'twenty calls at once',
    async ({ client }) => {
      const texts = await Promise.all(
        Array.from({ length: 20 }, () => textOf(client, 'test_simple_text')),
      );
      expect(new Set(texts).size).toBe(1);
    },
  ],
];

async function obtain(connected: Connected, features: readonly Feature[]): Promise<string[]> {
  const missing: string[] = [];
  for (const [name, obtained] of features) {
    try {
      await obtained(connected);
    } catch (error) {
      missing.push(`${name}: ${String(error).slice(0, 300)}`);
    }
  }
  return missing;
}

test.for([1, 2, 3])(
  '[random.pods] every feature is had, each request on a random pod (seed %i)',
  { timeout: 90_000 },
  async (seed) => {
    expect(FEATURES.length).toBeGreaterThanOrEqual(30);
    const before = [...stack.roundRobin!.served];
    const connected = await connect(seed);
    expect(await obtain(connected, FEATURES)).toEqual([]);
    await connected.client.close();
    for (const [i, n] of before.entries()) {
      expect(stack.roundRobin!.served[i]! - n, 'each pod has had its share').toBeGreaterThan(15);
    }
  },
);

test.for([0, 1])(
  '[random.killed] and with pod %i killed in the middle',
  { timeout: 90_000 },
  async (victim) => {
    const connected = await connect(10 + victim);
    const half = Math.floor(FEATURES.length / 2);
    expect(await obtain(connected, FEATURES.slice(0, half))).toEqual([]);
    await stack.pods[victim]!.child.kill();
    try {
      expect(await obtain(connected, FEATURES.slice(half))).toEqual([]);
      await connected.client.close();
    } finally {
      await stack.restart(stack.pods[victim]!);
    }
  },
);
