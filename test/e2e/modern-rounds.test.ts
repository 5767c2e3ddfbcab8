import { randomBytes } from 'node:crypto';
import { afterAll, describe, expect, test } from 'vitest';
import { textOf } from '../support/mcp-client.ts';
import {
  answering,
  inputRequired,
  type Answers,
  type ModernClient,
} from '../support/modern-client.ts';
import { startModernWorld } from '../support/modern-world.ts';
import { says } from '../support/upstream-tools.ts';

// Requests of several rounds (issue 4, item 4; 2026-07-28 basic/patterns/mrtr): what an upstream asks is relayed if the
// client can, its requestState comes back to it exactly, and ours is good for nothing but the one retry.

const at = await startModernWorld({
  workers: 0,
  config: { elicitation: { ttlSeconds: 3, connectWaitSeconds: 1 } },
});
afterAll(() => at.stop());
const { alpha, world } = at;
const ann = at.client('ann');
const form = () => ({ action: 'accept', content: { name: 'Ann' } });

alpha.tools['twice'] = {
  description: 'Asks two things, one after the other',
  run: async (_args, { ask }) => {
    const first = await ask('elicitation/create', { message: 'One?', requestedSchema: {} });
    const second = await ask('sampling/createMessage', { messages: [], maxTokens: 1 });
    return says({ first, second });
  },
};
alpha.tools['other'] = alpha.tools['ask_form']!;

const asked = (client: ModernClient = ann, pod = 0) => client.tool('ask_form', { a: 1 }, { pod });
const calls = () => alpha.requests('tools/call').length;

describe('an upstream that asks', () => {
  test('[rounds.relay] its question is relayed as it is, the answer may come to the other pod', async () => {
    const first = await asked();
    const { inputRequests } = inputRequired(first);
    expect(Object.entries(inputRequests)).toMatchObject([
      ['q1', { method: 'elicitation/create', params: { message: 'Who are you?' } }],
    ]);
    const last = await ann.tool('ask_form', { a: 1 }, { pod: 1, ...answering(first, form) });
    expect(JSON.parse(textOf(last)!)).toEqual(form());
  });

  test('[rounds.state] its requestState comes back byte for byte, 64 KB and awkward characters too', async () => {
    const odd = `${randomBytes(48_000).toString('base64')} ü😀"\\/\u2028\u0000`;
    const usual = alpha.makeState;
    alpha.makeState = () => odd;
    const first = await asked();
    const { requestState } = inputRequired(first);
    expect(requestState).not.toContain(odd.slice(0, 40));
    const last = await ann.tool('ask_form', { a: 1 }, { pod: 1, ...answering(first, form) });
    expect(textOf(last)).toBeDefined();
    expect(alpha.statesBack.at(-1)).toBe(JSON.stringify(odd));
    alpha.makeState = usual;
  });

  test('[rounds.many] several rounds, each on the other pod, with what only the last answers need', async () => {
    const can = at.client('ann', { capabilities: { elicitation: {}, sampling: {} } });
    const one = await can.tool('twice', {}, { pod: 0 });
    const two = await can.tool('twice', {}, { pod: 1, ...answering(one, form) });
    expect(Object.values(inputRequired(two).inputRequests)[0]?.method).toBe(
      'sampling/createMessage',
    );
    const last = await can.tool(
      'twice',
      {},
      { pod: 0, ...answering(two, () => ({ role: 'assistant' })) },
    );
    expect(JSON.parse(textOf(last)!)).toEqual({ first: form(), second: { role: 'assistant' } });
  });

  test('[rounds.other-methods] prompts too', async () => {
    const can = at.client('ann', { capabilities: { roots: {} } });
    const first = await can.call('prompts/get', { name: 'asking' });
    const round = answering(first, () => ({ roots: [] }));
    const last = await can.call('prompts/get', { name: 'asking', ...round }, { pod: 1 });
    expect(last.result?.['messages']).toBeDefined();
  });

  test('[rounds.partial] no answer, or more than was asked, is the upstream’s to judge', async () => {
    const first = await asked();
    const { requestState } = inputRequired(first);
    const again = await ann.tool('ask_form', { a: 1 }, { requestState, inputResponses: {} });
    const extra = answering(again, form);
    const inputResponses = {
      ...(extra.inputResponses as object),
      'viaduct.connect': { action: 'x' },
    };
    expect(
      textOf(await ann.tool('ask_form', { a: 1 }, { ...extra, inputResponses })),
    ).toBeDefined();
  });

  test('[rounds.no-state] an upstream that needs no state gets none', async () => {
    const usual = alpha.makeState;
    alpha.makeState = () => undefined as unknown as string;
    const first = await asked();
    expect(textOf(await ann.tool('ask_form', { a: 1 }, answering(first, form)))).toBeDefined();
    expect(alpha.calls('ask_form').at(-1)!.text).not.toContain('requestState');
    alpha.makeState = usual;
  });

  test('[rounds.no-question] a state without a question is relayed (load shedding)', async () => {
    alpha.intercept = ({ response }, { message }) => {
      if (message?.params?.['name'] !== 'later' || message.params['requestState'] !== undefined)
        return false;
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(
        `{"jsonrpc":"2.0","id":${JSON.stringify(message.id)},"result":{"resultType":"input_required","requestState":"s"}}`,
      );
      return true;
    };
    const first = await ann.tool('later');
    expect(first.result?.['inputRequests']).toBeUndefined();
    const { requestState } = inputRequired(first);
    await ann.tool('later', {}, { requestState });
    expect(alpha.statesBack.at(-1)).toBe('"s"');
    alpha.intercept = undefined;
  });

  test('[rounds.stateless] answers without a state go to the upstream as they are', async () => {
    const inputResponses = { q1: form() };
    expect(textOf(await ann.tool('ask_form', {}, { inputResponses }))).toBe(JSON.stringify(form()));
  });
});

