import { startLegacyUpstream, type LegacyUpstream } from './legacy-upstream.ts';
import { startModernUpstream, type ModernUpstream } from './modern-upstream.ts';
import type { Members, Message } from './net.ts';
import { says, ToolFailure, type Tool, type ToolContext } from './upstream-tools.ts';
import { startWorld, type World } from './world.ts';

// The cells of the table in docs/eras.md: one server of each revision with the same features, behind one gateway, and
// what a client has to be able to do, whichever its revision (the drivers are in cell-clients.ts).

export type Era = 'legacy' | 'modern';

export interface Asked {
  readonly method: string;
  readonly params: Members;
}

export interface Outcome {
  /** The JSON-RPC response, or as much of it as an official client tells. */
  readonly message: Message;
  readonly asked: Asked[];
  readonly notes: Message[];
}

export interface CallMore {
  /** How a form is answered; all other questions have one answer. */
  form?: Members;
  progress?: boolean;
  level?: string;
}

/** A client of either revision, raw or official: it knows how rounds are made, so that the table need not. */
export interface Driver {
  readonly era: Era;
  readonly raw: boolean;
  call(method: string, params?: Members, more?: CallMore): Promise<Outcome>;
  /** Lists of all kinds, and one resource. */
  listen(uri: string): Promise<{ heard(): Message[]; close(): Promise<void> }>;
  /** A call of the tool `hold`; what is given withdraws it. */
  hold(gate: string): { withdraw(): Promise<void> };
  close(): Promise<void>;
}

export const FORM_ACCEPTED = { action: 'accept', content: { name: 'Ann' } };
const MODEL = { role: 'assistant', model: 'm', content: { type: 'text', text: 'hi' } };
const ROOTS = { roots: [{ uri: 'file:///work' }] };

/** What the person, the model and the client say. */
export function answerTo({ method, params }: Asked, form: Members = FORM_ACCEPTED): Members {
  if (method === 'roots/list') return ROOTS;
  if (method === 'sampling/createMessage') return MODEL;
  return params['mode'] === 'url' ? { action: 'accept' } : form;
}

const FORM = { type: 'object', properties: { name: { type: 'string' } } };
const askForm = ({ ask }: ToolContext, message: string) =>
  ask('elicitation/create', { message, requestedSchema: FORM });

const TOOLS: Record<string, Tool> = {
  ask_model: {
    description: 'Asks the model',
    run: async (_args, { ask }) => {
      const content = { type: 'text', text: 'Say hi' };
      const messages = [{ role: 'user', content }];
      return says(await ask('sampling/createMessage', { messages, maxTokens: 10 }));
    },
  },
  ask_roots: {
    description: 'Asks for roots',
    run: async (_args, { ask }) => says(await ask('roots/list', {})),
  },
  ask_often: {
    description: 'Three rounds',
    run: async (_args, context) => {
      const form = await askForm(context, 'One?');
      const roots = await context.ask('roots/list', {});
      return says([form, roots, await askForm(context, 'Three?')]);
    },
  },
  say_levels: {
    description: 'Logs at three levels, whatever was set',
    run: (_args, { notify }) => {
      for (const level of ['debug', 'info', 'error']) {
        notify('notifications/message', { level, data: level });
      }
      return says('logged');
    },
  },
};

/** The features that the modern stub has of itself. */
function teach(old: LegacyUpstream): void {
  old.capabilities = {
    tools: { listChanged: true },
    prompts: { listChanged: true },
    resources: { listChanged: true, subscribe: true },
    logging: {},
  };
  Object.assign(old.methods, {
    'prompts/list': () => ({ prompts: [{ name: 'greet', description: 'Greets' }] }),
    'prompts/get': () => ({
      messages: [{ role: 'user', content: { type: 'text', text: 'Hello from legacy' } }],
    }),
    'resources/list': () => ({ resources: [{ uri: 'res://doc/1', name: 'doc-1' }] }),
    'resources/read': ({ uri }: Members) => {
      if (uri !== 'res://doc/1') throw new ToolFailure(-32002, 'Resource not found', { uri });
      return { contents: [{ uri, mimeType: 'text/plain', text: 'legacy: res://doc/1' }] };
    },
    'resources/subscribe': () => ({}),
    'resources/unsubscribe': () => ({}),
  });
}

export interface CellWorld {
  readonly world: World;
  readonly upstreams: { legacy: LegacyUpstream; modern: ModernUpstream };
  url(upstream: Era): string;
  token(user: string, upstream: Era): string;
  stop(): Promise<void>;
}

export async function startCells(): Promise<CellWorld> {
  const legacy = await startLegacyUpstream({ name: 'legacy' });
  const modern = await startModernUpstream({ name: 'modern' });
  const both = [legacy, modern];
  teach(legacy);
  for (const upstream of both) Object.assign(upstream.tools, TOOLS);
  modern.tools['ask_url'] = {
    description: 'Asks to open a link; there are no ids in this revision',
    run: async (_args, { ask }) => {
      const link = { mode: 'url', url: 'https://pay.example/now', message: 'Please pay' };
      return says(await ask('elicitation/create', link));
    },
  };
  const stopBoth = () => Promise.all(both.map((upstream) => upstream.stop()));
  const upstreams = both.map(({ name, endpoint }) => ({
    ...{ name, url: endpoint, allowPrivateNetwork: true },
  }));
  let world: World;
  try {
    world = await startWorld({ workers: 0, config: { upstreams } });
  } catch (error) {
    await stopBoth();
    throw error;
  }
  const url = (upstream: Era) => `${world.publicUrl}/mcp/${upstream}`;
  return {
    world,
    upstreams: { legacy, modern },
    url,
    token: (user, upstream) => world.idp.mint({ sub: user, aud: url(upstream) }),
    async stop() {
      await world.stop();
      await stopBoth();
    },
  };
}
