import { randomUUID } from 'node:crypto';
import type { Members } from './net.ts';
import { listen, redirect, sendJson, type Exchange, type Listener } from './net.ts';
import { authenticateClient, escapeHtml, sha256, type OauthClients } from './oauth.ts';
import { planted } from './planted.ts';
import type { Gate } from './until.ts';

interface Grant {
  scope: string;
  revoked: boolean;
}

/** What the token endpoint does instead of its work; `times` runs down. */
export type TokenFault = 'server-error' | 'html' | 'invalid-grant' | 'cut-off';

/**
 * "Acme Drive": an authorization server with everything a test may want to see or upset. Refresh tokens rotate,
 * and a spent one revokes the whole grant, as careful providers do.
 */
export interface ThirdParty extends Listener {
  /** Authorization requests that reached it. */
  readonly authorizations: Record<string, string>[];
  readonly tokenRequests: { grant: string; form: Record<string, string> }[];
  /** The `traceparent` of each request of the token endpoint. */
  readonly traces: (string | undefined)[];
  readonly revocations: string[];
  /** The `token_type_hint` of each. */
  readonly revocationHints: (string | null)[];
  /** Bodies of registrations (RFC 7591), and whether there are any. */
  readonly registrations: Members[];
  registers: boolean;
  /** Over the members of its metadata. */
  metadata: Members;
  /** Over the members of a token answer. */
  tokenMembers: Members;
  /** Where its endpoints send those who ask (302), by path. */
  readonly redirects: Map<string, string>;
  /** Instead of the token endpoint's usual work, for grants that it does not know. */
  otherGrant: ((form: URLSearchParams) => Members | undefined) | undefined;
  /** Everything secret that it has handed out. */
  readonly issued: string[];
  exchanges: number;
  refreshes: number;
  /** Spent refresh tokens that somebody presented again. */
  reuses: number;
  /** `ask` shows a page with two buttons; the others answer for the person. */
  person: 'allows' | 'denies' | 'ask';
  expiresInSeconds: number;
  omitRefreshToken: boolean;
  /** In the authorization response instead of its own issuer (RFC 9207). */
  issOverride: string | undefined;
  readonly gates: { discovery?: Gate | undefined; token?: Gate | undefined };
  failTokens(fault: TokenFault, times?: number): void;
  isValid(token: string): boolean;
  expireAll(): void;
  /** The grant that was given last. */
  revokeNewest(): void;
}

