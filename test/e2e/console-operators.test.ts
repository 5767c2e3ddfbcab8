import { afterAll, expect, test } from 'vitest';
import type { CookieBrowser } from '../support/cookie-browser.ts';
import { send, type Answer } from '../support/net.ts';
import { startOauthWorld } from '../support/oauth-world.ts';
import { until } from '../support/until.ts';

// The console for people of a group (issue 7, item 6): they sign in where everybody does, on the public listener, and
// come over with a code that is good once and in their own browser only.

const CONSOLE = 'http://console.localhost:9';
const world = await startOauthWorld({
  builtin: { login: { type: 'development', groups: { olga: ['ops'], pete: ['others'] } } },
  config: { console: { access: 'operators', operatorsGroup: 'ops', url: CONSOLE } },
});
afterAll(() => world.stop());
const { stack, publicUrl } = world;

type Jar = Record<string, string>;

/** A browser's view of the console's origin: cookies in, cookies out. */
async function ask(
  jar: Jar,
  path: string,
  pod = 0,
  form?: Record<string, string>,
): Promise<Answer> {
  const cookie = Object.entries(jar).map((pair) => pair.join('=')).join('; '); // prettier-ignore
  const answer = await send(`${CONSOLE}${path}`, {
    method: form === undefined ? 'GET' : 'POST',
    port: stack.pods[pod]!.adminPort,
    headers: {
      ...(cookie !== '' && { Cookie: cookie }),
      ...(form !== undefined && { 'Content-Type': 'application/x-www-form-urlencoded' }),
    },
    ...(form !== undefined && { body: new URLSearchParams(form).toString() }),
  });
  for (const line of answer.headers['set-cookie'] ?? []) {
    expect(line).toMatch(/HttpOnly/i);
    const [, name = '', value = ''] = /^([^=]+)=([^;]*)/.exec(line) ?? [];
    jar[name] = decodeURIComponent(value);
  }
  return answer;
}

/** From the console to the public listener and back with a code. */
async function fetchCode(jar: Jar, browser: CookieBrowser, pod = 0): Promise<string> {
  const away = await ask(jar, '/console', pod);
  expect(away.status, away.text).toBe(303);
  const address = away.headers.location!;
  expect(address).toMatch(new RegExp(`^${publicUrl}/login/operator/[\\w-]{43}$`));
  const back = await browser.open(address, { stopAt: CONSOLE });
  expect(back.stoppedAt, back.visible).toMatch(/\/console\/enter\?code=[\w-]{43}$/);
  return back.stoppedAt!.slice(CONSOLE.length);
}

async function enter(user: string): Promise<Jar> {
  const jar: Jar = {};
  const entered = await ask(jar, await fetchCode(jar, await world.browser(user)));
  expect(entered.status, entered.text).toBe(303);
  return jar;
}

test('[console.operators] one of the group comes in at one pod and is known at all', async () => {
  const jar = await enter('olga');
  for (const pod of [0, 1]) {
    const page = await ask(jar, '/console', pod);
    expect(page.status).toBe(200);
    expect(page.text).toContain('olga');
    expect(page.headers['x-request-id']).toBeTruthy();
  }
  expect((await ask(jar, '/console/queues')).status).toBe(200);
  expect(stack.audit('console.entered').at(-1)?.audit?.['userId']).toBe(world.userId('olga'));
  expect((await send(`${publicUrl}/console`)).status, 'not in public').toBe(404);
});

test('[console.operators] what is done bears the operator’s name and the request’s id', async () => {
  const jar = await enter('olga');
  const page = await ask(jar, `/console/sessions?user=${world.userId('pete')}`);
  const csrf = /name="csrf" value="([^"]+)"/.exec(page.text)![1]!;
  const form = { user: world.userId('pete') };
  expect((await ask(jar, '/console/users/revoke', 0, form)).status, 'no token').toBe(403);
  const done = await ask(jar, '/console/users/revoke', 1, { ...form, csrf });
  expect(done.status, done.text).toBe(303);
  await until('it is in the audit', () => stack.audit('console.action').length > 0);
  expect(stack.audit('console.action').at(-1)?.audit).toMatchObject({
    action: 'user.revoke',
    userId: world.userId('pete'),
    operator: world.userId('olga'),
    requestId: done.headers['x-request-id'],
  });
});

test('[console.operators] who signs out has to come in anew', async () => {
  const jar = await enter('olga');
  const page = await ask(jar, '/console');
  const csrf = /name="csrf" value="([^"]+)"/.exec(page.text)![1]!;
  expect((await ask(jar, '/console/leave', 1, { csrf })).status).toBe(303);
  expect((await ask(jar, '/console')).headers.location).toContain('/login/operator/');
});

test('[console.operators] nobody else comes in', async () => {
  const jar: Jar = {};
  const away = await ask(jar, '/console');
  const browser = await world.browser('mallory');
  const refused = await browser.open(away.headers.location!, { stopAt: CONSOLE });
  expect(refused.status).toBe(403);
  expect(refused.visible).toContain('for operators');
  expect(stack.audit('console.refused').at(-1)?.audit).toMatchObject({
    reason: 'not_in_group',
    userId: world.userId('mallory'),
  });
  expect((await ask({}, '/console/users/revoke', 0, { user: 'x' })).status).toBe(403);
  const forged = { ...jar, 'viaduct-console-operator': 'x.y.z.a.b' };
  expect((await ask(forged, '/console')).status).toBe(303);
  const elsewhere = await send('http://other.localhost:9/console', {
    port: stack.pods[0]!.adminPort,
  });
  expect(elsewhere.status, 'another name of the same listener').toBe(404);
});

test('[console.operators] a code is good once, and in the browser that asked for it', async () => {
  const olga = await world.browser('olga');
  const jar: Jar = {};
  const code = await fetchCode(jar, olga);
  const attacker: Jar = {};
  await ask(attacker, '/console');
  expect((await ask(attacker, code, 1)).status, 'stolen').toBe(403);
  // Of two at once at both pods, one comes in; the thief has spent nothing.
  const both = await Promise.all([ask({ ...jar }, code), ask({ ...jar }, code, 1)]);
  expect(both.map(({ status }) => status).sort()).toEqual([303, 403]);

  const mine: Jar = {};
  const second = await fetchCode(mine, olga);
  const copy = { ...mine };
  expect((await ask(mine, second)).status).toBe(303);
  expect((await ask(copy, second, 1)).status, 'twice').toBe(403);
  expect(stack.audit('console.refused').at(-1)?.audit).toMatchObject({ reason: 'unknown_code' });
});

test('[console.operators] an operator who is put out is out here, too', async () => {
  const jar = await enter('olga');
  expect((await ask(jar, '/console')).status).toBe(200);
  const revoked = await send(`http://127.0.0.1:${stack.pods[1]!.adminPort}/users/revoke`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ userId: world.userId('olga') }),
  });
  expect(revoked.status).toBe(200);
  for (const pod of [0, 1]) {
    await until(
      `pod ${pod} has heard`,
      async () => (await ask({ ...jar }, '/console', pod)).status === 303,
    );
  }
});
