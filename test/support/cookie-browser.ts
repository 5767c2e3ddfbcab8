import { send, type Answer } from './net.ts';

export interface PageForm {
  action: string;
  method: string;
  fields: Record<string, string>;
  buttons: { name: string; value: string }[];
}

/** What the browser shows: an answer, or the address at which `stopAt` held it. */
export interface Page extends Omit<Answer, 'stream'> {
  readonly forms: PageForm[];
  readonly stoppedAt: string | undefined;
  /** The text that a person reads. */
  readonly visible: string;
}

interface OpenOptions {
  method?: string;
  body?: string;
  headers?: Record<string, string | undefined>;
  accept?: string;
  /** Ends the walk before a redirect to such an address. */
  stopAt?: RegExp | string;
}

const ENTITIES: Record<string, string> = {
  amp: '&',
  lt: '<',
  gt: '>',
  quot: '"',
  apos: "'",
  nbsp: ' ',
};

function decode(text: string): string {
  return text.replace(/&(?:#x([\da-f]+)|#(\d+)|(\w+));/gi, (...match: (string | undefined)[]) => {
    const [whole = '', hex, decimal, name = ''] = match;
    if (hex !== undefined) return String.fromCodePoint(Number.parseInt(hex, 16));
    if (decimal !== undefined) return String.fromCodePoint(Number(decimal));
    return ENTITIES[name.toLowerCase()] ?? whole;
  });
}

export function visibleText(html: string): string {
  const bare = html
    .replace(/<(script|style|title)\b[\s\S]*?<\/\1>/gi, ' ')
    .replace(/<[^>]*>/g, ' ');
  return decode(bare).replace(/\s+/g, ' ').trim();
}

function attributes(tag: string): Record<string, string> {
  const found: Record<string, string> = {};
  const inside = tag.replace(/^<\w+|\/?>$/g, '');
  for (const match of inside.matchAll(/([^\s=>]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>]+)))?/g)) {
    found[match[1]!.toLowerCase()] = decode(match[2] ?? match[3] ?? match[4] ?? '');
  }
  return found;
}

function formsIn(html: string, base: string): PageForm[] {
  return [...html.matchAll(/(<form\b[^>]*>)([\s\S]*?)<\/form>/gi)].map((match) => {
    const own = attributes(match[1]!);
    const form: PageForm = {
      action: new URL(own['action'] ?? base, base).href,
      method: (own['method'] ?? 'get').toUpperCase(),
      fields: {},
      buttons: [],
    };
    for (const [tag, kind] of match[2]!.matchAll(/<(input|button|textarea|select)\b[^>]*>/gi)) {
      const { name, value = '', type = '' } = attributes(tag);
      if (!name) continue;
      if (kind!.toLowerCase() === 'button' || type === 'submit') form.buttons.push({ name, value });
      else form.fields[name] = value;
    }
    return form;
  });
}

/**
 * A browser with cookies, redirects and forms, and without JavaScript. Cookies belong to a host whatever the
 * port, as in real ones; a POST carries the Origin of the page that it comes from.
 */
export class CookieBrowser {
  readonly cookies = new Map<string, Map<string, string>>();
  /** Every exchange so far. */
  readonly hops: { method: string; url: string; status: number; setCookies: string[] }[] = [];
  page: Page | undefined;

  /** A second window of the same browser profile, or a thief with a copy of it. */
  clone(): CookieBrowser {
    const twin = new CookieBrowser();
    for (const [host, jar] of this.cookies) twin.cookies.set(host, new Map(jar));
    return twin;
  }

  setCookie(host: string, name: string, value: string): this {
    const jar = this.cookies.get(host) ?? new Map<string, string>();
    jar.set(name, value);
    this.cookies.set(host, jar);
    return this;
  }

