/** Whether a legacy upstream may ask this client that: capabilities, safety of forms and links (invariant 6). */
import type { Audit } from '@viaduct/shared/audit';
import type { Metrics } from '@viaduct/shared/metrics';
import { refusal, unsafeAsk, type Guard } from '../../elicitation/elicitation.ts';
import type { JsonObject } from '../message.ts';
import { namedBy } from './header-values.ts';
import { isObject } from './legacy-words.ts';
import type { Caller } from './path.ts';

/** Of the call that a question belongs to; kept as long as the call is. */
export type AskedCaller = Pick<Caller, 'principal' | 'requestId' | 'envelope'> & {
  readonly method: string;
};

export interface QuestionDeps {
  readonly metrics: Pick<Metrics, 'capabilityRefusals'>;
  readonly audit: Audit;
  readonly guard: Guard;
}

const ASKABLE: ReadonlySet<string> = new Set([
  'elicitation/create',
  'sampling/createMessage',
  'roots/list',
]);

/** The error that the upstream gets, `pong`, or undefined: the client may be asked. */
export function refuseQuestion(
  { metrics, audit, guard }: QuestionDeps,
  { principal, requestId, envelope, method: calls }: AskedCaller,
  upstream: string,
  method: string,
  parsed: JsonObject,
): { readonly code: number; readonly message: string } | 'pong' | undefined {
  if (method === 'ping') return 'pong';
  if (!ASKABLE.has(method)) return { code: -32601, message: `Method not found: ${method}` };
  if (namedBy(calls) === undefined) {
    // Only these have rounds (basic/patterns/mrtr, Supported Requests).
    return { code: -32601, message: `The client cannot be asked during ${calls}.` };
  }
  const params = isObject(parsed['params']) ? parsed['params'] : undefined;
  const { userId, clientId } = principal;
  const about = { upstream, requestId, userId, clientId };
  const refused = refusal(envelope.capabilities, method, params);
  if (refused !== undefined) {
    metrics.capabilityRefusals.inc({ mode: refused.mode });
    audit.record({ type: 'capability.refused', mode: refused.mode, ...about });
    return { code: refused.code, message: refused.message };
  }
  if (method !== 'elicitation/create') return undefined;
  const unsafe = unsafeAsk(params, guard);
  if (unsafe === undefined) return undefined;
  const { detail, refuse } = unsafe;
  audit.record({ type: 'elicitation.unsafe', detail, refused: refuse, ...about });
  return refuse ? { code: -32602, message: unsafe.message } : undefined;
}
