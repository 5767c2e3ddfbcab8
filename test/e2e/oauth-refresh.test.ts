import { decodeJwt } from 'jose';
import { afterAll, describe, expect, test } from 'vitest';
import { startOauthWorld, type Tokens } from '../support/oauth-world.ts';
import { until } from '../support/until.ts';

// Refresh tokens rotate; a client that asks twice at once, or never saw the answer, is not logged out for it; a
// token that comes back late ends its family (case O6).

const world = await startOauthWorld({ builtin: { refreshGraceSeconds: 2 } });
afterAll(() => world.stop());

const client = await world.registered();
const refresh = (token: string, pod?: number) =>
  world.token(
    { grant_type: 'refresh_token', client_id: client.client_id, refresh_token: token },
    pod,
  );
const fresh = async (user: string): Promise<Tokens> =>
  world.tokens(await world.browser(user), { clientId: client.client_id });

describe('refresh', () => {
  test('[oauth.refresh-parallel] twenty at once end in one rotation and no logout', async () => {
    const tokens = await fresh('alice');
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, index) => refresh(tokens.refresh_token, index % 2)),
    );
    expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 200));
    const next = answers.map(({ json }) => json as unknown as Tokens);
    expect(new Set(next.map(({ refresh_token }) => refresh_token)).size).toBe(1);
    expect(next[0]?.refresh_token).not.toBe(tokens.refresh_token);
    const calls = await Promise.all(next.map(({ access_token }) => world.call(access_token)));
    expect(calls.map(({ status }) => status)).toEqual(calls.map(() => 200));
    expect(decodeJwt(next[0]!.access_token)).toMatchObject({ sub: 'alice', aud: world.endpoint() });
    // and the family goes on
    expect((await refresh(next[0]!.refresh_token)).status).toBe(200);
  });

  test('[oauth.refresh-late] a rotated token that comes back late ends its family', async () => {
    const first = await fresh('bob');
    const second = (await refresh(first.refresh_token)).json as unknown as Tokens;
    const again = (await refresh(first.refresh_token)).json as unknown as Tokens;
    expect(again.refresh_token).toBe(second.refresh_token);
    const began = Date.now();
    await until('the grace is over', () => Date.now() - began > 2_100, { timeoutMs: 5_000 });
    const late = await refresh(first.refresh_token);
    expect([late.status, late.json?.error]).toEqual([400, 'invalid_grant']);
    const family = await refresh(second.refresh_token);
    expect([family.status, family.json?.error]).toEqual([400, 'invalid_grant']);
    expect(world.stack.audit('grant.revoked').length).toBeGreaterThan(0);
  });

  test('[oauth.statuses] unknown client 401, expired or foreign refresh token 400', async () => {
    const { refresh_token } = await fresh('carol');
    const foreign = await world.registered();
    const cases = [
      await world.token({ grant_type: 'refresh_token', client_id: 'nobody', refresh_token }),
      await refresh('not-a-token'),
      await world.token({
        grant_type: 'refresh_token',
        client_id: foreign.client_id,
        refresh_token,
      }),
      await world.token({ grant_type: 'password', client_id: client.client_id }),
    ];
    expect(cases.map(({ status, json }) => [status, json?.error])).toEqual([
      [401, 'invalid_client'],
      [400, 'invalid_grant'],
      [400, 'invalid_grant'],
      [400, 'unsupported_grant_type'],
    ]);
    expect((await refresh(refresh_token)).status).toBe(200);
  });
});
