/**
 * One JSON-RPC message of a client: checked once, kept as text. Parsing happens here and nowhere else on the
 * path; what travels on is the original bytes.
 */
import { isUtf8 } from 'node:buffer';
import { fail } from '@viaduct/shared/errors';
import {
  arrayItems,
  DuplicateMember,
  objectMembers,
  sliceOf,
  type Slice,
} from '@viaduct/shared/json-text';

export type JsonObject = Record<string, unknown>;

/** The items of a list that an upstream gave, in their places; what is no object there has nothing in it. */
export const objectsIn = (list: unknown): JsonObject[] =>
  Array.isArray(list)
    ? list.map((item: unknown) =>
        typeof item === 'object' && item !== null && !Array.isArray(item)
          ? (item as JsonObject)
          : {},
      )
    : [];

interface Base {
  readonly text: string;
  /** The body as received; undefined for an item of a batch. */
  readonly bytes: Buffer | undefined;
  readonly members: ReadonlyMap<string, Slice>;
}

export interface RequestMessage extends Base {
  readonly kind: 'request';
  readonly id: string | number;
  /** As the client spelled it: echoed, never re-serialised (cases J1). */
  readonly idText: string;
  readonly method: string;
  readonly params: JsonObject | undefined;
}

export interface NotificationMessage extends Base {
  readonly kind: 'notification';
  readonly method: string;
  readonly params: JsonObject | undefined;
}

export interface ResponseMessage extends Base {
  readonly kind: 'response';
  readonly id: string | number;
  readonly idText: string;
}

export type Message = RequestMessage | NotificationMessage | ResponseMessage;

/** Where the reader of an error finds the id, as soon as one could be read. */
export interface IdHolder {
  idText: string;
}

/** @throws GatewayError parse_error, invalid_request */
export function parseBody(body: Buffer, holder: IdHolder): Message | Message[] {
  if (!isUtf8(body))
    throw fail('parse_error', 'The body is not UTF-8. Send JSON encoded in UTF-8.');
  const text = body.toString('utf8');
  const value = parseJson(text);
  if (Array.isArray(value)) return parseBatch(text, value, holder);
  return parseMessage(text, value, holder, body);
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch (cause) {
    throw fail('parse_error', 'The body is not JSON.', { cause });
  }
}

/** Longest batch of a 2025-03-26 session; each item costs what a request costs. */
export const MAX_BATCH = 100;

function parseBatch(text: string, value: unknown[], holder: IdHolder): Message[] {
  if (value.length === 0) throw fail('invalid_request', 'An empty batch is not a message.');
  if (value.length > MAX_BATCH) {
    throw fail('invalid_request', `A batch may hold at most ${MAX_BATCH} messages.`);
  }
  const slices = arrayItems(text) ?? [];
  return slices.map((slice, i) => parseMessage(sliceOf(text, slice), value[i], holder, undefined));
}

export function parseMessage(
  text: string,
  value: unknown,
  holder: IdHolder,
  bytes: Buffer | undefined,
): Message {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw fail('invalid_request', 'A JSON-RPC message is an object.');
  }
  const message = value as JsonObject;
  const id = message['id'];
  const validId = typeof id === 'string' || Number.isInteger(id);
  let members: Map<string, Slice>;
  try {
    members = objectMembers(text) ?? new Map<string, Slice>();
  } catch (error) {
    if (error instanceof DuplicateMember) {
      throw fail('invalid_request', `The message is ambiguous: ${error.message}.`);
    }
    throw error;
  }
  const idSlice = members.get('id');
  const idText = idSlice === undefined ? 'null' : sliceOf(text, idSlice);
  if (validId || typeof id === 'number') holder.idText = idText;
  if (message['jsonrpc'] !== '2.0') {
    throw fail('invalid_request', 'The message lacks "jsonrpc": "2.0".');
  }
  if (id !== undefined && !validId) {
    throw fail('invalid_request', 'The id must be a string or an integer.');
  }
  const method = message['method'];
  if (method === undefined) {
    if (
      id === undefined ||
      (message['result'] === undefined) === (message['error'] === undefined)
    ) {
      throw fail(
        'invalid_request',
        'The message is neither a request, a notification nor a response.',
      );
    }
    return { kind: 'response', id: id as string | number, idText, text, bytes, members };
  }
  if (typeof method !== 'string') throw fail('invalid_request', 'The method must be a string.');
  const params = message['params'];
  if (
    params !== undefined &&
    (typeof params !== 'object' || params === null || Array.isArray(params))
  ) {
    throw fail('invalid_request', 'The params must be an object.');
  }
  const common = { method, params: params as JsonObject | undefined, text, bytes, members };
  if (id === undefined) return { kind: 'notification', ...common };
  checkParams(text, members);
  return { kind: 'request', id: id as string | number, idText, ...common };
}

/** What routes and authorises a request must be there once: name, uri and `_meta` decide who may do what. */
function checkParams(text: string, members: ReadonlyMap<string, Slice>): void {
  const params = members.get('params');
  if (params === undefined) return;
  try {
    objectMembers(text, params.start);
  } catch (error) {
    if (!(error instanceof DuplicateMember)) throw error;
    throw fail('invalid_request', `The params are ambiguous: ${error.message}.`);
  }
}

/** JSON-RPC error response; `id` is given as text. */
export function errorText(
  idText: string,
  error: { code: number; message: string; data?: unknown },
): string {
  return `{"jsonrpc":"2.0","id":${idText},"error":${JSON.stringify(error)}}`;
}

export function resultResponse(idText: string, result: unknown): string {
  return `{"jsonrpc":"2.0","id":${idText},"result":${JSON.stringify(result)}}`;
}

/** The same message with another id. */
export function withId(text: string, members: ReadonlyMap<string, Slice>, idText: string): string {
  const slice = members.get('id');
  if (slice === undefined) throw new TypeError('the message has no id');
  return text.slice(0, slice.start) + idText + text.slice(slice.end);
}

/** Said when what lists hold may be different now, whatever they are. */
export const LISTS_CHANGED = ['tools', 'prompts', 'resources'].map(
  (kind) => `{"jsonrpc":"2.0","method":"notifications/${kind}/list_changed"}`,
);
