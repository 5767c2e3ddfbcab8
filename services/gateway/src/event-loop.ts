/**
 * Sheds new requests while the event loop is late, so that what has begun (streams, running calls, health) goes on in
 * time and the balancer's other pods take over. The measure is the median delay of a second, twice in a row: one
 * pause, of the collector or of the whole machine, sheds nothing. The share that is shed doubles each second that is too slow and
 * halves each second that is not, so it settles where the loop keeps up instead of swinging between all and nothing.
 */
import { monitorEventLoopDelay } from 'node:perf_hooks';

const WINDOW_MS = 1_000;
const RESOLUTION_MS = 20;
const FIRST_SHARE = 1 / 8;

export interface EventLoop {
  /** Is this request one of those that are shed now? */
  sheds(): boolean;
  stop(): void;
}

/** @param maxDelayMs 0 never sheds */
export function watchEventLoop(maxDelayMs: number): EventLoop {
  if (maxDelayMs === 0) return { sheds: () => false, stop: () => undefined };
  const delays = monitorEventLoopDelay({ resolution: RESOLUTION_MS });
  delays.enable();
  let share = 0;
  let wasLate = false;
  const timer = setInterval(() => {
    // Node counts from the timer's due time on, the resolution included.
    const medianMs = delays.percentile(50) / 1e6 - RESOLUTION_MS;
    delays.reset();
    const late = medianMs > maxDelayMs;
    share = nextShare(share, late && wasLate);
    wasLate = late;
  }, WINDOW_MS).unref();
  return {
    sheds: () => share > 0 && Math.random() < share,
    stop() {
      clearInterval(timer);
      delays.disable();
    },
  };
}

/** Which part of new requests is shed in the next second. */
export function nextShare(share: number, late: boolean): number {
  if (late) return Math.min(1, share * 2 || FIRST_SHARE);
  return share / 2 < FIRST_SHARE ? 0 : share / 2;
}
