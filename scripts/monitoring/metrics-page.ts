/** docs/metrics.md, from the instruments themselves. */
import type { MetricDescription } from '@viaduct/shared/metrics';

/** What each label can be: bounded sets all of them (invariant 14). */
const LABELS: Record<string, string> = {
  era: '`legacy` (revisions up to 2025-11-25) or `modern` (2026-07-28)',
  method:
    'MCP’s methods; `other` for anything a caller made up; `response`, `batch`, `invalid`, `http_GET`, `http_DELETE`',
  upstream: 'names from the configuration; empty on `/mcp`, which is all of them',
  outcome:
    'requests and upstreams: `ok`, `refused` (4xx), `rpc_error` (the upstream answered with one), `upstream_error`, `cancelled`, `input_required`, `error` (ours). Elicitations and connections: the states that end one. Jobs: `completed`, `retried`, `failed`, `stalled`, `invalid`',
  mode: '`url` or `form`',
  origin: '`gateway` or `upstream`: who wanted the input',
  kind: '`listening` (a session’s own stream) or `call`',
  route:
    '`local`, `remote` (another pod was nudged), `stored` (nobody listens; it waits in the log)',
  connection: 'names from the configuration',
  limit:
    '`user`, `userTool`, `userElicitations`, `address`, `registrations`, `concurrentUser`, `concurrentPod` and `eventLoop` (answered 503)',
  reason: 'codes of refused tokens, from a list in the code',
  type: 'types of audit events that are refusals (docs/audit.md)',
  queue: 'names of the job catalogue',
  state: '`waiting`, `active`, `delayed`, `failed`',
};

export function metricsPage(metrics: readonly MetricDescription[]): string {
  const rows = metrics.map(
    ({ name, type, help, labels }) =>
      `| \`${name}\` | ${type} | ${labels.map((label) => `\`${label}\``).join(', ') || '–'} | ${help} |`,
  );
  const used = [...new Set(metrics.flatMap(({ labels }) => labels))].sort();
  const meanings = used.map((label) => {
    const meaning = LABELS[label];
    if (meaning === undefined) throw new Error(`say in metrics-page.ts what the label ${label} is`);
    return `| \`${label}\` | ${meaning} |`;
  });
  return `# Metrics

Written by \`npm run monitoring\` from packages/shared/src/metrics.ts; a test fails when the two differ.

Every process serves \`/metrics\` on its admin port, in Prometheus’ text format, and exports what it does itself: sum over processes. \`viaduct_queue_depth\` and \`viaduct_elicitations_pending\` are the exception: each worker reads the same numbers from Redis, so take the \`max\`. Node’s and the process’s own metrics (\`nodejs_…\`, \`process_…\`) are there too. Histograms have \`_bucket\`, \`_sum\` and \`_count\`.

| metric | type | labels | what |
|---|---|---|---|
${rows.join('\n')}

## Labels

No label takes a value that a caller can invent.

| label | values |
|---|---|
${meanings.join('\n')}
`;
}
