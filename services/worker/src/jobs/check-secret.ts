/**
 * What a user typed for a `type: secret` connection: asked about at `verify` when that is configured, then stored like
 * a token. A refusal hands the same link back for another try, five in all; a service that is away is asked again.
 *
 * The question is a GET with the header that the upstream will get: asking twice harms nobody, so it comes before
 * the claim, and a run that finds the claim of a dead run ends the flow: what was typed is gone from the record then.
 */
import { randomBytes } from 'node:crypto';
import type { Config, SecretConnection } from '@viaduct/shared/config';
import { injectHeaders } from '@viaduct/shared/credentials';
import { createFetch, EgressRefused, type Egress } from '@viaduct/shared/egress';
import { isEnded, type Elicitations, type EndReason } from '@viaduct/shared/elicitations';
import type { Flows } from '@viaduct/shared/flows';
import type { JobPayload } from '@viaduct/shared/jobs';
import { connectionHash } from '@viaduct/shared/third-party';
import type { JobContext } from '../workers.ts';
import { claimExchange, storeCredential, untilStored, type StoreDeps } from './store-credential.ts';

export interface CheckSecretDeps extends StoreDeps {
  readonly config: Pick<Config, 'connections' | 'development'>;
  readonly elicitations: Pick<Elicitations, 'load' | 'move' | 'reopen' | 'complete'>;
  readonly flows: Pick<Flows, 'openSecret'>;
  readonly egress: Egress;
}

export type CheckSecret = (
  payload: JobPayload<'check-secret'>,
  context: JobContext,
) => Promise<void>;

type Verdict =
  | { readonly kind: 'accepted' | 'refused' }
  | { readonly kind: 'unavailable'; readonly detail: string };

const TIMEOUT_MS = 10_000;

export function createCheckSecret(deps: CheckSecretDeps): CheckSecret {
  const { elicitations, flows, config, audit } = deps;

  async function verify(
    connection: SecretConnection,
    values: Record<string, string>,
  ): Promise<Verdict> {
    if (connection.verify === undefined) return { kind: 'accepted' };
    const { url, expectStatus } = connection.verify;
    const fetch = createFetch({
      egress: deps.egress,
      development: config.development,
      // Written by the operator, so private addresses are his to choose; redirects are not followed.
      trustedOrigins: new Set([new URL(url).origin]),
    });
    try {
      const { status } = await fetch(url, {
        headers: { accept: '*/*', ...injectHeaders(connection, { kind: 'secret', values }) },
        signal: AbortSignal.timeout(TIMEOUT_MS),
      });
      if (status === expectStatus) return { kind: 'accepted' };
      if (status >= 500 || status === 429)
        return { kind: 'unavailable', detail: `status ${String(status)}` };
      return { kind: 'refused' };
    } catch (error) {
      if (error instanceof EgressRefused) return { kind: 'unavailable', detail: error.message };
      // Names only: nothing of the request may come along.
      const code = (error as { code?: unknown } | null)?.code;
      return { kind: 'unavailable', detail: typeof code === 'string' ? code : 'not reached' };
    }
  }

  return async (payload, { log, lastAttempt }) => {
    const { userId, elicitationId } = payload;
    const fail = async (reason: EndReason): Promise<void> => {
      await untilStored(() => elicitations.move(userId, elicitationId, 'failed', { reason }));
    };
    const record = await elicitations.load(userId, elicitationId);
    if (record === undefined || isEnded(record.state)) return;
    if (record.state === 'exchanging') {
      await fail('interrupted');
      return;
    }
    if (record.state !== 'authorized') return;
    const connection = config.connections[record.connection];
    if (connection?.type !== 'secret') {
      await fail('not_configured');
      return;
    }
    const values = await flows.openSecret(record);
    if (values === undefined) {
      await fail('interrupted');
      return;
    }
    const verdict = await verify(connection, values);
    if (verdict.kind === 'unavailable') {
      log.warn({ detail: verdict.detail }, 'what was typed could not be checked');
      if (!lastAttempt) throw new Error(`verify is not reachable: ${verdict.detail}`);
      await fail('unavailable');
      return;
    }
    const attempt = randomBytes(16).toString('base64url');
    if (!(await claimExchange(elicitations, record, attempt))) return;
    if (verdict.kind === 'refused') {
      const result = await untilStored(() =>
        elicitations.reopen(userId, elicitationId, { attempt, reason: 'secret_refused' }),
      );
      const tries = String(Number(record.tries ?? 0) + 1);
      audit.record({
        type: 'secret.refused',
        userId,
        clientId: record.clientId,
        requestId: record.requestId,
        connection: connection.name,
        elicitationId,
        tries,
      });
      log.info({ result, tries }, 'what was typed was refused');
      return;
    }
    const credential = {
      kind: 'secret' as const,
      values,
      obtainedAtMs: Date.now(),
      connectionHash: connectionHash(connection),
    };
    const found = { record, connection, credential, attempt };
    await storeCredential(deps, found, () => Promise.resolve('not stored'), log);
  };
}
