/**
 * What a token has to be to prove a principal: signed by the issuer in a way that only it can, an access token,
 * alive, and complete (RFC 7519, RFC 8725, RFC 9068). For whom it is (`aud`) is compared per request by the
 * caller; everything here is decided once per token.
 */
import { decodeJwt, errors, jwtVerify, type JWTPayload, type JWTVerifyOptions } from 'jose';
import { GatewayError } from '@viaduct/shared/errors';
import { userIdOf, type Principal } from '@viaduct/shared/principal';
import type { IssuerKeys } from './issuer-keys.ts';
import type { VerifiedToken } from './token-cache.ts';

/** Asymmetric only: with HS* the public key would be the secret, and `none` is none (RFC 8725, 3.1 and 3.2). */
// prettier-ignore
const ALGORITHMS = [
  'RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512', 'ES256', 'ES384', 'ES512', 'EdDSA', 'Ed25519',
];
/** RFC 9068 tokens, and plain ones. Logout tokens, security events and DPoP proofs have types of their own. */
const TYPES = /^(application\/)?(at\+)?jwt$/i;
const MAX_TOKEN_LENGTH = 16_384;

/** Label values of `auth_failures_total`, and what the client is told (RFC 6750, 3: ASCII, no quotes). */
const REASONS = {
  missing: 'An access token is required',
  malformed: 'The Authorization header holds no well-formed bearer token',
  several: 'There must be exactly one Authorization header',
  in_url: 'An access token in the URL is not accepted',
  algorithm: 'The token is signed in a way that is not accepted',
  type: 'This is no access token',
  issuer: 'The token was issued by somebody else',
  unknown_key: 'The token was signed with an unknown key',
  signature: 'The signature of the token is wrong',
  expired: 'The token has expired',
  revoked: 'The token has been revoked',
  not_yet_valid: 'The token is not valid yet',
  audience: 'The token is not for this resource',
  claims: 'The token lacks a claim that is required',
  sender_constrained: 'The token is bound to a key and cannot be used as a bearer token',
} as const;
type Reason = keyof typeof REASONS;

/** Whose tokens, and how they are read. */
export interface TokenRules {
  readonly issuer: string;
  readonly groupsClaim: string;
  readonly clockSkewSeconds: number;
}

/** Why a request proves nobody; the edge of auth.ts turns it into the 401. */
export class Refused extends Error {
  readonly reason: Reason;
  constructor(reason: Reason, options?: ErrorOptions) {
    super(REASONS[reason], options);
    this.reason = reason;
  }
}

/** Looked at only when a token is new: what is in the cache was well-formed (RFC 6750, 2.1). */
const WELL_FORMED = /^[A-Za-z0-9._~+/-]+=*$/;

/**
 * @param nowMs epoch milliseconds
 * @throws Refused, or GatewayError `unavailable` when the issuer's keys cannot be had
 */
export async function verifyAccessToken(
  token: string,
  auth: TokenRules,
  keys: Pick<IssuerKeys, 'find'>,
  nowMs: number,
): Promise<VerifiedToken> {
  const options = {
    algorithms: ALGORITHMS,
    issuer: auth.issuer,
    clockTolerance: auth.clockSkewSeconds,
    currentDate: new Date(nowMs),
    requiredClaims: ['exp', 'sub', 'aud'],
  } satisfies JWTVerifyOptions;
  if (token.length > MAX_TOKEN_LENGTH || !WELL_FORMED.test(token)) throw new Refused('malformed');
  try {
    // Unverified, and only to refuse: a foreign token must not make us ask our issuer for its key.
    if (decodeJwt(token).iss !== auth.issuer) throw new Refused('issuer');
    const { payload, protectedHeader } = await verifySignature(token, keys, options);
    const { typ } = protectedHeader;
    if (typ !== undefined && !TYPES.test(typ)) throw new Refused('type');
    return readClaims(payload, auth, nowMs);
  } catch (error) {
    if (error instanceof Refused || error instanceof GatewayError) throw error;
    if (error instanceof errors.JOSEError) throw new Refused(reasonOf(error), { cause: error });
    throw error;
  }
}

