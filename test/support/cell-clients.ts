import {
  Client as ClientV2,
  StreamableHTTPClientTransport as TransportV2,
} from '@modelcontextprotocol/client';
import { Client as ClientV1 } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as TransportV1 } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
  LoggingMessageNotificationSchema,
  PromptListChangedNotificationSchema,
  ResourceListChangedNotificationSchema,
  ResourceUpdatedNotificationSchema,
  ToolListChangedNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';
import { ALL } from './bridged-world.ts';
import {
  answerTo,
  type Asked,
  type CallMore,
  type CellWorld,
  type Driver,
  type Era,
} from './cells.ts';
import { McpClient } from './mcp-client.ts';
import { inputRequired, LOG_LEVEL, ModernClient } from './modern-client.ts';
import type { Members, Message, Result, RpcError } from './net.ts';

// The drivers of the table of cells. The raw ones send each round, or each answer, to the other pod; the official ones
// go through the balancer, which takes a new pod for every request.

const LISTS = { toolsListChanged: true, promptsListChanged: true, resourcesListChanged: true };
type Open = (at: CellWorld, upstream: Era, user: string, capabilities: object) => Promise<Driver>;

const rawLegacy: Open = async (at, upstream, user, capabilities) => {
  const { ports } = at.world.stack;
  const options = { url: at.url(upstream), ports, token: at.token(user, upstream), capabilities };
  const client = await new McpClient(options).initialize({ pod: 0 });
  let turn = 0;
  return {
    era: 'legacy',
    raw: true,
    call: async (method, params = {}, { form, progress, level } = {}) => {
      const pod = turn++ % 2;
      if (level) await client.begin('logging/setLevel', { level }, { pod: 1 - pod }).result();
      const asked: Asked[] = [];
      const meta = progress && { _meta: { progressToken: 'p' } };
      const call = client.begin(
        method,
        { ...params, ...meta },
        {
          ...{ pod, answerAt: 1 - pod },
          onAsk: (message) => {
            const one = { method: message.method!, params: message.params ?? {} };
            asked.push(one);
            return answerTo(one, form);
          },
        },
      );
      const message = await call.message();
      const { stream } = await call.http;
      const notes = stream?.messages.filter((one) => one.method && one.id === undefined) ?? [];
      return { message, asked, notes };
    },
    listen: async (uri) => {
      const stream = await client.listen({ pod: 0 });
      await client.begin('resources/subscribe', { uri }, { pod: 1 }).result();
      return { heard: () => stream.messages, close: async () => stream.close() };
    },
    hold: (gate) => {
      const call = client.beginTool('hold', { gate }, { pod: 0 });
      return {
        withdraw: async () => {
          await client.notify('notifications/cancelled', { requestId: call.id }, { pod: 1 });
        },
      };
    },
    close: async () => {
      await client.end();
    },
  };
};

const rawModern: Open = async (at, upstream, user, capabilities) => {
  const { ports } = at.world.stack;
  const token = at.token(user, upstream);
  const client = new ModernClient({ url: at.url(upstream), ports, token, capabilities });
  let turn = 0;
  return {
    era: 'modern',
    raw: true,
    call: async (method, params = {}, { form, progress, level } = {}) => {
      const meta = {
        ...(progress && { progressToken: 'p' }),
        ...(level && { [LOG_LEVEL]: level }),
      };
      const asked: Asked[] = [];
      const notes: Message[] = [];
      let round = {};
      for (let pod = turn++; ; pod++) {
        const call = client.begin(method, { ...params, ...round }, { pod: pod % 2, meta });
        const message = await call.message();
        notes.push(...(await call.notifications()));
        if (message.result?.['resultType'] !== 'input_required') return { message, asked, notes };
        const { inputRequests, requestState } = inputRequired(message);
        asked.push(...Object.values(inputRequests));
        const answers = Object.entries(inputRequests).map(([key, one]) => [
          key,
          answerTo(one, form),
        ]);
        round = { requestState, inputResponses: Object.fromEntries(answers) as Members };
      }
    },
    listen: async (uri) => {
      const { stream } = await client.listen({ ...LISTS, resourceSubscriptions: [uri] });
      return { heard: () => stream.messages, close: async () => stream.close() };
    },
    hold: (gate) => {
      const call = client.beginTool('hold', { gate }, { pod: 0 });
      return { withdraw: () => call.drop() };
    },
    close: async () => undefined,
  };
};

