/**
 * Lists and `server/discover` on the endpoint of many: the answers of all upstreams that this caller may see, as
 * one. An upstream that is away or slow is left out, never waited for (cases A5). What depends on who asks is never
 * for shared caches (server/utilities/caching; cases A7).
 */
import type { Logger } from 'pino';
import { setMember, applyEdits } from '@viaduct/shared/json-text';
import { UpstreamStatus, type Eras, type Upstream } from '../../upstream/upstream.ts';
import type { Credentials, Injected } from '../credentials.ts';
import { decodeCursor, encodeCursor, LIST_BUDGET_MS, LIST_FIELDS } from '../many.ts';
import { within } from '../budget.ts';
import { resultResponse, type JsonObject } from '../message.ts';
import { qualifyName, qualifyUri } from '../names.ts';
import { CONNECT_TOOL, connectTool } from '../relay.ts';
import { META, SUPPORTED_VERSIONS } from './envelope.ts';
import type { Caller, Description, Page, Path } from './path.ts';
import type { ToolBook } from './tool-book.ts';

/** A cut name is looked for in at most this many pages of its upstream's list. */
const MAX_NAME_PAGES = 50;
const NAME_TIMEOUT_MS = 10_000;

export const GATEWAY_META = { [META.serverInfo]: { name: 'viaduct', version: '1' } };

export interface ListsDeps {
  readonly eras: Pick<Eras, 'of'>;
  readonly paths: Readonly<Record<'modern' | 'legacy', Path>>;
  readonly credentials: Pick<Credentials, 'peek'>;
  readonly book: ToolBook;
  readonly log: Logger;
  allows(caller: Caller, upstream: Upstream, tool: string): boolean;
}

export interface Lists {
  /** The response to a list request on `/mcp`. @throws GatewayError invalid_params for a strange cursor */
  merged(caller: Caller, upstreams: readonly Upstream[]): Promise<string>;
  /** The response to `server/discover` on `/mcp`. */
  discover(caller: Caller, upstreams: readonly Upstream[]): Promise<string>;
  /** Looks for an item of an upstream's list, page by page. */
  find(
    caller: Caller,
    upstream: Upstream,
    method: string,
    wanted: (value: JsonObject) => boolean,
  ): Promise<JsonObject | undefined>;
}

interface Named {
  readonly member: string;
  readonly qualify: (upstream: string, value: string) => string;
}

/** Which member of a list's items is a name of the upstream's. */
const NAME_OF: Readonly<Record<string, Named>> = {
  'tools/list': { member: 'name', qualify: qualifyName },
  'prompts/list': { member: 'name', qualify: qualifyName },
  'resources/list': { member: 'uri', qualify: qualifyUri },
  'resources/templates/list': { member: 'uriTemplate', qualify: qualifyUri },
};

export const isUnauthorized = (error: unknown): boolean =>
  error instanceof UpstreamStatus && error.upstreamStatus === 401;

/** The only thing that an upstream offers which lets nobody in without the user's credential (design, section 6). */
export function connectOnly(method: string, upstream: Upstream, many: boolean): JsonObject[] {
  if (method !== 'tools/list') return [];
  const name = many ? qualifyName(upstream.name, CONNECT_TOOL) : CONNECT_TOOL;
  return [{ ...connectTool(upstream.name), name }];
}

