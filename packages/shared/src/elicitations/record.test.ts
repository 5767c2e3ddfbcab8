import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { decodeRecord, encodeRecord, pairsToHash, STATES, type Elicitation } from './record.ts';

const record = fc.record<Elicitation>(
  {
    id: fc.string(),
    userId: fc.string(),
    clientId: fc.string(),
    clientName: fc.string(),
    sessionId: fc.string(),
    endpoint: fc.string(),
    upstream: fc.string(),
    connection: fc.string(),
    mode: fc.constantFrom('url', 'form'),
    modeReason: fc.string(),
    origin: fc.constantFrom('gateway', 'upstream'),
    message: fc.string(),
    requestId: fc.string(),
    capabilities: fc.json(),
    state: fc.constantFrom(...STATES),
    reason: fc.constantFrom('denied_here', 'too_late'),
    action: fc.constantFrom('approve', 'deny'),
    attempt: fc.string(),
    code: fc.string(),
    createdAtMs: fc.nat(),
    expiresAtMs: fc.nat(),
    updatedAtMs: fc.nat(),
    at: fc.dictionary(fc.constantFrom(...STATES), fc.nat(), { noNullPrototype: true }),
  },
  {
    noNullPrototype: true,
    requiredKeys: [
      'id',
      'userId',
      'clientId',
      'endpoint',
      'upstream',
      'connection',
      'mode',
      'modeReason',
      'origin',
      'message',
      'requestId',
      'capabilities',
      'state',
      'createdAtMs',
      'expiresAtMs',
      'updatedAtMs',
      'at',
    ],
  },
);

describe('the record of an elicitation', () => {
  it('comes out of Redis as it went in', () => {
    fc.assert(
      fc.property(record, (before) => {
        expect(decodeRecord(pairsToHash(encodeRecord(before)))).toEqual(before);
      }),
    );
  });
  it('is not there when its state is none of ours', () => {
    expect(decodeRecord({})).toBeUndefined();
    expect(decodeRecord({ state: 'paused' })).toBeUndefined();
  });
});
