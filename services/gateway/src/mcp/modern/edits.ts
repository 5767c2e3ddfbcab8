/** Edits of a JSON text that json-text has no single call for. Pure. */
import { objectMembers, setMember, type Edit } from '@viaduct/shared/json-text';

/**
 * Sets several members of the object at `at`: those that are there get the new value where they stand, the others
 * become the first. One insertion for all of them, so that the edits never overlap.
 */
export function setMembers(
  text: string,
  at: number,
  values: Readonly<Record<string, string>>,
): Edit[] {
  const members = objectMembers(text, at);
  if (members === undefined) throw new TypeError('setMembers needs an object');
  const edits: Edit[] = [];
  const added: string[] = [];
  for (const [name, value] of Object.entries(values)) {
    const present = members.get(name);
    if (present === undefined) added.push(`${JSON.stringify(name)}:${value}`);
    else edits.push({ ...present, text: value });
  }
  if (added.length > 0) {
    const { start, end } = setMember(text, at, uniqueName(members), 'null');
    edits.push({ start, end, text: added.join(',') + (members.size > 0 ? ',' : '') });
  }
  return edits;
}

/** A name that the object does not have: `setMember` then says where a new member goes. */
function uniqueName(members: ReadonlyMap<string, unknown>): string {
  let name = 'new';
  while (members.has(name)) name += '_';
  return name;
}

/** Sets the member at the end of a path, making the objects on the way that are missing. */
export function setPath(
  text: string,
  at: number,
  [name, ...rest]: readonly [string, ...string[]],
  value: string,
): Edit[] {
  const members = objectMembers(text, at);
  if (members === undefined) throw new TypeError('setPath needs an object');
  const [next, ...further] = rest;
  const present = members.get(name);
  if (next !== undefined && present !== undefined && text[present.start] === '{') {
    return setPath(text, present.start, [next, ...further], value);
  }
  const built = [...rest]
    .reverse()
    .reduce((inner, key) => `{${JSON.stringify(key)}:${inner}}`, value);
  return [setMember(text, at, name, built)];
}
