/**
 * The only module that constructs Redis clients.
 *
 * A role decides how a client behaves while Redis is away: request-path commands fail at once (the caller
 * answers 503 within its two seconds), subscribers and queues wait and reconnect. No client is shared between
 * roles: a subscriber cannot send commands, and BullMQ's blocking reads would stall a request.
 */
import { Cluster, Redis as Standalone, type ClusterOptions, type RedisOptions } from 'ioredis';
import type { Logger } from 'pino';

export type Redis = Standalone | Cluster;
/** Without the reply mapping, whose type does not take `undefined`; we use ioredis' own default. */
type Options = Omit<RedisOptions, 'replyMapping'>;
export type RedisRole = 'commands' | 'subscriber' | 'queue';

/** Longest that one command may take on the request path, milliseconds: twice this, and 503 is still in time. */
export const COMMAND_TIMEOUT_MS = 800;
const CONNECT_TIMEOUT_MS = 2_000;
const RECONNECT_CAP_MS = 500;

export interface RedisAddress {
  readonly kind: 'standalone' | 'sentinel' | 'cluster';
  readonly nodes: readonly { host: string; port: number }[];
  readonly masterName?: string;
  readonly options: Options;
}

/**
 * Reads `redis://`, `rediss://`, `redis+sentinel://host:port,host:port/name[/db]` and
 * `redis+cluster://host:port,…`; user and password before `@`, TLS with `rediss+…`.
 *
 * @throws Error with a sentence for the operator; it never repeats the password.
 */
