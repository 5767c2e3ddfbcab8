/**
 * The words of 2026-07-28 said in those of 2025-11-25, and the other way round: one message at a time, on its text,
 * so that what has no counterpart to change keeps its bytes (invariant 5). Pure.
 */
import {
  applyEdits,
  arrayItems,
  findPath,
  objectMembers,
  removeMembers,
  sliceOf,
  type Edit,
} from '@viaduct/shared/json-text';
import { canElicit } from '../../elicitation/elicitation.ts';
import { objectsIn, type JsonObject } from '../message.ts';
import { LATEST_LEGACY } from '../versions.ts';
import { setMembers } from './edits.ts';
import type { Page } from './path.ts';

/** `_meta` keys that the modern revision has taken for itself (basic/index, `_meta`). */
const RESERVED = 'io.modelcontextprotocol/';

export const isObject = (value: unknown): value is JsonObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/**
 * What `initialize` declares for a client of this request: no more than what the client declared, in the few shapes
 * that can lead to a question, so that the number of a user's implicit sessions is bounded.
 */
export function legacyCapabilities(declared: JsonObject): JsonObject {
  const out: JsonObject = {};
  const modes = (['form', 'url'] as const).filter((mode) => canElicit(declared, mode));
  if (modes.length > 0) out['elicitation'] = Object.fromEntries(modes.map((mode) => [mode, {}]));
  // Roots never change for a server: there is nobody to say so without a session.
  if (isObject(declared['roots'])) out['roots'] = {};
  const sampling = declared['sampling'];
  if (isObject(sampling)) {
    const parts = ['context', 'tools'].filter((part) => isObject(sampling[part]));
    out['sampling'] = Object.fromEntries(parts.map((part) => [part, {}]));
  }
  return out;
}

/** Params of `initialize`, JSON text. */
export function helloText(capabilities: JsonObject, clientInfoText: string): string {
  return `{"protocolVersion":"${LATEST_LEGACY}","capabilities":${JSON.stringify(capabilities)},"clientInfo":${clientInfoText}}`;
}

/** `clientInfo` as the client wrote it, if earlier revisions can read it. */
export function clientInfoFor(text: string): string {
  const info = JSON.parse(text) as unknown;
  return isObject(info) &&
    typeof info['name'] === 'string' &&
    typeof info['version'] === 'string' &&
    text.length <= 4_096
    ? text
    : '{"name":"viaduct","version":"1"}';
}

/**
 * A request without its modern envelope, under an id of the upstream's leg. Several clients' requests share that leg,
 * so a progress token becomes the id, which nobody else uses there.
 */
export function legacyRequest(text: string, id: string): string {
  const members = objectMembers(text)!;
  const edits: Edit[] = [{ ...members.get('id')!, text: JSON.stringify(id) }];
  const params = members.get('params');
  if (params === undefined) return applyEdits(text, edits);
  const gone = ['requestState', 'inputResponses'];
  const meta = objectMembers(text, params.start)?.get('_meta');
  const inMeta = meta && objectMembers(text, meta.start);
  if (meta !== undefined && inMeta !== undefined) {
    const reserved = [...inMeta.keys()].filter((name) => name.startsWith(RESERVED));
    if (reserved.length === inMeta.size) gone.push('_meta');
    else {
      edits.push(...removeMembers(text, meta.start, reserved));
      const token = inMeta.get('progressToken');
      if (token !== undefined) edits.push({ ...token, text: JSON.stringify(id) });
    }
  }
  edits.push(...removeMembers(text, params.start, gone));
  return applyEdits(text, edits);
}

/** A response of the upstream's, under the id of the client's request. */
export function modernResponse(text: string, parsed: JsonObject, idText: string): string {
  const members = objectMembers(text)!;
  const edits: Edit[] = [{ ...members.get('id')!, text: idText }];
  const result = members.get('result');
  // A legacy result cannot ask for input, whatever member of that name it carries.
  if (result !== undefined && isObject(parsed['result']) && 'resultType' in parsed['result']) {
    edits.push(...setMembers(text, result.start, { resultType: '"complete"' }));
  }
  const code = findPath(text, ['error', 'code']);
  if (code !== undefined) {
    const own = Number(sliceOf(text, code));
    edits.push({ ...code, text: String(modernCode(own)) });
  }
  return applyEdits(text, edits);
}

/** Codes of earlier revisions that this one has given up, or given another meaning (basic/index, Error Codes). */
export const modernCode = (code: number): number => (code === -32002 ? -32602 : code);

/** A progress notification of the upstream's leg, with the token that this round's client gave, as it wrote it. */
export function withProgressToken(
  text: string,
  parsed: JsonObject,
  token: { readonly text: string; readonly value: unknown },
): { text: string; parsed: JsonObject } {
  const at = findPath(text, ['params', 'progressToken']);
  const params = parsed['params'];
  if (at === undefined || !isObject(params)) return { text, parsed };
  return {
    text: applyEdits(text, [{ ...at, text: token.text }]),
    parsed: { ...parsed, params: { ...params, progressToken: token.value } },
  };
}

/** A request of the upstream's as one of `inputRequests`, JSON text. URL elicitations have no id here. */
export function inputRequest(text: string, method: string): string {
  const params = objectMembers(text)!.get('params');
  if (params === undefined) return `{"method":${JSON.stringify(method)}}`;
  const own = sliceOf(text, params);
  const edits = removeMembers(own, 0, ['elicitationId', 'task']);
  return `{"method":${JSON.stringify(method)},"params":${applyEdits(own, edits)}}`;
}

/** `input_required`, JSON text. `requests` is a JSON object text. */
export function inputRequiredText(idText: string, requests: string, requestState: string): string {
  return `{"jsonrpc":"2.0","id":${idText},"result":{"resultType":"input_required","inputRequests":${requests},"requestState":${JSON.stringify(requestState)}}}`;
}

/** What is wrong with an answer to a question, in words; undefined when it is one (2026-07-28 schema). */
export function faultOf(method: string, answer: unknown): string | undefined {
  if (!isObject(answer)) return 'must be an object';
  switch (method) {
    case 'elicitation/create': {
      const { action, content } = answer;
      if (action !== 'accept' && action !== 'decline' && action !== 'cancel') {
        return 'needs the action accept, decline or cancel';
      }
      return content === undefined || isObject(content)
        ? undefined
        : 'has a content that is no object';
    }
    case 'sampling/createMessage': {
      const { role, content, model } = answer;
      const filled = isObject(content) || Array.isArray(content);
      return typeof role === 'string' && typeof model === 'string' && filled
        ? undefined
        : 'needs role, content and model';
    }
    default:
      return Array.isArray(answer['roots']) ? undefined : 'needs roots';
  }
}

/** The items of one page of a list, each with its own text. */
export function listItems(text: string, result: JsonObject, field: string): Page['items'] {
  const values = result[field];
  if (!Array.isArray(values)) return [];
  const objects = objectsIn(values);
  const list = findPath(text, ['result', field]);
  const slices = (list && arrayItems(text, list.start)) ?? [];
  return slices.map((slice, i) => ({
    text: sliceOf(text, slice),
    value: objects[i] ?? {},
  }));
}
