/**
 * Requests that wait for the recorded end of an elicitation. The record's end nudges the pods that watch it, so a
 * waiting request costs one timer and no polling; what a lost nudge misses is looked up when the subscription is
 * back.
 */
import type { Nudge } from '@viaduct/shared/event-bus';
import { isEnded, type Elicitation, type Elicitations } from '@viaduct/shared/elicitations';
import type { Reply } from './reply.ts';

export class Waiting {
  readonly #elicitations: Pick<Elicitations, 'watch'>;
  readonly #podId: string;
  readonly #now: () => number;
  readonly #waiters = new Map<string, Set<() => void>>();
  #released = false;

  constructor(deps: {
    readonly elicitations: Pick<Elicitations, 'watch'>;
    readonly podId: string;
    readonly now?: () => number;
  }) {
    this.#elicitations = deps.elicitations;
    this.#podId = deps.podId;
    this.#now = deps.now ?? Date.now;
  }

  /** The record as it is when it ends, when the time is over, or when the client goes away. */
  async untilEnded(
    userId: string,
    id: string,
    waitMs: number,
    reply: Reply,
  ): Promise<Elicitation | undefined> {
    const deadline = this.#now() + waitMs;
    for (;;) {
      // Listening begins before the record is read, so that no end falls between the two.
      const nudged = this.#next(`${userId} ${id}`, reply);
      let record: Elicitation | undefined;
      try {
        record = await this.#elicitations.watch(userId, id, this.#podId);
      } catch (error) {
        nudged.cancel();
        throw error;
      }
      const left = deadline - this.#now();
      if (
        record === undefined ||
        isEnded(record.state) ||
        left <= 0 ||
        reply.gone ||
        this.#released
      ) {
        nudged.cancel();
        return record;
      }
      await nudged.within(left);
    }
  }

  #next(key: string, reply: Reply): { cancel: () => void; within(ms: number): Promise<void> } {
    let wake!: () => void;
    const woken = new Promise<void>((resolve) => {
      wake = resolve;
    });
    const waiters = this.#waiters.get(key) ?? new Set<() => void>();
    this.#waiters.set(key, waiters);
    waiters.add(wake);
    const offGone = reply.onGone(wake);
    const cancel = (): void => {
      offGone();
      waiters.delete(wake);
      if (waiters.size === 0 && this.#waiters.get(key) === waiters) this.#waiters.delete(key);
    };
    return {
      cancel,
      async within(ms) {
        const timer = setTimeout(wake, ms);
        await woken;
        clearTimeout(timer);
        cancel();
      },
    };
  }

  nudge({ kind, userId, id }: Nudge): void {
    if (kind === 'elicitation') this.#wake(`${userId} ${id}`);
  }

  /** The subscription was away: an end may have been missed. */
  gap(): void {
    for (const key of [...this.#waiters.keys()]) this.#wake(key);
  }

  /** This pod stops: whoever waits is answered with what is known, and asks again elsewhere. */
  release(): void {
    this.#released = true;
    this.gap();
  }

  #wake(key: string): void {
    for (const wake of [...(this.#waiters.get(key) ?? [])]) wake();
  }
}
