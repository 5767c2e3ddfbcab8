/**
 * The events of one legacy upstream for one subscription: the listening stream of the implicit session, and a
 * `resources/subscribe` for each resource that was asked for. Lasts until it is closed.
 */
import type { Logger } from 'pino';
import type { JsonObject } from '../message.ts';
import type { Ears, Joined } from './ears.ts';
import { isNothing } from './filter.ts';
import type { Implicit, ImplicitSessions } from './implicit-sessions.ts';
import { isObject } from './legacy-words.ts';
import type { Feed, FeedRequest, Filter } from './path.ts';

const FIRST_RETRY_MS = 250;
const MAX_RETRY_MS = 30_000;

export interface LegacyFeedDeps {
  readonly sessions: ImplicitSessions;
  readonly ears: Ears;
  readonly log: Logger;
}

/** What the upstream has declared that it will say. */
function offered(wanted: Filter, { leg }: Implicit): Filter {
  const capabilities = JSON.parse(leg.capabilities ?? '{}') as JsonObject;
  const has = (group: string, what: string): boolean => {
    const declared = capabilities[group];
    return isObject(declared) && declared[what] === true;
  };
  return {
    toolsListChanged: wanted.toolsListChanged && has('tools', 'listChanged'),
    promptsListChanged: wanted.promptsListChanged && has('prompts', 'listChanged'),
    resourcesListChanged: wanted.resourcesListChanged && has('resources', 'listChanged'),
    resourceSubscriptions: has('resources', 'subscribe') ? wanted.resourceSubscriptions : [],
  };
}

export function createLegacyFeed(
  { sessions, ears, log }: LegacyFeedDeps,
  request: FeedRequest,
): Feed {
  const { upstream, filter, emit, onGap } = request;
  let closed = false;
  let joined: Joined | undefined;
  let timer: NodeJS.Timeout | undefined;
  let retryMs = FIRST_RETRY_MS;
  let agree!: (filter: Filter) => void;
  const agreed = new Promise<Filter>((resolve) => {
    agree = resolve;
  });
  const credential = async () => (await request.credential())?.headers;

  async function start(missed: boolean): Promise<void> {
    const implicit = await sessions.open(request, upstream, await credential());
    const offer = offered(filter, implicit);
    if (closed || isNothing(offer)) {
      agree(offer);
      return;
    }
    const ear = ears.join(implicit, credential, { event: emit, gap: onGap, lasting: true });
    joined = ear;
    await ear.open;
    const subscribed = await Promise.all(
      offer.resourceSubscriptions.map(async (uri) => {
        try {
          await ear.subscribe(uri);
          return [uri];
        } catch (error) {
          log.info({ err: error, upstream: upstream.name }, 'a resource cannot be subscribed to');
          return [];
        }
      }),
    );
    agree({ ...offer, resourceSubscriptions: subscribed.flat() });
    if (missed) onGap();
  }

  function attempt(missed: boolean): void {
    start(missed).catch((error: unknown) => {
      if (closed) return;
      log.debug({ err: error, upstream: upstream.name }, 'an upstream cannot be listened to yet');
      agree(filter);
      timer = setTimeout(() => {
        attempt(true);
      }, retryMs);
      timer.unref();
      retryMs = Math.min(retryMs * 2, MAX_RETRY_MS);
    });
  }
  attempt(false);

  return {
    agreed,
    close() {
      closed = true;
      clearTimeout(timer);
      joined?.leave();
    },
  };
}
