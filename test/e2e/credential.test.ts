import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { FOREIGN_CHALLENGE } from '../support/legacy-upstream.ts';
import { textOf, type McpClient } from '../support/mcp-client.ts';
import { MISSING_CREDENTIAL, startWorld } from '../support/world.ts';
import { Gate, until } from '../support/until.ts';

// What the next call carries (issue 2, item 9; invariant 9; case O6, the vault's side).

const world = await startWorld();
afterAll(() => world.stop());
const { acme, files } = world;
const bearer = (header = '') => header.replace(/^Bearer /, '');

beforeEach(() => {
  acme.expiresInSeconds = 3600;
  acme.omitRefreshToken = false;
  acme.gates.token = undefined;
  files.refuses = undefined;
});

async function connected(user: string, expiresInSeconds = 3600): Promise<McpClient> {
  acme.expiresInSeconds = expiresInSeconds;
  const client = await world.client(user).initialize();
  await world.connect(client, user);
  acme.expiresInSeconds = 3600;
  return client;
}

/** Connected at the start, and tried again at the end. */
const aged = { client: await connected('zoe'), connectedAt: performance.now() };

/** The newest token has run out. */
const expired = () =>
  until('the token has expired', () => {
    return !acme.isValid(acme.issued.findLast((value) => value.includes('access'))!);
  });

/** `count` calls at once, alternating between the pods. */
function flood(client: McpClient, count: number) {
  return Promise.all(
    Array.from({ length: count }, (_, i) => client.callTool('echo', { n: i }, { pod: i % 2 })),
  );
}

/** The upstream as it should be: it takes the third party's valid tokens and nothing else. */
const strict = () => {
  files.refuses = ({ message, headers }) =>
    message?.method === 'tools/call' && !acme.isValid(bearer(headers.authorization));
};

describe('a token that has run out', () => {
  test('[cred.refresh-once] 30 calls over both pods refresh it once, and all succeed', async () => {
    const client = await connected('ann', 1);
    await expired();
    strict();
    const before = { refreshes: acme.refreshes, reuses: acme.reuses };
    const gate = new Gate(); // the third party takes its time, so that everybody comes
    acme.gates.token = gate;
    const calls = flood(client, 30);
    await until('a refresh is under way', () => gate.arrived > 0);
    gate.open();
    for (const message of await calls)
      expect(message.result, JSON.stringify(message)).toBeDefined();
    expect(acme.refreshes - before.refreshes).toBe(1);
    expect(acme.reuses - before.reuses).toBe(0);
    expect(
      await world.stack.metric('viaduct_token_refreshes_total', { connection: 'acme-drive' }),
    ).toBeGreaterThanOrEqual(1);
  });

  test('[cred.keep-refresh] a refresh token that the answer omits is kept for the next time', async () => {
    const client = await connected('ben', 1);
    acme.omitRefreshToken = true;
    const before = acme.refreshes;
    for (const round of [1, 2]) {
      await expired();
      acme.expiresInSeconds = round === 1 ? 1 : 3600;
      const answer = await client.callTool('echo', { round }, { pod: round % 2 });
      expect(textOf(answer), JSON.stringify(answer)).toBe(`{"round":${round}}`);
    }
    expect(acme.refreshes - before).toBeGreaterThanOrEqual(2);
    expect(acme.reuses).toBe(0);
  });

  test('[cred.refused-refresh] invalid_grant ends in a new link, for all callers the same', async () => {
    const client = await connected('cleo', 1);
    await expired();
    acme.revokeNewest();
    const answers = await flood(client, 10);
    const ids = answers.map(({ error }) => error?.data?.elicitations?.[0]?.elicitationId);
    expect(answers.map(({ error }) => error?.code)).toEqual(answers.map(() => MISSING_CREDENTIAL));
    expect(new Set(ids).size).toBe(1);
  });

  test('[cred.passing-fault] a third party that is down for a moment costs no credential', async () => {
    const client = await connected('dan', 1);
    await expired();
    strict();
    acme.failTokens('server-error', 3);
    const [during] = await flood(client, 1);
    expect(during!.error?.code).not.toBe(MISSING_CREDENTIAL);
    await until('it works again without a new link', async () => {
      const { result, error } = await client.callTool('echo', {});
      expect(error?.code).not.toBe(MISSING_CREDENTIAL);
      return result;
    });
  });
});

