/**
 * `/connections`: what the user has connected, which applications may use it, and which ask for it. The way in for
 * people whose client cannot open links.
 */
import { rateLimited } from '@viaduct/shared/rate-limit';
import { fail, GatewayError } from '@viaduct/shared/errors';
import { connectionHash } from '@viaduct/shared/third-party';
import type { Frame, PageServices, Visit } from './frame.ts';
import { connectionsPage, type ConnectionView } from './views.ts';

export interface AccountPages {
  list(visit: Visit): Promise<void>;
  connect(visit: Visit, name: string): Promise<void>;
  disconnect(visit: Visit, name: string): Promise<void>;
  /** Takes back what an OAuth client was allowed; its refresh tokens end with it. */
  withdraw(visit: Visit): Promise<void>;
}

export function createAccountPages(services: PageServices, frame: Frame): AccountPages {
  const { config, vault, consents, credentials, elicitations, limits, audit } = services;

  const stateOf = async (userId: string, name: string): Promise<Partial<ConnectionView>> => {
    const connection = config.connections[name];
    if (connection === undefined) return {};
    if (connection.type === 'token-exchange') return { state: 'automatic' };
    let stored: Awaited<ReturnType<typeof vault.peek>>;
    try {
      stored = await vault.peek(userId, name);
    } catch (error) {
      if (!(error instanceof GatewayError) || error.code !== 'internal') throw error;
      return {
        state: 'unreadable',
        problem: `${error.message} Disconnect it and connect it again.`,
      };
    }
    if (stored === undefined) return { state: 'absent' };
    const { credential, lastUsedMs } = stored;
    const expired =
      credential.kind === 'oauth' &&
      credential.refreshToken === undefined &&
      credential.expiresAtMs !== undefined &&
      credential.expiresAtMs <= Date.now();
    return {
      state:
        expired || credential.connectionHash !== connectionHash(connection) ? 'renew' : 'connected',
      since: new Date(credential.connectedAtMs ?? credential.obtainedAtMs),
      lastUsed: new Date(lastUsedMs),
    };
  };

  return {
    async list(visit) {
      const known = await frame.known(visit, '/connections');
      if (known === undefined) return;
      const { userId } = known.session;
      const [approvals, wishes, applications] = await Promise.all([
        consents.list(userId),
        consents.wishes(userId),
        services.authorizationServer?.approvals(userId) ?? [],
      ]);
      const views = await Promise.all(
        Object.values(config.connections).map(async (connection): Promise<ConnectionView> => {
          const { name, displayName } = connection;
          const scopes = 'scopes' in connection ? (connection.scopes ?? []) : [];
          const mine = approvals.filter((approval) => approval.connection === name);
          const found = await stateOf(userId, name);
          return {
            name,
            displayName,
            scopes,
            state: 'absent',
            ...found,
            approvals: mine,
            // Who has both the credential and the approval needs nothing any more.
            wishes: wishes.filter(
              (wish) =>
                wish.connection === name &&
                !(
                  found.state === 'connected' &&
                  mine.some(({ clientId }) => clientId === wish.clientId)
                ),
            ),
          };
        }),
      );
      frame.show(known, connectionsPage(views, frame.csrf(known.session), applications), {
        session: known.session,
        live: { script: 'connections.js' },
      });
    },

    async connect(visit, name) {
      const known = await frame.form(visit);
      if (known === undefined) return;
      const connection = config.connections[name];
      if (connection === undefined || connection.type === 'token-exchange') {
        throw fail('not_found', 'There is no such connection.');
      }
      const { userId } = known.session;
      const client = (visit.req.body as Record<string, unknown>)['client'];
      const wish =
        typeof client === 'string'
          ? (await consents.wishes(userId)).find(
              (entry) => entry.connection === name && entry.clientId === client,
            )
          : undefined;
      const verdict = await limits.check('userElicitations', userId);
      if (!verdict.allowed) throw rateLimited(verdict);
      const { elicitation } = await elicitations.open({
        userId,
        clientId: wish?.clientId ?? '',
        ...(wish?.clientName !== undefined && { clientName: wish.clientName }),
        endpoint: wish?.endpoint ?? '/connections',
        upstream: wish?.upstream ?? '',
        connection: name,
        mode: 'url',
        modeReason: 'the user began on the connections page',
        origin: 'gateway',
        message: `Connect ${connection.displayName}.`,
        requestId: wish?.requestId ?? visit.requestId,
        capabilities: wish?.capabilities ?? '{}',
      });
      visit.res.redirect(303, `/connect/${elicitation.id}`);
    },

    async withdraw(visit) {
      const known = await frame.form(visit);
      if (known === undefined) return;
      const { userId } = known.session;
      const clientId = (visit.req.body as Record<string, unknown>)['client'];
      if (typeof clientId === 'string' && services.authorizationServer !== undefined) {
        const gone = await services.authorizationServer.withdraw(userId, clientId);
        const { requestId } = visit;
        if (gone) audit.record({ type: 'client.withdrawn', userId, clientId, requestId });
      }
      visit.res.redirect(303, '/connections');
    },

    async disconnect(visit, name) {
      const known = await frame.form(visit);
      if (known === undefined) return;
      const connection = config.connections[name];
      if (connection === undefined) throw fail('not_found', 'There is no such connection.');
      const { userId } = known.session;
      // The approvals go first: if the rest fails, nobody is served any more.
      await consents.forget(userId, name);
      await credentials.disconnect(userId, connection, visit.requestId);
      audit.record({
        type: 'consent.withdrawn',
        userId,
        requestId: visit.requestId,
        connection: name,
      });
      visit.res.redirect(303, '/connections');
    },
  };
}
