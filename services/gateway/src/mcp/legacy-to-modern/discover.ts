/**
 * `initialize` of an upstream that has none: what it says of itself in `server/discover`, put the way a sessionful
 * client expects it (2026-07-28 server/discover; 2025-11-25 basic/lifecycle). Nothing is opened there, so nothing
 * has to be ended.
 */
import { objectMembers, findPath, sliceOf } from '@viaduct/shared/json-text';
import { fail } from '@viaduct/shared/errors';
import { request, type Leg, type Upstream } from '../../upstream/upstream.ts';
import type { OpenedLeg } from '../legs.ts';
import { META } from '../modern/envelope.ts';
import { modernLeg } from '../modern/header-values.ts';
import { LATEST_LEGACY, MODERN_VERSION } from '../versions.ts';
import { ownRequest } from './requests.ts';

const METHOD = 'server/discover';
const ID = 'viaduct-discover';

/** Server capabilities that mean the same in both eras. */
const SHARED = ['tools', 'prompts', 'resources', 'logging', 'completions', 'experimental'] as const;

/**
 * @param initialize the client's request to initialize
 * @throws GatewayError; UpstreamStatus for a refusal
 */
export async function discover(
  upstream: Upstream,
  initialize: string,
  id: string | number,
  credential: Leg['credential'],
  timeoutMs: number,
): Promise<OpenedLeg> {
  const textAt = (path: readonly string[]): string | undefined => {
    const slice = findPath(initialize, path);
    return slice && sliceOf(initialize, slice);
  };
  const self = {
    capabilitiesText: textAt(['params', 'capabilities']) ?? '{}',
    clientInfoText: textAt(['params', 'clientInfo']) ?? '{}',
    level: '',
  };
  const version = textAt(['params', 'protocolVersion']) ?? JSON.stringify(LATEST_LEGACY);
  const reply = await ask(upstream, ownRequest(self, ID, METHOD), credential, timeoutMs);
  const { capabilities, result } = describe(reply, upstream.name);
  return {
    state: {
      name: upstream.name,
      sid: '',
      protocolVersion: MODERN_VERSION,
      capabilities,
      era: 'modern',
    },
    text: `{"jsonrpc":"2.0","id":${textAt(['id']) ?? JSON.stringify(id)},"result":{"protocolVersion":${version},${result}}}`,
  };
}

async function ask(
  upstream: Upstream,
  body: string,
  credential: Leg['credential'],
  timeoutMs: number,
): Promise<string> {
  const leg = modernLeg(METHOD, undefined, credential);
  const { text, parsed } = await request(upstream, body, leg, { id: ID, timeoutMs });
  const { result, error } = parsed;
  if (typeof result === 'object' && result !== null && !Array.isArray(result)) return text;
  throw fail('upstream_unavailable', `The server "${upstream.name}" did not say what it offers.`, {
    data: { reason: 'upstream_refused' },
    ...(error !== undefined && { detail: error.message }),
  });
}

/** The members of a result of initialize, but for the revision. */
export function describe(
  text: string,
  name: string,
): { readonly capabilities: string; readonly result: string } {
  const at = objectMembers(text)?.get('result')?.start;
  const members = at === undefined ? undefined : objectMembers(text, at);
  const offered = members?.get('capabilities');
  const own = offered && objectMembers(text, offered.start);
  const capabilities = SHARED.flatMap((capability) => {
    const slice = own?.get(capability);
    return slice === undefined ? [] : [`"${capability}":${sliceOf(text, slice)}`];
  });
  const serverInfo = findPath(text, ['result', '_meta', META.serverInfo]);
  const instructions = members?.get('instructions');
  const all = `{${capabilities.join(',')}}`;
  const info =
    serverInfo === undefined
      ? JSON.stringify({ name, version: 'unknown' })
      : sliceOf(text, serverInfo);
  return {
    capabilities: all,
    result:
      `"capabilities":${all},"serverInfo":${info}` +
      (instructions === undefined ? '' : `,"instructions":${sliceOf(text, instructions)}`),
  };
}
