// A browser small enough for one person's clicks: keeps cookies, follows redirects, submits forms. It
// plays Alice where there is no person (`--headless`), on the same pages that a person gets.

export interface Page {
  readonly url: string;
  readonly status: number;
  readonly html: string;
}

export interface TinyBrowser {
  /** Opens a page, following redirects; stops at one that leads to `stopAt` and returns that URL. */
  open(url: string, stopAt?: string): Promise<Page>;
  /** Submits the page's first form that has a button with this name and value. */
  press(page: Page, name: string, value: string, stopAt?: string): Promise<Page>;
}

export function createTinyBrowser(): TinyBrowser {
  const jar = new Map<string, string>();

  async function request(url: string, init: RequestInit, stopAt?: string): Promise<Page> {
    let target = url;
    let next = init;
    for (let hop = 0; hop < 20; hop++) {
      if (stopAt !== undefined && target.startsWith(stopAt)) {
        return { url: target, status: 0, html: '' };
      }
      const response = await fetch(target, {
        ...next,
        redirect: 'manual',
        headers: {
          accept: 'text/html',
          'user-agent': 'viaduct-demo-browser',
          ...(next.method === 'POST' ? { origin: new URL(target).origin } : {}),
          cookie: cookiesFor(jar, target),
        },
      });
      keepCookies(jar, target, response.headers.getSetCookie());
      const location = response.headers.get('location');
      if (response.status < 300 || response.status >= 400 || location === null) {
        return { url: target, status: response.status, html: await response.text() };
      }
      await response.body?.cancel();
      target = new URL(location, target).href;
      next = {};
    }
    throw new Error(`${url} redirects in circles`);
  }

  return {
    open: (url, stopAt) => request(url, {}, stopAt),
    press(page, name, value, stopAt) {
      for (const [, attributes = '', inside = ''] of page.html.matchAll(
        /<form\b([^>]*)>(.*?)<\/form>/gs,
      )) {
        const buttons = [...inside.matchAll(/<button\b([^>]*)>/g)].map(([, a = '']) => a);
        const wanted = (a: string) => read(a, 'name') === name && read(a, 'value') === value;
        if (!buttons.some(wanted)) continue;
        const fields = new URLSearchParams();
        for (const [, a = ''] of inside.matchAll(/<input\b([^>]*)>/g)) {
          const field = read(a, 'name');
          if (field) fields.set(field, read(a, 'value') ?? '');
        }
        fields.set(name, value);
        const target = new URL(read(attributes, 'action') ?? page.url, page.url).href;
        return request(target, { method: 'POST', body: fields }, stopAt);
      }
      throw new Error(`no button ${name}=${value} on ${page.url} (${page.status}):\n${page.html}`);
    },
  };
}

/** As browsers do it: by host and path, whatever the port. */
function cookiesFor(jar: Map<string, string>, url: string): string {
  const { hostname, pathname } = new URL(url);
  return [...jar]
    .filter(([key]) => {
      const [host = '', path = ''] = key.split(' ');
      return host === hostname && (pathname === path || pathname.startsWith(folder(path)));
    })
    .map(([key, value]) => `${key.split(' ')[2] ?? ''}=${value}`)
    .join('; ');
}

const folder = (path: string): string => (path.endsWith('/') ? path : `${path}/`);

function keepCookies(jar: Map<string, string>, url: string, lines: readonly string[]): void {
  for (const line of lines) {
    const [pair = '', ...attributes] = line.split(';').map((part) => part.trim());
    const at = pair.indexOf('=');
    const attribute = (name: string) =>
      attributes.find((a) => a.toLowerCase().startsWith(`${name}=`))?.slice(name.length + 1);
    const key = `${new URL(url).hostname} ${attribute('path') ?? '/'} ${pair.slice(0, at)}`;
    const expires = attribute('expires');
    const gone =
      attribute('max-age') === '0' || (expires !== undefined && Date.parse(expires) < Date.now());
    if (gone) jar.delete(key);
    else jar.set(key, pair.slice(at + 1));
  }
}

function read(attributes: string, name: string): string | undefined {
  const raw = new RegExp(`(?:^|\\s)${name}\\s*=\\s*(?:"([^"]*)"|'([^']*)')`, 'i').exec(attributes);
  return (raw?.[1] ?? raw?.[2])?.replace(/&(#x?[0-9a-f]+|amp|lt|gt|quot);/gi, (_, entity: string) =>
    decodeEntity(entity),
  );
}

function decodeEntity(entity: string): string {
  const named: Record<string, string> = { amp: '&', lt: '<', gt: '>', quot: '"' };
  if (!entity.startsWith('#')) return named[entity.toLowerCase()] ?? '';
  const hex = /^#x/i.test(entity);
  return String.fromCodePoint(Number.parseInt(entity.slice(hex ? 2 : 1), hex ? 16 : 10));
}
