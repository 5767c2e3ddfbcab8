/**
 * `Mcp-Param-*` headers for calls of sessionful clients, who know nothing of them (2026-07-28 Streamable HTTP,
 * Client Behavior): from the tool's own schema, which is fetched where no list of it has passed through here yet.
 * Tools whose annotations are invalid are hidden, and cannot be called.
 *
 * In memory, per pod, bounded: what any pod can find out again. Where a list may depend on the user's credential, so
 * does what is known of it.
 */
import type { Logger } from 'pino';
import { findPath, sliceOf } from '@viaduct/shared/json-text';
import { request, type Leg, type Upstream } from '../../upstream/upstream.ts';
import { within } from '../budget.ts';
import { objectsIn, type JsonObject } from '../message.ts';
import { encodeHeaderValue, modernLeg } from '../modern/header-values.ts';
import type { ToolBook } from '../modern/tool-book.ts';
import type { MirroredParam } from '../modern/tool-headers.ts';
import { ownRequest, type Self } from './requests.ts';

const MAX_SHELVES = 2_000;
const MAX_PAGES = 50;
const TIMEOUT_MS = 5_000;
/** A list is taken as it was for this long; an upstream that changed says so itself, by `HeaderMismatch`. */
const FRESH_MS = 10 * 60_000;
/** A tool that was not in the list is looked for again after this, whoever asks how often. */
const LOOK_AGAIN_MS = 10_000;

export interface Caller {
  readonly self: Self;
  readonly userId: string;
  readonly upstream: Upstream;
  readonly credential: Leg['credential'];
}

export type Headers = Readonly<Record<string, string>>;

export interface Mirrored {
  /** Takes in the tools of a list that passes through. @returns the names that must not be shown */
  learn(
    caller: Pick<Caller, 'userId' | 'upstream'>,
    tools: readonly JsonObject[],
  ): ReadonlySet<string>;
  /**
   * Headers for a call; undefined for a tool that is hidden. With `again`, from a list that is fetched now.
   *
   * @param text the request that carries the arguments
   */
  headersFor(
    caller: Caller,
    tool: string,
    text: string,
    again?: boolean,
  ): Promise<Headers | undefined>;
}

interface Shelf {
  readonly names: Set<string>;
  readonly hidden: Set<string>;
  /** When the whole list was last read, epoch milliseconds. */
  readAtMs: number;
  reading: Promise<void> | undefined;
}

export function createMirrored(deps: {
  book: ToolBook;
  log: Logger;
  now?: () => number;
}): Mirrored {
  const { book, log, now = Date.now } = deps;
  const shelves = new Map<string, Shelf>();

  function shelfOf({ upstream, userId }: Pick<Caller, 'userId' | 'upstream'>): Shelf {
    const name =
      upstream.config.connection === undefined ? upstream.name : `${upstream.name} ${userId}`;
    const shelf = shelves.get(name) ?? {
      names: new Set<string>(),
      hidden: new Set<string>(),
      readAtMs: -Infinity,
      reading: undefined,
    };
    // The one used last is the last to go.
    shelves.delete(name);
    shelves.set(name, shelf);
    if (shelves.size > MAX_SHELVES) shelves.delete(shelves.keys().next().value!);
    return shelf;
  }

  const learn: Mirrored['learn'] = (caller, tools) => {
    const hidden = book.learn(caller.upstream, caller.userId, tools);
    const shelf = shelfOf(caller);
    for (const { name } of tools) {
      if (typeof name !== 'string') continue;
      shelf.names.add(name);
      if (hidden.has(name)) shelf.hidden.add(name);
      else shelf.hidden.delete(name);
    }
    return hidden;
  };

  async function read(caller: Caller): Promise<void> {
    const shelf = shelfOf(caller);
    let cursor: string | undefined;
    for (let i = 0; i < MAX_PAGES; i++) {
      const id = `viaduct-tools-${i}`;
      const params = cursor === undefined ? '' : `"cursor":${JSON.stringify(cursor)}`;
      const { parsed } = await request(
        caller.upstream,
        ownRequest(caller.self, id, 'tools/list', params),
        modernLeg('tools/list', undefined, caller.credential),
        { id, timeoutMs: TIMEOUT_MS },
      );
      const result = parsed.result as JsonObject | undefined;
      const tools = result?.['tools'];
      if (Array.isArray(tools)) learn(caller, objectsIn(tools));
      const next = result?.['nextCursor'];
      if (typeof next !== 'string') break;
      cursor = next;
    }
    shelf.readAtMs = now();
  }

  /** One reader per shelf; what it cannot read, the upstream will have to check. */
  async function readOnce(caller: Caller, shelf: Shelf): Promise<void> {
    shelf.reading ??= within(read(caller), TIMEOUT_MS)
      .catch((error: unknown) => {
        log.info(
          { err: error, upstream: caller.upstream.name },
          'the tools of an upstream could not be read; a call goes out without mirrored arguments',
        );
      })
      .finally(() => {
        shelf.reading = undefined;
      });
    await shelf.reading;
  }

  return {
    learn,
    async headersFor(caller, tool, text, again = false) {
      const shelf = shelfOf(caller);
      const age = now() - shelf.readAtMs;
      const stale = shelf.names.has(tool)
        ? age > FRESH_MS && age !== Infinity
        : age > LOOK_AGAIN_MS;
      if (again || stale) await readOnce(caller, shelf);
      if (shelf.hidden.has(tool)) return undefined;
      const known = book.known(caller.upstream, caller.userId, tool);
      return known === undefined ? {} : headersOf(known.params, text);
    },
  };
}

/** Values as the request spells them: nothing is rounded on the way into a header. */
export function headersOf(params: readonly MirroredParam[], text: string): Record<string, string> {
  const headers: Record<string, string> = {};
  for (const { header, path } of params) {
    const slice = findPath(text, ['params', 'arguments', ...path]);
    if (slice === undefined) continue;
    const raw = sliceOf(text, slice);
    if (raw === 'null' || raw.startsWith('{') || raw.startsWith('[')) continue;
    const value = raw.startsWith('"') ? (JSON.parse(raw) as string) : decimal(raw);
    headers[header] = encodeHeaderValue(value);
  }
  return headers;
}

/** `1e3` and `1.0` are integers too; one that is spelled as one keeps all its digits. */
const decimal = (raw: string): string =>
  /^(?:-?\d+|true|false)$/.test(raw) ? raw : String(Number(raw));