export function parseRedisUrl(url: string): RedisAddress {
  const match =
    /^(rediss?)(?:\+(sentinel|cluster))?:\/\/(?:([^@/]*)@)?([^/?#]+)(?:\/([^?#]*))?$/.exec(url);
  if (!match) {
    throw new Error(
      'must be redis://host:port, rediss://…, redis+sentinel://host:port,…/name or redis+cluster://host:port,…',
    );
  }
  const [, scheme, mode, userInfo, hosts = '', path = ''] = match;
  const nodes = hosts.split(',').map((host) => parseNode(host, mode === 'sentinel' ? 26379 : 6379));
  const options: Options = { ...credentials(userInfo), ...(scheme === 'rediss' && { tls: {} }) };
  if (mode === 'sentinel') {
    const [name = '', db] = path.split('/');
    if (name === '') throw new Error('a Sentinel URL ends in /<name of the primary>');
    return { kind: 'sentinel', nodes, masterName: name, options: withDb(options, db) };
  }
  if (mode === 'cluster') return { kind: 'cluster', nodes, options };
  if (nodes.length > 1) throw new Error('several hosts need redis+sentinel:// or redis+cluster://');
  return { kind: 'standalone', nodes, options: withDb(options, path) };
}

function parseNode(text: string, defaultPort: number): { host: string; port: number } {
  const match = /^(\[[0-9a-f:.]+\]|[^:]+)(?::(\d{1,5}))?$/i.exec(text);
  if (!match?.[1]) throw new Error('has a host that is not host:port');
  return { host: match[1].replace(/^\[|\]$/g, ''), port: Number(match[2] ?? defaultPort) };
}

function credentials(userInfo: string | undefined): Options {
  if (userInfo === undefined || userInfo === '') return {};
  const at = userInfo.indexOf(':');
  const user = at < 0 ? userInfo : userInfo.slice(0, at);
  const password = at < 0 ? '' : userInfo.slice(at + 1);
  return {
    ...(user !== '' && { username: decodeURIComponent(user) }),
    ...(password !== '' && { password: decodeURIComponent(password) }),
  };
}

function withDb(options: Options, db: string | undefined): Options {
  if (db === undefined || db === '') return options;
  if (!/^\d{1,4}$/.test(db)) throw new Error('has a database that is not a number');
  return { ...options, db: Number(db) };
}

function roleOptions(role: RedisRole): Options {
  const common: Options = {
    connectTimeout: CONNECT_TIMEOUT_MS,
    keepAlive: 10_000,
    // A demoted primary answers READONLY and a restarting one LOADING: reconnect instead of failing for ever.
    reconnectOnError: (error) => (/^(READONLY|LOADING)/.test(error.message) ? 2 : false),
    retryStrategy: (times) => Math.min(50 * times, RECONNECT_CAP_MS),
  };
  switch (role) {
    case 'commands':
      return {
        ...common,
        enableAutoPipelining: true,
        enableOfflineQueue: false,
        maxRetriesPerRequest: 0,
        commandTimeout: COMMAND_TIMEOUT_MS,
        // Without it a frozen primary (SIGSTOP, lost packets) is never given up.
        socketTimeout: 3_000,
      };
    case 'subscriber':
      return { ...common, maxRetriesPerRequest: null, autoResubscribe: true };
    case 'queue':
      return { ...common, maxRetriesPerRequest: null };
  }
}

/**
 * ioredis gives a Sentinel client up for good (status `end`) when a failover is announced while it still asks the
 * Sentinels for the primary. This one begins again until somebody closes it; so do BullMQ's copies.
 */
class SentinelClient extends Standalone {
  #closed = false;

  constructor(options: Options) {
    super(options);
    this.on('end', () => {
      if (this.#closed) return;
      setTimeout(() => {
        // A failure is told by `error`, and ends in `end` again.
        if (!this.#closed) this.connect().catch(() => undefined);
      }, RECONNECT_CAP_MS).unref();
    });
  }

  override disconnect(reconnect = false): void {
    if (!reconnect) this.#closed = true;
    super.disconnect(reconnect);
  }

  override sendCommand(...given: Parameters<Standalone['sendCommand']>): unknown {
    if (given[0].name === 'quit') this.#closed = true;
    return super.sendCommand(...given);
  }

  override duplicate: Standalone['duplicate'] = (override) =>
    new SentinelClient({ ...this.options, ...override }) as ReturnType<Standalone['duplicate']>;
}

/** Connects in the background; commands before the first connection fail like those during an outage. */
export function connectRedis(url: string, role: RedisRole, { log }: { log: Logger }): Redis {
  const address = parseRedisUrl(url);
  const options: Options = { ...roleOptions(role), ...address.options };
  const client = build(address, options);
  let lastError = '';
  client.on('error', (error: Error) => {
    // ioredis repeats itself on every attempt; one line per new fault is enough for a person.
    if (error.message === lastError) return;
    lastError = error.message;
    log.warn(
      { err: { type: error.name, message: error.message }, role },
      'redis connection failed',
    );
  });
  client.on('ready', () => {
    if (lastError !== '') log.info({ role }, 'redis connection is back');
    lastError = '';
  });
  return client;
}

function build(address: RedisAddress, options: Options): Redis {
  const first = address.nodes[0];
  if (first === undefined) throw new Error('no Redis host');
  if (address.kind === 'cluster') {
    const { retryStrategy, enableOfflineQueue, enableAutoPipelining: _, ...redisOptions } = options;
    const cluster = {
      redisOptions,
      enableOfflineQueue: enableOfflineQueue ?? true,
      // A script's first argument is the number of its keys, which autopipelining takes for the key: commands of several
      // nodes would share one pipeline, and fail together. What is sent in one tick still leaves without waiting.
      enableAutoPipelining: false,
      clusterRetryStrategy: (times) => retryStrategy?.(times),
      slotsRefreshTimeout: CONNECT_TIMEOUT_MS,
    } satisfies ClusterOptions;
    return new Cluster([...address.nodes], cluster);
  }
  if (address.kind === 'sentinel') {
    return new SentinelClient({
      ...options,
      sentinels: [...address.nodes],
      ...(address.masterName !== undefined && { name: address.masterName }),
      failoverDetector: true,
      // Without it a Sentinel whose packets are lost is asked for ever, and nobody else is.
      sentinelCommandTimeout: CONNECT_TIMEOUT_MS,
      ...(options.password !== undefined && { sentinelPassword: options.password }),
    });
  }
  return new Standalone({ ...options, host: first.host, port: first.port });
}

/** How long a caller on the request path waits for Redis, milliseconds, from when it asks. */
const PATIENCE_MS = 900;

/**
 * Gives up on a command of the request path. ioredis' own timeout begins when a command is written, and with
 * autopipelining that is when the pipeline before it has come back, or timed out: two of them in a row.
 */
export async function inTime<T>(work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => {
      // After a pause of our own the answer may be there, unread: look once before giving up.
      setImmediate(() => reject(new Error('Command timed out: no answer from Redis')));
    }, PATIENCE_MS);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
    work.catch(() => undefined); // the loser of the race must not become an unhandled rejection
  }
}

/** QUIT, but never longer than `timeoutMs`: a frozen server must not hold up the end of a process. */
export async function closeRedis(client: Redis, timeoutMs = 1_000): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, timeoutMs);
  });
  const quit = client.quit().then(
    () => undefined,
    () => undefined, // already closed: what we want
  );
  await Promise.race([quit, late]);
  clearTimeout(timer);
  client.disconnect();
}
