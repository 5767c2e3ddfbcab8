/**
 * A flow is one approved trip to a third party: made only after the user has said yes on the consent page, found
 * only under the browser's own user, bound to the browser session that said yes, and claimed once (MCP security
 * best practices, Confused Deputy: state is set right before the redirect and used once).
 *
 * `state` itself is stored nowhere: the key holds its hash. PKCE verifier and nonce, and later the answer of the
 * third party, are sealed with user and elicitation authenticated.
 */
import { createHash, randomBytes } from 'node:crypto';
import type { Elicitation, Elicitations, ElicitationState, EndReason } from './elicitations.ts';
import { KEEP_ENDED_SECONDS } from './elicitations.ts';
import type { Keyring } from './keyring.ts';
import type { Redis } from './redis/client.ts';
import { keys } from './redis/keys.ts';
import type { Scripts } from './redis/scripts.ts';
import type { AuthorizationRequest, CodeExchange, OAuthTarget } from './third-party.ts';

export interface Flow {
  readonly userId: string;
  readonly elicitationId: string;
  /** Hash of the browser session that approved. */
  readonly browser: string;
  readonly stateHash: string;
}

export type ClaimResult =
  | 'claimed'
  /** No such flow of this user: never made, used, or its time is over. */
  | 'unknown'
  /** The same user in another browser; the flow is as it was. */
  | 'browser'
  /** The elicitation has gone on without this flow (another tab was faster, or it ended). */
  | ElicitationState;

export interface Flows {
  /** Everything that the authorization URL needs; stored before it returns. */
  start(
    elicitation: Elicitation,
    browser: string,
    /** `type: mcp`: the server that was found; the exchange goes to this one and no other. */
    target?: OAuthTarget,
  ): Promise<AuthorizationRequest>;
  /** What `start` was given. */
  targetOf(flow: Flow): Promise<OAuthTarget | undefined>;
  /** Looks only under `userId`; nothing is consumed. */
  find(userId: string, state: string): Promise<Flow | undefined>;
  /** Back with a code: `opened → authorized`, the answer sealed in the record for the worker. */
  claimCode(flow: Flow, browser: string, callback: string, cause?: string): Promise<ClaimResult>;
  /** Back with an error: ends the elicitation. */
  claimEnd(
    flow: Flow,
    browser: string,
    end: { state: 'declined' | 'failed'; reason: EndReason },
    cause?: string,
  ): Promise<ClaimResult>;
  /** What the worker sends; undefined when there is none (any more). */
  openCode(elicitation: Elicitation): Promise<CodeExchange | undefined>;
  /** What the user typed, for the record; nothing else ever holds it until the vault does. */
  sealSecret(elicitation: Elicitation, values: Readonly<Record<string, string>>): Promise<string>;
  openSecret(elicitation: Elicitation): Promise<Record<string, string> | undefined>;
}

export interface FlowsDeps {
  readonly redis: Redis;
  readonly scripts: Pick<Scripts, 'claimFlow'>;
  readonly keyring: Pick<Keyring, 'seal' | 'open'>;
  readonly elicitations: Pick<Elicitations, 'load' | 'noteTransition'>;
  readonly now?: () => number;
}

interface Secret {
  readonly codeVerifier: string;
  readonly nonce: string;
  readonly target?: OAuthTarget;
}

const random = (): string => randomBytes(32).toString('base64url');
const hashOf = (state: string): string => createHash('sha256').update(state).digest('base64url');
/** What `start` makes; anything else is not ours, and never reaches Redis. */
const STATE = /^[A-Za-z0-9_-]{43}$/;

export function createFlows(deps: FlowsDeps): Flows {
  const { redis, scripts, keyring, elicitations } = deps;
  const now = deps.now ?? Date.now;

  async function claim(
    flow: Flow,
    browser: string,
    to: { state: ElicitationState; reason?: EndReason; fields: string[] },
    cause: string | undefined,
  ): Promise<ClaimResult> {
    const { userId, elicitationId } = flow;
    const reply = await scripts.claimFlow(
      [keys.flow(userId, flow.stateHash), keys.elicitation(userId, elicitationId)],
      [
        browser,
        elicitationId,
        now(),
        to.state,
        to.reason ?? '',
        KEEP_ENDED_SECONDS,
        userId,
        ...to.fields,
      ],
    );
    const result = String(reply) as ClaimResult;
    if (result === 'claimed') {
      const after = await elicitations.load(userId, elicitationId);
      if (after !== undefined) {
        await elicitations.noteTransition({ ...after, state: to.state }, 'opened', cause);
      }
    }
    return result;
  }

  async function secretOf({ userId, elicitationId, stateHash }: Flow): Promise<Secret | undefined> {
    const sealed = await redis.hget(keys.flow(userId, stateHash), 'sealed');
    if (sealed === null) return undefined;
    const context = { userId, elicitationId, part: 'secret' };
    return JSON.parse(await keyring.open('flow', sealed, context)) as Secret;
  }

  return {
    async start(elicitation, browser, target) {
      const { userId, id } = elicitation;
      const request = { state: random(), codeVerifier: random(), nonce: random() };
      const secret: Secret = {
        codeVerifier: request.codeVerifier,
        nonce: request.nonce,
        ...(target !== undefined && { target }),
      };
      const key = keys.flow(userId, hashOf(request.state));
      const ttlMs = Math.max(1_000, elicitation.expiresAtMs - now());
      const sealed = await keyring.seal('flow', JSON.stringify(secret), {
        userId,
        elicitationId: id,
        part: 'secret',
      });
      const replies = await redis
        .multi()
        .hset(key, { browser, elicitationId: id, sealed, createdAtMs: now() })
        .pexpire(key, ttlMs)
        .exec();
      for (const [error] of replies ?? []) if (error !== null) throw error;
      return request;
    },

    async find(userId, state) {
      if (!STATE.test(state)) return undefined;
      const stateHash = hashOf(state);
      const [browser, elicitationId] = await redis.hmget(
        keys.flow(userId, stateHash),
        'browser',
        'elicitationId',
      );
      if (browser == null || elicitationId == null) return undefined;
      return { userId, elicitationId, browser, stateHash };
    },

    async targetOf(flow) {
      return (await secretOf(flow))?.target;
    },

    async claimCode(flow, browser, callback, cause) {
      const { userId, elicitationId } = flow;
      const secret = await secretOf(flow);
      if (secret === undefined) return 'unknown';
      const exchange: CodeExchange = { callback, ...secret };
      const code = await keyring.seal('flow', JSON.stringify(exchange), {
        userId,
        elicitationId,
        part: 'code',
      });
      return claim(
        flow,
        browser,
        { state: 'authorized', fields: ['action', 'approve', 'code', code] },
        cause,
      );
    },

    claimEnd: (flow, browser, end, cause) =>
      claim(flow, browser, { ...end, fields: ['action', 'approve'] }, cause),

    async openCode(elicitation) {
      if (elicitation.code === undefined) return undefined;
      const text = await keyring.open('flow', elicitation.code, {
        userId: elicitation.userId,
        elicitationId: elicitation.id,
        part: 'code',
      });
      return JSON.parse(text) as CodeExchange;
    },

    sealSecret: ({ userId, id }, values) =>
      keyring.seal('flow', JSON.stringify(values), { userId, elicitationId: id, part: 'typed' }),

    async openSecret({ userId, id, code }) {
      if (code === undefined) return undefined;
      const context = { userId, elicitationId: id, part: 'typed' };
      return JSON.parse(await keyring.open('flow', code, context)) as Record<string, string>;
    },
  };
}
