/** Redirect URIs of clients that describe themselves. Pure. */
import { errors, type AdapterPayload } from 'oidc-provider';
import { isLoopbackHost } from '@viaduct/shared/config';

/** Where a browser with a code may be sent: https, the person's own machine, or an app's own scheme (RFC 8252, 7). */
export function checkRedirects(payload: AdapterPayload): void {
  for (const uri of payload.redirect_uris ?? []) {
    const url = URL.parse(uri);
    const fine =
      url !== null &&
      !uri.includes('#') &&
      !/^(javascript|data|vbscript|file|blob|about|ws|wss|ftp):$/.test(url.protocol) &&
      (url.protocol !== 'http:' || isLoopbackHost(url.hostname));
    if (!fine) throw new errors.InvalidRedirectUri();
  }
}

/** Does this redirect lead to the person's own machine, where any program may be listening? */
export function isLoopbackRedirect(uri: string): boolean {
  const url = URL.parse(uri);
  return url?.protocol === 'http:' && isLoopbackHost(url.hostname);
}

/** The same redirect, whatever the port on loopback (RFC 8252, 7.3). */
export function redirectIdentity(uri: string): string {
  const url = URL.parse(uri);
  if (url === null || !isLoopbackRedirect(uri)) return uri;
  url.port = '';
  return url.href;
}
