/**
 * What the console reads. Only here may Viaduct SCAN: a person looks now and then, and never on the path of a
 * request. Everything is bounded.
 */
import type { Config } from '@viaduct/shared/config';
import { isEnded, type Elicitation, type Elicitations } from '@viaduct/shared/elicitations';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys, readVaultKey, VAULT_PATTERN } from '@viaduct/shared/redis/keys';

export interface PodRecord {
  readonly podId: string;
  readonly atMs: number;
  readonly streams: number | undefined;
  readonly running: number | undefined;
  readonly version: string | undefined;
  /** By name: the era it was found out to speak, and since when it cannot be reached (0: it can). */
  readonly upstreams: ReadonlyMap<string, { readonly era: string; readonly lostAtMs: number }>;
  /** Requests answered 429 since the pod started, by limit. */
  readonly limited: ReadonlyMap<string, number>;
}

/** One connection, over all users. */
export interface ConnectionRecord {
  readonly name: string;
  readonly displayName: string;
  readonly type: string;
  /** Users whose credential is in the vault. */
  readonly users: number;
  /** Flows that wait, by state. */
  readonly waiting: ReadonlyMap<string, number>;
  readonly oldestAtMs: number | undefined;
}

export interface SessionRecord {
  readonly sessionId: string;
  readonly endpoint: string;
  readonly clientId: string;
  readonly clientName: string;
  readonly protocolVersion: string;
  /** `pod|stream`, or '' */
  readonly owner: string;
  readonly createdAtMs: number;
  readonly seenAtMs: number;
}

export interface Records {
  pods(): Promise<PodRecord[]>;
  sessionsOf(userId: string): Promise<SessionRecord[]>;
  /** Those that wait for a person or for a worker, the oldest first. */
  unfinished(): Promise<Elicitation[]>;
  /** `whole` is false where there were more credentials than are counted. */
  connections(): Promise<{ readonly all: ConnectionRecord[]; readonly whole: boolean }>;
  /** The whole record by id alone, whoever it belongs to. */
  elicitation(id: string): Promise<Elicitation | undefined>;
}

const MOST = 200;
/** Credentials that a page counts at most, and how long it remembers the count: looking goes through every key. */
const MOST_CREDENTIALS = 50_000;
const COUNT_FOR_MS = 30_000;

