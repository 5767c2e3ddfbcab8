/** URLs and origins as the configuration and the edge compare them. Pure; no name is ever resolved here. */
import ipaddr from 'ipaddr.js';

/**
 * Names and addresses that cannot leave this machine: `localhost`, `*.localhost` (RFC 6761, 6.3), 127.0.0.0/8
 * and `::1`. Takes a URL's `hostname` (brackets around IPv6 or not).
 */
export function isLoopbackHost(hostname: string): boolean {
  const host = hostname.toLowerCase().replace(/^\[|\]$/g, '');
  if (host === 'localhost' || host.endsWith('.localhost')) return true;
  return ipaddr.isValid(host) && ipaddr.process(host).range() === 'loopback';
}

/** True for an IP literal outside the public ranges, and for loopback names. Other names are not judged. */
export function isPrivateHost(hostname: string): boolean {
  const host = hostname.toLowerCase().replace(/^\[|\]$/g, '');
  if (isLoopbackHost(host)) return true;
  return ipaddr.isValid(host) && ipaddr.process(host).range() !== 'unicast';
}

/** An absolute http(s) URL without user name or password, or undefined. */
export function parseHttpUrl(text: string): URL | undefined {
  // The URL parser would quietly repair `http:/x`, tabs and backslashes; an operator should see them.
  if (!/^https?:\/\/[^\s\\]+$/i.test(text)) return undefined;
  const url = URL.parse(text);
  return url?.username === '' && url.password === '' ? url : undefined;
}

/**
 * May this URL carry tokens and secrets? https always; in development also http on loopback
 * (design, section 5).
 */
export function isSecureUrl(url: URL, development: boolean): boolean {
  return url.protocol === 'https:' || (development && isLoopbackHost(url.hostname));
}

/**
 * The serialization of an origin (RFC 6454, 6.2) in lower case and without a default port; undefined for
 * `null`, for a list, and for anything with a path, a query or a user name. Other schemes than http(s) are
 * kept for desktop clients whose pages have one (`vscode-webview://…`).
 */
export function normalizeOrigin(text: string): string | undefined {
  const match = /^([a-z][a-z0-9+.-]*):\/\/([^/?#@\\\s,"<>]+)$/i.exec(text);
  if (!match) return undefined;
  const scheme = (match[1] ?? '').toLowerCase();
  if (scheme !== 'http' && scheme !== 'https') return text.toLowerCase();
  return URL.parse(text)?.origin;
}
