/**
 * The out-of-band part of a URL elicitation: `/connect/<id>`, its decision, the callback and the status.
 *
 * Invariant 8 rules the order everywhere: who the browser is, is settled first; every lookup starts from that
 * user; and only then is anything moved, consumed or sent. A link of somebody else's is one that does not exist.
 */
import type { ConnectionConfig, McpConnection, OAuthConnection } from '@viaduct/shared/config';
import { consentEntry } from '@viaduct/shared/consents';
import { isEnded, SECRET_TRIES, type Elicitation } from '@viaduct/shared/elicitations';
import { secretJobSuffix } from '@viaduct/shared/jobs';
import { rateLimited } from '@viaduct/shared/rate-limit';
import {
  CALLBACK_PATH,
  thirdPartyOrigin,
  type GrantFault,
  type OAuthTarget,
} from '@viaduct/shared/third-party';
import { traced } from '@viaduct/shared/tracing';
import { describeOutcome } from '../connections/connections.ts';
import type { Frame, KnownVisit, PageServices, Visit } from './frame.ts';
import { allowFormsElsewhere } from './security.ts';
import { readSecret, secretPage } from './secret-form.ts';
import { consentPage, statusPage } from './views.ts';

export interface ConnectPages {
  consent(visit: Visit, id: string): Promise<void>;
  decide(visit: Visit, id: string): Promise<void>;
  status(visit: Visit, id: string): Promise<void>;
}

/** How long the consent page waits for metadata that it only wants to show. */
const METADATA_WAIT_MS = 2_000;
/** An `authorized` record of this age whose job did not get through is enqueued again by whoever looks at it. */
const REENQUEUE_AFTER_MS = 3_000;

const statusPath = (id: string): string => `/connect/${id}/status`;

/** What a person can be asked about; a token exchange needs nobody. */
type Askable = Exclude<ConnectionConfig, { type: 'token-exchange' }>;

interface Asked {
  readonly visit: KnownVisit;
  readonly elicitation: Elicitation;
  readonly connection: Askable;
}

