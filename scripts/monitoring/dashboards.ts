/** Grafana's dashboards as data: rows of panels, each with its queries. `panel` and `dashboard` do the layout. */
interface Query {
  readonly expr: string;
  readonly legend: string;
}
interface Panel {
  readonly title: string;
  readonly description: string;
  readonly unit: 'reqps' | 's' | 'short' | 'percentunit' | 'bytes' | 'bool';
  readonly queries: readonly Query[];
  readonly kind?: 'timeseries' | 'stat';
  readonly stack?: boolean;
}
interface Row {
  readonly title: string;
  readonly panels: readonly Panel[];
}
export interface Dashboard {
  readonly file: string;
  readonly title: string;
  readonly rows: readonly Row[];
}

const q = (expr: string, legend: string): Query => ({ expr, legend });
const RATE = '[$__rate_interval]';
const rate = (metric: string, by: string, labels = ''): string =>
  `sum by (${by}) (rate(viaduct_${metric}${labels}${RATE}))`;
const quantile = (at: number, metric: string, by = ''): string =>
  `histogram_quantile(${at}, sum by (${by === '' ? 'le' : `le, ${by}`}) (rate(viaduct_${metric}_bucket${RATE})))`;
const quantiles = (metric: string): Query[] => [
  q(quantile(0.5, metric), 'p50'),
  q(quantile(0.95, metric), 'p95'),
  q(quantile(0.99, metric), 'p99'),
];

