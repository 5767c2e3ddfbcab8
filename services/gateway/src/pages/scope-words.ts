/**
 * Scopes in words. Scope names are the third party's own and have no descriptions on the wire (RFC 6749, 3.3), so
 * this reads what names usually say and never claims more: the literal scope stands beside it on the page.
 */
const KNOWN = new Map(
  Object.entries({
    openid: 'know who you are there',
    profile: 'see your name and profile',
    email: 'see your e-mail address',
    address: 'see your postal address',
    phone: 'see your phone number',
    offline_access: 'stay connected while you are away',
  }),
);

const VERBS = new Map(
  Object.entries({
    read: 'read',
    readonly: 'read',
    view: 'see',
    list: 'list',
    write: 'change',
    readwrite: 'read and change',
    edit: 'change',
    update: 'change',
    modify: 'change',
    create: 'create',
    delete: 'delete',
    send: 'send',
    share: 'share',
    manage: 'manage',
    admin: 'administer',
    full: 'do everything with',
    all: 'do everything with',
  }),
);

/** E.g. `drive.read` → "read drive"; `https://x.example/auth/mail.send` → "send mail". */
export function scopeInWords(scope: string): string {
  const known = KNOWN.get(scope.toLowerCase());
  if (known !== undefined) return known;
  const name = /^[a-z][a-z0-9+.-]*:\/\//i.test(scope)
    ? (scope.replace(/\/+$/, '').split('/').at(-1) ?? scope)
    : scope;
  const words = name
    .replace(/([a-z])([A-Z])/g, '$1 $2')
    .split(/[.:/_\s-]+/)
    .filter((word) => word !== '')
    .map((word) => word.toLowerCase());
  const at = words.findIndex((word) => VERBS.has(word));
  const verb = VERBS.get(words[at] ?? '');
  if (verb === undefined) return `use “${words.join(' ') || scope}”`;
  const rest = words.filter((_word, index) => index !== at).join(' ');
  return rest === '' ? `${verb} what you have there` : `${verb} ${rest}`;
}
