/**
 * `tools/list` on /mcp with many upstreams behind it: one merged list, in both eras, every tool counted.
 *
 *   npm run bench:lists -w @viaduct/test [-- --upstreams 50 --tools 100 --lists 20]
 */
import { parseArgs } from 'node:util';
import { McpClient } from '../support/mcp-client.ts';
import { ModernClient } from '../support/modern-client.ts';
import type { Result } from '../support/net.ts';
import { cpuOf, quantile } from './drive.ts';
import { difference, keep, redisCounts, startProgram, startSetting } from './setting.ts';

const { values } = parseArgs({
  options: {
    upstreams: { type: 'string', default: '50' },
    tools: { type: 'string', default: '100' },
    lists: { type: 'string', default: '20' },
  },
});
const count = Number(values.upstreams);
const tools = Number(values.tools);
const lists = Number(values.lists);

const behind = await startProgram('upstream.ts', [], { BENCH_TOOLS: String(tools) });
const upstreams = Array.from({ length: count }, (_, i) => ({
  name: `server-${i}`,
  url: `${behind.origin}/mcp`,
  protocol: 'legacy',
  allowPrivateNetwork: true,
}));
const setting = await startSetting({ config: { upstreams } });
const { stack } = setting;
const pod = stack.pods[0]!;
const url = `${stack.publicUrl}/mcp`;
const token = setting.token('bench');

/** All pages of one list. */
async function whole(page: (cursor: string | undefined) => Promise<Result>): Promise<number> {
  const names = new Set<string>();
  let bytes = 0;
  let cursor: string | undefined;
  do {
    const result = await page(cursor);
    for (const { name } of result.tools ?? []) names.add(name);
    bytes += JSON.stringify(result).length;
    cursor = result['nextCursor'] as string | undefined;
  } while (cursor !== undefined);
  if (names.size !== count * tools) throw new Error(`${names.size} tools of ${count * tools}`);
  return bytes;
}

try {
  const legacy = await new McpClient({ url, ports: stack.ports, token }).initialize({ pod: 0 });
  const modern = new ModernClient({ url, ports: stack.ports, token });
  const eras = {
    legacy: (cursor?: string) =>
      legacy.begin('tools/list', cursor === undefined ? {} : { cursor }, { pod: 0 }).result(),
    modern: (cursor?: string) =>
      modern.begin('tools/list', cursor === undefined ? {} : { cursor }, { pod: 0 }).result(),
  };
  const rows: Record<string, unknown>[] = [];
  for (const [era, page] of Object.entries(eras)) {
    const bytes = await whole(page);
    const took: number[] = [];
    const cpu = cpuOf([pod.child.pid]);
    const before = await redisCounts(stack);
    for (let i = 0; i < lists; i++) {
      const began = performance.now();
      await whole(page);
      took.push(performance.now() - began);
    }
    const after = cpuOf([pod.child.pid]);
    const redis = difference(before, await redisCounts(stack), lists);
    rows.push({
      era,
      tools: count * tools,
      KB: Math.round(bytes / 1024),
      'p50, ms': Math.round(quantile(took, 0.5)),
      'worst, ms': Math.round(quantile(took, 1)),
      'CPU per list, ms': Math.round(
        ((after.user + after.system - cpu.user - cpu.system) * 1000) / lists,
      ),
      'Redis scripts per list': redis['evalsha'] ?? 0,
    });
  }
  console.table(rows);
  keep('lists', { upstreams: count, rows });
  await legacy.end({ pod: 0 });
} finally {
  await setting.stop();
  await behind.child.kill();
}
process.exit();
