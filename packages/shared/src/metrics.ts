/**
 * Every instrument of Viaduct (design, section 8), on a registry of its own, so that two gateways in one test
 * process don't share numbers. Each process exports what it does itself.
 *
 * Labels come from bounded sets only: methods through `methodLabel`, upstreams and connections from the
 * configuration, the rest from unions in this project. Nothing that a caller invents becomes a label.
 */
import {
  collectDefaultMetrics,
  Gauge as PromGauge,
  Registry,
  type RegistryContentType,
} from 'prom-client';
import {
  createCounter,
  createHistogram,
  type Counter,
  type Histogram,
  type Labels,
} from './metrics/instruments.ts';

export type { Counter, Histogram } from './metrics/instruments.ts';

export interface Gauge<L extends string> {
  set(labels: Labels<L>, value: number): void;
  inc(labels: Labels<L>, by?: number): void;
  dec(labels: Labels<L>, by?: number): void;
}

export interface PlainGauge {
  set(value: number): void;
  inc(by?: number): void;
  dec(by?: number): void;
}

export interface Metrics {
  readonly sessionsActive: PlainGauge;
  readonly streamsOpen: Gauge<'era'>;
  readonly requests: Counter<'era' | 'method' | 'upstream' | 'outcome'>;
  readonly requestDuration: Histogram<'era' | 'method'>;
  readonly upstreamDuration: Histogram<'upstream' | 'outcome'>;
  /** Time of a request that is ours: total minus what the upstream took. */
  readonly gatewayOverhead: Histogram<never>;
  readonly elicitations: Counter<'mode' | 'origin' | 'outcome'>;
  readonly elicitationsPending: Gauge<'mode'>;
  readonly elicitationDuration: Histogram<'mode'>;
  readonly capabilityRefusals: Counter<'mode'>;
  /** route: local, remote or stored. */
  readonly busEvents: Counter<'kind' | 'route'>;
  /** From the append to the log until the write to the socket. */
  readonly busDelivery: Histogram<never>;
  readonly replayedEvents: Counter<never>;
  readonly suspendedCalls: PlainGauge;
  readonly connections: Counter<'connection' | 'outcome'>;
  readonly tokenRefreshes: Counter<'connection' | 'outcome'>;
  /** outcome: resealed, kept (changed meanwhile) or unreadable (its key is gone). */
  readonly resealed: Counter<'outcome'>;
  readonly rateLimited: Counter<'limit'>;
  readonly authFailures: Counter<'reason'>;
  readonly scopeChallenges: Counter<never>;
  readonly securityEvents: Counter<'type'>;
  readonly jobs: Counter<'queue' | 'outcome'>;
  readonly jobDuration: Histogram<'queue'>;
  readonly queueDepth: Gauge<'queue' | 'state'>;
  readonly redisCommandDuration: Histogram<never>;
  /** 1 while Redis answers, 0 while it does not. */
  readonly redisUp: PlainGauge;
  /** 0 starting, 1 ready, 2 draining, 3 stopped. */
  readonly drainState: PlainGauge;

  /** What is there, for docs/metrics.md and for checking queries. Without Node's and the process's own. */
  describe(): readonly MetricDescription[];

  /** Runs before each scrape: for gauges that are read from something else (queues, maps of sockets). */
  onScrape(read: () => void | Promise<void>): void;
  /** The same instruments; `stop` ends what was registered with `onScrape` through it. */
  generation(): { readonly metrics: Metrics; stop(): void };
  /** Prometheus text format. A failing `onScrape` reader leaves its gauges as they were. */
  text(): Promise<string>;
  readonly contentType: string;
  /** The same as OpenMetrics, which alone has exemplars. */
  openMetrics(): Promise<{ readonly text: string; readonly contentType: string }>;
}

export interface MetricDescription {
  readonly name: string;
  readonly type: 'counter' | 'gauge' | 'histogram';
  readonly help: string;
  readonly labels: readonly string[];
}

