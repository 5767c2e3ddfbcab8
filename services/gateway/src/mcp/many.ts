/**
 * The endpoint of many, `/mcp`: all upstreams as one server. Lists are merged page by page, everything else goes
 * to the one upstream that its name says. An upstream that is away or slow is left out, never waited for.
 */
import type { Logger } from 'pino';
import { fail } from '@viaduct/shared/errors';
import { applyEdits, arrayItems, findPath, sliceOf } from '@viaduct/shared/json-text';
import type { Principal } from '@viaduct/shared/principal';
import { legOf, request, resultText, type RpcReply, type Upstream } from '../upstream/upstream.ts';
import type { Credentials } from './credentials.ts';
import type { LegacyToModern } from './legacy-to-modern/legacy-to-modern.ts';
import { within } from './budget.ts';
import type { Legs } from './legs.ts';
import { objectsIn, type JsonObject, type RequestMessage } from './message.ts';
import { qualifyName, splitName, splitUri } from './names.ts';
import { qualifyResponse } from './qualify.ts';
import { CONNECT_TOOL } from './relay.ts';
import type { Session } from './sessions.ts';
import { UpstreamStatus } from '../upstream/upstream.ts';

/** A merged list is out within two seconds, whatever one upstream does (cases A5). */
export const LIST_BUDGET_MS = 1_500;
const MAX_NAME_PAGES = 50;

export const LIST_FIELDS: Readonly<Record<string, string>> = {
  'tools/list': 'tools',
  'prompts/list': 'prompts',
  'resources/list': 'resources',
  'resources/templates/list': 'resourceTemplates',
};

const CAPABILITY_OF: Readonly<Record<string, string>> = {
  'tools/list': 'tools',
  'prompts/list': 'prompts',
  'resources/list': 'resources',
  'resources/templates/list': 'resources',
};

export interface Routed {
  readonly upstream: Upstream;
  /** The message with the upstream's own names. */
  readonly body: string;
  readonly tool: string | undefined;
}

export interface ManyDeps {
  readonly legs: Legs;
  readonly toModern: Pick<LegacyToModern, 'ask'>;
  readonly credentials: Credentials;
  readonly log: Logger;
  /** The upstreams that this principal's scopes let it see. */
  visible(principal: Principal, upstreams: readonly Upstream[]): readonly Upstream[];
  allows(principal: Principal, upstream: Upstream, tool: string): boolean;
}

export interface Many {
  list(
    session: Session,
    principal: Principal,
    upstreams: readonly Upstream[],
    message: RequestMessage,
  ): Promise<string>;
  /** @throws GatewayError invalid_params when the name belongs to no upstream */
  route(
    session: Session,
    principal: Principal,
    upstreams: readonly Upstream[],
    message: RequestMessage,
  ): Promise<Routed>;
}

/** Where each upstream's list goes on. Opaque to clients, readable by every pod, and nothing to be trusted. */
type Cursor = Readonly<Record<string, string>>;

export const encodeCursor = (cursor: Cursor): string =>
  Buffer.from(JSON.stringify(cursor)).toString('base64url');

/** @throws GatewayError invalid_params */
export function decodeCursor(text: string): Cursor {
  try {
    const value: unknown = JSON.parse(Buffer.from(text, 'base64url').toString('utf8'));
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
      const entries = Object.entries(value);
      if (entries.length > 0 && entries.every(([, v]) => typeof v === 'string')) {
        return Object.fromEntries(entries);
      }
    }
  } catch {
    // Falls through: whatever was sent is no cursor of ours.
  }
  throw fail('invalid_params', 'The cursor is not one that this server gave.', { status: 200 });
}

interface Page {
  readonly upstream: string;
  readonly items: readonly string[];
  readonly next: string | undefined;
}

