import { afterAll, describe, expect, test } from 'vitest';
import type { Answer } from '../support/net.ts';
import { startWorld } from '../support/world.ts';
import { never, until } from '../support/until.ts';

// The key is the user and the session (invariant 2; case S3): another user, another client and a weaker token of the
// same user get nothing out of a session, and cannot tell it from one that does not exist.

const world = await startWorld({
  workers: 0,
  upstream: { connection: undefined, tools: { 'secret_*': { scopes: ['files:secret'] } } },
});
afterAll(() => world.stop());
const { files } = world;
const FULL = { scope: 'mcp:tools files:secret' };
const LIST = { jsonrpc: '2.0', id: 3, method: 'tools/list' };

const bare = ({ status, json }: Answer) => {
  const text = JSON.stringify(json ?? null).replace(/"requestId":"[^"]*"/, '');
  return { status, text };
};

describe('another principal', () => {
  test.for<[string, string, object]>([
    ['another user', 'bob', {}],
    ['the same user with another client', 'alice', { client_id: 'other-client' }],
  ])('[S3] %s finds the 404 of a random id, and disturbs nothing', async ([, user, claims]) => {
    const alice = await world.client('alice', { claims: FULL }).initialize({ pod: 0 });
    const stream = await alice.listen({ pod: 0 });
    const running = alice.beginTool('hold', { gate: `s3-${user}` }, { id: 41 });
    const held = files.ran['hold'] ?? 0;
    await until('the call runs', () => (files.ran['hold'] ?? 0) > held);

    const stranger = alice.as({ token: world.token(user, { ...FULL, ...claims }) });
    const lost = stranger.as({});
    lost.sessionId = 'A'.repeat(22);
    for (const pod of [0, 1]) {
      expect(bare(await stranger.post(LIST, { pod }))).toEqual(
        bare(await lost.post(LIST, { pod })),
      );
      expect(bare(await stranger.get({ pod }))).toEqual(bare(await lost.get({ pod })));
      expect((await stranger.post(LIST, { pod })).status).toBe(404);
      const cancel = await stranger.notify('notifications/cancelled', { requestId: 41 }, { pod });
      expect(cancel.status).toBe(404);
      expect(bare(await stranger.end({ pod }))).toEqual(bare(await lost.end({ pod })));
    }
    expect(files.cancelled).toEqual([]);
    expect(stream.open).toBe(true);
    files.gate(`s3-${user}`).open();
    expect((await running.message()).result).toBeDefined();
    expect((await alice.listTools()).result).toBeDefined();
  });

  test('[S3] ids that play with the key’s form are unknown ids', async () => {
    const alice = await world.client('alice', { claims: FULL }).initialize();
    const id = alice.sessionId!;
    const bob = world.client('bob', { claims: FULL });
    const uid = world.userId('alice');
    for (const forged of [
      `${id}:files`,
      `${uid}:${id}`,
      `{${uid}}:${id}`,
      `}:${id}`,
      `${id}*`,
      `${id}\u00e9`,
    ]) {
      const headers = { 'Mcp-Session-Id': forged };
      expect((await bob.post(LIST, { headers })).status, forged).toBe(404);
      expect((await alice.post(LIST, { headers })).status, forged).toBe(404);
    }
  });

  test('[S3] session ids are visible ASCII, long, and never the same', async () => {
    const clients = await Promise.all(
      Array.from({ length: 20 }, (_, i) => world.client('alice').initialize({ pod: i % 2 })),
    );
    const ids = clients.map(({ sessionId }) => sessionId!);
    expect(new Set(ids).size).toBe(20);
    for (const id of ids) expect(id).toMatch(/^[\x21-\x7e]{20,}$/);
  });
});

describe('a weaker token of the same principal', () => {
  test('[S3] neither runs the tool nor replays what a stronger one was told', async () => {
    const alice = await world.client('alice', { claims: FULL }).initialize({ pod: 0 });
    const call = alice.beginTool('secret_report', {}, { pod: 0, meta: { progressToken: 'p' } });
    const stream = await call.stream();
    expect(JSON.stringify(await call.message())).toContain('the-secret-figures');
    const first = stream.events.find(({ id }) => id !== undefined)!.id!;

    const weak = alice.as({ token: world.token('alice') });
    const before = files.ran['secret_report'];
    for (const pod of [0, 1]) {
      const answer = await weak.get({ pod, lastEventId: first });
      if (answer.stream) {
        await never('the secret is replayed', () => answer.stream!.raw.includes('secret-figures'));
        answer.close();
      } else expect(answer.status).toBe(403);
      const again = await weak.post(
        { ...LIST, method: 'tools/call', params: { name: 'secret_report' } },
        { pod },
      );
      expect(again.status).toBe(403);
    }
    expect(files.ran['secret_report']).toBe(before);

    const replayed = await alice.listen({ pod: 1, lastEventId: first });
    await replayed.message('the result', (message) => message.result !== undefined);
    expect(replayed.raw).toContain('the-secret-figures');
  });
});
