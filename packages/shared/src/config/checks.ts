/**
 * What one section alone cannot tell: whether a URL is safe under this publicUrl, whether references lead
 * somewhere, and whether two settings collide. Runs on whatever parsed, so that an operator sees all faults
 * at once; a part that did not parse is undefined here and has its own fault.
 */
import { fault, type Path } from './faults.ts';
import type { File } from './schema.ts';
import { isLoopbackHost, isPrivateHost, isSecureUrl, parseHttpUrl } from './urls.ts';

type Upstream = File['upstreams'][number];
type Connection = File['connections'][string];

export interface Parsed extends Partial<Omit<File, 'upstreams' | 'connections'>> {
  /** By index of the file; undefined where the entry did not parse. */
  readonly upstreams: readonly (Upstream | undefined)[];
  readonly connections: ReadonlyMap<string, Connection | undefined>;
}

/** Values that stand in documentation for a secret to be filled in. */
const SAMPLE_SECRET =
  /^(change[-_ ]?(me|it)|replace[-_ ]?(me|this|it)|(my|the|your)?[-_ ]?(client[-_ ]?)?secret|password|example|sample|test|todo|none|x+|<.*>|\.{3}|…|your[-_ ].*)$/i;

export function checkTogether(parsed: Parsed): string[] {
  const { publicUrl } = parsed;
  if (publicUrl === undefined) return checkReferences(parsed);
  const url = new URL(publicUrl);
  const development = isLoopbackHost(url.hostname);
  const faults: string[] = [];
  if (!isSecureUrl(url, development))
    faults.push(fault(['publicUrl'], 'must be https unless loopback'));
  for (const [index, origin] of (parsed.allowedOrigins ?? []).entries()) {
    // A page on plain http can be rewritten by anyone on its way.
    if (origin.startsWith('http:') && !isLoopbackHost(new URL(origin).hostname)) {
      faults.push(fault(['allowedOrigins', index], 'must be https unless loopback'));
    }
  }
  return [
    ...faults,
    ...checkAuth(parsed, development),
    ...checkConsole(parsed),
    ...(parsed.audit?.sinks ?? []).flatMap((sink, index) =>
      sink.type === 'webhook'
        ? [
            ...checkSecure(sink.url, ['audit', 'sinks', index, 'url'], development),
            ...checkSecret(sink.secret, ['audit', 'sinks', index, 'secret'], development),
          ]
        : [],
    ),
    ...parsed.upstreams.flatMap((upstream, index) =>
      upstream === undefined ? [] : checkUpstream(upstream, ['upstreams', index], development),
    ),
    ...[...parsed.connections].flatMap(([name, connection]) =>
      connection === undefined
        ? []
        : checkConnection(connection, ['connections', name], development),
    ),
    ...[...parsed.connections].flatMap(([name, connection]) =>
      connection?.type !== 'oauth' ||
      connection.publicUrl === undefined ||
      connection.publicUrl === publicUrl
        ? []
        : [fault(['connections', name, 'publicUrl'], 'is not the publicUrl of this gateway')],
    ),
    ...checkReferences(parsed),
  ];
}

function checkSecure(text: string | undefined, path: Path, development: boolean): string[] {
  const url = text === undefined ? undefined : parseHttpUrl(text);
  if (url === undefined || isSecureUrl(url, development)) return [];
  return [fault(path, development ? 'must be https unless loopback' : 'must be https')];
}

function checkSecret(secret: string | undefined, path: Path, development: boolean): string[] {
  if (secret === undefined || development) return [];
  if (SAMPLE_SECRET.test(secret)) return [fault(path, 'is a sample value')];
  return secret.length < 8 ? [fault(path, 'is too short for a secret')] : [];
}

