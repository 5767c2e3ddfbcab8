/**
 * Composition: builds every part of the gateway once and hands each what it needs. The only file that sees
 * everything; the order of the routes is here.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { setTimeout as delay } from 'node:timers/promises';
import express from 'express';
import type { Logger } from 'pino';
import type { AdminExtension } from '@viaduct/shared/admin';
import { createAssertions } from '@viaduct/shared/assertions';
import { createAudit } from '@viaduct/shared/audit';
import { createAuditSinks } from '@viaduct/shared/audit-sinks';
import type { Settings } from '@viaduct/shared/config';
import { createConsents } from '@viaduct/shared/consents';
import { createCredentials } from '@viaduct/shared/credentials';
import { createEgress } from '@viaduct/shared/egress';
import { createElicitations } from '@viaduct/shared/elicitations';
import { fail, storeUnavailable } from '@viaduct/shared/errors';
import { createEventBus, createPodChannel } from '@viaduct/shared/event-bus';
import { createFlows } from '@viaduct/shared/flows';
import { createJobQueue } from '@viaduct/shared/jobs';
import { createKeyring } from '@viaduct/shared/keyring';
import { createLeases } from '@viaduct/shared/lease';
import type { Metrics } from '@viaduct/shared/metrics';
import { createLimits, rateLimited } from '@viaduct/shared/rate-limit';
import { closeRedis, connectRedis } from '@viaduct/shared/redis/client';
import { createRedisHealth } from '@viaduct/shared/redis-health';
import { createRegistrations } from '@viaduct/shared/registrations';
import { createScripts } from '@viaduct/shared/redis/scripts';
import { createThirdParty } from '@viaduct/shared/third-party';
import { addressSubject } from '@viaduct/shared/address';
import { createTokenExchange } from '@viaduct/shared/token-exchange';
import { createUpstreamOAuth } from '@viaduct/shared/upstream-oauth';
import { createVault } from '@viaduct/shared/vault';
import { VERSION } from '@viaduct/shared/version';
import { createAuthenticator, developerOf } from './auth.ts';
import { createConnections } from './connections/connections.ts';
import { createConsole } from './console/console.ts';
import { createEdge } from './edge.ts';
import { createLoad } from './load.ts';
import { watchEventLoop } from './event-loop.ts';
import { createMcp } from './mcp/mcp.ts';
import {
  createAuthorizationServer,
  createResourceMetadata,
  createSigningKeys,
} from './oauth/oauth.ts';
import { createPages, errorPage } from './pages/pages.ts';
import { createOperatorCodes } from './operator-codes.ts';
import { createResponder, rpcErrorText } from './respond.ts';
import { createRevocations, createRevoked } from './revocations.ts';
import { createUpstreams } from './upstream/upstream.ts';

export interface App {
  /** The public listener's requests. */
  serve(req: IncomingMessage, res: ServerResponse): void;
  /** The admin listener's, beside health and metrics. */
  readonly admin: AdminExtension;
  /** Resolves once the pod is subscribed and its heartbeat is visible. */
  start(): Promise<void>;
  /** False while Redis does not answer. */
  isUp(): boolean;
  /** Ends streams so that clients come back to another pod; calls under way go on. */
  drain(): void;
  /** Calls still under way. */
  running(): number;
  stop(): Promise<void>;
}

export interface AppDeps {
  readonly log: Logger;
  readonly metrics: Metrics;
  /** An operator wants this pod to drain and end. */
  onDrain(): void;
}