interface Official {
  readonly era: Era;
  /** The client's own method for each of the protocol. */
  readonly methods: Record<string, (params: never, options: object) => Promise<unknown>>;
  readonly asked: Asked[];
  readonly heard: Message[];
  listen?: (filter: object) => Promise<{ close(): Promise<void> }>;
  close(): Promise<void>;
}

/** As a response, as far as the client tells what it was. */
function response(promise: Promise<unknown>): Promise<Message> {
  return promise.then(
    (result) => ({ result: result as Result }),
    (thrown: unknown) => ({ error: thrown as RpcError }),
  );
}

function official({ era, methods, asked, heard, listen, close }: Official): Driver {
  const send = (method: string, params: Members, options: object) =>
    response(methods[method]!(params as never, options));
  return {
    era,
    raw: false,
    call: async (method, params = {}, { progress, level }: CallMore = {}) => {
      const [questions, notes] = [asked.length, heard.length];
      if (level && era === 'legacy') await send('logging/setLevel', { level }, {});
      const meta = level && era === 'modern' && { _meta: { [LOG_LEVEL]: level } };
      const onprogress = (own: object) =>
        heard.push({ method: 'notifications/progress', params: { ...own } });
      const options = progress ? { onprogress } : {};
      const message = await send(method, { ...params, ...meta }, options);
      return { message, asked: asked.slice(questions), notes: heard.slice(notes) };
    },
    listen: async (uri) => {
      const from = heard.length;
      const subscription = await listen?.({ ...LISTS, resourceSubscriptions: [uri] });
      if (!subscription) await methods['resources/subscribe']!({ uri } as never, {});
      return {
        heard: () => heard.slice(from),
        close: async () => {
          await subscription?.close();
        },
      };
    },
    hold: (gate) => {
      const abort = new AbortController();
      const params = { name: 'hold', arguments: { gate } };
      void send('tools/call', params, { signal: abort.signal });
      return { withdraw: async () => abort.abort() };
    },
    close,
  };
}

const requestInit = (at: CellWorld, user: string, upstream: Era) => ({
  headers: { Authorization: `Bearer ${at.token(user, upstream)}` },
});
/** The official clients answer with what the test of the moment wants; forms.current is it. */
export const forms: { current: Members | undefined } = { current: undefined };

const sdkV1: Open = async (at, upstream, user, capabilities) => {
  const client = new ClientV1({ name: 'sdk v1', version: '1.0.0' }, { capabilities });
  const asked: Asked[] = [];
  const heard: Message[] = [];
  const take = ({ method, params }: { method: string; params?: object | undefined }) => {
    const one = { method, params: { ...params } };
    asked.push(one);
    return answerTo(one, forms.current);
  };
  if (Object.keys(capabilities).length > 0) {
    client.setRequestHandler(ElicitRequestSchema, (one) => take(one) as { action: 'accept' });
    client.setRequestHandler(CreateMessageRequestSchema, (one) => take(one) as never);
    client.setRequestHandler(ListRootsRequestSchema, (one) => take(one) as never);
  }
  const hear = (one: object) => void heard.push({ ...one });
  client.setNotificationHandler(LoggingMessageNotificationSchema, hear);
  client.setNotificationHandler(ToolListChangedNotificationSchema, hear);
  client.setNotificationHandler(PromptListChangedNotificationSchema, hear);
  client.setNotificationHandler(ResourceListChangedNotificationSchema, hear);
  client.setNotificationHandler(ResourceUpdatedNotificationSchema, hear);
  client.onerror = () => undefined;
  const options = { requestInit: requestInit(at, user, upstream) };
  await client.connect(new TransportV1(new URL(at.url(upstream)), options));
  return official({
    era: 'legacy',
    asked,
    heard,
    methods: {
      'tools/list': (params, options) => client.listTools(params, options),
      'tools/call': (params, options) => client.callTool(params, undefined, options),
      'prompts/list': (params, options) => client.listPrompts(params, options),
      'prompts/get': (params, options) => client.getPrompt(params, options),
      'resources/list': (params, options) => client.listResources(params, options),
      'resources/read': (params, options) => client.readResource(params, options),
      'resources/subscribe': (params, options) => client.subscribeResource(params, options),
      'logging/setLevel': ({ level }) => client.setLoggingLevel(level),
    },
    close: () => client.close(),
  });
};