/** People of a group need a login that says so, and an address to come back to. */
function checkConsole({ console: settings, auth }: Parsed): string[] {
  if (settings?.access !== 'operators') return [];
  const at = (name: string, text: string): string => fault(['console', name], text);
  const faults: string[] = [];
  if (settings.operatorsGroup === undefined) faults.push(at('operatorsGroup', 'is missing'));
  if (settings.url === undefined) faults.push(at('url', 'is missing'));
  else {
    const url = new URL(settings.url);
    // A port that is forwarded to this machine is plain http, and goes no further.
    if (!isSecureUrl(url, isLoopbackHost(url.hostname))) {
      faults.push(at('url', 'must be https unless loopback'));
    }
    if (url.pathname !== '/' || url.search !== '') faults.push(at('url', 'must be an origin'));
  }
  const canLogIn =
    auth?.mode === 'builtin' || (auth?.mode === 'external' && auth.login !== undefined);
  if (auth !== undefined && !canLogIn) {
    faults.push(at('access', 'operators need a login: auth.login, or auth.mode builtin'));
  }
  return faults;
}

function checkAuth({ auth, connections }: Parsed, development: boolean): string[] {
  if (auth === undefined) return [];
  if (auth.mode === 'none') {
    return development
      ? []
      : [fault(['auth', 'mode'], 'none is for development: publicUrl must be loopback')];
  }
  if (auth.mode === 'builtin') return checkBuiltin(auth.builtin, development);
  const faults = [
    ...checkSecure(auth.issuer, ['auth', 'issuer'], development),
    ...checkSecure(auth.jwksUri, ['auth', 'jwksUri'], development),
    ...checkSecret(auth.login?.clientSecret, ['auth', 'login', 'clientSecret'], development),
  ];
  // Whoever opens a link has to prove who they are (invariant 8).
  if (auth.login === undefined && [...connections.values()].some((entry) => entry !== undefined)) {
    faults.push(fault(['auth', 'login'], 'is required because there are connections'));
  }
  return faults;
}

type Builtin = Extract<File['auth'], { mode: 'builtin' }>['builtin'];

function checkBuiltin({ login, clients }: Builtin, development: boolean): string[] {
  const base = ['auth', 'builtin'];
  const faults: string[] = [];
  if (login.type === 'oidc') {
    faults.push(
      ...checkSecure(login.issuer, [...base, 'login', 'issuer'], development),
      ...checkSecret(login.clientSecret, [...base, 'login', 'clientSecret'], development),
    );
  } else if (!development) {
    faults.push(
      fault(
        [...base, 'login', 'type'],
        'development is for development: publicUrl must be loopback',
      ),
    );
  }
  const seen = new Set<string>();
  for (const [index, client] of clients.entries()) {
    const path = [...base, 'clients', index];
    const { clientId, clientSecret, jwksUri, redirectUris, grantTypes } = client;
    if (seen.has(clientId))
      faults.push(fault([...path, 'clientId'], 'is taken by an earlier client'));
    seen.add(clientId);
    faults.push(
      ...checkSecure(jwksUri, [...path, 'jwksUri'], development),
      ...checkSecret(clientSecret, [...path, 'clientSecret'], development),
    );
    if (clientSecret !== undefined && jwksUri !== undefined) {
      faults.push(fault(path, 'has clientSecret and jwksUri; give one or the other'));
    }
    const open = clientSecret === undefined && jwksUri === undefined;
    if (grantTypes.includes('client_credentials') && open) {
      faults.push(fault(path, 'needs clientSecret or jwksUri for client_credentials'));
    }
    if (grantTypes.includes('authorization_code') && redirectUris.length === 0) {
      faults.push(fault([...path, 'redirectUris'], 'is required for authorization_code'));
    }
    for (const [at, uri] of redirectUris.entries()) {
      // RFC 8252, 7.3: plain http is for the person's own machine.
      const url = new URL(uri);
      if (url.protocol === 'http:' && !isLoopbackHost(url.hostname)) {
        faults.push(fault([...path, 'redirectUris', at], 'must be https unless loopback'));
      }
    }
  }
  return faults;
}

function checkUpstream(upstream: Upstream, path: Path, development: boolean): string[] {
  const faults: string[] = [];
  const host = new URL(upstream.url).hostname;
  const allowed = upstream.allowPrivateNetwork || (development && isLoopbackHost(host));
  if (!allowed && isPrivateHost(host)) {
    faults.push(
      fault([...path, 'url'], 'leads to a private address; allowPrivateNetwork: true permits that'),
    );
  }
  const seen = new Set<string>();
  for (const name of Object.keys(upstream.headers)) {
    if (seen.has(name.toLowerCase()))
      faults.push(fault([...path, 'headers', name], 'is there twice'));
    seen.add(name.toLowerCase());
  }
  return faults;
}