  async open(address: string, options: OpenOptions = {}): Promise<Page> {
    let { method = 'GET', body } = options;
    let url = new URL(address);
    let referrer = this.page?.url;
    for (let hop = 0; hop < 20; hop++) {
      const stopped =
        hop > 0 && options.stopAt !== undefined && new RegExp(options.stopAt).test(url.href);
      if (stopped) return (this.page = held(url.href));
      const answer = await this.#exchange(url, method, body, referrer, options);
      const { location } = answer.headers;
      if (answer.status < 300 || answer.status > 399 || location === undefined) {
        return (this.page = shown(answer, url.href));
      }
      referrer = url.href;
      url = new URL(location, url);
      if (answer.status !== 307 && answer.status !== 308) {
        method = 'GET';
        body = undefined;
      }
    }
    throw new Error(`more than 20 redirects from ${address}`);
  }

  async #exchange(
    url: URL,
    method: string,
    body: string | undefined,
    referrer: string | undefined,
    { headers = {}, accept = 'text/html,application/xhtml+xml,*/*;q=0.8' }: OpenOptions,
  ): Promise<Answer> {
    const jar = this.cookies.get(url.hostname) ?? new Map<string, string>();
    const cookie = [...jar].map(([name, value]) => `${name}=${value}`).join('; ');
    const posting = method === 'POST' && {
      'Content-Type': 'application/x-www-form-urlencoded',
      Origin: new URL(referrer ?? url.href).origin,
    };
    const answer = await send(url.href, {
      method,
      ...(body !== undefined && { body }),
      headers: {
        Accept: accept,
        Cookie: cookie || undefined,
        Referer: referrer,
        ...posting,
        ...headers,
      },
    });
    answer.stream?.close();
    const setCookies = answer.headers['set-cookie'] ?? [];
    for (const line of setCookies) this.#store(url.hostname, line);
    this.hops.push({ method, url: url.href, status: answer.status, setCookies });
    return answer;
  }

  #store(host: string, line: string): void {
    const [pair = '', ...flags] = line.split(';').map((part) => part.trim());
    const name = pair.slice(0, pair.indexOf('='));
    const value = pair.slice(pair.indexOf('=') + 1);
    const expired = flags.some((flag) => {
      const [key = '', at = ''] = flag.split('=');
      if (key.toLowerCase() === 'max-age') return Number(at) <= 0;
      return key.toLowerCase() === 'expires' && new Date(at).getTime() < Date.now();
    });
    this.setCookie(host, name, value);
    if (expired) this.cookies.get(host)?.delete(name);
  }

  /** Presses the first button of a form whose address ends so. */
  press(action: string): Promise<Page> {
    const form = this.page?.forms.find((candidate) => candidate.action.endsWith(action));
    if (!form) throw new Error(`no form to ${action} on ${this.page?.url}: ${this.page?.visible}`);
    const [button] = form.buttons;
    const data = new URLSearchParams(form.fields);
    if (button) data.set(button.name, button.value);
    return this.open(form.action, { method: form.method, body: data.toString() });
  }

  /** Presses a decision button, or sends the form that has the given fields. */
  async submit({
    decision,
    fields = {},
    stopAt,
  }: {
    decision?: 'approve' | 'deny';
    fields?: Record<string, string>;
    stopAt?: RegExp | string;
  }): Promise<Page> {
    const form = this.page?.forms.find((candidate) =>
      decision === undefined
        ? Object.keys(fields).every((name) => name in candidate.fields)
        : candidate.buttons.some(({ name, value }) => name === 'decision' && value === decision),
    );
    if (!form) {
      const { url, status, visible } = this.page ?? { url: 'nowhere', status: 0, visible: '' };
      throw new Error(`no such form at ${url} (${status}): ${visible.slice(0, 300)}`);
    }
    const data = new URLSearchParams({ ...form.fields, ...fields });
    if (decision !== undefined) data.set('decision', decision);
    const stop = stopAt === undefined ? {} : { stopAt };
    if (form.method === 'GET') return this.open(`${form.action}?${data.toString()}`, stop);
    return this.open(form.action, { method: 'POST', body: data.toString(), ...stop });
  }
}

function shown(answer: Answer, url: string): Page {
  const forms = formsIn(answer.text, url);
  return { ...answer, url, forms, stoppedAt: undefined, visible: visibleText(answer.text) };
}

const held = (url: string): Page => ({
  status: 0,
  headers: {},
  url,
  text: '',
  json: undefined,
  close: () => undefined,
  forms: [],
  stoppedAt: url,
  visible: '',
});
