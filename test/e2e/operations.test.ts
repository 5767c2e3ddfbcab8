import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { send } from '../support/net.ts';
import type { McpClient } from '../support/mcp-client.ts';
import { readMetric } from '../support/stack.ts';
import { startWorld } from '../support/world.ts';

// Seen from outside (issue 2, item 11; design, sections 6 to 8): what an operator and a security officer look at.

const world = await startWorld({ plainUpstreams: ['plain'] });
afterAll(() => world.stop());
const { acme, stack } = world;
let client: McpClient;

beforeAll(async () => {
  client = await world.client('ann').initialize();
  const stream = await client.listen();
  await world.connect(client, 'ann');
  await stream.notification('notifications/elicitation/complete');
  await client.callTool('echo', { text: 'hello' });
  await client.callTool('fail', {});
  const other = world.client('ben', { upstream: 'plain' });
  await other.initialize();
  await other.callTool('never-heard-of', {});
  await other.end();
  await world
    .client('x', { token: 'not-a-token' })
    .listTools()
    .catch(() => undefined);
  await world
    .client('x', { token: null })
    .listTools()
    .catch(() => undefined);
});

describe('the two listeners', () => {
  test('[admin.routes] health and metrics are served on the admin listener of both services', async () => {
    for (const service of [...stack.pods, ...stack.workers]) {
      expect((await service.admin('/healthz/live')).status).toBe(200);
      expect((await service.admin('/healthz/ready')).status).toBe(200);
      const metrics = await service.admin('/metrics');
      expect(metrics.status).toBe(200);
      expect(metrics.headers['content-type']).toMatch(/^text\/plain/);
      expect(metrics.text).toContain('nodejs_');
    }
  });

  test.for(['/healthz/live', '/healthz/ready', '/metrics', '/console', '/console/queues'])(
    '[admin.routes] %s is 404 on the public listener',
    async (path) => {
      for (const port of stack.ports) {
        const answer = await send(`${world.publicUrl}${path}`, { port });
        expect(answer.status).toBe(404);
        expect(answer.text).not.toContain('viaduct_');
      }
    },
  );

  test('[request-id] every answer carries X-Request-Id, on every route and status', async () => {
    const ids = new Set<string>();
    const paths = [
      '/',
      '/nothing',
      '/mcp/files',
      '/mcp/nothing',
      '/connections',
      '/connect/x',
      '/login',
    ];
    paths.push('/.well-known/oauth-protected-resource/mcp/files', '/connect/callback');
    for (const path of paths) {
      for (const method of ['GET', 'POST', 'OPTIONS', 'PUT']) {
        const answer = await send(`${world.publicUrl}${path}`, {
          method,
          body: method === 'POST' ? '{}' : '',
        });
        expect(answer.headers['x-request-id'], `${method} ${path} ${answer.status}`).toBeTruthy();
        expect(answer.status, `${method} ${path}`).toBeLessThan(500);
        ids.add(answer.headers['x-request-id'] as string);
      }
    }
    expect(ids.size).toBe(paths.length * 4);
  });
});

