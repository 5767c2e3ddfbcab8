/**
 * `initialize`: opens a session of ours and, with the client's own capabilities, the upstream's.
 *
 * The upstream's answer is relayed as it wrote it; only the revision is ours to say, since each leg negotiates
 * its own (basic/lifecycle, Version Negotiation). An upstream that wants the user's credential first does not
 * keep anyone out: the gateway answers for it, and its list shows a tool that connects (design, section 6).
 */
import {
  applyEdits,
  findPath,
  objectMembers,
  removeMembers,
  sliceOf,
} from '@viaduct/shared/json-text';
import { fail } from '@viaduct/shared/errors';
import type { Principal } from '@viaduct/shared/principal';
import { UpstreamStatus, type Upstream } from '../upstream/upstream.ts';
import type { Answer } from './answer.ts';
import type { Legs, OpenedLeg } from './legs.ts';
import { resultResponse, type RequestMessage } from './message.ts';
import type { Session, Sessions } from './sessions.ts';
import { isLegacyVersion, LATEST_LEGACY } from './versions.ts';

export interface Hello {
  readonly version: string;
  /** What upstreams are told: the client's params with a revision that we know and sane capabilities. */
  readonly initText: string;
  readonly capabilitiesText: string;
  readonly clientInfoText: string;
}

const MAX_HELLO_BYTES = 64 * 1024;

/** Reads the params of initialize. @throws GatewayError invalid_params */
export function readHello(message: RequestMessage): Hello {
  const params = message.members.get('params');
  const requested = message.params?.['protocolVersion'];
  if (params === undefined || typeof requested !== 'string') {
    throw fail('invalid_params', 'initialize needs params with a protocolVersion.');
  }
  let initText = sliceOf(message.text, params);
  if (initText.length > MAX_HELLO_BYTES) {
    throw fail('invalid_params', 'The params of initialize are too large.');
  }
  const version = isLegacyVersion(requested) ? requested : LATEST_LEGACY;
  if (version !== requested) {
    const at = findPath(initText, ['protocolVersion']);
    if (at !== undefined)
      initText = applyEdits(initText, [{ ...at, text: JSON.stringify(version) }]);
  }
  initText = withSaneCapabilities(initText);
  const members = objectMembers(initText);
  const textOf = (name: string): string => {
    const slice = members?.get(name);
    return slice === undefined ? '{}' : sliceOf(initText, slice);
  };
  return {
    version,
    initText,
    capabilitiesText: textOf('capabilities'),
    clientInfoText: textOf('clientInfo'),
  };
}

/** A capability that is no object declares nothing; upstreams should not have to guess (cases L1). */
function withSaneCapabilities(initText: string): string {
  const at = findPath(initText, ['capabilities']);
  if (at === undefined) return initText;
  const members = objectMembers(initText, at.start);
  if (members === undefined) return applyEdits(initText, [{ ...at, text: '{}' }]);
  const strange = [...members]
    .filter(([, slice]) => initText[slice.start] !== '{')
    .map(([name]) => name);
  return strange.length === 0
    ? initText
    : applyEdits(initText, removeMembers(initText, at.start, strange));
}

export interface InitializeDeps {
  readonly sessions: Sessions;
  readonly legs: Legs;
  credential(principal: Principal, upstream: Upstream): Promise<Record<string, string> | undefined>;
  onStarted(session: Session, answer: Answer): void;
}

/** For `/mcp/<upstream>`. */
export async function initializeOne(
  deps: InitializeDeps,
  input: { principal: Principal; upstream: Upstream; message: RequestMessage; answer: Answer },
): Promise<void> {
  const { principal, upstream, message, answer } = input;
  const hello = readHello(message);
  const credential = await deps.credential(principal, upstream);
  const body = `{"jsonrpc":"2.0","id":${message.idText},"method":"initialize","params":${hello.initText}}`;
  const opened = await openOrStandIn(deps, upstream, body, message, credential);
  if (
    opened !== undefined &&
    (JSON.parse(opened.text) as { error?: unknown }).error !== undefined
  ) {
    answer.json(200, opened.text);
    return;
  }
  const session = await deps.sessions.create(principal, {
    endpoint: upstream.name,
    protocolVersion: hello.version,
    capabilitiesText: hello.capabilitiesText,
    clientInfoText: hello.clientInfoText,
    initText: hello.initText,
    upstreams: opened === undefined ? [] : [opened.state],
  });
  deps.onStarted(session, answer);
  const text =
    opened === undefined
      ? standIn(message.idText, hello.version, upstream.name)
      : withVersion(opened.text, hello.version);
  answer.json(200, text, { 'Mcp-Session-Id': session.sessionId });
}

async function openOrStandIn(
  deps: InitializeDeps,
  upstream: Upstream,
  body: string,
  message: RequestMessage,
  credential: Record<string, string> | undefined,
): Promise<OpenedLeg | undefined> {
  try {
    return await deps.legs.open(upstream, body, message.id, credential);
  } catch (error) {
    if (!(error instanceof UpstreamStatus)) throw error;
    if (error.upstreamStatus === 401 && upstream.config.connection !== undefined) return undefined;
    throw error;
  }
}

/** The revision of the client's leg in the upstream's answer. */
function withVersion(text: string, version: string): string {
  const at = findPath(text, ['result', 'protocolVersion']);
  if (at === undefined || sliceOf(text, at) === JSON.stringify(version)) return text;
  return applyEdits(text, [{ ...at, text: JSON.stringify(version) }]);
}

function standIn(idText: string, version: string, name: string): string {
  return resultResponse(idText, {
    protocolVersion: version,
    capabilities: {
      tools: { listChanged: true },
      resources: { listChanged: true },
      prompts: { listChanged: true },
    },
    serverInfo: { name, version: '1' },
    instructions:
      'This server needs an account that is not connected yet. Call the tool "connect".',
  });
}
