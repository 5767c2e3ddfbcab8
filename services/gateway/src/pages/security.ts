/** Response headers of every page (design, section 6). */
import type { RequestHandler, Response } from 'express';
import helmet from 'helmet';

const FORM_ACTION = "form-action 'self'";

export function securityHeaders({ publicUrl }: { publicUrl: string }): RequestHandler {
  const headers = helmet({
    contentSecurityPolicy: {
      useDefaults: false,
      directives: {
        'default-src': ["'none'"],
        'style-src': ["'self'"],
        'script-src': ["'self'"],
        'img-src': ["'self'"],
        'connect-src': ["'self'"],
        'form-action': ["'self'"],
        'frame-ancestors': ["'none'"],
        'base-uri': ["'none'"],
      },
    },
    // `no-referrer` would make browsers send `Origin: null` with our own forms.
    referrerPolicy: { policy: 'same-origin' },
    xFrameOptions: { action: 'deny' },
    strictTransportSecurity: publicUrl.startsWith('https:') && { maxAge: 31_536_000 },
  });
  return (req, res, next) => {
    res.set('Cache-Control', 'no-store');
    headers(req, res, next);
  };
}

/**
 * Chrome applies `form-action` to every redirect that follows a form. The decision leads to the third party, which
 * may send the browser on to login servers that nobody here can know, so that one page allows whatever the next
 * hop may be at all: https, and loopback in development. Every other page allows only ourselves.
 */
export function allowFormsElsewhere(res: Response, development: boolean): void {
  const elsewhere = development ? 'https: http://localhost:* http://127.0.0.1:*' : 'https:';
  const policy = String(res.getHeader('Content-Security-Policy') ?? '');
  res.set('Content-Security-Policy', policy.replace(FORM_ACTION, `${FORM_ACTION} ${elsewhere}`));
}

/** The same for the way back to an OAuth client: its redirect may be https, loopback, or a scheme of an app's own. */
export function allowFormsTo(res: Response, redirectUri: string): void {
  const { protocol } = new URL(redirectUri);
  const elsewhere =
    protocol === 'http:'
      ? 'https: http://localhost:* http://127.0.0.1:* http://[::1]:*'
      : protocol === 'https:'
        ? 'https:'
        : `https: ${protocol}`;
  const policy = String(res.getHeader('Content-Security-Policy') ?? '');
  res.set('Content-Security-Policy', policy.replace(FORM_ACTION, `${FORM_ACTION} ${elsewhere}`));
}
