/**
 * What every request of 2026-07-28 says about itself, in `_meta` and mirrored in headers, and by which of the two a
 * request is one of this era (basic/versioning; basic/index, `_meta`; Streamable HTTP, Server Validation). Pure.
 */
import type { IncomingHttpHeaders } from 'node:http';
import { fail } from '@viaduct/shared/errors';
import {
  DuplicateMember,
  findPath,
  objectMembers,
  sliceOf,
  type Slice,
} from '@viaduct/shared/json-text';
import type { JsonObject, Message, RequestMessage } from '../message.ts';
import { isLegacyVersion, LEGACY_VERSIONS, MODERN_VERSION } from '../versions.ts';
import { decodeHeaderValue, namedBy } from './header-values.ts';

const PREFIX = 'io.modelcontextprotocol/';
export const META = {
  version: `${PREFIX}protocolVersion`,
  capabilities: `${PREFIX}clientCapabilities`,
  clientInfo: `${PREFIX}clientInfo`,
  serverInfo: `${PREFIX}serverInfo`,
  logLevel: `${PREFIX}logLevel`,
  subscriptionId: `${PREFIX}subscriptionId`,
} as const;

/** What the gateway speaks to clients; the first is the only one that works without `initialize`. */
export const SUPPORTED_VERSIONS: readonly string[] = [MODERN_VERSION, ...LEGACY_VERSIONS];

/** RFC 5424 order, the least severe first. */
export const LEVELS = [
  'debug', 'info', 'notice', 'warning', 'error', 'critical', 'alert', 'emergency',
] as const; // prettier-ignore
export type Level = (typeof LEVELS)[number];

export interface Envelope {
  readonly capabilities: JsonObject;
  readonly logLevel: Level | undefined;
  readonly progressToken: unknown;
}

const metaOf = (params: JsonObject | undefined): JsonObject | undefined => {
  const meta = params?.['_meta'];
  return typeof meta === 'object' && meta !== null && !Array.isArray(meta)
    ? (meta as JsonObject)
    : undefined;
};

/** The revision that a message names in its `_meta`. */
export function versionOf({
  params,
}: {
  readonly params: JsonObject | undefined;
}): string | undefined {
  const version = metaOf(params)?.[META.version];
  return typeof version === 'string' ? version : undefined;
}

const headerOf = (headers: IncomingHttpHeaders, name: string): string | undefined => {
  const value = headers[name];
  return typeof value === 'string' ? value : undefined;
};

/** The header names a revision that has no sessions, or none that we know. */
export function headerSaysModern(headers: IncomingHttpHeaders): boolean {
  const version = headerOf(headers, 'mcp-protocol-version');
  return version !== undefined && !isLegacyVersion(version);
}

/**
 * Which era a POSTed message belongs to. Per-request `_meta` decides; where it says nothing, the header does.
 * `initialize` without `_meta` opens a session, whatever header stands beside it.
 */
export function isModern(headers: IncomingHttpHeaders, message: Message): boolean {
  if (message.kind === 'response') return headerSaysModern(headers);
  const claimed = metaOf(message.params)?.[META.version];
  if (claimed === undefined) return message.method !== 'initialize' && headerSaysModern(headers);
  // A sessionful client may send anything in `_meta`; its session says what it speaks.
  return !isLegacyVersion(claimed) || headers['mcp-session-id'] === undefined;
}

/** @throws GatewayError invalid_params, header_mismatch, unsupported_version; all are HTTP 400 */
export function readEnvelope(headers: IncomingHttpHeaders, message: RequestMessage): Envelope {
  const meta = metaOf(message.params);
  if (meta === undefined) throw lacks('_meta');
  const version = meta[META.version];
  if (typeof version !== 'string') throw lacks(`_meta["${META.version}"]`);
  checkVersion(headers, version);
  const capabilities = meta[META.capabilities];
  if (typeof capabilities !== 'object' || capabilities === null || Array.isArray(capabilities)) {
    throw lacks(`_meta["${META.capabilities}"]`);
  }
  checkUnambiguous(message);
  checkMirrored(headers, message);
  return {
    capabilities: capabilities as JsonObject,
    logLevel: readLevel(meta[META.logLevel]),
    progressToken: meta['progressToken'],
  };
}

