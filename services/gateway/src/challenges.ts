/**
 * `WWW-Authenticate` values (RFC 6750, 3; RFC 9728, 5.1) and where the metadata of a resource lies. The base
 * scopes are the only ones in a 401; a 403 names those of the operation and no others.
 */
import type { Config } from '@viaduct/shared/config';

export interface Challenges {
  /** No token came: no `error` (RFC 6750, 3.1). */
  login(resource: string): string;
  invalidToken(resource: string, description: string): string;
  insufficientScope(resource: string, scopes: readonly string[]): string;
}

const METADATA_PATH = '/.well-known/oauth-protected-resource';

/** `<publicUrl>/mcp`, or that of one upstream: what tokens are for, without a trailing slash. */
export function resourceUrl(publicUrl: string, upstream = ''): string {
  return upstream === '' ? `${publicUrl}/mcp` : `${publicUrl}/mcp/${upstream}`;
}

/** Of the built-in authorization server; also the issuer of everybody's user id in that mode. */
export const builtinIssuer = (publicUrl: string): string => `${publicUrl}/oauth`;

/** RFC 9728, 3.1: the well-known part goes between host and path. */
function metadataUrl(publicUrl: string, resource: string): string {
  return `${publicUrl}${METADATA_PATH}${resource.slice(publicUrl.length)}`;
}

export function createChallenges({ publicUrl, auth }: Config): Challenges {
  const scope = (scopes: readonly string[]) =>
    scopes.length === 0 ? [] : [`scope="${scopes.join(' ')}"`];
  const metadata = (resource: string) => `resource_metadata="${metadataUrl(publicUrl, resource)}"`;
  return {
    login: (resource) => `Bearer ${[metadata(resource), ...scope(auth.baseScopes)].join(', ')}`,
    invalidToken: (resource, description) =>
      `Bearer ${[
        'error="invalid_token"',
        `error_description="${description}"`,
        metadata(resource),
        ...scope(auth.baseScopes),
      ].join(', ')}`,
    insufficientScope: (resource, scopes) =>
      `Bearer ${[
        'error="insufficient_scope"',
        'error_description="The token lacks scopes that this operation needs"',
        metadata(resource),
        ...scope(scopes),
      ].join(', ')}`,
  };
}
