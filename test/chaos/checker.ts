import type { CallEnd, ClientLog, Entry } from './journal.ts';
import type { Fault } from './schedule.ts';

// Reads what the clients and the upstreams wrote down, and says what was promised and not kept. Pure: nothing here
// knows how the run was made.

export interface FaultRecord {
  readonly fault: Fault;
  readonly target: string;
  readonly atMs: number;
  /** When the harness had put things right again: process started, network mended. */
  readonly healedMs: number;
  /** The first request that each pod concerned, and the balancer, answered after that; undefined: never. */
  readonly servedMs?: number | undefined;
  /** From the fault on: how long the balancer's address gave no good answer. */
  readonly awayMs?: number | undefined;
}

export interface Execution {
  readonly nonce: string;
  readonly upstream: string;
  readonly atMs: number;
}

export interface Evidence {
  readonly clients: readonly ClientLog[];
  /** Each run of a tool, as the upstreams saw it. */
  readonly executions: readonly Execution[];
  readonly faults: readonly FaultRecord[];
  /** Replication is asynchronous: the last writes before a failover may be gone, and sessions with them. */
  readonly failsOver: boolean;
}

export interface Finding {
  readonly rule: string;
  readonly client: string;
  readonly detail: string;
}

/**
 * A connection cannot outlive the process at its other end, and a balancer that checks readiness, as ours does, ends
 * those to a pod that says it cannot serve. Without Redis all pods say so, and the balancer has none.
 */
const UNREADIES_PODS: ReadonlySet<Fault> = new Set([
  'redis-kill',
  'redis-freeze',
  'redis-restart',
  'network-drop',
  'network-reset',
  'pod-kill',
  'pod-freeze',
  'pod-restart',
]);
const FAILOVERS: ReadonlySet<Fault> = new Set(['redis-kill', 'redis-freeze', 'redis-restart', 'network-drop']); // prettier-ignore
const MARGIN_MS = 3_000;

type Rule = (evidence: Evidence) => Finding[];

const finding = (rule: string, client: string, detail: string): Finding => ({
  rule,
  client,
  detail,
});

function during(
  faults: readonly FaultRecord[],
  kinds: ReadonlySet<Fault>,
  fromMs: number,
  toMs: number,
): boolean {
  return faults.some(
    ({ fault, atMs, healedMs, servedMs }) =>
      kinds.has(fault) &&
      atMs - 100 <= toMs &&
      Math.max(healedMs, servedMs ?? healedMs) + MARGIN_MS >= fromMs,
  );
}

const of = <K extends Entry['kind']>(
  { entries }: ClientLog,
  kind: K,
): Extract<Entry, { kind: K }>[] =>
  entries.filter((entry): entry is Extract<Entry, { kind: K }> => entry.kind === kind);

/** Answered once, or failed with an error that explains itself; a broken connection only where something broke it. */
export const answeredOnce: Rule = ({ clients, faults, failsOver }) =>
  clients.flatMap((log) => {
    const ends = Map.groupBy(of(log, 'end'), ({ nonce }) => nonce);
    return of(log, 'call').flatMap((call) => {
      const [end, ...more] = ends.get(call.nonce) ?? [];
      if (end === undefined) return [finding('answered', log.client, `${call.nonce}: no end`)];
      if (more.length > 0)
        return [finding('answered', log.client, `${call.nonce}: ${more.length + 1} ends`)];
      // What was written just before a failover may be gone, and the record of a call's stream with it.
      const forgotten = failsOver && during(faults, FAILOVERS, call.atMs, call.atMs + 5_000);
      const fault =
        end.ending === 'hung' && forgotten ? undefined : faultOf(end, call.atMs, faults);
      return fault === undefined ? [] : [finding('answered', log.client, `${call.nonce} (${call.tool}): ${fault}`)]; // prettier-ignore
    });
  });

function faultOf(end: CallEnd, fromMs: number, faults: readonly FaultRecord[]): string | undefined {
  const { ending, code, message, reason, atMs } = end;
  const words = JSON.stringify(end);
  switch (ending) {
    case 'result':
      return end.said === end.nonce ? undefined : `the result of another call: ${words}`;
    case 'error':
      if (typeof code !== 'number' || !message || reason === 'internal' || reason === undefined) {
        return `not explained: ${words}`;
      }
      return (end.status ?? 200) >= 500 && end.status !== 503 ? `not explained: ${words}` : undefined; // prettier-ignore
    case 'balancer':
      return during(faults, UNREADIES_PODS, fromMs, atMs)
        ? undefined
        : `the balancer had no pod, for no reason: ${words}`;
    case 'broken':
      return during(faults, UNREADIES_PODS, fromMs, atMs)
        ? undefined
        : `the connection broke, for no reason: ${words}`;
    case 'hung':
      return `no answer: ${words}`;
    case 'withdrawn':
      return undefined;
  }
}

/** No tool call runs twice, whatever broke. */
export const neverTwice: Rule = ({ executions }) =>
  [...Map.groupBy(executions, ({ nonce }) => nonce)]
    .filter(([, runs]) => runs.length > 1)
    .map(([nonce, runs]) =>
      finding('once', runs[0]!.upstream, `${nonce} ran ${runs.length} times`),
    );

