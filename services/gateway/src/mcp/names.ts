/**
 * Names on the endpoint of many (`/mcp`), both ways. Pure, and the same on every pod.
 *
 * Tools and prompts are `<upstream>__<name>`; an upstream's name has no underscore, so the first `__` is the
 * seam whatever the rest contains. Resources are `<upstream>+<uri>`: still a URI, whose scheme begins with the
 * upstream's name (RFC 3986, 3.1 allows `+` there, and no upstream's name has one).
 */
import { createHash } from 'node:crypto';

export const MAX_NAME = 128;
const HASH_DIGITS = 8;

export interface Qualified {
  readonly upstream: string;
  /** The upstream's own name; where `cut`, only its beginning. */
  readonly name: string;
  /** The name was too long: which one it is, only the upstream's list can tell. */
  readonly cut: boolean;
}

export function qualifyName(upstream: string, name: string): string {
  const whole = `${upstream}__${name}`;
  if (whole.length <= MAX_NAME) return whole;
  const hash = createHash('sha256').update(whole).digest('hex').slice(0, HASH_DIGITS);
  return `${whole.slice(0, MAX_NAME - HASH_DIGITS - 1)}_${hash}`;
}

export function splitName(qualified: string): Qualified | undefined {
  const at = qualified.indexOf('__');
  if (at < 1) return undefined;
  return {
    upstream: qualified.slice(0, at),
    name: qualified.slice(at + 2),
    cut: qualified.length === MAX_NAME && /_[0-9a-f]{8}$/.test(qualified),
  };
}

export const qualifyUri = (upstream: string, uri: string): string => `${upstream}+${uri}`;

export function splitUri(qualified: string): { upstream: string; uri: string } | undefined {
  const at = qualified.indexOf('+');
  return at < 1 ? undefined : { upstream: qualified.slice(0, at), uri: qualified.slice(at + 1) };
}

/** Elicitation and task ids: opaque to clients, unique only per upstream. */
export const qualifyId = (upstream: string, id: string): string => `${upstream}__${id}`;