describe('a requestState is good for one thing', () => {
  const flip = (text: string, at: number) => {
    const bits = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
    const next = bits[bits.indexOf(text[at]!) ^ 1]!;
    return text.slice(0, at) + next + text.slice(at + 1);
  };
  const cases: [
    string,
    (round: Answers & { requestState: string }) => Promise<{ error?: { code: number } }>,
  ][] = [
    ['by another user', (round) => at.client('eve').tool('ask_form', { a: 1 }, round)],
    [
      'by another OAuth client',
      (round) =>
        at.client('ann', { claims: { client_id: 'other-app' } }).tool('ask_form', { a: 1 }, round),
    ],
    ['with other arguments', (round) => ann.tool('ask_form', { a: 2 }, round)],
    ['with fewer arguments', (round) => ann.tool('ask_form', {}, round)],
    ['for another tool', (round) => ann.tool('other', { a: 1 }, round)],
    [
      'for another method',
      (round) => ann.call('prompts/get', { name: 'ask_form', arguments: { a: 1 }, ...round }),
    ],
    [
      'at another endpoint',
      (round) => at.client('ann', { upstream: 'beta' }).tool('ask_form', { a: 1 }, round),
    ],
    [
      'at the endpoint of many',
      (round) => at.client('ann', { upstream: '' }).tool('alpha__ask_form', { a: 1 }, round),
    ],
    [
      'cut short',
      (round) =>
        ann.tool('ask_form', { a: 1 }, { ...round, requestState: round.requestState.slice(0, -9) }),
    ],
    [
      'of another kind',
      (round) => ann.tool('ask_form', { a: 1 }, { ...round, requestState: 'alpha.x' }),
    ],
    ['null', (round) => ann.tool('ask_form', { a: 1 }, { ...round, requestState: null })],
    [
      'with answers that are none',
      (round) => ann.tool('ask_form', { a: 1 }, { ...round, inputResponses: [1] }),
    ],
  ];

  test.for(cases)('[rounds.bound] %s: refused, and the upstream untouched', async ([, attempt]) => {
    const first = await asked();
    const round = answering(first, form) as Answers & { requestState: string };
    const before = [calls(), world.stack.audit('state.refused').length];
    const { error } = await attempt(round);
    expect(error?.code).toBe(-32602);
    expect(calls()).toBe(before[0]);
    // and it still serves the one that it was made for
    expect(textOf(await ann.tool('ask_form', { a: 1 }, { ...round, pod: 1 }))).toBe(
      JSON.stringify(form()),
    );
  });

  test('[rounds.tampered] one bit anywhere: refused and audited', async () => {
    const first = await asked();
    const round = answering(first, form) as Answers & { requestState: string };
    const { requestState } = round;
    const audited = () =>
      world.stack.audit('state.refused').filter(({ audit }) => audit?.['reason'] === 'invalid')
        .length;
    const before = [calls(), audited()];
    const dots = [...requestState.matchAll(/\./g)].map(({ index }) => index);
    const spots = [
      0,
      20,
      requestState.length - 1,
      requestState.length - 2,
      ...dots.flatMap((dot) => [dot - 1, dot + 1]),
    ].filter((spot) => requestState[spot] !== '.' && requestState[spot] !== undefined);
    for (const spot of spots) {
      const { error } = await ann.tool(
        'ask_form',
        { a: 1 },
        { ...round, requestState: flip(requestState, spot) },
      );
      expect(error?.code, `position ${spot}`).toBe(-32602);
    }
    expect(calls()).toBe(before[0]);
    expect(audited()).toBeGreaterThanOrEqual(before[1]! + spots.length);
    expect(
      await world.stack.metric('viaduct_security_events_total', { type: 'state.refused' }),
    ).toBeGreaterThan(0);
  });

  test('[rounds.once] twice, on both pods at once: one of them runs', async () => {
    const first = await asked();
    const round = answering(first, form);
    const before = calls();
    const both = await Promise.all(
      [0, 1].map((pod) => ann.tool('ask_form', { a: 1 }, { ...round, pod })),
    );
    expect(both.map(({ error }) => error?.code).sort()).toEqual([-32602, undefined]);
    expect((await ann.tool('ask_form', { a: 1 }, round)).error?.code).toBe(-32602);
    expect(calls()).toBe(before + 1);
    const said = both.find(({ error }) => error)?.error?.message;
    expect(said).toMatch(/call again|Send the call again/);
  });

  test('[rounds.expired] too late', async () => {
    const first = await asked();
    await new Promise((resolve) => setTimeout(resolve, 3_100));
    const before = calls();
    expect((await ann.tool('ask_form', { a: 1 }, answering(first, form))).error?.code).toBe(-32602);
    expect(calls()).toBe(before);
    expect(
      world.stack.audit('state.refused').some(({ audit }) => audit?.['reason'] === 'expired'),
    ).toBe(true);
  });

  test('[rounds.spelling] the same arguments in another order are the same', async () => {
    const first = await ann.tool('ask_form', { a: 1, b: { c: 2, d: 'ü' } });
    const round = answering(first, form);
    const last = await ann.tool('ask_form', { b: { d: 'ü', c: 2 }, a: 1 }, round);
    expect(textOf(last)).toBeDefined();
  });
});

