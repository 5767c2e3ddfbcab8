/**
 * Environment and configuration file (design, sections 4 and 5), read once by main.ts of each service.
 *
 * Promises: what loads is complete, checked and deeply frozen; what does not load says every fault at once,
 * one line each with its path, and never repeats a value. Does not watch the file (config-watch.ts does) and opens no connection.
 */
import { readFileSync } from 'node:fs';
import type { z } from 'zod';
import { checkTogether, type Parsed } from './config/checks.ts';
import { newPodId, readEnvironment, type Environment, type Service } from './config/environment.ts';
import { ConfigError, faultsOf, type Path } from './config/faults.ts';
import {
  connection,
  looseList,
  looseRecord,
  name as nameOf,
  sections,
  upstream,
  type File,
} from './config/schema.ts';
import { readSource } from './config/source.ts';
import { isLoopbackHost } from './config/urls.ts';

export type { Environment, LogLevel, SecretKey, Service } from './config/environment.ts';
export { ConfigError } from './config/faults.ts';
export { isLoopbackHost, isSecureUrl, normalizeOrigin } from './config/urls.ts';

type DeepReadonly<T> = T extends (infer E)[]
  ? readonly DeepReadonly<E>[]
  : T extends object
    ? { readonly [K in keyof T]: DeepReadonly<T[K]> }
    : T;

export type AuthConfig = DeepReadonly<File['auth']>;
export type ExternalAuth = Extract<AuthConfig, { mode: 'external' }>;
export type BuiltinAuth = Extract<AuthConfig, { mode: 'builtin' }>;
export type UpstreamConfig = DeepReadonly<File['upstreams'][number]>;
export type LimitsConfig = DeepReadonly<File['limits']>;

type Named<T extends File['connections'][string]['type']> = DeepReadonly<
  Extract<File['connections'][string], { type: T }> & { name: string; displayName: string }
>;
/** One entry of `connections`, with its key as `name` and `displayName` filled in. */
export type OAuthConnection = Named<'oauth'>;
export type SecretConnection = Named<'secret'>;
/** With the URL of the one upstream that uses it: the resource that its tokens are for. */
export type McpConnection = Named<'mcp'> & {
  readonly upstreamUrl: string;
  readonly allowPrivateNetwork: boolean;
};
export type TokenExchangeConnection = Named<'token-exchange'>;
export type ConnectionConfig =
  OAuthConnection | SecretConnection | McpConnection | TokenExchangeConnection;

export interface Config extends DeepReadonly<Omit<File, 'connections'>> {
  /** Origin without a trailing slash, e.g. `https://mcp.example.com`. */
  readonly publicUrl: string;
  /** publicUrl is loopback: plain http is allowed there, and for identity providers and third parties. */
  readonly development: boolean;
  /** Without a prototype, so that a name out of a URL finds configured entries only. */
  readonly connections: Readonly<Record<string, ConnectionConfig>>;
}

export interface Settings {
  readonly env: Environment;
  readonly config: Config;
}

const DEFAULT_FILE = './viaduct.yaml';

export function configPath(env: NodeJS.ProcessEnv): string {
  const named = env['VIADUCT_CONFIG']?.trim();
  return named === undefined || named === '' ? DEFAULT_FILE : named;
}

/** The same process with a changed file: to everybody else a new pod, since its streams and calls are its own. */
export function nextGeneration({ env }: Settings, config: Config): Settings {
  return deepFreeze({ env: { ...env, podId: newPodId(env.podName) }, config });
}

/**
 * @param env `process.env`
 * @param service the worker has no public listener and ignores PORT
 * @throws ConfigError with every fault of file and environment
 */
export function loadSettings(env: NodeJS.ProcessEnv, service: Service): Settings {
  const path = configPath(env);
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    const faults = [`VIADUCT_CONFIG: cannot read ${path} (${code ?? 'unknown error'})`];
    throw new ConfigError([...faults, ...readEnvironment(env, service, undefined).faults]);
  }
  const file = readFile(text, env);
  const development = file.config?.development ?? file.development;
  const { environment, faults } = readEnvironment(env, service, development);
  if (file.config === undefined || faults.length > 0) {
    throw new ConfigError([...file.faults, ...faults]);
  }
  return deepFreeze({ env: environment, config: file.config });
}