function checkConnection(connection: Connection, path: Path, development: boolean): string[] {
  const secretOf = (clientId: string | undefined, secret: string | undefined): string[] => [
    ...checkSecret(secret, [...path, 'clientSecret'], development),
    ...(secret !== undefined && clientId === undefined
      ? [fault(path, 'has a clientSecret without clientId')]
      : []),
  ];
  switch (connection.type) {
    case 'oauth':
      return checkOAuth(connection, path, development);
    case 'secret':
      return checkSecure(connection.verify?.url, [...path, 'verify', 'url'], development);
    case 'mcp':
      return secretOf(connection.clientId, connection.clientSecret);
    case 'token-exchange':
      return [
        ...checkSecure(connection.tokenEndpoint, [...path, 'tokenEndpoint'], development),
        ...secretOf(connection.clientId, connection.clientSecret),
        ...(connection.audience === undefined && connection.resource === undefined
          ? [fault(path, 'needs audience or resource')]
          : []),
      ];
  }
}

function checkOAuth(
  connection: Extract<Connection, { type: 'oauth' }>,
  path: Path,
  development: boolean,
): string[] {
  const { issuer, authorizationEndpoint, tokenEndpoint, revocationEndpoint } = connection;
  const faults = [
    ...checkSecure(issuer, [...path, 'issuer'], development),
    ...checkSecure(authorizationEndpoint, [...path, 'authorizationEndpoint'], development),
    ...checkSecure(tokenEndpoint, [...path, 'tokenEndpoint'], development),
    ...checkSecure(revocationEndpoint, [...path, 'revocationEndpoint'], development),
    ...checkSecret(connection.clientSecret, [...path, 'clientSecret'], development),
  ];
  const endpoints = [authorizationEndpoint, tokenEndpoint, revocationEndpoint];
  if (issuer !== undefined) {
    if (endpoints.some((endpoint) => endpoint !== undefined)) {
      faults.push(fault(path, 'has issuer and endpoints; give one or the other'));
    }
  } else if (authorizationEndpoint === undefined || tokenEndpoint === undefined) {
    faults.push(fault(path, 'needs issuer, or authorizationEndpoint and tokenEndpoint'));
  }
  return faults;
}

/** Names are not secret: they are in every URL. */
function checkReferences({ upstreams, connections }: Parsed): string[] {
  const faults: string[] = [];
  const names = new Set<string>();
  const ownOAuth = new Set<string>();
  for (const [index, upstream] of upstreams.entries()) {
    if (upstream === undefined) continue;
    if (names.has(upstream.name))
      faults.push(fault(['upstreams', index, 'name'], 'is taken by an earlier upstream'));
    names.add(upstream.name);
    if (upstream.connection === undefined) continue;
    if (!connections.has(upstream.connection)) {
      const known = [...connections.keys()].join(', ') || 'none';
      faults.push(
        fault(['upstreams', index, 'connection'], `is not in connections (there: ${known})`),
      );
      continue;
    }
    if (connections.get(upstream.connection)?.type === 'mcp') {
      // Its token names one resource (RFC 8707); a second upstream would get the first one's.
      if (ownOAuth.has(upstream.connection)) {
        faults.push(
          fault(['upstreams', index, 'connection'], 'is of type mcp and taken by another upstream'),
        );
      }
      ownOAuth.add(upstream.connection);
    }
    const header = connections.get(upstream.connection)?.inject.header.toLowerCase();
    const clash = Object.keys(upstream.headers).find((name) => name.toLowerCase() === header);
    if (clash !== undefined) {
      faults.push(fault(['upstreams', index, 'headers', clash], 'is what the connection injects'));
    }
  }
  if (upstreams.some((upstream) => upstream === undefined)) return faults;
  for (const [name, connection] of connections) {
    if (connection?.type === 'mcp' && !ownOAuth.has(name)) {
      faults.push(fault(['connections', name], 'is of type mcp, and no upstream uses it'));
    }
  }
  return faults;
}
