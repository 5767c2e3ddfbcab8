/** The console's pages. Plain tables: readable by a screen reader, usable without JavaScript. */
import type { Elicitation } from '@viaduct/shared/elicitations';
import { html, type Html } from '../pages/pages.ts';
import type { PodRecord, SessionRecord } from './records.ts';

export interface Frame {
  readonly podId: string;
  readonly csrf: string;
  readonly notice?: string | undefined;
}

const PLACES = [
  ['/console', 'Pods and upstreams'],
  ['/console/sessions', 'Sessions'],
  ['/console/elicitations', 'Elicitations'],
  ['/console/queues', 'Queues'],
] as const;

export function page(frame: Frame, path: string, title: string, body: Html, live = true): string {
  return html`<!doctype html>
    <html lang="en">
      <head>
        <meta charset="utf-8" />
        <meta name="viewport" content="width=device-width, initial-scale=1" />
        <title>${title} · Viaduct console</title>
        <link rel="stylesheet" href="/console/assets/console.css" />
        <script type="module" src="/console/assets/console.js"></script>
      </head>
      <body>
        <a class="skip" href="#content">Skip to the content</a>
        <header>
          <strong>Viaduct console</strong>
          <nav aria-label="Console">
            ${PLACES.map(
              ([href, text]) =>
                html`<a href="${href}" ${href === path && html`aria-current="page"`}>${text}</a> `,
            )}
          </nav>
          <span>seen from <code>${frame.podId}</code></span>
        </header>
        <main id="content" ${live && html`data-live`}>
          <h1>${title}</h1>
          ${frame.notice !== undefined && html`<p class="notice" role="status">${frame.notice}</p>`}
          ${body}
        </main>
      </body>
    </html>`.text;
}

