/**
 * What one modern upstream says on its own, for one session whose listening stream this pod holds: a
 * `subscriptions/listen` there with everything that the session implies (lists that may change, resources that it
 * has subscribed to), replaced by another whenever that changes.
 *
 * Nothing is replayed in this revision, so an upstream that was away is taken to have changed.
 */
import type { Logger } from 'pino';
import type { Principal } from '@viaduct/shared/principal';
import type { Upstream } from '../../upstream/upstream.ts';
import type { Credentials } from '../credentials.ts';
import { parseMessage, type JsonObject, type RequestMessage } from '../message.ts';
import { admits, everythingIn, isNothing } from '../modern/filter.ts';
import { createModernFeed } from '../modern/modern-feed.ts';
import type { Feed, FeedRequest, Filter } from '../modern/path.ts';
import { capabilitiesOf, type Session, type UpstreamState } from '../sessions.ts';
import { ownRequest } from './requests.ts';
import type { ResourceSubscriptions } from './resource-subscriptions.ts';
import { withoutSubscription } from './responses.ts';

export interface ModernListenerDeps {
  readonly subscriptions: Pick<ResourceSubscriptions, 'all'>;
  readonly credentials: Pick<Credentials, 'peek'>;
  readonly log: Logger;
}

export interface ModernListenerInput {
  readonly session: Session;
  readonly principal: Principal;
  readonly upstream: Upstream;
  readonly leg: UpstreamState;
  /** A notification for the client's listening stream. */
  deliver(text: string, parsed: JsonObject): void;
}

export interface ModernListener {
  /** Resolves when the upstream has agreed to what the session wants now, or cannot be reached. */
  refresh(): Promise<void>;
  close(): void;
}

export function createModernListener(
  deps: ModernListenerDeps,
  input: ModernListenerInput,
): ModernListener {
  const { session, principal, upstream, leg, deliver } = input;
  const offered = offers(leg.capabilities);
  const message = describeClient(session);
  let feed: Feed | undefined;
  let closed = false;
  let filter: Filter = { ...offered.lists, resourceSubscriptions: [] };
  /** One change after the other; those that come meanwhile share the next. */
  let running: Promise<void> | undefined;
  let next: Promise<void> | undefined;

  const request = (wanted: Filter): FeedRequest => ({
    principal,
    requestId: '',
    message,
    envelope: {
      capabilities: capabilitiesOf(session),
      logLevel: undefined,
      progressToken: undefined,
    },
    upstream,
    filter: wanted,
    credential: () => deps.credentials.peek(principal, upstream),
    emit: (text, parsed) => {
      if (!closed && admits(wanted, parsed['method'], parsed['params'])) {
        deliver(withoutSubscription(text), parsed);
      }
    },
    onGap: () => {
      if (closed) return;
      for (const { method, uri } of everythingIn(wanted)) {
        const said = { jsonrpc: '2.0', method, ...(uri !== undefined && { params: { uri } }) };
        deliver(JSON.stringify(said), said);
      }
    },
  });

  async function listen(): Promise<void> {
    const uris = offered.subscribe ? await deps.subscriptions.all(session, upstream.name) : [];
    if (closed) return;
    filter = { ...offered.lists, resourceSubscriptions: uris };
    const before = feed;
    if (isNothing(filter)) {
      feed = undefined;
      before?.close();
      return;
    }
    feed = createModernFeed({ log: deps.log }, request(filter));
    await feed.agreed;
    // Only now: what happens in between is heard twice rather than not at all.
    before?.close();
  }

  function refresh(): Promise<void> {
    if (running === undefined) {
      running = listen().finally(() => {
        running = undefined;
      });
      return running;
    }
    next ??= running
      .catch(() => undefined)
      .then(() => {
        next = undefined;
        return refresh();
      });
    return next;
  }

  return {
    refresh,
    close() {
      closed = true;
      feed?.close();
    },
  };
}

interface Offer {
  readonly lists: Omit<Filter, 'resourceSubscriptions'>;
  readonly subscribe: boolean;
}

/** What the upstream has said that it tells. */
export function offers(capabilitiesText: string | undefined): Offer {
  const all = JSON.parse(capabilitiesText ?? '{}') as Record<string, JsonObject | undefined>;
  const changes = (name: string): boolean => all[name]?.['listChanged'] === true;
  return {
    lists: {
      toolsListChanged: changes('tools'),
      promptsListChanged: changes('prompts'),
      resourcesListChanged: changes('resources'),
    },
    subscribe: all['resources']?.['subscribe'] === true,
  };
}

/** A message whose `_meta` says who listens. */
function describeClient(session: Session): RequestMessage {
  const text = ownRequest(session, 'viaduct-listen', 'subscriptions/listen');
  return parseMessage(text, JSON.parse(text), { idText: '' }, undefined) as RequestMessage;
}
