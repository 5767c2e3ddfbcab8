/** The path to an upstream of the other era while nothing translates: every request is refused in words. */
import { noBridge } from '../../upstream/upstream.ts';
import { NOTHING } from './filter.ts';
import type { Path } from './path.ts';

export function createUnbridged(): Path {
  return {
    request: ({ upstream }) => Promise.reject(noBridge(upstream, 'modern')),
    page: ({ upstream }) => Promise.reject(noBridge(upstream, 'modern')),
    describe: ({ upstream }) => Promise.reject(noBridge(upstream, 'modern')),
    feed: () => ({ agreed: Promise.resolve(NOTHING), close: () => undefined }),
  };
}
