/**
 * Alerts on symptoms: what people feel, or will soon. Causes are on the dashboards. Each has a runbook under
 * docs/runbooks with its name.
 */
export interface Alert {
  readonly name: string;
  readonly severity: 'page' | 'ticket';
  readonly expr: string;
  readonly for: string;
  readonly summary: string;
  readonly description: string;
}

export interface RecordingRule {
  readonly record: string;
  readonly expr: string;
}

/** Share of requests that ended in our fault. 4xx are the caller's; `upstream_error` is the upstream's. */
const errorRatio = (window: string): string =>
  `sum(rate(viaduct_requests_total{outcome="error"}[${window}])) / sum(rate(viaduct_requests_total[${window}]))`;

/** Share of fast requests whose gateway part took more than 50 ms. */
const slowRatio = (window: string): string =>
  `1 - sum(rate(viaduct_gateway_overhead_seconds_bucket{le="0.05"}[${window}])) / sum(rate(viaduct_gateway_overhead_seconds_count[${window}]))`;

const WINDOWS = ['5m', '30m', '1h', '6h'] as const;

/** Objective: 99.9 % over 30 days. The two pairs of windows are those of the SRE workbook, chapter 5. */
const BUDGET = 0.001;
const LATENCY_BUDGET = 0.01;

export const recordingRules: readonly RecordingRule[] = WINDOWS.flatMap((window) => [
  { record: `viaduct:requests:error_ratio_rate${window}`, expr: errorRatio(window) },
  { record: `viaduct:overhead:slow_ratio_rate${window}`, expr: slowRatio(window) },
]);

const burn = (record: string, long: string, short: string, threshold: number): string =>
  `${record}${long} > ${threshold} and ${record}${short} > ${threshold}`;
const round = (value: number): number => Number(value.toPrecision(6));

