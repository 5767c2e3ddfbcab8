import { setTimeout as pause } from 'node:timers/promises';

/**
 * Tests wait for what they need to be true, never for a length of time. `until` polls a condition and gives
 * its first truthy value; past `timeoutMs` (generous: it only bounds a failing run) it fails with `what`.
 */
export async function until<T>(
  what: string,
  condition: () => T | Promise<T>,
  { timeoutMs = 10_000, everyMs = 20 }: { timeoutMs?: number; everyMs?: number } = {},
): Promise<NonNullable<T>> {
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    const value = await condition();
    if (value !== undefined && value !== null && value !== false && value !== 0) return value;
    if (performance.now() > deadline) throw new Error(`not within ${timeoutMs} ms: ${what}`);
    await pause(everyMs);
  }
}

/**
 * For what must *not* happen: holds the condition under watch for a while and fails as soon as it is broken.
 * The length bounds how late an unwanted event may come and still be caught; no test passes because of it.
 */
export async function never(
  what: string,
  broken: () => unknown,
  { forMs = 400, everyMs = 20 }: { forMs?: number; everyMs?: number } = {},
): Promise<void> {
  const end = performance.now() + forMs;
  while (performance.now() < end) {
    if (await broken()) throw new Error(`happened after all: ${what}`);
    await pause(everyMs);
  }
}

/** Stubs stop at a gate until the test opens it; `arrived` says that somebody stands there. */
export class Gate {
  arrived = 0;
  readonly #opened: Promise<void>;
  #open!: () => void;

  constructor() {
    this.#opened = new Promise((resolve) => (this.#open = resolve));
  }

  pass(): Promise<void> {
    this.arrived += 1;
    return this.#opened;
  }

  open(): void {
    this.#open();
  }
}
