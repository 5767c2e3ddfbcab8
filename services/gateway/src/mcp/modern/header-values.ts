/**
 * Headers that mirror a request's body (2026-07-28 Streamable HTTP, Request Metadata), and the encoding of their
 * values: plain where a header can carry the text safely, else `=?base64?…?=` around its UTF-8. Pure.
 */
import type { Leg } from '../../upstream/upstream.ts';
import { MODERN_VERSION } from '../versions.ts';

/**
 * Where the target of a request stands in params, for those that mirror it in `Mcp-Name`. They are also the ones that
 * may be answered with `input_required` (basic/patterns/mrtr, Supported Requests).
 */
export function namedBy(method: string): 'name' | 'uri' | undefined {
  switch (method) {
    case 'tools/call':
    case 'prompts/get':
      return 'name';
    case 'resources/read':
      return 'uri';
    default:
      return undefined;
  }
}

const PREFIX = '=?base64?';
const SUFFIX = '?=';
/** Visible ASCII, with spaces and tabs only inside. */
const PLAIN = /^[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?$/;
const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?$/;
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

const isSentinel = (value: string): boolean => value.startsWith(PREFIX) && value.endsWith(SUFFIX);

export function encodeHeaderValue(value: string): string {
  if (PLAIN.test(value) && !isSentinel(value)) return value;
  return `${PREFIX}${Buffer.from(value, 'utf8').toString('base64')}${SUFFIX}`;
}

/** The text that a header stands for; undefined when it holds characters or an encoding that it must not. */
export function decodeHeaderValue(value: string): string | undefined {
  if (value.startsWith(PREFIX) && value.endsWith(SUFFIX) && value.length >= PREFIX.length + 2) {
    const encoded = value.slice(PREFIX.length, -SUFFIX.length);
    if (!BASE64.test(encoded)) return undefined;
    try {
      return utf8.decode(Buffer.from(encoded, 'base64'));
    } catch {
      return undefined; // not UTF-8
    }
  }
  return value === '' || PLAIN.test(value) ? value : undefined;
}

/**
 * How a modern upstream is addressed for one request.
 *
 * @param target tool, prompt or URI by the upstream's own name
 * @param params `Mcp-Param-*` by lower-case name
 */
export function modernLeg(
  method: string,
  target: string | undefined,
  credential: Leg['credential'],
  params?: Readonly<Record<string, string>>,
): Leg {
  const named = target !== undefined && namedBy(method) !== undefined;
  return {
    protocolVersion: MODERN_VERSION,
    credential,
    extra: {
      ...params,
      'mcp-method': method,
      ...(named && { 'mcp-name': encodeHeaderValue(target) }),
    },
  };
}
