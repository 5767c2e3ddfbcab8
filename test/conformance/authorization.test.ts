import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { freePort } from '../support/net.ts';
import { startOauthWorld } from '../support/oauth-world.ts';
import { Child, temporaryFolder } from '../support/process.ts';
import { until } from '../support/until.ts';
import { program, type Check } from './suite.ts';

// The official authorization-server scenarios against the built-in server, over two pods behind a round-robin
// balancer. The suite prints the address that a person is to open; a browser with a signed-in person opens it.

const world = await startOauthWorld();
afterAll(() => world.stop());

const VERSIONS = ['2026-07-28', '2025-11-25', '2025-06-18'];

test.for(VERSIONS)(
  '[oauth.conformance] %s: metadata and the code grant, with a person who logs in and allows',
  { timeout: 120_000 },
  async (version) => {
    const port = await freePort();
    const client = await world.registered({ redirect_uris: [`http://127.0.0.1:${port}/callback`] });
    const folder = temporaryFolder();
    const suite = new Child('conformance', process.execPath, [
      ...[program, 'authorization', '--url', world.issuer, '--client-id', client.client_id],
      ...['--resource', world.endpoint(), '--port', String(port), '--spec-version', version],
      ...['--output-dir', folder],
    ]);
    try {
      const address = /^http:\/\/\S+\/authorize\?\S+/m;
      await until(
        'the suite names the address to open',
        () => address.test(suite.stdout) || suite.code !== undefined,
        { timeoutMs: 60_000 },
      );
      const browser = await world.browser('alice');
      const page = await browser.open(address.exec(suite.stdout)?.[0] ?? world.issuer);
      expect(page.visible, 'nothing is sent before a click').toContain('Test client');
      const back = await browser.submit({ decision: 'approve' });
      expect(back.text).toContain('OK.');
      expect(await suite.ended, suite.output).toBe(0);
    } finally {
      await suite.kill();
    }
    const checks = readdirSync(folder, { recursive: true, encoding: 'utf8' })
      .filter((file) => file.endsWith('checks.json'))
      .flatMap((file) => JSON.parse(readFileSync(join(folder, file), 'utf8')) as Check[]);
    expect(new Set(checks.map(({ id }) => id))).toEqual(
      new Set([
        'authorization-server-metadata',
        'authorization-code-grant',
        ...(version >= '2025-11-25' ? ['authorization-server-metadata-cimd'] : []),
      ]),
    );
    expect(checks.filter(({ status }) => status !== 'SUCCESS')).toEqual([]);
  },
);
