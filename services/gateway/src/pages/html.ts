/**
 * HTML as a tagged template: every value is escaped unless it is HTML already. There is no way to mark a string as
 * safe from outside this file, so nothing that a client, a third party or a user wrote becomes markup.
 */

class Html {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
  toString(): string {
    return this.text;
  }
}
export type { Html };

type Value = Html | string | number | false | null | undefined | readonly Value[];

const NAMES: Record<string, string> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

function escape(text: string): string {
  return text.replace(/[&<>"']/g, (character) => NAMES[character] ?? '');
}

function render(value: Value): string {
  if (value instanceof Html) return value.text;
  if (value === undefined || value === null || value === false) return '';
  if (typeof value === 'object') return value.map(render).join('');
  return escape(String(value));
}

/** Values go into text or into *quoted* attributes; nowhere else. */
export function html(strings: TemplateStringsArray, ...values: Value[]): Html {
  let out = strings[0] ?? '';
  values.forEach((value, index) => {
    out += render(value) + (strings[index + 1] ?? '');
  });
  return new Html(out);
}
