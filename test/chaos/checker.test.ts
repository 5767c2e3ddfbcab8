import { describe, expect, test } from 'vitest';
import { check, type Evidence, type FaultRecord } from './checker.ts';
import type { CallEnd, ClientLog, Entry } from './journal.ts';
import { FAULTS, plan } from './schedule.ts';

// A checker that cannot fail proves nothing: each rule is shown a run that breaks it, and one that does not.

const at = (atMs: number, entry: Record<string, unknown>): Entry => ({ atMs, ...entry }) as Entry;
const call = (nonce: string, atMs = 1_000): Entry =>
  at(atMs, { kind: 'call', nonce, tool: 'mark' });
const end = (nonce: string, more: Partial<CallEnd> = {}): Entry =>
  at(1_100, { kind: 'end', nonce, ending: 'result', said: nonce, ...more });
const log = (client: string, entries: Entry[], era: ClientLog['era'] = 'legacy'): ClientLog => ({
  client,
  era,
  entries,
});
const ran = (...nonces: string[]) =>
  nonces.map((nonce) => ({ nonce, upstream: 'plain', atMs: 1_050 }));
const fault = (kind: FaultRecord['fault'], atMs: number): FaultRecord => ({
  fault: kind,
  target: 'pod1',
  atMs,
  healedMs: atMs + 500,
  servedMs: atMs + 900,
});
const run = (
  entries: Entry[],
  more: Partial<Evidence> = {},
  era: ClientLog['era'] = 'legacy',
): string[] =>
  check({ clients: [log('c1', entries, era)], executions: ran('a'), faults: [], failsOver: false, ...more }).map(({ rule }) => rule); // prettier-ignore

const EXPLAINED = { ending: 'error', said: undefined, code: -32603, message: 'It is away.', reason: 'upstream_call_lost' } as const; // prettier-ignore

describe('[chaos.checker] calls', () => {
  test('a call with its own result is fine', () => {
    expect(run([call('a'), end('a')])).toEqual([]);
  });
  test.each<[string, Entry[], string[]]>([
    ['no end', [call('a')], ['answered']],
    ['two ends', [call('a'), end('a'), end('a')], ['answered']],
    ['the result of its own other call', [call('a'), call('b'), end('a', { said: 'b' }), end('b')], ['answered', 'foreign']], // prettier-ignore
    ['the result of somebody else’s call', [call('a'), end('a', { said: 'z' })], ['answered', 'foreign']], // prettier-ignore
    ['a result though it never ran', [call('b'), end('b')], ['foreign']],
    ['no answer', [call('a'), end('a', { ending: 'hung', said: undefined })], ['answered']],
    ['an explained error', [call('a'), end('a', EXPLAINED)], []],
    ['an internal error', [call('a'), end('a', { ...EXPLAINED, reason: 'internal' })], ['answered']], // prettier-ignore
    ['an error without words', [call('a'), end('a', { ...EXPLAINED, message: '' })], ['answered']], // prettier-ignore
    ['HTTP 500', [call('a'), end('a', { ...EXPLAINED, status: 500 })], ['answered']], // prettier-ignore
    ['HTTP 503', [call('a'), end('a', { ...EXPLAINED, status: 503 })], []],
  ])('%s', (_name, entries, rules) => {
    expect(run(entries)).toEqual(rules);
  });

  const broken = [call('a'), end('a', { ending: 'broken', said: undefined })];
  test('a broken connection needs a pod that died', () => {
    expect(run(broken)).toEqual(['answered']);
    expect(run(broken, { faults: [fault('pod-kill', 1_050)] })).toEqual([]);
    expect(run(broken, { faults: [fault('worker-kill', 1_050)] })).toEqual(['answered']);
    expect(run(broken, { faults: [fault('pod-kill', 9_000)] }), 'too late').toEqual(['answered']);
  });
  test('a balancer without pods needs a reason', () => {
    const none = [call('a'), end('a', { ending: 'balancer', status: 503, said: undefined })];
    expect(run(none)).toEqual(['answered']);
    expect(run(none, { faults: [fault('redis-freeze', 1_000)] })).toEqual([]);
    expect(run(none, { faults: [fault('party-lies', 1_000)] })).toEqual(['answered']);
  });
  test('a call that ran twice', () => {
    expect(run([call('a'), end('a')], { executions: ran('a', 'a') })).toEqual(['once']);
  });
});