describe('logs', () => {
  test('[logs.json] every line on stdout is one JSON object', () => {
    expect(stack.strayLines()).toEqual([]);
    expect(stack.logs().length).toBeGreaterThan(5);
  });

  test('[logs.secrets] no token, code, secret or state in logs, metrics or readable Redis values', async () => {
    const signature = client.token!.split('.')[2]!;
    const secrets = [...acme.issued, ...world.secrets, client.token!, signature];
    expect(acme.issued.some((value) => value.includes('code'))).toBe(true);
    const output = stack.output();
    const dump = JSON.stringify(await stack.redis.dump());
    const services = [...stack.pods, ...stack.workers];
    const metrics = (await Promise.all(services.map((service) => service.metrics()))).join();
    for (const secret of secrets) {
      expect(output.includes(secret), `${secret.slice(0, 12)}… in a log`).toBe(false);
      expect(dump.includes(secret), `${secret.slice(0, 12)}… in Redis`).toBe(false);
      expect(metrics.includes(secret), `${secret.slice(0, 12)}… in the metrics`).toBe(false);
    }
    for (const { state } of acme.authorizations) expect(output.includes(state!)).toBe(false);
  });

  test('[logs.request-id] the id that an answer carries finds its log line', async () => {
    const answer = await client.post({
      jsonrpc: '2.0',
      id: 1,
      method: 'tools/call',
      params: { name: 'fail' },
    });
    const id = answer.headers['x-request-id'];
    const nobody = world.client('x', { token: 'bad' });
    const refused = await nobody.post({ jsonrpc: '2.0', id: 2, method: 'tools/list' });
    const refusal = refused.headers['x-request-id'];
    expect(refused.json?.error?.data?.requestId).toBe(refusal);
    const found = stack.logs().filter(({ requestId }) => requestId === refusal);
    expect(found.length, `lines with ${String(id)} or ${String(refusal)}`).toBeGreaterThan(0);
  });

  test('[audit] sessions, elicitations, tokens and refusals are audit events with a type', () => {
    for (const type of [
      ...['session.started', 'session.ended', 'login.completed', 'auth.refused'],
      ...['elicitation.created', 'elicitation.opened', 'elicitation.authorized'],
      ...['elicitation.exchanging', 'elicitation.completed', 'consent.given', 'credential.stored'],
    ]) {
      expect(stack.audit(type).length, type).toBeGreaterThan(0);
    }
    for (const { audit } of stack.audit(/./)) expect(JSON.stringify(audit)).not.toContain('@corp');
  });
});

describe('Redis and metrics', () => {
  test('[redis.keys] keys are named as the contract says, tell nothing about people, and all expire', async () => {
    const dump = await stack.redis.dump();
    const user = world.userId('ann');
    const keys = dump.map(({ key }) => key);
    for (const key of [
      `viaduct:session:{${user}}:${client.sessionId}`,
      `viaduct:log:{${user}}:${client.sessionId}`,
      `viaduct:upstream:{${user}}:${client.sessionId}:files`,
      `viaduct:vault:{${user}}:acme-drive`,
      `viaduct:consent:{${user}}`,
    ]) {
      expect(keys).toContain(key);
    }
    for (const { key, ttlMs } of dump.filter(({ key }) => key.startsWith('viaduct:'))) {
      expect(ttlMs, key).toBeGreaterThan(0);
    }
    expect(keys.filter((key) => /ann|ben|@/.test(key.replace(/[\w-]{22}/g, '')))).toEqual([]);
    const foreign = keys.filter((key) => !/^viaduct:|^\{viaduct:bull\}:/.test(key));
    expect(foreign).toEqual([]);
  });

  test('[metrics] the instruments of section 8 that have a subject are there', async () => {
    const services = [...stack.pods, ...stack.workers];
    const text = (await Promise.all(services.map((service) => service.metrics()))).join('\n');
    for (const name of [
      'viaduct_streams_open',
      'viaduct_requests_total',
      'viaduct_request_duration_seconds_count',
      'viaduct_upstream_duration_seconds_count',
      'viaduct_gateway_overhead_seconds_count',
      'viaduct_elicitations_total',
      'viaduct_bus_events_total',
      'viaduct_bus_delivery_seconds_count',
      'viaduct_connections_total',
      'viaduct_auth_failures_total',
      'viaduct_jobs_total',
      'viaduct_job_duration_seconds_count',
      'viaduct_redis_up',
    ]) {
      expect(readMetric(text, name), name).toBeGreaterThan(0);
    }
    for (const name of ['sessions_active', 'elicitations_pending', 'drain_state', 'queue_depth']) {
      expect(text, name).toContain(`viaduct_${name}`);
    }
  });

  test('[metrics.bounded] nothing that a caller makes up becomes a label', async () => {
    const before = await stack.metric('viaduct_requests_total', { method: 'other' });
    await client.post({ jsonrpc: '2.0', id: 1, method: 'made/up-1' });
    await client.post({ jsonrpc: '2.0', id: 2, method: 'made/up-2' });
    const text = (await Promise.all(stack.pods.map((pod) => pod.metrics()))).join('\n');
    expect(text).not.toMatch(/made|never-heard-of|Test Client|test-client/);
    expect(text).not.toContain(world.userId('ann'));
    expect(text).not.toContain(client.sessionId);
    expect(await stack.metric('viaduct_requests_total', { method: 'other' })).toBeGreaterThan(
      before,
    );
  });
});
