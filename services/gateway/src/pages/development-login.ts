/**
 * `auth.builtin.login.type: development`: a form with a name, and whoever is named is who comes in. Refused by the
 * configuration unless publicUrl is loopback.
 */
import { userIdOf } from '@viaduct/shared/principal';
import type { BrowserUser } from './browser.ts';
import { html, type Html } from './html.ts';
import { safeReturnTo, type Login } from './login.ts';

export const DEVELOPMENT_LOGIN = '/login/development';

export function createDevelopmentLogin(): Login {
  return {
    begin(_req, res, returnTo) {
      const to = encodeURIComponent(safeReturnTo(returnTo));
      res.redirect(303, `${DEVELOPMENT_LOGIN}?to=${to}`);
      return Promise.resolve();
    },
    finish: () => Promise.resolve({ kind: 'refused', reason: 'unknown_state' }),
  };
}

/** Any name that is no machine client's. */
export function developmentUser(
  name: unknown,
  options: {
    readonly issuer: string;
    readonly groups: Readonly<Record<string, readonly string[]>>;
    readonly taken: ReadonlySet<string>;
  },
): BrowserUser | undefined {
  if (typeof name !== 'string') return undefined;
  const subject = name.trim();
  if (!/^[\p{L}\p{N}._@+-]{1,100}$/u.test(subject) || options.taken.has(subject)) return undefined;
  const groups = Object.hasOwn(options.groups, subject) ? (options.groups[subject] ?? []) : [];
  const { issuer } = options;
  const provenAtMs = Date.now();
  return {
    userId: userIdOf(issuer, subject),
    issuer,
    subject,
    displayName: subject,
    groups,
    provenAtMs,
  };
}

export function developmentLoginPage(
  returnTo: string,
  problem?: string,
): { title: string; body: Html } {
  const title = 'Sign in';
  return {
    title,
    body: html`<section class="card" aria-labelledby="question">
      <h1 id="question">Who are you?</h1>
      ${problem !== undefined && html`<p class="note" role="alert">${problem}</p>`}
      <p class="lead">A development login: there is no password, and any name will do.</p>
      <form method="post" action="${DEVELOPMENT_LOGIN}">
        <input type="hidden" name="to" value="${returnTo}" />
        <p>
          <label for="user">User name</label>
          <input id="user" name="user" value="developer" autocomplete="username" required />
        </p>
        <div class="actions"><button class="primary" type="submit">Sign in</button></div>
      </form>
    </section>`,
  };
}