export function createMany(deps: ManyDeps): Many {
  /** A list request of our own, as a sessionful upstream would get it; it reaches those of the other era too. */
  function ask(
    session: Session,
    upstream: Upstream,
    credential: Readonly<Record<string, string>> | undefined,
    wanted: { id: string; method: string; cursor: string | undefined; timeoutMs: number },
  ): Promise<RpcReply> {
    const { id, method, cursor, timeoutMs } = wanted;
    const params = cursor === undefined ? '' : `,"params":{"cursor":${JSON.stringify(cursor)}}`;
    const body = `{"jsonrpc":"2.0","id":"${id}","method":"${method}"${params}}`;
    return deps.legs.use(session, upstream, credential, (leg) =>
      leg.era === 'modern'
        ? deps.toModern.ask({ session, upstream, credential, body, id, method, timeoutMs })
        : request(upstream, body, legOf(leg, credential), { id, timeoutMs }),
    );
  }

  async function page(
    session: Session,
    principal: Principal,
    upstream: Upstream,
    method: string,
    cursor: string | undefined,
    timeoutMs: number,
  ): Promise<Page> {
    const field = LIST_FIELDS[method]!;
    const credential = await deps.credentials.peek(principal, upstream);
    let leg;
    try {
      leg = await deps.legs.ensure(session, upstream, credential?.headers);
    } catch (error) {
      const connectable =
        error instanceof UpstreamStatus &&
        error.upstreamStatus === 401 &&
        upstream.config.connection !== undefined;
      if (!connectable) throw error;
      return {
        upstream: upstream.name,
        items: connectItems(method, upstream.name),
        next: undefined,
      };
    }
    const capabilities = JSON.parse(leg.capabilities ?? '{}') as JsonObject;
    if (capabilities[CAPABILITY_OF[method]!] === undefined) {
      return { upstream: upstream.name, items: [], next: undefined };
    }
    const id = `viaduct-list-${Math.random().toString(36).slice(2)}`;
    const wanted = { id, method, cursor, timeoutMs };
    const reply = await ask(session, upstream, credential?.headers, wanted);
    const result = reply.parsed.result as JsonObject | undefined;
    if (result === undefined) return { upstream: upstream.name, items: [], next: undefined };
    const text = qualifyResponse(reply.text, method, upstream.name);
    const list = findPath(text, ['result', field]);
    const items = (list && arrayItems(text, list.start)) ?? [];
    const raw = objectsIn(result[field]);
    const allowed = items
      .filter(
        (_, i) =>
          method !== 'tools/list' || deps.allows(principal, upstream, String(raw[i]?.['name'])),
      )
      .map((slice) => sliceOf(text, slice));
    const next = result['nextCursor'];
    return {
      upstream: upstream.name,
      items: allowed,
      next: typeof next === 'string' ? next : undefined,
    };
  }

  const list: Many['list'] = async (session, principal, upstreams, message) => {
    const cursor = message.params?.['cursor'];
    const from = typeof cursor === 'string' ? decodeCursor(cursor) : undefined;
    const visible = deps
      .visible(principal, upstreams)
      .filter((u) => from === undefined || Object.hasOwn(from, u.name));
    const pages = await Promise.all(
      visible.map((upstream) =>
        within(
          page(session, principal, upstream, message.method, from?.[upstream.name], LIST_BUDGET_MS),
          LIST_BUDGET_MS,
        ).catch((error: unknown) => {
          deps.log.warn(
            { err: error, upstream: upstream.name, method: message.method },
            'an upstream is missing from a list',
          );
          return undefined;
        }),
      ),
    );
    const items = pages.flatMap((p) => p?.items ?? []);
    const next = Object.fromEntries(
      pages.flatMap((p) => (p?.next === undefined ? [] : [[p.upstream, p.next]])),
    );
    const more =
      Object.keys(next).length === 0 ? '' : `,"nextCursor":${JSON.stringify(encodeCursor(next))}`;
    const field = LIST_FIELDS[message.method]!;
    return `{"jsonrpc":"2.0","id":${message.idText},"result":{"${field}":[${items.join(',')}]${more}}}`;
  };

  /** The whole of a name that was cut, out of the upstream's own list. */
  async function wholeName(
    session: Session,
    principal: Principal,
    upstream: Upstream,
    method: string,
    qualified: string,
  ): Promise<string> {
    const listMethod = method === 'prompts/get' ? 'prompts/list' : 'tools/list';
    const credential = await deps.credentials.peek(principal, upstream);
    let cursor: string | undefined;
    for (let i = 0; i < MAX_NAME_PAGES; i++) {
      const id = `viaduct-name-${i}`;
      const wanted = { id, method: listMethod, cursor, timeoutMs: 10_000 };
      const reply = await ask(session, upstream, credential?.headers, wanted);
      const result = JSON.parse(resultText(reply.text) ?? '{}') as JsonObject;
      for (const item of objectsIn(result[LIST_FIELDS[listMethod]!])) {
        const name = String(item['name']);
        if (qualifyName(upstream.name, name) === qualified) return name;
      }
      const next = result['nextCursor'];
      if (typeof next !== 'string') break;
      cursor = next;
    }
    return splitName(qualified)?.name ?? qualified;
  }

  const route: Many['route'] = async (session, principal, upstreams, message) => {
    const target = nameAt(message);
    if (target === undefined) {
      throw fail('method_not_found', `Method not found: ${message.method}`, { status: 200 });
    }
    const split = target.kind === 'uri' ? splitUri(target.value) : splitName(target.value);
    const upstream = upstreams.find((u) => u.name === split?.upstream);
    if (split === undefined || upstream === undefined) throw unknown(target);
    let own: string;
    if ('uri' in split) own = split.uri;
    else if (split.cut) {
      own = await wholeName(session, principal, upstream, message.method, target.value);
    } else own = split.name;
    const at = findPath(message.text, target.path);
    if (at === undefined) throw unknown(target);
    return {
      upstream,
      body: applyEdits(message.text, [{ ...at, text: JSON.stringify(own) }]),
      tool: message.method === 'tools/call' ? own : undefined,
    };
  };

  return { list, route };
}

