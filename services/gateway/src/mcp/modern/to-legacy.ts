/**
 * The path from a modern client to a legacy upstream: the request loses its envelope and goes out in an implicit
 * session; what the upstream asks in the middle becomes rounds, on whichever pods (design, section 9).
 *
 * Promises: a call is sent once, again only where the upstream provably did not read or do it; the client's leaving
 * cancels it upstream; nothing reaches a client that it did not ask for or declare. A plain call costs no command.
 */
import { randomBytes } from 'node:crypto';
import type { Logger } from 'pino';
import type { JobQueue } from '@viaduct/shared/jobs';
import { applyEdits, findPath, removeMembers, sliceOf } from '@viaduct/shared/json-text';
import type { Leases } from '@viaduct/shared/lease';
import type { Redis } from '@viaduct/shared/redis/client';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import { garbage } from '../../upstream/upstream.ts';
import type { Legs } from '../legs.ts';
import { LIST_FIELDS } from '../many.ts';
import type { JsonObject } from '../message.ts';
import type { Sessions } from '../sessions.ts';
import { continueCall, stateGone, stateOf } from './continuation.ts';
import { Ears } from './ears.ts';
import { META } from './envelope.ts';
import { HeldCall, type HeldCallDeps } from './held-call.ts';
import { createImplicitSessions } from './implicit-sessions.ts';
import { createLegacyFeed } from './legacy-feed.ts';
import { isObject, listItems } from './legacy-words.ts';
import { createLinks } from './links.ts';
import type { Bridge, Outcome, Outgoing, PageRequest } from './path.ts';
import type { QuestionDeps } from './questions.ts';
import { SuspendedCalls } from './suspended-calls.ts';

export interface ToLegacyDeps extends QuestionDeps {
  readonly redis: Redis;
  readonly scripts: Scripts;
  readonly sessions: Sessions;
  readonly legs: Legs;
  readonly leases: Leases;
  readonly jobs: Pick<JobQueue, 'enqueue'>;
  readonly metrics: HeldCallDeps['metrics'] &
    ConstructorParameters<typeof SuspendedCalls>[0]['metrics'];
  readonly log: Logger;
  readonly podId: string;
  readonly config: {
    readonly sessions: {
      readonly ttlSeconds: number;
      readonly eventLogMaxLen: number;
      readonly keepAliveSeconds: number;
    };
    readonly elicitation: { readonly ttlSeconds: number; readonly connectWaitSeconds: number };
  };
}

/** Capabilities of earlier revisions that this one does not have. */
const NOT_MODERN = ['tasks'];

