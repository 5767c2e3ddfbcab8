/**
 * Secrets never go through a form: the client, its logs and its model would see them (2025-11-25
 * client/elicitation, Security Considerations: servers MUST NOT request sensitive information in form mode).
 *
 * A form asks for a secret when a field's name, title, description or format says so. The list is short on
 * purpose, and an operator can extend it or only have it reported (`elicitation.formGuard`). Pure.
 */

/** Words, as they stand once names are split at case changes, digits and punctuation. */
const SECRET_WORDS: readonly (readonly string[])[] = [
  ['password'],
  ['passwd'],
  ['passphrase'],
  ['passcode'],
  ['pwd'],
  ['secret'],
  ['api', 'key'],
  ['apikey'],
  ['api', 'token'],
  ['access', 'key'],
  ['access', 'token'],
  ['accesstoken'],
  ['auth', 'token'],
  ['authtoken'],
  ['bearer', 'token'],
  ['refresh', 'token'],
  ['session', 'token'],
  ['security', 'token'],
  ['token'],
  ['private', 'key'],
  ['privatekey'],
  ['signing', 'key'],
  ['encryption', 'key'],
  ['ssh', 'key'],
  ['credential'],
  ['credentials'],
  ['card', 'number'],
  ['cardnumber'],
  ['credit', 'card'],
  ['creditcard'],
  ['debit', 'card'],
  ['cvv'],
  ['cvc'],
  ['iban'],
  ['account', 'number'],
  ['routing', 'number'],
  ['social', 'security'],
  ['ssn'],
  ['pin'],
  ['pin', 'code'],
  ['otp'],
  ['one', 'time', 'code'],
  ['verification', 'code'],
  ['security', 'code'],
  ['mfa', 'code'],
  ['2fa'],
  ['recovery', 'code'],
  ['seed', 'phrase'],
  ['mnemonic'],
];

/** Of these, single common words count in names and titles only: prose uses them innocently. */
const NAMES_ONLY: ReadonlySet<string> = new Set([
  'token',
  'pin',
  'secret',
  'credential',
  'credentials',
]);

const SECRET_FORMATS: ReadonlySet<string> = new Set(['password', 'credit-card', 'secret']);

export interface SecretField {
  /** Path of member names below `properties`. */
  readonly field: string;
  /** What gave it away. */
  readonly because: string;
}

export function wordsOf(text: string): string[] {
  return text
    .replace(/([a-z0-9])([A-Z])/g, '$1 $2')
    .replace(/([A-Z]+)([A-Z][a-z])/g, '$1 $2')
    .toLowerCase()
    .split(/[^\p{L}\p{N}]+/u)
    .filter((word) => word !== '');
}

function matchIn(
  text: string,
  kind: 'name' | 'prose',
  extra: readonly string[][],
): string | undefined {
  const words = wordsOf(text);
  const singular = words.map((word) => (word.length > 3 ? word.replace(/s$/, '') : word));
  for (const wanted of [...SECRET_WORDS, ...extra]) {
    if (kind === 'prose' && wanted.length === 1 && NAMES_ONLY.has(wanted[0]!)) continue;
    for (const list of [words, singular]) {
      for (let i = 0; i + wanted.length <= list.length; i++) {
        if (wanted.every((word, k) => list[i + k] === word)) return wanted.join(' ');
      }
    }
  }
  return undefined;
}

interface Field {
  readonly path: string;
  readonly name: string;
  readonly schema: Record<string, unknown>;
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** A form that a person can fill in has fewer parts than this. */
const MAX_PARTS = 2_000;

/**
 * Every property anywhere in the schema: nesting and composition are no hiding places. Iterative. Ends with
 * undefined when there are too many to look at.
 */
function* fieldsOf(schema: unknown): Generator<Field | undefined> {
  const open: { at: unknown; path: string }[] = [{ at: schema, path: '' }];
  for (let visited = 0; open.length > 0; visited++) {
    if (visited > MAX_PARTS) {
      yield undefined;
      return;
    }
    const { at, path } = open.pop()!;
    if (Array.isArray(at)) {
      for (const item of at) open.push({ at: item, path });
      continue;
    }
    if (!isObject(at)) continue;
    for (const [key, value] of Object.entries(at)) {
      if (key === 'properties' && isObject(value)) {
        for (const [name, field] of Object.entries(value)) {
          const fieldPath = path === '' ? name : `${path}.${name}`;
          yield { path: fieldPath, name, schema: isObject(field) ? field : {} };
          open.push({ at: field, path: fieldPath });
        }
      } else if (isObject(value) || Array.isArray(value)) open.push({ at: value, path });
    }
  }
}

/**
 * The first field that asks for a secret, or undefined.
 *
 * @param extra words of the operator's, e.g. `['employee', 'number']` for "employee number"
 */
export function findSecretField(
  requestedSchema: unknown,
  extra: readonly string[] = [],
): SecretField | undefined {
  const more = extra.map(wordsOf).filter((words) => words.length > 0);
  for (const part of fieldsOf(requestedSchema)) {
    if (part === undefined) return { field: '', because: 'more parts than can be checked' };
    const { path, name, schema } = part;
    const { title, description, format } = schema;
    if (typeof format === 'string' && SECRET_FORMATS.has(format.toLowerCase())) {
      return { field: path, because: `format ${format}` };
    }
    if (schema['writeOnly'] === true) return { field: path, because: 'writeOnly' };
    const hit =
      matchIn(name, 'name', more) ??
      (typeof title === 'string' ? matchIn(title, 'name', more) : undefined) ??
      (typeof description === 'string' ? matchIn(description, 'prose', more) : undefined);
    if (hit !== undefined) return { field: path, because: hit };
  }
  return undefined;
}

/** Why a link of an upstream may not be shown to anybody; undefined when it may. */
export function badLink(url: unknown, development: boolean): string | undefined {
  if (typeof url !== 'string' || !URL.canParse(url)) return 'is not an absolute URL';
  const { protocol, hostname, username, password } = new URL(url);
  if (username !== '' || password !== '') return 'carries a user name or password';
  const loopback = hostname === 'localhost' || hostname === '[::1]' || hostname.startsWith('127.');
  if (protocol === 'https:' || (protocol === 'http:' && development && loopback)) return undefined;
  return 'is not https';
}