export async function startThirdParty({
  clients,
  tls,
}: {
  clients: OauthClients;
  tls?: { key: string; cert: string };
}): Promise<ThirdParty> {
  const codes = new Map<string, { query: Record<string, string>; grantId?: string }>();
  const grants = new Map<string, Grant>();
  const access = new Map<string, { grantId: string; expiresAt: number }>();
  const refresh = new Map<string, { grantId: string; spent: boolean }>();
  const faults: TokenFault[] = [];

  const secret = (kind: string): string => {
    const value = planted(kind);
    party.issued.push(value);
    return value;
  };
  const issue = (grantId: string, withRefresh: boolean): Members => {
    const token = secret('access');
    access.set(token, { grantId, expiresAt: Date.now() + party.expiresInSeconds * 1000 });
    const body: Members = {
      access_token: token,
      token_type: 'Bearer',
      expires_in: party.expiresInSeconds,
      scope: grants.get(grantId)!.scope,
    };
    if (withRefresh) {
      const next = secret('refresh');
      refresh.set(next, { grantId, spent: false });
      body['refresh_token'] = next;
    }
    return { ...body, ...party.tokenMembers };
  };

  const metadata = (): Members => ({
    issuer: party.url,
    authorization_endpoint: `${party.url}/authorize`,
    token_endpoint: `${party.url}/token`,
    revocation_endpoint: `${party.url}/revoke`,
    response_types_supported: ['code'],
    grant_types_supported: ['authorization_code', 'refresh_token'],
    code_challenge_methods_supported: ['S256'],
    token_endpoint_auth_methods_supported: ['client_secret_basic', 'client_secret_post'],
    authorization_response_iss_parameter_supported: true,
    ...(party.registers && { registration_endpoint: `${party.url}/register` }),
    ...party.metadata,
  });

  /** Where the person's browser goes next. */
  const decide = (exchange: Exchange, query: Record<string, string>, allowed: boolean): void => {
    const iss = party.issOverride ?? party.url;
    const back = { state: query['state'], iss };
    if (!allowed) {
      redirect(exchange.response, query['redirect_uri']!, { error: 'access_denied', ...back });
      return;
    }
    const code = secret('code');
    codes.set(code, { query });
    redirect(exchange.response, query['redirect_uri']!, { code, ...back });
  };

  const authorize = (exchange: Exchange): void => {
    const query = Object.fromEntries(exchange.url.searchParams);
    party.authorizations.push(query);
    const sound =
      clients[query['client_id'] ?? ''] !== undefined &&
      query['redirect_uri'] !== undefined &&
      query['response_type'] === 'code' &&
      query['code_challenge_method'] === 'S256';
    if (!sound) {
      sendJson(exchange.response, 400, { error: 'invalid_request' });
      return;
    }
    if (party.person !== 'ask') {
      decide(exchange, query, party.person === 'allows');
      return;
    }
    const hidden = Object.entries(query).map(
      ([name, value]) => `<input type="hidden" name="${name}" value="${escapeHtml(value)}">`,
    );
    exchange.response.writeHead(200, { 'content-type': 'text/html; charset=utf-8' });
    exchange.response.end(
      `<!doctype html><title>Acme Drive</title><h1>Acme Drive</h1><p>Share your files?</p>
<form method="post" action="/decide">${hidden.join('')}
<button name="answer" value="allow">Allow</button> <button name="answer" value="deny">Deny</button></form>`,
    );
  };

  const exchangeCode = ({ response, form }: Exchange, client: string): void => {
    const code = codes.get(form.get('code') ?? '');
    if (code?.grantId !== undefined) {
      grants.get(code.grantId)!.revoked = true; // RFC 6749 4.1.2: a code used twice
      sendJson(response, 400, { error: 'invalid_grant' });
      return;
    }
    const sound =
      code?.query['client_id'] === client &&
      code.query['redirect_uri'] === form.get('redirect_uri') &&
      code.query['code_challenge'] === sha256(form.get('code_verifier') ?? '');
    if (!code || !sound) {
      sendJson(response, 400, { error: 'invalid_grant' });
      return;
    }
    code.grantId = randomUUID();
    grants.set(code.grantId, { scope: code.query['scope'] ?? '', revoked: false });
    party.exchanges += 1;
    sendJson(response, 200, issue(code.grantId, true));
  };

  const refreshGrant = ({ response, form }: Exchange): void => {
    const presented = refresh.get(form.get('refresh_token') ?? '');
    const grant = presented && grants.get(presented.grantId);
    if (!presented || !grant || grant.revoked) {
      sendJson(response, 400, { error: 'invalid_grant' });
      return;
    }
    if (presented.spent) {
      party.reuses += 1;
      grant.revoked = true;
      sendJson(response, 400, { error: 'invalid_grant' });
      return;
    }
    party.refreshes += 1;
    presented.spent = !party.omitRefreshToken;
    sendJson(response, 200, issue(presented.grantId, !party.omitRefreshToken));
  };

  const token = async (exchange: Exchange): Promise<void> => {
    const { request, response, form } = exchange;
    const grant = form.get('grant_type') ?? '';
    party.traces.push(request.headers['traceparent'] as string | undefined);
    party.tokenRequests.push({ grant, form: Object.fromEntries(form) });
    await party.gates.token?.pass();
    switch (faults.shift()) {
      case 'server-error': {
        sendJson(response, 500, { error: 'server_error' });
        return;
      }
      case 'html':
        response.writeHead(200, { 'content-type': 'text/html' });
        response.end('<html><body>Down for maintenance</body></html>');
        return;
      case 'invalid-grant': {
        sendJson(response, 400, { error: 'invalid_grant' });
        return;
      }
      case 'cut-off':
        request.socket.destroy();
        return;
      case undefined:
    }
    const client = authenticateClient(request, form, clients);
    if (!client) {
      sendJson(response, 401, { error: 'invalid_client' });
      return;
    }
    if (grant === 'authorization_code') {
      exchangeCode(exchange, client);
      return;
    }
    if (grant === 'refresh_token') {
      refreshGrant(exchange);
      return;
    }
    const other = party.otherGrant?.(form);
    if (other !== undefined) {
      sendJson(response, 'error' in other ? 400 : 200, other);
      return;
    }
    sendJson(response, 400, { error: 'unsupported_grant_type' });
  };

  const discovery = async ({ response }: Exchange): Promise<void> => {
    await party.gates.discovery?.pass();
    sendJson(response, 200, metadata());
  };
  const revoke = ({ response, form }: Exchange): void => {
    const revoked = form.get('token') ?? '';
    party.revocations.push(revoked);
    party.revocationHints.push(form.get('token_type_hint'));
    const id = (access.get(revoked) ?? refresh.get(revoked))?.grantId;
    if (id !== undefined) grants.get(id)!.revoked = true;
    response.writeHead(200).end();
  };
  const register = ({ response, body }: Exchange): void => {
    const about = JSON.parse(body.toString('utf8')) as Members;
    party.registrations.push(about);
    const id = `registered-${randomUUID()}`;
    clients[id] = {};
    sendJson(response, 201, { ...about, client_id: id });
  };
  const routes: Record<string, (exchange: Exchange) => void | Promise<void>> = {
    '/.well-known/oauth-authorization-server': discovery,
    '/.well-known/openid-configuration': discovery,
    '/authorize': authorize,
    '/decide': (exchange) =>
      decide(exchange, Object.fromEntries(exchange.form), exchange.form.get('answer') === 'allow'),
    '/token': token,
    '/revoke': revoke,
    '/register': register,
  };
  const listener = await listen(
    async (exchange) => {
      const elsewhere = party.redirects.get(exchange.url.pathname);
      if (elsewhere !== undefined) {
        redirect(exchange.response, elsewhere, {});
        return;
      }
      const route = routes[exchange.url.pathname];
      if (route) await route(exchange);
      else sendJson(exchange.response, 404, { error: 'not_found' });
    },
    { tls },
  );

  const party: ThirdParty = {
    ...listener,
    authorizations: [],
    tokenRequests: [],
    traces: [],
    revocations: [],
    revocationHints: [],
    registrations: [],
    registers: false,
    metadata: {},
    otherGrant: undefined,
    tokenMembers: {},
    redirects: new Map(),
    issued: [],
    exchanges: 0,
    refreshes: 0,
    reuses: 0,
    person: 'allows',
    expiresInSeconds: 3600,
    omitRefreshToken: false,
    issOverride: undefined,
    gates: {},
    failTokens: (fault, times = 1) => faults.push(...Array<TokenFault>(times).fill(fault)),
    isValid: (value) => {
      const found = access.get(value);
      return !!found && found.expiresAt > Date.now() && !grants.get(found.grantId)!.revoked;
    },
    expireAll: () => access.forEach((entry) => (entry.expiresAt = 0)),
    revokeNewest: () => {
      const newest = [...grants.values()].at(-1);
      if (newest) newest.revoked = true;
    },
  };
  return party;
}
