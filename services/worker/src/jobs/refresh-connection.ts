/**
 * Renews a third party's token ahead of its expiry, so that no call waits for it. Only what is in use: a token that
 * nobody has needed since it was obtained is renewed when a call needs it, or forgotten. The lease and the
 * compare-and-set of credentials.ts make it one refresh, whatever the pods do at the same time.
 */
import type { Config } from '@viaduct/shared/config';
import type { Credentials } from '@viaduct/shared/credentials';
import type { JobPayload } from '@viaduct/shared/jobs';
import type { JobContext } from '../workers.ts';

export interface RefreshConnectionDeps {
  readonly config: Pick<Config, 'connections'>;
  readonly credentials: Pick<Credentials, 'renew'>;
}

export type RefreshConnection = (
  payload: JobPayload<'refresh-connection'>,
  context: Pick<JobContext, 'log'>,
) => Promise<void>;

export function createRefreshConnection(deps: RefreshConnectionDeps): RefreshConnection {
  return async ({ userId, connection: name, requestId }, { log }) => {
    const connection = deps.config.connections[name];
    if (connection === undefined) return;
    const result = await deps.credentials.renew(userId, connection, requestId);
    log.info({ result }, 'looked at a token ahead of its expiry');
    // On demand it is tried again by the next call, too; here a little later.
    if (result === 'unavailable') throw new Error('the third party could not refresh the token');
  };
}
