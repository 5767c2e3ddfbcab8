/**
 * Notices that the configuration file has changed, by a rewrite or by the swapped symlink of a ConfigMap, and
 * hands over what is valid. What is not is one log line per fault, said once, and the old configuration stays.
 *
 * Looks at the content, not at events: those of a mounted folder differ by kernel and by file system. A text is
 * believed when it is the same on two looks in a row, so that half a rewrite is no fault.
 */
import { readFileSync } from 'node:fs';
import type { Logger } from 'pino';
import { ConfigError, configPath, parseConfig, type Config } from './config.ts';

export interface ConfigWatch {
  stop(): void;
}

export interface ConfigWatchDeps {
  readonly env: NodeJS.ProcessEnv;
  readonly current: Config;
  readonly log: Logger;
  /** The process goes on with this one when it resolves; when it rejects, with the one before. */
  apply(config: Config): Promise<void>;
  readonly everyMs?: number;
}

export function watchConfig(deps: ConfigWatchDeps): ConfigWatch {
  const { env, log, apply, everyMs = 500 } = deps;
  const path = configPath(env);
  let current = deps.current;
  let active = read(path);
  let seen = active;
  let judged = active;
  let busy = false;
  let stopped = false;

  async function look(): Promise<void> {
    const text = read(path);
    const settled = text === seen;
    seen = text;
    // A file that is away for a moment is being replaced; one that stays away changes nothing either.
    if (text === undefined || !settled || text === judged) return;
    judged = text;
    if (text === active) {
      log.info('the configuration file is again the one in use');
      return;
    }
    try {
      const next = parseConfig(text, env);
      if (next.publicUrl !== current.publicUrl) {
        // Keys, cookies and every registered redirect hang on it.
        throw new ConfigError(['publicUrl: a change of this needs a restart']);
      }
      if (next.telemetry?.otlpEndpoint !== current.telemetry?.otlpEndpoint) {
        throw new ConfigError(['telemetry: a change of this needs a restart']);
      }
      await apply(next);
      current = next;
      active = text;
      log.info('the changed configuration is in use');
    } catch (error) {
      if (!(error instanceof ConfigError)) {
        log.error(
          { err: error },
          'the changed configuration could not be taken; the old one stays',
        );
        return;
      }
      for (const fault of error.faults) {
        log.error({ fault }, `configuration refused, the old one stays: ${fault}`);
      }
    }
  }

  const timer = setInterval(() => {
    if (busy || stopped) return;
    busy = true;
    void look().finally(() => {
      busy = false;
    });
  }, everyMs);
  timer.unref();
  return {
    stop() {
      stopped = true;
      clearInterval(timer);
    },
  };
}

function read(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined;
  }
}
