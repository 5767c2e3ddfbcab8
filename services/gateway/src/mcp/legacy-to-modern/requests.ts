/**
 * A sessionful client's requests as a modern server wants them: with what `initialize` said once in the `_meta` of
 * every one (2026-07-28 basic/index, `_meta`). What the client wrote keeps its bytes. Pure.
 */
import { fail } from '@viaduct/shared/errors';
import {
  applyEdits,
  DuplicateMember,
  findPath,
  objectMembers,
  removeMembers,
  setMember,
  sliceOf,
} from '@viaduct/shared/json-text';
import { setMembers } from '../modern/edits.ts';
import { META } from '../modern/envelope.ts';
import { namedBy } from '../modern/header-values.ts';
import type { Session } from '../sessions.ts';
import { MODERN_VERSION } from '../versions.ts';

/** What a session says about its client. */
export type Self = Pick<Session, 'capabilitiesText' | 'clientInfoText' | 'level'>;

/** RFC 5424 order, the least severe first. */
const LEVELS = [
  'debug', 'info', 'notice', 'warning', 'error', 'critical', 'alert', 'emergency',
] as const; // prettier-ignore
export type Level = (typeof LEVELS)[number];

export const levelOf = (text: string): Level | undefined => LEVELS.find((level) => level === text);

/** Capabilities that are the same in both eras, and that the gateway can carry. */
const ASKABLE = ['elicitation', 'sampling'] as const;

/** The client's declaration, as far as it means something to a server that asks by `input_required`. */
export function modernCapabilities(capabilitiesText: string): string {
  const members = objectMembers(capabilitiesText);
  const kept = ASKABLE.flatMap((name) => {
    const slice = members?.get(name);
    return slice === undefined ? [] : [`"${name}":${sliceOf(capabilitiesText, slice)}`];
  });
  // `listChanged` has no meaning here: nobody is told.
  if (members?.has('roots') === true) kept.push('"roots":{}');
  return `{${kept.join(',')}}`;
}

/** The members of `_meta` that every request carries, as JSON texts by name. */
export function metaOf({ capabilitiesText, clientInfoText, level }: Self): Record<string, string> {
  const wanted = levelOf(level);
  return {
    [META.version]: JSON.stringify(MODERN_VERSION),
    ...(clientInfoText !== '{}' && { [META.clientInfo]: clientInfoText }),
    [META.capabilities]: modernCapabilities(capabilitiesText),
    ...(wanted !== undefined && { [META.logLevel]: JSON.stringify(wanted) }),
  };
}

const objectText = (members: Readonly<Record<string, string>>): string =>
  `{${Object.entries(members)
    .map(([name, value]) => `${JSON.stringify(name)}:${value}`)
    .join(',')}}`;

/**
 * The request with `_meta` filled in. Members of a retry are taken out: a sessionful client has no business with
 * them, and ours go in their place.
 *
 * @throws GatewayError invalid_request
 */
export function modernRequest(text: string, method: string, self: Self): string {
  const meta = metaOf(self);
  try {
    const params = objectMembers(text)?.get('params');
    if (params === undefined) {
      return applyEdits(text, [setMember(text, 0, 'params', `{"_meta":${objectText(meta)}}`)]);
    }
    const strange =
      namedBy(method) === undefined
        ? []
        : removeMembers(text, params.start, ['inputResponses', 'requestState']);
    const out = applyEdits(text, strange);
    const own = objectMembers(out, params.start)?.get('_meta');
    return applyEdits(
      out,
      own !== undefined && out[own.start] === '{'
        ? setMembers(out, own.start, meta)
        : [setMember(out, params.start, '_meta', objectText(meta))],
    );
  } catch (error) {
    if (!(error instanceof DuplicateMember)) throw error;
    throw fail('invalid_request', `The params are ambiguous: ${error.message}.`);
  }
}

/** A request of the gateway's own. */
export function ownRequest(self: Self, id: string, method: string, params = ''): string {
  const more = params === '' ? '' : `${params},`;
  return `{"jsonrpc":"2.0","id":${JSON.stringify(id)},"method":"${method}","params":{${more}"_meta":${objectText(metaOf(self))}}}`;
}

export interface Retry {
  readonly id: string;
  /** Answers by the upstream's keys, JSON texts; undefined where it asked for none. */
  readonly inputResponses: Readonly<Record<string, string>> | undefined;
  /** The upstream's own, with its bytes; undefined where it gave none. */
  readonly requestState: string | undefined;
}

/** The same request again (basic/patterns/mrtr): another id, the answers, and the state exactly as given. */
export function retryOf(request: string, retry: Retry): string {
  const members = objectMembers(request);
  const id = members?.get('id');
  const params = members?.get('params');
  if (id === undefined || params === undefined) throw new TypeError('no request to repeat');
  const { inputResponses, requestState } = retry;
  return applyEdits(request, [
    { ...id, text: JSON.stringify(retry.id) },
    ...setMembers(request, params.start, {
      ...(inputResponses !== undefined && { inputResponses: objectText(inputResponses) }),
      ...(requestState !== undefined && { requestState }),
    }),
  ]);
}

/** Tool, prompt or URI that a request is about, by the upstream's own name. */
export function targetOf(text: string, method: string): string | undefined {
  const member = namedBy(method);
  return member === undefined ? undefined : stringAt(text, ['params', member]);
}

export function stringAt(text: string, path: readonly string[]): string | undefined {
  const slice = findPath(text, path);
  if (slice === undefined || text[slice.start] !== '"') return undefined;
  return JSON.parse(sliceOf(text, slice)) as string;
}
