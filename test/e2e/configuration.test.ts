import { writeFileSync, readFileSync } from 'node:fs';
import { afterAll, describe, expect, test } from 'vitest';
import { startRefused, type Configuration } from '../support/stack.ts';
import { startWorld } from '../support/world.ts';
import { until } from '../support/until.ts';

// The file and the environment (design, sections 4 and 5; issue 2, item 3): every fault is one readable line that
// names its path, and the exit code is 1.

const sound: Configuration = {
  publicUrl: 'http://localhost:8080',
  auth: {
    mode: 'external',
    issuer: 'http://127.0.0.1:9/',
    login: { clientId: 'v', clientSecret: 's' },
  },
  upstreams: [{ name: 'files', url: 'http://127.0.0.1:9/mcp', connection: 'acme' }],
  connections: {
    acme: {
      type: 'oauth',
      displayName: 'Acme',
      issuer: 'http://127.0.0.1:9',
      clientId: 'c',
      clientSecret: 's',
      scopes: ['a'],
      inject: { header: 'Authorization', value: 'Bearer {{accessToken}}' },
    },
  },
};
const connection = (more: Configuration) => ({ ...sound, connections: { acme: more } });

async function faults(config: Configuration | string, env = {}): Promise<string[]> {
  const { code, lines } = await startRefused(config, { env });
  expect(code).toBe(1);
  expect(lines.join('\n')).not.toMatch(/^\s+at .*\.(js|ts):\d+/m); // no stack for a person's typing error
  return lines;
}

const naming = (...parts: RegExp[]): unknown =>
  expect.stringMatching(new RegExp(parts.map((part) => part.source).join('.*')));

describe('faults', () => {
  test('[config.faults] several faults are several lines, each with its path', async () => {
    const lines = await faults({
      ...sound,
      colour: 'blue',
      sessions: { ttlSeconds: -1, ttlSecond: 5 },
      upstreams: [{ name: 'Bad Name', url: 'ftp://x', timeoutSeconds: 'soon' }],
      limits: { user: { points: 0, seconds: 60 } },
    });
    for (const path of [
      /colour/,
      /sessions\.ttlSeconds/,
      /ttlSecond\b/,
      /upstreams[.[]0\]?\.name/,
      /upstreams[.[]0\]?\.url/,
      /upstreams[.[]0\]?\.timeoutSeconds/,
      /limits\.user\.points/,
    ]) {
      expect(lines).toContainEqual(naming(path));
    }
    expect(lines.length).toBeGreaterThanOrEqual(7);
  });

  test('[config.faults] what does not fit together, names nothing, or is not safe', async () => {
    const acme = { ...(sound['connections'] as Record<string, Configuration>)['acme'] };
    const lines = await faults({
      ...sound,
      publicUrl: 'http://localhost:8080/gateway',
      auth: { mode: 'external', issuer: '${NOT_SET_ANYWHERE}' },
      upstreams: [
        { name: 'files', url: 'http://127.0.0.1:9/mcp', connection: 'nowhere' },
        { name: 'files', url: 'http://127.0.0.1:9/mcp' },
      ],
      connections: { acme: { ...acme, inject: { header: 'Bad Header', value: 'x' } } },
      elicitation: { ttlSeconds: 0 },
    });
    for (const path of [
      /publicUrl/,
      /auth\.issuer.*NOT_SET_ANYWHERE/,
      /upstreams[.[]0\]?\.connection/,
      /upstreams[.[]1\]?\.name/,
      /connections\.acme\.inject/,
      /elicitation\.ttlSeconds/,
    ]) {
      expect(lines).toContainEqual(naming(path));
    }
  });

  test('[config.faults] nothing at all, and development settings in public', async () => {
    expect(await faults('{}')).toContainEqual(naming(/publicUrl/));
    const open = { ...sound, publicUrl: 'https://mcp.example.com' };
    expect(await faults({ ...open, auth: { mode: 'none' } })).toContainEqual(naming(/auth/));
    expect(await faults(open)).toContainEqual(naming(/auth\.issuer/));
  });

  test('[config.file] a missing file and one that is no YAML are told in a line', async () => {
    expect(await faults(sound, { VIADUCT_CONFIG: '/nowhere/viaduct.yaml' })).toContainEqual(
      naming(/\/nowhere\/viaduct\.yaml/),
    );
    expect((await faults('publicUrl: [unclosed')).length).toBeGreaterThan(0);
  });

  test('[config.environment] no keys in public, a bad keyring, a bad port, a bad REDIS_URL', async () => {
    const open = {
      ...sound,
      publicUrl: 'https://mcp.example.com',
      auth: { mode: 'external', issuer: 'https://idp.example' },
    };
    expect(await faults(open, { VIADUCT_SECRET_KEYS: '' })).toContainEqual(
      naming(/VIADUCT_SECRET_KEYS/),
    );
    expect(await faults(sound, { VIADUCT_SECRET_KEYS: 'k1:c2hvcnQ=' })).toContainEqual(
      naming(/VIADUCT_SECRET_KEYS/),
    );
    expect(await faults(sound, { PORT: 'eighty' })).toContainEqual(naming(/PORT/));
    expect(await faults(sound, { REDIS_URL: 'mysql://x' })).toContainEqual(naming(/REDIS_URL/));
    expect(await faults(sound, { REDIS_URL: undefined })).toContainEqual(naming(/REDIS_URL/));
  });

  test('[config.secrets] a fault never shows the value of a secret', async () => {
    const lines = await faults(
      connection({
        ...(sound['connections'] as Record<string, Configuration>)['acme'],
        clientSecret: '${ACME}',
        scopes: 5,
      }),
      { ACME: 'hunter2-hunter2', VIADUCT_SECRET_KEYS: 'k1:aHVudGVyMw==' },
    );
    expect(lines.join('\n')).not.toMatch(/hunter2|aHVudGVyMw/);
  });

  test('[config.worker] the worker refuses the same file in the same way', async () => {
    const { code, lines } = await startRefused({ ...sound, colour: 'blue' }, { service: 'worker' });
    expect(code).toBe(1);
    expect(lines).toContainEqual(naming(/colour/));
  });
});

describe('a changed file', async () => {
  const world = await startWorld({ pods: 1, workers: 0, plainUpstreams: ['plain'] });
  afterAll(() => world.stop());

  test('[config.reload] a bad one is refused and the old one kept', async () => {
    const { configFile, pods } = world.stack;
    const before = readFileSync(configFile, 'utf8');
    writeFileSync(configFile, before.replace('"publicUrl"', '"colour": "blue", "publicUrl"'));
    await until('the fault is logged', () => world.stack.output().includes('colour'));
    const client = await world.client('ann', { upstream: 'plain' }).initialize();
    expect((await client.listTools()).result?.tools).toBeDefined();
    expect(pods[0]!.child.running).toBe(true);
    writeFileSync(configFile, before);
  });
});
