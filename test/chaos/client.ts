import { setTimeout as pause } from 'node:timers/promises';
import type { EventStream, StreamEvent } from '../support/event-stream.ts';
import type { Message } from '../support/net.ts';
import { judgeFailure, type Judged } from './answers.ts';
import type { Journal } from './journal.ts';
import type { Random } from './random.ts';
import type { ChaosWorld } from './world.ts';

// What clients of both revisions have in common: they write down what they send and hear, and never send a call twice.

export const WAIT_MS = 60_000;
const HOUR_MS = 3_600_000;

export interface ChaosClient {
  readonly journal: Journal;
  /** Works until `done`, and finishes what it has begun. */
  run(done: () => boolean): Promise<void>;
}

export interface ClientInput {
  readonly name: string;
  readonly at: ChaosWorld;
  readonly chance: Random;
  readonly journal: Journal;
  /** One person for all sessions, who disconnects after each: what is kept of people then does not grow. */
  readonly samePerson?: boolean;
  /** Breathes so many times longer. */
  readonly leisure?: number;
}

/** Every event of a stream, in order, until the stream ends or `take` has seen enough. */
export async function readStream(
  stream: EventStream,
  take: (event: StreamEvent) => Promise<boolean> | boolean,
  withinMs = HOUR_MS,
): Promise<'enough' | 'ended'> {
  const deadline = performance.now() + withinMs;
  for (let i = 0; ; i++) {
    let event: StreamEvent;
    try {
      event = await stream.event('the next event', (one) => one === stream.events[i], Math.max(1, deadline - performance.now())); // prettier-ignore
    } catch (error) {
      if (judgeFailure(error).ending === 'hung') throw error;
      return 'ended';
    }
    if (await take(event)) return 'enough';
  }
}

/** What a message says that must be one's own. */
export function hear(journal: Journal, message: Message | undefined): void {
  if (message === undefined) return;
  const { method, id, params } = message;
  const text = (value: unknown): string | undefined =>
    typeof value === 'string' ? value : undefined;
  journal.write({
    kind: 'heard',
    method,
    id: id === undefined ? undefined : JSON.stringify(id),
    elicitationId: method === 'notifications/elicitation/complete' ? text(params?.['elicitationId']) : undefined,
    progressToken: method === 'notifications/progress' ? text(params?.['progressToken']) : undefined,
  });
} // prettier-ignore

/** Calls whose answers are waited for, one after the other, each with a nonce that nobody else has. */
export class Notebook {
  readonly #journal: Journal;
  readonly #name: string;
  #serial = 0;

  constructor(journal: Journal, name: string) {
    this.#journal = journal;
    this.#name = name;
  }

  begin(tool: string): string {
    const nonce = `${this.#name}.${++this.#serial}`;
    this.#journal.write({ kind: 'call', nonce, tool });
    return nonce;
  }

  end(nonce: string, judged: Judged): Judged {
    this.#journal.write({ kind: 'end', nonce, ...judged });
    return judged;
  }
}

/** People and programs are not in step. */
export const breathe = ({ chance, leisure = 1 }: ClientInput): Promise<void> =>
  pause(chance.between(50, 400) * leisure);
