/**
 * What changes in an upstream's messages on their way to a modern client: what this revision asks of every result,
 * tools that this caller may not see, names on the endpoint of many. The rest keeps its bytes. Pure.
 */
import type { UpstreamConfig } from '@viaduct/shared/config';
import { applyEdits, objectMembers } from '@viaduct/shared/json-text';
import { objectsIn, type JsonObject } from '../message.ts';
import { hasToolRules } from '../operations.ts';
import { qualifyMessage, qualifyResponse } from '../qualify.ts';
import { filterTools } from '../visibility.ts';
import { setMembers } from './edits.ts';
import { SUPPORTED_VERSIONS, wantsLevel, type Envelope } from './envelope.ts';

/** Results with `ttlMs` and `cacheScope` (server/utilities/caching). */
export const CACHEABLE: ReadonlySet<string> = new Set([
  'server/discover', 'tools/list', 'prompts/list', 'resources/list', 'resources/templates/list',
  'resources/read',
]); // prettier-ignore

/**
 * Notifications that belong on no call's stream: those of subscriptions, those that only sessions have, and those
 * that only clients send (basic/patterns/subscriptions; Streamable HTTP, Receiving Messages).
 */
const NOT_OF_A_CALL: ReadonlySet<string> = new Set([
  'notifications/tools/list_changed',
  'notifications/prompts/list_changed',
  'notifications/resources/list_changed',
  'notifications/resources/updated',
  'notifications/subscriptions/acknowledged',
  'notifications/elicitation/complete',
  'notifications/cancelled',
  'notifications/initialized',
  'notifications/roots/list_changed',
]);

/** True when two callers may get different results, so that no cache may share them (cases A7). */
export const dependsOnCaller = (upstream: UpstreamConfig): boolean =>
  upstream.connection !== undefined || upstream.scopes.length > 0 || hasToolRules(upstream);

export interface ResultContext {
  readonly method: string;
  readonly upstream: UpstreamConfig;
  /** On `/mcp`, where names say which upstream they are of. */
  readonly many: boolean;
  /** The request carried `requestState` or answers: its result is for nobody else and for no other time. */
  readonly retry: boolean;
  /** Takes in the tools of a list; @returns whether one may be shown */
  seeTools(tools: readonly JsonObject[]): (tool: string) => boolean;
}

/** A final response. */
export function completeResponse(
  text: string,
  parsed: JsonObject,
  { method, upstream, many, retry, seeTools }: ResultContext,
): string {
  const result = parsed['result'] as JsonObject | undefined;
  if (typeof result !== 'object') return text;
  const values: Record<string, string> = {};
  if (typeof result['resultType'] !== 'string') values['resultType'] = '"complete"';
  if (CACHEABLE.has(method)) {
    const { ttlMs, cacheScope } = result;
    if (retry || !Number.isSafeInteger(ttlMs) || (ttlMs as number) < 0) values['ttlMs'] = '0';
    const shared = cacheScope === 'public' && !retry && !dependsOnCaller(upstream);
    if (!shared && cacheScope !== 'private') values['cacheScope'] = '"private"';
  }
  if (method === 'server/discover') {
    values['supportedVersions'] = JSON.stringify(SUPPORTED_VERSIONS);
  }
  let out = text;
  const at = objectMembers(text)?.get('result');
  if (at !== undefined) out = applyEdits(out, setMembers(out, at.start, values));
  const tools = result['tools'];
  if (method === 'tools/list' && Array.isArray(tools)) {
    out = filterTools(out, parsed, seeTools(objectsIn(tools)));
  }
  return many ? qualifyResponse(out, method, upstream.name) : out;
}

/** A notification on a call's stream; undefined when the client may not have it. */
export function callNotification(
  text: string,
  parsed: JsonObject,
  context: { readonly envelope: Envelope; readonly upstream: string; readonly many: boolean },
): string | undefined {
  const method = String(parsed['method']);
  const { envelope, upstream, many } = context;
  if (NOT_OF_A_CALL.has(method)) return undefined;
  const params = parsed['params'] as JsonObject | undefined;
  if (method === 'notifications/message' && !wantsLevel(envelope, params?.['level'])) {
    return undefined;
  }
  // Only tokens of an active request (basic/patterns/progress, Behavior Requirements 1).
  if (method === 'notifications/progress') {
    const { progressToken } = envelope;
    if (progressToken === undefined || params?.['progressToken'] !== progressToken)
      return undefined;
  }
  return many ? qualifyMessage(text, method, upstream) : text;
}