/** A result is of a call that ran; what a client was told it was told of itself. */
export const nothingForeign: Rule = ({ clients, executions }) => {
  const ran = new Set(executions.map(({ nonce }) => nonce));
  return clients.flatMap((log) => {
    const own = new Set(of(log, 'call').map(({ nonce }) => nonce));
    const asked = new Set(of(log, 'asked').map(({ elicitationId }) => elicitationId));
    const findings: Finding[] = [];
    const foreign = (detail: string): void => {
      findings.push(finding('foreign', log.client, detail));
    };
    for (const { said, nonce, ending } of of(log, 'end')) {
      if (said !== undefined && !own.has(said)) foreign(`heard the result of ${said}`);
      if (ending === 'result' && !ran.has(nonce)) foreign(`${nonce} has a result and never ran`);
    }
    for (const { progressToken, elicitationId } of of(log, 'heard')) {
      if (progressToken !== undefined && !own.has(progressToken))
        foreign(`progress of ${progressToken}`);
      if (elicitationId !== undefined && !asked.has(elicitationId)) foreign(`the end of ${elicitationId}`);
    }
    return findings;
  });
}; // prettier-ignore

const COMPLETE = 'notifications/elicitation/complete';

/** Every completed flow of a client with a session is told once; one that has not completed, never. */
export const toldOnce: Rule = ({ clients, faults, failsOver }) =>
  clients
    .filter(({ era }) => era === 'legacy')
    .flatMap((log) => {
      const told = Map.groupBy(
        of(log, 'heard').filter(({ method }) => method === COMPLETE),
        ({ elicitationId }) => elicitationId,
      );
      const lost = of(log, 'session').filter(({ what }) => what === 'lost');
      const flows = of(log, 'flow');
      const findings: Finding[] = [];
      for (const { elicitationId, state, listening, atMs } of flows) {
        const times = told.get(elicitationId)?.length ?? 0;
        const asked = of(log, 'asked').find((one) => one.elicitationId === elicitationId);
        // A session that was lost between the question and the end had nobody to tell.
        const gone = lost.some((one) => one.atMs >= (asked?.atMs ?? 0) && one.atMs <= atMs);
        const excused = !listening || gone || (failsOver && during(faults, FAILOVERS, asked?.atMs ?? 0, atMs)); // prettier-ignore
        if (state === 'completed' && times === 0 && !excused)
          findings.push(finding('told', log.client, `${elicitationId} completed, and nobody said so`)); // prettier-ignore
        if (times > 1) findings.push(finding('told', log.client, `${elicitationId} told ${times} times`)); // prettier-ignore
        if (times > 0 && state !== 'completed')
          findings.push(finding('told', log.client, `${elicitationId} is ${state}, and was told as completed`)); // prettier-ignore
      }
      return findings;
    });

/** A credential that was once there is there at the end. */
export const credentialsKept: Rule = ({ clients }) =>
  clients.flatMap((log) =>
    of(log, 'credential')
      .filter(({ works }) => !works)
      .map(({ user, detail }) => finding('credential', log.client, `of ${user}: ${detail}`)),
  );

/** A session is lost only where the store may lose writes. */
export const sessionsKept: Rule = ({ clients, faults, failsOver }) =>
  clients.flatMap((log) =>
    of(log, 'session')
      .filter(
        ({ what, atMs }) =>
          what === 'lost' && !(failsOver && during(faults, FAILOVERS, atMs - 10_000, atMs)),
      ) // prettier-ignore
      .map(({ atMs }) => finding('session', log.client, `lost at ${atMs}`)),
  );

/** Never 401 or 404 for a good token and session, never a 500, and 503 within the client's patience. */
export const requestsExplained: Rule = ({ clients, faults }) =>
  clients.flatMap((log) =>
    of(log, 'request').flatMap((entry) => {
      const { what, ending, status, reason, atMs, tookMs } = entry;
      const bad =
        ending === 'hung' ||
        status === 401 ||
        (status >= 500 && ending !== 'balancer' && status !== 503) ||
        reason === 'internal' ||
        (ending === 'broken' && !during(faults, UNREADIES_PODS, atMs - tookMs, atMs)) ||
        (ending === 'balancer' && !during(faults, UNREADIES_PODS, atMs - tookMs, atMs));
      return bad ? [finding('request', log.client, `${what}: ${JSON.stringify(entry)}`)] : [];
    }),
  );

/** A clock that is off by seconds is forgiven, one that is off by minutes is not. */
export const skewJudged: Rule = ({ clients }) =>
  clients.flatMap((log) =>
    of(log, 'skewed')
      .filter(({ accepted, status }) => (accepted ? status === 401 : status < 400))
      .map(({ offBy, status }) => finding('skew', log.client, `${offBy}: ${status}`)),
  );

/** Each fault was got over: every pod concerned answered again. */
export const recovered: Rule = ({ faults }) =>
  faults
    .filter(({ servedMs }) => servedMs === undefined)
    .map(({ fault, target, atMs }) => finding('recovered', target, `${fault} at ${atMs}: never`));

export const RULES: Readonly<Record<string, Rule>> = {
  answeredOnce,
  neverTwice,
  nothingForeign,
  toldOnce,
  credentialsKept,
  sessionsKept,
  requestsExplained,
  skewJudged,
  recovered,
};

export const check = (evidence: Evidence): Finding[] =>
  Object.values(RULES).flatMap((rule) => rule(evidence));