const sdkV2 =
  (era: Era): Open =>
  async (at, upstream, user, capabilities) => {
    const mode = era === 'legacy' ? 'legacy' : { pin: '2026-07-28' };
    const client = new ClientV2(
      { name: 'sdk v2', version: '1.0.0' },
      { capabilities, versionNegotiation: { mode } },
    );
    const asked: Asked[] = [];
    const heard: Message[] = [];
    const take = ({ method, params }: { method: string; params?: object | undefined }) => {
      const one = { method, params: { ...params } };
      asked.push(one);
      return answerTo(one, forms.current) as never;
    };
    if (Object.keys(capabilities).length > 0) {
      client.setRequestHandler('elicitation/create', take);
      client.setRequestHandler('sampling/createMessage', take);
      client.setRequestHandler('roots/list', take);
    }
    const hear = (one: object) => void heard.push({ ...one });
    client.setNotificationHandler('notifications/message', hear);
    client.setNotificationHandler('notifications/tools/list_changed', hear);
    client.setNotificationHandler('notifications/prompts/list_changed', hear);
    client.setNotificationHandler('notifications/resources/list_changed', hear);
    client.setNotificationHandler('notifications/resources/updated', hear);
    client.onerror = () => undefined;
    const options = { requestInit: requestInit(at, user, upstream) };
    await client.connect(new TransportV2(new URL(at.url(upstream)), options));
    return official({
      era,
      asked,
      heard,
      methods: {
        'tools/list': (params, options) => client.listTools(params, options),
        'tools/call': (params, options) => client.callTool(params, options),
        'prompts/list': (params, options) => client.listPrompts(params, options),
        'prompts/get': (params, options) => client.getPrompt(params, options),
        'resources/list': (params, options) => client.listResources(params, options),
        'resources/read': (params, options) => client.readResource(params, options),
        'resources/subscribe': (params, options) => client.subscribeResource(params, options),
        // eslint-disable-next-line @typescript-eslint/no-deprecated -- a feature of the legacy revisions
        'logging/setLevel': ({ level }) => client.setLoggingLevel(level),
      },
      ...(era === 'modern' && { listen: (filter: object) => client.listen(filter) }),
      close: () => client.close(),
    });
  };

const OPEN = {
  'raw legacy': rawLegacy,
  'raw modern': rawModern,
  'SDK v1': sdkV1,
  'SDK v2, legacy': sdkV2('legacy'),
  'SDK v2, modern': sdkV2('modern'),
};
export type Kind = keyof typeof OPEN;
export const KINDS = Object.keys(OPEN) as Kind[];

export const openDriver = (
  at: CellWorld,
  kind: Kind,
  upstream: Era,
  capabilities: object = ALL,
): Promise<Driver> =>
  OPEN[kind](at, upstream, `${kind.replaceAll(/\W+/g, '-')}-${upstream}`, capabilities);
