/**
 * The caller proven by an access token or a browser login. Every lookup of this project starts from one
 * (invariant 2); nothing here is ever taken from a header, a body or a URL that the caller can choose.
 */
import { createHash } from 'node:crypto';

export interface Principal {
  /** `userIdOf(issuer, subject)`: no personal data, safe in keys, URLs and logs. */
  readonly userId: string;
  readonly issuer: string;
  readonly subject: string;
  /** OAuth client that presented the token. A session belongs to it, not only to the user. */
  readonly clientId: string;
  readonly scopes: ReadonlySet<string>;
  readonly groups: readonly string[];
  /** `aud` of the token, as given. */
  readonly audience: readonly string[];
  /** Epoch milliseconds after which the token is worth nothing; Infinity in development without tokens. */
  readonly expiresAtMs: number;
}

/** base64url(sha256(iss + "\n" + sub)), first 22 characters (design, section 1). */
export function userIdOf(issuer: string, subject: string): string {
  return createHash('sha256').update(`${issuer}\n${subject}`).digest('base64url').slice(0, 22);
}
