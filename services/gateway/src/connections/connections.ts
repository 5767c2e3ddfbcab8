/**
 * What a call to an upstream with a `connection` needs: the user's credential, and the user's approval of this very
 * OAuth client for it. Where either is missing, the elicitation that gets it.
 *
 * Promises: a credential goes into headers for the upstream and nowhere else; without approval it is as if it
 * did not exist. Non-duties: whether the client can be asked and in which words (elicitation/), and the pages
 * (pages/).
 */
import type {
  Config,
  ConnectionConfig,
  TokenExchangeConnection,
  UpstreamConfig,
} from '@viaduct/shared/config';
import type { Consents } from '@viaduct/shared/consents';
import {
  injectHeaders,
  type CredentialResult,
  type Credentials,
} from '@viaduct/shared/credentials';
import { isEnded, type Elicitation, type Elicitations } from '@viaduct/shared/elicitations';
import { fail } from '@viaduct/shared/errors';
import type { Principal } from '@viaduct/shared/principal';
import { rateLimited, type Limits } from '@viaduct/shared/rate-limit';
import type { TokenExchange } from '@viaduct/shared/token-exchange';
import { describeLastAttempt } from './outcomes.ts';

export { describeOutcome, type Outcome } from './outcomes.ts';

export interface Injected {
  readonly headers: Record<string, string>;
  /** Which credential this was, to say later which one was refused. */
  readonly version: string;
}

/** The call that needs the credential. */
export interface AskContext {
  /** Absent for clients without sessions. */
  readonly sessionId?: string;
  readonly endpoint: string;
  /** Snapshot, JSON text. */
  readonly capabilities: string;
  /** `clientInfo` as the client sent it, JSON text; its own word. */
  readonly clientInfo: string;
  readonly requestId: string;
  /** Scopes that the upstream wants beyond those granted. */
  readonly scopes?: string;
}

export interface Connections {
  /**
   * The headers to add, if there is a credential that lives and this client is approved. Refreshes when due.
   *
   * @throws GatewayError when there is a grant that the third party cannot renew just now
   */
  peek(
    principal: Principal,
    upstream: UpstreamConfig,
    requestId?: string,
  ): Promise<Injected | undefined>;
  /** The upstream answered 401 to this version: a newer one, or undefined and the user has to connect again. */
  rejected(
    principal: Principal,
    upstream: UpstreamConfig,
    version: string,
    requestId?: string,
  ): Promise<Injected | undefined>;
  /**
   * The unfinished elicitation of this user, session and connection, or a new one.
   *
   * @throws GatewayError `rate_limited` when a new one would be one too many
   */
  ask(principal: Principal, upstream: UpstreamConfig, context: AskContext): Promise<Elicitation>;
  /** A client that cannot be asked was refused: the connections page offers it to the user from now on. */
  refused(principal: Principal, upstream: UpstreamConfig, context: AskContext): Promise<void>;
}

export interface ConnectionsDeps {
  readonly config: Pick<Config, 'connections'>;
  readonly credentials: Credentials;
  readonly tokenExchange: TokenExchange;
  readonly consents: Consents;
  readonly elicitations: Elicitations;
  readonly limits: Pick<Limits, 'check'>;
  readonly now?: () => number;
}

