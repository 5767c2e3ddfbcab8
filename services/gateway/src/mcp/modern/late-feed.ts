/**
 * A feed whose upstream has not yet said which era it speaks, because it is away or wants a credential first: tries
 * again with growing pauses until it does, and is then the feed of that era.
 */
import type { Logger } from 'pino';
import type { Feed, FeedRequest, Filter } from './path.ts';

const FIRST_RETRY_MS = 250;
const MAX_RETRY_MS = 30_000;

export function createLateFeed(
  { upstream, filter, onGap }: Pick<FeedRequest, 'upstream' | 'filter' | 'onGap'>,
  log: Logger,
  choose: () => Promise<Feed>,
): Feed {
  let closed = false;
  let feed: Feed | undefined;
  let timer: NodeJS.Timeout | undefined;
  let retryMs = FIRST_RETRY_MS;
  let agree!: (filter: Filter | Promise<Filter>) => void;
  const agreed = new Promise<Filter>((resolve) => {
    agree = resolve;
  });

  const attempt = async (missed: boolean): Promise<void> => {
    try {
      const chosen = await choose();
      if (closed) {
        chosen.close();
        return;
      }
      feed = chosen;
      agree(feed.agreed);
      if (!missed) return;
      await feed.agreed;
      onGap();
    } catch (error) {
      if (closed) return;
      log.debug({ err: error, upstream: upstream.name }, 'an upstream cannot be listened to yet');
      agree(filter);
      timer = setTimeout(() => {
        void attempt(true);
      }, retryMs);
      timer.unref();
      retryMs = Math.min(retryMs * 2, MAX_RETRY_MS);
    }
  };
  void attempt(false);

  return {
    agreed,
    close() {
      closed = true;
      clearTimeout(timer);
      feed?.close();
    },
  };
}