export function createConnectPages(services: PageServices, frame: Frame): ConnectPages {
  const { config, elicitations, thirdParty, credentials, consents, limits, audit, log } = services;

  /** The user's own record. Somebody else's is none; that it was tried is noted. */
  async function find(
    userId: string,
    id: string,
    requestId: string,
  ): Promise<Elicitation | undefined> {
    const elicitation = await elicitations.load(userId, id);
    if (elicitation !== undefined) return elicitation;
    // Unknown and foreign links count alike, so that the answer tells nothing: guessing ends here.
    const verdict = await limits.check('userElicitations', userId, 'unknown-link');
    if (!verdict.allowed) {
      audit.record({ type: 'rate.limited', limit: verdict.limit, userId, requestId });
      throw rateLimited(verdict);
    }
    const times = await elicitations.noteStranger(id, userId);
    if (times !== undefined) {
      audit.record({ type: 'link.wrong_user', elicitationId: id, userId, times, requestId });
    }
    return undefined;
  }

  /** As `find`; without one, the page that tells nothing has been shown. */
  async function own(visit: KnownVisit, id: string): Promise<Elicitation | undefined> {
    const { session, requestId } = visit;
    const elicitation = await find(session.userId, id, requestId);
    if (elicitation === undefined) frame.notFound(visit, session);
    return elicitation;
  }

  /** Is a credential there already, so that only this client's approval is missing? */
  async function hasCredential(
    visit: KnownVisit,
    elicitation: Elicitation,
    connection: Askable,
  ): Promise<boolean> {
    const { userId } = visit.session;
    const result = await credentials.credentialFor(userId, connection, visit.requestId);
    if (result.kind !== 'ready' || elicitation.scopes === undefined) {
      return result.kind === 'ready' || result.kind === 'unavailable';
    }
    // A step-up: what is there is not enough.
    const { credential } = result.stored;
    const granted = credential.kind === 'oauth' ? (credential.scope ?? '').split(' ') : [];
    return elicitation.scopes.split(' ').every((scope) => granted.includes(scope));
  }

  /** Where the user is sent, and what for. */
  async function targetOf(
    elicitation: Elicitation,
    connection: OAuthConnection | McpConnection,
  ): Promise<{ kind: 'ready'; target: OAuthTarget } | GrantFault> {
    if (connection.type === 'oauth') return { kind: 'ready', target: connection };
    const { userId, scopes } = elicitation;
    const stored = await services.vault.peek(userId, connection.name).catch(() => undefined);
    const granted = stored?.credential.kind === 'oauth' ? stored.credential.scope : undefined;
    // Together with what is granted already: the new grant replaces the old one.
    const added =
      scopes === undefined ? [] : [...(granted?.split(' ') ?? []), ...scopes.split(' ')];
    return services.upstreamOAuth.find(connection, added);
  }

  /** One that still waits for its decision, opened now; any other is shown by its status page. */
  async function waiting(visit: KnownVisit, id: string): Promise<Asked | undefined> {
    await within(visit);
    const elicitation = await own(visit, id);
    if (elicitation === undefined) return undefined;
    const { userId, state } = elicitation;
    const connection = config.connections[elicitation.connection];
    if (connection === undefined || connection.type === 'token-exchange') {
      if (!isEnded(state))
        await elicitations.move(userId, id, 'failed', { reason: 'not_configured' });
    } else if (state === 'created') {
      await elicitations.move(userId, id, 'opened', { cause: visit.requestId });
      return { visit, elicitation, connection };
    } else if (state === 'opened') return { visit, elicitation, connection };
    visit.res.redirect(303, statusPath(id));
    return undefined;
  }

  async function showConsent(
    visit: KnownVisit,
    elicitation: Elicitation,
    connection: Askable,
    problem?: { status: number; text: string },
  ): Promise<void> {
    const { session } = visit;
    const approvalOnly = await hasCredential(visit, elicitation, connection);
    const common = {
      elicitation,
      displayName: connection.displayName,
      csrf: frame.csrf(session),
      minutesLeft: Math.max(1, Math.round((elicitation.expiresAtMs - Date.now()) / 60_000)),
    };
    const status = problem?.status ?? 200;
    if (connection.type === 'secret' && !approvalOnly) {
      const refused =
        elicitation.reason === 'secret_refused' ? refusedText(elicitation) : undefined;
      const text = problem?.text ?? refused;
      const page = secretPage({
        ...common,
        connection,
        ...(text !== undefined && { problem: text }),
      });
      frame.show(visit, page, { session, status });
      return;
    }
    const found =
      connection.type === 'secret' ? undefined : await inTime(targetOf(elicitation, connection));
    const target = found?.kind === 'ready' ? found.target : undefined;
    const page = consentPage({
      ...common,
      scopes: target?.scopes ?? [],
      leadsTo: approvalOnly
        ? ''
        : target === undefined
          ? 'not known yet'
          : await endpointOf(target),
      returnsTo: config.publicUrl + CALLBACK_PATH,
      approvalOnly,
      ...(problem !== undefined && { problem: problem.text }),
    });
    if (!approvalOnly) allowFormsElsewhere(visit.res, config.development);
    frame.show(visit, page, { session, status });
  }

  function refusedText({ tries = '1', connection }: Elicitation): string {
    const left = Math.max(1, SECRET_TRIES - Number(tries));
    const name = config.connections[connection]?.displayName ?? connection;
    return `${name} did not accept what you typed. Check it and try again; ${left === 1 ? 'one try is' : `${String(left)} tries are`} left.`;
  }

  /** For the eye: the endpoint itself when its metadata is there in time, else its origin. */
  async function endpointOf(target: OAuthTarget): Promise<string> {
    const shown = { state: 'x', codeVerifier: 'x'.repeat(43), nonce: 'x' };
    const found = await inTime(thirdParty.authorizationUrl(target, shown));
    return found?.kind === 'ready'
      ? found.url.origin + found.url.pathname
      : thirdPartyOrigin(target);
  }

  async function given(elicitation: Elicitation, connection: Askable): Promise<void> {
    const { userId, clientId, id, requestId } = elicitation;
    await consents.fulfil(userId, connection.name, clientId);
    audit.record({
      type: 'consent.given',
      userId,
      clientId,
      requestId,
      connection: connection.name,
      elicitationId: id,
    });
  }

  /** In the trace of the call that asked. */
  function approve(
    visit: KnownVisit,
    elicitation: Elicitation,
    connection: Askable,
  ): Promise<void> {
    const { id, traceparent: parent } = elicitation;
    const attributes = { 'viaduct.request_id': visit.requestId, 'viaduct.elicitation_id': id };
    return traced({ name: 'POST /connect', kind: 'server', parent, attributes }, () =>
      goOn(visit, elicitation, connection),
    );
  }

  async function goOn(
    visit: KnownVisit,
    elicitation: Elicitation,
    connection: Askable,
  ): Promise<void> {
    if (await hasCredential(visit, elicitation, connection)) {
      await approveClient(visit, elicitation, connection);
    } else if (connection.type === 'secret') {
      await takeSecret(visit, elicitation, connection);
    } else {
      await sendAway(visit, elicitation, connection);
    }
  }

  /** The credential is there; the client's approval is all that was missing. */
  async function approveClient(
    visit: KnownVisit,
    elicitation: Elicitation,
    connection: Askable,
  ): Promise<void> {
    const { id, userId, clientId, clientName } = elicitation;
    const consent =
      clientId === ''
        ? undefined
        : consentEntry({
            connection: connection.name,
            clientId,
            ...(clientName !== undefined && { clientName }),
            approvedAtMs: Date.now(),
            elicitationId: id,
          });
    const result = await elicitations.complete(userId, id, {
      from: 'opened',
      ...(consent !== undefined && { consent }),
      cause: visit.requestId,
    });
    if (result === 'completed') await given(elicitation, connection);
    visit.res.redirect(303, statusPath(id));
  }

  /** What was typed goes into the record, sealed, and nowhere else; the worker does the rest. */
  async function takeSecret(
    visit: KnownVisit,
    elicitation: Elicitation,
    connection: Extract<Askable, { type: 'secret' }>,
  ): Promise<void> {
    const { id, userId, requestId, tries } = elicitation;
    const read = readSecret(connection, visit.req.body as Record<string, unknown>);
    if ('problem' in read) {
      await showConsent(visit, elicitation, connection, { status: 400, text: read.problem });
      return;
    }
    const code = await services.flows.sealSecret(elicitation, read.values);
    const result = await elicitations.move(userId, id, 'authorized', {
      from: 'opened',
      action: 'approve',
      code,
      cause: visit.requestId,
    });
    if (result === 'moved') {
      await given(elicitation, connection);
      try {
        const job = { userId, elicitationId: id, requestId };
        await services.jobs.enqueue('check-secret', job, { suffix: secretJobSuffix(tries) });
      } catch (failure) {
        // What was typed is safe in the record, and the status page enqueues again.
        log.warn({ err: failure, requestId, elicitationId: id }, 'the check is not enqueued yet');
      }
    }
    visit.res.redirect(303, statusPath(id));
  }

  async function sendAway(
    visit: KnownVisit,
    elicitation: Elicitation,
    connection: OAuthConnection | McpConnection,
  ): Promise<void> {
    const { session, res, requestId } = visit;
    const found = await targetOf(elicitation, connection);
    const ready = found.kind === 'ready' ? await thirdParty.prepare(found.target) : found;
    if (found.kind !== 'ready' || ready.kind !== 'ready') {
      const detail = found.kind !== 'ready' ? found.detail : 'detail' in ready ? ready.detail : '';
      log.warn(
        { requestId, elicitationId: elicitation.id, connection: connection.name, detail },
        'the third party cannot be reached for its metadata',
      );
      const away = (found.kind !== 'ready' ? found.kind : ready.kind) === 'unavailable';
      const text = away
        ? `${connection.displayName} cannot be reached at the moment. Nothing was changed; try again in a little while.`
        : `${connection.displayName} cannot be connected: what it says about itself was refused (${detail}). Nothing was changed.`;
      await showConsent(visit, elicitation, connection, { status: 502, text });
      return;
    }
    const { target } = found;
    const request = await services.flows.start(
      elicitation,
      session.hash,
      connection.type === 'mcp' ? target : undefined,
    );
    const there = await thirdParty.authorizationUrl(target, request);
    if (there.kind !== 'ready') throw new Error(`no authorization URL: ${there.detail}`);
    await given(elicitation, connection);
    res.redirect(303, there.url.href);
  }

  return {
    async consent(visit, id) {
      const known = await frame.known(visit, `/connect/${id}`);
      const asked = known && (await waiting(known, id));
      if (asked !== undefined) await showConsent(asked.visit, asked.elicitation, asked.connection);
    },

    async decide(visit, id) {
      const known = await frame.form(visit);
      const asked = known && (await waiting(known, id));
      if (asked === undefined) return;
      const { elicitation, connection } = asked;
      const decision = (visit.req.body as Record<string, unknown>)['decision'];
      if (decision === 'approve') {
        await approve(asked.visit, elicitation, connection);
      } else if (decision === 'deny') {
        const result = await elicitations.move(elicitation.userId, id, 'declined', {
          reason: 'denied_here',
          action: 'deny',
          cause: visit.requestId,
        });
        if (result === 'moved') {
          const { userId, clientId, requestId } = elicitation;
          audit.record({
            type: 'consent.denied',
            userId,
            clientId,
            requestId,
            connection: connection.name,
            elicitationId: id,
          });
          await consents.fulfil(userId, connection.name, clientId);
        }
        visit.res.redirect(303, statusPath(id));
      } else {
        await showConsent(asked.visit, elicitation, connection, {
          status: 400,
          text: 'Choose one of the two buttons.',
        });
      }
    },

    async status(visit, id) {
      if (visit.req.accepts(['html', 'json']) === 'json') {
        await statusJson(visit, id);
        return;
      }
      const known = await frame.known(visit, statusPath(id));
      if (known === undefined) return;
      const elicitation = await own(known, id);
      if (elicitation === undefined) return;
      await nudge(elicitation);
      const outcome = describeOutcome(elicitation, nameOf(elicitation));
      const running = elicitation.state === 'authorized' || elicitation.state === 'exchanging';
      frame.show(known, statusPage(elicitation, outcome), {
        session: known.session,
        ...(!isEnded(elicitation.state) && {
          live: { script: 'status.js', refreshSeconds: running ? 2 : 10 },
        }),
      });
    },
  };

  async function statusJson(visit: Visit, id: string): Promise<void> {
    const { res, requestId } = visit;
    const session = await frame.session(visit);
    if (session === undefined) {
      res.status(401).json({ error: 'unauthorized', message: 'Sign in first.', requestId });
      return;
    }
    const elicitation = await find(session.userId, id, requestId);
    if (elicitation === undefined) {
      res.status(404).json({ error: 'not_found', message: 'There is no such link.', requestId });
      return;
    }
    await nudge(elicitation);
    const { state, connection } = elicitation;
    const { title, text } = describeOutcome(elicitation, nameOf(elicitation));
    res.json({ elicitationId: id, state, connection, message: `${title}. ${text}` });
  }

  /** Each look and each decision counts: a link is for a person. @throws GatewayError `rate_limited` */
  async function within({ session, requestId }: KnownVisit): Promise<void> {
    const { userId } = session;
    const verdict = await limits.check('user', userId, 'pages');
    if (verdict.allowed) return;
    audit.record({ type: 'rate.limited', limit: verdict.limit, userId, requestId });
    throw rateLimited(verdict);
  }

  /** The callback claims first and enqueues then; if Redis went away in between, the code waits in the record. */
  async function nudge(elicitation: Elicitation): Promise<void> {
    const { state, at, userId, id, requestId, tries } = elicitation;
    if (state !== 'authorized' || Date.now() - (at.authorized ?? 0) < REENQUEUE_AFTER_MS) return;
    const job = { userId, elicitationId: id, requestId };
    if (config.connections[elicitation.connection]?.type === 'secret') {
      await services.jobs.enqueue('check-secret', job, { suffix: secretJobSuffix(tries) });
    } else await services.jobs.enqueue('exchange-code', job);
  }

  function nameOf(elicitation: Elicitation): string {
    return config.connections[elicitation.connection]?.displayName ?? elicitation.connection;
  }
}

/** Metadata that the page only wants to show is waited for this long. */
async function inTime<T>(work: Promise<T>): Promise<T | undefined> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<undefined>((resolve) => {
    timer = setTimeout(() => resolve(undefined), METADATA_WAIT_MS);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
