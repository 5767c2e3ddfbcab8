/**
 * What happened, for people who have to answer for it: an append-only record beside the log, in the same
 * stream. An event is a log line with a top-level `audit: { type, … }`, whatever LOG_LEVEL is.
 *
 * Holds user ids, client ids and names out of the configuration; never a token, a secret, an e-mail address
 * or what a person typed. Does not throw: what was audited has happened.
 */
import type { Logger } from 'pino';
import type { AuditSinks } from './audit-sinks.ts';
import type { Metrics } from './metrics.ts';

/** Who and where from; the same on every event, as far as known. */
interface Common {
  readonly requestId?: string | undefined;
  readonly userId?: string | undefined;
  readonly clientId?: string | undefined;
  /** Client address as far as the configured proxies vouch for it. */
  readonly address?: string | undefined;
}

interface About {
  readonly elicitationId: string;
  readonly connection?: string | undefined;
  readonly upstream?: string | undefined;
  readonly sessionId?: string | undefined;
  readonly mode?: 'url' | 'form' | undefined;
  readonly origin?: 'gateway' | 'upstream' | undefined;
  /** The state before this transition. */
  readonly from?: string | undefined;
  readonly reason?: string | undefined;
}

interface Events {
  'session.started': { sessionId: string; endpoint: string; protocolVersion: string };
  'session.ended': { sessionId: string; reason: string };

  'elicitation.created': About;
  'elicitation.opened': About;
  'elicitation.authorized': About;
  'elicitation.exchanging': About;
  'elicitation.completed': About;
  'elicitation.declined': About;
  'elicitation.cancelled': About;
  'elicitation.failed': About;
  'elicitation.expired': About;
  /** Input was wanted that the client had not declared (invariant 6). */
  'capability.refused': {
    mode: string;
    upstream?: string | undefined;
    sessionId?: string | undefined;
  };
  /** An upstream asked for a secret by form, or with a link that nobody should open. */
  'elicitation.unsafe': {
    upstream: string;
    sessionId?: string | undefined;
    detail: string;
    refused: boolean;
  };
  /** `userId` is who tried; the owner is not named to anyone who reads only this line's user. */
  /** `times`: openings of other people's links by this user within a day. */
  'link.wrong_user': { elicitationId: string; times: number };
  'consent.given': { connection: string; elicitationId?: string | undefined };
  'consent.denied': { connection: string; elicitationId?: string | undefined };
  'consent.withdrawn': { connection: string };

  'credential.stored': { connection: string; elicitationId?: string | undefined };
  'credential.refreshed': { connection: string };
  'credential.revoked': { connection: string; reason?: string | undefined };
  'credential.forgotten': { connection: string; reason: string };
  'credential.refused': { connection: string; reason: string };

  /** The built-in authorization server; `clientId` is the client that registered, or that is meant. */
  'client.registered': unknown;
  'client.approved': { scopes: readonly string[]; endpoint: string; remembered: boolean };
  'client.denied': { endpoint: string };
  'client.withdrawn': unknown;
  'grant.revoked': unknown;
  'user.revoked': { connections: boolean; sessions: number };
  /** Sealing again with a new first key has come to its end. */
  'vault.resealed': { kid: string; resealed: number; unreadable: number };
  /** What a user typed was refused by the check. */
  'secret.refused': { connection: string; elicitationId: string; tries: string };

  'login.completed': unknown;
  'login.refused': { reason: string };
  logout: unknown;

  'auth.refused': { reason: string; endpoint: string };
  'scope.challenged': { scopes: readonly string[]; endpoint: string };
  'group.refused': { endpoint: string; tool?: string | undefined };
  'rate.limited': { limit: string };
  'origin.refused': { reason: string };
  'host.refused': { reason: string };
  'callback.refused': { reason: string; elicitationId?: string | undefined };
  'csrf.refused': { path: string };
  'egress.refused': { reason: string; host?: string | undefined };
  /** A `requestState` that is not this caller's, not for this request, too old or used. */
  'state.refused': { reason: string; endpoint: string; method: string };
  /** Somebody of the operators' group came into the console, or somebody else tried. */
  'console.entered': { address?: string | undefined };
  'console.refused': { reason: string };
  /** An operator did something in the console; `operator` is their user id, where people have names there. */
  'console.action': {
    action: string;
    operator?: string | undefined;
    connections?: string;
    pod?: string;
    sessionId?: string;
    elicitationId?: string;
  };
  /** A tool that clients must not be shown, because it breaks the rules of `x-mcp-header`. */
  'tool.hidden': { upstream: string; tool: string; reason: string };
}

export type AuditType = keyof Events;
export type AuditEvent = {
  [T in AuditType]: Readonly<{ type: T } & Common & Events[T]>;
}[AuditType];

export interface Audit {
  record(event: AuditEvent): void;
}

/** Refusals that are worth a look in numbers: they also count in `security_events_total{type}`. */
const SECURITY: ReadonlySet<AuditType> = new Set<AuditType>([
  'link.wrong_user',
  'elicitation.unsafe',
  'login.refused',
  'auth.refused',
  'origin.refused',
  'host.refused',
  'callback.refused',
  'csrf.refused',
  'egress.refused',
  'state.refused',
  'tool.hidden',
]);

export function createAudit(deps: {
  readonly log: Logger;
  readonly metrics?: Pick<Metrics, 'securityEvents'>;
  /** File and webhooks, beside the log. */
  readonly sinks?: Pick<AuditSinks, 'write'>;
}): Audit {
  // A child's own level: LOG_LEVEL=warn quiets the log, not the record.
  const log = deps.log.child({}, { level: 'info' });
  return {
    record(event) {
      const { requestId, userId, clientId } = event;
      if (SECURITY.has(event.type)) deps.metrics?.securityEvents.inc({ type: event.type });
      deps.sinks?.write(event);
      log.info({ requestId, userId, clientId, audit: event }, `audit: ${event.type}`);
    },
  };
}
