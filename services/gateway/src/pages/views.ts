/** The pages' contents. Words for people; no logic beyond what to show. */
import { createHash } from 'node:crypto';
import type { Approval, Wish } from '@viaduct/shared/consents';
import type { Elicitation } from '@viaduct/shared/elicitations';
import type { Outcome } from '../connections/connections.ts';
import { html, type Html } from './html.ts';
import { mark, type Mark } from './layout.ts';
import { scopeInWords } from './scope-words.ts';

export interface ConsentView {
  readonly elicitation: Elicitation;
  readonly displayName: string;
  readonly scopes: readonly string[];
  /** Where the browser goes: the authorization endpoint, or its origin when it is not known yet. */
  readonly leadsTo: string;
  /** Exact redirect URI that brings it back. */
  readonly returnsTo: string;
  /** The credential is there; this client's approval is not. */
  readonly approvalOnly: boolean;
  readonly csrf: string;
  readonly minutesLeft: number;
  /** Why the last try on this page went nowhere. */
  readonly problem?: string;
}

export function consentPage(view: ConsentView): { title: string; body: Html } {
  const { elicitation, displayName, approvalOnly } = view;
  const { clientId } = elicitation;
  const title = approvalOnly ? `Allow access to ${displayName}?` : `Connect ${displayName}?`;
  const body = html`<section class="card" aria-labelledby="question">
    <h1 id="question">${title}</h1>
    ${view.problem !== undefined && html`<p class="note" role="alert">${view.problem}</p>`}
    <p class="lead">${intention(view)}</p>
    <dl>
      ${aboutApplication(elicitation)}
      ${elicitation.scopes !== undefined && row('Asked for in addition', scopes(elicitation.scopes.split(' '), displayName))}
      ${row(`It may, at ${displayName}`, scopes(view.scopes, displayName))}
      ${!approvalOnly && row('You are sent to', html`<code>${view.leadsTo}</code>`)}
      ${!approvalOnly && row('And come back to', html`<code>${view.returnsTo}</code>`)}
    </dl>
    <form method="post" action="/connect/${elicitation.id}">
      <input type="hidden" name="csrf" value="${view.csrf}" />
      <div class="actions">
        <button class="primary" type="submit" name="decision" value="approve">
          ${approvalOnly ? 'Allow' : `Continue to ${displayName}`}
        </button>
        <button type="submit" name="decision" value="deny">Deny</button>
      </div>
    </form>
    ${validity(clientId, view.minutesLeft)}
  </section>`;
  return { title, body };
}

/** Who asks, as far as it is proven, and what for. */
export function aboutApplication(elicitation: Elicitation): Html {
  const { clientId, upstream, endpoint } = elicitation;
  return html`${row('Application', clientId === '' ? 'None yet' : application(elicitation))}
  ${clientId !== '' && row('Used for', html`<code>${upstream}</code> at <code>${endpoint}</code>`)}`;
}

export function validity(clientId: string, minutesLeft: number): Html {
  return html`<p class="soft small">
    ${
      clientId === ''
        ? 'You began this on the connections page.'
        : 'Only go on if you have just asked this application for something that needs it.'
    }
    This link is yours alone and ends in ${minutesLeft} ${minutesLeft === 1 ? 'minute' : 'minutes'}.
  </p>`;
}

function intention({ elicitation, displayName, approvalOnly }: ConsentView): Html {
  if (elicitation.clientId === '') {
    return html`You connect ${displayName} ahead of time. Each application will still ask for your
    permission before it uses the connection.`;
  }
  const who = html`<strong>${elicitation.clientId}</strong>`;
  return approvalOnly
    ? html`${displayName} is already connected. ${who} has not used it before and asks for your
      permission.`
    : html`${who} needs your ${displayName} account to do what you asked for. Viaduct keeps the
      access for you; the application never sees it.`;
}

function application({ clientId, clientName }: Elicitation): Html {
  return html`<p><code>${clientId}</code> <span class="soft">(verified)</span></p>
    ${clientName !== undefined && html`<p>calls itself “${clientName}” <span class="soft">(its own word)</span></p>`}`;
}

const row = (term: string, description: Html | string): Html =>
  html`<div>
    <dt>${term}</dt>
    <dd>${description}</dd>
  </div>`;

