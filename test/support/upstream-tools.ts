import type { Members, Result } from './net.ts';
import type { Gate } from './until.ts';

/** What a running tool of the fake upstream may do. */
export interface ToolContext {
  /** Writes one notification on the call's stream (which turns the answer into SSE). */
  notify: (method: string, params: Members) => void;
  /** Sends a request to the client on the call's stream; rejects with what the answer's error says. */
  ask: (method: string, params: Members) => Promise<unknown>;
  readonly progressToken: unknown;
  readonly signal: AbortSignal;
  readonly clientCapabilities: Members;
  gate: (name: string) => Gate;
}

/** `raw` is put into the answer byte for byte; `undefined` ends the stream without a result. */
export type ToolOutcome = Result | { raw: string } | undefined;

export interface Tool {
  description: string;
  inputSchema?: Members;
  run(args: Members, context: ToolContext): ToolOutcome | Promise<ToolOutcome>;
}

export class ToolFailure extends Error {
  readonly code: number;
  readonly data: unknown;

  constructor(code: number, message: string, data?: unknown) {
    super(message);
    this.code = code;
    this.data = data;
  }
}

export const says = (value: unknown, more: Partial<Result> = {}): Result => ({
  content: [{ type: 'text', text: typeof value === 'string' ? value : JSON.stringify(value) }],
  ...more,
});

/** A result that no JSON.parse and JSON.stringify would give back as it was. */
export const AWKWARD_RESULT =
  '{"zeta":1,"content":[{"type":"text","text":"\\u00e9 {\\"n\\":9223372036854775807}","x-own":[1.0,-0]}],' +
  '"structuredContent":{"big":9223372036854775807,"exp":1E400,"pi":3.14159265358979323846,"one":1.0},' +
  '"_meta":{"corp.example/trace":{"deep":[null,{"k":9007199254740993}]}},"alpha":{"kept":true}}';

const FORM = {
  type: 'object',
  properties: { name: { type: 'string', title: 'Your name' } },
  required: ['name'],
};

export const TOOLS: Record<string, Tool> = {
  echo: {
    description: 'Gives its arguments back',
    inputSchema: { type: 'object', properties: { text: { type: 'string' } } },
    run: (args) => says(args),
  },
  count: { description: 'Has an effect', run: () => says('counted') },
  secret_report: {
    description: 'Something that not every token may read',
    run: (_args, { notify, progressToken }) => {
      notify('notifications/progress', { progressToken, progress: 1, message: 'digging' });
      return says('the-secret-figures');
    },
  },
  hold: {
    description: 'Answers when the test opens its gate',
    run: async (args, { gate, signal }) => {
      const cancelled = new Promise((resolve) => signal.addEventListener('abort', resolve));
      await Promise.race([gate(args['gate'] as string).pass(), cancelled]);
      return signal.aborted ? undefined : says(`held ${args['gate'] as string}`);
    },
  },
  steps: {
    description: 'Sends progress, stopping at the test’s gates',
    run: async (args, { gate, notify, progressToken }) => {
      const name = args['tag'] as string;
      for (const step of [1, 2, 3, 4]) {
        if (step === 3) await gate(name).pass();
        notify('notifications/progress', {
          progressToken,
          progress: step,
          message: `${name}${step}`,
        });
      }
      return says(`${name} done`);
    },
  },
  logs: {
    description: 'Logs, then answers',
    run: (_args, { notify }) => {
      notify('notifications/message', { level: 'info', logger: 'fake', data: { said: 'hello' } });
      return says('logged');
    },
  },
  ask_form: {
    description: 'Asks the person, whatever the client declared',
    run: async (_args, { ask }) =>
      says(await ask('elicitation/create', { message: 'Who are you?', requestedSchema: FORM })),
  },
  ask_url: {
    description: 'Asks to open a link, whatever the client declared',
    run: async (_args, { ask }) =>
      says(
        await ask('elicitation/create', {
          mode: 'url',
          elicitationId: 'upstream-own-1',
          url: 'https://pay.example/now',
          message: 'Please pay',
        }),
      ),
  },
  awkward: { description: 'A result to pass on unread', run: () => ({ raw: AWKWARD_RESULT }) },
  big: {
    description: 'A large result',
    run: (args) => says('x'.repeat(Number(args['bytes']))),
  },
  fail: {
    description: 'A JSON-RPC error with data',
    run: () => {
      throw new ToolFailure(-32123, 'as asked', { why: ['test'] });
    },
  },
  sorry: { description: 'A tool error', run: () => says('went wrong', { isError: true }) },
};
