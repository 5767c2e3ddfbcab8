/**
 * An upstream that has its own OAuth may want more scope for one operation (MCP 2025-11-25, authorization, Scope
 * Challenge Handling). The challenge is for the gateway, which asks the user; it is never relayed.
 */

/** The scopes that a 403 `insufficient_scope` names, separated by spaces; undefined for any other reply. */
export function addedScopes(reply: {
  readonly status: number;
  readonly wwwAuthenticate: string | undefined;
}): string | undefined {
  if (reply.status !== 403) return undefined;
  const challenge = reply.wwwAuthenticate ?? '';
  if (!/^Bearer\b/i.test(challenge)) return undefined;
  if (!/[\s,]error\s*=\s*"?insufficient_scope\b/i.test(challenge)) return undefined;
  const scope = /[\s,]scope\s*=\s*"([^"]*)"/i.exec(challenge)?.[1] ?? '';
  // One scope-token each (RFC 6749, 3.3), and few: this text is shown to a person and stored.
  const scopes = scope.split(' ').filter((one) => /^[\x21\x23-\x5B\x5D-\x7E]{1,128}$/.test(one));
  return scopes.length === 0 ? undefined : scopes.slice(0, 32).join(' ');
}
