import { random } from './random.ts';

// What breaks, when and for how long: pure, and the same for the same seed.

/** One at a time, so that each has its own recovery time; what lies or dawdles outside goes on beside them. */
export const FAULTS = [
  'pod-kill',
  'pod-freeze',
  'pod-restart',
  'worker-kill',
  'worker-freeze',
  'worker-restart',
  'redis-kill',
  'redis-freeze',
  'redis-restart',
  'pubsub-kill',
  'network-drop',
  'network-reset',
  'upstream-slow',
  'upstream-lies',
  'party-slow',
  'party-lies',
] as const;

export type Fault = (typeof FAULTS)[number];

export interface Planned {
  /** From the start of the run. */
  readonly atMs: number;
  readonly fault: Fault;
  /** Which pod or worker, as a number to take modulo how many there are. */
  readonly target: number;
  readonly forMs: number;
}

const LENGTH_MS: Readonly<Record<Fault, readonly [number, number]>> = {
  'pod-kill': [300, 3_000],
  'pod-freeze': [500, 5_000],
  'pod-restart': [0, 0],
  'worker-kill': [300, 3_000],
  'worker-freeze': [1_000, 8_000],
  'worker-restart': [0, 0],
  'redis-kill': [200, 2_500],
  'redis-freeze': [500, 4_000],
  'redis-restart': [0, 500],
  'pubsub-kill': [1_000, 3_000],
  'network-drop': [1_000, 4_000],
  'network-reset': [0, 500],
  'upstream-slow': [500, 2_000],
  'upstream-lies': [500, 2_000],
  'party-slow': [500, 2_000],
  'party-lies': [500, 2_000],
};

export interface PlanOptions {
  readonly seed: number;
  readonly lengthMs: number;
  readonly faults?: readonly Fault[];
  /** Quiet time between the end of one fault and the next. */
  readonly pauseMs?: readonly [number, number];
}

/** Every fault once in random order, then again, as long as there is time. */
export function plan({
  seed,
  lengthMs,
  faults = FAULTS,
  pauseMs = [1_500, 4_000],
}: PlanOptions): Planned[] {
  const chance = random(seed);
  const planned: Planned[] = [];
  let atMs = chance.between(...pauseMs);
  for (;;) {
    for (const fault of chance.shuffle(faults)) {
      const forMs = chance.between(...LENGTH_MS[fault]);
      if (atMs + forMs > lengthMs) return planned;
      planned.push({ atMs, fault, target: chance.between(0, 999), forMs });
      atMs += forMs + chance.between(...pauseMs);
    }
  }
}
