import { randomBytes } from 'node:crypto';
import { afterAll, describe, expect, test } from 'vitest';
import { send } from '../support/net.ts';
import { Gate, until } from '../support/until.ts';
import { startWorld } from '../support/world.ts';

// Refresh ahead of expiry, key rotation, revocation, the connections page (issue 6, items 2, 3, 6 and 8; case O6).

const keyOf = (kid: string): string => `${kid}:${randomBytes(32).toString('base64')}`;
const first = keyOf('first');
const world = await startWorld({ env: { VIADUCT_SECRET_KEYS: first } });
afterAll(() => world.stop());
const { acme, files } = world;
const bearer = (header = '') => header.replace(/^Bearer /, '');
const vaultKey = (user: string) => `viaduct:vault:{${world.userId(user)}}:acme-drive`;
const kidOf = (sealed: string): unknown =>
  (JSON.parse(Buffer.from(sealed.split('.')[0]!, 'base64url').toString()) as { kid: unknown }).kid;

async function connected(user: string, expiresInSeconds: number) {
  acme.expiresInSeconds = expiresInSeconds;
  const client = await world.client(user).initialize();
  await world.connect(client, user);
  return client;
}

describe('ahead of expiry', () => {
  test('[refresh.ahead] the worker renews what is in use; 30 calls on two pods at that moment: one refresh, none fails', async () => {
    const client = await connected('ann', 8);
    acme.expiresInSeconds = 3600;
    const gate = new Gate();
    acme.gates.token = gate;
    files.refuses = ({ message, headers }) =>
      message?.method === 'tools/call' && !acme.isValid(bearer(headers.authorization));
    const before = { refreshes: acme.refreshes, reuses: acme.reuses };
    // used, more than a moment after it was stored
    const stored = performance.now();
    await until('some use later', () => performance.now() - stored > 500);
    expect((await client.callTool('echo', {})).result).toBeDefined();
    await until('the worker is at the token endpoint, unasked', () => gate.arrived > 0);
    // The old token still lives: calls do not wait. Then it is nearly over, and they do.
    expect((await client.callTool('echo', {})).result).toBeDefined();
    const newest = acme.issued.findLast((value) => value.includes('access'))!;
    await until('the old token has run out', () => !acme.isValid(newest));
    const calls = Promise.all(
      Array.from({ length: 30 }, (_, n) => client.callTool('echo', { n }, { pod: n % 2 })),
    );
    gate.open();
    for (const message of await calls)
      expect(message.result, JSON.stringify(message)).toBeDefined();
    acme.gates.token = undefined;
    files.refuses = undefined;
    expect(acme.refreshes - before.refreshes).toBe(1);
    expect(acme.reuses - before.reuses).toBe(0);
    expect(await world.stack.metric('viaduct_jobs_total', { queue: 'refresh-connection' })).toBe(1);
  });

  test('[refresh.unused] what nobody has used is left alone', async () => {
    const before = acme.refreshes;
    await connected('bea', 2);
    await until('the worker has looked', () => world.stack.output().includes('"result":"unused"'));
    expect(acme.refreshes).toBe(before);
  });
});

describe('disconnect', () => {
  test('[revoke.hint] both tokens are revoked, and named as what they are (RFC 7009, 2.1)', async () => {
    await connected('cleo', 3600);
    const [refresh, access] = [
      acme.issued.findLast((value) => value.includes('refresh'))!,
      acme.issued.findLast((value) => value.includes('access'))!,
    ];
    const browser = world.browser('cleo');
    const page = await browser.open(`${world.publicUrl}/connections`);
    expect(page.visible).toMatch(/Since \d{4}-\d\d-\d\d \d\d:\d\d UTC ?, last used/);
    expect(page.visible).toContain('test-client');
    await browser.press('/connections/acme-drive/disconnect');
    expect(acme.revocations.slice(-2)).toEqual([refresh, access]);
    expect(acme.revocationHints.slice(-2)).toEqual(['refresh_token', 'access_token']);
    expect(await world.stack.redis.client.exists(vaultKey('cleo'))).toBe(0);
  });

  test('[revoke.there] a grant revoked at the third party ends in a new link at the next call', async () => {
    const client = await connected('dan', 3600);
    acme.revokeNewest();
    files.refuses = ({ message, headers }) =>
      message?.method === 'tools/call' && !acme.isValid(bearer(headers.authorization));
    await world.askForLink(client);
    files.refuses = undefined;
  });
});

