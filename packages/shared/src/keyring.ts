/**
 * Sealing and authenticating with the keys of VIADUCT_SECRET_KEYS. The first key seals, every key opens, so a
 * key is rotated by putting a new one in front. Each purpose has keys of its own (HKDF-SHA256, RFC 5869): what
 * was sealed as a cookie never opens as a vault entry.
 *
 * Promises: a sealed text opens only under the purpose and the context that it was sealed with, and unaltered.
 * Does not hide the context: it stands in the JWE's header, authenticated but readable. Keeps no state.
 */
import { createHmac, hkdfSync, timingSafeEqual } from 'node:crypto';
import { CompactEncrypt, compactDecrypt, decodeProtectedHeader } from 'jose';
import type { SecretKey } from './config/environment.ts';

export type DerivedUse = 'oauth-signing' | 'oauth-cookies';
export type Purpose = 'oauth' | 'vault' | 'flow' | 'cookie' | 'csrf' | 'state' | 'registration';
/** What a sealed text belongs to, e.g. user and connection. Compared as a whole, in any order of keys. */
export type SealContext = Readonly<Record<string, string>>;

export class SealError extends Error {
  /** `invalid`: altered, or sealed for something else. `unknown_key`: its key is not configured any more. */
  readonly code: 'invalid' | 'unknown_key';

  constructor(code: 'invalid' | 'unknown_key', message: string) {
    super(message);
    this.name = 'SealError';
    this.code = code;
  }
}

export interface Keyring {
  /** Id of the key that seals. */
  readonly kid: string;
  /** Id of the key that a text was sealed with; undefined for what is none of ours. */
  kidOf(jwe: string): string | undefined;
  /** @returns compact JWE, `dir` with A256GCM (RFC 7516, 7518) */
  seal(purpose: Purpose, plaintext: string, context: SealContext): Promise<string>;
  /** @throws SealError */
  open(purpose: Purpose, jwe: string, context: SealContext): Promise<string>;
  /** @returns base64url HMAC-SHA256, 43 characters */
  mac(purpose: Purpose, data: string): string;
  /** 32 bytes for one use by each key, in their order: what every pod can derive for itself. */
  derive(use: DerivedUse): { kid: string; bytes: Uint8Array }[];
  /** 48 bytes for each key, first key first, to derive a signing key from (assertions.ts). */
  signingSeeds(): readonly { readonly kid: string; readonly seed: Uint8Array }[];
  /** True for a MAC by any of the keys; takes the same time for every wrong one. */
  verifyMac(purpose: Purpose, data: string, mac: string): boolean;
}

const ALGORITHM = { alg: 'dir', enc: 'A256GCM' } as const;

export function createKeyring(secretKeys: readonly SecretKey[]): Keyring {
  const [first] = secretKeys;
  if (first === undefined) throw new Error('a keyring needs a key');
  const derived = new Map<string, Uint8Array>();
  const derive = (key: SecretKey, use: string): Uint8Array => {
    const id = `${key.kid} ${use}`;
    const known = derived.get(id);
    if (known !== undefined) return known;
    const bytes = new Uint8Array(hkdfSync('sha256', key.key, '', `viaduct/1/${use}`, 32));
    derived.set(id, bytes);
    return bytes;
  };

  return {
    kid: first.kid,

    kidOf(jwe) {
      try {
        return readHeader(jwe).kid;
      } catch {
        return undefined; // `open` says why
      }
    },

    async seal(purpose, plaintext, context) {
      return new CompactEncrypt(new TextEncoder().encode(plaintext))
        .setProtectedHeader({ ...ALGORITHM, kid: first.kid, ctx: canonical(context) })
        .encrypt(derive(first, `seal/${purpose}`));
    },

    async open(purpose, jwe, context) {
      const header = readHeader(jwe);
      const key = secretKeys.find(({ kid }) => kid === header.kid);
      if (key === undefined) {
        throw new SealError(
          'unknown_key',
          `sealed with key ${header.kid}, which is not configured`,
        );
      }
      // Before decryption, so that a text of another owner costs no cipher; GCM proves the header itself.
      if (header.ctx !== canonical(context)) {
        throw new SealError('invalid', 'sealed for something else');
      }
      try {
        const { plaintext } = await compactDecrypt(jwe, derive(key, `seal/${purpose}`), {
          keyManagementAlgorithms: [ALGORITHM.alg],
          contentEncryptionAlgorithms: [ALGORITHM.enc],
        });
        return new TextDecoder('utf-8', { fatal: true }).decode(plaintext);
      } catch {
        // jose tells apart what an attacker should not: a wrong key, an altered text, a malformed one.
        throw new SealError('invalid', 'altered, or sealed for another purpose');
      }
    },

    derive: (use) =>
      secretKeys.map((key) => ({ kid: key.kid, bytes: derive(key, `derive/${use}`) })),

    mac: (purpose, data) => hmac(derive(first, `mac/${purpose}`), data).toString('base64url'),

    signingSeeds: () =>
      secretKeys.map(({ kid, key }) => ({
        kid,
        seed: new Uint8Array(hkdfSync('sha256', key, '', 'viaduct/1/sign/es256', 48)),
      })),

    verifyMac(purpose, data, mac) {
      const given = Buffer.from(mac, 'base64url');
      let good = false;
      for (const key of secretKeys) {
        const wanted = hmac(derive(key, `mac/${purpose}`), data);
        if (given.length === wanted.length && timingSafeEqual(given, wanted)) good = true;
      }
      // base64url has several spellings of the same bytes; only ours is accepted.
      return good && given.toString('base64url') === mac;
    },
  };
}

const hmac = (key: Uint8Array, data: string): Buffer =>
  createHmac('sha256', key).update(data).digest();

function canonical(context: SealContext): string {
  return JSON.stringify(Object.entries(context).sort(([a], [b]) => (a < b ? -1 : 1)));
}

function readHeader(jwe: string): { kid: string; ctx: unknown } {
  try {
    const { kid, ctx } = decodeProtectedHeader(jwe) as { kid?: unknown; ctx?: unknown };
    // The id goes into an error message: only what can be a key id.
    if (typeof kid === 'string' && /^[A-Za-z0-9._-]{1,64}$/.test(kid)) return { kid, ctx };
  } catch {
    // No JWE at all; the same answer as for one that names no key.
  }
  throw new SealError('invalid', 'not a sealed text');
}
