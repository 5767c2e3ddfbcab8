/**
 * Every Redis key of Viaduct. Only this file spells keys (house style).
 *
 * The hash tag is the user id: one user's keys share a slot, so each Lua script is single-slot in Redis
 * Cluster. Every key has a TTL.
 *
 * | key | type | shape |
 * |---|---|---|
 * | session:{uid}:sid | hash | v, pv, caps, info, cid, ep, level, owner (`pod|stream`), cursor, created, seen |
 * | log:{uid}:sid | stream | s = stream of the session ('g' or a call's), m = message, e = '1' on the last one |
 * | streams:{uid}:sid | hash | call stream id -> JSON of CallStream (owner pod, holder pod, request id, scopes) |
 * | listeners:{uid}:sid | zset | `pod|stream` of open listening streams, by time of opening |
 * | upstream:{uid}:sid:name | hash | sid, era, pv, caps; sub:uri = a resource subscribed to (modern upstreams) |
 * | pending:{uid}:sid | hash | gateway id -> JSON of a server-to-client request waiting for its answer, or = and the answer |
 * | elicitation:{uid}:id | hash | see elicitations.ts |
 * | open:{uid}:scope:connection | string | id of the unfinished elicitation of a session (or client) and connection |
 * | link:id | string | user id of a link's owner; read only to audit a stranger's attempt, never to grant |
 * | flow:{uid}:hash(state) | hash | one approved trip to a third party |
 * | call:{uid}:id | stream | continuation of a suspended upstream call |
 * | suspended:{uid}:id | hash | who holds a suspended call, what it asks, which pod follows it (modern/suspended-calls.ts) |
 * | ear:{uid}:sid | hash | pod that listens to an implicit session's upstream, pods that want to hear, URIs subscribed to |
 * | state:{uid}:id | string | a requestState that has been used |
 * | vault:{uid}:connection | string | sealed credential |
 * | consent:{uid} | hash | connection + client -> JSON of the approval |
 * | wish:{uid} | hash | connection + client -> JSON of a client that lacks the user's approval |
 * | unfinished:mode | zset | `uid id` of unfinished elicitations by expiry; only counted, for a gauge |
 * | lease:{uid}:name | string | fenced lock |
 * | limit:name:{subject} | string | rate-limiter-flexible |
 * | pod:podId | string | heartbeat |
 * | oidc:model:id | string | JSON of oidc-provider (oauth/adapter.ts); :used beside it once it was consumed |
 * | oidc:members:grant | set | keys of what a grant has issued |
 * | oidc:account:{uid} | string | subject and groups, as of the last login |
 * | oidc:approved:{uid} | hash | client id -> JSON of what the user has allowed it |
 * | oidc:document:hash | string | a client id metadata document |
 * | revoked | zset | user ids by the time (ms) before which their tokens are worth nothing |
 * | audit:hash(url) | stream | records that wait for a webhook; audit:…:lease = the worker that sends them |
 * | browser:hash | string | sealed browser session |
 * | operator:hash(code) | string | sealed way of one operator into the console, good once |
 * | registration:hash(issuer) | string | sealed client that an authorization server has registered for us |
 * | stranger:{uid} | string | how often this user has opened links of others lately |
 * | reseal:kid | hash | progress of sealing again with this key: cursor, resealed, kept, unreadable, done |
 */

const PREFIX = 'viaduct:';

