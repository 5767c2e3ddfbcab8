/**
 * Takes a flow from `authorized` to its end: discovery, claim, the one POST of the code, and one script that
 * writes everything.
 *
 * The code is sent at most once, whatever dies when: whatever can be repeated (discovery) comes before the claim
 * `authorized → exchanging`, and a run that finds the claim of another run, which must be dead because its job has
 * been handed on, ends the flow instead of sending the code again (RFC 6749, 4.1.2: a code used twice SHOULD cost
 * the user all its tokens). A run that was frozen and comes back has lost its claim: its completion is refused,
 * and what it got is revoked.
 */
import { randomBytes } from 'node:crypto';
import type { Config } from '@viaduct/shared/config';
import { isOwnClient } from '@viaduct/shared/credentials';
import { isEnded, type Elicitations, type EndReason } from '@viaduct/shared/elicitations';
import type { Flows } from '@viaduct/shared/flows';
import type { JobPayload } from '@viaduct/shared/jobs';
import type { Registrations } from '@viaduct/shared/registrations';
import { connectionHash, type GrantFailure, type ThirdParty } from '@viaduct/shared/third-party';
import type { JobContext } from '../workers.ts';
import { claimExchange, storeCredential, untilStored, type StoreDeps } from './store-credential.ts';

export interface ExchangeCodeDeps extends StoreDeps {
  readonly config: Pick<Config, 'connections'>;
  readonly elicitations: Pick<Elicitations, 'load' | 'move' | 'complete'>;
  readonly flows: Pick<Flows, 'openCode'>;
  readonly thirdParty: Pick<ThirdParty, 'prepare' | 'exchange' | 'revoke'>;
  readonly registrations: Pick<Registrations, 'forget'>;
}

const REASON: Record<GrantFailure, EndReason> = {
  invalid_grant: 'invalid_grant',
  denied: 'refused',
  unknown_client: 'refused',
  unavailable: 'unavailable',
  invalid_answer: 'invalid_answer',
};

/** Throws to be run again; ends quietly when the flow has ended, by itself or otherwise. */
export type ExchangeCode = (
  payload: JobPayload<'exchange-code'>,
  context: JobContext,
) => Promise<void>;

export function createExchangeCode(deps: ExchangeCodeDeps): ExchangeCode {
  const { elicitations, flows, thirdParty, registrations } = deps;

  return async (payload, { log, lastAttempt }) => {
    const { userId, elicitationId } = payload;
    const fail = async (reason: EndReason): Promise<void> => {
      const result = await untilStored(() =>
        elicitations.move(userId, elicitationId, 'failed', { reason }),
      );
      log.info({ reason, result }, 'the flow has failed');
    };

    const record = await elicitations.load(userId, elicitationId);
    if (record === undefined || isEnded(record.state)) return;
    if (record.state === 'exchanging') {
      await fail('interrupted');
      return;
    }
    if (record.state !== 'authorized') {
      log.warn({ elicitationState: record.state }, 'there is no code to exchange');
      return;
    }
    const connection = deps.config.connections[record.connection];
    if (connection === undefined) {
      await fail('not_configured');
      return;
    }
    const code = await flows.openCode(record);
    if (code === undefined) {
      await fail('interrupted');
      return;
    }
    const target = connection.type === 'oauth' ? connection : code.target;
    if (target === undefined) {
      await fail('not_configured');
      return;
    }
    const prepared = await thirdParty.prepare(target);
    if (prepared.kind !== 'ready') {
      log.warn(
        { outcome: prepared.kind, detail: prepared.detail },
        'no metadata of the third party',
      );
      if (prepared.kind !== 'unavailable' || lastAttempt) await fail(REASON[prepared.kind]);
      else throw new Error(`the third party is not reachable: ${prepared.detail}`);
      return;
    }
    const attempt = randomBytes(16).toString('base64url');
    if (!(await claimExchange(elicitations, record, attempt))) return;
    const outcome = await thirdParty.exchange(target, code, connectionHash(connection));
    if (outcome.kind !== 'granted') {
      log.warn({ outcome: outcome.kind, detail: outcome.detail }, 'the code was not exchanged');
      if (outcome.kind === 'unknown_client' && isOwnClient(connection)) {
        await untilStored(() => registrations.forget(target.issuer ?? '', target.clientId));
        await fail('client_dropped');
        return;
      }
      await fail(REASON[outcome.kind]);
      return;
    }
    const { credential } = outcome;
    const found = { record, connection, credential, attempt };
    await storeCredential(deps, found, () => thirdParty.revoke(target, credential), log);
  };
}
