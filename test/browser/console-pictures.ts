import type { Page } from 'playwright-core';
import { until, Gate } from '../support/until.ts';
import { startWorld } from '../support/world.ts';

/** The operators' console with a load behind it: people who wait, streams, an upstream that is away, limits hit. */
export async function startConsoleScenes(): Promise<{
  readonly scenes: Readonly<Record<string, (page: Page, user: string) => Promise<void>>>;
  stop(): Promise<void>;
}> {
  const world = await startWorld({
    pods: 2,
    plainUpstreams: ['plain', 'wiki'],
    config: { limits: { userTool: { points: 5, seconds: 60 } } },
  });
  const { stack } = world;
  const at = (path: string): string => `http://127.0.0.1:${stack.pods[0]!.adminPort}${path}`;
  const people = Array.from({ length: 24 }, (_, i) => `person${i}`);
  const clients = await Promise.all(
    people.map((name, i) =>
      world
        .client(name, { name: i % 3 === 0 ? 'Desk Assistant' : 'Agent' })
        .initialize({ pod: i % 2 }),
    ),
  );
  await Promise.all(clients.map((client, i) => client.listen({ pod: i % 2 })));
  let link = '';
  for (const [i, client] of clients.slice(0, 9).entries()) {
    const asked = await world.askForLink(client);
    if (i < 3) await world.browser(people[i]).open(asked.url);
    if (i === 3) link = asked.elicitationId;
  }
  await world.connect(clients[10]!, people[10]!);
  // One that has come back from the third party, which does not answer.
  world.acme.gates.token = new Gate();
  const slow = await world.askForLink(clients[11]!);
  const browser = world.browser(people[11]);
  await browser.open(slow.url);
  await browser.submit({ decision: 'approve' });
  const busy = world.client(people[0]!, { upstream: 'plain' });
  await busy.initialize();
  for (let n = 0; n < 9; n++) await busy.callTool('echo', { n });
  await world.plain['wiki']!.stop();
  const lost = world.client(people[1]!, { upstream: 'wiki' });
  await until('the heartbeat says so', async () => {
    await lost.post(lost.initializeMessage(), { pod: 0 });
    const page = await stack.pods[0]!.admin('/console/pods');
    return page.text.includes('cannot be reached');
  }, { timeoutMs: 15_000 }); // prettier-ignore
  const show = (path: string) => async (page: Page) => {
    await page.goto(at(path));
  };
  return {
    scenes: {
      'console-waits': show('/console'),
      'console-pods': show('/console/pods'),
      'console-connections': show('/console/connections'),
      'console-elicitations': show('/console/elicitations'),
      'console-record': show(`/console/elicitations?id=${link}`),
      'console-sessions': show(`/console/sessions?user=${world.userId(people[3]!)}`),
    },
    stop: () => world.stop(),
  };
}