function table(caption: string, heads: readonly string[], rows: readonly Html[]): Html {
  if (rows.length === 0) return html`<p>${caption}: none.</p>`;
  return html`<div class="scroll" role="region" aria-label="${caption}" tabindex="0">
    <table>
      <caption>
        ${caption}
      </caption>
      <thead>
        <tr>
          ${heads.map((head) => html`<th scope="col">${head}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${rows}
      </tbody>
    </table>
  </div>`;
}

function action(frame: Frame, path: string, fields: Record<string, string>, text: string): Html {
  return html`<form method="post" action="${path}">
    <input type="hidden" name="csrf" value="${frame.csrf}" />
    ${Object.entries(fields).map(
      ([name, value]) => html`<input type="hidden" name="${name}" value="${value}" />`,
    )}
    <button class="danger" type="submit" aria-label="${text} ${Object.values(fields).at(-1)}">
      ${text}
    </button>
  </form>`;
}

const ago = (ms: number): string => {
  const seconds = Math.max(0, Math.round((Date.now() - ms) / 1000));
  if (seconds < 120) return `${seconds} s ago`;
  return seconds < 7200
    ? `${Math.round(seconds / 60)} min ago`
    : `${Math.round(seconds / 3600)} h ago`;
};

export interface Health {
  readonly name: string;
  readonly url: string;
  readonly protocol: string;
  readonly circuit: 'closed' | 'open';
}

export function podsView(
  frame: Frame,
  pods: readonly PodRecord[],
  upstreams: readonly Health[],
  limits: readonly (readonly [string, number])[],
): Html {
  return html`${table(
      'Pods, by their heartbeats',
      ['Pod', 'Version', 'Heartbeat', 'Streams', 'Running calls', 'Action'],
      pods.map(
        (pod) =>
          html`<tr>
            <td><code>${pod.podId}</code>${pod.podId === frame.podId && ' (this one)'}</td>
            <td>${pod.version ?? '–'}</td>
            <td>${ago(pod.atMs)}</td>
            <td class="number">${pod.streams ?? '–'}</td>
            <td class="number">${pod.running ?? '–'}</td>
            <td>${action(frame, '/console/pods/drain', { pod: pod.podId }, 'Drain')}</td>
          </tr>`,
      ),
    )}
    <h2>Upstreams</h2>
    ${table(
      'MCP servers, as this pod sees them',
      ['Name', 'Address', 'Protocol', 'Circuit'],
      upstreams.map(
        ({ name, url, protocol, circuit }) =>
          html`<tr>
            <th scope="row">${name}</th>
            <td><code>${url}</code></td>
            <td>${protocol}</td>
            <td class="${circuit === 'open' ? 'bad' : 'good'}">
              ${circuit === 'open' ? 'open: cannot be reached' : 'closed: fine'}
            </td>
          </tr>`,
      ),
    )}
    <h2>Limits hit</h2>
    ${table(
      'Requests answered 429 by this pod since it started',
      ['Limit', 'Requests'],
      limits.map(
        ([name, count]) =>
          html`<tr>
            <th scope="row">${name}</th>
            <td class="number">${count}</td>
          </tr>`,
      ),
    )}`;
}

export function sessionsView(
  frame: Frame,
  userId: string,
  sessions: readonly SessionRecord[] | undefined,
): Html {
  return html`<form class="ask" method="get" action="/console/sessions">
      <label
        >User id (as in log and audit)
        <input
          name="user"
          value="${userId}"
          required
          pattern="[A-Za-z0-9_-]{22}"
          autocomplete="off"
      /></label>
      <button type="submit">Show</button>
    </form>
    ${
      sessions !== undefined &&
      table(
        'Sessions of this user',
        ['Session', 'Endpoint', 'Client', 'Revision', 'Stream on', 'Started', 'Seen', 'Action'],
        sessions.map(
          (session) =>
            html`<tr>
              <td><code>${session.sessionId}</code></td>
              <td>/mcp${session.endpoint !== '' && `/${session.endpoint}`}</td>
              <td>${session.clientName} <code>${session.clientId}</code></td>
              <td>${session.protocolVersion}</td>
              <td>
                ${session.owner === '' ? '–' : html`<code>${session.owner.split('|')[0]}</code>`}
              </td>
              <td>${ago(session.createdAtMs)}</td>
              <td>${ago(session.seenAtMs)}</td>
              <td>
                ${action(
                  frame,
                  '/console/sessions/end',
                  { user: userId, session: session.sessionId },
                  'End',
                )}
              </td>
            </tr>`,
        ),
      )
    }`;
}

export function elicitationsView(unfinished: readonly Elicitation[]): Html {
  const byState = Map.groupBy(unfinished, ({ state }) => state);
  return html`<form class="ask" method="get" action="/console/elicitations">
      <label
        >Elicitation id (also of one that has ended)
        <input name="id" required pattern="[A-Za-z0-9_-]{22}" autocomplete="off"
      /></label>
      <button type="submit">Show</button>
    </form>
    ${unfinished.length === 0 && html`<p>Nobody is being asked for anything.</p>`}
    ${[...byState].map(
      ([state, records]) =>
        html`<h2>${state} (${records.length})</h2>
          ${table(
            `Elicitations in the state ${state}`,
            ['Id', 'Mode', 'Connection', 'Upstream', 'User', 'Asked'],
            records.map(
              (record) =>
                html`<tr>
                  <td>
                    <a href="/console/elicitations?id=${record.id}"><code>${record.id}</code></a>
                  </td>
                  <td>${record.mode}</td>
                  <td>${record.connection}</td>
                  <td>${record.upstream}</td>
                  <td>
                    <a href="/console/sessions?user=${record.userId}"
                      ><code>${record.userId}</code></a
                    >
                  </td>
                  <td>${ago(record.createdAtMs)}</td>
                </tr>`,
            ),
          )}`,
    )}`;
}

export function elicitationView(frame: Frame, record: Elicitation, ended: boolean): Html {
  const rows = Object.entries(record).flatMap(([name, value]) => {
    // Sealed, and of no use to anybody who looks.
    if (name === 'code') return [['code', 'sealed'] as const];
    if (name === 'at') {
      return Object.entries(record.at).map(
        ([state, ms]) => [`at ${state}`, new Date(ms).toISOString()] as const,
      );
    }
    const text = name.endsWith('Ms') ? new Date(Number(value)).toISOString() : String(value);
    return [[name, text] as const];
  });
  return html`${table(
      'The whole record',
      ['Field', 'Value'],
      rows.map(
        ([name, value]) =>
          html`<tr>
            <th scope="row">${name}</th>
            <td><code>${value}</code></td>
          </tr>`,
      ),
    )}
    ${!ended && html`<p>${action(frame, '/console/elicitations/cancel', { id: record.id }, 'Cancel')}</p>`}
    <p><a href="/console/elicitations">All unfinished ones</a></p>`;
}
