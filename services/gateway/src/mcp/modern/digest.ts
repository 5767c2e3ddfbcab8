/**
 * What a retry has to have in common with the request that it retries: a digest of the method and of the params
 * that say what is to be done. The same for every spelling of the same JSON (white space, order of members,
 * escapes), and different for numbers that only a 64-bit reader tells apart (cases J6). Pure.
 */
import { createHash, type Hash } from 'node:crypto';
import {
  arrayItems,
  DuplicateMember,
  objectMembers,
  sliceOf,
  type Slice,
} from '@viaduct/shared/json-text';
import type { RequestMessage } from '../message.ts';

/** Members of params that differ between the rounds of one request (2026-07-28 basic/patterns/mrtr). */
const OF_ONE_ROUND: ReadonlySet<string> = new Set(['_meta', 'inputResponses', 'requestState']);
/** Deeper values are hashed as they are spelled: nothing here may recurse as deep as a caller likes. */
const MAX_DEPTH = 32;

export function requestDigest(message: RequestMessage): string {
  const hash = createHash('sha256').update(`${message.method}\n`);
  const { text } = message;
  const params = message.members.get('params');
  const members = params && objectMembers(text, params.start);
  for (const [name, slice] of sorted(members)) {
    if (OF_ONE_ROUND.has(name)) continue;
    hash.update(`${JSON.stringify(name)}:`);
    feed(hash, text, slice, 0);
    hash.update(',');
  }
  return hash.digest('base64url');
}

const sorted = (members: ReadonlyMap<string, Slice> | undefined): [string, Slice][] =>
  [...(members ?? [])].sort(([a], [b]) => (a < b ? -1 : 1));

function feed(hash: Hash, text: string, slice: Slice, depth: number): void {
  const first = depth < MAX_DEPTH ? text[slice.start] : undefined;
  const members = first === '{' ? membersOf(text, slice) : undefined;
  if (members !== undefined) {
    hash.update('{');
    for (const [name, value] of sorted(members)) {
      hash.update(`${JSON.stringify(name)}:`);
      feed(hash, text, value, depth + 1);
      hash.update(',');
    }
    hash.update('}');
  } else if (first === '[') {
    hash.update('[');
    for (const item of arrayItems(text, slice.start) ?? []) {
      feed(hash, text, item, depth + 1);
      hash.update(',');
    }
    hash.update(']');
  } else if (first === '"') {
    hash.update(JSON.stringify(JSON.parse(sliceOf(text, slice))));
  } else hash.update(sliceOf(text, slice));
}

/** Undefined for an object in which a member stands twice: only its spelling says what it is. */
function membersOf(text: string, slice: Slice): ReadonlyMap<string, Slice> | undefined {
  try {
    return objectMembers(text, slice.start);
  } catch (error) {
    if (error instanceof DuplicateMember) return undefined;
    throw error;
  }
}
