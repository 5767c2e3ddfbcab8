/**
 * Statements of this gateway about who a user is, for token endpoints that trust it (RFC 8693 with
 * `subject_token_type` jwt, RFC 7523): short-lived JWTs, each for one endpoint. The client's own token is never part
 * of one (invariant 9).
 *
 * The ES256 keys are derived from VIADUCT_SECRET_KEYS, so every pod signs with the same one and none is stored; all
 * of them are published at `<publicUrl>/connect/jwks.json`, and the first signs, so rotation is putting a key in front.
 */
import { createECDH, createHash, createPrivateKey, randomUUID, type KeyObject } from 'node:crypto';
import { SignJWT, type JSONWebKeySet, type JWK } from 'jose';
import type { Keyring } from './keyring.ts';
import type { Principal } from './principal.ts';

export const JWKS_PATH = '/connect/jwks.json';

export interface Assertions {
  /** @param audience the token endpoint that it is shown to */
  sign(principal: Pick<Principal, 'issuer' | 'subject'>, audience: string): Promise<string>;
  readonly jwks: JSONWebKeySet;
}

const LIFETIME_SECONDS = 60;
/** Order of P-256 (FIPS 186-5, SP 800-186). */
const ORDER = 0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551n;

export function createAssertions({
  keyring,
  publicUrl,
}: {
  readonly keyring: Pick<Keyring, 'signingSeeds'>;
  readonly publicUrl: string;
}): Assertions {
  const pairs = keyring.signingSeeds().map(({ seed }) => pairOf(seed));
  const [first] = pairs;
  if (first === undefined) throw new Error('a keyring needs a key');
  return {
    jwks: { keys: pairs.map(({ publicJwk }) => publicJwk) },
    sign: (principal, audience) =>
      new SignJWT({ original_iss: principal.issuer })
        .setProtectedHeader({ alg: 'ES256', kid: first.kid, typ: 'JWT' })
        .setIssuer(publicUrl)
        .setSubject(principal.subject)
        .setAudience(audience)
        .setJti(randomUUID())
        .setIssuedAt()
        .setExpirationTime(`${String(LIFETIME_SECONDS)}s`)
        .sign(first.privateKey),
  };
}

/** 48 bytes reduced to a scalar: without a bias that matters (FIPS 186-5, A.2.1). */
function pairOf(seed: Uint8Array): { kid: string; privateKey: KeyObject; publicJwk: JWK } {
  const scalar = (BigInt(`0x${Buffer.from(seed).toString('hex')}`) % (ORDER - 1n)) + 1n;
  const d = Buffer.from(scalar.toString(16).padStart(64, '0'), 'hex');
  const ecdh = createECDH('prime256v1');
  ecdh.setPrivateKey(d);
  const point = ecdh.getPublicKey();
  const publicJwk = {
    kty: 'EC',
    crv: 'P-256',
    x: point.subarray(1, 33).toString('base64url'),
    y: point.subarray(33).toString('base64url'),
  };
  // The thumbprint, not the key id of the configuration: that is nobody else's business.
  const kid = createHash('sha256')
    .update(
      JSON.stringify({ crv: publicJwk.crv, kty: publicJwk.kty, x: publicJwk.x, y: publicJwk.y }),
    )
    .digest('base64url');
  const privateKey = createPrivateKey({
    key: { ...publicJwk, d: d.toString('base64url') },
    format: 'jwk',
  });
  return { kid, privateKey, publicJwk: { ...publicJwk, kid, alg: 'ES256', use: 'sig' } };
}
