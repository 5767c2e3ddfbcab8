import { afterAll, describe, expect, test } from 'vitest';
import { startStack } from '../support/stack.ts';
import { startConformanceServer } from './server.ts';
import { runSuite, type Run } from './suite.ts';

// The official suite against a server of ours, direct and through two pods behind a round-robin balancer. Both are
// to pass, and what passes direct has to pass through the gateway too (issues 3, item 9, and 4).

const PLENTY = { points: 1_000_000, seconds: 60 };
const server = await startConformanceServer();
const stack = await startStack({
  workers: 0,
  config: {
    auth: { mode: 'none' },
    upstreams: [{ name: 'conformance', url: server.url, allowPrivateNetwork: true }],
    limits: { user: PLENTY, userTool: PLENTY, userElicitations: PLENTY, address: PLENTY },
  },
});
afterAll(async () => {
  await stack.stop();
  await server.stop();
});

const VERSIONS = ['2026-07-28', '2025-11-25', '2025-06-18'];

/** Passed checks of each scenario, direct and through the gateway, where they are not the same. */
function differences(direct: Run, gateway: Run): string[] {
  return direct.scenarios
    .map(({ name }) => `${name}: ${direct.passed(name)} → ${gateway.passed(name)}`)
    .filter((line) => {
      const [, before, after] = /: (\d+) → (\d+)$/.exec(line)!;
      return before !== after;
    });
}

describe.for(VERSIONS)('%s', (version) => {
  test(
    '[conformance] the suite passes as many checks through two pods as direct, and fails none',
    { timeout: 180_000 },
    async () => {
      const direct = await runSuite(server.url, version);
      const served = [...stack.roundRobin!.served];
      const gateway = await runSuite(`${stack.publicUrl}/mcp/conformance`, version);
      console.log(
        `${version}: ${direct.passed()} checks passed direct, ${gateway.passed()} through the gateway`,
      );
      expect(direct.scenarios.length, direct.output.slice(-500)).toBeGreaterThan(20);
      expect(direct.failures, 'the server itself').toEqual([]);
      expect(gateway.failures, 'through the gateway').toEqual([]);
      expect(differences(direct, gateway)).toEqual([]);
      for (const [i, before] of served.entries()) {
        expect(stack.roundRobin!.served[i]! - before, 'each pod has had its share').toBeGreaterThan(
          10,
        );
      }
    },
  );
});
