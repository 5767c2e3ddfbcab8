/**
 * Which tools mirror which arguments, learned from the lists that pass through: so that a call can be checked, and a
 * tool that breaks the rules hidden and reported (2026-07-28 server/tools, x-mcp-header; cases X6).
 *
 * In memory, per pod, bounded: what is not known here is forwarded unchecked, and the upstream checks it. Where a
 * list may depend on the user's credential, so does what is known of it.
 */
import type { Logger } from 'pino';
import type { Audit } from '@viaduct/shared/audit';
import type { Upstream } from '../../upstream/upstream.ts';
import type { JsonObject } from '../message.ts';
import { toolHeaders, type MirroredParam } from './tool-headers.ts';

export interface KnownTool {
  readonly params: readonly MirroredParam[];
  readonly seenAtMs: number;
}

export interface ToolBook {
  /** Takes in the tools of a list. @returns the names of those that must not be shown */
  learn(upstream: Upstream, userId: string, tools: readonly JsonObject[]): ReadonlySet<string>;
  /** Undefined for a tool that nobody has listed here, and for one that mirrors nothing. */
  known(upstream: Upstream, userId: string, tool: string): KnownTool | undefined;
}

const MAX_SHELVES = 2_000;
const MAX_TOOLS = 1_000;
/** Nobody has to read the same warning more often than this. */
const WARN_AGAIN_MS = 3_600_000;
const NONE_HIDDEN: ReadonlySet<string> = new Set();

export function createToolBook(deps: {
  readonly log: Logger;
  readonly audit: Audit;
  readonly now?: () => number;
}): ToolBook {
  const { log, audit, now = Date.now } = deps;
  const shelves = new Map<string, Map<string, KnownTool>>();
  const warned = new Map<string, number>();

  const shelfName = (upstream: Upstream, userId: string): string =>
    upstream.config.connection === undefined ? upstream.name : `${upstream.name} ${userId}`;

  function shelfFor(upstream: Upstream, userId: string): Map<string, KnownTool> {
    const name = shelfName(upstream, userId);
    const shelf = shelves.get(name) ?? new Map<string, KnownTool>();
    // The one used last is the last to go.
    shelves.delete(name);
    shelves.set(name, shelf);
    if (shelves.size > MAX_SHELVES) shelves.delete(shelves.keys().next().value!);
    return shelf;
  }

  function report(upstream: Upstream, tool: string, reason: string): void {
    const key = `${upstream.name} ${tool} ${reason}`;
    const at = now();
    if (at - (warned.get(key) ?? -WARN_AGAIN_MS) < WARN_AGAIN_MS) return;
    if (warned.size >= MAX_TOOLS) warned.clear();
    warned.set(key, at);
    log.warn(
      { upstream: upstream.name, tool, reason },
      'a tool is hidden: its definition is invalid',
    );
    audit.record({ type: 'tool.hidden', upstream: upstream.name, tool, reason });
  }

  return {
    learn(upstream, userId, tools) {
      let hidden: Set<string> | undefined;
      for (const tool of tools) {
        const name = tool['name'];
        if (typeof name !== 'string') continue;
        const found = toolHeaders(tool['inputSchema']);
        if (!found.valid) {
          (hidden ??= new Set()).add(name);
          report(upstream, name, found.reason);
        }
        const params = found.valid ? found.params : [];
        if (params.length > 0) {
          const shelf = shelfFor(upstream, userId);
          if (shelf.size < MAX_TOOLS) shelf.set(name, { params, seenAtMs: now() });
        } else shelves.get(shelfName(upstream, userId))?.delete(name);
      }
      return hidden ?? NONE_HIDDEN;
    },

    known: (upstream, userId, tool) => shelves.get(shelfName(upstream, userId))?.get(tool),
  };
}