/** Value of `drain_state` by lifecycle state. */
export const DRAIN_STATE = { starting: 0, ready: 1, draining: 2, stopped: 3 } as const;

/** Methods of every MCP revision that the gateway speaks; anything else is labelled `other`. */
export const KNOWN_METHODS: ReadonlySet<string> = new Set([
  'initialize',
  'ping',
  'server/discover',
  'tools/list',
  'tools/call',
  'prompts/list',
  'prompts/get',
  'resources/list',
  'resources/templates/list',
  'resources/read',
  'resources/subscribe',
  'resources/unsubscribe',
  'completion/complete',
  'logging/setLevel',
  'subscriptions/listen',
  'tasks/get',
  'tasks/result',
  'tasks/list',
  'tasks/cancel',
  'tasks/update',
  'sampling/createMessage',
  'roots/list',
  'elicitation/create',
  'notifications/initialized',
  'notifications/cancelled',
  'notifications/progress',
  'notifications/message',
  'notifications/roots/list_changed',
  'notifications/tools/list_changed',
  'notifications/prompts/list_changed',
  'notifications/resources/list_changed',
  'notifications/resources/updated',
  'notifications/elicitation/complete',
  'notifications/tasks/status',
  'notifications/subscriptions/acknowledged',
]);

/** @returns the method, or `other` when a caller could have invented it */
export function methodLabel(method: string): string {
  return KNOWN_METHODS.has(method) ? method : 'other';
}

/** Whole requests: from half a millisecond to the upstream's hard cap of minutes. */
const REQUEST_BUCKETS = [
  0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300,
];
/** What the gateway itself takes: budgets are 0.5 ms (p50) and 2 ms (p99), design section 10. */
const FINE_BUCKETS = [
  0.0001, 0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1,
  0.25, 0.5, 1, 2.5, 5,
];
/** People: from a click to the ten minutes that a link lives. */
const HUMAN_BUCKETS = [0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600];
const JOB_BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];

