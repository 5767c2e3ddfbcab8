/**
 * What the console reads. Only here may Viaduct SCAN: a person looks now and then, and never on the path of a
 * request. Everything is bounded.
 */
import type { Elicitation, Elicitations } from '@viaduct/shared/elicitations';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';

export interface PodRecord {
  readonly podId: string;
  readonly atMs: number;
  readonly streams: number | undefined;
  readonly running: number | undefined;
  readonly version: string | undefined;
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
  unfinished(): Promise<Elicitation[]>;
  /** The whole record by id alone, whoever it belongs to. */
  elicitation(id: string): Promise<Elicitation | undefined>;
}

const MOST = 200;

export function createRecords(deps: {
  readonly redis: Redis;
  readonly elicitations: Pick<Elicitations, 'load' | 'ownerOf'>;
}): Records {
  const { redis, elicitations } = deps;

  async function scan(pattern: string): Promise<string[]> {
    const nodes = 'nodes' in redis ? redis.nodes('master') : [redis];
    const found = new Set<string>();
    for (const node of nodes) {
      let cursor = '0';
      do {
        const [next, some] = await node.scan(cursor, 'MATCH', pattern, 'COUNT', 1000);
        for (const key of some) found.add(key);
        cursor = next;
      } while (cursor !== '0' && found.size < MOST);
    }
    return [...found].sort().slice(0, MOST);
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

    async unfinished() {
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
          return record === undefined ? [] : [record];
        }),
      );
      return found.flat().sort((a, b) => a.createdAtMs - b.createdAtMs);
    },

    async elicitation(id) {
      const userId = await elicitations.ownerOf(id);
      return userId === undefined ? undefined : elicitations.load(userId, id);
    },
  };
}

/** Pods of an older version beat with the time alone. */
function podOf(podId: string, value: string): PodRecord {
  const beat: unknown = JSON.parse(value);
  if (typeof beat !== 'object' || beat === null) {
    return {
      podId,
      atMs: Number(beat),
      streams: undefined,
      running: undefined,
      version: undefined,
    };
  }
  const { at, streams, running, version } = beat as Record<string, unknown>;
  const number = (member: unknown) => (typeof member === 'number' ? member : undefined);
  return {
    podId,
    atMs: Number(at),
    streams: number(streams),
    running: number(running),
    version: typeof version === 'string' ? version : undefined,
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