describe('an upstream that answers 401', () => {
  test('[cred.rejected] a fresh token that it does not take ends in one new link for all callers, and nothing runs', async () => {
    const client = await connected('eva');
    strict();
    acme.expireAll(); // while the vault thinks it good for an hour
    const before = files.ran['echo'] ?? 0;
    const answers = await flood(client, 10);
    const links = answers.map(({ error }) => error?.data?.elicitations?.[0]?.elicitationId);
    // a refresh would do as well: what may not be is a mixture, or a call that runs twice
    if (links.some((link) => link !== undefined)) expect(new Set(links).size).toBe(1);
    const ran = answers.filter(({ result }) => result !== undefined).length;
    expect((files.ran['echo'] ?? 0) - before).toBe(ran);
    expect(acme.reuses).toBe(0);
  });

  test('[cred.no-relayed-challenge] one that takes no token at all ends in a new link, never in its own challenge', async () => {
    const client = await connected('fin');
    files.refuses = ({ message }) => message?.method === 'tools/call';
    const call = client.beginTool('echo', {});
    const { error } = await call.message();
    const { status, headers } = await call.http;
    expect(error?.code).toBe(MISSING_CREDENTIAL);
    expect(status).toBe(200);
    expect(headers['www-authenticate']).toBeUndefined();
    expect(JSON.stringify(error)).not.toContain(FOREIGN_CHALLENGE);
    expect(JSON.stringify(error)).not.toContain('elsewhere.example');
  });

  test('[cred.reconnect] the new link works, though the old credential was there', async () => {
    const client = await connected('gil');
    acme.revokeNewest();
    strict();
    const asked = await world.askForLink(client);
    const browser = world.browser('gil');
    await world.walk(browser, asked.url);
    await world.untilState(browser, asked.url, 'completed');
    expect(textOf(await client.callTool('echo', { ok: 1 }))).toBe('{"ok":1}');
  });
});

describe('where tokens go', () => {
  test('[cred.sealed] the vault is not readable, and holds the user and the connection in its key only', async () => {
    await connected('hal');
    const key = `viaduct:vault:{${world.userId('hal')}}:acme-drive`;
    const sealed = (await world.stack.redis.client.get(key)) ?? '';
    expect(sealed.length).toBeGreaterThan(100);
    const dump = await world.stack.redis.dump();
    for (const secret of [...acme.issued, ...world.secrets]) {
      expect(dump.filter(({ key, value }) => (key + value).includes(secret))).toEqual([]);
    }
    // someone who can write to Redis cannot move it to another user
    const { client } = world.stack.redis;
    const thief = await world.client('ivo').initialize();
    const asked = await world.connect(thief, 'ivo');
    expect(asked).toBeDefined();
    await client.set(`viaduct:vault:{${world.userId('ivo')}}:acme-drive`, sealed, 'EX', 600);
    const before = files.ran['echo'] ?? 0;
    const answer = await thief.callTool('echo', {});
    expect(answer.result?.isError ?? answer.error !== undefined, JSON.stringify(answer)).toBe(true);
    expect(files.ran['echo'] ?? 0).toBe(before);
  });

  test('[cred.disconnect] disconnecting revokes at the third party, and the next call needs a link again', async () => {
    const client = await connected('joy');
    const browser = world.browser('joy');
    const page = await browser.open(`${world.publicUrl}/connections`);
    expect(page.visible).toContain('Acme Drive');
    const revoked = acme.revocations.length;
    const after = await browser.press('/connections/acme-drive/disconnect');
    expect(after.status).toBeLessThan(400);
    await until('the grant is revoked', () => acme.revocations.length > revoked);
    expect(world.stack.audit('consent.withdrawn').length).toBeGreaterThan(0);
    await world.askForLink(client);
  });
});

test('[cred.rejected] a token of some age that it no longer takes is refreshed once, and each call runs once', async () => {
  const { client, connectedAt } = aged;
  await until('the token is no longer brand-new', () => performance.now() - connectedAt > 11_000, {
    timeoutMs: 15_000,
  });
  strict();
  acme.expireAll(); // while the vault thinks it good for an hour
  const before = { refreshes: acme.refreshes, ran: files.ran['echo'] ?? 0 };
  for (const message of await flood(client, 10)) {
    expect(message.result, JSON.stringify(message)).toBeDefined();
  }
  expect(acme.refreshes - before.refreshes).toBe(1);
  expect(acme.reuses).toBe(0);
  expect((files.ran['echo'] ?? 0) - before.ran).toBe(10);
});
