import { readFileSync, writeFileSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { ConfigError, loadSettings, parseConfig } from './config.ts';
import { jsonSchemaText } from './config/json-schema.ts';

const root = join(import.meta.dirname, '..', '..', '..');

/** Production: https, an identity provider, one upstream with a connection. */
const valid = () => ({
  publicUrl: 'https://mcp.example.com',
  auth: {
    mode: 'external',
    issuer: 'https://idp.example.com/realms/acme',
    login: { clientId: 'viaduct', clientSecret: 'k3jh45kjh34k5jh' },
  },
  upstreams: [
    { name: 'files', url: 'https://files.example.com/mcp', connection: 'acme-drive' },
  ] as Record<string, unknown>[],
  connections: {
    'acme-drive': { type: 'oauth', issuer: 'https://auth.acme.example', clientId: 'c' },
  } as Record<string, Record<string, unknown>>,
});
const development = () => ({ publicUrl: 'http://localhost:8080', auth: { mode: 'none' } });

function faults(value: unknown, env: NodeJS.ProcessEnv = {}): readonly string[] {
  try {
    parseConfig(typeof value === 'string' ? value : stringify(value), env);
    return [];
  } catch (error) {
    if (error instanceof ConfigError) return error.faults;
    throw error;
  }
}
const merged = (value: object, more: object) => ({ ...value, ...more });
const upstreamFaults = (more: object) =>
  faults(merged(valid(), { upstreams: [{ ...valid().upstreams[0], ...more }] }));
const connectionFaults = (more: object) =>
  faults(
    merged(valid(), {
      connections: { 'acme-drive': { ...valid().connections['acme-drive'], ...more } },
    }),
  );

describe('a valid file', () => {
  it('gets the defaults of design section 5', () => {
    const config = parseConfig(stringify(valid()), {});
    expect(config).toMatchObject({
      publicUrl: 'https://mcp.example.com',
      development: false,
      allowedOrigins: [],
      trustProxy: 1,
      auth: {
        mode: 'external',
        groupsClaim: 'groups',
        baseScopes: ['mcp:tools'],
        clockSkewSeconds: 30,
        streamGraceSeconds: 5,
      },
      upstreams: [
        {
          protocol: 'auto',
          headers: {},
          allowPrivateNetwork: false,
          timeoutSeconds: 300,
          scopes: [],
          tools: {},
        },
      ],
      sessions: {
        ttlSeconds: 3600,
        eventLogMaxLen: 1000,
        streamAfterMs: 250,
        keepAliveSeconds: 15,
      },
      elicitation: { ttlSeconds: 600, connectWaitSeconds: 20 },
      vault: { idleDays: 90 },
      limits: {
        user: { points: 600, seconds: 60 },
        userTool: { points: 120, seconds: 60 },
        userElicitations: { points: 20, seconds: 600 },
        address: { points: 300, seconds: 60 },
        onStoreFailure: 'local',
      },
      body: { maxBytes: 4_194_304 },
      drain: { delaySeconds: 5, timeoutSeconds: 60 },
      audit: { sinks: [{ type: 'stdout' }] },
    });
    expect(config.connections['acme-drive']).toMatchObject({
      name: 'acme-drive',
      displayName: 'acme-drive',
      inject: { header: 'Authorization', value: 'Bearer {{accessToken}}' },
    });
  });

  it('is frozen to the bottom', () => {
    const config = parseConfig(stringify(valid()), {});
    expect(() => {
      (config.upstreams[0] as { url: string }).url = 'x';
    }).toThrow(TypeError);
    expect(Object.isFrozen(config.limits.user)).toBe(true);
    expect(Object.isFrozen(config.auth.baseScopes)).toBe(true);
  });

  it('finds only configured connections, whatever name a URL brings', () => {
    const { connections } = parseConfig(stringify(valid()), {});
    for (const name of ['constructor', '__proto__', 'toString']) {
      expect(connections[name]).toBeUndefined();
    }
  });

  it('reads JSON, and takes a blank value as unset', () => {
    const file = {
      ...valid(),
      trustProxy: null,
      auth: { ...valid().auth, groupsClaim: '  ', jwksUri: '' },
    };
    expect(parseConfig(JSON.stringify(file), {})).toMatchObject({
      trustProxy: 1,
      auth: { groupsClaim: 'groups' },
    });
    expect(parseConfig(JSON.stringify(file), {}).auth).not.toHaveProperty('jwksUri');
  });

  it.each([
    ['https://mcp.example.com/', 'https://mcp.example.com', false],
    ['HTTPS://MCP.Example.com:443', 'https://mcp.example.com', false],
    ['http://localhost:8080/', 'http://localhost:8080', true],
    ['http://viaduct.localhost', 'http://viaduct.localhost', true],
    ['http://127.8.9.1:1', 'http://127.8.9.1:1', true],
    ['http://[::1]:8080', 'http://[::1]:8080', true],
    ['https://localhost.example.com', 'https://localhost.example.com', false],
  ])('publicUrl %s is %s, development %s', (publicUrl, normal, dev) => {
    expect(parseConfig(stringify(merged(valid(), { publicUrl })), {})).toMatchObject({
      publicUrl: normal,
      development: dev,
    });
  });

  it('normalizes allowed origins', () => {
    const allowedOrigins = [
      'HTTPS://App.Example.com:443',
      'http://localhost:6274',
      'vscode-webview://Abc',
    ];
    expect(parseConfig(stringify(merged(valid(), { allowedOrigins })), {}).allowedOrigins).toEqual([
      'https://app.example.com',
      'http://localhost:6274',
      'vscode-webview://abc',
    ]);
  });

  it('lets loopback be plain http in development', () => {
    const file = {
      publicUrl: 'http://localhost:8080',
      auth: {
        mode: 'external',
        issuer: 'http://127.0.0.1:4000',
        login: { clientId: 'v', clientSecret: 'secret' },
      },
      upstreams: [{ name: 'a', url: 'http://127.0.0.1:3000/mcp', connection: 'tp' }],
      connections: { tp: { type: 'oauth', issuer: 'http://localhost:5000', clientId: 'c' } },
    };
    expect(faults(file)).toEqual([]);
  });
});

describe('${NAME}', () => {
  it('takes environment variables inside strings, once, and $${ stays', () => {
    const file = valid();
    file.connections['acme-drive'] = {
      ...file.connections['acme-drive'],
      clientSecret: 'a-${A}-${B}-$${C}',
    };
    const config = parseConfig(stringify(file), { A: 'one-${B}', B: 'two' });
    expect(config.connections['acme-drive']).toMatchObject({ clientSecret: 'a-one-${B}-two-${C}' });
  });

  it.each([
    ['${NOPE}', 'environment variable NOPE is not set'],
    ['${BLANK}', 'environment variable BLANK is not set'],
    ['${A:-x}', 'has a ${…} that is not the name of an environment variable'],
    ['${A', 'has a ${…} that is not the name of an environment variable'],
  ])('%s: %s', (clientSecret, message) => {
    const file = valid();
    file.connections['acme-drive'] = { ...file.connections['acme-drive'], clientSecret };
    expect(faults(file, { BLANK: ' ', A: 'set' })).toEqual([
      `connections.acme-drive.clientSecret: ${message}`,
    ]);
  });

  it('never shows what came in', () => {
    const secret = 'sk_live_51HxSECRETvalue';
    const file = {
      publicUrl: '${S}',
      allowedOrigins: ['${S}'],
      auth: { mode: '${S}', issuer: '${S}' },
      upstreams: [
        {
          name: '${S}',
          url: '${S}',
          connection: '${S}',
          protocol: '${S}',
          timeoutSeconds: '${S}',
          headers: { 'X-A': '${S}\n' },
        },
      ],
      connections: {
        a: {
          type: 'oauth',
          issuer: '${S}',
          clientId: '${S}',
          scopes: ['${S} x'],
          inject: { value: '${S}' },
        },
      },
      body: { maxBytes: '${S}' },
      limits: { onStoreFailure: '${S}' },
    };
    const lines = faults(file, { S: secret });
    expect(lines.length).toBeGreaterThan(8);
    expect(lines.join('\n')).not.toContain('SECRET');
  });
});

describe('faults', () => {
  it('come all at once, each one line with its path', () => {
    const file = {
      publicUrl: 'https://mcp.example.com/base',
      trustProxi: 1,
      auth: { mode: 'external', issuer: 'https://idp.example.com' },
      upstreams: [
        { name: 'files', url: 'ftp://x', tools: { 'delete_*': { scopes: ['a b'] } } },
        { name: 'files', url: 'https://x.example/mcp', connection: 'nope', wrong: 1 },
      ],
      connections: { Bad: { type: 'oauth' } },
      limits: { user: { points: 0 } },
    };
    const lines = faults(file);
    expect(lines).toEqual(
      expect.arrayContaining([
        'publicUrl: must be an origin only: no path, query or fragment',
        'trustProxi: unknown key',
        'upstreams[0].url: must be an absolute http(s) URL without user name or password',
        expect.stringMatching(
          /^upstreams\[0\]\.tools\["delete_\*"\]\.scopes\[0\]: must be one scope/,
        ),
        'upstreams[1].wrong: unknown key',
        'connections.Bad: must be 1 to 32 of a-z, 0-9 and "-", beginning with a letter',
        'connections.Bad.clientId: is required',
        'limits.user.points: must be at least 1',
      ]),
    );
    for (const line of lines) expect(line).not.toMatch(/\n/);
  });

  it.each<[string, object, string]>([
    [
      'http outside development',
      { publicUrl: 'http://mcp.example.com' },
      'publicUrl: must be https unless loopback',
    ],
    [
      'user name in publicUrl',
      { publicUrl: 'https://a:b@x.example' },
      'publicUrl: must be an absolute http(s) URL without user name or password',
    ],
    [
      'query in publicUrl',
      { publicUrl: 'https://x.example/?' },
      'publicUrl: must be an origin only: no path, query or fragment',
    ],
    ['no publicUrl', { publicUrl: undefined }, 'publicUrl: is required'],
    [
      'wildcard origin',
      { allowedOrigins: ['*'] },
      'allowedOrigins[0]: must be one origin, e.g. https://app.example.com',
    ],
    [
      'null origin',
      { allowedOrigins: ['null'] },
      'allowedOrigins[0]: must be one origin, e.g. https://app.example.com',
    ],
    [
      'origin with a path',
      { allowedOrigins: ['https://a.example/x'] },
      'allowedOrigins[0]: must be one origin, e.g. https://app.example.com',
    ],
    [
      'http origin',
      { allowedOrigins: ['http://intranet'] },
      'allowedOrigins[0]: must be https unless loopback',
    ],
    ['trust all proxies', { trustProxy: true }, 'trustProxy: must be a number'],
    ['no auth', { auth: undefined }, 'auth: is required'],
    [
      'auth none in production',
      { auth: { mode: 'none' } },
      'auth.mode: none is for development: publicUrl must be loopback',
    ],
    [
      'auth none with an issuer',
      { auth: { mode: 'none', issuer: 'https://x.example' } },
      'auth.issuer: unknown key',
    ],
    [
      'unknown mode',
      { auth: { mode: 'magic' } },
      'auth.mode: must be one of external, builtin, none',
    ],
    [
      'http issuer',
      { auth: { ...valid().auth, issuer: 'http://idp.example.com' } },
      'auth.issuer: must be https',
    ],
    [
      'issuer with a query',
      { auth: { ...valid().auth, issuer: 'https://idp.example.com/?a' } },
      'auth.issuer: an issuer has no query (RFC 8414, section 2)',
    ],
    [
      'wildcard scope',
      { auth: { ...valid().auth, baseScopes: ['*'] } },
      'auth.baseScopes[0]: must be one scope: no spaces, quotes or backslashes, and no wildcards',
    ],
    [
      'offline_access',
      { auth: { ...valid().auth, baseScopes: ['offline_access'] } },
      'auth.baseScopes[0]: is not a requirement of a resource (MCP 2026-07-28, authorization, Refresh Tokens)',
    ],
    [
      'leeway of minutes',
      { auth: { ...valid().auth, clockSkewSeconds: 900 } },
      'auth.clockSkewSeconds: must be at most 300',
    ],
    [
      'no login for people',
      { auth: { ...valid().auth, login: undefined } },
      'auth.login: is required because there are connections',
    ],
    [
      'sample secret',
      { auth: { ...valid().auth, login: { clientId: 'v', clientSecret: 'changeme' } } },
      'auth.login.clientSecret: is a sample value',
    ],
    [
      'short secret',
      { auth: { ...valid().auth, login: { clientId: 'v', clientSecret: 'k3jh4' } } },
      'auth.login.clientSecret: is too short for a secret',
    ],
    [
      'half a number',
      { sessions: { ttlSeconds: 1.5 } },
      'sessions.ttlSeconds: must be a whole number',
    ],
    ['text for a number', { drain: { delaySeconds: '5' } }, 'drain.delaySeconds: must be a number'],
    ['text for a list', { upstreams: 'files' }, 'upstreams: must be a list'],
    ['list for a mapping', { connections: ['a'], upstreams: [] }, 'connections: must be a mapping'],
  ])('%s', (_, more, line) => {
    expect(faults(merged(valid(), more))).toEqual([line]);
  });

  it.each<[object, string]>([
    [{ name: 'my__files' }, 'name: must be 1 to 32 of a-z, 0-9 and "-", beginning with a letter'],
    [{ name: 'Files' }, 'name: must be 1 to 32 of a-z, 0-9 and "-", beginning with a letter'],
    [{ url: '/mcp' }, 'url: must be an absolute http(s) URL without user name or password'],
    [
      { url: 'https://u:p@x.example/mcp' },
      'url: must be an absolute http(s) URL without user name or password',
    ],
    [{ url: 'https://x.example/mcp#a' }, 'url: must have no fragment'],
    [
      { url: 'http://10.1.2.3/mcp' },
      'url: leads to a private address; allowPrivateNetwork: true permits that',
    ],
    [
      { url: 'http://localhost:3000/mcp' },
      'url: leads to a private address; allowPrivateNetwork: true permits that',
    ],
    [
      { url: 'http://[fd00::1]/mcp' },
      'url: leads to a private address; allowPrivateNetwork: true permits that',
    ],
    [
      { url: 'http://[::ffff:127.0.0.1]/mcp' },
      'url: leads to a private address; allowPrivateNetwork: true permits that',
    ],
    [
      { url: 'http://0x7f.1/mcp' },
      'url: leads to a private address; allowPrivateNetwork: true permits that',
    ],
    [{ protocol: 'stdio' }, 'protocol: must be one of auto, legacy, modern'],
    [{ connection: 'nope' }, 'connection: is not in connections (there: acme-drive)'],
    [{ timeoutSeconds: 0 }, 'timeoutSeconds: must be at least 0.001'],
    [
      { scopes: ['files:*'] },
      'scopes[0]: must be one scope: no spaces, quotes or backslashes, and no wildcards',
    ],
    [{ headers: { Host: 'x' } }, 'headers.Host: name is a header that the gateway sets itself'],
    [
      { headers: { 'transfer-encoding': 'x' } },
      'headers.transfer-encoding: name is a header that the gateway sets itself',
    ],
    [
      { headers: { 'Mcp-Session-Id': 'x' } },
      'headers.Mcp-Session-Id: name is a header that the gateway sets itself',
    ],
    [{ headers: { 'X Team': 'x' } }, 'headers["X Team"]: name must be an HTTP header name'],
    [{ headers: { 'X-Team': 'a\r\nb' } }, 'headers.X-Team: must be one line of text'],
    [{ headers: { 'X-A': '1', 'x-a': '2' } }, 'headers.x-a: is there twice'],
    [
      { headers: { authorization: 'Basic x' } },
      'headers.authorization: is what the connection injects',
    ],
  ])('upstream %j', (more, line) => {
    expect(upstreamFaults(more)).toEqual([`upstreams[0].${line}`]);
  });

  it.each<[object, string]>([
    [{ issuer: 'http://auth.acme.example' }, '.issuer: must be https'],
    [{ issuer: undefined }, ': needs issuer, or authorizationEndpoint and tokenEndpoint'],
    [{ tokenEndpoint: 'https://x.example/t' }, ': has issuer and endpoints; give one or the other'],
    [{ clientId: undefined }, '.clientId: is required'],
    [
      { scopes: ['*'] },
      '.scopes[0]: must be one scope: no spaces, quotes or backslashes, and no wildcards',
    ],
    [
      { inject: { header: 'Content-Length' } },
      '.inject.header: is a header that the gateway sets itself',
    ],
    [{ inject: { value: 'Bearer token' } }, '.inject.value: must contain {{accessToken}}'],
    [
      { inject: { value: '{{accessToken}} {{apiKey}}' } },
      '.inject.value: knows no placeholder but {{accessToken}}',
    ],
    [{ clientSecret: '<your secret>' }, '.clientSecret: is a sample value'],
    [{ type: 'magic' }, '.type: must be one of oauth, secret, mcp, token-exchange'],
  ])('connection %j', (more, line) => {
    expect(connectionFaults(more)).toEqual([`connections.acme-drive${line}`]);
  });

  const secret = {
    type: 'secret',
    fields: [{ name: 'apiKey', label: 'API key', secret: true }],
    inject: { header: 'X-Api-Key', value: '{{apiKey}}' },
  };
  const exchange = {
    type: 'token-exchange',
    tokenEndpoint: 'https://idp.example.com/token',
    audience: 'internal',
  };
  it.each<[object, string]>([
    [{ ...secret, fields: [] }, '.fields: must have at least 1 entry'],
    [
      { ...secret, fields: [...secret.fields, ...secret.fields] },
      '.fields[1].name: is there twice',
    ],
    [
      { ...secret, inject: { header: 'X-Api-Key', value: 'fixed' } },
      '.inject.value: must contain {{apiKey}}',
    ],
    [
      { ...secret, inject: { header: 'X-Api-Key', value: '{{accessToken}}' } },
      '.inject.value: knows no placeholder but {{apiKey}}',
    ],
    [{ ...secret, verify: { url: 'http://weather.example/me' } }, '.verify.url: must be https'],
    [{ ...secret, clientId: 'c' }, '.clientId: unknown key'],
    [{ type: 'mcp', clientSecret: 'kjh345kjh345' }, ': has a clientSecret without clientId'],
    [{ type: 'mcp', issuer: 'https://x.example' }, '.issuer: unknown key'],
    [{ ...exchange, audience: undefined }, ': needs audience or resource'],
    [{ ...exchange, tokenEndpoint: undefined }, '.tokenEndpoint: is required'],
    [
      { ...exchange, tokenEndpoint: 'http://idp.example.com/token' },
      '.tokenEndpoint: must be https',
    ],
    [{ ...exchange, clientSecret: 'kjh345kjh345' }, ': has a clientSecret without clientId'],
  ])('connection of another type %j', (connection, line) => {
    expect(faults(merged(valid(), { connections: { 'acme-drive': connection } }))).toEqual([
      `connections.acme-drive${line}`,
    ]);
  });

  it('a connection of type mcp belongs to one upstream', () => {
    const upstream = (name: string) => ({
      name,
      url: `https://${name}.example/mcp`,
      connection: 'own',
    });
    const connections = { own: { type: 'mcp' } };
    const of = (...names: string[]) =>
      faults(merged(valid(), { upstreams: names.map(upstream), connections }));
    expect(of('one')).toEqual([]);
    expect(of('one', 'two')).toEqual([
      'upstreams[1].connection: is of type mcp and taken by another upstream',
    ]);
    expect(of()).toEqual(['connections.own: is of type mcp, and no upstream uses it']);
  });

  it.each<[object, string]>([
    [{}, '.login: is required'],
    [
      { login: { type: 'development' } },
      '.login.type: development is for development: publicUrl must be loopback',
    ],
    [
      { login: { type: 'oidc', issuer: 'http://idp.example', clientId: 'v' } },
      '.login.issuer: must be https',
    ],
    [
      { clients: [{ clientId: 'a', grantTypes: ['client_credentials'] }] },
      '.clients[0]: needs clientSecret or jwksUri for client_credentials',
    ],
    [
      { clients: [{ clientId: 'a' }] },
      '.clients[0].redirectUris: is required for authorization_code',
    ],
    [
      { clients: [{ clientId: 'a', redirectUris: ['http://app.example/cb'] }] },
      '.clients[0].redirectUris[0]: must be https unless loopback',
    ],
    [
      { clients: [{ clientId: 'a', redirectUris: ['javascript:x'] }] },
      '.clients[0].redirectUris[0]: has a scheme that no browser may be sent to',
    ],
    [
      {
        clients: [
          { clientId: 'a', redirectUris: ['https://a.example/cb'], clientSecret: 'secret' },
        ],
      },
      '.clients[0].clientSecret: is a sample value',
    ],
    [
      { clients: [{ clientId: 'a', redirectUris: ['https://a.example/cb'], scopes: ['mcp:*'] }] },
      '.clients[0].scopes[0]: must be one scope: no spaces, quotes or backslashes, and no wildcards',
    ],
    [{ refreshGraceSeconds: 1000 }, '.refreshGraceSeconds: must be at most 300'],
  ])('auth.builtin %j', (more, line) => {
    const login = { type: 'oidc', issuer: 'https://idp.example', clientId: 'viaduct' };
    const { auth: _auth, ...rest } = valid();
    const builtin = Object.keys(more).length === 0 ? {} : { login, ...more };
    expect(faults({ ...rest, auth: { mode: 'builtin', builtin } })).toEqual([
      `auth.builtin${line}`,
    ]);
  });

  it('keep the index of the file when an earlier entry is refused', () => {
    const sinks = [{ type: 'webhook', url: 'x', secret: 'y' }, { type: 'nowhere' }];
    const [first, second, ...more] = faults(merged(valid(), { audit: { sinks } }));
    expect(first).toMatch(/^audit\.sinks\[0\]\.url/);
    expect(second).toMatch(/^audit\.sinks\[1\]/);
    expect(more).toEqual([]);
  });

  it.each([
    ['a: [', /^file: line \d+, column \d+: /],
    ['publicUrl: a\npublicUrl: b', /^file: line 2, column 1: Map keys must be unique$/],
    ['- a', /^file: must be a mapping/],
    ['', /^file: must be a mapping/],
  ])('%j is no file', (text, line) => {
    expect(faults(text)).toEqual([expect.stringMatching(line)]);
  });
});

describe('the environment', () => {
  const KEY = Buffer.from(
    '3f8a1c5e7b92d04466a1f0c3b8d27e915c4da6f81be30792ac55d1e8f7904b6d',
    'hex',
  ).toString('base64');
  const path = join(mkdtempSync(join(tmpdir(), 'viaduct-config-')), 'viaduct.yaml');
  const load = (
    env: NodeJS.ProcessEnv,
    file: unknown = valid(),
    service: 'gateway' | 'worker' = 'gateway',
  ) => {
    writeFileSync(path, stringify(file));
    return loadSettings(
      {
        VIADUCT_CONFIG: path,
        REDIS_URL: 'redis://localhost',
        VIADUCT_SECRET_KEYS: `k1:${KEY}`,
        ...env,
      },
      service,
    );
  };
  const envFaults = (env: NodeJS.ProcessEnv, file?: unknown) => {
    try {
      load(env, file);
      return [];
    } catch (error) {
      return (error as ConfigError).faults;
    }
  };

  it('has the defaults of design section 4', () => {
    const { env } = load({ PORT: ' ', LOG_LEVEL: '' });
    expect(env).toMatchObject({
      host: '0.0.0.0',
      port: 8080,
      adminPort: 9090,
      logLevel: 'info',
      secretKeysGenerated: false,
    });
    expect(env.podId).toMatch(new RegExp(`^${env.podName.replaceAll('.', '\\.')}-[0-9a-f]{8}$`));
    expect(load({ POD_NAME: 'p1' }).env.podId).not.toBe(load({ POD_NAME: 'p1' }).env.podId);
  });

  it('reads several keys, the first one first', () => {
    const other = Buffer.from(KEY, 'base64').reverse().toString('base64url');
    const { secretKeys } = load({ VIADUCT_SECRET_KEYS: `2026-01:${other}, k1:${KEY}` }).env;
    expect(secretKeys.map(({ kid }) => kid)).toEqual(['2026-01', 'k1']);
    expect(secretKeys[1]?.key.toString('base64')).toBe(KEY);
  });

  it('makes up a key in development only', () => {
    const { env } = load({ VIADUCT_SECRET_KEYS: undefined }, development());
    expect(env.secretKeysGenerated).toBe(true);
    expect(env.secretKeys[0]?.key).toHaveLength(32);
    expect(envFaults({ VIADUCT_SECRET_KEYS: '' })).toEqual([
      expect.stringMatching(/^VIADUCT_SECRET_KEYS: is required because publicUrl is not loopback/),
    ]);
  });

  it.each([
    [{ REDIS_URL: '' }, /^REDIS_URL: is required/],
    [{ REDIS_URL: 'http://x' }, /^REDIS_URL: must be redis:/],
    [{ REDIS_URL: 'redis+sentinel://a:1,b:2' }, /^REDIS_URL: a Sentinel URL ends in/],
    [{ PORT: '80a' }, /^PORT: must be a port number/],
    [{ PORT: '70000' }, /^PORT: must be a port number/],
    [{ PORT: '9090' }, /^ADMIN_PORT: must differ from PORT$/],
    [{ HOST: 'a b' }, /^HOST: /],
    [{ POD_NAME: 'a|b' }, /^POD_NAME: /],
    [{ LOG_LEVEL: 'loud' }, /^LOG_LEVEL: must be one of trace, debug/],
    [{ VIADUCT_SECRET_KEYS: 'nokid' }, /^VIADUCT_SECRET_KEYS: key 1 must be kid:base64/],
    [
      { VIADUCT_SECRET_KEYS: `a:${Buffer.alloc(16, 7).toString('base64')}` },
      /key 1 has 16 bytes and needs 32$/,
    ],
    [{ VIADUCT_SECRET_KEYS: `a:${Buffer.alloc(32).toString('base64')}` }, /key 1 is not random/],
    [
      {
        VIADUCT_SECRET_KEYS: `a:${Buffer.from(Array.from({ length: 32 }, (_, i) => i)).toString('base64')}`,
      },
      /key 1 is not random/,
    ],
    [
      {
        VIADUCT_SECRET_KEYS: `a:${Buffer.from('this-is-a-sample-key-change-it!!').toString('base64')}`,
      },
      /key 1 is not random/,
    ],
    [
      {
        VIADUCT_SECRET_KEYS: `a:${KEY},a:${Buffer.from(KEY, 'base64').reverse().toString('base64')}`,
      },
      /key 2 repeats a key id$/,
    ],
    [{ VIADUCT_SECRET_KEYS: `a:${KEY},b:${KEY}` }, /key 2 repeats a key$/],
  ])('%j is refused', (env, line) => {
    const lines = envFaults(env);
    expect(lines).toEqual([expect.stringMatching(line)]);
    expect(lines.join()).not.toContain(KEY);
  });

  it('adds its faults to those of the file', () => {
    const lines = envFaults({ PORT: 'x' }, { ...valid(), trustProxy: -1 });
    expect(lines).toEqual([
      'trustProxy: must be at least 0',
      'PORT: must be a port number, 0 to 65535',
    ]);
  });

  it('ignores PORT in the worker', () => {
    expect(load({ PORT: 'x', ADMIN_PORT: '8080' }, valid(), 'worker').env).toMatchObject({
      port: 0,
      adminPort: 8080,
    });
  });

  it('says which file it cannot read', () => {
    expect(envFaults({ VIADUCT_CONFIG: '/nonexistent/v.yaml' })).toEqual([
      'VIADUCT_CONFIG: cannot read /nonexistent/v.yaml (ENOENT)',
    ]);
  });
});

describe('what ships beside it', () => {
  it('viaduct.schema.json is that of the code (npm run schema)', () => {
    expect(readFileSync(join(root, 'viaduct.schema.json'), 'utf8')).toBe(jsonSchemaText());
  });

  it('viaduct.example.yaml is valid and shows every key', () => {
    const text = readFileSync(join(root, 'viaduct.example.yaml'), 'utf8');
    const names = [...text.matchAll(/\$\{([A-Z_]+)\}/g)].map((match) => [match[1], 'q8w7e6r5t4z3']);
    const config = parseConfig(text, Object.fromEntries(names) as NodeJS.ProcessEnv);
    expect(config.upstreams.length).toBeGreaterThan(0);
    const schema = JSON.parse(jsonSchemaText()) as { properties: Record<string, object> };
    const keys = (node: unknown): string[] =>
      typeof node === 'object' && node !== null
        ? Object.entries(node).flatMap(([key, value]) =>
            key === 'properties' ? [...Object.keys(value as object), ...keys(value)] : keys(value),
          )
        : [];
    for (const key of new Set(keys(schema))) expect(text, key).toMatch(new RegExp(`\\b${key}:`));
  });
});
