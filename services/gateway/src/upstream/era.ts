/**
 * Which era an upstream speaks: `legacy` (initialize and sessions, up to 2025-11-25) or `modern` (2026-07-28).
 *
 * Promises: `protocol: legacy|modern` is taken at its word; `auto` asks `server/discover` once per upstream and pod
 * for all that want to know at the same time, and again after a horizon, without anybody waiting for that. What an
 * upstream says about itself counts; a refusal for want of credentials, a failure or silence is no evidence
 * (basic/versioning, Backward Compatibility; Streamable HTTP, Backward Compatibility).
 *
 * In memory only, per pod: a cache of what any pod can find out by itself.
 */
import type { Logger } from 'pino';
import { fail } from '@viaduct/shared/errors';
import { garbage, responseText, tryParse, UpstreamStatus, upstreamTimeout } from './replies.ts';
import type { Upstream } from './upstream.ts';
import type { WireReply } from './wire.ts';

export type Era = 'legacy' | 'modern';
type Credential = Readonly<Record<string, string>> | undefined;

export interface Eras {
  /**
   * What to speak to this upstream for a client of the given era. An upstream that speaks both is spoken to as its
   * client speaks. For a legacy client of an upstream that nobody has asked yet, that is `legacy`: initialize will
   * tell, and whoever sees it refused says so with `modernOnly`.
   *
   * @throws UpstreamStatus (401, 403, 429, 5xx), or a GatewayError when it cannot be reached: nothing is known then
   */
  of(upstream: Upstream, client: Era, credential?: Credential): Promise<Era>;
  /** What is known without asking. */
  known(upstream: Upstream): Era | undefined;
  /** The upstream answered initialize as only modern servers do. */
  modernOnly(upstream: Upstream): void;
  /** What the upstream did contradicts what is known: the next one asks again. */
  doubt(upstream: Upstream): void;
}

/** What was found out. */
interface Found {
  readonly modern: boolean;
  /** Undefined for a modern server that does not say whether it also has sessions. */
  readonly legacy: boolean | undefined;
}

/** Errors that only modern servers send; a legacy one has no such codes (basic/index, Error Codes). */
const MODERN_ERRORS: ReadonlySet<unknown> = new Set([-32020, -32021, -32022]);
export const isModernError = (code: unknown): boolean => MODERN_ERRORS.has(code);

const MODERN = '2026-07-28';
const LEGACY = /^202[45]-/;
const HORIZON_MS = 10 * 60_000;
/** After a horizon at which the upstream did not say: how long what was known before goes on to count. */
const AGAIN_MS = 60_000;
const PROBE_TIMEOUT_MS = 5_000;
const PROBE_ID = 'viaduct-discover';
const PROBE = JSON.stringify({
  jsonrpc: '2.0',
  id: PROBE_ID,
  method: 'server/discover',
  params: {
    _meta: {
      'io.modelcontextprotocol/protocolVersion': MODERN,
      'io.modelcontextprotocol/clientInfo': { name: 'viaduct', version: '1' },
      'io.modelcontextprotocol/clientCapabilities': {},
    },
  },
});

interface Entry {
  found: Found | undefined;
  untilMs: number;
  asking: { readonly credential: Credential; readonly answer: Promise<Found> } | undefined;
}

