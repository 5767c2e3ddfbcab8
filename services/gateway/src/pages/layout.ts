/** What every page has around its content. */
import { assetUrl } from './assets.ts';
import { html, type Html } from './html.ts';

/** A page that keeps itself as things are: by its script, else by coming again where `refreshSeconds` says so. */
export interface Live {
  readonly script: 'status.js' | 'connections.js';
  readonly refreshSeconds?: number;
}

export interface PageOptions {
  readonly title: string;
  readonly body: Html;
  /** Shown so that a person can name it to support. */
  readonly requestId: string;
  readonly session?: {
    readonly displayName?: string;
    readonly csrf: string;
    readonly fixed: boolean;
  };
  readonly live?: Live;
}

const BRAND = html`<svg viewBox="0 0 38 26" aria-hidden="true" focusable="false">
  <path
    d="M1 4h36M4 4v19M19 4v19M34 4v19M4 23V16a7.5 7.5 0 0 1 15 0v7M19 23V16a7.5 7.5 0 0 1 15 0v7"
  />
</svg>`;

export type Mark = 'good' | 'bad' | 'wait' | 'turning';
const PATHS: Record<Mark, Html> = {
  good: html`<path d="M5 12.5l4.5 4.5L19 7.5" />`,
  bad: html`<path d="M6.5 6.5l11 11M17.5 6.5l-11 11" />`,
  wait: html`<path d="M12 6v6.5l4 2.5M21 12a9 9 0 1 1-18 0a9 9 0 0 1 18 0z" />`,
  turning: html`<path d="M21 12a9 9 0 1 1-9-9" />`,
};

/** Decoration only: the words beside it say the same. */
export function mark(kind: Mark): Html {
  return html`<div class="mark ${kind}" aria-hidden="true">
    <svg viewBox="0 0 24 24" focusable="false">${PATHS[kind]}</svg>
  </div>`;
}

export function layout(options: PageOptions): string {
  const { title, body, requestId, session, live } = options;
  const page = html`<!doctype html>
    <html lang="en">
      <head>
        <meta charset="utf-8" />
        <meta name="viewport" content="width=device-width, initial-scale=1" />
        <meta name="robots" content="noindex" />
        <meta name="color-scheme" content="light dark" />
        <title>${title} · Viaduct</title>
        <link rel="stylesheet" href="${assetUrl('viaduct.css')}" />
        <link rel="icon" type="image/svg+xml" href="${assetUrl('icon.svg')}" />
        ${
          live !== undefined &&
          html`${
              live.refreshSeconds !== undefined &&
              html`<noscript
                ><meta http-equiv="refresh" content="${live.refreshSeconds}"
              /></noscript>`
            }
            <script type="module" src="${assetUrl(live.script)}"></script>`
        }
      </head>
      <body>
        <a class="skip" href="#content">Skip to the content</a>
        <header>
          <a class="brand" href="/connections">${BRAND}<span>Viaduct</span></a>
        </header>
        <main id="content">${body}</main>
        <footer>
          ${session !== undefined && signedIn(session)}
          <p>Request <code>${requestId}</code></p>
        </footer>
      </body>
    </html>`;
  return page.text;
}

function signedIn(session: NonNullable<PageOptions['session']>): Html {
  if (session.fixed) return html`<p>Development mode: everybody is the same user.</p>`;
  return html`<form method="post" action="/logout">
    <input type="hidden" name="csrf" value="${session.csrf}" />
    <p>
      ${
        session.displayName === undefined
          ? 'You are signed in.'
          : html`Signed in as <strong>${session.displayName}</strong>.`
      }
      <button class="plain" type="submit">Sign out</button>
    </p>
  </form>`;
}