export const keys = {
  session: (userId: string, sessionId: string) => `${PREFIX}session:{${userId}}:${sessionId}`,
  log: (userId: string, sessionId: string) => `${PREFIX}log:{${userId}}:${sessionId}`,
  streams: (userId: string, sessionId: string) => `${PREFIX}streams:{${userId}}:${sessionId}`,
  listeners: (userId: string, sessionId: string) => `${PREFIX}listeners:{${userId}}:${sessionId}`,
  upstream: (userId: string, sessionId: string, upstream: string) =>
    `${PREFIX}upstream:{${userId}}:${sessionId}:${upstream}`,
  pending: (userId: string, sessionId: string) => `${PREFIX}pending:{${userId}}:${sessionId}`,
  elicitation: (userId: string, elicitationId: string) =>
    `${PREFIX}elicitation:{${userId}}:${elicitationId}`,
  openElicitation: (userId: string, scope: string, connection: string) =>
    `${PREFIX}open:{${userId}}:${scope}:${connection}`,
  link: (elicitationId: string) => `${PREFIX}link:${elicitationId}`,
  flow: (userId: string, stateHash: string) => `${PREFIX}flow:{${userId}}:${stateHash}`,
  call: (userId: string, callId: string) => `${PREFIX}call:{${userId}}:${callId}`,
  suspended: (userId: string, callId: string) => `${PREFIX}suspended:{${userId}}:${callId}`,
  ear: (userId: string, sessionId: string) => `${PREFIX}ear:{${userId}}:${sessionId}`,
  state: (userId: string, stateId: string) => `${PREFIX}state:{${userId}}:${stateId}`,
  vault: (userId: string, connection: string) => `${PREFIX}vault:{${userId}}:${connection}`,
  consent: (userId: string) => `${PREFIX}consent:{${userId}}`,
  wish: (userId: string) => `${PREFIX}wish:{${userId}}`,
  unfinished: (mode: string) => `${PREFIX}unfinished:${mode}`,
  lease: (userId: string, name: string) => `${PREFIX}lease:{${userId}}:${name}`,
  limit: (limit: string) => `${PREFIX}limit:${limit}`,
  pod: (podId: string) => `${PREFIX}pod:${podId}`,
  oidc: (model: string, id: string) => `${PREFIX}oidc:${model}:{${id}}`,
  oidcUsed: (model: string, id: string) => `${PREFIX}oidc:${model}:{${id}}:used`,
  oidcMembers: (grantId: string) => `${PREFIX}oidc:members:{${grantId}}`,
  oidcUid: (uid: string) => `${PREFIX}oidc:uid:{${uid}}`,
  oidcAccount: (userId: string) => `${PREFIX}oidc:account:{${userId}}`,
  oidcApproved: (userId: string) => `${PREFIX}oidc:approved:{${userId}}`,
  oidcDocument: (hash: string) => `${PREFIX}oidc:document:${hash}`,
  revoked: () => `${PREFIX}revoked`,
  browser: (idHash: string) => `${PREFIX}browser:${idHash}`,
  registration: (issuerHash: string) => `${PREFIX}registration:${issuerHash}`,
  strangerCount: (userId: string) => `${PREFIX}stranger:{${userId}}`,
  reseal: (kid: string) => `${PREFIX}reseal:${kid}`,
  operatorCode: (hash: string) => `${PREFIX}operator:${hash}`,
  audit: (sink: string) => `${PREFIX}audit:${sink}`,
  auditLease: (sinkKey: string) => `${sinkKey}:lease`,
  list: (userId: string, sessionId: string, name: string) =>
    `${PREFIX}list:{${userId}}:${sessionId}:${name}`,
} as const;

/** For the resealing job alone: SCAN patterns, and what a key found says. */
export const VAULT_PATTERN = `${PREFIX}vault:*`;
export function readVaultKey(key: string): { userId: string; connection: string } | undefined {
  const [, userId, connection] = /^viaduct:vault:\{([^}]+)\}:(.+)$/.exec(key) ?? [];
  return userId === undefined || connection === undefined ? undefined : { userId, connection };
}

/** Pub/sub channel of one pod. Channels are not keys: they need no slot and no TTL. */
export const podChannel = (podId: string): string => `${PREFIX}pod:${podId}`;

/** BullMQ's own prefix; the hash tag keeps a queue in one slot. */
export const QUEUE_PREFIX = `{${PREFIX}bull}`;

/** Session ids are ours: 128 random bits, base64url. Anything else cannot name a session (cases S3). */
export const SESSION_ID = /^[A-Za-z0-9_-]{22}$/;
