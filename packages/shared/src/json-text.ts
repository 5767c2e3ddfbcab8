/**
 * Finds and replaces parts of a JSON document without rebuilding it (invariant 5): what is not replaced keeps
 * its bytes, key order, spelling of numbers and unknown members.
 *
 * Every function expects text that JSON.parse has accepted; only then are the positions meaningful. Nothing
 * here recurses, so depth costs no stack.
 */

export interface Slice {
  readonly start: number;
  /** Exclusive. */
  readonly end: number;
}

export interface Edit extends Slice {
  readonly text: string;
}

/** Two members of one object have the same name: parsers disagree on which one counts, so we refuse both. */
export class DuplicateMember extends Error {
  readonly member: string;
  constructor(member: string) {
    super(`the member "${member}" occurs twice`);
    this.name = 'DuplicateMember';
    this.member = member;
  }
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const OPEN_BRACE = 0x7b;
const CLOSE_BRACE = 0x7d;
const OPEN_BRACKET = 0x5b;
const CLOSE_BRACKET = 0x5d;
const COMMA = 0x2c;

function skipSpace(text: string, at: number): number {
  let i = at;
  for (;;) {
    const c = text.charCodeAt(i);
    if (c !== 0x20 && c !== 0x0a && c !== 0x0d && c !== 0x09) return i;
    i++;
  }
}

/** `at` is the opening quote; returns the position after the closing one. */
function skipString(text: string, at: number): number {
  let close = text.indexOf('"', at + 1);
  for (;;) {
    let backslashes = 0;
    for (let i = close - 1; text.charCodeAt(i) === BACKSLASH; i--) backslashes++;
    if (backslashes % 2 === 0) return close + 1;
    close = text.indexOf('"', close + 1);
  }
}

function skipValue(text: string, at: number): number {
  const first = text.charCodeAt(at);
  if (first === QUOTE) return skipString(text, at);
  let i = at;
  if (first !== OPEN_BRACE && first !== OPEN_BRACKET) {
    for (; i < text.length; i++) {
      const c = text.charCodeAt(i);
      if (c === COMMA || c === CLOSE_BRACE || c === CLOSE_BRACKET || c <= 0x20) break;
    }
    return i;
  }
  let depth = 0;
  for (;;) {
    const c = text.charCodeAt(i);
    if (c === QUOTE) {
      i = skipString(text, i);
      continue;
    }
    i++;
    if (c === OPEN_BRACE || c === OPEN_BRACKET) depth++;
    else if (c === CLOSE_BRACE || c === CLOSE_BRACKET) {
      depth--;
      if (depth === 0) return i;
    }
  }
}

/** The value of a document: its position without the white space around it. */
export function documentSlice(text: string): Slice {
  const start = skipSpace(text, 0);
  return { start, end: skipValue(text, start) };
}

/**
 * The members of the object that begins at `at`, by name, in order; undefined when no object begins there.
 * @throws DuplicateMember
 */
export function objectMembers(text: string, at = 0): Map<string, Slice> | undefined {
  let i = skipSpace(text, at);
  if (text.charCodeAt(i) !== OPEN_BRACE) return undefined;
  const found = new Map<string, Slice>();
  i = skipSpace(text, i + 1);
  while (text.charCodeAt(i) !== CLOSE_BRACE) {
    const nameEnd = skipString(text, i);
    const raw = text.slice(i + 1, nameEnd - 1);
    const name = raw.includes('\\') ? (JSON.parse(`"${raw}"`) as string) : raw;
    if (found.has(name)) throw new DuplicateMember(name);
    const start = skipSpace(text, skipSpace(text, nameEnd) + 1); // after the colon
    const end = skipValue(text, start);
    found.set(name, { start, end });
    i = skipSpace(text, end);
    if (text.charCodeAt(i) === COMMA) i = skipSpace(text, i + 1);
  }
  return found;
}

/** The items of the array that begins at `at`; undefined when no array begins there. */
export function arrayItems(text: string, at = 0): Slice[] | undefined {
  let i = skipSpace(text, at);
  if (text.charCodeAt(i) !== OPEN_BRACKET) return undefined;
  const items: Slice[] = [];
  i = skipSpace(text, i + 1);
  while (text.charCodeAt(i) !== CLOSE_BRACKET) {
    const end = skipValue(text, i);
    items.push({ start: i, end });
    i = skipSpace(text, end);
    if (text.charCodeAt(i) === COMMA) i = skipSpace(text, i + 1);
  }
  return items;
}

export function sliceOf(text: string, slice: Slice): string {
  return text.slice(slice.start, slice.end);
}

/** Follows member names from the object at `at`; undefined where the path ends early. */
export function findPath(text: string, path: readonly string[], at = 0): Slice | undefined {
  let slice: Slice = { start: at, end: text.length };
  for (const name of path) {
    const next = objectMembers(text, slice.start)?.get(name);
    if (next === undefined) return undefined;
    slice = next;
  }
  return slice;
}

/** Applies edits that do not overlap, in any order. */
export function applyEdits(text: string, edits: readonly Edit[]): string {
  if (edits.length === 0) return text;
  const ordered = edits.length === 1 ? edits : [...edits].sort((a, b) => a.start - b.start);
  let out = '';
  let from = 0;
  for (const edit of ordered) {
    out += text.slice(from, edit.start) + edit.text;
    from = edit.end;
  }
  return out + text.slice(from);
}

/** Sets one member of the object at `at` to a JSON text; a new member becomes the first. */
export function setMember(text: string, at: number, name: string, value: string): Edit {
  const members = objectMembers(text, at);
  if (members === undefined) throw new TypeError('setMember needs an object');
  const present = members.get(name);
  if (present !== undefined) return { ...present, text: value };
  const open = skipSpace(text, at) + 1;
  const comma = members.size > 0 ? ',' : '';
  return { start: open, end: open, text: `${JSON.stringify(name)}:${value}${comma}` };
}

/** Takes members out of the object at `at`, each with one of its commas. */
export function removeMembers(text: string, at: number, names: readonly string[]): Edit[] {
  const members = objectMembers(text, at);
  if (members === undefined) return [];
  const open = skipSpace(text, at) + 1;
  const edits: Edit[] = [];
  // Walk in order; `from` is where the text after the last kept member (or the brace) begins.
  let from = open;
  let kept = 0;
  let removing = false;
  for (const [name, slice] of members) {
    if (names.includes(name)) {
      removing = true;
      continue;
    }
    if (removing) {
      // Cut from the end of what is kept to the beginning of this member's name.
      const nameStart = nameStartBefore(text, slice.start);
      edits.push({ start: from, end: nameStart, text: kept > 0 ? ',' : '' });
      removing = false;
    }
    kept++;
    from = slice.end;
  }
  if (removing) {
    const close = documentEnd(text, at) - 1;
    edits.push({ start: from, end: close, text: '' });
  }
  return edits;
}

function documentEnd(text: string, at: number): number {
  return skipValue(text, skipSpace(text, at));
}

/** `valueStart` is a member's value; returns where its quoted name begins. */
function nameStartBefore(text: string, valueStart: number): number {
  let i = text.lastIndexOf(':', valueStart - 1);
  i = text.lastIndexOf('"', i); // closing quote of the name
  for (;;) {
    i = text.lastIndexOf('"', i - 1);
    let backslashes = 0;
    for (let k = i - 1; text.charCodeAt(k) === BACKSLASH; k--) backslashes++;
    if (backslashes % 2 === 0) return i;
  }
}
