import type { ThirdParty } from '../support/third-party.ts';
import type { LegacyUpstream } from '../support/legacy-upstream.ts';
import { startModernUpstream, type ModernUpstream } from '../support/modern-upstream.ts';
import { startLegacyUpstream } from '../support/legacy-upstream.ts';
import type { Configuration } from '../support/stack.ts';
import { says, type Tool } from '../support/upstream-tools.ts';
import { startWorld, type World } from '../support/world.ts';
import { setTimeout as pause } from 'node:timers/promises';
import type { Execution } from './checker.ts';
import { startTopology, type RedisTopology, type Topology } from '../support/topologies.ts';

/** What upstreams do to whoever calls them. */
export interface Weather {
  /** Every answer comes this much later. */
  slowMs: number;
  /** One in so many requests is answered with rubbish; 0 for none. */
  liesOneIn: number;
}

export interface ChaosWorld {
  readonly world: World;
  readonly redis: RedisTopology;
  readonly acme: ThirdParty;
  readonly executions: Execution[];
  readonly weather: { upstream: Weather; party: Weather };
  readonly startedMs: number;
  /** Milliseconds since the start, the one clock of the run. */
  now(): number;
  token(user: string, claims?: Record<string, unknown>): string;
  readonly url: string;
  stop(): Promise<void>;
}

const PODS = ['pod1', 'pod2'];
const WORKERS = ['worker1'];
const FORM = {
  type: 'object',
  properties: { name: { type: 'string' } },
  required: ['name'],
};

/** Answers that are none, one after the other. */
const RUBBISH: readonly [status: number, type: string, body: string][] = [
  [500, 'text/plain', 'oops'],
  [200, 'text/html', '<html>Down for maintenance</html>'],
  [200, 'application/json', '{"jsonrpc":"2.0","id":'],
  [200, 'application/json', '{"jsonrpc":"2.0","id":"not-yours","result":{}}'],
  [200, 'application/json', '{"jsonrpc":"2.0","id":1,"result":null}'],
  [200, 'text/event-stream', 'data: {"jsonrpc":"2.0","method":"notifications/mess'],
  [200, 'text/event-stream', 'id: 1\n\n'.slice(0, 5)],
  [302, 'text/plain', ''],
];

/**
 * Two pods, a worker, a balancer that checks readiness, a Redis to break, and three upstreams behind one endpoint:
 * `files` and `plain` of 2025-11-25, `alpha` of 2026-07-28. Their tools note each run with the caller's nonce.
 */
export async function startChaosWorld(
  topology: Topology,
  { env = {}, config = {} }: { env?: Record<string, string>; config?: Configuration } = {},
): Promise<ChaosWorld> {
  const executions: Execution[] = [];
  const startedMs = performance.now();
  const now = (): number => performance.now() - startedMs;
  const weather = {
    upstream: { slowMs: 0, liesOneIn: 0 },
    party: { slowMs: 0, liesOneIn: 0 },
  };
  const tools = (upstream: string): Record<string, Tool> => ({
    mark: {
      description: 'Notes that it ran',
      run: async (args, { notify, progressToken, signal }) => {
        const nonce = String(args['nonce']);
        const steps = Number(args['steps'] ?? 0);
        executions.push({ nonce, upstream, atMs: now() });
        await pause(weather.upstream.slowMs);
        for (let step = 1; step <= steps && !signal.aborted; step++) {
          await pause(Number(args['ms'] ?? 0) / steps);
          if (progressToken !== undefined) notify('notifications/progress', { progressToken, progress: step }); // prettier-ignore
        }
        return says(nonce);
      },
    },
    ask: {
      description: 'Asks a form, and notes when it has its answer',
      run: async (args, { ask }) => {
        await ask('elicitation/create', { message: 'Who are you?', requestedSchema: FORM });
        const nonce = String(args['nonce']);
        executions.push({ nonce, upstream, atMs: now() });
        return says(nonce);
      },
    },
  });
  let served = 0;
  const lying = (upstream: LegacyUpstream | ModernUpstream): void => {
    upstream.intercept = async ({ response }, { message }) => {
      if (upstream.received.length > 1_000) upstream.received.length = 0; // runs may be long
      const { slowMs, liesOneIn } = weather.upstream;
      if (slowMs > 0) await pause(slowMs);
      if (liesOneIn === 0 || message?.method !== 'tools/call' || ++served % liesOneIn !== 0)
        return false;
      const [status, type, body] = RUBBISH[(served / liesOneIn) % RUBBISH.length]!;
      response.writeHead(status, { 'content-type': type });
      response.end(body);
      return true;
    };
  };

  const plain = await startLegacyUpstream({ name: 'plain' });
  const alpha = await startModernUpstream({ name: 'alpha' });
  const redis = await startTopology({
    services: [...PODS, ...WORKERS, 'worker2'],
    topology,
  }).catch(async (error: unknown) => {
    await Promise.all([plain.stop(), alpha.stop()]);
    throw error;
  });
  const stopAll = async (): Promise<void> => {
    await redis.stop();
    await Promise.all([plain.stop(), alpha.stop()]);
  };
  try {
    const world = await startWorld({
      pods: PODS.length,
      workers: WORKERS.length,
      balancer: 'haproxy',
      redisUrlFor: (service) => redis.urlFor(service),
      env: { LOG_LEVEL: 'warn', ...env },
      ownUpstreams: [plain, alpha].map(({ name, endpoint }) => ({ name, url: endpoint })),
      config: { drain: { delaySeconds: 1, timeoutSeconds: 10 }, ...config },
    });
    const { acme, files } = world;
    for (const upstream of [files, plain, alpha]) {
      Object.assign(upstream.tools, tools(upstream.name));
      lying(upstream);
    }
    files.refuses = ({ message, headers }) =>
      message?.method === 'tools/call' &&
      !acme.isValid((headers.authorization ?? '').replace('Bearer ', ''));
    const url = `${world.publicUrl}/mcp`;
    return {
      world,
      redis,
      acme,
      executions,
      weather,
      startedMs,
      now,
      url,
      token: (user, claims = {}) => world.idp.mint({ sub: user, aud: url, ...claims }),
      stop: async () => {
        await world.stop();
        await stopAll();
      },
    };
  } catch (error) {
    await stopAll();
    throw error;
  }
}
