/** What a user has given for a connection, as it lies sealed in the vault, and where a grant is asked for. Pure. */
import { createHash } from 'node:crypto';
import type { ConnectionConfig } from '../config.ts';

/**
 * Where a grant is asked for, and as whom: a connection of `type: oauth` as it is configured, or what was found for
 * one of `type: mcp`.
 */
export interface OAuthTarget {
  readonly type: 'oauth' | 'mcp';
  readonly issuer?: string;
  readonly authorizationEndpoint?: string;
  readonly tokenEndpoint?: string;
  readonly revocationEndpoint?: string;
  readonly clientId: string;
  readonly clientSecret?: string;
  readonly scopes: readonly string[];
  /** Resource indicator (RFC 8707); `type: mcp` always has one. */
  readonly resource?: string;
  /** `type: mcp`: the upstream's own origin, the only one that the operator's word covers. */
  readonly trustedOrigin?: string;
}

/** One grant of a user at a third party, as it lies sealed in the vault. */
export interface OAuthCredential {
  readonly kind: 'oauth';
  readonly accessToken: string;
  readonly tokenType: string;
  readonly refreshToken?: string;
  readonly scope?: string;
  /** Absent: the third party did not say, so only its 401 tells. */
  readonly expiresAtMs?: number;
  readonly obtainedAtMs: number;
  /** When the user gave the grant; refreshes keep it. */
  readonly connectedAtMs?: number;
  /** `connectionHash` of the configuration that it was granted under. */
  readonly connectionHash: string;
  /** It replaces one that an upstream had refused. */
  readonly renewedForRefusal?: true;
  /** `type: mcp`: the server that gave it, and the client that it was given to. Never used with another. */
  readonly target?: OAuthTarget;
}

/** What a user typed on the page of a `type: secret` connection. */
export interface SecretCredential {
  readonly kind: 'secret';
  readonly values: Readonly<Record<string, string>>;
  readonly obtainedAtMs: number;
  readonly connectedAtMs?: number;
  readonly connectionHash: string;
}

export type Credential = OAuthCredential | SecretCredential;

/** Names what a credential was given for: another issuer, client, scopes or fields, and it has to be asked for again. */
export function connectionHash(connection: ConnectionConfig): string {
  const subject = JSON.stringify([connection.type, ...identityOf(connection)]);
  return createHash('sha256').update(subject).digest('base64url').slice(0, 22);
}

function identityOf(connection: ConnectionConfig): unknown[] {
  switch (connection.type) {
    case 'oauth':
      return [
        connection.issuer ?? [connection.authorizationEndpoint, connection.tokenEndpoint],
        connection.clientId,
        [...connection.scopes].sort(),
      ];
    case 'secret':
      return [connection.fields.map((field) => field.name).sort()];
    case 'mcp':
      return [connection.upstreamUrl, connection.clientId, [...(connection.scopes ?? [])].sort()];
    case 'token-exchange':
      return [
        connection.tokenEndpoint,
        connection.audience,
        connection.resource,
        connection.clientId,
        [...connection.scopes].sort(),
      ];
  }
}

/** Where the consent page says that it leads: an origin that the operator wrote, or that discovery named. */
export function thirdPartyOrigin(target: OAuthTarget): string {
  return new URL(target.issuer ?? target.authorizationEndpoint ?? 'invalid:').origin;
}
