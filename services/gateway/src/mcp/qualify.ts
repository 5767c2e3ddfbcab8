/**
 * Messages of one upstream on their way to a client of the endpoint of many: names, URIs and ids become those
 * of `/mcp`, everything else keeps its bytes. Pure.
 */
import {
  applyEdits,
  arrayItems,
  findPath,
  objectMembers,
  type Edit,
  type Slice,
} from '@viaduct/shared/json-text';
import { qualifyId, qualifyName, qualifyUri } from './names.ts';

type Rename = (upstream: string, value: string) => string;

function rename(text: string, slice: Slice | undefined, upstream: string, how: Rename): Edit[] {
  if (slice === undefined || text[slice.start] !== '"') return [];
  const value = JSON.parse(text.slice(slice.start, slice.end)) as string;
  return [{ ...slice, text: JSON.stringify(how(upstream, value)) }];
}

const member = (text: string, at: number, name: string): Slice | undefined =>
  objectMembers(text, at)?.get(name);

function eachItem(text: string, list: Slice | undefined, edit: (at: number) => Edit[]): Edit[] {
  if (list === undefined) return [];
  return (arrayItems(text, list.start) ?? []).flatMap((item) => edit(item.start));
}

/** Lists: which array, and which member of its items is a name of the upstream's. */
const LISTS: Readonly<Record<string, readonly [list: string, member: string, how: Rename]>> = {
  'tools/list': ['tools', 'name', qualifyName],
  'prompts/list': ['prompts', 'name', qualifyName],
  'resources/list': ['resources', 'uri', qualifyUri],
  'resources/templates/list': ['resourceTemplates', 'uriTemplate', qualifyUri],
};

/** One content block: embedded resources and links carry a URI of the upstream's. */
function contentEdits(text: string, at: number, upstream: string): Edit[] {
  const members = objectMembers(text, at);
  if (members === undefined) return [];
  const resource = members.get('resource');
  return [
    ...(isType(text, members.get('type'), 'resource_link')
      ? rename(text, members.get('uri'), upstream, qualifyUri)
      : []),
    ...(resource === undefined
      ? []
      : rename(text, member(text, resource.start, 'uri'), upstream, qualifyUri)),
  ];
}

const isType = (text: string, slice: Slice | undefined, type: string): boolean =>
  slice !== undefined && text.slice(slice.start, slice.end) === JSON.stringify(type);

/** Content is one block or an array of them. */
function contentsEdits(text: string, slice: Slice | undefined, upstream: string): Edit[] {
  if (slice === undefined) return [];
  return text[slice.start] === '['
    ? eachItem(text, slice, (at) => contentEdits(text, at, upstream))
    : contentEdits(text, slice.start, upstream);
}

function resultEdits(text: string, result: Slice, method: string, upstream: string): Edit[] {
  const members = objectMembers(text, result.start);
  if (members === undefined) return [];
  const list = Object.hasOwn(LISTS, method) ? LISTS[method] : undefined;
  if (list !== undefined) {
    const [name, key, how] = list;
    return eachItem(text, members.get(name), (at) =>
      rename(text, member(text, at, key), upstream, how),
    );
  }
  switch (method) {
    case 'tools/call':
      return contentsEdits(text, members.get('content'), upstream);
    case 'prompts/get':
      return eachItem(text, members.get('messages'), (at) =>
        contentsEdits(text, member(text, at, 'content'), upstream),
      );
    case 'resources/read':
      return eachItem(text, members.get('contents'), (at) =>
        rename(text, member(text, at, 'uri'), upstream, qualifyUri),
      );
    default:
      return [];
  }
}

/** The response to a client's request of this method. */
export function qualifyResponse(text: string, method: string, upstream: string): string {
  const members = objectMembers(text);
  const result = members?.get('result');
  if (result !== undefined) return applyEdits(text, resultEdits(text, result, method, upstream));
  const elicitations = findPath(text, ['error', 'data', 'elicitations']);
  return applyEdits(
    text,
    eachItem(text, elicitations, (at) =>
      rename(text, member(text, at, 'elicitationId'), upstream, qualifyId),
    ),
  );
}

/** A notification or request of an upstream. */
export function qualifyMessage(text: string, method: string, upstream: string): string {
  switch (method) {
    case 'notifications/resources/updated':
      return applyEdits(
        text,
        rename(text, findPath(text, ['params', 'uri']), upstream, qualifyUri),
      );
    case 'notifications/elicitation/complete':
    case 'elicitation/create':
      return applyEdits(
        text,
        rename(text, findPath(text, ['params', 'elicitationId']), upstream, qualifyId),
      );
    default:
      return text;
  }
}