function scopes(list: readonly string[], displayName: string): Html {
  if (list.length === 0) return html`what ${displayName} allows by default`;
  return html`<ul class="scopes">
    ${list.map((scope) => html`<li>${scopeInWords(scope)} <code>${scope}</code></li>`)}
  </ul>`;
}

const MARKS: Record<Elicitation['state'], Mark> = {
  created: 'wait',
  opened: 'wait',
  authorized: 'turning',
  exchanging: 'turning',
  completed: 'good',
  declined: 'bad',
  cancelled: 'bad',
  failed: 'bad',
  expired: 'wait',
};

export function statusPage(
  elicitation: Elicitation,
  outcome: Outcome,
): { title: string; body: Html } {
  const { state, clientName, clientId } = elicitation;
  const open = state === 'created' || state === 'opened';
  const body = html`<section class="card" data-elicitation-state="${state}">
    ${mark(MARKS[state])}
    <div role="status" aria-live="polite">
      <h1>${outcome.title}</h1>
      <p class="lead">${outcome.text}</p>
    </div>
    ${
      state === 'completed' &&
      clientId !== '' &&
      html`<p class="soft">
        ${clientName ?? clientId} learns about it by itself, or when it tries again.
      </p>`
    }
    ${open && html`<div class="actions"><a class="button primary" href="/connect/${elicitation.id}">${elicitation.reason === 'secret_refused' ? 'Try again' : 'Decide now'}</a></div>`}
    <p class="small"><a href="/connections">Your connections</a></p>
  </section>`;
  return { title: outcome.title, body };
}

export interface NoticeView {
  readonly kind: Mark;
  readonly title: string;
  readonly text: string;
  readonly links?: readonly { readonly href: string; readonly text: string }[];
}

/** One thing that happened, said plainly. */
export function noticePage({ kind, title, text, links = [] }: NoticeView): {
  title: string;
  body: Html;
} {
  return {
    title,
    body: html`<section class="card">
      ${mark(kind)}
      <div role="status">
        <h1>${title}</h1>
        <p class="lead">${text}</p>
      </div>
      ${
        links.length > 0 &&
        html`<p class="links">
          ${links.map(({ href, text: label }) => html`<a href="${href}">${label}</a>`)}
        </p>`
      }
    </section>`,
  };
}

export interface ConnectionView {
  readonly name: string;
  readonly displayName: string;
  readonly scopes: readonly string[];
  readonly state: 'connected' | 'renew' | 'absent' | 'unreadable' | 'automatic';
  /** Why it cannot be used, in words. */
  readonly problem?: string;
  readonly since?: Date;
  readonly lastUsed?: Date;
  readonly approvals: readonly Approval[];
  readonly wishes: readonly Wish[];
}

export function connectionsPage(
  views: readonly ConnectionView[],
  csrf: string,
  applications: readonly ApplicationView[] = [],
): { title: string; body: Html } {
  const title = 'Your connections';
  const body = html`<h1>${title}</h1>
    <p class="lead soft">
      What Viaduct may use for you, and the applications that you have allowed to.
    </p>
    ${
      views.length === 0 &&
      html`<section class="card"><p class="soft">Nothing can be connected here yet.</p></section>`
    }
    <p class="soft small" role="status"></p>
    <div
      data-connections="${fingerprint([views.map((view) => ({ ...view, lastUsed: 0 })), applications])}"
    >
      ${views.map((view) => connectionCard(view, csrf))}
      ${applications.length > 0 && applicationsCard(applications, csrf)}
    </div>`;
  return { title, body };
}

/** Names what is shown, so that the page's script sees a change; each use of a credential is none. */
const fingerprint = (shown: unknown): string =>
  createHash('sha256').update(JSON.stringify(shown)).digest('base64url').slice(0, 16);

/** An OAuth client that may act for the user here. */
export interface ApplicationView {
  readonly clientId: string;
  readonly clientName?: string;
  readonly redirects: readonly string[];
  readonly scopes: Readonly<Record<string, readonly string[]>>;
  readonly approvedAtMs: number;
}

