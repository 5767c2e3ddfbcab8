/** How real authorization servers answer, and how they want to be asked. Pure. */
import {
  AuthorizationResponseError,
  ClientError,
  None,
  ResponseBodyError,
  WWWAuthenticateChallengeError,
  type ClientAuth,
  type ServerMetadata,
} from 'openid-client';
import { EgressRefused } from '../egress.ts';

export type GrantFailure =
  /** The code or refresh token is worth nothing (RFC 6749, 5.2). */
  | 'invalid_grant'
  /** The third party refused this client or this request; trying again changes nothing. */
  | 'denied'
  /** The third party does not know this client (any more): RFC 6749, 5.2, `invalid_client`. */
  | 'unknown_client'
  /** Not reached, too slow, 5xx or 429. */
  | 'unavailable'
  /** Not what the protocol allows: HTML, no token, a foreign issuer. */
  | 'invalid_answer';

export interface GrantFault {
  readonly kind: GrantFailure;
  readonly detail: string;
}

/**
 * client_secret_basic is what every server must support (RFC 6749, 2.3.1); post only where the metadata leaves
 * basic out. Encoded as forms are (RFC 6749, appendix B): openid-client's own also escapes `-`, `.` and `_`,
 * which servers that don't decode take for another client.
 */
export function clientAuth(server: ServerMetadata, secret: string | undefined): ClientAuth {
  if (secret === undefined) return None();
  const methods = server.token_endpoint_auth_methods_supported;
  if (methods !== undefined && !methods.includes('client_secret_basic')) {
    return (_server, client, body) => {
      body.set('client_id', client.client_id);
      body.set('client_secret', secret);
    };
  }
  return (_server, client, _body, headers) => {
    const pair = `${formEncode(client.client_id)}:${formEncode(secret)}`;
    headers.set('authorization', `Basic ${Buffer.from(pair).toString('base64')}`);
  };
}

const formEncode = (value: string): string =>
  new URLSearchParams([['', value]]).toString().slice(1);

/**
 * Two habits of real servers, put right before the protocol code sees them: an error in a 200 answer (GitHub),
 * and an ID token where the operator gave no issuer to check it against, and nobody reads it.
 */
export function inspectTokenAnswer(
  answer: { status: number; contentType: string; text: string },
  hasIssuer: boolean,
): { status: number; text: string } {
  if (answer.status !== 200 || !/json/i.test(answer.contentType)) return answer;
  let body: unknown;
  try {
    body = JSON.parse(answer.text);
  } catch {
    return answer; // the protocol code reports it
  }
  if (typeof body !== 'object' || body === null) return answer;
  if ('error' in body && typeof body.error === 'string' && !('access_token' in body)) {
    return { status: 400, text: answer.text };
  }
  if (!hasIssuer && 'id_token' in body) {
    return { status: 200, text: JSON.stringify({ ...body, id_token: undefined }) };
  }
  return answer;
}

/** Error codes that end a grant at servers with names of their own (GitHub). */
const WORTHLESS = new Set([
  'invalid_grant',
  'bad_refresh_token',
  'bad_verification_code',
  'token_expired',
]);
const BUSY = new Set(['temporarily_unavailable', 'server_error', 'slow_down']);
/** Codes are short words (RFC 6749, 5.2); anything else may be a text with anything in it. */
const word = (code: string): string => (/^[a-z_]{1,40}$/.test(code) ? code : 'error');

/** Names and codes only: `cause` of openid-client's errors holds codes, tokens and whole answers. */
export function classify(error: unknown): GrantFault {
  if (error instanceof ResponseBodyError) {
    const detail = `${String(error.status)} ${word(error.error)}`;
    if (error.status === 429 || error.status >= 500 || BUSY.has(error.error)) {
      return { kind: 'unavailable', detail };
    }
    if (error.error === 'invalid_client') return { kind: 'unknown_client', detail };
    return { kind: WORTHLESS.has(error.error) ? 'invalid_grant' : 'denied', detail };
  }
  if (error instanceof WWWAuthenticateChallengeError) {
    // A token endpoint has nothing else to challenge for than the client's own authentication.
    return { kind: 'unknown_client', detail: `${String(error.status)} with a challenge` };
  }
  if (error instanceof AuthorizationResponseError) {
    return { kind: 'denied', detail: word(error.error) };
  }
  if (error instanceof EgressRefused) return { kind: 'denied', detail: error.message };
  if (error instanceof ClientError) {
    if (error.code === 'OAUTH_TIMEOUT' || error.code === 'OAUTH_ABORT') {
      return { kind: 'unavailable', detail: 'no answer in time' };
    }
    const status = error.cause instanceof Response ? error.cause.status : undefined;
    if (error.code === 'OAUTH_RESPONSE_IS_NOT_CONFORM' && status !== undefined) {
      return {
        kind: status >= 500 || status === 429 ? 'unavailable' : 'invalid_answer',
        detail: `status ${String(status)}`,
      };
    }
    if (error.cause instanceof EgressRefused)
      return { kind: 'denied', detail: error.cause.message };
    if (error.code !== undefined) return { kind: 'invalid_answer', detail: error.message };
    return { kind: 'unavailable', detail: networkDetail(error.cause) };
  }
  return { kind: 'unavailable', detail: networkDetail(error) };
}

function networkDetail(error: unknown): string {
  const code = (error as { code?: unknown } | undefined)?.code;
  return typeof code === 'string' && /^[A-Z_]{1,40}$/.test(code) ? code : 'not reached';
}
