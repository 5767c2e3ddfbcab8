import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { hasPipeline, startPipeline, type Pipeline } from '../support/prometheus.ts';
import { until } from '../support/until.ts';
import { startWorld, type World } from '../support/world.ts';

// What an SRE has: a real Prometheus that scrapes a stack under load, with the shipped rules, and an Alertmanager
// behind it (issue 7, item 3 and “Must show”).

const folder = join(import.meta.dirname, '../../deploy/k8s/components/monitoring');
const LONG = { timeout: 240_000 };

interface Dashboard {
  panels: { title: string; targets?: { expr: string }[] }[];
}
const queries = readdirSync(join(folder, 'dashboards')).flatMap((file) => {
  const { panels } = JSON.parse(
    readFileSync(join(folder, 'dashboards', file), 'utf8'),
  ) as Dashboard;
  return panels.flatMap(({ title, targets = [] }) =>
    targets.map(({ expr }) => ({ where: `${file}: ${title}`, expr })),
  );
});

describe.skipIf(!hasPipeline())('Prometheus and Alertmanager', () => {
  let world: World;
  let pipeline: Pipeline;
  beforeAll(async () => {
    world = await startWorld({
      pods: 2,
      workers: 1,
      plainUpstreams: ['plain'],
      upstream: { tools: { secret_report: { scopes: ['files:secret'] } } },
      config: {
        limits: {
          user: { points: 100_000, seconds: 60 },
          userTool: { points: 20, seconds: 10 },
          userElicitations: { points: 1_000, seconds: 60 },
          address: { points: 100_000, seconds: 60 },
        },
      },
    });
    pipeline = await startPipeline(world.stack, join(folder, 'rules.yaml'));
  }, 120_000);
  afterAll(async () => {
    await pipeline.stop();
    await world.stop();
  });

  /** One person's day: everything that any panel is about happens once. */
  async function load(serial: number): Promise<void> {
    const { acme } = world;
    const user = `user-${serial}`;
    const client = await world.client(user).initialize({ pod: 0 });
    const stream = await client.listen({ pod: 0 });
    await client.callTool('secret_report', {}); // 403: more scope
    acme.expiresInSeconds = 2;
    await world.connect(client, user);
    acme.expiresInSeconds = 3600;
    await stream.message('the completion', ({ method }) => (method ?? '').endsWith('complete'));
    const from = stream.events.find(({ id }) => id !== undefined)?.id;
    stream.close();
    if (from !== undefined) (await client.listen({ pod: 1, lastEventId: from })).close();
    const { refreshes } = acme;
    await until('the token is refreshed', async () => {
      await client.listTools({ pod: serial % 2 });
      return acme.refreshes > refreshes;
    });
    const incapable = await world.client(`incapable-${serial}`, { capabilities: {} }).initialize();
    await incapable.callTool('echo', {});
    await world.client(user, { token: null }).post({ jsonrpc: '2.0', id: 1, method: 'tools/list' });
    const plain = await world.client(user, { upstream: 'plain' }).initialize();
    await plain.listTools();
    await Promise.all(Array.from({ length: 40 }, (_, n) => plain.callTool('echo', { n })));
    const { url } = await world.askForLink(await world.client(`waits-${serial}`).initialize());
    await world.browser('mallory').open(url); // somebody else's link
  }

  test(
    '[monitoring.dashboards] no query of a dashboard is empty while people work',
    LONG,
    async () => {
      expect(queries.length).toBeGreaterThan(40);
      const held = await world.client('listener').initialize({ pod: 1 });
      const stream = await held.listen({ pod: 1 });
      let serial = 0;
      let empty: string[] = [];
      await until(
        'every query has a sample',
        async () => {
          await load((serial += 1));
          const found = await Promise.all(
            queries.map(async ({ where, expr }) => ({
              where,
              samples: await pipeline.query(expr.replaceAll('$__rate_interval', '1m')),
            })),
          );
          empty = found
            .filter(({ samples }) => !samples.some(({ value }) => value[1] !== 'NaN'))
            .map(({ where }) => where);
          return empty.length === 0;
        },
        { timeoutMs: 150_000, everyMs: 500 },
      ).catch((error: unknown) => {
        throw new Error(`empty after ${serial} rounds: ${empty.join('; ')}`, { cause: error });
      });
      stream.close();
    },
  );

  test(
    '[monitoring.pipeline] links of others are opened: the alert fires and wakes somebody',
    LONG,
    async () => {
      const { url } = await world.askForLink(await world.client('victim').initialize());
      await world.browser('mallory').open(url);
      await until('the first attempt has been scraped', async () => {
        const found = await pipeline.query('viaduct_security_events_total{type="link.wrong_user"}');
        return found.length > 0;
      });
      const notice = await until(
        'the webhook is called',
        async () => {
          await world.browser('mallory').open(url);
          return pipeline.notices.find(({ alerts }) =>
            alerts.some(({ labels }) => labels['alertname'] === 'ViaductWrongUser'),
          );
        },
        { timeoutMs: 120_000, everyMs: 500 },
      );
      expect(notice.status).toBe('firing');
      const alert = notice.alerts.find(({ labels }) => labels['alertname'] === 'ViaductWrongUser')!;
      expect(alert.labels['severity']).toBe('page');
      expect(alert.annotations['summary']).toBe('People open links that are not theirs');
      expect(alert.annotations['runbook_url']).toContain('/docs/runbooks/ViaductWrongUser.md');
      expect(await pipeline.firing()).not.toContain('ViaductNoPods');
      // Tickets go elsewhere.
      const labels = pipeline.notices.flatMap(({ alerts }) => alerts.map((one) => one.labels));
      expect(labels.every(({ severity }) => severity === 'page')).toBe(true);
    },
  );
});
