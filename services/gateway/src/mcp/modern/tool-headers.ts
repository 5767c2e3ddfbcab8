/**
 * `x-mcp-header`: arguments of a tool that clients mirror into `Mcp-Param-*` headers (2026-07-28 server/tools and
 * Streamable HTTP, Custom Headers from Tool Parameters). Which definitions are valid, what headers a call has to
 * carry, and whether those that it carries say what its body says. Pure.
 */
import type { IncomingHttpHeaders } from 'node:http';
import type { JsonObject } from '../message.ts';
import { decodeHeaderValue, encodeHeaderValue } from './header-values.ts';

const ANNOTATION = 'x-mcp-header';
export const PARAM_PREFIX = 'mcp-param-';
const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;
const TYPES: ReadonlySet<unknown> = new Set(['string', 'integer', 'boolean']);
/** Keywords whose value is data, not a schema: an annotation in there is none. */
const DATA: ReadonlySet<string> = new Set(['const', 'enum', 'default', 'examples', 'example']);
/** More schemas than any real tool has; a definition that needs longer to look through is not looked through. */
const MAX_SCHEMAS = 20_000;

export interface MirroredParam {
  /** In lower case, with the prefix. */
  readonly header: string;
  /** Member names from `arguments` down. */
  readonly path: readonly string[];
  readonly type: 'string' | 'integer' | 'boolean';
}

export type ToolHeaders =
  | { readonly valid: true; readonly params: readonly MirroredParam[] }
  | { readonly valid: false; readonly reason: string };

const NONE: ToolHeaders = { valid: true, params: [] };

const isObject = (value: unknown): value is JsonObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

interface Visit {
  readonly schema: JsonObject | unknown[];
  /** Undefined once the way here was not only through `properties`. */
  readonly path: readonly string[] | undefined;
}

/** Looks through a tool's `inputSchema`. */
export function toolHeaders(inputSchema: unknown): ToolHeaders {
  if (!isObject(inputSchema)) return NONE;
  const params: MirroredParam[] = [];
  const seen = new Set<string>();
  const waiting: Visit[] = [{ schema: inputSchema, path: [] }];
  let visits = 0;
  for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
    if (++visits > MAX_SCHEMAS) return { valid: false, reason: 'the schema is too large to check' };
    const { schema, path } = next;
    if (Array.isArray(schema)) {
      for (const item of schema)
        if (isContainer(item)) waiting.push({ schema: item, path: undefined });
      continue;
    }
    if (Object.hasOwn(schema, ANNOTATION)) {
      const found = readAnnotation(schema, path);
      if (typeof found === 'string') return { valid: false, reason: found };
      if (seen.has(found.header)) return { valid: false, reason: `${ANNOTATION} occurs twice` };
      seen.add(found.header);
      params.push(found);
    }
    for (const [keyword, value] of Object.entries(schema)) {
      if (DATA.has(keyword) || keyword === ANNOTATION || !isContainer(value)) continue;
      if (keyword === 'properties' && isObject(value)) {
        for (const [name, property] of Object.entries(value)) {
          if (isContainer(property))
            waiting.push({ schema: property, path: path && [...path, name] });
        }
      } else waiting.push({ schema: value, path: undefined });
    }
  }
  return params.length === 0 ? NONE : { valid: true, params };
}

const isContainer = (value: unknown): value is JsonObject | unknown[] =>
  typeof value === 'object' && value !== null;

function readAnnotation(
  schema: JsonObject,
  path: readonly string[] | undefined,
): MirroredParam | string {
  const name = schema[ANNOTATION];
  if (typeof name !== 'string' || !TOKEN.test(name)) return `${ANNOTATION} is not a header name`;
  if (path === undefined || path.length === 0) return `${ANNOTATION} is not on a plain property`;
  const { type } = schema;
  if (!TYPES.has(type))
    return `${ANNOTATION} is on a property that is no string, integer or boolean`;
  return {
    header: `${PARAM_PREFIX}${name.toLowerCase()}`,
    path,
    type: type as MirroredParam['type'],
  };
}

function valueAt(args: unknown, path: readonly string[]): unknown {
  let value = args;
  for (const name of path) {
    if (!isObject(value) || !Object.hasOwn(value, name)) return undefined;
    value = value[name];
  }
  return value;
}

/** What a client has to send with these arguments. */
export function headersFor(
  params: readonly MirroredParam[],
  args: unknown,
): Record<string, string> {
  const headers: Record<string, string> = {};
  for (const { header, path } of params) {
    const value = valueAt(args, path);
    if (typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean') {
      headers[header] = encodeHeaderValue(String(value));
    }
  }
  return headers;
}

/** Why the headers do not say what the body says; undefined when they do. */
export function mismatchOf(
  params: readonly MirroredParam[],
  args: unknown,
  headers: IncomingHttpHeaders,
): string | undefined {
  for (const { header, path, type } of params) {
    const value = valueAt(args, path);
    const given = headers[header];
    const wanted =
      typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean';
    if (!wanted) {
      // Null or absent: no header. An object where a string belongs is the upstream's to refuse.
      if ((value === undefined || value === null) && given !== undefined) {
        return `${header} is there, but the argument is not.`;
      }
      continue;
    }
    if (typeof given !== 'string') return `${header} is missing.`;
    const decoded = decodeHeaderValue(given);
    if (decoded === undefined) return `${header} holds characters or an encoding that it must not.`;
    const same =
      type === 'integer' && typeof value === 'number'
        ? /^[+-]?\d/.test(decoded) && Number(decoded) === value
        : decoded === String(value);
    if (!same) return `${header} does not say what the argument says.`;
  }
  return undefined;
}

/** `Mcp-Param-*` of a request, to be forwarded as they are. */
export function paramHeaders(headers: IncomingHttpHeaders): Record<string, string> | undefined {
  let found: Record<string, string> | undefined;
  for (const name in headers) {
    if (!name.startsWith(PARAM_PREFIX)) continue;
    const value = headers[name];
    if (typeof value === 'string') (found ??= {})[name] = value;
  }
  return found;
}
