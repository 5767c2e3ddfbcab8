/**
 * What every process of ours does alike: start → ready → draining → stopped, its logger, metrics and traces, the
 * signals that end it, and a fault in its settings told in one line each. What it serves, and what a drain means
 * to it, is its own.
 */
import { ConfigError, loadSettings, type Settings } from './config.ts';
import { createLogger, type Logger } from './log.ts';
import { createMetrics, DRAIN_STATE, type Metrics } from './metrics.ts';
import { startTracing } from './tracing.ts';
import { VERSION } from './version.ts';

export type ServiceName = 'gateway' | 'worker';
export type LifeState = keyof typeof DRAIN_STATE;

export interface ServiceProcess {
  readonly log: Logger;
  /** A generation has a pod id of its own; its lines bear it. */
  loggerOf(podId: string): Logger;
  readonly metrics: Metrics;
  state(): LifeState;
  /** `ready` is entered only from `starting`: who was told to stop meanwhile stays on its way out. */
  enter(next: LifeState): void;
  /** What `/healthz/ready` says: `ready`, or why not. */
  readiness(isUp: boolean): string;
  /**
   * SIGTERM and SIGINT, however often, run `drain` once, then end the process: exit 0, or 1 where the drain failed.
   */
  onSignal(drain: () => Promise<void>): void;
}

/** Runs one service from its environment. A configuration error is exit 1 with one line per fault on stderr. */
export async function runService(
  service: ServiceName,
  environment: NodeJS.ProcessEnv,
  run: (settings: Settings, self: ServiceProcess) => Promise<void>,
): Promise<void> {
  try {
    const settings = loadSettings(environment, service);
    await run(settings, await startProcess(service, settings));
  } catch (error) {
    // Before there is a logger, a fault is for the person at the terminal: one line each.
    const lines = error instanceof ConfigError ? error.faults : [String(error)];
    process.stderr.write(`${lines.join('\n')}\n`);
    process.exit(1);
  }
}

async function startProcess(service: ServiceName, settings: Settings): Promise<ServiceProcess> {
  const { podId: ownPodId, logLevel: level } = settings.env;
  const loggerOf = (podId: string): Logger =>
    createLogger({ level, service, podId, version: VERSION });
  const log = loggerOf(ownPodId);
  const metrics = createMetrics();
  const tracing = await startTracing({
    otlpEndpoint: settings.config.telemetry?.otlpEndpoint,
    service,
    podId: ownPodId,
    version: VERSION,
  });
  let state: LifeState = 'starting';
  metrics.drainState.set(DRAIN_STATE.starting);
  const enter = (next: LifeState): void => {
    if (next === 'ready' && state !== 'starting') return;
    state = next;
    metrics.drainState.set(DRAIN_STATE[next]);
    log.info({ state }, `${service} is ${state}`);
  };
  // A promise that nobody waits for is a bug of ours, and no reason to cut everybody else's streams.
  process.on('unhandledRejection', (error) => {
    log.error({ err: error }, 'unhandled rejection');
  });

  return {
    log,
    loggerOf,
    metrics,
    state: () => state,
    enter,
    readiness: (isUp) => (state === 'ready' ? (isUp ? 'ready' : 'redis is not reachable') : state),
    onSignal(drain) {
      const stop = async (): Promise<void> => {
        if (state === 'draining' || state === 'stopped') return;
        enter('draining');
        await drain();
        await tracing.stop();
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
    },
  };
}
