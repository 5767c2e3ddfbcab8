/**
 * Keeps calls away from an upstream that lets them wait in vain: after a few slow failures to reach it they fail at
 * once, and one probe at a time looks whether it is back. Pure but for the clock.
 *
 * Only slow failures to connect count. One that is refused at once costs nobody anything, and what an upstream
 * answers, however bad, is an answer.
 */
const FAILURES_TO_OPEN = 3;
const FIRST_PAUSE_MS = 500;
const MAX_PAUSE_MS = 5_000;
const SLOW_MS = 250;

export class Circuit {
  #failures = 0;
  #pauseMs = FIRST_PAUSE_MS;
  #openUntil = 0;
  #probing = false;
  #lostAtMs: number | undefined;
  readonly #clock: () => number;

  constructor(clock: () => number = Date.now) {
    this.#clock = clock;
  }

  /** May a request go out now? While open, one at a time is let through as a probe. */
  admit(): boolean {
    if (this.#failures < FAILURES_TO_OPEN) return true;
    if (this.#probing || this.#clock() < this.#openUntil) return false;
    this.#probing = true;
    return true;
  }

  /** Calls fail at once, but for one probe at a time. */
  get open(): boolean {
    return this.#failures >= FAILURES_TO_OPEN;
  }

  /** Since when every attempt to reach it has failed, quickly or slowly; undefined while it can be reached. */
  get lostAtMs(): number | undefined {
    return this.#lostAtMs;
  }

  reached(): void {
    this.#lostAtMs = undefined;
    this.#failures = 0;
    this.#pauseMs = FIRST_PAUSE_MS;
    this.#probing = false;
  }

  failed(afterMs: number): void {
    this.#probing = false;
    this.#lostAtMs ??= this.#clock();
    if (afterMs < SLOW_MS) return;
    this.#failures++;
    if (this.#failures < FAILURES_TO_OPEN) return;
    this.#openUntil = this.#clock() + this.#pauseMs;
    this.#pauseMs = Math.min(this.#pauseMs * 2, MAX_PAUSE_MS);
  }
}