/** @throws GatewayError header_mismatch, unsupported_version */
export function checkVersion(headers: IncomingHttpHeaders, version: string): void {
  const header = headerOf(headers, 'mcp-protocol-version');
  if (header === undefined) throw mismatch('The header MCP-Protocol-Version is missing.');
  if (header !== version) {
    throw mismatch(`MCP-Protocol-Version is ${quote(header)}, but _meta says ${quote(version)}.`);
  }
  if (version === MODERN_VERSION) return;
  throw fail('unsupported_version', `The protocol version ${quote(version)} is not supported.`, {
    data: { supported: SUPPORTED_VERSIONS, requested: version },
  });
}

/** `_meta` decides what the client may be asked, so no two readers may read it differently. */
function checkUnambiguous(message: RequestMessage): void {
  const meta = metaSlice(message);
  if (meta === undefined) return;
  try {
    objectMembers(message.text, meta.start);
  } catch (error) {
    if (!(error instanceof DuplicateMember)) throw error;
    throw fail('invalid_request', `_meta is ambiguous: ${error.message}.`);
  }
}

function checkMirrored(headers: IncomingHttpHeaders, message: RequestMessage): void {
  const method = headerOf(headers, 'mcp-method');
  if (method === undefined) throw mismatch('The header Mcp-Method is missing.');
  if (method !== message.method) {
    throw mismatch(`Mcp-Method is ${quote(method)}, but the method is ${quote(message.method)}.`);
  }
  const member = namedBy(message.method);
  if (member === undefined) return;
  const value = message.params?.[member];
  if (typeof value !== 'string') {
    throw fail('invalid_params', `${message.method} needs a ${member}.`);
  }
  const header = headerOf(headers, 'mcp-name');
  if (header === undefined) throw mismatch('The header Mcp-Name is missing.');
  const decoded = decodeHeaderValue(header);
  if (decoded === undefined) {
    throw mismatch('Mcp-Name holds characters or an encoding that a header value must not have.');
  }
  if (decoded !== value) {
    throw mismatch(`Mcp-Name is ${quote(decoded)}, but params.${member} is ${quote(value)}.`);
  }
}

function readLevel(value: unknown): Level | undefined {
  if (value === undefined) return undefined;
  const level = LEVELS.find((known) => known === value);
  if (level === undefined) {
    throw fail('invalid_params', `_meta["${META.logLevel}"] must be one of ${LEVELS.join(', ')}.`);
  }
  return level;
}

/** Did the client ask for log messages of this level? Without a level it asked for none. */
export function wantsLevel({ logLevel }: Envelope, level: unknown): boolean {
  if (logLevel === undefined) return false;
  const at = LEVELS.findIndex((known) => known === level);
  return at < 0 || at >= LEVELS.indexOf(logLevel);
}

export const metaSlice = (message: RequestMessage): Slice | undefined =>
  findPath(message.text, ['params', '_meta']);

/** One member of the request's `_meta` as the client wrote it; `{}` where there is none. */
export function metaText(message: RequestMessage, name: string): string {
  const slice = findPath(message.text, ['params', '_meta', name]);
  return slice === undefined ? '{}' : sliceOf(message.text, slice);
}

function lacks(what: string): ReturnType<typeof fail> {
  return fail(
    'invalid_params',
    `The request lacks ${what}. Every request of ${MODERN_VERSION} carries its protocol version and its client's capabilities.`,
  );
}

export function mismatch(message: string): ReturnType<typeof fail> {
  return fail('header_mismatch', `Header mismatch: ${message}`);
}

const quote = (text: string): string => JSON.stringify(text.slice(0, 200));