function applicationsCard(applications: readonly ApplicationView[], csrf: string): Html {
  return html`<section class="card" aria-labelledby="applications">
    <h2 id="applications">Applications that may act for you</h2>
    ${applications.map(
      ({ clientId, clientName, redirects, scopes: granted, approvedAtMs }) =>
        html`<div class="facts small">
            <p>
              ${clientName !== undefined && html`“${clientName}” `}<code>${clientId}</code>
              <span class="soft">since ${new Date(approvedAtMs).toISOString().slice(0, 10)}</span>
            </p>
            <ul>
              ${Object.entries(granted).map(
                ([resource, list]) =>
                  html`<li>
                    <code>${resource}</code>: ${list.map((scope) => html`<code>${scope}</code> `)}
                  </li>`,
              )}
            </ul>
            <p class="soft">Sent back to ${redirects.map((uri) => html`<code>${uri}</code> `)}</p>
          </div>
          <form method="post" action="/connections/applications/withdraw">
            <input type="hidden" name="csrf" value="${csrf}" />
            <input type="hidden" name="client" value="${clientId}" />
            <div class="actions"><button type="submit">Take back</button></div>
          </form>`,
    )}
  </section>`;
}
const BADGES: Record<ConnectionView['state'], string> = {
  connected: 'Connected',
  renew: 'Has to be connected again',
  absent: 'Not connected',
  unreadable: 'Cannot be read',
  automatic: 'Automatic',
};

/** To the minute, in one time zone that is named: a page without JavaScript does not know the reader's. */
const moment = (date: Date): Html => {
  const iso = date.toISOString();
  return html`<time datetime="${iso}">${iso.slice(0, 16).replace('T', ' ')} UTC</time>`;
};

function connectionCard(view: ConnectionView, csrf: string): Html {
  const { name, displayName, state, approvals, wishes, since } = view;
  const heading = `connection-${name}`;
  const good = state === 'connected' || state === 'automatic';
  const badge = html`<span class="badge${good && ' good'}">${BADGES[state]}</span>`;
  const form = (action: string, content: Html): Html =>
    html`<form method="post" action="/connections/${name}/${action}">
      <input type="hidden" name="csrf" value="${csrf}" />${content}
    </form>`;
  return html`<section class="card" aria-labelledby="${heading}">
    <div class="head">
      <h2 id="${heading}">${displayName}</h2>
      ${badge}
    </div>
    ${view.problem !== undefined && html`<p class="note" role="alert">${view.problem}</p>`}
    ${
      since !== undefined &&
      html`<p class="soft small">
        Since
        ${moment(since)}${view.lastUsed !== undefined && html`, last used ${moment(view.lastUsed)}`}
      </p>`
    }
    ${
      state === 'automatic' &&
      html`<p class="soft small">Uses who you are; there is nothing to connect or to type.</p>`
    }
    ${wishes.map(
      (wish) =>
        html`<p class="note">
            <strong>${wish.clientId}</strong
            >${wish.clientName !== undefined && html`, which calls itself “${wish.clientName}”,`}
            wants to use it for <code>${wish.upstream}</code>.
          </p>
          ${form(
            'connect',
            html`<input type="hidden" name="client" value="${wish.clientId}" />
              <div class="actions">
                <button class="primary" type="submit">
                  ${state === 'connected' ? `Decide about ${wish.clientId}` : `Connect for ${wish.clientId}`}
                </button>
              </div>`,
          )}`,
    )}
    ${
      view.scopes.length > 0 &&
      html`<p class="facts small soft">
        Access: ${view.scopes.map((scope) => html`<code>${scope}</code> `)}
      </p>`
    }
    ${
      approvals.length > 0 &&
      html`<div class="facts small">
        <span class="soft">May be used by</span>
        <ul>
          ${approvals.map(
            ({ clientId, clientName, approvedAtMs }) =>
              html`<li>
                <code>${clientId}</code>${clientName !== undefined && html` “${clientName}”`}
                <span class="soft">since ${moment(new Date(approvedAtMs))}</span>
              </li>`,
          )}
        </ul>
      </div>`
    }
    ${
      !good &&
      wishes.length === 0 &&
      form(
        'connect',
        html`<div class="actions"><button class="primary" type="submit">Connect</button></div>`,
      )
    }
    ${
      state !== 'absent' &&
      state !== 'automatic' &&
      form('disconnect', html`<div class="actions"><button type="submit">Disconnect</button></div>`)
    }
  </section>`;
}
