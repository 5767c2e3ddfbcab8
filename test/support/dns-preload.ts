// Runs inside a process of the product, before it: names under `rebind.localhost` are asked of the test's own name
// server, every time and by whoever resolves, instead of the machine's.
import dns from 'node:dns';
import { syncBuiltinESMExports } from 'node:module';

const resolver = new dns.Resolver({ timeout: 5_000, tries: 1 });
resolver.setServers([process.env['TEST_DNS']!]);
const machine = dns.lookup;
type Callback = (
  error: Error | null,
  found?: string | { address: string; family: number }[],
  family?: number,
) => void;

dns.lookup = function lookup(hostname: string, options: unknown, callback?: Callback): void {
  const done = (callback ?? options) as Callback;
  if (!/(^|\.)rebind\.localhost$/.test(hostname)) {
    (machine as (...args: unknown[]) => void)(hostname, options, callback);
    return;
  }
  const all = (options as { all?: boolean } | undefined)?.all === true;
  resolver.resolve4(hostname, (error, addresses) => {
    if (error) done(error);
    else if (all)
      done(
        null,
        addresses.map((address) => ({ address, family: 4 })),
      );
    else done(null, addresses[0], 4);
  });
} as typeof dns.lookup;
syncBuiltinESMExports();
