import { afterAll, describe, expect, test } from 'vitest';
import { startLegacyUpstream } from '../support/legacy-upstream.ts';
import { McpClient, textOf } from '../support/mcp-client.ts';
import type { Members } from '../support/net.ts';
import { says } from '../support/upstream-tools.ts';
import { startStack } from '../support/stack.ts';

// A form never asks for a secret, and a link of an upstream is a safe one (issue 3, item 2; 2025-11-25
// client/elicitation, Security Considerations). What counts is listed beside form-guard.ts.

const plain = await startLegacyUpstream({ name: 'plain' });
plain.tools['ask'] = {
  description: 'Asks what it is told to',
  run: async (args, { ask }) => says(await ask('elicitation/create', args)),
};
const start = (elicitation: Members) =>
  startStack({
    workers: 0,
    config: {
      auth: { mode: 'none' },
      upstreams: [{ name: 'plain', url: plain.endpoint, allowPrivateNetwork: true }],
      elicitation,
    },
  });
const refusing = await start({ formGuard: { words: ['employee number'] } });
const reporting = await start({ formGuard: { mode: 'report' } });
afterAll(async () => {
  await Promise.all([refusing.stop(), reporting.stop()]);
  await plain.stop();
});

type Stack = typeof refusing;
const UNSAFE = 'elicitation.unsafe';
const requestedSchema = (properties: Members): Members => ({ type: 'object', properties });

/** Has the upstream ask; what reached the client, what the upstream was answered, and what was audited. */
async function ask(stack: Stack, params: Members) {
  const client = await new McpClient({
    url: `${stack.publicUrl}/mcp/plain`,
    ports: stack.ports,
  }).initialize();
  const audited = stack.audit(UNSAFE).length;
  const asked: (Members | undefined)[] = [];
  const answer = await client.callTool('ask', params, {
    pod: 0,
    answerAt: 1,
    onAsk: (message) => {
      asked.push(message.params);
      return { action: 'decline' };
    },
  });
  return {
    client,
    asked,
    answer,
    toUpstream: plain.answers.at(-1)!,
    events: stack.audit(UNSAFE).slice(audited),
  };
}

const secrets: [string, Members][] = [
  ['a name', { apiKey: { type: 'string' } }],
  ['a title', { a: { type: 'string', title: 'Your password' } }],
  ['a description', { a: { type: 'string', description: 'The credit card number to charge' } }],
  ['a format', { a: { type: 'string', format: 'password' } }],
  ['a nested field', { a: { type: 'object', properties: { access_token: { type: 'string' } } } }],
];

describe('a form that asks for a secret', () => {
  test.for([
    ...secrets,
    ['a word of the operator', { employeeNumber: { type: 'string' } }] as const,
  ])(
    '[form.refused] by %s is refused to the upstream, explained and audited',
    async ([, properties]) => {
      const params = { message: 'Tell me', requestedSchema: requestedSchema(properties) };
      const { asked, answer, toUpstream, events, client } = await ask(refusing, params);
      expect(asked).toEqual([]);
      expect(toUpstream.error).toMatchObject({
        code: -32602,
        message: expect.stringMatching(/secret.*URL mode/) as string,
      });
      expect(answer.error?.code, 'the outcome is the upstream’s').toBe(-32602);
      expect(events.map(({ audit }) => audit)).toMatchObject([
        { upstream: 'plain', sessionId: client.sessionId, refused: true },
      ]);
    },
  );

  test.for(secrets)(
    '[form.reported] by %s is only reported where the operator says so',
    async ([, properties]) => {
      const params = { message: 'Tell me', requestedSchema: requestedSchema(properties) };
      const { asked, answer, events } = await ask(reporting, params);
      expect(asked).toEqual([params]);
      expect(textOf(answer)).toBe('{"action":"decline"}');
      expect(events.map(({ audit }) => audit?.['refused'])).toEqual([false]);
    },
  );

  test('[form.harmless] harmless forms pass, and nothing is audited', async () => {
    const schema = requestedSchema({
      city: { type: 'string', title: 'City', description: 'Where tokens of gratitude are sent' },
      keyboard: { type: 'string', enum: ['qwerty', 'azerty'] },
      email: { type: 'string', format: 'email' },
    });
    const { asked, events } = await ask(refusing, { message: 'Tell me', requestedSchema: schema });
    expect(asked).toHaveLength(1);
    expect(events).toEqual([]);
  });
});

describe('a link of an upstream', () => {
  const params = (url: unknown): Members => ({
    mode: 'url',
    elicitationId: 'e',
    message: 'Go',
    url,
  });

  test.for([
    'http://pay.example/now',
    'https://user:pw@pay.example/now',
    'https://user@pay.example/now',
    'javascript:alert(1)',
    'data:text/html,hi',
    '//pay.example/now',
    '/now',
    '',
    7,
    undefined,
  ])('[link.refused] %j is refused in both modes, and audited', async (url) => {
    for (const stack of [refusing, reporting]) {
      const { asked, toUpstream, events } = await ask(stack, params(url));
      expect(asked).toEqual([]);
      expect(toUpstream.error?.code).toBe(-32602);
      expect(events.map(({ audit }) => audit?.['refused'])).toEqual([true]);
      expect(JSON.stringify(events), 'the audit repeats no link').not.toContain('pw@');
    }
  });

  test.for(['https://pay.example/now?a=b#c', 'http://localhost:3000/now', 'http://127.0.0.1/now'])(
    '[link.passes] %s passes in development, as it is',
    async (url) => {
      const { asked, events } = await ask(refusing, params(url));
      expect(asked).toEqual([params(url)]);
      expect(events).toEqual([]);
    },
  );
});
