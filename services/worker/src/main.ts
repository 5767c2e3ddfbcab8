/**
 * Boot, signals, drain of a worker: start → ready → draining → stopped, as in the gateway. It has no public
 * listener; health and metrics are on ADMIN_PORT. A changed configuration file makes a new generation.
 */
import { createAdminListener } from '@viaduct/shared/admin';
import { ConfigError, loadSettings, nextGeneration, type Settings } from '@viaduct/shared/config';
import { watchConfig } from '@viaduct/shared/config-watch';
import { Generations, type Generation } from '@viaduct/shared/generations';
import { createLogger } from '@viaduct/shared/log';
import { createMetrics, DRAIN_STATE } from '@viaduct/shared/metrics';
import { startTracing } from '@viaduct/shared/tracing';
import { VERSION } from '@viaduct/shared/version';
import { createApp } from './app.ts';

type State = keyof typeof DRAIN_STATE;

async function run(settings: Settings): Promise<void> {
  const { env } = settings;
  const loggerOf = (podId: string) =>
    createLogger({ level: env.logLevel, service: 'worker', podId, version: VERSION });
  const log = loggerOf(env.podId);
  const metrics = createMetrics();
  const tracing = await startTracing({
    otlpEndpoint: settings.config.telemetry?.otlpEndpoint,
    service: 'worker',
    podId: env.podId,
    version: VERSION,
  });
  let state: State = 'starting';
  const enter = (next: State): void => {
    state = next;
    metrics.drainState.set(DRAIN_STATE[next]);
    log.info({ state }, `worker is ${state}`);
  };
  metrics.drainState.set(DRAIN_STATE.starting);
  // A promise that nobody waits for is a bug of ours, and no reason to cut everybody else's streams.
  process.on('unhandledRejection', (error) => {
    log.error({ err: error }, 'unhandled rejection');
  });

  const build = (from: Settings): Generation => {
    const own = metrics.generation();
    const app = createApp(from, { log: loggerOf(from.env.podId), metrics: own.metrics });
    return {
      ...app,
      async stop() {
        own.stop();
        await app.stop();
      },
    };
  };
  const generations = new Generations(build(settings), { log });
  const first = generations.current;

  const admin = createAdminListener({
    host: env.host,
    port: env.adminPort,
    metrics,
    log,
    ready: () =>
      state === 'ready' ? (generations.current.isUp() ? 'ready' : 'redis is not reachable') : state,
  });
  await admin.start();
  const watch = watchConfig({
    env: process.env,
    current: settings.config,
    log,
    apply: async (config) => generations.replace(build(nextGeneration(settings, config))),
  });

  let stopping = false as boolean;
  const stop = async (): Promise<void> => {
    if (stopping) return;
    stopping = true;
    enter('draining');
    watch.stop();
    await generations.end();
    await tracing.stop();
    await admin.stop();
    enter('stopped');
    process.exit(0);
  };
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.on(signal, () => {
      stop().catch((error: unknown) => {
        log.error({ err: error }, 'the drain failed');
        process.exit(1);
      });
    });
  }

  await first.start();
  if (env.secretKeysGenerated) {
    log.warn('VIADUCT_SECRET_KEYS is not set: this worker cannot open what a gateway has sealed');
  }
  if (!stopping) enter('ready');
}

try {
  await run(loadSettings(process.env, 'worker'));
} catch (error) {
  // Before there is a logger, a fault is for the person at the terminal: one line each.
  const lines = error instanceof ConfigError ? error.faults : [String(error)];
  process.stderr.write(`${lines.join('\n')}\n`);
  process.exit(1);
}