export function createLists(deps: ListsDeps): Lists {
  async function page(
    caller: Caller,
    upstream: Upstream,
    method: string,
    cursor: string | undefined,
    timeoutMs: number,
  ): Promise<Page> {
    const credential = await deps.credentials.peek(caller.principal, upstream, caller.requestId);
    const era = await deps.eras.of(upstream, 'modern', credential?.headers);
    const found = await deps.paths[era].page({
      ...caller,
      upstream,
      credential,
      method,
      cursor,
      timeoutMs,
    });
    if (method !== 'tools/list') return found;
    const hidden = deps.book.learn(
      upstream,
      caller.principal.userId,
      found.items.map(({ value }) => value),
    );
    return {
      ...found,
      items: found.items.filter(({ value }) => {
        const name = String(value['name']);
        return !hidden.has(name) && deps.allows(caller, upstream, name);
      }),
    };
  }

  /** Items as `/mcp` shows them. */
  async function share(
    caller: Caller,
    upstream: Upstream,
    method: string,
    cursor: string | undefined,
  ): Promise<Page & { texts: readonly string[] }> {
    const { member, qualify } = NAME_OF[method]!;
    try {
      const found = await page(caller, upstream, method, cursor, LIST_BUDGET_MS);
      const texts = found.items.map(({ text, value }) => {
        const name = value[member];
        if (typeof name !== 'string') return text;
        return applyEdits(text, [
          setMember(text, 0, member, JSON.stringify(qualify(upstream.name, name))),
        ]);
      });
      return { ...found, texts };
    } catch (error) {
      if (!isUnauthorized(error) || upstream.config.connection === undefined) throw error;
      const texts = connectOnly(method, upstream, true).map((tool) => JSON.stringify(tool));
      return { items: [], texts, next: undefined, ttlMs: 0 };
    }
  }

  async function each<T>(
    caller: Caller,
    upstreams: readonly Upstream[],
    work: (upstream: Upstream) => Promise<T>,
  ): Promise<{ upstream: Upstream; value: T | undefined }[]> {
    return Promise.all(
      upstreams.map(async (upstream) => {
        try {
          return { upstream, value: await within(work(upstream), LIST_BUDGET_MS) };
        } catch (error) {
          deps.log.warn(
            { err: error, upstream: upstream.name, method: caller.message.method },
            'an upstream is missing from a merged answer',
          );
          return { upstream, value: undefined };
        }
      }),
    );
  }

  return {
    async merged(caller, upstreams) {
      const { method, params, idText } = caller.message;
      const cursor = params?.['cursor'];
      const from = typeof cursor === 'string' ? decodeCursor(cursor) : undefined;
      const asked = upstreams.filter(({ name }) => from === undefined || Object.hasOwn(from, name));
      const pages = await each(caller, asked, (upstream) =>
        share(caller, upstream, method, from?.[upstream.name]),
      );
      const items = pages.flatMap(({ value }) => value?.texts ?? []);
      const next = Object.fromEntries(
        pages.flatMap(({ upstream, value }) =>
          value?.next === undefined ? [] : [[upstream.name, value.next]],
        ),
      );
      const more =
        Object.keys(next).length === 0 ? '' : `"nextCursor":${JSON.stringify(encodeCursor(next))},`;
      // As fresh as the least fresh; a list from which somebody is missing is stale at once.
      const ttlMs = Math.min(
        ...pages.map(({ value }) => value?.ttlMs ?? 0),
        Number.MAX_SAFE_INTEGER,
      );
      const fresh = pages.length === 0 ? 0 : ttlMs;
      return (
        `{"jsonrpc":"2.0","id":${idText},"result":{"resultType":"complete",` +
        `"${LIST_FIELDS[method]!}":[${items.join(',')}],${more}` +
        `"ttlMs":${fresh},"cacheScope":"private","_meta":${JSON.stringify(GATEWAY_META)}}}`
      );
    },

    async discover(caller, upstreams) {
      const described = await each(caller, upstreams, async (upstream) => {
        const credential: Injected | undefined = await deps.credentials.peek(
          caller.principal,
          upstream,
          caller.requestId,
        );
        const era = await deps.eras.of(upstream, 'modern', credential?.headers);
        return deps.paths[era].describe({
          ...caller,
          upstream,
          credential,
          timeoutMs: LIST_BUDGET_MS,
        });
      });
      return resultResponse(caller.message.idText, {
        resultType: 'complete',
        supportedVersions: SUPPORTED_VERSIONS,
        ...mergeDescriptions(
          described.map(({ upstream, value }) => ({ name: upstream.name, value })),
        ),
        ttlMs: 0,
        cacheScope: 'private',
        _meta: GATEWAY_META,
      });
    },

    async find(caller, upstream, method, wanted) {
      let cursor: string | undefined;
      for (let i = 0; i < MAX_NAME_PAGES; i++) {
        const { items, next } = await page(caller, upstream, method, cursor, NAME_TIMEOUT_MS);
        const found = items.find(({ value }) => wanted(value));
        if (found !== undefined) return found.value;
        if (next === undefined) return undefined;
        cursor = next;
      }
      return undefined;
    },
  };
}

const CHANGING = ['tools', 'prompts', 'resources'] as const;

/**
 * One server's capabilities out of many. Lists may always change, for an upstream that was away comes back; one of
 * which nothing is known now may offer anything.
 */
export function mergeDescriptions(
  all: readonly { readonly name: string; readonly value: Description | undefined }[],
): { capabilities: JsonObject; instructions?: string } {
  const capabilities: Record<string, JsonObject> = {};
  for (const { value } of all) {
    const own = value?.capabilities as Record<string, JsonObject | undefined> | undefined;
    for (const name of CHANGING) {
      if (own !== undefined && own[name] === undefined) continue;
      const subscribe =
        own?.[name]?.['subscribe'] === true || capabilities[name]?.['subscribe'] === true;
      capabilities[name] = { listChanged: true, ...(subscribe && { subscribe }) };
    }
    for (const name of ['logging', 'completions']) {
      if (own?.[name] !== undefined) capabilities[name] = {};
    }
  }
  const instructions = all
    .filter(({ value }) => value?.instructions !== undefined && value.instructions !== '')
    .map(({ name, value }) => `# ${name}\n\n${value?.instructions ?? ''}`)
    .join('\n\n');
  return { capabilities, ...(instructions !== '' && { instructions }) };
}