export function createEras(deps: { readonly log: Logger; readonly now?: () => number }): Eras {
  const { log, now = Date.now } = deps;
  const entries = new Map<string, Entry>();

  function entryOf({ name }: Upstream): Entry {
    let entry = entries.get(name);
    if (entry === undefined) {
      entry = { found: undefined, untilMs: 0, asking: undefined };
      entries.set(name, entry);
    }
    return entry;
  }

  function learn(upstream: Upstream, found: Found): void {
    const entry = entryOf(upstream);
    if (entry.found?.modern !== found.modern) {
      log.info({ upstream: upstream.name, ...found }, 'era of an upstream found out');
    }
    entry.found = found;
    entry.untilMs = now() + HORIZON_MS;
  }

  function ask(upstream: Upstream, credential: Credential): Promise<Found> {
    const entry = entryOf(upstream);
    const answer = probe(upstream, credential).then(
      (found) => {
        learn(upstream, found);
        return found;
      },
      (error: unknown) => {
        entry.untilMs = now() + AGAIN_MS;
        throw error;
      },
    );
    const asking = { credential, answer };
    entry.asking = asking;
    const forget = (): void => {
      if (entry.asking === asking) entry.asking = undefined;
    };
    answer.then(forget, forget);
    return answer;
  }

  /** Joins the question that is under way; what was refused to somebody else's credential is asked with ours. */
  async function askOnce(upstream: Upstream, credential: Credential): Promise<Found> {
    const { asking } = entryOf(upstream);
    if (asking === undefined) return ask(upstream, credential);
    try {
      return await asking.answer;
    } catch (error) {
      if (asking.credential === credential || !(error instanceof UpstreamStatus)) throw error;
      return ask(upstream, credential);
    }
  }

  function find(upstream: Upstream, credential: Credential): Found | Promise<Found> {
    const entry = entryOf(upstream);
    if (entry.found === undefined) return askOnce(upstream, credential);
    if (now() >= entry.untilMs && entry.asking === undefined) {
      ask(upstream, credential).catch((error: unknown) => {
        log.debug(
          { err: error, upstream: upstream.name },
          'era not confirmed; it is taken as before',
        );
      });
    }
    return entry.found;
  }

  return {
    async of(upstream, client, credential) {
      const { protocol } = upstream.config;
      if (protocol !== 'auto') return protocol;
      if (client === 'modern') {
        return (await find(upstream, credential)).modern ? 'modern' : 'legacy';
      }
      const { found } = entryOf(upstream);
      return found?.legacy === false ? 'modern' : 'legacy';
    },

    known(upstream) {
      const { protocol } = upstream.config;
      if (protocol !== 'auto') return protocol;
      const { found } = entryOf(upstream);
      return found && (found.modern ? 'modern' : 'legacy');
    },

    modernOnly(upstream) {
      learn(upstream, { modern: true, legacy: false });
    },

    doubt(upstream) {
      entryOf(upstream).found = undefined;
    },
  };
}

async function probe(upstream: Upstream, credential: Credential): Promise<Found> {
  const sent = upstream.post(PROBE, {
    protocolVersion: MODERN,
    credential,
    extra: { 'mcp-method': 'server/discover' },
  });
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => {
      sent.abort();
      reject(upstreamTimeout(upstream.name));
    }, PROBE_TIMEOUT_MS);
  });
  try {
    return await Promise.race([judge(upstream, sent.reply), late]);
  } finally {
    clearTimeout(timer);
    sent.abort();
  }
}

/** @throws when what came back is no evidence */
async function judge(upstream: Upstream, reply: Promise<WireReply>): Promise<Found> {
  const got = await reply;
  const { status } = got;
  if (status === 401 || status === 403 || status === 407 || status === 429 || status >= 500) {
    throw new UpstreamStatus(upstream.name, got);
  }
  if (status >= 300 && status < 400) throw new UpstreamStatus(upstream.name, got);
  const message = tryParse(await responseText(upstream.name, got, PROBE_ID));
  const verdict = message && verdictOf(message);
  if (verdict !== undefined) return verdict;
  // A refusal without a modern error, and 202 for a request, are how servers without discovery answer.
  if (status >= 400 || status === 202) return { modern: false, legacy: true };
  throw garbage(upstream.name, 'server/discover was answered with something that is no JSON-RPC');
}

/** What a JSON-RPC response to `server/discover` says about the era; undefined when it is none. */
export function verdictOf(message: Record<string, unknown>): Found | undefined {
  const error = message['error'];
  if (typeof error === 'object' && error !== null) {
    const { code, data } = error as { code?: unknown; data?: unknown };
    if (!isModernError(code)) return { modern: false, legacy: true };
    const supported = (data as { supported?: unknown } | undefined)?.supported;
    return Array.isArray(supported) ? ofVersions(supported) : { modern: true, legacy: undefined };
  }
  const result = message['result'];
  if (typeof result !== 'object' || result === null) return undefined;
  const versions = (result as { supportedVersions?: unknown }).supportedVersions;
  return Array.isArray(versions) ? ofVersions(versions) : { modern: false, legacy: true };
}

function ofVersions(versions: readonly unknown[]): Found {
  const legacy = versions.some((version) => typeof version === 'string' && LEGACY.test(version));
  // Only revisions that are newer than us: spoken to as modern, it will say itself what it wants.
  const modern = versions.includes(MODERN) || !legacy;
  return { modern, legacy: legacy ? true : undefined };
}

/** For a client whose upstream speaks the other era where nothing translates yet. */
export function noBridge(upstream: Upstream, client: Era): ReturnType<typeof fail> {
  const [speaks, wants] =
    client === 'modern' ? ['2025-11-25 or earlier', MODERN] : [MODERN, '2025-11-25'];
  return fail(
    'upstream_unavailable',
    `The server "${upstream.name}" speaks only MCP ${speaks}, and your client ${wants}. This gateway does not translate this request.`,
    { data: { reason: 'era_not_bridged' } },
  );
}