export function createApp({ env, config }: Settings, deps: AppDeps): App {
  const { log, metrics } = deps;
  const redis = connectRedis(env.redisUrl, 'commands', { log });
  const subscriber = connectRedis(env.redisUrl, 'subscriber', { log });
  const queueRedis = connectRedis(env.redisUrl, 'queue', { log });
  const scripts = createScripts(redis, metrics);
  const health = createRedisHealth({ redis, metrics, log });
  const sinks = createAuditSinks({
    config,
    redis,
    service: 'gateway',
    podId: env.podId,
    log,
  });
  const audit = createAudit({ log, metrics, sinks });
  const keyring = createKeyring(env.secretKeys);
  const egress = createEgress({ development: config.development, proxy: env.httpsProxy });
  const leases = createLeases({ redis, scripts });
  const limits = createLimits({ redis, scripts, config: config.limits, metrics, log });
  const jobs = createJobQueue({ redis: queueRedis, log });
  const vault = createVault({ redis, scripts, keyring, config });
  const consents = createConsents({ redis, config });
  const elicitations = createElicitations({ redis, scripts, jobs, metrics, audit, log, config });
  const flows = createFlows({ redis, scripts, keyring, elicitations });
  const { publicUrl, development } = config;
  const thirdParty = createThirdParty({ egress, publicUrl, development });
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
  const assertions = createAssertions({ keyring, publicUrl });
  const tokenExchange = createTokenExchange({
    vault,
    leases,
    thirdParty,
    assertions,
    metrics,
    audit,
  });
  const upstreamOAuth = createUpstreamOAuth({
    egress,
    registrations,
    leases,
    thirdParty,
    publicUrl,
    development,
  });
  const connections = createConnections({
    config,
    credentials,
    tokenExchange,
    consents,
    elicitations,
    limits,
  });
  const upstreams = createUpstreams({ config, egress });
  const eventLoop = watchEventLoop(config.limits.concurrent.maxEventLoopDelayMs);
  const load = createLoad({ limits: config.limits, metrics, eventLoop });
  const edge = createEdge({ config, audit });
  const revoked = createRevoked();
  const signing = config.auth.mode === 'builtin' ? createSigningKeys(keyring) : undefined;
  const auth = createAuthenticator({
    config,
    log,
    metrics,
    audit,
    ...(signing !== undefined && { builtinKeys: signing }),
    isRevoked: revoked.isRevoked,
  });
  const responder = createResponder({ log, page: errorPage });
  const bus = createEventBus({ scripts, sessions: config.sessions, podId: env.podId, metrics });

  let openStreams = 0;
  const streamsOpen: Metrics['streamsOpen'] = {
    set(labels, value) {
      metrics.streamsOpen.set(labels, value);
    },
    inc(labels, by = 1) {
      openStreams += by;
      metrics.streamsOpen.inc(labels, by);
    },
    dec(labels, by = 1) {
      openStreams -= by;
      metrics.streamsOpen.dec(labels, by);
    },
  };
  const mcp = createMcp({
    config,
    redis,
    scripts,
    bus,
    leases,
    jobs,
    limits,
    upstreams,
    connections,
    elicitations,
    keyring,
    metrics: { ...metrics, streamsOpen },
    audit,
    log,
    podId: env.podId,
    recognize: auth.recognize,
    authenticate: auth.authenticate,
    admit: load.admit,
    requireScopes: auth.requireScopes,
    hasScopes: auth.hasScopes,
    async onUnauthenticated(req) {
      if (load.refused(req)) return;
      const verdict = await limits.check('address', addressSubject(edge.addressOf(req)));
      if (!verdict.allowed) throw rateLimited(verdict);
    },
    tooMany(verdict, requestId, { userId, clientId }) {
      audit.record({ type: 'rate.limited', limit: verdict.limit, requestId, userId, clientId });
      return rateLimited(verdict);
    },
    respondError: responder.rpc,
    errorText: ({ requestId, idText }, error) =>
      rpcErrorText(responder.explain(error, requestId), requestId, idText),
  });

  const channel = createPodChannel({
    redis,
    subscriber,
    podId: env.podId,
    log,
    describe: () => ({
      version: VERSION,
      streams: openStreams,
      running: mcp.running,
      upstreams: Object.fromEntries(
        upstreams.all.map((one) => [one.name, [mcp.eraOf(one) ?? '', one.lostAtMs ?? 0]]),
      ),
      limited: Object.fromEntries(
        metrics.rateLimited.values().map(({ labels: { limit }, value }) => [limit, value]),
      ),
    }),
    onNudge(nudge) {
      if (nudge.kind === 'drain') deps.onDrain();
      else mcp.nudge(nudge);
    },
    onGap: mcp.gap,
  });

  const authorizationServer =
    config.auth.mode === 'builtin' && signing !== undefined
      ? createAuthorizationServer({
          config,
          auth: config.auth,
          redis,
          scripts,
          keyring,
          signing,
          egress,
          edge,
          limits,
          audit,
          log,
          isUp: health.isUp,
          explain: responder.explain,
          errorPage,
        })
      : undefined;

  const revocations = createRevocations(
    {
      config,
      redis,
      scripts,
      elicitations,
      consents,
      credentials,
      audit,
      log,
      onRevoked: mcp.endUser,
      withdrawAll: (userId) => authorizationServer?.withdrawAll(userId) ?? Promise.resolve(),
    },
    revoked,
  );

  const operatorCodes = createOperatorCodes({ redis, keyring });
  const web = express();
  web.disable('x-powered-by');
  web.set('trust proxy', config.trustProxy);
  web.use(createResourceMetadata({ config, edge }));
  if (authorizationServer !== undefined) web.use(authorizationServer.router);
  web.use(edge.middleware());
  // Pages live on Redis as much as sessions do; an answer now beats a login that cannot end well.
  web.use((_req, _res, next) => {
    next(health.isUp() ? undefined : storeUnavailable(undefined));
  });
  web.use(
    createPages({
      config,
      keyring,
      redis,
      consents,
      credentials,
      elicitations,
      flows,
      jobs,
      thirdParty,
      vault,
      upstreamOAuth,
      assertions,
      egress,
      limits,
      audit,
      log,
      addressOf: edge.addressOf,
      operatorCodes,
      isRevoked: revoked.isRevoked,
      ...(authorizationServer !== undefined && { authorizationServer }),
      ...(config.auth.mode === 'none' && { fixedUser: developerOf(config) }),
    }),
  );
  web.use((_req, _res, next) => {
    next(fail('not_found', 'There is nothing at this address.'));
  });
  web.use(responder.handler);

  const admin = express();
  admin.disable('x-powered-by');
  admin.use(revocations.handle);
  admin.use(
    createConsole({
      config,
      redis,
      scripts,
      elicitations,
      jobs,
      audit,
      podId: env.podId,
      upstreams: upstreams.all.map(({ name, config: { url, protocol } }) => {
        const { origin, pathname } = new URL(url);
        return { name, url: origin + pathname, protocol };
      }),
      keyring,
      codes: operatorCodes,
      isRevoked: revoked.isRevoked,
      revoke: revocations.revoke,
    }),
  );

  async function serveMcp(
    req: IncomingMessage,
    res: ServerResponse,
    pathname: string,
  ): Promise<void> {
    const { requestId, headers, refused, preflight } = edge.visit(req);
    if (refused !== undefined) {
      responder.rpc({ res, requestId, idText: 'null', headers }, refused);
    } else if (preflight !== undefined) {
      res.writeHead(204, preflight).end();
    } else {
      const full = load.arrive(req, res);
      if (full !== undefined) responder.rpc({ res, requestId, idText: 'null', headers }, full);
      else await mcp.handle(req, res, { pathname, requestId, headers });
    }
  }

  return {
    serve(req, res) {
      const pathname = pathOf(req);
      if (mcp.owns(pathname)) void serveMcp(req, res, pathname);
      else web(req, res);
    },
    admin,
    async start() {
      health.start();
      auth.warm();
      await channel.start();
      mcp.start();
      revocations.start();
    },
    isUp: health.isUp,
    drain: mcp.drain,
    running: () => mcp.running,
    async stop() {
      revocations.stop();
      eventLoop.stop();
      await mcp.stop();
      await channel.stop();
      health.stop();
      await Promise.race([sinks.stop(), delay(1_000)]);
      await Promise.all([upstreams.close(), egress.close(), jobs.close()]);
      await Promise.all([redis, subscriber, queueRedis].map((client) => closeRedis(client)));
    },
  };
}

const pathOf = (req: IncomingMessage): string => {
  const url = req.url ?? '/';
  const query = url.indexOf('?');
  return query < 0 ? url : url.slice(0, query);
};