export function createRecords(deps: {
  readonly redis: Redis;
  readonly elicitations: Pick<Elicitations, 'load' | 'ownerOf'>;
  readonly config: Pick<Config, 'connections'>;
}): Records {
  const { redis, elicitations, config } = deps;
  let counted:
    | {
        readonly atMs: number;
        readonly users: ReadonlyMap<string, number>;
        readonly whole: boolean;
      }
    | undefined;

  async function scan(pattern: string, most = MOST): Promise<string[]> {
    const nodes = 'nodes' in redis ? redis.nodes('master') : [redis];
    const found = new Set<string>();
    for (const node of nodes) {
      let cursor = '0';
      do {
        const [next, some] = await node.scan(cursor, 'MATCH', pattern, 'COUNT', 1000);
        for (const key of some) found.add(key);
        cursor = next;
      } while (cursor !== '0' && found.size < most);
    }
    return [...found].sort().slice(0, most);
  }

  async function countUsers(): Promise<NonNullable<typeof counted>> {
    if (counted !== undefined && Date.now() - counted.atMs < COUNT_FOR_MS) return counted;
    const found = await scan(VAULT_PATTERN, MOST_CREDENTIALS);
    const users = new Map<string, number>();
    for (const key of found) {
      const name = readVaultKey(key)?.connection ?? '';
      users.set(name, (users.get(name) ?? 0) + 1);
    }
    counted = { atMs: Date.now(), users, whole: found.length < MOST_CREDENTIALS };
    return counted;
  }

  async function unfinished(): Promise<Elicitation[]> {
    const members = (
      await Promise.all(
        (['url', 'form'] as const).map((mode) =>
          redis.zrange(keys.unfinished(mode), 0, String(MOST - 1)),
        ),
      )
    ).flat();
    const found = await Promise.all(
      members.map(async (member) => {
        const [userId = '', id = ''] = member.split(' ');
        const record = await elicitations.load(userId, id);
        return record === undefined || isEnded(record.state) ? [] : [record];
      }),
    );
    return found.flat().sort((a, b) => a.createdAtMs - b.createdAtMs);
  }

  return {
    async pods() {
      const prefix = keys.pod('');
      const found = await Promise.all(
        (await scan(`${prefix}*`)).map(async (key) => {
          const value = await redis.get(key);
          return value === null ? [] : [podOf(key.slice(prefix.length), value)];
        }),
      );
      return found.flat();
    },

    async sessionsOf(userId) {
      const prefix = keys.session(userId, '');
      const found = await Promise.all(
        (await scan(`${prefix}*`)).map(async (key) => {
          const hash = await redis.hgetall(key);
          if (hash['cid'] === undefined) return [];
          return [sessionOf(key.slice(prefix.length), hash)];
        }),
      );
      return found.flat().sort((a, b) => b.seenAtMs - a.seenAtMs);
    },

    unfinished,

    async connections() {
      const [{ users, whole }, waiting] = await Promise.all([countUsers(), unfinished()]);
      const all = Object.values(config.connections).map(({ name, displayName, type }) => {
        const mine = waiting.filter(({ connection }) => connection === name);
        const states = new Map<string, number>();
        for (const { state } of mine) states.set(state, (states.get(state) ?? 0) + 1);
        const oldestAtMs = mine[0]?.createdAtMs;
        return {
          name,
          displayName,
          type,
          users: users.get(name) ?? 0,
          waiting: states,
          oldestAtMs,
        };
      });
      return { all, whole };
    },

    async elicitation(id) {
      const userId = await elicitations.ownerOf(id);
      return userId === undefined ? undefined : elicitations.load(userId, id);
    },
  };
}

/** Pods of an older version say less in their beat, the oldest only the time. */
function podOf(podId: string, value: string): PodRecord {
  const beat: unknown = JSON.parse(value);
  const told = typeof beat === 'object' && beat !== null ? beat : { at: beat };
  const { at, streams, running, version, upstreams, limited } = told as Record<string, unknown>;
  const number = (member: unknown) => (typeof member === 'number' ? member : undefined);
  const entries = (member: unknown): [string, unknown][] =>
    typeof member === 'object' && member !== null ? Object.entries(member) : [];
  return {
    podId,
    atMs: Number(at),
    streams: number(streams),
    running: number(running),
    version: typeof version === 'string' ? version : undefined,
    upstreams: new Map(
      entries(upstreams).map(([name, said]) => {
        const [era, lost] = Array.isArray(said) ? (said as unknown[]) : [];
        return [name, { era: typeof era === 'string' ? era : '', lostAtMs: number(lost) ?? 0 }];
      }),
    ),
    limited: new Map(entries(limited).map(([name, count]) => [name, number(count) ?? 0])),
  };
}

function sessionOf(sessionId: string, hash: Readonly<Record<string, string>>): SessionRecord {
  return {
    sessionId,
    endpoint: hash['ep'] ?? '',
    clientId: hash['cid'] ?? '',
    clientName: nameIn(hash['info']),
    protocolVersion: hash['pv'] ?? '',
    owner: hash['owner'] ?? '',
    createdAtMs: Number(hash['created'] ?? 0),
    seenAtMs: Number(hash['seen'] ?? 0),
  };
}

function nameIn(info: string | undefined): string {
  try {
    const { name } = JSON.parse(info ?? '{}') as { name?: unknown };
    return typeof name === 'string' ? name.slice(0, 100) : '';
  } catch {
    return '';
  }
}
