import { spawnSync } from 'node:child_process';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { freePort, send, type Message } from './net.ts';
import { Child, program, temporaryFolder } from './process.ts';
import type { Stack } from './stack.ts';
import { until } from './until.ts';

export interface Sample {
  metric: Record<string, string>;
  value: [number, string];
}

export interface Prometheus {
  query(expr: string): Promise<Sample[]>;
  /** Trace ids that the buckets of a metric lead to, as of the last minutes. */
  exemplars(metric: string): Promise<string[]>;
  /** Names of the alerts that fire at this moment. */
  firing(): Promise<string[]>;
  stop(): Promise<void>;
}

/** The notice is an Alertmanager webhook's, version 4. */
export interface Notice {
  status: string;
  alerts: { status: string; labels: Record<string, string>; annotations: Record<string, string> }[];
}

export interface Pipeline extends Prometheus {
  readonly notices: Notice[];
}

/** Prometheus of the machine with the rules as they are shipped, scraping every process of the stack. */
export async function startPrometheus(
  stack: Stack,
  options: { rules?: string; alertmanagerPort?: number } = {},
): Promise<Prometheus> {
  const port = await freePort();
  const folder = temporaryFolder();
  const targets = (services: Stack['pods']) => [
    { targets: services.map(({ adminPort }) => `127.0.0.1:${adminPort}`) },
  ];
  const config = {
    global: { scrape_interval: '1s', scrape_timeout: '1s', evaluation_interval: '1s' },
    rule_files: options.rules === undefined ? [] : [options.rules],
    ...(options.alertmanagerPort !== undefined && {
      alerting: {
        alertmanagers: [
          { static_configs: [{ targets: [`127.0.0.1:${options.alertmanagerPort}`] }] },
        ],
      },
    }),
    scrape_configs: [
      { job_name: 'viaduct-gateway', static_configs: targets(stack.pods) },
      { job_name: 'viaduct-worker', static_configs: targets(stack.workers) },
    ],
  };
  const file = join(folder, 'prometheus.yaml');
  writeFileSync(file, JSON.stringify(config)); // JSON is YAML
  const child = new Child('prometheus', program('prometheus', 'prometheus'), [
    `--config.file=${file}`,
    `--storage.tsdb.path=${join(folder, 'data')}`,
    `--web.listen-address=127.0.0.1:${port}`,
    '--enable-feature=exemplar-storage',
  ]);
  const at = (path: string) => `http://127.0.0.1:${port}${path}`;
  await untilAnswers(child, at('/-/ready'));
  return {
    async query(expr) {
      const { status, json, text } = await send(
        at(`/api/v1/query?query=${encodeURIComponent(expr)}`),
      );
      if (status !== 200) throw new Error(`${expr}: ${status} ${text.slice(0, 300)}`);
      return (json as Message & { data: { result: Sample[] } }).data.result;
    },
    async exemplars(metric) {
      const now = Date.now() / 1000;
      const { json } = await send(
        at(`/api/v1/query_exemplars?query=${metric}&start=${now - 600}&end=${now + 60}`),
      );
      const { data } = json as Message & {
        data: { exemplars: { labels: { trace_id: string } }[] }[];
      };
      return data.flatMap(({ exemplars }) => exemplars.map(({ labels }) => labels.trace_id));
    },
    async firing() {
      const { json } = await send(at('/api/v1/alerts'));
      const { alerts } = (
        json as Message & { data: { alerts: { state: string; labels: Record<string, string> }[] } }
      ).data;
      return alerts
        .filter(({ state }) => state === 'firing')
        .map(({ labels }) => labels['alertname']!);
    },
    stop: () => child.kill(),
  };
}

/** Prometheus, Alertmanager behind it, and a webhook that collects what people would be woken with. */
export async function startPipeline(stack: Stack, rules: string): Promise<Pipeline> {
  const notices: Notice[] = [];
  const receiver = createServer((req, res) => {
    let body = '';
    req.setEncoding('utf8').on('data', (text: string) => (body += text));
    req.on('end', () => {
      notices.push(JSON.parse(body) as Notice);
      res.writeHead(200).end();
    });
  });
  await new Promise<void>((resolve) => receiver.listen(0, '127.0.0.1', resolve));
  const { port: webhook } = receiver.address() as AddressInfo;

  const port = await freePort();
  const folder = temporaryFolder();
  const file = join(folder, 'alertmanager.yaml');
  writeFileSync(
    file,
    JSON.stringify({
      route: {
        receiver: 'nobody',
        group_by: ['alertname'],
        group_wait: '1s',
        group_interval: '1s',
        // As it should be routed: what is labelled `page` wakes somebody.
        routes: [{ receiver: 'on-call', matchers: ['severity="page"'] }],
      },
      receivers: [
        { name: 'nobody' },
        {
          name: 'on-call',
          webhook_configs: [{ url: `http://127.0.0.1:${webhook}/`, send_resolved: true }],
        },
      ],
    }),
  );
  const child = new Child(
    'alertmanager',
    program('alertmanager', 'prometheus-alertmanager', ['prometheus-alertmanager']),
    [
      `--config.file=${file}`,
      `--storage.path=${join(folder, 'data')}`,
      `--web.listen-address=127.0.0.1:${port}`,
      '--cluster.listen-address=',
    ],
  );
  await untilAnswers(child, `http://127.0.0.1:${port}/-/ready`);
  const prometheus = await startPrometheus(stack, { rules, alertmanagerPort: port });
  return {
    ...prometheus,
    notices,
    async stop() {
      await prometheus.stop();
      await child.kill();
      await new Promise((resolve) => {
        receiver.close(resolve);
        receiver.closeAllConnections();
      });
    },
  };
}

/** Is there everything that `startPipeline` starts? Where not, its tests are skipped, and say so. */
export function hasPipeline(): boolean {
  const missing = [['prometheus'], ['alertmanager', 'prometheus-alertmanager']].filter(
    (names) => !names.some((name) => spawnSync(name, ['--version']).status === 0),
  );
  if (missing.length > 0) {
    console.warn(
      `no ${missing.map(([name]) => name).join(', ')}: the tests of the alert pipeline are skipped`,
    );
  }
  return missing.length === 0;
}

async function untilAnswers(child: Child, url: string): Promise<void> {
  await until(
    `${child.name} is ready`,
    async () => {
      if (!child.running) throw new Error(`${child.name} ended: ${child.output.slice(-1000)}`);
      return (await send(url).catch(() => undefined))?.status === 200;
    },
    { timeoutMs: 60_000, everyMs: 50 },
  );
}
