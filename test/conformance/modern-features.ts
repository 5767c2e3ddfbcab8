import { says, text, type Outcome, type Tool } from './features.ts';

/**
 * What the official suite looks for in a server of revision 2026-07-28 beyond the features of every revision, as
 * tables: tools and a prompt that need input first (patterns/mrtr), and the ones that its stateless scenario names.
 */
type Members = Record<string, unknown>;

/** One round of a call: what came back from the client, and what the server remembers through it. */
export interface Round {
  readonly responses: Readonly<Record<string, unknown>> | undefined;
  readonly state: Members | undefined;
  /** Capabilities that this request declared. */
  readonly declared: Members;
}

export interface Needs {
  readonly inputRequests: Record<string, { method: string; params?: Members }>;
  /** To be sealed and sent along. */
  readonly state?: Members;
}

export interface RoundTool {
  readonly description: string;
  run(round: Round): Needs | Outcome;
}

export const asksMore = (answer: Needs | Outcome): answer is Needs => 'inputRequests' in answer;

const member = (value: unknown, name: string): unknown =>
  typeof value === 'object' && value !== null ? (value as Members)[name] : undefined;
/** One field of a form that was accepted. */
const accepted = ({ responses }: Round, key: string, field: string): unknown => {
  const answer = responses?.[key];
  return member(answer, 'action') === 'accept'
    ? member(member(answer, 'content'), field)
    : undefined;
};

const form = (message: string, field: string, type = 'string'): Needs['inputRequests'][string] => ({
  method: 'elicitation/create',
  params: {
    mode: 'form',
    message,
    requestedSchema: { type: 'object', properties: { [field]: { type } }, required: [field] },
  },
});
const completion = (question: string): Needs['inputRequests'][string] => ({
  method: 'sampling/createMessage',
  params: { messages: [{ role: 'user', content: text(question) }], maxTokens: 50 },
});
const roots: Needs['inputRequests'][string] = { method: 'roots/list' };

const sampled = ({ responses }: Round, key: string): unknown =>
  member(member(responses?.[key], 'content'), 'text');
const rootsOf = ({ responses }: Round): unknown[] | undefined => {
  const given = member(responses?.['client_roots'], 'roots');
  return Array.isArray(given) ? given : undefined;
};

const askName = form('What is your name?', 'name');

/** Confirmed with the state that came along, or asked for. */
function confirmed(tool: string, words: string): RoundTool {
  return {
    description: `Needs a confirmation and its own state back: ${tool}`,
    run: (round) =>
      round.state !== undefined && accepted(round, 'confirm', 'ok') !== undefined
        ? says(words)
        : {
            inputRequests: { confirm: form('Please confirm', 'ok', 'boolean') },
            state: { tool },
          },
  };
}

export const ROUND_TOOLS: Record<string, RoundTool> = {
  test_input_required_result_elicitation: {
    description: 'Needs a name',
    run: (round) => {
      const name = accepted(round, 'user_name', 'name');
      return typeof name === 'string'
        ? says(`Hello, ${name}!`)
        : { inputRequests: { user_name: askName } };
    },
  },
  test_input_required_result_sampling: {
    description: 'Needs the client’s model',
    run: (round) => {
      const answer = sampled(round, 'capital_question');
      return typeof answer === 'string'
        ? says(`Sampling response: ${answer}`)
        : { inputRequests: { capital_question: completion('What is the capital of France?') } };
    },
  },
  test_input_required_result_list_roots: {
    description: 'Needs the client’s roots',
    run: (round) => {
      const given = rootsOf(round);
      return given === undefined
        ? { inputRequests: { client_roots: roots } }
        : says(`${given.length} roots: ${given.map((root) => member(root, 'uri')).join(', ')}`);
    },
  },
  test_input_required_result_request_state: confirmed('request_state', 'state-ok'),
  test_input_required_result_tampered_state: confirmed('tampered_state', 'integrity-ok'),
  test_input_required_result_multiple_inputs: {
    description: 'Needs one of each kind at once',
    run: (round) => {
      const name = accepted(round, 'user_name', 'name');
      const greeting = sampled(round, 'greeting');
      const given = rootsOf(round);
      if (typeof name === 'string' && typeof greeting === 'string' && given !== undefined) {
        return says(`${greeting} ${name}, ${given.length} roots`);
      }
      return {
        inputRequests: {
          user_name: askName,
          greeting: completion('Generate a greeting'),
          client_roots: roots,
        },
        state: { tool: 'multiple_inputs' },
      };
    },
  },
  test_input_required_result_multi_round: {
    description: 'Needs a name, then a colour',
    run: (round) => {
      switch (round.state?.['round']) {
        case 1: {
          const name = accepted(round, 'step1', 'name');
          return {
            inputRequests: { step2: form('Step 2: What is your favorite color?', 'color') },
            state: { round: 2, name },
          };
        }
        case 2:
          return says(
            `${String(round.state['name'])} likes ${String(accepted(round, 'step2', 'color'))}`,
          );
        default:
          return {
            inputRequests: { step1: form('Step 1: What is your name?', 'name') },
            state: { round: 1 },
          };
      }
    },
  },
  test_input_required_result_capabilities: {
    description: 'Needs whatever the client can be asked for',
    run: (round) => {
      if (round.responses !== undefined) return says('answered');
      const { elicitation, sampling, roots: listing } = round.declared;
      return {
        inputRequests: {
          ...(elicitation !== undefined && { user_name: askName }),
          ...(sampling !== undefined && { greeting: completion('Generate a short greeting') }),
          ...(listing !== undefined && { client_roots: roots }),
        },
      };
    },
  },
  test_missing_capability: {
    description: 'Cannot do without sampling',
    run: (round) =>
      round.responses?.['llm_answer'] === undefined
        ? { inputRequests: { llm_answer: completion('Reply with the single word: pong') } }
        : says('sampled'),
  },
};

export const ROUND_PROMPT: RoundTool & { readonly name: string } = {
  name: 'test_input_required_result_prompt',
  description: 'Needs a context',
  run: (round) => {
    const context = accepted(round, 'user_context', 'context');
    return typeof context === 'string'
      ? says(`Use the following context: ${context}`)
      : {
          inputRequests: {
            user_context: form('What context should the prompt use?', 'context'),
          },
        };
  },
};

/** Named by the stateless scenario: what must not come without being asked for. */
export const PLAIN_TOOLS: Record<string, Tool> = {
  test_streaming_elicitation: {
    description: 'Answers, and asks for nothing',
    run: () => says('no requests on this stream'),
  },
  test_logging_tool: {
    description: 'Logs, where the request asked for it',
    run: async (_args, { notify }) => {
      await notify('notifications/message', { level: 'info', data: 'logged' });
      return says('logged');
    },
  },
};

/** An argument that clients mirror into `Mcp-Param-Region` (transports, Custom Headers). */
export const HEADER_TOOL = {
  name: 'test_x_mcp_header',
  description: 'Says its region',
  inputSchema: {
    type: 'object',
    properties: {
      region: { type: 'string', 'x-mcp-header': 'Region' },
      level: { type: 'integer' },
    },
  },
} as const;
