import { setTimeout as pause } from 'node:timers/promises';

/**
 * What the official suite looks for in a server, as plain tables: the suite's own texts say which tool, prompt or
 * resource has to be there and what it gives. How a revision of the protocol carries them is the servers' part.
 */
type Members = Record<string, unknown>;

export interface Outcome extends Members {
  content: Members[];
  isError?: boolean;
}

/** What a tool may do while it runs, in a revision with sessions. */
export interface Running {
  readonly progressToken: string | number | undefined;
  notify(method: string, params: Members): Promise<void>;
  ask(method: string, params: Members): Promise<Members>;
  /** On the listening stream, as what belongs to no request. */
  announce(method: string, params?: Members): Promise<void>;
  readonly signal: AbortSignal;
  /** Ends the stream of this call without an answer: the client has to come back for it. */
  closeStream(): void;
}

export interface Tool {
  readonly description: string;
  readonly inputSchema?: Members;
  run(args: Members, running: Running): Outcome | Promise<Outcome>;
}

const PIXEL =
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg==';
const SILENCE = Buffer.concat([
  Buffer.from('RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0', 'latin1'),
  Buffer.from('40 1f 00 00 40 1f 00 00 01 00 08 00'.replaceAll(' ', ''), 'hex'),
  Buffer.from('data\0\0\0\0', 'latin1'),
]).toString('base64');

const image = { type: 'image', data: PIXEL, mimeType: 'image/png' };
export const text = (value: string): Members => ({ type: 'text', text: value });
export const says = (value: string): Outcome => ({ content: [text(value)] });
const embedded = (uri: string, mimeType: string, content: string): Members => ({
  type: 'resource',
  resource: { uri, mimeType, text: content },
});
const strings = (...names: string[]): Members => ({
  type: 'object',
  properties: Object.fromEntries(names.map((name) => [name, { type: 'string' }])),
  required: names,
});
const titled = (...pairs: [string, string][]): Members[] =>
  pairs.map(([value, title]) => ({ const: value, title }));

/** Asks for a form and tells how it went. */
function form(description: string, message: string, properties: Members): Tool {
  return {
    description,
    run: async (_args, { ask }) => {
      const requestedSchema = { type: 'object', properties, required: [] };
      const { action, content = {} } = await ask('elicitation/create', {
        message,
        requestedSchema,
      });
      return says(
        `Elicitation completed: action=${String(action)}, content=${JSON.stringify(content)}`,
      );
    },
  };
}

export const TOOLS: Record<string, Tool> = {
  test_simple_text: {
    description: 'One text',
    run: () => says('This is a simple text response for testing.'),
  },
  test_image_content: { description: 'One image', run: () => ({ content: [image] }) },
  test_audio_content: {
    description: 'One sound',
    run: () => ({ content: [{ type: 'audio', data: SILENCE, mimeType: 'audio/wav' }] }),
  },
  test_embedded_resource: {
    description: 'One resource',
    run: () => ({
      content: [
        embedded('test://embedded-resource', 'text/plain', 'This is an embedded resource content.'),
      ],
    }),
  },
  test_multiple_content_types: {
    description: 'One of each',
    run: () => ({
      content: [
        text('Multiple content types test:'),
        image,
        embedded(
          'test://mixed-content-resource',
          'application/json',
          '{"test":"data","value":123}',
        ),
      ],
    }),
  },
  test_error_handling: {
    description: 'Fails',
    run: () => ({
      isError: true,
      content: [text('This tool intentionally returns an error for testing')],
    }),
  },
  test_tool_with_logging: {
    description: 'Logs while it runs',
    run: async (_args, { notify }) => {
      for (const data of [
        'Tool execution started',
        'Tool processing data',
        'Tool execution completed',
      ]) {
        await notify('notifications/message', { level: 'info', data });
        await pause(50); // the suite wants them apart
      }
      return says('logged');
    },
  },
  test_tool_with_progress: {
    description: 'Tells how far it is',
    run: async (_args, { notify, progressToken }) => {
      for (const progress of [0, 50, 100]) {
        if (progressToken !== undefined) {
          await notify('notifications/progress', { progressToken, progress, total: 100 });
        }
        await pause(50); // the suite wants them apart
      }
      return says('done');
    },
  },
  test_reconnection: {
    description: 'Closes its stream before it answers',
    run: async (_args, { closeStream }) => {
      closeStream();
      await pause(100); // the answer comes when nobody is on the stream
      return says('answered after the stream was closed');
    },
  },
  test_sampling: {
    description: 'Asks the client’s model',
    inputSchema: strings('prompt'),
    run: async ({ prompt }, { ask }) => {
      const { content } = await ask('sampling/createMessage', {
        messages: [{ role: 'user', content: text(String(prompt)) }],
        maxTokens: 100,
      });
      return says(`LLM response: ${String((content as Members)['text'])}`);
    },
  },
  test_elicitation: {
    description: 'Asks the person',
    inputSchema: strings('message'),
    run: async ({ message }, { ask }) => {
      const answer = await ask('elicitation/create', {
        message,
        requestedSchema: strings('username', 'email'),
      });
      return says(`User response: ${JSON.stringify(answer)}`);
    },
  },
  test_elicitation_sep1034_defaults: form('A form with defaults', 'Please check', {
    name: { type: 'string', default: 'John Doe' },
    age: { type: 'integer', default: 30 },
    score: { type: 'number', default: 95.5 },
    status: { type: 'string', enum: ['active', 'inactive', 'pending'], default: 'active' },
    verified: { type: 'boolean', default: true },
  }),
  test_elicitation_sep1330_enums: form('A form with every kind of choice', 'Please choose', {
    untitledSingle: { type: 'string', enum: ['option1', 'option2', 'option3'] },
    titledSingle: {
      type: 'string',
      oneOf: titled(
        ['value1', 'First Option'],
        ['value2', 'Second Option'],
        ['value3', 'Third Option'],
      ),
    },
    legacyEnum: {
      type: 'string',
      enum: ['opt1', 'opt2', 'opt3'],
      enumNames: ['Option One', 'Option Two', 'Option Three'],
    },
    untitledMulti: {
      type: 'array',
      items: { type: 'string', enum: ['option1', 'option2', 'option3'] },
    },
    titledMulti: {
      type: 'array',
      items: {
        anyOf: titled(
          ['value1', 'First Choice'],
          ['value2', 'Second Choice'],
          ['value3', 'Third Choice'],
        ),
      },
    },
  }),
  json_schema_2020_12_tool: {
    description: 'A schema with much of 2020-12 in it',
    inputSchema: {
      $schema: 'https://json-schema.org/draft/2020-12/schema',
      type: 'object',
      $defs: {
        address: {
          $anchor: 'addressDef',
          type: 'object',
          properties: { street: { type: 'string' }, city: { type: 'string' } },
        },
      },
      properties: {
        name: { type: 'string' },
        address: { $ref: '#/$defs/address' },
        contactMethod: { type: 'string', enum: ['phone', 'email'] },
        phone: { type: 'string' },
        email: { type: 'string' },
      },
      allOf: [{ anyOf: [{ required: ['phone'] }, { required: ['email'] }] }],
      if: { properties: { contactMethod: { const: 'phone' } }, required: ['contactMethod'] },
      then: { required: ['phone'] },
      else: { required: ['email'] },
      additionalProperties: false,
    },
    run: (args) => says(JSON.stringify(args)),
  },
};

