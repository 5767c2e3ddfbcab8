/**
 * Boot and drain of a worker. It has no public listener; health and metrics are on ADMIN_PORT. A changed
 * configuration file makes a new generation.
 */
import { createAdminListener } from '@viaduct/shared/admin';
import { nextGeneration, type Settings } from '@viaduct/shared/config';
import { watchConfig } from '@viaduct/shared/config-watch';
import { Generations, type Generation } from '@viaduct/shared/generations';
import { runService } from '@viaduct/shared/service-process';
import { createApp } from './app.ts';

await runService('worker', process.env, async (settings, self) => {
  const { env } = settings;
  const { log, loggerOf, metrics } = self;

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
    ready: () => self.readiness(generations.current.isUp()),
  });
  await admin.start();
  const watch = watchConfig({
    env: process.env,
    current: settings.config,
    log,
    apply: async (config) => generations.replace(build(nextGeneration(settings, config))),
  });
  self.onSignal(async () => {
    watch.stop();
    await generations.end();
    await admin.stop();
  });

  await first.start();
  if (env.secretKeysGenerated) {
    log.warn('VIADUCT_SECRET_KEYS is not set: this worker cannot open what a gateway has sealed');
  }
  self.enter('ready');
});
