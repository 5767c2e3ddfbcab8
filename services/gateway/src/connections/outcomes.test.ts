import { describe, expect, it } from 'vitest';
import type { Elicitation, ElicitationState, EndReason } from '@viaduct/shared/elicitations';
import { describeLastAttempt, describeOutcome } from './outcomes.ts';

const elicitation = (state: ElicitationState, reason?: EndReason): Elicitation => ({
  id: 'i',
  userId: 'u',
  clientId: 'c',
  endpoint: '/mcp',
  upstream: 'files',
  connection: 'acme',
  mode: 'url',
  modeReason: '',
  origin: 'gateway',
  message: '',
  requestId: 'r',
  capabilities: '{}',
  createdAtMs: 0,
  expiresAtMs: 0,
  updatedAtMs: 0,
  at: {},
  state,
  ...(reason !== undefined && { reason }),
});

describe('what became of it', () => {
  it('tells a refusal here from one at the third party', () => {
    expect(describeOutcome(elicitation('declined', 'denied_here'), 'Acme').text).toContain(
      'You declined',
    );
    expect(describeOutcome(elicitation('declined', 'denied_there'), 'Acme').text).toContain(
      'at Acme',
    );
  });
  it.each<EndReason>(['unavailable', 'refused', 'invalid_grant', 'invalid_answer', 'interrupted'])(
    'explains a failure (%s) and how to go on',
    (reason) => {
      const { text } = describeOutcome(elicitation('failed', reason), 'Acme');
      expect(text).toContain('Call the tool again');
      expect(text).not.toContain('Something went wrong');
    },
  );
  it('is told with the next link only when it did not end well', () => {
    expect(describeLastAttempt(elicitation('expired'), 'Acme')).toContain('expired');
    expect(describeLastAttempt(elicitation('failed', 'interrupted'), 'Acme')).toContain(
      'interrupted',
    );
    expect(describeLastAttempt(elicitation('completed'), 'Acme')).toBe('');
    expect(describeLastAttempt(undefined, 'Acme')).toBe('');
  });
});
