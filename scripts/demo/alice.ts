// Alice's clicks, for when no person is there: on the pages that a person gets, with the buttons that a
// person presses. Nothing here knows more than the links and forms say.
import type { Page, TinyBrowser } from './tiny-browser.ts';

/** Signs an MCP client in; returns the redirect that carries the code. */
export async function signIn(
  browser: TinyBrowser,
  authorizationUrl: string,
  redirectUri: string,
): Promise<string> {
  let page = await browser.open(authorizationUrl, redirectUri);
  if (!page.url.startsWith(redirectUri)) {
    page = await browser.press(page, 'choice', 'alice', redirectUri);
  }
  return page.url;
}

/** Follows a link to its end: says yes to every page that asks. Tells each page's title and address. */
export async function approve(
  browser: TinyBrowser,
  link: string,
  tell: (page: string) => void,
): Promise<Page> {
  let page = await browser.open(link);
  for (let pages = 0; pages < 10; pages++) {
    tell(`${title(page)}  (${new URL(page.url).origin})`);
    if (/<button\b[^>]*\bname="decision"/.test(page.html)) {
      page = await browser.press(page, 'decision', 'approve');
    } else if (/<button\b[^>]*\bname="choice"/.test(page.html)) {
      page = await browser.press(page, 'choice', 'alice');
    } else {
      return page;
    }
  }
  throw new Error(`${link} asks and asks`);
}

export function title(page: Page): string {
  return (
    /<title>(.*?)<\/title>/s.exec(page.html)?.[1]?.trim() ?? `a page with status ${page.status}`
  );
}
