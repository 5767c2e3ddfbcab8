import { random } from './random.ts';

// What breaks, when and for how long: pure, and the same for the same seed.

/** What can break. One thing at a time, so that each has its own recovery time, or two of different kinds at once. */
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
  /** Another kind of thing that breaks while this one lasts. */
  readonly beside?: Planned;
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
  /** Each fault has another one beside it. */
  readonly pairs?: boolean;
}

/** Pods, workers, Redis with the way to it, and neighbours: two of one kind at once would only be one that is longer. */
function kindOf(fault: Fault): string {
  const [first] = fault.split('-') as [string];
  return first === 'network' || first === 'pubsub' ? 'redis' : first;
}

/** Every fault once in random order, then again, as long as there is time. */
export function plan({
  seed,
  lengthMs,
  faults = FAULTS,
  pauseMs = [1_500, 4_000],
  pairs = false,
}: PlanOptions): Planned[] {
  const chance = random(seed);
  const draw = (fault: Fault, atMs: number): Planned => ({
    atMs,
    fault,
    forMs: chance.between(...LENGTH_MS[fault]),
    target: chance.between(0, 999),
  });
  const planned: Planned[] = [];
  let atMs = chance.between(...pauseMs);
  for (;;) {
    for (const fault of chance.shuffle(faults)) {
      let next = draw(fault, atMs);
      if (pairs) {
        const others = faults.filter((one) => kindOf(one) !== kindOf(fault));
        const [other] = chance.shuffle(others);
        const besideMs = atMs + chance.between(0, next.forMs);
        if (other !== undefined) next = { ...next, beside: draw(other, besideMs) };
      }
      const endMs = Math.max(...[next, next.beside ?? next].map((one) => one.atMs + one.forMs));
      if (endMs > lengthMs) return planned;
      planned.push(next);
      atMs = endMs + chance.between(...pauseMs);
    }
  }
}