export function createToLegacy(deps: ToLegacyDeps): Bridge {
  const { redis, scripts, metrics, log, podId, config } = deps;
  const { ttlSeconds, keepAliveSeconds, eventLogMaxLen } = config.sessions;
  const sessions = createImplicitSessions({ ...deps, ttlSeconds });
  const suspended = new SuspendedCalls({
    redis,
    scripts,
    metrics,
    log,
    podId,
    ttlSeconds: config.elicitation.ttlSeconds,
  });
  const ears = new Ears({
    redis,
    scripts,
    sessions,
    podId,
    beatMs: keepAliveSeconds * 1000,
    ttlSeconds: Math.max(ttlSeconds, keepAliveSeconds * 3, config.elicitation.ttlSeconds),
    maxLog: eventLogMaxLen,
    log,
  });
  const links = createLinks({
    ...deps,
    suspended,
    ears,
    waitMs: config.elicitation.connectWaitSeconds * 1000,
  });
  // Ids of one leg come from all pods.
  const prefix = `v${randomBytes(6).toString('base64url')}`;
  let serial = 0;
  const held: HeldCallDeps = {
    ...deps,
    sessions,
    suspended,
    running: new Set(),
    newLegId: () => `${prefix}-${++serial}`,
    heard: (implicit, text, parsed) => {
      ears.heard(implicit, text, parsed);
    },
    needsLinks: links.ask,
  };
  const continuation = {
    suspended,
    log,
    needsLinks: async (out: Outgoing, error: JsonObject) =>
      links.ask(out, await sessions.open(out, out.upstream, out.credential?.headers), error),
  };

  async function call(out: Outgoing): Promise<Outcome> {
    const implicit = await sessions.open(out, out.upstream, out.credential?.headers);
    return new HeldCall(held, out, implicit).run();
  }

  async function resume(out: Outgoing, data: string): Promise<Outcome> {
    const started = performance.now();
    const state = stateOf(data);
    const record = await suspended.read(out.principal.userId, state.call);
    if (record?.round !== state.round) throw stateGone();
    if (record.kind === 'asks') return continueCall(continuation, out, state, record);
    const outcome = await links.resume(out, state, record);
    if (outcome === undefined) return call(out);
    const upstreamMs = performance.now() - started;
    return outcome === 'wrong_answers'
      ? { outcome: 'rpc_error', upstreamMs, unsent: true }
      : { outcome, upstreamMs };
  }

  async function hello(
    request: Omit<PageRequest, 'method' | 'cursor' | 'timeoutMs'>,
  ): Promise<string> {
    const { upstream, credential } = request;
    return sessions.hello(await sessions.open(request, upstream, credential?.headers));
  }

  /** `server/discover`, out of what the upstream said to `initialize`. */
  async function discover(out: Outgoing): Promise<Outcome> {
    const text = await hello(out);
    const part = (name: string): string | undefined => {
      const slice = findPath(text, [name]);
      return slice && sliceOf(text, slice);
    };
    const capabilities = part('capabilities') ?? '{}';
    const serverInfo = part('serverInfo');
    const instructions = part('instructions');
    const own = applyEdits(capabilities, removeMembers(capabilities, 0, NOT_MODERN));
    const result = [
      '"supportedVersions":[]',
      `"capabilities":${own}`,
      ...(instructions === undefined ? [] : [`"instructions":${instructions}`]),
      ...(serverInfo === undefined ? [] : [`"_meta":{"${META.serverInfo}":${serverInfo}}`]),
    ].join(',');
    const response = `{"jsonrpc":"2.0","id":${out.message.idText},"result":{${result}}}`;
    out.reply.finish(out.complete(response, JSON.parse(response) as JsonObject));
    return { outcome: 'ok', upstreamMs: 0 };
  }

  return {
    async request(out) {
      if (out.message.method === 'server/discover') return discover(out);
      if (out.carried?.kind === 'suspended') return resume(out, out.carried.data);
      return call(out);
    },

    async page(wanted) {
      const { upstream, credential, method, cursor, timeoutMs } = wanted;
      const implicit = await sessions.open(wanted, upstream, credential?.headers);
      const params = cursor === undefined ? '{}' : JSON.stringify({ cursor });
      const { text, parsed } = await sessions.ask(implicit, credential?.headers, {
        method,
        params,
        timeoutMs,
      });
      if (!isObject(parsed.result)) throw garbage(upstream.name, `${method} was refused`);
      const { nextCursor } = parsed.result;
      return {
        items: listItems(text, parsed.result, LIST_FIELDS[method]!),
        next: typeof nextCursor === 'string' ? nextCursor : undefined,
        // Earlier revisions do not say how long a list is good for.
        ttlMs: 0,
      };
    },

    async describe(wanted) {
      const result = JSON.parse(await hello(wanted)) as JsonObject;
      const { capabilities, instructions } = result;
      return {
        capabilities: isObject(capabilities)
          ? Object.fromEntries(
              Object.entries(capabilities).filter(([name]) => !NOT_MODERN.includes(name)),
            )
          : {},
        instructions: typeof instructions === 'string' ? instructions : undefined,
      };
    },

    feed: (wanted) => createLegacyFeed({ sessions, ears, log }, wanted),

    nudge(nudge) {
      suspended.nudge(nudge);
      ears.nudge(nudge);
    },
    gap() {
      suspended.gap();
      ears.gap();
    },
    get running() {
      return held.running.size;
    },
    endUser(userId) {
      for (const call of [...held.running]) if (call.userId === userId) void call.lost();
    },
    async stop() {
      await Promise.all([...[...held.running].map((one) => one.lost()), ears.stop()]);
    },
  };
}