describe('only what the client declared (L1)', () => {
  const CAPABILITIES: [unknown, boolean, boolean][] = [
    [{}, false, false],
    [{ elicitation: {} }, true, false],
    [{ elicitation: { form: {} } }, true, false],
    [{ elicitation: { url: {} } }, false, true],
    [{ elicitation: { form: {}, url: {} } }, true, true],
    [{ elicitation: true }, false, false],
    [{ elicitation: null }, false, false],
  ];
  test.for(CAPABILITIES)(
    '[rounds.capability] %j: form %s, url %s',
    async ([capabilities, can, link]) => {
      const client = at.client('ann', { capabilities });
      for (const [tool, mode, good] of [
        ['ask_form', 'form', can],
        ['ask_url', 'url', link],
      ] as const) {
        const call = client.beginTool(tool);
        const message = await call.message();
        if (good) expect(inputRequired(message).inputRequests).toBeDefined();
        else {
          expect((await call.http).status).toBe(400);
          expect(message.error).toMatchObject({
            code: -32021,
            data: { requiredCapabilities: { elicitation: { [mode]: {} } } },
          });
          expect(JSON.stringify(message)).not.toMatch(/Who are you|pay\.example/);
        }
      }
    },
  );

  test('[rounds.unsafe] a secret by form, and a link that is none, are not passed on', async () => {
    const ask = (params: object) => {
      alpha.tools['unsafe'] = {
        description: 'Asks what it must not',
        run: async (_args, context) =>
          says(await context.ask('elicitation/create', params as Record<string, unknown>)),
      };
      return ann.tool('unsafe');
    };
    const password = { type: 'object', properties: { password: { type: 'string' } } };
    for (const params of [
      { message: 'Log in', requestedSchema: password },
      { mode: 'url', message: 'Open', url: 'javascript:alert(1)' },
    ]) {
      const { error } = await ask(params);
      expect([error?.code, error?.data?.reason]).toEqual([-32603, 'unsafe_elicitation']);
    }
    expect(world.stack.audit('elicitation.unsafe').length).toBeGreaterThanOrEqual(2);
  });

  test('[rounds.method] input_required where it must not be is an error (X3)', async () => {
    alpha.intercept = ({ response }, { message }) => {
      if (message?.method !== 'resources/list') return false;
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(
        `{"jsonrpc":"2.0","id":${JSON.stringify(message.id)},"result":{"resultType":"input_required","inputRequests":{"x":{"method":"roots/list"}}}}`,
      );
      return true;
    };
    const can = at.client('ann', { capabilities: { roots: {} } });
    const { error } = await can.call('resources/list');
    expect([error?.code, error?.data?.reason]).toEqual([-32603, 'upstream_invalid']);
    alpha.intercept = undefined;
  });
});
