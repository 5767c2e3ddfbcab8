/**
 * Boot, signals, drain. start → ready → draining → stopped: readiness fails first, the pod goes on serving for
 * `drain.delaySeconds` (load balancers need that long to notice), then streams end so that their clients go
 * elsewhere, running calls finish, and the process exits 0 within `drain.timeoutSeconds`.
 *
 * A changed configuration file makes a new generation of the App behind the same listeners.
 */
import { createServer } from 'node:http';
import { setTimeout as delay } from 'node:timers/promises';
import { createAdminListener } from '@viaduct/shared/admin';
import { nextGeneration, type Settings } from '@viaduct/shared/config';
import { watchConfig } from '@viaduct/shared/config-watch';
import { Generations, type Generation } from '@viaduct/shared/generations';
import { runService } from '@viaduct/shared/service-process';
import { createApp, type App } from './app.ts';

/** An App with the answers that it still has to give: pages are no calls, but end before it stops, too. */
interface Serving extends Generation {
  readonly app: App;
  readonly delaySeconds: number;
  serve: App['serve'];
}

await runService('gateway', process.env, async (settings, self) => {
  const { env } = settings;
  const { log, loggerOf, metrics } = self;

  /** What an operator asks for in the console is what SIGTERM asks for. */
  const onDrain = (): void => {
    process.kill(process.pid, 'SIGTERM');
  };

  const build = (from: Settings): Serving => {
    const own = metrics.generation();
    const app = createApp(from, { log: loggerOf(from.env.podId), metrics: own.metrics, onDrain });
    let answering = 0;
    return {
      app,
      start: app.start,
      isUp: app.isUp,
      drain: app.drain,
      running: () => Math.max(app.running(), answering),
      async stop() {
        own.stop();
        await app.stop();
      },
      drainSeconds: from.config.drain.timeoutSeconds,
      delaySeconds: from.config.drain.delaySeconds,
      serve(req, res) {
        answering++;
        res.once('close', () => answering--);
        app.serve(req, res);
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
    extra: (...request) => {
      generations.current.app.admin(...request);
    },
    ready: () => self.readiness(generations.current.isUp()),
  });
  const server = createServer({ noDelay: true, requestTimeout: 60_000 }, (req, res) => {
    // Whoever keeps connections for its next requests is told with each answer that this one has none, long before
    // idle ones are closed: a request written into a connection that is just closing would be lost (R5).
    if (self.state() === 'draining') res.shouldKeepAlive = false;
    generations.current.serve(req, res);
  });
  // Longer than a load balancer keeps idle connections, so that it never writes into one we are closing.
  server.keepAliveTimeout = 75_000;
  server.headersTimeout = 30_000;

  await admin.start();
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(env.port, env.host, resolve);
  });
  if (env.secretKeysGenerated) {
    log.warn('VIADUCT_SECRET_KEYS is not set: credentials sealed by this process are lost with it');
  }

  const watch = watchConfig({
    env: process.env,
    current: settings.config,
    log,
    apply: async (config) => generations.replace(build(nextGeneration(settings, config))),
  });

  self.onSignal(async () => {
    watch.stop();
    await delay(generations.current.delaySeconds * 1000);
    server.close();
    server.closeIdleConnections();
    await generations.end();
    server.closeAllConnections();
    await admin.stop();
  });

  await first.start();
  self.enter('ready');
});
