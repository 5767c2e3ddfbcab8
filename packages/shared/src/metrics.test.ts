import { describe, expect, it } from 'vitest';
import { createMetrics, KNOWN_METHODS, methodLabel } from './metrics.ts';

describe('metrics', () => {
  it('exports every instrument of design section 8 with its labels', async () => {
    const text = await createMetrics().text();
    for (const name of [
      'sessions_active gauge',
      'streams_open gauge',
      'requests_total counter',
      'request_duration_seconds histogram',
      'upstream_duration_seconds histogram',
      'gateway_overhead_seconds histogram',
      'elicitations_total counter',
      'elicitations_pending gauge',
      'elicitation_duration_seconds histogram',
      'capability_refusals_total counter',
      'bus_events_total counter',
      'bus_delivery_seconds histogram',
      'replayed_events_total counter',
      'suspended_calls gauge',
      'connections_total counter',
      'token_refreshes_total counter',
      'rate_limited_total counter',
      'auth_failures_total counter',
      'scope_challenges_total counter',
      'security_events_total counter',
      'jobs_total counter',
      'job_duration_seconds histogram',
      'queue_depth gauge',
      'redis_command_duration_seconds histogram',
      'redis_up gauge',
      'drain_state gauge',
    ]) {
      expect(text).toContain(`# TYPE viaduct_${name}\n`);
    }
    expect(text).toContain('nodejs_eventloop_lag_seconds');
  });

  it('counts per label set, by call and by child alike', async () => {
    const metrics = createMetrics();
    const labels = { era: 'legacy', method: 'ping', upstream: 'files', outcome: 'ok' };
    metrics.requests.inc(labels);
    metrics.requests.child({ ...labels }).inc(2);
    metrics.requests.inc({ ...labels, outcome: 'error' });
    metrics.scopeChallenges.inc();
    const text = await metrics.text();
    expect(text).toMatch(/viaduct_requests_total\{.*outcome="ok"\} 3\n/);
    expect(text).toMatch(/viaduct_requests_total\{.*outcome="error"\} 1\n/);
    expect(text).toMatch(/viaduct_scope_challenges_total 1\n/);
    expect(await metrics.text()).toMatch(/outcome="ok"\} 3\n/); // a scrape does not count again
  });

  it('has exemplars as OpenMetrics, and is afterwards as before', async () => {
    const metrics = createMetrics();
    const trace = '0af7651916cd43dd8448eb211c80319c';
    metrics.requests.inc({ era: 'legacy', method: 'ping', upstream: 'files', outcome: 'ok' });
    metrics.requestDuration.observe({ era: 'legacy', method: 'ping' }, 0.02, trace);
    metrics.requestDuration.observe({ era: 'legacy', method: 'ping' }, 99);
    const plain = await metrics.text();
    const { text, contentType } = await metrics.openMetrics();
    expect(contentType).toContain('application/openmetrics-text');
    expect(text).toMatch(/^# TYPE viaduct_requests counter$/m);
    expect(text).toMatch(/^viaduct_requests_total\{.*\} 1$/m);
    const marked = text.split('\n').filter((line) => line.includes(' # {'));
    expect(marked).toHaveLength(1);
    expect(marked[0]).toMatch(
      /^viaduct_request_duration_seconds_bucket\{.*\} 1 # \{trace_id="0af76.*"\} 0\.02 \d+/,
    );
    expect(text).toMatch(/\n# EOF\n$/);
    const kept = (all: string) => all.split('\n').filter((line) => line.includes('viaduct_')).join('\n'); // prettier-ignore
    expect(kept(await metrics.text())).toBe(kept(plain));
    expect(plain).not.toContain('# {');
  });

  it('renders cumulative buckets, sum and count', async () => {
    const metrics = createMetrics();
    metrics.gatewayOverhead.observe(0.0004);
    metrics.gatewayOverhead.observe(0.0012);
    metrics.gatewayOverhead.observe(99);
    metrics.gatewayOverhead.observe(NaN);
    metrics.upstreamDuration.observe({ upstream: 'files', outcome: 'ok' }, 0.02);
    const text = await metrics.text();
    expect(text).toContain('viaduct_gateway_overhead_seconds_bucket{le="0.00025"} 0\n');
    expect(text).toContain('viaduct_gateway_overhead_seconds_bucket{le="0.0005"} 1\n');
    expect(text).toContain('viaduct_gateway_overhead_seconds_bucket{le="5"} 2\n');
    expect(text).toContain('viaduct_gateway_overhead_seconds_bucket{le="+Inf"} 3\n');
    expect(text).toContain('viaduct_gateway_overhead_seconds_count 3\n');
    expect(text).toMatch(/viaduct_gateway_overhead_seconds_sum 99\.0016\d*\n/);
    expect(text).toContain(
      'viaduct_upstream_duration_seconds_count{upstream="files",outcome="ok"} 1\n',
    );
  });

  it('reads gauges at the scrape, and survives a reader that fails', async () => {
    const metrics = createMetrics();
    metrics.onScrape(() => {
      throw new Error('redis is away');
    });
    metrics.onScrape(async () => metrics.queueDepth.set({ queue: 'flows', state: 'waiting' }, 4));
    expect(await metrics.text()).toContain(
      'viaduct_queue_depth{queue="flows",state="waiting"} 4\n',
    );
  });

  it('labels what a caller invents as other', () => {
    expect(methodLabel('tools/call')).toBe('tools/call');
    expect(methodLabel('tools/call"}\nevil 1')).toBe('other');
    expect(methodLabel('constructor')).toBe('other');
    expect(KNOWN_METHODS.size).toBeLessThan(64);
  });
});