export const dashboards: readonly Dashboard[] = [
  {
    file: 'overview',
    title: 'Viaduct / Overview',
    rows: [
      {
        title: 'Is it well?',
        panels: [
          {
            title: 'Ready pods',
            description: 'Processes in the state ready',
            unit: 'short',
            kind: 'stat',
            queries: [q('sum(viaduct_drain_state == bool 1)', 'ready')],
          },
          {
            title: 'Errors of ours',
            description:
              'Share of requests that end in an error of the gateway; the objective is 0.1 %',
            unit: 'percentunit',
            kind: 'stat',
            queries: [
              q(
                `(sum(rate(viaduct_requests_total{outcome="error"}${RATE})) or vector(0)) / sum(rate(viaduct_requests_total${RATE}))`,
                'errors',
              ),
            ],
          },
          {
            title: 'Gateway overhead, p99',
            description: 'Request time without the upstream',
            unit: 's',
            kind: 'stat',
            queries: [q(quantile(0.99, 'gateway_overhead_seconds'), 'p99')],
          },
          {
            title: 'Redis',
            description: '1 while every process reaches it',
            unit: 'bool',
            kind: 'stat',
            queries: [q('min(viaduct_redis_up)', 'up')],
          },
        ],
      },
      {
        title: 'Requests',
        panels: [
          {
            title: 'Requests by outcome',
            description: 'refused is the caller’s fault, upstream_error the upstream’s, error ours',
            unit: 'reqps',
            stack: true,
            queries: [q(rate('requests_total', 'outcome'), '{{outcome}}')],
          },
          {
            title: 'Requests by method',
            description: '',
            unit: 'reqps',
            stack: true,
            queries: [q(rate('requests_total', 'era, method'), '{{era}} {{method}}')],
          },
          {
            title: 'Request time',
            description: 'With the upstream’s part',
            unit: 's',
            queries: quantiles('request_duration_seconds'),
          },
          {
            title: 'Gateway’s part of it',
            description: 'Budget: 0.5 ms (p50), 2 ms (p99)',
            unit: 's',
            queries: quantiles('gateway_overhead_seconds'),
          },
        ],
      },
      {
        title: 'Clients',
        panels: [
          {
            title: 'Open streams',
            description: 'By pod and era',
            unit: 'short',
            queries: [q('sum by (instance, era) (viaduct_streams_open)', '{{instance}} {{era}}')],
          },
          {
            title: 'Sessions with a stream',
            description: '',
            unit: 'short',
            queries: [q('sum by (instance) (viaduct_sessions_active)', '{{instance}}')],
          },
          {
            title: 'Answered 401 and 403',
            description: 'By reason; scope challenges apart',
            unit: 'reqps',
            queries: [
              q(rate('auth_failures_total', 'reason'), '401 {{reason}}'),
              q(`sum(rate(viaduct_scope_challenges_total${RATE}))`, '403 scopes'),
            ],
          },
          {
            title: 'Limits hit',
            description: 'Requests answered 429',
            unit: 'reqps',
            queries: [q(rate('rate_limited_total', 'limit'), '{{limit}}')],
          },
          {
            title: 'Refusals worth a look',
            description: 'Security events',
            unit: 'reqps',
            queries: [q(rate('security_events_total', 'type'), '{{type}}')],
          },
        ],
      },
      {
        title: 'Processes',
        panels: [
          {
            title: 'CPU',
            description: 'Cores; 1 is the most that one event loop uses',
            unit: 'short',
            queries: [
              q(`rate(process_cpu_seconds_total{job=~".*viaduct.*"}${RATE})`, '{{instance}}'),
            ],
          },
          {
            title: 'Memory',
            description: 'Resident',
            unit: 'bytes',
            queries: [q('process_resident_memory_bytes{job=~".*viaduct.*"}', '{{instance}}')],
          },
          {
            title: 'Event loop lag, p99',
            description: 'Above 50 ms everybody on the pod feels it',
            unit: 's',
            queries: [q('nodejs_eventloop_lag_p99_seconds{job=~".*viaduct.*"}', '{{instance}}')],
          },
        ],
      },
    ],
  },
  {
    file: 'elicitation-flows',
    title: 'Viaduct / Elicitation flows',
    rows: [
      {
        title: 'People in flows',
        panels: [
          {
            title: 'Unfinished',
            description: 'Elicitations that have not ended',
            unit: 'short',
            kind: 'stat',
            queries: [q('max by (mode) (viaduct_elicitations_pending)', '{{mode}}')],
          },
          {
            title: 'Completed, share',
            description: 'Of those that ended',
            unit: 'percentunit',
            kind: 'stat',
            queries: [
              q(
                `sum(rate(viaduct_elicitations_total{outcome="completed"}${RATE})) / sum(rate(viaduct_elicitations_total${RATE}))`,
                'completed',
              ),
            ],
          },
          {
            title: 'Ends by outcome',
            description: '',
            unit: 'reqps',
            stack: true,
            queries: [q(rate('elicitations_total', 'mode, outcome'), '{{mode}} {{outcome}}')],
          },
          {
            title: 'From asking to the end',
            description: 'People included',
            unit: 's',
            queries: quantiles('elicitation_duration_seconds'),
          },
          {
            title: 'Asked what clients cannot',
            description: 'Capability refusals',
            unit: 'reqps',
            queries: [q(rate('capability_refusals_total', 'mode'), '{{mode}}')],
          },
          {
            title: 'Suspended calls',
            description: 'Upstream calls that wait for a retry',
            unit: 'short',
            queries: [q('sum by (instance) (viaduct_suspended_calls)', '{{instance}}')],
          },
        ],
      },
      {
        title: 'Third parties',
        panels: [
          {
            title: 'Connecting',
            description: 'Attempts by outcome',
            unit: 'reqps',
            queries: [
              q(rate('connections_total', 'connection, outcome'), '{{connection}} {{outcome}}'),
            ],
          },
          {
            title: 'Refreshing',
            description: 'Token refreshes by outcome',
            unit: 'reqps',
            queries: [
              q(rate('token_refreshes_total', 'connection, outcome'), '{{connection}} {{outcome}}'),
            ],
          },
        ],
      },
      {
        title: 'Telling the client',
        panels: [
          {
            title: 'From append to socket',
            description: 'Budget for completions: 10 ms (p99)',
            unit: 's',
            queries: quantiles('bus_delivery_seconds'),
          },
          {
            title: 'Events by route',
            description: 'stored: nobody listened, it waits for the reconnect',
            unit: 'reqps',
            stack: true,
            queries: [q(rate('bus_events_total', 'kind, route'), '{{kind}} {{route}}')],
          },
          {
            title: 'Replayed',
            description: 'Events sent again after a reconnect',
            unit: 'reqps',
            queries: [q(`sum(rate(viaduct_replayed_events_total${RATE}))`, 'replayed')],
          },
        ],
      },
    ],
  },
  {
    file: 'upstreams',
    title: 'Viaduct / Upstreams',
    rows: [
      {
        title: 'MCP servers behind the gateway',
        panels: [
          {
            title: 'Calls',
            description: '',
            unit: 'reqps',
            queries: [q(rate('upstream_duration_seconds_count', 'upstream'), '{{upstream}}')],
          },
          {
            title: 'Outcomes',
            description: '',
            unit: 'reqps',
            stack: true,
            queries: [
              q(
                rate('upstream_duration_seconds_count', 'upstream, outcome'),
                '{{upstream}} {{outcome}}',
              ),
            ],
          },
          {
            title: 'Time, p50',
            description: '',
            unit: 's',
            queries: [q(quantile(0.5, 'upstream_duration_seconds', 'upstream'), '{{upstream}}')],
          },
          {
            title: 'Time, p99',
            description: '',
            unit: 's',
            queries: [q(quantile(0.99, 'upstream_duration_seconds', 'upstream'), '{{upstream}}')],
          },
          {
            title: 'Requests by endpoint',
            description: 'Empty: /mcp, all in one',
            unit: 'reqps',
            queries: [q(rate('requests_total', 'upstream, outcome'), '{{upstream}} {{outcome}}')],
          },
        ],
      },
    ],
  },
  {
    file: 'redis-and-jobs',
    title: 'Viaduct / Redis and jobs',
    rows: [
      {
        title: 'Redis, as the processes see it',
        panels: [
          {
            title: 'Reached',
            description: 'By process',
            unit: 'bool',
            queries: [q('viaduct_redis_up', '{{instance}}')],
          },
          {
            title: 'Round trips',
            description: '',
            unit: 's',
            queries: quantiles('redis_command_duration_seconds'),
          },
          {
            title: 'Commands',
            description: 'Scripts and pipelines',
            unit: 'reqps',
            queries: [
              q(
                `sum by (instance) (rate(viaduct_redis_command_duration_seconds_count${RATE}))`,
                '{{instance}}',
              ),
            ],
          },
        ],
      },
      {
        title: 'Jobs',
        panels: [
          {
            title: 'Waiting and delayed',
            description: 'delayed are timers and retries; waiting should be 0',
            unit: 'short',
            queries: [q('max by (queue, state) (viaduct_queue_depth)', '{{queue}} {{state}}')],
          },
          {
            title: 'Runs by outcome',
            description: 'retried runs come again; failed ones do not',
            unit: 'reqps',
            stack: true,
            queries: [q(rate('jobs_total', 'queue, outcome'), '{{queue}} {{outcome}}')],
          },
          {
            title: 'Run time, p99',
            description: '',
            unit: 's',
            queries: [q(quantile(0.99, 'job_duration_seconds', 'queue'), '{{queue}}')],
          },
        ],
      },
    ],
  },
];