/** An issuer may have several keys under one id; then each that fits the algorithm is tried. */
async function verifySignature(
  token: string,
  keys: Pick<IssuerKeys, 'find'>,
  options: JWTVerifyOptions,
) {
  try {
    return await jwtVerify(token, keys.find, options);
  } catch (error) {
    if (!(error instanceof errors.JWKSMultipleMatchingKeys)) throw error;
    for await (const key of error) {
      try {
        return await jwtVerify(token, key, options);
      } catch (attempt) {
        if (!(attempt instanceof errors.JWSSignatureVerificationFailed)) throw attempt;
      }
    }
    throw new errors.JWSSignatureVerificationFailed();
  }
}

function reasonOf(error: errors.JOSEError): Reason {
  if (error instanceof errors.JWTExpired) return 'expired';
  if (error instanceof errors.JWTClaimValidationFailed) {
    if (error.claim === 'nbf') return 'not_yet_valid';
    return error.claim === 'iss' ? 'issuer' : 'claims';
  }
  if (error instanceof errors.JWSSignatureVerificationFailed) return 'signature';
  if (error instanceof errors.JWKSNoMatchingKey) return 'unknown_key';
  if (error instanceof errors.JOSEAlgNotAllowed) return 'algorithm';
  if (error instanceof errors.JOSENotSupported) return 'algorithm';
  return 'malformed';
}

function readClaims(payload: JWTPayload, auth: TokenRules, nowMs: number): VerifiedToken {
  const { sub, exp = 0, iat, aud } = payload;
  if (typeof sub !== 'string' || sub === '') throw new Refused('claims');
  // Made in the future means a clock or a forger out of order; a few seconds happen (RFC 7519, 4.1.6).
  if (typeof iat === 'number' && iat * 1000 > nowMs + auth.clockSkewSeconds * 1000) {
    throw new Refused('not_yet_valid');
  }
  // An ID token says who logged in at a client; it grants nothing (OpenID Connect Core, 2; RFC 9068, 6).
  if (
    ['nonce', 'at_hash', 'c_hash', 's_hash'].some((claim) => payload[claim] !== undefined) ||
    payload['token_use'] === 'id' ||
    payload['typ'] === 'ID'
  ) {
    throw new Refused('type');
  }
  // RFC 9449, 7.2 and RFC 8705, 3: without the proof that belongs to it, such a token proves nothing.
  if (payload['cnf'] !== undefined) throw new Refused('sender_constrained');
  // RFC 9068; then what OpenID providers, Okta and Entra ID (version 1 tokens) say instead.
  const clientId = payload['client_id'] ?? payload['azp'] ?? payload['cid'] ?? payload['appid'];
  if (typeof clientId !== 'string' || clientId === '') throw new Refused('claims');

  const audience = (Array.isArray(aud) ? aud : [aud]).filter((entry) => typeof entry === 'string');
  const principal: Principal = {
    userId: userIdOf(auth.issuer, sub),
    issuer: auth.issuer,
    subject: sub,
    clientId,
    scopes: new Set([...words(payload['scope']), ...words(payload['scp'])]),
    groups: strings(payload[auth.groupsClaim]),
    audience,
    expiresAtMs: exp * 1000,
  };
  return {
    principal,
    resources: new Set(audience.map(canonicalResource)),
    issuedAtMs: typeof iat === 'number' ? iat * 1000 : 0,
  };
}

const strings = (claim: unknown): string[] =>
  (Array.isArray(claim) ? (claim as unknown[]) : [claim]).filter(
    (entry) => typeof entry === 'string',
  );
const words = (claim: unknown): string[] =>
  strings(claim).flatMap((text) => text.split(' ').filter((word) => word !== ''));

/**
 * The canonical server URI (MCP authorization, Canonical Server URI): scheme and host in lower case, no
 * default port, and a slash at the end makes no difference. Anything else stays as it is.
 */
function canonicalResource(audience: string): string {
  if (!/^https?:\/\//i.test(audience) || audience.includes('#')) return audience;
  const url = URL.parse(audience);
  return url === null ? audience : url.href.replace(/\/$/, '');
}
