/**
 * A modern server's answers as a sessionful client knows them: without the members that its revision does not have,
 * with its error codes, and in words where it has no code at all. The rest keeps its bytes. Pure.
 */
import { applyEdits, findPath, objectMembers, removeMembers } from '@viaduct/shared/json-text';
import { errorText, resultResponse, withId, type JsonObject } from '../message.ts';
import { CACHEABLE } from '../modern/results.ts';
import { META } from '../modern/envelope.ts';

/** 2025-11-25 server/resources, Error Handling. */
const RESOURCE_NOT_FOUND = -32002;
const INVALID_PARAMS = -32602;

const HINTS = ['ttlMs', 'cacheScope'] as const;

interface RpcError {
  readonly code?: unknown;
  readonly message?: unknown;
  readonly data?: unknown;
}

/** A response that ends the call, with the id that the client gave. */
export function legacyResponse(
  text: string,
  parsed: JsonObject,
  { method, idText }: { readonly method: string; readonly idText: string },
): string {
  const members = objectMembers(text)!;
  const result = members.get('result');
  const out = members.has('id') ? withId(text, members, idText) : text;
  if (result !== undefined) {
    const moved = objectMembers(out)!.get('result')!;
    const names = ['resultType', ...(CACHEABLE.has(method) ? HINTS : [])];
    return applyEdits(out, removeMembers(out, moved.start, names));
  }
  const error = parsed['error'] as RpcError | undefined;
  if (method !== 'resources/read' || error?.code !== INVALID_PARAMS) return out;
  if (!isNotFound(error)) return out;
  const code = findPath(out, ['error', 'code']);
  return code === undefined ? out : applyEdits(out, [{ ...code, text: `${RESOURCE_NOT_FOUND}` }]);
}

/** Invalid params have several reasons, of which only this one has its own code in earlier revisions. */
function isNotFound(error: RpcError): boolean {
  const uri = (error.data as { uri?: unknown } | null | undefined)?.uri;
  return (
    typeof uri === 'string' || /not.?found|unknown resource|no such/i.test(String(error.message))
  );
}

/**
 * An end in words. A model reads the result of its tool; everything else has an error.
 *
 * @param reason for programs, in `data`
 */
export function explained(
  { method, idText }: { readonly method: string; readonly idText: string },
  text: string,
  reason: string,
  data: JsonObject = {},
): string {
  return method === 'tools/call'
    ? resultResponse(idText, { content: [{ type: 'text', text }], isError: true })
    : errorText(idText, { code: -32603, message: text, data: { reason, ...data } });
}

/** `{ elicitation: { form: {} }, sampling: {} }` in words. */
export function inWords(capabilities: unknown): string {
  if (typeof capabilities !== 'object' || capabilities === null) return 'more than it declared';
  const names = Object.entries(capabilities).map(([name, value]) => {
    const modes = typeof value === 'object' && value !== null ? Object.keys(value as object) : [];
    return modes.length === 0 ? name : `${name} (${modes.join(', ')})`;
  });
  return names.length === 0 ? 'more than it declared' : names.join(', ');
}

export function lacking(upstream: string, capabilities: unknown): string {
  return (
    `The server "${upstream}" needs input that this client has not declared to support: ` +
    `${inWords(capabilities)}. Use a client that supports it and call again.`
  );
}

/** A notification of a subscription without the id of ours. */
export function withoutSubscription(text: string): string {
  const meta = findPath(text, ['params', '_meta']);
  if (meta === undefined) return text;
  const members = objectMembers(text, meta.start);
  if (members?.has(META.subscriptionId) !== true) return text;
  if (members.size > 1) {
    return applyEdits(text, removeMembers(text, meta.start, [META.subscriptionId]));
  }
  const params = objectMembers(text)!.get('params')!;
  const only = objectMembers(text, params.start)!.size === 1;
  return applyEdits(
    text,
    only ? removeMembers(text, 0, ['params']) : removeMembers(text, params.start, ['_meta']),
  );
}