describe('a user who is put out', () => {
  const putOut = (subject: string, connections?: boolean) =>
    send(`http://127.0.0.1:${world.stack.pods[1]!.adminPort}/users/revoke`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ subject, connections }),
    });

  test('[revoke.flows] flows that wait are cancelled; connections stay unless it is asked', async () => {
    await connected('ida', 3600);
    const waiting = await world.client('jan').initialize();
    const { elicitationId } = await world.askForLink(waiting);
    expect((await putOut('jan')).status).toBe(200);
    const record = `viaduct:elicitation:{${world.userId('jan')}}:${elicitationId}`;
    expect(await world.stack.redis.client.hget(record, 'state')).toBe('cancelled');
    expect((await putOut('ida')).status).toBe(200);
    expect(await world.stack.redis.client.exists(vaultKey('ida'))).toBe(1);
  });

  test('[revoke.connections] with connections they go too, and are revoked at the third party', async () => {
    await connected('kai', 3600);
    const before = acme.revocations.length;
    const answer = await putOut('kai', true);
    expect(answer.json).toMatchObject({ userId: world.userId('kai'), connections: true });
    expect(acme.revocations.length).toBe(before + 2);
    expect(await world.stack.redis.client.exists(vaultKey('kai'))).toBe(0);
  });
});

describe('key rotation', () => {
  test('[rotate.reseal] a worker that starts with a new first key seals everything again; calls go on', async () => {
    const client = await connected('eva', 3600);
    const { client: redis } = world.stack.redis;
    expect(kidOf((await redis.get(vaultKey('eva')))!)).toBe('first');
    const ttl = await redis.pttl(vaultKey('eva'));
    world.stack.env['VIADUCT_SECRET_KEYS'] = `${keyOf('second')},${first}`;
    for (const pod of world.stack.pods) {
      await pod.child.kill();
      await world.stack.restart(pod);
    }
    const [worker] = world.stack.workers;
    await worker!.child.kill();
    await world.stack.restart(worker!);
    await until('it is sealed with the new key', async () => {
      return kidOf((await redis.get(vaultKey('eva')))!) === 'second';
    });
    expect(await redis.pttl(vaultKey('eva'))).toBeLessThanOrEqual(ttl);
    await until('it is told', () => world.stack.audit('vault.resealed').length > 0);
    expect(world.stack.audit('vault.resealed').at(-1)!.audit).toMatchObject({ kid: 'second' });
    expect(
      await world.stack.metric('viaduct_resealed_total', { outcome: 'resealed' }),
    ).toBeGreaterThan(0);
    expect((await client.callTool('echo', {})).result).toBeDefined();
  });

  test('[rotate.gone] a credential whose key is gone: an error that names the key, and nobody else is touched', async () => {
    const fin = await connected('fin', 3600);
    const gil = await connected('gil', 3600);
    const { client: redis } = world.stack.redis;
    const sealed = (await redis.get(vaultKey('fin')))!;
    const [head, ...rest] = sealed.split('.');
    const header = JSON.parse(Buffer.from(head!, 'base64url').toString()) as object;
    const renamed = Buffer.from(JSON.stringify({ ...header, kid: 'lost-key' })).toString(
      'base64url',
    );
    await redis.set(vaultKey('fin'), [renamed, ...rest].join('.'), 'KEEPTTL');
    const answer = await fin.callTool('echo', {});
    expect(JSON.stringify(answer.error)).toContain('lost-key');
    expect((await gil.callTool('echo', {})).result).toBeDefined();
    const browser = world.browser('fin');
    const page = await browser.open(`${world.publicUrl}/connections`);
    expect(page.status).toBe(200);
    expect(page.visible).toContain('lost-key');
    await browser.press('/connections/acme-drive/disconnect');
    await world.connect(fin, 'fin');
    expect((await fin.callTool('echo', {})).result).toBeDefined();
  });
});
