/** Composition of a worker: what its jobs need, built from one configuration. */
import { setTimeout as delay } from 'node:timers/promises';
import { createAudit } from '@viaduct/shared/audit';
import { createAuditSinks } from '@viaduct/shared/audit-sinks';
import type { Settings } from '@viaduct/shared/config';
import { createCredentials } from '@viaduct/shared/credentials';
import { createEgress } from '@viaduct/shared/egress';
import { createElicitations } from '@viaduct/shared/elicitations';
import { createFlows } from '@viaduct/shared/flows';
import type { Generation } from '@viaduct/shared/generations';
import { createJobQueue } from '@viaduct/shared/jobs';
import { createKeyring } from '@viaduct/shared/keyring';
import { createLeases } from '@viaduct/shared/lease';
import type { Logger } from '@viaduct/shared/log';
import type { Metrics } from '@viaduct/shared/metrics';
import { closeRedis, connectRedis } from '@viaduct/shared/redis/client';
import { createRedisHealth } from '@viaduct/shared/redis-health';
import { createRegistrations } from '@viaduct/shared/registrations';
import { createScripts } from '@viaduct/shared/redis/scripts';
import { createThirdParty } from '@viaduct/shared/third-party';
import { createVault } from '@viaduct/shared/vault';
import { createAuditDelivery } from './audit-delivery.ts';
import { createCheckSecret } from './jobs/check-secret.ts';
import { createEndSession } from './jobs/end-session.ts';
import { createExchangeCode } from './jobs/exchange-code.ts';
import { createExpireElicitation } from './jobs/expire-elicitation.ts';
import { createRefreshConnection } from './jobs/refresh-connection.ts';
import { createResealVault, planReseal } from './jobs/reseal-vault.ts';
import { createWorkers } from './workers.ts';

export function createApp(
  { env, config }: Settings,
  { log, metrics }: { log: Logger; metrics: Metrics },
): Generation {
  const redis = connectRedis(env.redisUrl, 'commands', { log });
  const queueRedis = connectRedis(env.redisUrl, 'queue', { log });
  const scripts = createScripts(redis, metrics);
  const health = createRedisHealth({ redis, metrics, log });
  const sinks = createAuditSinks({
    config,
    redis,
    service: 'worker',
    podId: env.podId,
    log,
  });
  const audit = createAudit({ log, metrics, sinks });
  const keyring = createKeyring(env.secretKeys);
  const egress = createEgress({ development: config.development, proxy: env.httpsProxy });
  const jobs = createJobQueue({ redis: queueRedis, log });
  const vault = createVault({ redis, scripts, keyring, config });
  const elicitations = createElicitations({ redis, scripts, jobs, metrics, audit, log, config });
  const flows = createFlows({ redis, scripts, keyring, elicitations });
  const { publicUrl, development } = config;
  const thirdParty = createThirdParty({ egress, publicUrl, development });
  const leases = createLeases({ redis, scripts });
  const registrations = createRegistrations({ redis, scripts, keyring, publicUrl });
  const credentials = createCredentials({
    vault,
    leases,
    thirdParty,
    registrations,
    jobs,
    metrics,
    audit,
    log,
  });
  const workers = createWorkers({
    redis: queueRedis,
    metrics,
    log,
    handlers: {
      'exchange-code': createExchangeCode({
        config,
        elicitations,
        flows,
        vault,
        thirdParty,
        registrations,
        credentials,
        audit,
      }),
      'check-secret': createCheckSecret({
        config,
        elicitations,
        flows,
        vault,
        credentials,
        egress,
        audit,
      }),
      'refresh-connection': createRefreshConnection({ config, credentials }),
      'reseal-vault': createResealVault({ redis, scripts, keyring, jobs, metrics, audit }),
      'expire-elicitation': createExpireElicitation({ elicitations, jobs }),
      'end-session': createEndSession({ config, redis, jobs, vault, egress, audit }),
    },
  });
  const delivery = createAuditDelivery({ config, redis, leases, egress, metrics, log });
  let running = 0;

  return {
    async start() {
      metrics.onScrape(async () => {
        for (const { queue, state, count } of await jobs.depths()) {
          metrics.queueDepth.set({ queue, state }, count);
        }
      });
      metrics.onScrape(async () => {
        metrics.elicitationsPending.set({ mode: 'url' }, await elicitations.countUnfinished('url'));
      });
      health.start();
      await workers.start();
      delivery.start();
      // Keys that are made up at each start have nothing that they could have sealed.
      if (env.secretKeysGenerated) return;
      try {
        if (await planReseal({ redis, keyring, jobs }, env.podId)) {
          log.info(
            { kid: keyring.kid },
            'a new first key: what older keys have sealed is resealed',
          );
        }
      } catch (error) {
        log.warn({ err: error }, 'resealing is not planned; the next start does it');
      }
    },
    isUp: health.isUp,
    drain() {
      running = 1;
      void workers.drain().then(() => {
        running = 0;
      });
    },
    running: () => running,
    drainSeconds: config.drain.timeoutSeconds,
    async stop() {
      if (running > 0) {
        log.warn('jobs still run; another worker will take them over');
        await Promise.race([workers.abandon(), delay(1_000)]);
      }
      health.stop();
      await Promise.race([Promise.all([delivery.stop(), sinks.stop()]), delay(1_000)]);
      await Promise.race([Promise.all([jobs.close(), egress.close()]), delay(1_000)]);
      await Promise.all([redis, queueRedis].map((client) => closeRedis(client)));
    },
  };
}
