import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { afterAll, describe, expect, test } from 'vitest';
import { startModernWorld } from '../support/modern-world.ts';
import { until } from '../support/until.ts';

// The official client of 2026-07-28 as people run it: through the balancer, a new pod for every request.

const at = await startModernWorld();
afterAll(() => at.stop());
const { alpha, drive, world } = at;

async function connect(
  user: string,
  upstream: string,
  mode: 'auto' | { pin: string },
  onLink: (url: string) => Promise<void> = async () => undefined,
) {
  const client = new Client(
    { name: 'sdk v2', version: '1.0.0' },
    { capabilities: { elicitation: { form: {}, url: {} } }, versionNegotiation: { mode } },
  );
  client.setRequestHandler('elicitation/create', async ({ params }) => {
    if (params.mode !== 'url') return { action: 'accept', content: { name: 'Ann' } };
    await onLink(params.url);
    return { action: 'accept' };
  });
  const token = world.idp.mint({ sub: user, aud: at.url(upstream) });
  const requestInit = { headers: { Authorization: `Bearer ${token}` } };
  await client.connect(
    new StreamableHTTPClientTransport(new URL(at.url(upstream)), { requestInit }),
  );
  return client;
}

describe.each(['auto', { pin: '2026-07-28' }] as const)('SDK v2, negotiating %j', (mode) => {
  test('[sdk.v2-modern] tools, progress, a form in rounds, an error, list_changed', async () => {
    const client = await connect('ann', 'alpha', mode);
    expect(client.getServerCapabilities()).toMatchObject({ tools: { listChanged: true } });
    expect((await client.listTools()).tools.map(({ name }) => name)).toContain('echo');
    const progress: number[] = [];
    const tag = `v2-${JSON.stringify(mode).length}`;
    alpha.gate(tag).open();
    await client.callTool(
      { name: 'steps', arguments: { tag } },
      { onprogress: (step) => progress.push(step.progress) },
    );
    expect(progress).toEqual([1, 2, 3, 4]);
    const asked = await client.callTool({ name: 'ask_form', arguments: {} });
    expect(JSON.stringify(asked)).toContain('Ann');
    await expect(client.callTool({ name: 'fail', arguments: {} })).rejects.toMatchObject({
      code: -32123,
    });
    let changes = 0;
    client.setNotificationHandler('notifications/tools/list_changed', () => {
      changes += 1;
    });
    const subscription = await client.listen({ toolsListChanged: true });
    expect(subscription.honoredFilter).toEqual({ toolsListChanged: true });
    await until('the upstream is listened to', () => alpha.listening.size > 0);
    alpha.notify('notifications/tools/list_changed');
    await until('list_changed', () => changes === 1);
    await subscription.close();
    await until('the upstream’s subscription is closed', () => alpha.listening.size === 0);
    await client.close();
  });

  test('[sdk.v2-modern] a missing credential: the link is opened, and the call simply succeeds', async () => {
    const user = `dan-${JSON.stringify(mode).length}`;
    const browser = world.browser(user);
    const links: string[] = [];
    const client = await connect(user, 'drive', mode, async (url) => {
      links.push(url);
      await world.walk(browser, url);
    });
    const result = await client.callTool({ name: 'echo', arguments: { text: 'hi' } });
    expect(JSON.stringify(result.content)).toContain('hi');
    expect(links).toHaveLength(1);
    expect(drive.calls('echo').length).toBeGreaterThan(0);
    await client.close();
  });

  test('[sdk.v2-modern] all upstreams in one', async () => {
    const client = await connect('ann', '', mode);
    const result = await client.callTool({ name: 'alpha__echo', arguments: { text: 'many' } });
    expect(JSON.stringify(result.content)).toContain('many');
    const { resources } = await client.listResources();
    const read = await client.readResource({ uri: resources[0]!.uri });
    expect(read.contents[0]?.uri).toBe(resources[0]!.uri);
    await client.close();
  });
});