export const inputSchemaOf = (tool: { inputSchema?: Members }): { type: 'object' } & Members => ({
  type: 'object',
  ...tool.inputSchema,
});

interface PromptArgument {
  name: string;
  description: string;
  required: boolean;
}

export interface Prompt {
  readonly description: string;
  readonly arguments?: PromptArgument[];
  get(args: Record<string, string>): Members[];
}

const user = (content: Members): Members => ({ role: 'user', content });
const needs = (...names: string[]): PromptArgument[] =>
  names.map((name) => ({ name, description: `The ${name}`, required: true }));

export const PROMPTS: Record<string, Prompt> = {
  test_simple_prompt: {
    description: 'Without arguments',
    get: () => [user(text('This is a simple prompt for testing.'))],
  },
  test_prompt_with_arguments: {
    description: 'With two',
    arguments: needs('arg1', 'arg2'),
    get: ({ arg1, arg2 }) => [user(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`))],
  },
  test_prompt_with_embedded_resource: {
    description: 'With a resource in it',
    arguments: needs('resourceUri'),
    get: ({ resourceUri }) => [
      user(embedded(resourceUri!, 'text/plain', 'Embedded resource content for testing.')),
      user(text('Please process the embedded resource above.')),
    ],
  },
  test_prompt_with_image: {
    description: 'With an image in it',
    get: () => [user(image), user(text('Please analyze the image above.'))],
  },
};

const RESOURCE_CONTENT: Record<string, Members> = {
  'test://static-text': {
    mimeType: 'text/plain',
    text: 'This is the content of the static text resource.',
  },
  'test://static-binary': { mimeType: 'image/png', blob: PIXEL },
  'test://watched-resource': { mimeType: 'text/plain', text: 'Watch me' },
};

export const RESOURCES = Object.entries(RESOURCE_CONTENT).map(([uri, { mimeType }]) => ({
  uri,
  name: uri.slice('test://'.length),
  description: `The resource ${uri}`,
  mimeType: mimeType as string,
}));

export const RESOURCE_TEMPLATES = [
  {
    uriTemplate: 'test://template/{id}/data',
    name: 'template',
    description: 'Data by id',
    mimeType: 'application/json',
  },
];

/** undefined when there is no such resource. */
export function readResource(uri: string): Members | undefined {
  const fixed = RESOURCE_CONTENT[uri];
  if (fixed) return { uri, ...fixed };
  const id = /^test:\/\/template\/([^/]+)\/data$/.exec(uri)?.[1];
  return id === undefined
    ? undefined
    : {
        uri,
        mimeType: 'application/json',
        text: JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` }),
      };
}
