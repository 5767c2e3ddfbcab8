/**
 * `input_required` of an upstream: relayed when the client has declared all that it asks for, with the upstream's
 * own `requestState` inside ours (2026-07-28 basic/patterns/mrtr; invariant 6).
 */
import type { Audit } from '@viaduct/shared/audit';
import { fail } from '@viaduct/shared/errors';
import { applyEdits, findPath, objectMembers, sliceOf } from '@viaduct/shared/json-text';
import type { Metrics } from '@viaduct/shared/metrics';
import { refusal, unsafeAsk, type Guard } from '../../elicitation/elicitation.ts';
import { garbage } from '../../upstream/upstream.ts';
import type { JsonObject } from '../message.ts';
import { setMembers } from './edits.ts';
import { namedBy } from './header-values.ts';
import type { Caller, Outgoing } from './path.ts';

export interface InputDeps {
  readonly metrics: Pick<Metrics, 'capabilityRefusals'>;
  readonly audit: Audit;
  readonly guard: Guard;
}

const isObject = (value: unknown): value is JsonObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** The response to give the client. @throws GatewayError upstream_invalid, missing_capability */
export async function relayInputRequired(
  deps: InputDeps,
  out: Outgoing,
  text: string,
  result: JsonObject,
): Promise<string> {
  const { name } = out.upstream;
  if (namedBy(out.message.method) === undefined) {
    throw garbage(name, `input_required in answer to ${out.message.method}`);
  }
  const { inputRequests, requestState } = result;
  if (inputRequests === undefined && requestState === undefined) {
    throw garbage(name, 'input_required without inputRequests and requestState');
  }
  if (requestState !== undefined && typeof requestState !== 'string') {
    throw garbage(name, 'a requestState that is no string');
  }
  if (inputRequests !== undefined) checkDeclared(deps, out, name, inputRequests);
  const own = findPath(text, ['result', 'requestState']);
  const sealed = await out.seal({
    kind: 'upstream',
    ...(own !== undefined && { upstreamState: sliceOf(text, own) }),
  });
  const at = objectMembers(text)!.get('result')!;
  return applyEdits(text, setMembers(text, at.start, { requestState: JSON.stringify(sealed) }));
}

/**
 * Refuses what this request's client has not declared, all of it at once.
 *
 * @throws GatewayError missing_capability, upstream_invalid
 */
export function checkDeclared(
  deps: InputDeps,
  caller: Caller,
  upstream: string,
  inputRequests: unknown,
): void {
  if (!isObject(inputRequests)) throw garbage(upstream, 'inputRequests that are no object');
  const missing: JsonObject = {};
  for (const asked of Object.values(inputRequests)) {
    const method = isObject(asked) ? asked['method'] : undefined;
    if (typeof method !== 'string' || !ASKABLE.has(method)) {
      throw garbage(upstream, 'an input request that is none');
    }
    const params = (asked as JsonObject)['params'];
    const given = isObject(params) ? params : undefined;
    const refused = refusal(caller.envelope.capabilities, method, given);
    if (refused === undefined) {
      if (method === 'elicitation/create') checkSafe(deps, caller, upstream, given);
      continue;
    }
    if (refused.mode === 'other')
      throw garbage(upstream, 'an elicitation mode that does not exist');
    const { principal, requestId } = caller;
    deps.metrics.capabilityRefusals.inc({ mode: refused.mode });
    deps.audit.record({
      type: 'capability.refused',
      mode: refused.mode,
      upstream,
      requestId,
      userId: principal.userId,
      clientId: principal.clientId,
    });
    require(missing, method, given);
  }
  if (Object.keys(missing).length > 0) {
    const names = Object.keys(missing).join(', ');
    throw fail(
      'missing_capability',
      `The server "${upstream}" needs input that your client has not declared to support: ${names}.`,
      { data: { requiredCapabilities: missing } },
    );
  }
}

/** A secret by form, or a link that is none: not passed on, whatever the client declared. */
function checkSafe(
  { audit, guard }: InputDeps,
  { principal, requestId }: Caller,
  upstream: string,
  params: JsonObject | undefined,
): void {
  const unsafe = unsafeAsk(params, guard);
  if (unsafe === undefined) return;
  const { message, detail, refuse: refused } = unsafe;
  const { userId, clientId } = principal;
  audit.record({
    type: 'elicitation.unsafe',
    upstream,
    detail,
    refused,
    requestId,
    userId,
    clientId,
  });
  if (refused) throw fail('upstream_invalid', message, { data: { reason: 'unsafe_elicitation' } });
}

const ASKABLE: ReadonlySet<string> = new Set([
  'elicitation/create',
  'sampling/createMessage',
  'roots/list',
]);

/** Adds what a request needs, in the shape of `ClientCapabilities`. */
function require(missing: JsonObject, method: string, params: JsonObject | undefined): void {
  const into = (name: string, more: JsonObject): void => {
    missing[name] = { ...(missing[name] as JsonObject | undefined), ...more };
  };
  if (method === 'elicitation/create')
    into('elicitation', { [params?.['mode'] === 'url' ? 'url' : 'form']: {} });
  else if (method === 'roots/list') into('roots', {});
  else into('sampling', params?.['tools'] === undefined ? {} : { tools: {} });
}
