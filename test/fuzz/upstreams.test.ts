import fc from 'fast-check';
import { afterAll, expect, test } from 'vitest';
import { INSPECTED } from '../support/heap.ts';
import { startLegacyUpstream, type LegacyUpstream } from '../support/legacy-upstream.ts';
import { McpClient } from '../support/mcp-client.ts';
import { ModernClient } from '../support/modern-client.ts';
import { startModernUpstream, type ModernUpstream } from '../support/modern-upstream.ts';
import type { Answer, Message } from '../support/net.ts';
import { startWorld } from '../support/world.ts';
import { oddAnswer, say, type OddAnswer } from './answers.ts';
import { expectSound, fuzz, FUZZ_TIMEOUT_MS, heaps } from './bounds.ts';

// Upstreams of both revisions that answer with anything, to clients of both, on the endpoint of one and of many: each
// call gets one answer with its own id, in time, and none that says that the gateway itself went wrong.

const plain = await startLegacyUpstream({ name: 'plain' });
const alpha = await startModernUpstream({ name: 'alpha' });
const timeoutSeconds = 2;
const world = await startWorld({
  workers: 0,
  ownUpstreams: [
    { name: 'plain', url: plain.endpoint, timeoutSeconds },
    { name: 'alpha', url: alpha.endpoint, timeoutSeconds },
  ],
  env: { ...INSPECTED, LOG_LEVEL: 'warn' },
  config: { sessions: { streamAfterMs: 100, ttlSeconds: 60 } },
});
afterAll(async () => {
  await world.stop();
  await Promise.all([plain.stop(), alpha.stop()]);
});
const { stack } = world;
/** A call, and what of it the gateway itself asks for first. */
const PATIENCE_MS = 15_000;

const METHODS = ['tools/call', 'tools/call', 'tools/call', 'tools/list', 'prompts/get', 'resources/read', 'completion/complete', 'initialize', 'server/discover'] as const; // prettier-ignore

/** The next request of this method is answered so. */
function arm(upstream: LegacyUpstream | ModernUpstream, method: string, odd: OddAnswer): () => void {
  upstream.received.length = 0;
  upstream.intercept = ({ response }, { message, text }) => {
    if (message?.method !== method) return false;
    const id = /"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)/.exec(text)?.[1] ?? 'null';
    say(response, odd, id);
    return true;
  };
  return () => (upstream.intercept = undefined);
} // prettier-ignore

const one = fc.record({
  client: fc.constantFrom('legacy' as const, 'modern' as const),
  upstream: fc.constantFrom('plain' as const, 'alpha' as const),
  many: fc.boolean(),
  method: fc.constantFrom(...METHODS),
  odd: oddAnswer,
  pod: fc.nat(1),
});

const optionsFor = (path: string, pod: number) => ({
  url: `http://localhost:${stack.ports[pod]}${path}`,
  token: world.idp.mint({ sub: 'fuzz', aud: `${world.publicUrl}${path}` }),
  capabilities: { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} },
});

/** A client with a session is told to poll where the upstream polls: it asks on with the last event id. */
async function finalOf(first: Answer, id: string | number, client?: McpClient): Promise<Message> {
  const deadline = performance.now() + PATIENCE_MS;
  let lastEventId: string | undefined;
  for (let http = first; ;) {
    if (!http.stream) {
      expect(http.status, http.text.slice(0, 300)).toBeLessThan(500);
      expect(http.json, http.text.slice(0, 300)).toBeDefined();
      return http.json!;
    }
    const { stream } = http;
    try {
      return await stream.message('the answer', (message) => message.method === undefined && message.id === id, deadline - performance.now()); // prettier-ignore
    } catch (error) {
      lastEventId = stream.lastEventId ?? lastEventId;
      if (stream.open || client === undefined || lastEventId === undefined) throw error;
      http = await client.get({ lastEventId });
    } finally {
      stream.close();
    }
  }
}

test('[fuzz.upstreams] answers that are wrong somewhere', { timeout: FUZZ_TIMEOUT_MS }, async () => {
  const before = await heaps(stack);
  let serial = 0;
  const runs = await fuzz(one, async ({ client, upstream, many, method, odd, pod }) => {
    const path = many ? '/mcp' : `/mcp/${upstream}`;
    const name = many ? `${upstream}__echo` : 'echo';
    const server = upstream === 'plain' ? plain : alpha;
    const params = { name, arguments: {}, uri: many ? `${upstream}+res://doc/1` : 'res://doc/1', ref: { type: 'ref/prompt', name } }; // prettier-ignore
    const id = `call-${++serial}`;
    let message: Message;
    if (client === 'legacy') {
      const legacy = new McpClient(optionsFor(path, pod));
      if (method === 'initialize' || method === 'server/discover') {
        const disarm = arm(server, method, odd);
        message = await finalOf(await legacy.post(legacy.initializeMessage(id)), id);
        disarm();
      } else {
        await legacy.initialize();
        const disarm = arm(server, method, odd);
        message = await finalOf(await legacy.begin(method, params, { id }).http, id, legacy);
        disarm();
        await legacy.end();
      }
    } else {
      const modern = new ModernClient(optionsFor(path, pod));
      const disarm = arm(server, method, odd);
      const asked = method === 'initialize' ? 'tools/call' : method;
      message = await finalOf(await modern.begin(asked, params, { id }).http, id);
      disarm();
    }
    const { code, message: words, data } = message.error ?? {};
    expect(message.id, `${code} ${words}`).toBe(id);
    expect(data?.reason, words).not.toBe('internal');
    expect('result' in message || code !== undefined).toBe(true);
  });
  expect(runs).toBeGreaterThan(5);
  await expectSound(stack, before);
}); // prettier-ignore