const DATASOURCE = { type: 'prometheus', uid: '${datasource}' };

export function dashboardJson({ file, title, rows }: Dashboard): object {
  const panels: object[] = [];
  let y = 0;
  let id = 1;
  for (const row of rows) {
    panels.push({
      id: id++,
      type: 'row',
      title: row.title,
      collapsed: false,
      gridPos: { x: 0, y: y++, w: 24, h: 1 },
      panels: [],
    });
    let x = 0;
    let height = 0;
    for (const panel of row.panels) {
      const { w, h } = panel.kind === 'stat' ? { w: 6, h: 5 } : { w: 12, h: 8 };
      if (x + w > 24) {
        y += height;
        x = 0;
        height = 0;
      }
      panels.push(panelJson(panel, id++, { x, y, w, h }));
      x += w;
      height = Math.max(height, h);
    }
    y += height;
  }
  return {
    uid: `viaduct-${file}`,
    title,
    tags: ['viaduct'],
    schemaVersion: 39,
    editable: false,
    refresh: '30s',
    time: { from: 'now-3h', to: 'now' },
    timezone: 'browser',
    links: [
      {
        type: 'dashboards',
        tags: ['viaduct'],
        title: 'Viaduct',
        asDropdown: true,
        includeVars: true,
        keepTime: true,
      },
    ],
    templating: {
      list: [
        {
          name: 'datasource',
          type: 'datasource',
          query: 'prometheus',
          label: 'Prometheus',
          current: {},
        },
      ],
    },
    panels,
  };
}

function panelJson(panel: Panel, id: number, gridPos: object): object {
  const kind = panel.kind ?? 'timeseries';
  return {
    id,
    type: kind,
    title: panel.title,
    description: panel.description,
    datasource: DATASOURCE,
    gridPos,
    fieldConfig: {
      defaults: {
        unit: panel.unit,
        min: 0,
        ...(kind === 'timeseries' && {
          custom: {
            fillOpacity: panel.stack === true ? 20 : 0,
            stacking: { mode: panel.stack === true ? 'normal' : 'none' },
          },
        }),
      },
      overrides: [],
    },
    options:
      kind === 'stat'
        ? { reduceOptions: { calcs: ['lastNotNull'] }, colorMode: 'none', graphMode: 'area' }
        : {
            legend: { displayMode: 'list', placement: 'bottom' },
            tooltip: { mode: 'multi', sort: 'desc' },
          },
    targets: panel.queries.map(({ expr, legend }, index) => ({
      refId: String.fromCharCode(65 + index),
      datasource: DATASOURCE,
      expr,
      legendFormat: legend,
    })),
  };
}