describe('[chaos.checker] what clients hear', () => {
  const heard = (entry: Record<string, unknown>) => at(1_500, { kind: 'heard', ...entry });
  const COMPLETE = 'notifications/elicitation/complete';
  const told = heard({ method: COMPLETE, elicitationId: 'e' });
  const asked = at(1_000, { kind: 'asked', elicitationId: 'e', user: 'u' });
  const flow = (state: string, listening = true) =>
    at(2_000, { kind: 'flow', elicitationId: 'e', state, listening });
  const lost = at(1_600, { kind: 'session', what: 'lost' });

  test.each<[string, Entry[], string[]]>([
    ['progress of its own call', [call('a'), end('a'), heard({ progressToken: 'a' })], []],
    ['progress of another’s', [heard({ progressToken: 'z' })], ['foreign']],
    ['the end of another’s flow', [heard({ method: COMPLETE, elicitationId: 'z' })], ['foreign']],
    ['completed and told', [asked, told, flow('completed')], []],
    ['completed and not told', [asked, flow('completed')], ['told']],
    ['told twice', [asked, told, told, flow('completed')], ['told']],
    ['told, though it failed', [asked, told, flow('failed')], ['told']],
    ['failed and not told', [asked, flow('failed')], []],
    ['nobody listened', [asked, flow('completed', false)], []],
    ['the session was lost, which is a fault of its own', [asked, lost, flow('completed')], ['session']], // prettier-ignore
  ])('%s', (_name, entries, rules) => {
    expect(run(entries)).toEqual(rules);
  });
  test('modern clients are not told: they retry', () => {
    expect(run([asked, flow('completed')], {}, 'modern')).toEqual([]);
  });
  test('a failover may lose what was written last', () => {
    const failover = { failsOver: true, faults: [fault('redis-kill', 1_400)] };
    expect(run([asked, lost, flow('completed')], failover)).toEqual([]);
    expect(run([asked, flow('completed')], failover)).toEqual([]);
    const hung = [call('a'), end('a', { ending: 'hung', said: undefined })];
    expect(run(hung, failover)).toEqual([]);
    expect(run(hung, { failsOver: true })).toEqual(['answered']);
    expect(run([asked, lost, flow('completed')], { failsOver: true })).toEqual(['session']);
  });
});

describe('[chaos.checker] everything else', () => {
  const request = (entry: Record<string, unknown>) =>
    at(1_000, { kind: 'request', what: 'tools/list', ending: 'result', status: 200, tookMs: 5, ...entry }); // prettier-ignore
  test.each<[string, Entry, string[]]>([
    ['a good answer', request({}), []],
    ['401 with a good token', request({ ending: 'error', status: 401 }), ['request']],
    ['500', request({ ending: 'error', status: 500 }), ['request']],
    ['503', request({ ending: 'error', status: 503, reason: 'store_unavailable' }), []],
    ['no answer', request({ ending: 'hung', status: 0 }), ['request']],
    ['cut off', request({ ending: 'broken', status: 0 }), ['request']],
    ['a credential that works', at(1, { kind: 'credential', user: 'u', works: true, detail: '' }), []], // prettier-ignore
    ['a credential that is gone', at(1, { kind: 'credential', user: 'u', works: false, detail: 'asked again' }), ['credential']], // prettier-ignore
    ['a few seconds forgiven', at(1, { kind: 'skewed', offBy: '5 s', accepted: true, status: 200 }), []], // prettier-ignore
    ['a few seconds refused', at(1, { kind: 'skewed', offBy: '5 s', accepted: true, status: 401 }), ['skew']], // prettier-ignore
    ['minutes forgiven', at(1, { kind: 'skewed', offBy: '10 min', accepted: false, status: 200 }), ['skew']], // prettier-ignore
    ['minutes refused', at(1, { kind: 'skewed', offBy: '10 min', accepted: false, status: 401 }), []], // prettier-ignore
  ])('%s', (_name, entry, rules) => {
    expect(run([entry])).toEqual(rules);
  });
  test('a pod that never came back', () => {
    const { servedMs: _never, ...dead } = fault('pod-kill', 1_000);
    expect(run([], { faults: [dead] })).toEqual(['recovered']);
  });
});

describe('[chaos.seed] the schedule', () => {
  test('is the same for the same seed and another for another', () => {
    const lengthMs = 120_000;
    expect(plan({ seed: 7, lengthMs })).toEqual(plan({ seed: 7, lengthMs }));
    expect(plan({ seed: 8, lengthMs })).not.toEqual(plan({ seed: 7, lengthMs }));
  });
  test('has every fault, one after the other, inside its time', () => {
    const lengthMs = 120_000;
    const planned = plan({ seed: 3, lengthMs });
    expect(new Set(planned.map(({ fault: kind }) => kind)).size).toBe(FAULTS.length);
    for (const [i, { atMs, forMs }] of planned.entries()) {
      expect(atMs + forMs).toBeLessThanOrEqual(planned[i + 1]?.atMs ?? lengthMs);
    }
  });
});