export function createConnections(deps: ConnectionsDeps): Connections {
  const { config, credentials, consents, elicitations, limits } = deps;
  const now = deps.now ?? Date.now;

  const connectionOf = (upstream: UpstreamConfig): ConnectionConfig | undefined =>
    upstream.connection === undefined ? undefined : config.connections[upstream.connection];

  function inject(connection: ConnectionConfig, result: CredentialResult): Injected | undefined {
    switch (result.kind) {
      case 'missing':
        return undefined;
      case 'ready': {
        const { credential, version } = result.stored;
        return { headers: injectHeaders(connection, credential), version };
      }
      case 'unavailable':
        throw fail(
          'upstream_unavailable',
          `${connection.displayName} cannot renew your access at the moment. Try again in a little while.`,
          { data: { reason: 'third_party_unavailable' }, detail: result.detail },
        );
    }
  }

  /**
   * Nobody is asked: the operator's configuration says that this upstream may know who the user is, and the user has
   * proven it to this gateway a moment ago.
   */
  async function exchanged(
    principal: Principal,
    connection: TokenExchangeConnection,
    requestId: string,
    refused?: string,
  ): Promise<Injected> {
    const result = await deps.tokenExchange.tokenFor(principal, connection, requestId, refused);
    if (result.kind === 'ready') {
      const { credential, version } = result.stored;
      return { headers: injectHeaders(connection, credential), version };
    }
    const name = connection.displayName;
    throw fail(
      'upstream_unavailable',
      result.kind === 'unavailable'
        ? `${name} cannot give you access at the moment. Try again in a little while.`
        : `${name} does not give you access. There is nothing to connect; ask the people who run it.`,
      {
        data: {
          reason:
            result.kind === 'unavailable' ? 'third_party_unavailable' : 'token_exchange_refused',
        },
        detail: result.detail,
      },
    );
  }

  return {
    async peek(principal, upstream, requestId = '') {
      const connection = connectionOf(upstream);
      if (connection === undefined) return undefined;
      if (connection.type === 'token-exchange') return exchanged(principal, connection, requestId);
      const { userId, clientId } = principal;
      // Side by side: one round trip when both are there, which is nearly always.
      const [approved, result] = await Promise.all([
        consents.approved(userId, connection.name, clientId),
        credentials.credentialFor(userId, connection, requestId),
      ]);
      return approved ? inject(connection, result) : undefined;
    },

    async rejected(principal, upstream, version, requestId = '') {
      const connection = connectionOf(upstream);
      if (connection === undefined) return undefined;
      if (connection.type === 'token-exchange') {
        return exchanged(principal, connection, requestId, version);
      }
      const result = await credentials.rejected(principal.userId, connection, version, requestId);
      return inject(connection, result);
    },

    async ask(principal, upstream, context) {
      const connection = connectionOf(upstream);
      if (connection === undefined) throw new Error(`upstream ${upstream.name} has no connection`);
      if (connection.type === 'token-exchange') {
        throw fail('upstream_unavailable', `${connection.displayName} refused access.`);
      }
      const { userId, clientId } = principal;
      const slot = {
        userId,
        clientId,
        connection: connection.name,
        ...(context.sessionId !== undefined && { sessionId: context.sessionId }),
      };
      const last = await elicitations.find(slot);
      if (last !== undefined && !isEnded(last.state)) return last;
      const verdict = await limits.check('userElicitations', userId);
      if (!verdict.allowed) throw rateLimited(verdict);
      const clientName = nameOf(context.clientInfo);
      const { elicitation } = await elicitations.open({
        ...slot,
        ...(clientName !== undefined && { clientName }),
        endpoint: context.endpoint,
        upstream: upstream.name,
        mode: 'url',
        modeReason: 'a third party is involved, and the client declared elicitation.url',
        origin: 'gateway',
        ...(context.scopes !== undefined && { scopes: context.scopes }),
        message:
          (context.scopes === undefined
            ? `This needs access to your ${connection.displayName} account. `
            : `This needs more access to your ${connection.displayName} account: ${context.scopes}. `) +
          `Open the link to connect it, then try again.${describeLastAttempt(last, connection.displayName)}`,
        requestId: context.requestId,
        capabilities: context.capabilities,
      });
      return elicitation;
    },

    async refused(principal, upstream, context) {
      const connection = connectionOf(upstream);
      if (connection === undefined) return;
      const clientName = nameOf(context.clientInfo);
      await consents.wish(principal.userId, {
        connection: connection.name,
        clientId: principal.clientId,
        ...(clientName !== undefined && { clientName }),
        endpoint: context.endpoint,
        upstream: upstream.name,
        requestId: context.requestId,
        capabilities: context.capabilities.slice(0, 4_096),
        atMs: now(),
      });
    },
  };
}

/** `title` or `name`, and `version`, of `clientInfo`; whatever it is, it is shown as what the client calls itself. */
function nameOf(clientInfo: string): string | undefined {
  let info: unknown;
  try {
    info = JSON.parse(clientInfo);
  } catch {
    return undefined; // no clientInfo, no name
  }
  if (typeof info !== 'object' || info === null) return undefined;
  const { title, name, version } = info as Record<string, unknown>;
  const label = [title, name].find((text) => typeof text === 'string' && text.trim() !== '');
  if (typeof label !== 'string') return undefined;
  const full = typeof version === 'string' && version !== '' ? `${label} ${version}` : label;
  // Control and bidirectional characters would let a client write over the rest of the page's sentence.
  return full.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, '').slice(0, 120);
}