/**
 * The file alone, for reloads and tests.
 *
 * @throws ConfigError
 */
export function parseConfig(text: string, env: NodeJS.ProcessEnv): Config {
  const { config, faults } = readFile(text, env);
  if (config === undefined) throw new ConfigError(faults);
  return deepFreeze(config);
}

interface ReadFile {
  readonly config?: Config;
  readonly development?: boolean;
  readonly faults: string[];
}

function readFile(text: string, env: NodeJS.ProcessEnv): ReadFile {
  const { root, faults: sourceFaults } = readSource(text, env);
  if (root === undefined) return { faults: sourceFaults };
  const faults: string[] = [];
  const take = <T extends z.ZodType>(schema: T, value: unknown, path: Path) => {
    const result = schema.safeParse(value);
    if (result.success) return result.data;
    faults.push(...faultsOf(result.error, path));
    return undefined;
  };

  const parsed: Record<string, unknown> = {};
  for (const [name, schema] of Object.entries(sections)) {
    if (name === 'upstreams' || name === 'connections') continue;
    const value = take(schema, root[name], [name]);
    if (value !== undefined) parsed[name] = value;
  }
  for (const key of Object.keys(root)) {
    if (!(key in sections)) faults.push(`${key}: unknown key`);
  }
  // Entry by entry: a fault in one must not hide what is wrong with, or refers to, another.
  const upstreams = (take(looseList, root['upstreams'], ['upstreams']) ?? []).map((entry, index) =>
    take(upstream, entry, ['upstreams', index]),
  );
  const loose = take(looseRecord, root['connections'], ['connections']) ?? {};
  const connections = new Map(
    Object.entries(loose).map(([key, entry]) => {
      const named = take(nameOf, key, ['connections', key]) !== undefined;
      const value = take(connection, entry, ['connections', key]);
      return [key, named ? value : undefined];
    }),
  );
  const together = { ...parsed, upstreams, connections } as Parsed;
  faults.push(...checkTogether(together));
  const { publicUrl } = together;
  const development =
    publicUrl === undefined ? undefined : isLoopbackHost(new URL(publicUrl).hostname);
  const all = [...sourceFaults, ...unspoken(faults, sourceFaults)];
  if (all.length > 0 || development === undefined) {
    return { faults: all, ...(development !== undefined && { development }) };
  }
  return { faults: all, config: assemble(parsed as unknown as File, together, development) };
}

/** What a missing variable left behind at a path is no second fault. */
function unspoken(faults: readonly string[], earlier: readonly string[]): string[] {
  const pathOf = (line: string) => line.slice(0, line.indexOf(': '));
  const spoken = new Set(earlier.map(pathOf));
  return faults.filter((line) => !spoken.has(pathOf(line)));
}

function assemble(file: File, { upstreams, connections }: Parsed, development: boolean): Config {
  const named = Object.create(null) as Record<string, ConnectionConfig>;
  for (const [name, value] of connections) {
    if (value === undefined) continue;
    const entry = { displayName: name, ...value, name };
    const user = upstreams.find((upstream) => upstream?.connection === name);
    named[name] = (
      entry.type === 'mcp' && user !== undefined
        ? { ...entry, upstreamUrl: user.url, allowPrivateNetwork: user.allowPrivateNetwork }
        : entry
    ) as ConnectionConfig;
  }
  return {
    ...file,
    development,
    upstreams: upstreams.filter((value) => value !== undefined),
    connections: named,
  };
}

function deepFreeze<T>(value: T): T {
  // The elements of a Buffer can't be frozen; the keys of the environment are the only ones here.
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value)) return value;
  for (const member of Object.values(value)) deepFreeze(member);
  return Object.freeze(value);
}
