/**
 * The keys that access tokens are signed with: one per key of VIADUCT_SECRET_KEYS, derived from it, so that all
 * pods have the same ones without telling each other. The first signs; all are published and accepted, so a
 * rotation overlaps: add the new key as the second, roll out, then move it to the front.
 *
 * The key id is the thumbprint (RFC 7638): a `kid` of the keyring that is used again for other bytes is another key.
 */
import { createECDH, createHash } from 'node:crypto';
import { createLocalJWKSet } from 'jose';
import type { Keyring } from '@viaduct/shared/keyring';

export const SIGNING_ALGORITHM = 'ES256';

export interface SigningKeys {
  /** JWKs with their private parts; the first one signs. */
  readonly privateKeys: readonly Record<
    'kty' | 'crv' | 'x' | 'y' | 'd' | 'kid' | 'alg' | 'use',
    string
  >[];
  /** For `jwtVerify`: no round trip. */
  readonly find: ReturnType<typeof createLocalJWKSet>;
}

/** Order of P-256: a private key is a number from 1 to one less (SEC 2, 2.4.2). */
const ORDER = 0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551n;

/** The first of sha256(seed), sha256(sha256(seed)) … that is a scalar: all but one in 2^32 are. */
function scalarOf(seed: Uint8Array): Buffer {
  let bytes = Buffer.from(seed);
  for (;;) {
    bytes = createHash('sha256').update(bytes).digest();
    const value = BigInt(`0x${bytes.toString('hex')}`);
    if (value > 0n && value < ORDER) return bytes;
  }
}

export function createSigningKeys(keyring: Pick<Keyring, 'derive'>): SigningKeys {
  const privateKeys = keyring.derive('oauth-signing').map(({ bytes }) => {
    const scalar = scalarOf(bytes);
    const curve = createECDH('prime256v1');
    curve.setPrivateKey(scalar);
    const point = curve.getPublicKey(); // 0x04, x, y
    // Members in the order of RFC 7638, 3.2.
    const jwk = {
      crv: 'P-256',
      kty: 'EC',
      x: point.subarray(1, 33).toString('base64url'),
      y: point.subarray(33, 65).toString('base64url'),
    };
    const kid = createHash('sha256').update(JSON.stringify(jwk)).digest('base64url');
    return { ...jwk, d: scalar.toString('base64url'), kid, alg: SIGNING_ALGORITHM, use: 'sig' };
  });
  const keys = privateKeys.map(({ d: _private, ...jwk }) => jwk);
  return { privateKeys, find: createLocalJWKSet({ keys }) };
}
