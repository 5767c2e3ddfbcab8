/**
 * The page of a `type: secret` connection, and what comes back from it. Values travel one way: into the form. No page
 * ever shows one again, and no error repeats one.
 */
import type { SecretConnection } from '@viaduct/shared/config';
import type { Elicitation } from '@viaduct/shared/elicitations';
import { html, type Html } from './html.ts';
import { aboutApplication, validity } from './views.ts';

export interface SecretView {
  readonly elicitation: Elicitation;
  readonly connection: SecretConnection;
  readonly displayName: string;
  readonly csrf: string;
  readonly minutesLeft: number;
  readonly problem?: string;
}

export function secretPage(view: SecretView): { title: string; body: Html } {
  const { elicitation, connection, displayName, problem } = view;
  const { clientId, id } = elicitation;
  const title = `Connect ${displayName}`;
  const body = html`<section class="card" aria-labelledby="question">
    <h1 id="question">${title}</h1>
    ${problem !== undefined && html`<p class="note" role="alert" id="problem">${problem}</p>`}
    <p class="lead">
      ${
        clientId === ''
          ? html`You connect ${displayName} ahead of time. Each application will still ask for your
            permission before it uses the connection.`
          : html`<strong>${clientId}</strong> needs your ${displayName} access to do what you asked
              for. Viaduct keeps what you type here; the application never sees it.`
      }
    </p>
    ${connection.help !== undefined && html`<p>${connection.help}</p>`}
    <dl>${aboutApplication(elicitation)}</dl>
    <form method="post" action="/connect/${id}" autocomplete="off">
      <input type="hidden" name="csrf" value="${view.csrf}" />
      ${connection.fields.map((field) => input(field, problem !== undefined))}
      <div class="actions">
        <button class="primary" type="submit" name="decision" value="approve">Connect</button>
        <button type="submit" name="decision" value="deny" formnovalidate>Deny</button>
      </div>
    </form>
    ${validity(clientId, view.minutesLeft)}
  </section>`;
  return { title, body };
}

function input({ name, label, secret }: SecretConnection['fields'][number], wrong: boolean): Html {
  return html`<p class="field">
    <label for="field-${name}">${label ?? name}</label>
    <input
      id="field-${name}"
      name="${name}"
      type="${secret ? 'password' : 'text'}"
      autocomplete="off"
      autocapitalize="none"
      spellcheck="false"
      maxlength="${MAX_LENGTH}"
      required
      ${wrong && html`aria-describedby="problem"`}
    />
  </p>`;
}

const MAX_LENGTH = 4_096;
/** What a header can carry (RFC 9110, 5.5), in one byte a character. */
const CARRIED = /^[\x20-\x7E\x80-\xFF]+$/;

/** Spaces around are an accident of copying. */
export function readSecret(
  { fields }: SecretConnection,
  body: Readonly<Record<string, unknown>>,
): { values: Record<string, string> } | { problem: string } {
  const values: Record<string, string> = {};
  for (const { name, label = name } of fields) {
    const given = body[name];
    const value = typeof given === 'string' ? given.trim() : '';
    if (value === '') return { problem: `“${label}” is missing. Nothing was sent anywhere.` };
    if (value.length > MAX_LENGTH) return { problem: `“${label}” is too long.` };
    if (!CARRIED.test(value)) {
      return { problem: `“${label}” has characters that cannot be sent. Copy it again.` };
    }
    values[name] = value;
  }
  return { values };
}
