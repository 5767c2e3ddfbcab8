import { createLocalJWKSet, jwtVerify, type JSONWebKeySet } from 'jose';
import { afterAll, describe, expect, test } from 'vitest';
import { startThirdParty } from '../support/third-party.ts';
import { until } from '../support/until.ts';
import { startWorld } from '../support/world.ts';

// `type: token-exchange` (issue 6, item 3; RFC 8693): who the user is becomes a token for this audience.

const sts = await startThirdParty({ clients: { viaduct: { secret: 'sts-secret-of-the-test' } } });
const world = await startWorld({
  config: {
    connections: {
      'acme-drive': {
        type: 'token-exchange',
        displayName: 'Reports',
        tokenEndpoint: `${sts.url}/token`,
        audience: 'reports',
        clientId: 'viaduct',
        clientSecret: 'sts-secret-of-the-test',
        scopes: ['reports.read'],
      },
    },
  },
});
afterAll(async () => {
  await world.stop();
  await sts.stop();
});
let serial = 0;
let lifetime = 3600;
let refuse: string | undefined;
const forms: URLSearchParams[] = [];
sts.otherGrant = (form) => {
  forms.push(form);
  if (refuse !== undefined) return { error: refuse };
  return {
    access_token: `internal-${++serial}`,
    issued_token_type: 'urn:ietf:params:oauth:token-type:access_token',
    token_type: 'Bearer',
    expires_in: lifetime,
  };
};
const sent = () => world.files.calls('echo').at(-1)!.headers.authorization;

describe('a call', () => {
  test('[exchange.call] carries a token for the upstream, got for a statement of ours about the user, once', async () => {
    const client = world.client('ann');
    await client.initialize();
    const before = forms.length;
    const answers = await Promise.all(
      Array.from({ length: 10 }, (_, n) => client.callTool('echo', { n }, { pod: n % 2 })),
    );
    for (const { result } of answers) expect(result).toBeDefined();
    expect(forms.length - before).toBeLessThanOrEqual(1);
    expect(sent()).toMatch(/^Bearer internal-/);
    const form = forms.at(-1)!;
    expect(Object.fromEntries(form)).toMatchObject({
      grant_type: 'urn:ietf:params:oauth:grant-type:token-exchange',
      subject_token_type: 'urn:ietf:params:oauth:token-type:jwt',
      audience: 'reports',
      scope: 'reports.read',
    });
    const page = await world.browser().open(`${world.publicUrl}/connect/jwks.json`);
    expect(page.text).not.toContain('"d"');
    const keys = createLocalJWKSet(page.json as unknown as JSONWebKeySet);
    const { payload } = await jwtVerify(form.get('subject_token')!, keys, {
      issuer: world.publicUrl,
      audience: `${sts.url}/token`,
    });
    expect(payload).toMatchObject({ sub: 'ann', original_iss: world.idp.url });
    expect(payload.exp! - payload.iat!).toBeLessThanOrEqual(60);
  });

  test("[exchange.own-token] the client's own token goes nowhere", async () => {
    const token = world.token('bea');
    const client = await world.client('bea', { token }).initialize();
    expect((await client.callTool('echo', {})).result).toBeDefined();
    const seen = JSON.stringify([
      sts.tokenRequests,
      world.files.received.map(({ headers, text }) => [headers, text]),
    ]);
    expect(seen).not.toContain(token);
    const dump = JSON.stringify(await world.stack.redis.dump()) + world.stack.output();
    expect(dump).not.toContain(`internal-${serial}"`);
    expect(dump).not.toContain(forms.at(-1)!.get('subject_token')!);
  });

  test('[exchange.users] each user has a token of his own', async () => {
    const client = await world.client('cid').initialize();
    const before = sent();
    await client.callTool('echo', {});
    expect(sent()).not.toBe(before);
  });

  test('[exchange.expiry] near its expiry another one is got', async () => {
    lifetime = 1;
    const client = await world.client('dan').initialize();
    await client.callTool('echo', {});
    const first = sent();
    lifetime = 3600;
    const at = performance.now();
    await until('it has run out', () => performance.now() - at > 1_100);
    expect((await client.callTool('echo', {})).result).toBeDefined();
    expect(sent()).not.toBe(first);
  });

  test('[exchange.refused] a refusal is explained, and nobody is sent anywhere', async () => {
    refuse = 'invalid_target';
    const client = world.client('eva');
    const opened = await client.initialize().then(
      (ready) => ready.callTool('echo', {}),
      (error: unknown) => ({ error: { message: String(error) } }),
    );
    refuse = undefined;
    expect(JSON.stringify(opened)).toMatch(/does not give you access/);
    const page = await world.browser('eva').open(`${world.publicUrl}/connections`);
    expect(page.visible).toMatch(/Reports.*Automatic/);
    expect(page.forms.some(({ action }) => action.includes('acme-drive'))).toBe(false);
  });
});
