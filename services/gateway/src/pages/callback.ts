/**
 * `/connect/callback`: the one redirect URI that third parties know.
 *
 * Everything is compared before anything is consumed (invariant 8): a login in this browser; a flow of *this*
 * user with this `state`; made by this very browser session; an `iss` that names the server the user was sent to
 * (RFC 9207). What fails one of these changes nothing, says so on a plain page, and is audited.
 */
import type { Elicitation, EndReason } from '@viaduct/shared/elicitations';
import type { Flow } from '@viaduct/shared/flows';
import { traced } from '@viaduct/shared/tracing';
import type { BrowserSession } from './browser.ts';
import type { Frame, PageServices, Visit } from './frame.ts';
import type { NoticeView } from './views.ts';

type Refusal =
  | 'no_session'
  | 'unknown_state'
  | 'other_browser'
  | 'wrong_issuer'
  | 'not_configured'
  | 'malformed';

const NOTICES: Record<Refusal, { status: number; view: NoticeView }> = {
  no_session: {
    status: 400,
    view: {
      kind: 'bad',
      title: 'This browser did not begin here',
      text:
        'You came back from another service, but nobody is signed in to Viaduct in this browser. ' +
        'Nothing was connected. Open the link from your application again, in this browser.',
    },
  },
  unknown_state: {
    status: 400,
    view: {
      kind: 'bad',
      title: 'This answer belongs to nothing that you began',
      text:
        'It may have been used already, come too late, or be meant for somebody else. Nothing was changed. ' +
        'If your application still asks, open its link again.',
      links: [{ href: '/connections', text: 'Your connections' }],
    },
  },
  other_browser: {
    status: 403,
    view: {
      kind: 'bad',
      title: 'Finish in the browser where you began',
      text:
        'This approval was given in another browser or another login. To keep others from slipping you their ' +
        'links, it only counts there. Nothing was changed.',
    },
  },
  wrong_issuer: {
    status: 400,
    view: {
      kind: 'bad',
      title: 'This answer came from the wrong place',
      text: 'It does not come from the service that you were sent to, so it was ignored. Nothing was changed.',
    },
  },
  not_configured: {
    status: 400,
    view: {
      kind: 'bad',
      title: 'This service is no longer configured',
      text: 'It was taken out of the configuration while you were away. Nothing was connected.',
    },
  },
  malformed: {
    status: 400,
    view: {
      kind: 'bad',
      title: 'This answer is incomplete',
      text: 'The other service sent you back without an answer. Nothing was changed; open the link again.',
    },
  },
};

export function createCallback(
  services: PageServices,
  frame: Frame,
): (visit: Visit) => Promise<void> {
  const { config, elicitations, flows, thirdParty, audit, log } = services;

  /** Compares, and consumes nothing. */
  async function judge(
    session: BrowserSession,
    query: URLSearchParams,
  ): Promise<{ flow: Flow; elicitation: Elicitation } | { refusal: Refusal; about?: string }> {
    // A parameter that stands twice means two things to two readers (RFC 6749, 3.1): it means nothing here.
    if (['state', 'code', 'error', 'iss'].some((name) => query.getAll(name).length > 1)) {
      return { refusal: 'malformed' };
    }
    const flow = await flows.find(session.userId, query.get('state') ?? '');
    if (flow === undefined) return { refusal: 'unknown_state' };
    const about = flow.elicitationId;
    if (flow.browser !== session.hash) return { refusal: 'other_browser', about };
    const elicitation = await elicitations.load(session.userId, about);
    if (elicitation === undefined) return { refusal: 'unknown_state', about };
    const connection = config.connections[elicitation.connection];
    if (connection === undefined) return { refusal: 'not_configured', about };
    const target = connection.type === 'oauth' ? connection : await flows.targetOf(flow);
    if (target === undefined) return { refusal: 'not_configured', about };
    if (!(await thirdParty.issuerMatches(target, query.get('iss') ?? undefined))) {
      return { refusal: 'wrong_issuer', about };
    }
    if (!query.has('error') && (query.get('code') ?? '') === '') {
      return { refusal: 'malformed', about };
    }
    return { flow, elicitation };
  }

  async function enqueue({ userId, id, requestId }: Elicitation): Promise<void> {
    try {
      await services.jobs.enqueue('exchange-code', { userId, elicitationId: id, requestId });
    } catch (failure) {
      // The code is safe in the record, and the status page enqueues again.
      log.warn({ err: failure, requestId, elicitationId: id }, 'the exchange is not enqueued yet');
    }
  }

  return async (visit) => {
    const { req, res, requestId } = visit;
    const session = await frame.session(visit);
    const refuse = (reason: Refusal, elicitationId?: string): void => {
      audit.record({
        type: 'callback.refused',
        reason,
        requestId,
        userId: session?.userId,
        elicitationId,
      });
      const { status, view } = NOTICES[reason];
      frame.notice(visit, view, { status, ...(session !== undefined && { session }) });
    };
    if (session === undefined) {
      refuse('no_session');
      return;
    }
    const query = new URLSearchParams(req.originalUrl.split('?').slice(1).join('?'));
    const judged = await judge(session, query);
    if ('refusal' in judged) {
      refuse(judged.refusal, judged.about);
      return;
    }
    const { flow, elicitation } = judged;
    const error = query.get('error');
    const claim = await traced(
      {
        name: 'GET /connect/callback',
        kind: 'server',
        parent: elicitation.traceparent,
        attributes: { 'viaduct.request_id': requestId, 'viaduct.elicitation_id': elicitation.id },
      },
      async () => {
        if (error !== null) {
          return flows.claimEnd(flow, session.hash, endFor(error), requestId);
        }
        const code = await flows.claimCode(flow, session.hash, query.toString(), requestId);
        if (code === 'claimed') await enqueue(elicitation);
        return code;
      },
    );
    if (claim === 'unknown' || claim === 'browser') {
      refuse(claim === 'browser' ? 'other_browser' : 'unknown_state', elicitation.id);
      return;
    }
    // Claimed, or another tab was faster: the status page says which.
    res.redirect(303, `/connect/${elicitation.id}/status`);
  };
}

function endFor(error: string): { state: 'declined' | 'failed'; reason: EndReason } {
  if (error === 'access_denied') return { state: 'declined', reason: 'denied_there' };
  const unavailable = error === 'temporarily_unavailable' || error === 'server_error';
  return { state: 'failed', reason: unavailable ? 'unavailable' : 'third_party_error' };
}
