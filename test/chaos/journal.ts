import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

// What each client writes down while it works, and what the checker reads afterwards. Times are milliseconds of one
// clock, from the start of the run.

export type Ending =
  /** A result of the tool, with the nonce that it carried. */
  | 'result'
  /** A JSON-RPC error that says what happened. */
  | 'error'
  /** An HTTP answer of the balancer's own: no pod took the request. */
  | 'balancer'
  /** The connection broke before an answer, and there was nothing to resume. */
  | 'broken'
  /** No answer in the time that a client waits. */
  | 'hung'
  /** The client itself took the call back. */
  | 'withdrawn';

export interface CallEnd {
  readonly kind: 'end';
  readonly atMs: number;
  readonly nonce: string;
  readonly ending: Ending;
  readonly status?: number | undefined;
  readonly code?: number | undefined;
  readonly reason?: string | undefined;
  readonly message?: string | undefined;
  readonly requestId?: string | undefined;
  /** In the result. */
  readonly said?: string | undefined;
}

export type Entry = { readonly atMs: number } & (
  | { readonly kind: 'call'; readonly nonce: string; readonly tool: string }
  | CallEnd
  /** One message on any of the client's streams. */
  | {
      readonly kind: 'heard';
      readonly method?: string | undefined;
      /** Of a response, as JSON. */
      readonly id?: string | undefined;
      readonly elicitationId?: string | undefined;
      readonly progressToken?: string | undefined;
    }
  /** A request other than a tool call was answered; only what must not be is looked at. */
  | { readonly kind: 'request'; readonly what: string; readonly ending: Ending; readonly status: number; readonly code?: number; readonly reason?: string; readonly tookMs: number }
  /** A token that is off by so many seconds. */
  | { readonly kind: 'skewed'; readonly offBy: string; readonly status: number; readonly accepted: boolean }
  | { readonly kind: 'session'; readonly what: 'begun' | 'ended' | 'lost' }
  | { readonly kind: 'asked'; readonly elicitationId: string; readonly user: string }
  | { readonly kind: 'flow'; readonly elicitationId: string; readonly state: string; readonly listening: boolean }
  /** Whether the credential of a completed flow still serves, at the very end. */
  | { readonly kind: 'credential'; readonly user: string; readonly works: boolean; readonly detail: string }
); // prettier-ignore

type WithoutTime<T> = T extends unknown ? Omit<T, 'atMs'> : never;
export type NewEntry = WithoutTime<Entry>;

export interface ClientLog {
  readonly client: string;
  readonly era: 'legacy' | 'modern';
  readonly entries: readonly Entry[];
}

/** One client's own log. */
export class Journal {
  readonly client: string;
  readonly era: 'legacy' | 'modern';
  readonly entries: Entry[] = [];
  readonly #now: () => number;

  constructor(client: string, era: 'legacy' | 'modern', now: () => number) {
    this.client = client;
    this.era = era;
    this.#now = now;
  }

  write(entry: NewEntry): void {
    this.entries.push({ atMs: Math.round(this.#now()), ...entry });
  }
}

export function saveLogs(folder: string, journals: readonly Journal[]): void {
  mkdirSync(folder, { recursive: true });
  // Those of an earlier run would be read as this one's.
  for (const { file } of logsIn(folder)) rmSync(join(folder, file));
  for (const { client, era, entries } of journals) {
    const lines = entries.map((entry) => JSON.stringify(entry));
    writeFileSync(join(folder, `${client}.${era}.jsonl`), lines.join('\n'));
  }
}

const logsIn = (folder: string): { file: string; client: string; era: ClientLog['era'] }[] =>
  readdirSync(folder)
    .map((file) => /^(.*)\.(legacy|modern)\.jsonl$/.exec(file))
    .filter((match) => match !== null)
    .map(([file, client, era]) => ({ file, client: client!, era: era as ClientLog['era'] }));

export const readLogs = (folder: string): ClientLog[] =>
  logsIn(folder).map(({ file, client, era }) => ({
    client,
    era,
    entries: readFileSync(join(folder, file), 'utf8')
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line) as Entry),
  }));
