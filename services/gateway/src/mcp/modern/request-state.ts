/**
 * `requestState` (2026-07-28 basic/patterns/mrtr): what the gateway lets a client carry from one round of a request
 * to the next, so that the retry may come to any pod.
 *
 * Promises: sealed (AEAD), so clients neither read nor alter it; good for the user, the OAuth client, the endpoint,
 * the method and the arguments that it was made for, for `elicitation.ttlSeconds`, and once. Everything else is one
 * and the same -32602 to the caller, with the reason in the audit record.
 */
import { randomBytes } from 'node:crypto';
import type { Audit } from '@viaduct/shared/audit';
import { fail, type GatewayError } from '@viaduct/shared/errors';
import { SealError, type Keyring } from '@viaduct/shared/keyring';
import type { Principal } from '@viaduct/shared/principal';
import type { Redis } from '@viaduct/shared/redis/client';
import { keys } from '@viaduct/shared/redis/keys';
import type { RequestMessage } from '../message.ts';
import { requestDigest } from './digest.ts';

/** What the next round has to know. */
export type Carried =
  /** The gateway asked for a credential. */
  | {
      readonly kind: 'connect';
      readonly elicitationId: string;
      /** `requestState` of the upstream and answers meant for it, from the round before; JSON texts. */
      readonly upstreamState?: string;
      readonly inputResponses?: string;
    }
  /** The upstream asked; its own `requestState` as it wrote it, JSON text. */
  | { readonly kind: 'upstream'; readonly upstreamState?: string }
  /** A call is suspended on a pod. What it is, is the bridge's to say. */
  | { readonly kind: 'suspended'; readonly data: string };

/** What a state is bound to. */
export interface Binding {
  readonly principal: Principal;
  /** Endpoint name, '' for `/mcp`. */
  readonly endpoint: string;
  readonly message: RequestMessage;
  readonly requestId: string;
}

export interface Opened {
  readonly id: string;
  /** 1 for the first retry. */
  readonly round: number;
  readonly expiresAtMs: number;
  readonly carried: Carried;
}

export interface RequestStates {
  /** @param round number of rounds that the request has had already */
  seal(binding: Binding, round: number, carried: Carried): Promise<string>;
  /** @throws GatewayError invalid_params */
  open(binding: Binding, state: string): Promise<Opened>;
  /**
   * To be called right before the state takes effect.
   * @throws GatewayError invalid_params when it has been used already
   */
  claim(binding: Binding, opened: Opened): Promise<void>;
  /** It took no effect after all: the upstream provably saw nothing. */
  release(binding: Binding, opened: Opened): Promise<void>;
}

interface Sealed {
  readonly id: string;
  readonly user: string;
  readonly client: string;
  readonly endpoint: string;
  readonly digest: string;
  readonly expires: number;
  readonly round: number;
  readonly carried: Carried;
}

/** Everything that matters is in the sealed part: the header of a JWE can be read by anyone. */
const CONTEXT = { use: 'requestState' } as const;

type Reason = 'invalid' | 'user' | 'client' | 'endpoint' | 'request' | 'expired' | 'spent';

export function createRequestStates(deps: {
  readonly keyring: Keyring;
  readonly redis: Redis;
  readonly audit: Audit;
  readonly ttlSeconds: number;
  readonly now?: () => number;
}): RequestStates {
  const { keyring, redis, audit, ttlSeconds, now = Date.now } = deps;

  function refuse(binding: Binding, reason: Reason): GatewayError {
    const { principal, endpoint, message, requestId } = binding;
    const { userId, clientId } = principal;
    const { method } = message;
    audit.record({ type: 'state.refused', reason, endpoint, method, requestId, userId, clientId });
    return fail(
      'invalid_params',
      'The requestState is not valid here, or no longer. Send the call again without it.',
      { data: { reason: 'request_state' }, detail: reason },
    );
  }

  function check(sealed: Sealed, binding: Binding): Reason | undefined {
    const { principal, endpoint, message } = binding;
    if (sealed.user !== principal.userId) return 'user';
    if (sealed.client !== principal.clientId) return 'client';
    if (sealed.endpoint !== endpoint) return 'endpoint';
    if (sealed.digest !== requestDigest(message)) return 'request';
    return now() >= sealed.expires ? 'expired' : undefined;
  }

  return {
    seal({ principal, endpoint, message }, round, carried) {
      const sealed: Sealed = {
        id: randomBytes(16).toString('base64url'),
        user: principal.userId,
        client: principal.clientId,
        endpoint,
        digest: requestDigest(message),
        expires: now() + ttlSeconds * 1000,
        round: round + 1,
        carried,
      };
      return keyring.seal('state', JSON.stringify(sealed), CONTEXT);
    },

    async open(binding, state) {
      let text: string;
      if (!isCanonical(state)) throw refuse(binding, 'invalid');
      try {
        text = await keyring.open('state', state, CONTEXT);
      } catch (error) {
        if (error instanceof SealError) throw refuse(binding, 'invalid');
        throw error;
      }
      const sealed = JSON.parse(text) as Sealed;
      const reason = check(sealed, binding);
      if (reason !== undefined) throw refuse(binding, reason);
      const { id, round, expires: expiresAtMs, carried } = sealed;
      return { id, round, expiresAtMs, carried };
    },

    async claim(binding, { id, expiresAtMs }) {
      const seconds = Math.max(1, Math.ceil((expiresAtMs - now()) / 1000));
      const key = keys.state(binding.principal.userId, id);
      const won = await redis.set(key, '1', 'EX', seconds, 'NX');
      if (won !== 'OK') throw refuse(binding, 'spent');
    },

    async release({ principal }, { id }) {
      await redis.del(keys.state(principal.userId, id));
    },
  };
}

/** base64url has several spellings of the same bytes, and a seal does not cover the bits that none of them uses. */
const isCanonical = (jwe: string): boolean =>
  jwe.split('.').every((part) => Buffer.from(part, 'base64url').toString('base64url') === part);
