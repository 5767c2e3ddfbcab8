/** What the console's pages say. */
import type { Elicitation } from '@viaduct/shared/elicitations';
import { html, type Html } from '../pages/pages.ts';
import { action, ago, since, table, type Frame } from './layout.ts';
import type { PodRecord, Records, SessionRecord } from './records.ts';

export interface UpstreamEntry {
  readonly name: string;
  readonly url: string;
  readonly protocol: string;
}

/** For whom each state waits. */
const WAITS_FOR: Partial<Record<Elicitation['state'], string>> = {
  created: 'the person, to open the link',
  opened: 'the person, to decide and come back',
  authorized: 'a worker, to begin',
  exchanging: 'the third party, to answer',
};
/** Longer than that with a worker or a third party is worth a look. */
const WORRY_MS = 30_000;

/** One glance: who waits, for what, since when, and what is not as it should be. */
export function waitingView(
  waiting: readonly Elicitation[],
  pods: readonly PodRecord[],
  upstreams: readonly UpstreamEntry[],
): Html {
  const groups = Map.groupBy(waiting, ({ connection, state }) => `${connection}\n${state}`);
  const streams = pods.reduce((sum, pod) => sum + (pod.streams ?? 0), 0);
  const running = pods.reduce((sum, pod) => sum + (pod.running ?? 0), 0);
  const away = upstreams.filter(({ name }) =>
    pods.some((pod) => (pod.upstreams.get(name)?.lostAtMs ?? 0) > 0),
  );
  return html`<ul class="figures">
      ${figure(waiting.length, 'waiting', '/console/elicitations')}
      ${figure(pods.length, 'pods', '/console/pods')} ${figure(streams, 'streams')}
      ${figure(running, 'running calls')}
      ${figure(away.length, 'upstreams away', '/console/pods', away.length > 0)}
    </ul>
    ${table(
      'Who waits, by connection and state',
      ['Connection', 'State', 'Waits for', 'How many', 'The longest for'],
      [...groups.values()].map((records) => {
        const [{ connection, state, at, createdAtMs }] = records as [Elicitation];
        const sinceMs = Math.min(...records.map((one) => one.at[state] ?? one.createdAtMs));
        const ours = state === 'authorized' || state === 'exchanging';
        const late = ours && Date.now() - (at[state] ?? createdAtMs) > WORRY_MS;
        return html`<tr>
          <th scope="row">${connection}</th>
          <td>${state}</td>
          <td>${WAITS_FOR[state] ?? '–'}</td>
          <td class="number">${records.length}</td>
          <td class="${late && 'bad'}">${since(sinceMs)}</td>
        </tr>`;
      }),
    )}
    <h2>The longest</h2>
    ${table(
      'The twenty that have waited longest',
      ['Since', 'Connection', 'State', 'Client', 'User', 'Elicitation'],
      waiting.slice(0, 20).map(
        (record) =>
          html`<tr>
            <td>${since(record.createdAtMs)}</td>
            <td>${record.connection}</td>
            <td>${record.state}</td>
            <td>${record.clientName ?? record.clientId}</td>
            <td>
              <a href="/console/sessions?user=${record.userId}"><code>${record.userId}</code></a>
            </td>
            <td>
              <a href="/console/elicitations?id=${record.id}"><code>${record.id}</code></a>
            </td>
          </tr>`,
      ),
    )}`;
}

function figure(count: number, what: string, href?: string, bad = false): Html {
  const inner = html`<strong class="${bad && 'bad'}">${count}</strong> ${what}`;
  return html`<li>${href === undefined ? inner : html`<a href="${href}">${inner}</a>`}</li>`;
}

export function podsView(
  frame: Frame,
  pods: readonly PodRecord[],
  upstreams: readonly UpstreamEntry[],
): Html {
  const limited = new Map<string, number>();
  for (const [name, count] of pods.flatMap((pod) => [...pod.limited])) {
    limited.set(name, (limited.get(name) ?? 0) + count);
  }
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
      'MCP servers, as the pods see them',
      ['Name', 'Address', 'Configured', 'Found to speak', 'Health'],
      upstreams.map(({ name, url, protocol }) => {
        const seen = pods.flatMap((pod) => pod.upstreams.get(name) ?? []);
        const lost = seen.map(({ lostAtMs }) => lostAtMs).filter((ms) => ms > 0);
        const eras = [...new Set(seen.flatMap(({ era }) => (era === '' ? [] : [era])))];
        return html`<tr>
          <th scope="row">${name}</th>
          <td><code>${url}</code></td>
          <td>${protocol}</td>
          <td>${eras.length === 0 ? 'not asked yet' : eras.join(', ')}</td>
          <td class="${lost.length > 0 ? 'bad' : 'good'}">
            ${
              lost.length > 0
                ? `cannot be reached by ${lost.length} of ${seen.length} pods, for ${since(Math.min(...lost))}`
                : 'fine'
            }
          </td>
        </tr>`;
      }),
    )}
    <h2>Limits hit</h2>
    ${table(
      'Requests answered 429 or turned away, by all pods since each started',
      ['Limit', 'Requests'],
      [...limited].map(
        ([name, count]) =>
          html`<tr>
            <th scope="row">${name}</th>
            <td class="number">${count}</td>
          </tr>`,
      ),
    )}`;
}

export function connectionsView({ all, whole }: Awaited<ReturnType<Records['connections']>>): Html {
  return html`${!whole && html`<p class="notice">There are more credentials than are counted here.</p>`}
  ${table(
    'Connections, over all users',
    ['Connection', 'Type', 'Users connected', 'Flows that wait', 'The longest for'],
    all.map(
      ({ name, displayName, type, users, waiting, oldestAtMs }) =>
        html`<tr>
          <th scope="row">${displayName} <code>${name}</code></th>
          <td>${type}</td>
          <td class="number">${users}</td>
          <td>
            ${waiting.size === 0 ? '–' : [...waiting].map(([state, n]) => `${n} ${state}`).join(', ')}
          </td>
          <td>${oldestAtMs === undefined ? '–' : since(oldestAtMs)}</td>
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
    ${sessions !== undefined && html`<p>${revoke(frame, userId)}</p>`}
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

/** Also for a user without a session: tokens, links and grants end, too. */
function revoke(frame: Frame, userId: string): Html {
  const too = html`<label class="inline"
    ><input type="checkbox" name="connections" value="yes" /> and disconnect what is
    connected</label
  >`;
  return action(frame, '/console/users/revoke', { user: userId }, 'Put this user out', too);
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
            [
              'Id',
              'Mode',
              'Connection',
              'Upstream',
              'Client',
              'User',
              'Asked',
              'In this state for',
            ],
            records.map(
              (record) =>
                html`<tr>
                  <td>
                    <a href="/console/elicitations?id=${record.id}"><code>${record.id}</code></a>
                  </td>
                  <td>${record.mode}</td>
                  <td>${record.connection}</td>
                  <td>${record.upstream}</td>
                  <td>${record.clientName ?? record.clientId}</td>
                  <td>
                    <a href="/console/sessions?user=${record.userId}"
                      ><code>${record.userId}</code></a
                    >
                  </td>
                  <td>${ago(record.createdAtMs)}</td>
                  <td>${since(record.at[state] ?? record.createdAtMs)}</td>
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
    <p class="actions">
      ${!ended && action(frame, '/console/elicitations/cancel', { id: record.id }, 'Cancel')}
      ${action(frame, '/console/elicitations/retry', { id: record.id }, 'Try again')}
    </p>
    <p><a href="/console/elicitations">All unfinished ones</a></p>`;
}