interface Target {
  readonly kind: 'tool' | 'prompt' | 'uri';
  readonly value: string;
  readonly path: readonly string[];
}

/** The member that says which upstream a request is for. */
export function nameAt(message: RequestMessage): Target | undefined {
  const { method, params } = message;
  const text = (value: unknown): string => (typeof value === 'string' ? value : '');
  switch (method) {
    case 'tools/call':
      return { kind: 'tool', value: text(params?.['name']), path: ['params', 'name'] };
    case 'prompts/get':
      return { kind: 'prompt', value: text(params?.['name']), path: ['params', 'name'] };
    case 'resources/read':
    case 'resources/subscribe':
    case 'resources/unsubscribe':
      return { kind: 'uri', value: text(params?.['uri']), path: ['params', 'uri'] };
    case 'completion/complete': {
      const ref = params?.['ref'] as JsonObject | undefined;
      if (ref?.['type'] === 'ref/resource') {
        return { kind: 'uri', value: text(ref['uri']), path: ['params', 'ref', 'uri'] };
      }
      return { kind: 'prompt', value: text(ref?.['name']), path: ['params', 'ref', 'name'] };
    }
    default:
      return undefined;
  }
}

function unknown(target: Target): ReturnType<typeof fail> {
  const what = { tool: 'tool', prompt: 'prompt', uri: 'resource' }[target.kind];
  return target.kind === 'uri'
    ? fail('invalid_params', 'Resource not found', {
        status: 200,
        rpcCode: -32002,
        data: { uri: target.value },
      })
    : fail('invalid_params', `Unknown ${what}: ${target.value.slice(0, 200)}`, { status: 200 });
}

function connectItems(method: string, upstream: string): string[] {
  if (method !== 'tools/list') return [];
  return [
    JSON.stringify({
      name: qualifyName(upstream, CONNECT_TOOL),
      title: `Connect ${upstream}`,
      description: `The server "${upstream}" needs your account before it shows what it offers. Call this tool to connect it.`,
      inputSchema: { type: 'object', properties: {}, additionalProperties: false },
    }),
  ];
}
