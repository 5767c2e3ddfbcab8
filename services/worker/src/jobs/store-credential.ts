/**
 * The end of a flow that has brought a credential: sealed and stored with the user's approval in one script, or, when
 * the flow has ended otherwise meanwhile, given up.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Audit } from '@viaduct/shared/audit';
import type { ConnectionConfig } from '@viaduct/shared/config';
import { consentEntry } from '@viaduct/shared/consents';
import type { Credentials } from '@viaduct/shared/credentials';
import type { Elicitation, Elicitations } from '@viaduct/shared/elicitations';
import { isStoreError } from '@viaduct/shared/errors';
import type { Logger } from '@viaduct/shared/log';
import type { Credential } from '@viaduct/shared/third-party';
import type { Vault } from '@viaduct/shared/vault';

export interface StoreDeps {
  readonly elicitations: Pick<Elicitations, 'complete'>;
  readonly vault: Pick<Vault, 'seal'>;
  readonly credentials: Pick<Credentials, 'plan'>;
  readonly audit: Audit;
}

/**
 * @param giveUp ends at the third party what could not be kept here
 * @throws when it could not be stored; it has been given up then
 */
export async function storeCredential(
  deps: StoreDeps,
  found: {
    readonly record: Elicitation;
    readonly connection: ConnectionConfig;
    readonly credential: Credential;
    readonly attempt: string;
  },
  giveUp: () => Promise<string>,
  log: Logger,
): Promise<void> {
  const { record, connection, credential, attempt } = found;
  const { userId, id, clientId, clientName, requestId } = record;
  const sealed = await deps.vault.seal(userId, connection.name, credential);
  const consent =
    clientId === ''
      ? undefined
      : consentEntry({
          connection: connection.name,
          clientId,
          ...(clientName !== undefined && { clientName }),
          approvedAtMs: record.at.authorized ?? Date.now(),
          elicitationId: id,
        });
  let result: Awaited<ReturnType<Elicitations['complete']>> | 'lost';
  try {
    result = await untilStored(() =>
      deps.elicitations.complete(userId, id, {
        from: 'exchanging',
        attempt,
        sealed,
        ...(consent !== undefined && { consent }),
      }),
    );
  } catch (error) {
    log.error({ err: error }, 'a credential could not be stored; it is revoked');
    result = 'lost';
  }
  if (result === 'completed' || result === 'already') {
    deps.audit.record({
      type: 'credential.stored',
      userId,
      clientId,
      requestId,
      connection: connection.name,
      elicitationId: id,
    });
    deps.credentials.plan(userId, connection, credential, requestId);
    log.info('the flow is complete');
    return;
  }
  const revocation = await giveUp();
  log.warn({ result, revocation }, 'the flow had ended otherwise; what it was given is revoked');
  if (result === 'lost') throw new Error('the credential could not be stored');
}

const STORE_WAIT_MS = 30_000;

/** With a code spent or a token in hand, a passing outage of Redis is waited out; every script here may run twice. */
export async function untilStored<T>(work: () => Promise<T>): Promise<T> {
  const until = Date.now() + STORE_WAIT_MS;
  for (let delay = 100; ; delay = Math.min(delay * 2, 2_000)) {
    try {
      return await work();
    } catch (error) {
      if (!isStoreError(error) || Date.now() > until) throw error;
      await sleep(delay);
    }
  }
}

/** `authorized → exchanging` for this run; false when another one has it, or the flow has ended. */
export async function claimExchange(
  elicitations: Pick<Elicitations, 'load' | 'move'>,
  { userId, id }: Elicitation,
  attempt: string,
): Promise<boolean> {
  const result = await untilStored(() =>
    elicitations.move(userId, id, 'exchanging', { from: 'authorized', attempt }),
  );
  if (result === 'moved') return true;
  if (result !== 'already') return false;
  // The reply of our own claim may have been lost, and the second try found it done.
  return (await elicitations.load(userId, id))?.attempt === attempt;
}
