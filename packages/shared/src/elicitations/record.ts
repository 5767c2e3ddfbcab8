/** Shape of an elicitation's record, and its way into and out of a Redis hash. Pure. */

export const STATES = [
  'created',
  'opened',
  'authorized',
  'exchanging',
  'completed',
  'declined',
  'cancelled',
  'failed',
  'expired',
] as const;
export type ElicitationState = (typeof STATES)[number];

const ENDED: ReadonlySet<ElicitationState> = new Set([
  'completed',
  'declined',
  'cancelled',
  'failed',
  'expired',
]);
export const isEnded = (state: ElicitationState): boolean => ENDED.has(state);

/** Why an elicitation ended as it did. Codes, so that pages and clients get words and logs get none of them. */
export type EndReason =
  /** The user said no here, or at the third party. */
  | 'denied_here'
  | 'denied_there'
  /** Nobody finished in time. */
  | 'too_late'
  /** The third party: not reached, refused us, did not know the code, answered nonsense, named another issuer. */
  | 'unavailable'
  | 'refused'
  | 'invalid_grant'
  | 'invalid_answer'
  | 'wrong_issuer'
  | 'third_party_error'
  /** The third party has dropped the client that it once registered for us; the next flow registers anew. */
  | 'client_dropped'
  /** A worker died with the code in its hands; it is not sent twice. */
  | 'interrupted'
  /** The connection is no longer configured. */
  | 'not_configured'
  /** The user disconnected meanwhile, or ended it from the connections page. */
  | 'withdrawn'
  /** What the user typed was refused by the check; also while the same link waits for another try. */
  | 'secret_refused';

export interface Elicitation {
  readonly id: string;
  readonly userId: string;
  /** Verified OAuth client that asked; '' when the user began on the connections page without one. */
  readonly clientId: string;
  /** What the client calls itself (`clientInfo`); its own word. */
  readonly clientName?: string;
  /** Absent for modern clients and for flows that begin on the connections page. */
  readonly sessionId?: string;
  readonly endpoint: string;
  readonly upstream: string;
  readonly connection: string;
  readonly mode: 'url' | 'form';
  /** Why this mode: what of the client's declaration decided. */
  readonly modeReason: string;
  readonly origin: 'gateway' | 'upstream';
  readonly message: string;
  /** Request that asked; the id under which an SRE finds all of it. */
  readonly requestId: string;
  /** What the client had declared when it was asked, as JSON text. */
  readonly capabilities: string;
  readonly state: ElicitationState;
  readonly reason?: EndReason;
  /** What the user did: `approve` or `deny` on the consent page. */
  readonly action?: 'approve' | 'deny';
  /** Which run of the job claimed the exchange. */
  readonly attempt?: string;
  /**
   * Sealed, until the exchange has been claimed: the answer of the third party's authorization endpoint, or what the
   * user typed.
   */
  readonly code?: string;
  /** How often what the user typed was refused; a number as text, as Redis has it. */
  readonly tries?: string;
  /** Scopes that an upstream asked for beyond those granted, separated by spaces. */
  readonly scopes?: string;
  /** Of the call that asked, so that everything that follows is one trace; only with traces on. */
  readonly traceparent?: string;
  /** How often others have opened the link, who and when last; a number as text, a user id, milliseconds as text. */
  readonly strangers?: string;
  readonly lastStranger?: string;
  readonly lastStrangerAtMs?: string;
  readonly createdAtMs: number;
  readonly expiresAtMs: number;
  readonly updatedAtMs: number;
  /** When each state was reached. */
  readonly at: Readonly<Partial<Record<ElicitationState, number>>>;
}

const NUMBERS = ['createdAtMs', 'expiresAtMs', 'updatedAtMs'] as const;
const OPTIONAL = [
  'clientName',
  'sessionId',
  'reason',
  'action',
  'attempt',
  'code',
  'tries',
  'scopes',
  'traceparent',
  'strangers',
  'lastStranger',
  'lastStrangerAtMs',
] as const;

/** Of the record's form. Members are only ever added; what this version would misread has another number. */
const VERSION = '1';

/** Fields and values for HSET. */
export function encodeRecord(record: Elicitation): (string | number)[] {
  const out: (string | number)[] = ['v', VERSION];
  for (const [name, value] of Object.entries(record)) {
    if (name === 'at') {
      for (const [state, ms] of Object.entries(record.at)) out.push(`at:${state}`, ms);
    } else if (value !== undefined) out.push(name, value as string | number);
  }
  return out;
}

/** The record of a HGETALL; undefined when there is none, or none that this version can read. */
export function decodeRecord(hash: Readonly<Record<string, string>>): Elicitation | undefined {
  const state = hash['state'] as ElicitationState | undefined;
  if (state === undefined || !STATES.includes(state)) return undefined;
  if ((hash['v'] ?? VERSION) !== VERSION) return undefined;
  const text = (name: string): string => hash[name] ?? '';
  const optional = Object.fromEntries(
    OPTIONAL.filter((name) => hash[name] !== undefined).map((name) => [name, hash[name]]),
  );
  const numbers = Object.fromEntries(NUMBERS.map((name) => [name, Number(hash[name] ?? 0)]));
  const at = Object.fromEntries(
    STATES.filter((name) => hash[`at:${name}`] !== undefined).map((name) => [
      name,
      Number(hash[`at:${name}`]),
    ]),
  );
  return {
    id: text('id'),
    userId: text('userId'),
    clientId: text('clientId'),
    endpoint: text('endpoint'),
    upstream: text('upstream'),
    connection: text('connection'),
    mode: text('mode') === 'form' ? 'form' : 'url',
    modeReason: text('modeReason'),
    origin: text('origin') === 'upstream' ? 'upstream' : 'gateway',
    message: text('message'),
    requestId: text('requestId'),
    capabilities: text('capabilities'),
    state,
    ...(numbers as Pick<Elicitation, (typeof NUMBERS)[number]>),
    ...(optional as Partial<Elicitation>),
    at,
  };
}

/** Fields and values as some replies give them, flat. */
export function pairsToHash(flat: readonly unknown[]): Record<string, string> {
  const out: Record<string, string> = {};
  for (let i = 0; i + 1 < flat.length; i += 2) out[String(flat[i])] = String(flat[i + 1]);
  return out;
}