export const alerts: readonly Alert[] = [
  {
    name: 'ViaductErrorBudgetBurnsFast',
    severity: 'page',
    expr: burn('viaduct:requests:error_ratio_rate', '1h', '5m', round(14.4 * BUDGET)),
    for: '2m',
    summary: 'MCP requests fail: at this rate the month’s error budget is gone in two days',
    description: '{{ $value | humanizePercentage }} of requests end in an error of the gateway.',
  },
  {
    name: 'ViaductErrorBudgetBurns',
    severity: 'ticket',
    expr: burn('viaduct:requests:error_ratio_rate', '6h', '30m', round(6 * BUDGET)),
    for: '15m',
    summary: 'MCP requests fail: at this rate the month’s error budget is gone in five days',
    description: '{{ $value | humanizePercentage }} of requests end in an error of the gateway.',
  },
  {
    name: 'ViaductSlow',
    severity: 'page',
    expr: burn('viaduct:overhead:slow_ratio_rate', '1h', '5m', round(14.4 * LATENCY_BUDGET)),
    for: '2m',
    summary: 'The gateway itself is slow',
    description:
      '{{ $value | humanizePercentage }} of requests spend more than 50 ms in the gateway, upstreams not counted.',
  },
  {
    name: 'ViaductRedisAway',
    severity: 'page',
    expr: 'min(viaduct_redis_up) == 0',
    for: '30s',
    summary: 'A process does not reach Redis: its requests get 503',
    description: 'Sessions are not lost; service comes back by itself with Redis.',
  },
  {
    name: 'ViaductPodMissing',
    severity: 'page',
    expr: 'up{job=~".*viaduct.*"} == 0',
    for: '2m',
    summary: 'A Viaduct process is not scraped',
    description: '{{ $labels.instance }} has not answered on its admin port for two minutes.',
  },
  {
    name: 'ViaductNoPods',
    severity: 'page',
    expr: 'absent(viaduct_drain_state == 1)',
    for: '1m',
    summary: 'No Viaduct process is ready',
    description: 'Every process is starting, draining or gone.',
  },
  {
    name: 'ViaductCompletionsLate',
    severity: 'page',
    expr: 'histogram_quantile(0.99, sum by (le) (rate(viaduct_bus_delivery_seconds_bucket[5m]))) > 1',
    for: '5m',
    summary: 'Clients learn late of what happened',
    description: 'From append to socket the slowest 1 % takes {{ $value | humanizeDuration }}.',
  },
  {
    name: 'ViaductFlowsStuck',
    severity: 'page',
    expr: 'sum(max by (mode) (viaduct_elicitations_pending)) > 5 and sum(rate(viaduct_elicitations_total[15m])) == 0',
    for: '15m',
    summary: 'People wait in flows and none ends',
    description: '{{ $value }} flows are unfinished and none has ended in 15 minutes.',
  },
  {
    name: 'ViaductFlowsFail',
    severity: 'page',
    expr: 'sum by (connection) (increase(viaduct_connections_total{outcome="failed"}[15m])) > 3 and sum by (connection) (increase(viaduct_connections_total{outcome="failed"}[15m])) > sum by (connection) (increase(viaduct_connections_total{outcome="completed"}[15m]))',
    for: '5m',
    summary: 'Connecting {{ $labels.connection }} fails more often than it works',
    description: '{{ $value }} attempts failed within 15 minutes.',
  },
  {
    name: 'ViaductRefreshesFail',
    severity: 'page',
    expr: 'sum by (connection) (rate(viaduct_token_refreshes_total{outcome!~"refreshed|superseded"}[15m])) / sum by (connection) (rate(viaduct_token_refreshes_total[15m])) > 0.2',
    for: '10m',
    summary: 'Tokens of {{ $labels.connection }} are not refreshed',
    description: '{{ $value | humanizePercentage }} of refreshes fail: users will be asked again.',
  },
  {
    name: 'ViaductQueueWaits',
    severity: 'page',
    expr: 'max by (queue) (viaduct_queue_depth{queue="exchange-code",state="waiting"}) > 0',
    for: '2m',
    summary: 'Jobs of {{ $labels.queue }} wait: people look at “working”',
    description: '{{ $value }} jobs wait; is a worker running?',
  },
  {
    name: 'ViaductJobsFail',
    severity: 'ticket',
    expr: 'sum by (queue) (increase(viaduct_jobs_total{outcome="failed"}[1h])) > 5',
    for: '0m',
    summary: 'Jobs of {{ $labels.queue }} have failed for good',
    description: '{{ $value }} within an hour.',
  },
  {
    name: 'ViaductUpstreamFails',
    severity: 'ticket',
    expr: 'sum by (upstream) (rate(viaduct_upstream_duration_seconds_count{outcome="upstream_error"}[10m])) / sum by (upstream) (rate(viaduct_upstream_duration_seconds_count[10m])) > 0.1',
    for: '10m',
    summary: 'The MCP server {{ $labels.upstream }} fails',
    description:
      '{{ $value | humanizePercentage }} of its calls end in an error of the server or its network.',
  },
  {
    name: 'ViaductWrongUser',
    severity: 'page',
    expr: 'sum(increase(viaduct_security_events_total{type="link.wrong_user"}[10m])) > 3',
    for: '0m',
    summary: 'People open links that are not theirs',
    description: '{{ $value }} attempts in 10 minutes: somebody may be passing links around.',
  },
  {
    name: 'ViaductRefusalsJump',
    severity: 'ticket',
    expr: 'sum by (type) (rate(viaduct_security_events_total{type!="link.wrong_user"}[10m])) > 1 and sum by (type) (rate(viaduct_security_events_total{type!="link.wrong_user"}[10m])) > 10 * sum by (type) (rate(viaduct_security_events_total{type!="link.wrong_user"}[10m] offset 1d))',
    for: '10m',
    summary: 'Ten times yesterday’s refusals of the kind {{ $labels.type }}',
    description: '{{ $value }} a second.',
  },
];

/** The groups of a Prometheus rule file and of a PrometheusRule. */
/** @param runbooks where docs/runbooks is published, as whoever is woken can reach it */
export function ruleGroups(runbooks: string): object[] {
  return [
    { name: 'viaduct-recording', rules: recordingRules },
    {
      name: 'viaduct-alerts',
      rules: alerts.map(({ name, severity, expr, for: duration, summary, description }) => ({
        alert: name,
        expr,
        for: duration,
        labels: { severity },
        annotations: { summary, description, runbook_url: `${runbooks}/${name}.md` },
      })),
    },
  ];
}
