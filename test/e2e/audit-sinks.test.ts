import { createHmac } from 'node:crypto';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { temporaryFolder } from '../support/process.ts';
import { until } from '../support/until.ts';
import { startWorld } from '../support/world.ts';

// Audit records beside the log (issue 7, item 5): a file, and a webhook that is sometimes down.

interface AuditRecord {
  id: string;
  time: string;
  service: string;
  type: string;
  userId?: string;
}

const SECRET = 'a secret of the test';
const got: AuditRecord[] = [];
const forged: string[] = [];
let status = 503;
let refused = 0;
const receiver = http.createServer((req, res) => {
  let body = '';
  req.setEncoding('utf8');
  req.on('data', (part: string) => (body += part));
  req.on('end', () => {
    const [, t = '', v1] =
      /^t=(\d+),v1=(\w+)$/.exec(String(req.headers['x-viaduct-signature'])) ?? [];
    if (createHmac('sha256', SECRET).update(`${t}.${body}`).digest('hex') !== v1) forged.push(body);
    if (status === 200) got.push(...(JSON.parse(body) as { records: AuditRecord[] }).records);
    else refused++;
    res.writeHead(status).end();
  });
});
await new Promise<void>((resolve) => {
  receiver.listen(0, '127.0.0.1', resolve);
});
const { port } = receiver.address() as AddressInfo;
const file = join(temporaryFolder(), 'audit.jsonl');
const world = await startWorld({
  workers: 2,
  plainUpstreams: ['plain'],
  config: {
    audit: {
      sinks: [
        { type: 'stdout' },
        { type: 'file', path: file },
        { type: 'webhook', url: `http://127.0.0.1:${port}/audit`, secret: '${AUDIT_SECRET}' },
      ],
    },
  },
  env: { AUDIT_SECRET: SECRET },
});
afterAll(async () => {
  await world.stop();
  receiver.close();
});

const inFile = (): AuditRecord[] =>
  readFileSync(file, 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as AuditRecord);

test('[audit.webhook] every record arrives once, signed and in order, though the receiver was down', async () => {
  const users = Array.from({ length: 6 }, (_, index) => `user${index}`);
  for (const user of users) await world.client(user, { upstream: 'plain' }).initialize({ pod: 0 });
  await until('it has been tried', () => refused >= 2);
  // the worker that tried it is gone; the other one takes over
  await world.stack.workers[0]!.child.kill();
  status = 200;
  const started = () => got.filter(({ type }) => type === 'session.started');
  await until('all are there', () => started().length >= users.length, { timeoutMs: 60_000 });
  expect(started().map(({ userId }) => userId)).toEqual(users.map((user) => world.userId(user)));
  expect(new Set(got.map(({ id }) => id)).size).toBe(got.length);
  expect(forged).toEqual([]);
  // the workers' own records (a vault that has been sealed again) may come before, between or after them
  for (const record of started())
    expect(record).toMatchObject({ service: 'gateway', time: expect.any(String) });
  await until('nothing waits', async () => {
    const [key] = (await world.stack.redis.client.keys('viaduct:audit:*')).filter(
      (name) => !name.endsWith(':lease'),
    );
    return key === undefined || (await world.stack.redis.client.xlen(key)) === 0;
  });
}, 90_000);

test('[audit.file] a line each, with what the log has', async () => {
  await until('they are written', () => inFile().length >= 6);
  const ofLog = world.stack.audit('session.started').map(({ audit }) => audit!['sessionId']);
  const ofFile = inFile().filter(({ type }) => type === 'session.started');
  expect(ofFile.map((record) => (record as unknown as { sessionId: string }).sessionId)).toEqual(
    ofLog,
  );
});

test('[audit.documented] docs/audit.md has every type of event', () => {
  const root = join(import.meta.dirname, '../..');
  const source = readFileSync(join(root, 'packages/shared/src/audit.ts'), 'utf8');
  const events = source.slice(source.indexOf('interface Events'), source.indexOf('type AuditType'));
  const types = [...events.matchAll(/^ {2}'?([a-z]+(?:\.[a-z_]+)?)'?: /gm)].map(
    ([, type]) => type!,
  );
  expect(types.length).toBeGreaterThan(30);
  const page = readFileSync(join(root, 'docs/audit.md'), 'utf8');
  expect(types.filter((type) => !page.includes(`\`${type}\``))).toEqual([]);
});