export function createMetrics(): Metrics {
  const registry = new Registry();
  const readers = new Set<() => void | Promise<void>>();
  let open: Registry<RegistryContentType> | undefined;
  collectDefaultMetrics({ register: registry });

  const described: MetricDescription[] = [];
  const describe = (
    type: MetricDescription['type'],
    name: string,
    help: string,
    labels: readonly string[],
  ): void => {
    described.push({ type, name: `viaduct_${name}`, help, labels });
  };

  const common = <L extends string>(name: string, help: string, labelNames: readonly L[]) => ({
    name: `viaduct_${name}`,
    help,
    labelNames,
    registry,
  });
  const counter = <L extends string = never>(name: string, help: string, ...labels: L[]) => {
    describe('counter', name, help, labels);
    return createCounter(common(name, help, labels));
  };
  const histogram = <L extends string = never>(
    name: string,
    help: string,
    buckets: readonly number[],
    ...labels: L[]
  ) => {
    describe('histogram', name, help, labels);
    return createHistogram({ ...common(name, help, labels), buckets });
  };
  const gauge = <L extends string>(name: string, help: string, ...labelNames: L[]): Gauge<L> => {
    describe('gauge', name, help, labelNames);
    return new PromGauge<L>({ name: `viaduct_${name}`, help, labelNames, registers: [registry] });
  };
  const plainGauge = (name: string, help: string): PlainGauge => {
    describe('gauge', name, help, []);
    return new PromGauge({ name: `viaduct_${name}`, help, registers: [registry] });
  };

  const metrics: Metrics = {
    sessionsActive: plainGauge('sessions_active', 'Sessions of which this process holds a stream'),
    streamsOpen: gauge('streams_open', 'Open SSE responses held by this process', 'era'),
    requests: counter(
      'requests_total',
      'MCP messages received',
      'era',
      'method',
      'upstream',
      'outcome',
    ),
    requestDuration: histogram(
      'request_duration_seconds',
      'From reading a request to its result',
      REQUEST_BUCKETS,
      'era',
      'method',
    ),
    upstreamDuration: histogram(
      'upstream_duration_seconds',
      'From sending to an upstream until its result',
      REQUEST_BUCKETS,
      'upstream',
      'outcome',
    ),
    gatewayOverhead: histogram(
      'gateway_overhead_seconds',
      'Request time without the upstream',
      FINE_BUCKETS,
    ),
    elicitations: counter(
      'elicitations_total',
      'Elicitations that ended',
      'mode',
      'origin',
      'outcome',
    ),
    elicitationsPending: gauge('elicitations_pending', 'Elicitations not ended yet', 'mode'),
    elicitationDuration: histogram(
      'elicitation_duration_seconds',
      'From asking to the end',
      HUMAN_BUCKETS,
      'mode',
    ),
    capabilityRefusals: counter(
      'capability_refusals_total',
      'Requests for input that the client did not declare',
      'mode',
    ),
    busEvents: counter('bus_events_total', 'Events appended to session logs', 'kind', 'route'),
    busDelivery: histogram('bus_delivery_seconds', 'From append to socket write', FINE_BUCKETS),
    replayedEvents: counter('replayed_events_total', 'Events sent again after a reconnect'),
    suspendedCalls: plainGauge('suspended_calls', 'Upstream calls that wait for a retry'),
    connections: counter(
      'connections_total',
      'Attempts to connect a third party',
      'connection',
      'outcome',
    ),
    tokenRefreshes: counter(
      'token_refreshes_total',
      'Refreshes of third-party tokens',
      'connection',
      'outcome',
    ),
    resealed: counter(
      'resealed_total',
      'Stored credentials met while sealing again with a new key',
      'outcome',
    ),
    rateLimited: counter('rate_limited_total', 'Requests answered 429', 'limit'),
    authFailures: counter('auth_failures_total', 'Requests answered 401', 'reason'),
    scopeChallenges: counter('scope_challenges_total', 'Requests answered 403 insufficient_scope'),
    securityEvents: counter('security_events_total', 'Refusals worth a look', 'type'),
    jobs: counter('jobs_total', 'Jobs run', 'queue', 'outcome'),
    jobDuration: histogram('job_duration_seconds', 'Run time of jobs', JOB_BUCKETS, 'queue'),
    queueDepth: gauge('queue_depth', 'Jobs per queue and state', 'queue', 'state'),
    redisCommandDuration: histogram(
      'redis_command_duration_seconds',
      'Round trips to Redis',
      FINE_BUCKETS,
    ),
    redisUp: plainGauge('redis_up', '1 while Redis answers'),
    drainState: plainGauge('drain_state', '0 starting, 1 ready, 2 draining, 3 stopped'),

    describe: () => described,
    onScrape(read) {
      readers.add(read);
    },
    generation() {
      const own: (() => void | Promise<void>)[] = [];
      return {
        metrics: {
          ...metrics,
          onScrape(read) {
            own.push(read);
            readers.add(read);
          },
        },
        stop() {
          for (const read of own) readers.delete(read);
        },
      };
    },
    async text() {
      await Promise.allSettled([...readers].map(async (read) => read()));
      return registry.metrics();
    },
    contentType: registry.contentType,
    async openMetrics() {
      await Promise.allSettled([...readers].map(async (read) => read()));
      open ??= asOpenMetrics(registry);
      return { text: await open.metrics(), contentType: open.contentType };
    },
  };
  return metrics;
}

/**
 * A registry of the other format over the same instruments. Each stands behind an object of its own, for prom-client
 * takes `_total` from the name of a counter that it has written so, for good.
 */
function asOpenMetrics(registry: Registry): Registry<RegistryContentType> {
  const open = new Registry<RegistryContentType>();
  open.setContentType(Registry.OPENMETRICS_CONTENT_TYPE);
  for (const metric of registry.getMetricsAsArray()) {
    open.registerMetric(Object.create(metric) as Parameters<typeof open.registerMetric>[0]);
  }
  return open;
}
