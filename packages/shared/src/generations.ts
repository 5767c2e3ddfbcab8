/**
 * One process, one configuration after another. A changed file makes a new generation of everything that was built
 * from the old one; it takes over once it works, and the old one leaves as a pod does: its streams end so that
 * their clients come back, what runs goes on to its end, and the deadline is that of a drain.
 *
 * Promises: somebody is always in charge; a generation that does not come up is stopped again and changes nothing.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from 'pino';

export interface Generation {
  /** Resolves once it can do its work. */
  start(): Promise<void>;
  /** False while Redis does not answer. */
  isUp(): boolean;
  /** Takes nothing more, and lets what runs go on. */
  drain(): void;
  /** What still runs. */
  running(): number;
  stop(): Promise<void>;
  /** How long what runs may take after `drain`. */
  readonly drainSeconds: number;
}

const POLL_MS = 50;
const COMES_UP_WITHIN_MS = 15_000;

export class Generations<G extends Generation> {
  readonly #log: Logger;
  readonly #leaving = new Set<Promise<void>>();
  #current: G;

  constructor(first: G, { log }: { log: Logger }) {
    this.#current = first;
    this.#log = log;
  }

  get current(): G {
    return this.#current;
  }

  /** @throws when the next one does not come up; the current one then stays */
  async replace(next: G): Promise<void> {
    try {
      await Promise.race([next.start(), tooLate(COMES_UP_WITHIN_MS)]);
      const deadline = Date.now() + COMES_UP_WITHIN_MS;
      while (!next.isUp()) {
        if (Date.now() > deadline) throw new Error('redis is not reachable');
        await delay(POLL_MS);
      }
    } catch (error) {
      await next.stop();
      throw error;
    }
    const old = this.#current;
    this.#current = next;
    const left = this.#leave(old)
      .catch((error: unknown) => {
        this.#log.error({ err: error }, 'the generation before could not be stopped');
      })
      .finally(() => this.#leaving.delete(left));
    this.#leaving.add(left);
  }

  /** The last one leaves, and whoever is still leaving. */
  async end(): Promise<void> {
    await Promise.all([this.#leave(this.#current), ...this.#leaving]);
  }

  async #leave(generation: G): Promise<void> {
    const deadline = Date.now() + generation.drainSeconds * 1000;
    generation.drain();
    while (generation.running() > 0 && Date.now() < deadline) await delay(POLL_MS);
    await generation.stop();
  }
}

async function tooLate(ms: number): Promise<never> {
  await delay(ms, undefined, { ref: false });
  throw new Error('it did not start in time');
}
