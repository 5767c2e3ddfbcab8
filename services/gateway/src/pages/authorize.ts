/**
 * `/oauth/interaction/<uid>`: may this application act for me here? The authorization server's question, on our
 * pages: it knows the request (oauth/authorization-server.ts), this knows who is there.
 *
 * A request that this browser did not begin is the same 404 as none. Nothing is stored and nothing sent before the
 * user's own click, unless the same user has approved the same client with the same redirect, resource and scopes.
 */
import type { Question, AuthorizationServer } from '../oauth/oauth.ts';
import type { Frame, KnownVisit, PageServices, Visit } from './frame.ts';
import { html, type Html } from './html.ts';
import { scopeInWords } from './scope-words.ts';
import { allowFormsTo } from './security.ts';

export interface AuthorizePages {
  ask(visit: Visit, uid: string): Promise<void>;
  decide(visit: Visit, uid: string): Promise<void>;
}

export function createAuthorizePages(
  services: PageServices,
  frame: Frame,
  server: AuthorizationServer,
): AuthorizePages {
  const { audit, config } = services;
  const base: ReadonlySet<string> = new Set(config.auth.baseScopes);

  async function load(known: KnownVisit, uid: string): Promise<Question | undefined> {
    const question = await server.question(known.req, known.res, uid);
    if (question === undefined) frame.notFound(known, known.session);
    return question;
  }

  /** False after the browser has been sent to show once more who it is. */
  async function proven(known: KnownVisit, { uid, proof }: Question): Promise<boolean> {
    const page = `/oauth/interaction/${uid}`;
    const { provenAtMs = 0, provenFor } = known.session;
    if (proof === undefined || provenFor === page) return true;
    if (proof !== 'now' && provenAtMs >= proof.sinceMs) return true;
    await frame.askAgain(known, page);
    return false;
  }

  function show(known: KnownVisit, question: Question, status = 200, problem?: string): void {
    allowFormsTo(known.res, question.redirectUri);
    const csrf = frame.csrf(known.session);
    frame.show(known, authorizePage(question, { csrf, problem, base }), {
      session: known.session,
      status,
    });
  }

  async function approve(
    known: KnownVisit,
    question: Question,
    remembered: boolean,
  ): Promise<void> {
    const { req, res, requestId, session } = known;
    const { clientId, scopes, resource: endpoint } = question;
    await server.approve(req, res, session, question);
    audit.record({
      type: 'client.approved',
      userId: session.userId,
      clientId,
      requestId,
      scopes,
      endpoint,
      remembered,
    });
  }

  return {
    async ask(visit, uid) {
      const known = await frame.known(visit, `/oauth/interaction/${uid}`);
      const question = known && (await load(known, uid));
      if (known === undefined || question === undefined) return;
      if (!(await proven(known, question))) return;
      if (await server.remembered(known.session, question)) await approve(known, question, true);
      else show(known, question);
    },

    async decide(visit, uid) {
      const known = await frame.form(visit);
      const question = known && (await load(known, uid));
      if (known === undefined || question === undefined) return;
      const decision = (visit.req.body as Record<string, unknown>)['decision'];
      if (decision === 'approve') {
        if (!(await proven(known, question))) return;
        await approve(known, question, false);
      } else if (decision === 'deny') {
        const { clientId, resource: endpoint } = question;
        const { userId } = known.session;
        audit.record({
          type: 'client.denied',
          userId,
          clientId,
          endpoint,
          requestId: visit.requestId,
        });
        await server.deny(visit.req, visit.res);
      } else {
        show(known, question, 400, 'Choose one of the two buttons.');
      }
    },
  };
}

interface AuthorizeView {
  readonly csrf: string;
  readonly problem: string | undefined;
  /** Scopes that everybody needs who comes here: their names say nothing to a person. */
  readonly base: ReadonlySet<string>;
}

function authorizePage(
  question: Question,
  { csrf, problem, base }: AuthorizeView,
): { title: string; body: Html } {
  const { clientId, clientName, redirectUri, resource, scopes, uid } = question;
  const name = clientName ?? clientId;
  const title = `Allow ${name}?`;
  const body = html`<section class="card" aria-labelledby="question">
    <h1 id="question">${title}</h1>
    ${problem !== undefined && html`<p class="note" role="alert">${problem}</p>`}
    <p class="lead"><strong>${name}</strong> asks to act for you here.</p>
    ${warnings(question).map((text) => html`<p class="note" role="note">${text}</p>`)}
    <dl>
      ${row('Application', who(question))} ${row('At', html`<code>${resource}</code>`)}
      ${row(
        'It may',
        scopes.length === 0
          ? 'nothing but know that it is you'
          : html`<ul class="scopes">
              ${scopes.map((scope) => html`<li>${base.has(scope) ? 'use what needs no further permission' : scopeInWords(scope)} <code>${scope}</code></li>`)}
            </ul>`,
      )}
      ${row('You are sent back to', html`<code>${redirectUri}</code>`)}
    </dl>
    <form method="post" action="/oauth/interaction/${uid}">
      <input type="hidden" name="csrf" value="${csrf}" />
      <div class="actions">
        <button class="primary" type="submit" name="decision" value="approve">Allow</button>
        <button type="submit" name="decision" value="deny">Deny</button>
      </div>
    </form>
    <p class="soft small">
      Only go on if you have just begun this in the application. You can take it back at any time on
      <a href="/connections">your connections</a>.
    </p>
  </section>`;
  return { title, body };
}

function who({ clientId, clientName, host, vouched }: Question): Html {
  const says = {
    configuration: '(registered by the operator of this gateway)',
    url: '(published at this address)',
    nobody: '(registered itself; nobody has verified it)',
  }[vouched];
  return html`${clientName !== undefined && html`<p>“${clientName}”${vouched !== 'configuration' && html` <span class="soft">(its own word)</span>`}</p>`}
    <p><code>${clientId}</code> <span class="soft">${says}</span></p>
    ${host !== undefined && html`<p>${vouched === 'url' ? 'Host' : 'Says that it is from'} <code>${host}</code></p>`}`;
}

function warnings({ vouched, loopback, redirectUri }: Question): string[] {
  const out: string[] = [];
  if (vouched === 'nobody') {
    out.push(
      'This application is not verified: its name is its own word, and anybody can choose the same one.',
    );
  }
  if (loopback) {
    out.push(
      `The answer goes to a program on this computer (${new URL(redirectUri).host}). Any program here can wait for it under this name; only allow what you have started yourself.`,
    );
  }
  return out;
}

const row = (term: string, description: Html | string): Html =>
  html`<div>
    <dt>${term}</dt>
    <dd>${description}</dd>
  </div>`;
