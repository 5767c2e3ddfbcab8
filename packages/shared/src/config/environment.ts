/** The environment of design section 4, checked. Blank means unset. No value is repeated in a fault. */
import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import { parseRedisUrl } from '../redis/client.ts';

export type Service = 'gateway' | 'worker';
export type LogLevel = (typeof LOG_LEVELS)[number];

export interface SecretKey {
  readonly kid: string;
  /** 32 bytes. */
  readonly key: Buffer;
}

export interface Environment {
  readonly redisUrl: string;
  readonly host: string;
  /** 0 in the worker, which has no public listener. */
  readonly port: number;
  readonly adminPort: number;
  readonly podName: string;
  /** `podName` and a random suffix: a restarted pod is a new pod. */
  readonly podId: string;
  /** The first seals, all open. */
  readonly secretKeys: readonly SecretKey[];
  /** Made up for this process, in development: nothing sealed with it outlives the process. */
  readonly secretKeysGenerated: boolean;
  readonly logLevel: LogLevel;
  /** Where requests to other people's URLs go through; it resolves and judges names then. */
  readonly httpsProxy: string | undefined;
}

const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'] as const;
const KEY_HELP = 'kid:base64 of 32 bytes, made with: openssl rand -base64 32';

/**
 * @param development whether publicUrl is loopback; undefined when the file does not tell
 * @returns the environment, and every fault; with faults the environment is not to be used
 */
export function readEnvironment(
  env: NodeJS.ProcessEnv,
  service: Service,
  development: boolean | undefined,
): { environment: Environment; faults: string[] } {
  const faults: string[] = [];
  const get = (name: string): string | undefined => {
    const value = env[name]?.trim();
    return value === '' ? undefined : value;
  };

  const redisUrl = get('REDIS_URL') ?? '';
  if (redisUrl === '') faults.push('REDIS_URL: is required, e.g. redis://localhost:6379');
  else {
    try {
      parseRedisUrl(redisUrl);
    } catch (error) {
      faults.push(`REDIS_URL: ${(error as Error).message}`);
    }
  }

  const port = (name: string, fallback: number): number => {
    const value = get(name);
    if (value === undefined) return fallback;
    if (/^\d{1,5}$/.test(value) && Number(value) <= 65_535) return Number(value);
    faults.push(`${name}: must be a port number, 0 to 65535`);
    return fallback;
  };
  const publicPort = service === 'gateway' ? port('PORT', 8080) : 0;
  const adminPort = port('ADMIN_PORT', 9090);
  if (publicPort !== 0 && publicPort === adminPort) {
    faults.push('ADMIN_PORT: must differ from PORT');
  }

  const host = get('HOST') ?? '0.0.0.0';
  if (!/^[A-Za-z0-9.:_-]{1,253}$/.test(host)) faults.push('HOST: must be an address to bind to');

  // The name goes into Redis keys and owner fields `pod|stream`.
  const podName = get('POD_NAME') ?? hostname().replace(/[^A-Za-z0-9._-]/g, '-');
  if (!/^[A-Za-z0-9._-]{1,253}$/.test(podName)) {
    faults.push('POD_NAME: must consist of letters, digits, ".", "_" and "-"');
  }

  const httpsProxy = get('HTTPS_PROXY');
  if (httpsProxy !== undefined && !/^https?:$/.test(URL.parse(httpsProxy)?.protocol ?? '')) {
    faults.push('HTTPS_PROXY: must be an http(s) URL');
  }

  const logLevel = LOG_LEVELS.find((level) => level === (get('LOG_LEVEL') ?? 'info').toLowerCase());
  if (logLevel === undefined) faults.push(`LOG_LEVEL: must be one of ${LOG_LEVELS.join(', ')}`);

  const configured = get('VIADUCT_SECRET_KEYS');
  let secretKeys: SecretKey[] = [];
  if (configured !== undefined) {
    const read = readSecretKeys(configured);
    secretKeys = read.keys;
    faults.push(...read.faults.map((line) => `VIADUCT_SECRET_KEYS: ${line}`));
  } else if (development === false) {
    faults.push(`VIADUCT_SECRET_KEYS: is required because publicUrl is not loopback (${KEY_HELP})`);
  } else {
    secretKeys = [{ kid: 'development', key: randomBytes(32) }];
  }

  const environment: Environment = {
    redisUrl,
    host,
    port: publicPort,
    adminPort,
    podName,
    podId: newPodId(podName),
    secretKeys,
    secretKeysGenerated: configured === undefined,
    logLevel: logLevel ?? 'info',
    httpsProxy,
  };
  return { environment, faults };
}

export const newPodId = (podName: string): string => `${podName}-${randomBytes(4).toString('hex')}`;

function readSecretKeys(text: string): { keys: SecretKey[]; faults: string[] } {
  const keys: SecretKey[] = [];
  const faults: string[] = [];
  for (const [index, part] of text.split(',').entries()) {
    const at = `key ${index + 1}`;
    const match = /^([A-Za-z0-9_-][A-Za-z0-9._-]{0,63}):([A-Za-z0-9+/_-]+={0,2})$/.exec(
      part.trim(),
    );
    if (!match) {
      faults.push(`${at} must be ${KEY_HELP}`);
      continue;
    }
    const [, kid = '', encoded = ''] = match;
    const key = Buffer.from(encoded, 'base64'); // takes the URL-safe alphabet too
    if (key.length !== 32) faults.push(`${at} has ${key.length} bytes and needs 32`);
    else if (looksMadeUp(key)) faults.push(`${at} is not random (openssl rand -base64 32)`);
    else if (keys.some((known) => known.kid === kid)) faults.push(`${at} repeats a key id`);
    else if (keys.some((known) => known.key.equals(key))) faults.push(`${at} repeats a key`);
    else keys.push({ kid, key });
  }
  return { keys, faults };
}

/**
 * Sample values from documentation: one byte repeated, counting bytes, or readable text. 32 random bytes have
 * about 30 different values; fewer than 16, or printable ones only, happen once in more than 10^14 keys.
 */
function looksMadeUp(key: Buffer): boolean {
  const printable = key.every((byte) => byte >= 0x20 && byte < 0x7f);
  const steps = new Set<number>();
  for (let at = 1; at < key.length; at++) steps.add(((key[at] ?? 0) - (key[at - 1] ?? 0)) & 0xff);
  return printable || new Set(key).size < 16 || steps.size === 1;
}
