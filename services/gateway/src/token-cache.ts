/**
 * Tokens that were verified, by their hash: verifying one costs more than the rest of a request (design,
 * section 10). A cache, so it may forget at any time; it never answers past a token's `exp`.
 *
 * Two generations instead of a list in order of use: when the young one is full, or five minutes old, the old one is
 * dropped. A hit costs one lookup, what is in use moves on by itself, and what nobody presents any more is gone
 * after ten minutes, however long it would be good.
 */
import type { Principal } from '@viaduct/shared/principal';

export interface VerifiedToken {
  readonly principal: Principal;
  /** Its audience in canonical form, to compare with the endpoint called. */
  readonly resources: ReadonlySet<string>;
  /** Epoch milliseconds, to compare with a revocation; 0 for a token that does not say. */
  readonly issuedAtMs: number;
}

export interface TokenCache {
  get(key: string, nowMs: number): VerifiedToken | undefined;
  set(key: string, token: VerifiedToken, nowMs: number): void;
}

const GENERATION_MS = 5 * 60_000;

export function createTokenCache(maxEntries = 20_000): TokenCache {
  let young = new Map<string, VerifiedToken>();
  let old = new Map<string, VerifiedToken>();
  let bornAtMs = 0;

  const keep = (key: string, token: VerifiedToken, nowMs: number): void => {
    if (young.size >= maxEntries / 2 || nowMs - bornAtMs >= GENERATION_MS) {
      // After a long silence both are as old as that.
      old = nowMs - bornAtMs < 2 * GENERATION_MS ? young : new Map<string, VerifiedToken>();
      young = new Map();
      bornAtMs = nowMs;
    }
    young.set(key, token);
  };

  return {
    get(key, nowMs) {
      let token = young.get(key);
      if (token === undefined) {
        token = old.get(key);
        if (token === undefined) return undefined;
        keep(key, token, nowMs);
      }
      if (nowMs < token.principal.expiresAtMs) return token;
      young.delete(key);
      old.delete(key);
      return undefined;
    },
    set: keep,
  };
}
