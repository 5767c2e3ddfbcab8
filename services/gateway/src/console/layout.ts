/** The frame of the console's pages, and their parts: readable by a screen reader, usable without JavaScript. */
import { html, type Html } from '../pages/pages.ts';

export interface Frame {
  readonly podId: string;
  readonly csrf: string;
  /** Who is here, where people have names here. */
  readonly operator?: string;
  readonly notice?: string;
}

const PLACES = [
  ['/console', 'Who waits'],
  ['/console/elicitations', 'Elicitations'],
  ['/console/connections', 'Connections'],
  ['/console/sessions', 'Sessions'],
  ['/console/pods', 'Pods and upstreams'],
  ['/console/queues', 'Queues'],
] as const;

export function page(frame: Frame, path: string, title: string, body: Html): string {
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
          <span
            >${
              frame.operator !== undefined &&
              html`<strong>${frame.operator}</strong> ${leave(frame)} `
            }seen
            from <code>${frame.podId}</code></span
          >
        </header>
        <main id="content" data-live>
          <h1>${title}</h1>
          ${frame.notice !== undefined && html`<p class="notice" role="status">${frame.notice}</p>`}
          ${body}
        </main>
      </body>
    </html>`.text;
}

const leave = (frame: Frame): Html =>
  html`<form method="post" action="/console/leave">
    <input type="hidden" name="csrf" value="${frame.csrf}" />
    <button type="submit">Sign out</button>
  </form>`;

export function table(caption: string, heads: readonly string[], rows: readonly Html[]): Html {
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

/** A button that does something. What it concerns is in its accessible name, since a page has many alike. */
export function action(
  frame: Frame,
  path: string,
  fields: Record<string, string>,
  text: string,
  more?: Html,
): Html {
  return html`<form method="post" action="${path}">
    <input type="hidden" name="csrf" value="${frame.csrf}" />
    ${Object.entries(fields).map(
      ([name, value]) => html`<input type="hidden" name="${name}" value="${value}" />`,
    )}
    ${more}
    <button class="danger" type="submit" aria-label="${text} ${Object.values(fields).at(-1)}">
      ${text}
    </button>
  </form>`;
}

export const since = (ms: number): string => {
  const seconds = Math.max(0, Math.round((Date.now() - ms) / 1000));
  if (seconds < 120) return `${seconds} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
};
export const ago = (ms: number): string => `${since(ms)} ago`;
