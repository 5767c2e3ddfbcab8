/**
 * Shape and defaults of `viaduct.yaml` (design, section 5), one schema per section. What needs a second
 * section to judge (https outside development, references, collisions) is in checks.ts. The descriptions
 * become the hover texts of editors through viaduct.schema.json.
 */
import { z } from 'zod';
import { normalizeOrigin, parseHttpUrl } from './urls.ts';

const refuse = (ctx: z.RefinementCtx, message: string): typeof z.NEVER => {
  ctx.addIssue({ code: 'custom', message });
  return z.NEVER;
};

const text = () => z.string().trim().min(1);
export const name = z.string().regex(/^[a-z][a-z0-9-]{0,31}$/, {
  error: 'must be 1 to 32 of a-z, 0-9 and "-", beginning with a letter',
});
const seconds = (minimum: number, maximum = 31_536_000) => z.number().min(minimum).max(maximum);
const wholeSeconds = (maximum = 31_536_000) => z.int().min(1).max(maximum);

const httpUrl = () =>
  z.string().transform((value, ctx) => {
    const url = parseHttpUrl(value.trim());
    if (url === undefined)
      return refuse(ctx, 'must be an absolute http(s) URL without user name or password');
    if (url.hash !== '') return refuse(ctx, 'must have no fragment');
    return value.trim();
  });

/** Compared as a string with the `iss` of tokens and metadata, so it is kept exactly as written. */
const issuer = () =>
  httpUrl().transform((value, ctx) =>
    value.includes('?') ? refuse(ctx, 'an issuer has no query (RFC 8414, section 2)') : value,
  );

/** One scope-token of RFC 6749, 3.3, less `*`: a wildcard in a challenge asks the user for everything. */
const scope = () =>
  z.string().regex(/^[\x21\x23-\x29\x2B-\x5B\x5D-\x7E]{1,256}$/, {
    error: 'must be one scope: no spaces, quotes or backslashes, and no wildcards',
  });
/** Scopes that Viaduct itself asks for in challenges. */
const ownScope = () =>
  scope().refine((value) => value !== 'offline_access', {
    error: 'is not a requirement of a resource (MCP 2026-07-28, authorization, Refresh Tokens)',
  });

/** Set by the gateway on each leg, or meaningful for one connection only (RFC 9110, 7.6.1). */
const GATEWAY_HEADERS =
  /^(connection|keep-alive|proxy-(connection|authenticate|authorization)|te|trailer|transfer-encoding|upgrade|host|content-length|content-type|content-encoding|accept|accept-encoding|expect|last-event-id|mcp-.*)$/i;
const headerName = () =>
  z
    .string()
    .regex(/^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$/, { error: 'must be an HTTP header name' })
    .refine((value) => !GATEWAY_HEADERS.test(value), {
      error: 'is a header that the gateway sets itself',
    });
const HEADER_VALUE = /^[\t\x20-\x7E\x80-\xFF]*$/;
const headerValue = () =>
  z.string().trim().regex(HEADER_VALUE, { error: 'must be one line of text' });

const publicUrl = z
  .string()
  .transform((value, ctx) => {
    const url = parseHttpUrl(value.trim());
    if (url === undefined)
      return refuse(ctx, 'must be an absolute http(s) URL without user name or password');
    if (url.pathname !== '/' || url.search !== '' || url.hash !== '' || /[?#]$/.test(value)) {
      return refuse(ctx, 'must be an origin only: no path, query or fragment');
    }
    return url.origin;
  })
  .describe('The only source of external URLs; Host and X-Forwarded-* are never used for that');

const origin = z.string().transform((value, ctx) => {
  const normal = normalizeOrigin(value.trim());
  if (normal === undefined || /^(file|data|javascript|blob):/.test(normal)) {
    return refuse(ctx, 'must be one origin, e.g. https://app.example.com');
  }
  return normal;
});

const authCommon = {
  groupsClaim: text().default('groups').describe('Claim that lists the groups of the user'),
  baseScopes: z
    .array(ownScope())
    .default(['mcp:tools'])
    .describe('The minimum to use an endpoint; the only scopes advertised'),
  clockSkewSeconds: seconds(0, 300).default(30).describe('Leeway for exp, nbf and iat'),
  streamGraceSeconds: seconds(0, 600)
    .default(5)
    .describe('A stream ends this long after its token'),
};

const redirectUri = () =>
  z.string().transform((value, ctx) => {
    const url = URL.parse(value);
    if (url === null || /[\s#]/.test(value))
      return refuse(ctx, 'must be an absolute URI without a fragment');
    if (/^(javascript|data|vbscript|file|blob|about):$/.test(url.protocol)) {
      return refuse(ctx, 'has a scheme that no browser may be sent to');
    }
    return value;
  });

const builtinLogin = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('oidc').describe("The company's OpenID provider"),
    issuer: issuer().describe('Exactly as in the iss claim of its ID tokens'),
    clientId: text(),
    clientSecret: text().exactOptional(),
    scopes: z
      .array(scope())
      .default(['openid', 'profile'])
      .describe('Asked for at login; openid is always among them'),
  }),
  z.strictObject({
    type: z.literal('development').describe('Anybody by any name, on loopback only'),
    groups: z
      .record(text(), z.array(text()))
      .default({})
      .describe('Groups by user name, to try rules with'),
  }),
]);

const builtinClient = z.strictObject({
  clientId: z
    .string()
    .regex(/^[\x21-\x7E]{1,200}$/, { error: 'must be 1 to 200 visible ASCII characters' }),
  name: text().max(100).exactOptional().describe('As people know it; default: the id'),
  clientSecret: text().exactOptional(),
  jwksUri: httpUrl().exactOptional().describe('Keys for private_key_jwt, instead of a secret'),
  redirectUris: z.array(redirectUri()).default([]),
  grantTypes: z
    .array(z.enum(['authorization_code', 'refresh_token', 'client_credentials']))
    .min(1)
    .default(['authorization_code', 'refresh_token']),
  scopes: z.array(ownScope()).exactOptional().describe('The most it can get; default: all'),
});

const builtin = z.strictObject({
  login: builtinLogin,
  dynamicRegistration: z.boolean().default(true).describe('RFC 7591'),
  clientIdMetadataDocuments: z.boolean().default(true).describe('Client ids that are URLs'),
  clients: z.array(builtinClient).default([]).describe('Registered here'),
  accessTokenSeconds: wholeSeconds(86_400).default(600),
  refreshTokenSeconds: wholeSeconds().default(2_592_000),
  refreshGraceSeconds: seconds(0, 300)
    .default(30)
    .describe('So long a rotated token still answers with the same successor'),
});

const auth = z
  .discriminatedUnion('mode', [
    z.strictObject({
      mode: z.literal('external').describe('Access tokens of an identity provider'),
      issuer: issuer().describe('Exactly as in the iss claim of its tokens'),
      jwksUri: httpUrl().exactOptional().describe('Instead of the one found by discovery'),
      audience: z
        .array(text())
        .min(1)
        .exactOptional()
        .describe('Accepted aud values; default: the URL of the very endpoint called'),
      ...authCommon,
      login: z
        .strictObject({ clientId: text(), clientSecret: text().exactOptional() })
        .exactOptional()
        .describe('OpenID Connect client for browser logins on the connection pages'),
    }),
    z.strictObject({
      mode: z.literal('builtin').describe('Access tokens of the authorization server at /oauth'),
      ...authCommon,
      builtin,
    }),
    z.strictObject({
      mode: z.literal('none').describe('A fixed principal, for development on loopback only'),
      ...authCommon,
    }),
  ])
  .describe('Who may call');

export const upstream = z.strictObject({
  name: name.describe('Part of URLs and tool names'),
  url: httpUrl().describe('MCP endpoint'),
  protocol: z.enum(['auto', 'legacy', 'modern']).default('auto'),
  connection: name.exactOptional().describe("The user's credential to send"),
  headers: z.record(headerName(), headerValue()).default({}).describe('Sent with every request'),
  allowPrivateNetwork: z
    .boolean()
    .default(false)
    .describe('May the URL lead to a private address? Loopback may in development'),
  timeoutSeconds: seconds(0.001, 86_400).default(300).describe('Hard cap for one call'),
  scopes: z.array(ownScope()).default([]).describe('Needed for anything on this upstream'),
  tools: z
    .record(
      z.string().min(1).max(128),
      z.strictObject({
        scopes: z.array(ownScope()).default([]),
        groups: z.array(text()).default([]).describe('One of them is enough'),
      }),
    )
    .default({})
    .describe('Needed in addition, by tool name; * stands for any characters'),
});

const TEMPLATE = /\{\{\s*([A-Za-z][A-Za-z0-9_]*)\s*\}\}/g;
/** The placeholders of an `inject.value`; undefined when it has a brace too many. */
export function placeholders(value: string): string[] | undefined {
  if (/\{\{|\}\}/.test(value.replace(TEMPLATE, ''))) return undefined;
  return [...value.matchAll(TEMPLATE)].map((match) => match[1] ?? '');
}
const injectValue = () =>
  headerValue().transform((value, ctx) => {
    const names = placeholders(value);
    if (names?.includes('accessToken') !== true) return refuse(ctx, 'must contain {{accessToken}}');
    if (names.some((found) => found !== 'accessToken')) {
      return refuse(ctx, 'knows no placeholder but {{accessToken}}');
    }
    return value;
  });
const inject = () =>
  z
    .strictObject({
      header: headerName().default('Authorization'),
      value: injectValue().default('Bearer {{accessToken}}'),
    })
    .prefault({})
    .describe('How the upstream gets the token');
const displayName = () =>
  text().max(100).exactOptional().describe('As people know it; default: the name');

const secretField = z.strictObject({
  name: z
    .string()
    .regex(/^[A-Za-z][A-Za-z0-9_]{0,63}$/, {
      error: 'must be 1 to 64 letters, digits and "_", beginning with a letter',
    })
    .refine((value) => !['csrf', 'decision', 'client'].includes(value), {
      error: 'is a name that the page itself uses',
    })
    .describe('Name of the input, and of the placeholder in inject'),
  label: text().max(100).exactOptional().describe('As people know it; default: the name'),
  secret: z.boolean().default(true).describe('false: shown while it is typed'),
});

const secretConnection = z
  .strictObject({
    type: z.literal('secret').describe('Named fields that the user types on a page of ours'),
    displayName: displayName(),
    fields: z.array(secretField).min(1).max(16),
    help: text().max(500).exactOptional().describe('Shown above the fields: where to find them'),
    verify: z
      .strictObject({
        url: httpUrl().describe('Asked with the injected header before anything is stored'),
        expectStatus: z.int().min(200).max(499).default(200),
      })
      .exactOptional(),
    inject: z
      .strictObject({ header: headerName(), value: headerValue() })
      .describe('How the upstream gets it, e.g. { header: X-Api-Key, value: "{{apiKey}}" }'),
  })
  .superRefine(({ fields, inject: { value } }, ctx) => {
    const known = fields.map((field) => field.name);
    const issue = (message: string, path: (string | number)[]) =>
      ctx.addIssue({ code: 'custom', message, path });
    known.forEach((name, index) => {
      if (known.indexOf(name) < index) issue('is there twice', ['fields', index, 'name']);
    });
    if (known.length === 0) return;
    const used = placeholders(value);
    const all = known.map((name) => `{{${name}}}`).join(', ');
    if (used === undefined || used.length === 0) issue(`must contain ${all}`, ['inject', 'value']);
    else if (used.some((name) => !known.includes(name)))
      issue(`knows no placeholder but ${all}`, ['inject', 'value']);
  });

export const connection = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('oauth').describe("An OAuth grant of the user's at a third party"),
    displayName: displayName(),
    issuer: issuer().exactOptional().describe('Its metadata says the rest'),
    authorizationEndpoint: httpUrl().exactOptional().describe('Instead of issuer'),
    tokenEndpoint: httpUrl().exactOptional(),
    revocationEndpoint: httpUrl().exactOptional(),
    clientId: text(),
    clientSecret: text().exactOptional().describe('Absent: a public client with PKCE'),
    publicUrl: publicUrl
      .exactOptional()
      .describe(
        'The gateway that this client is registered for; where given, it must be publicUrl',
      ),
    scopes: z.array(scope()).default([]),
    inject: inject(),
  }),
  secretConnection,
  z.strictObject({
    type: z.literal('mcp').describe("The upstream's own OAuth, found from its 401 (RFC 9728)"),
    displayName: displayName(),
    clientId: text().exactOptional().describe('Registered by hand; default: by itself'),
    clientSecret: text().exactOptional(),
    scopes: z.array(scope()).exactOptional().describe('Default: what the upstream asks for'),
    inject: inject(),
  }),
  z.strictObject({
    type: z
      .literal('token-exchange')
      .describe("RFC 8693: the user's verified identity becomes a token for this audience"),
    displayName: displayName(),
    tokenEndpoint: httpUrl(),
    audience: text().exactOptional().describe('Logical name of the target service'),
    resource: httpUrl().exactOptional().describe('URL of the target service (RFC 8707)'),
    clientId: text().exactOptional(),
    clientSecret: text().exactOptional(),
    scopes: z.array(scope()).default([]),
    inject: inject(),
  }),
]);

const limit = (points: number, per: number) =>
  z
    .strictObject({
      points: z.int().min(1).default(points),
      seconds: wholeSeconds(86_400).default(per),
    })
    .prefault({});

export const sections = {
  publicUrl,
  allowedOrigins: z
    .array(origin)
    .default([])
    .describe("Further browser origins; publicUrl's own is always allowed"),
  trustProxy: z.int().min(0).max(32).default(1).describe('Proxies in front, as hops in Express'),
  auth,
  upstreams: z.array(upstream).default([]).describe('MCP servers behind the gateway'),
  connections: z
    .record(name, connection)
    .default({})
    .describe('Credentials of users at third parties'),
  sessions: z
    .strictObject({
      ttlSeconds: wholeSeconds().default(3600),
      eventLogMaxLen: z.int().min(1).max(1_000_000).default(1000),
      streamAfterMs: z
        .int()
        .min(0)
        .max(60_000)
        .default(250)
        .describe('An answer slower than this becomes a stream'),
      keepAliveSeconds: seconds(0.1, 300).default(15),
    })
    .prefault({}),
  elicitation: z
    .strictObject({
      ttlSeconds: wholeSeconds().default(600).describe('Life of a link and of a suspended call'),
      connectWaitSeconds: seconds(0, 600)
        .default(20)
        .describe('How long a retry waits for the end of a flow'),
      formGuard: z
        .strictObject({
          mode: z.enum(['refuse', 'report']).default('refuse'),
          words: z
            .array(text().max(100))
            .max(200)
            .default([])
            .describe('Further words that mean a secret, e.g. "employee number"'),
        })
        .prefault({})
        .describe('Forms of upstreams that ask for a secret'),
    })
    .prefault({}),
  vault: z
    .strictObject({
      idleDays: z
        .number()
        .gt(0)
        .max(3650)
        .default(90)
        .describe('A credential unused that long is forgotten'),
    })
    .prefault({}),
  limits: z
    .strictObject({
      user: limit(600, 60).describe('By user, whatever the client'),
      userTool: limit(120, 60).describe('By user and tool'),
      userElicitations: limit(20, 600).describe('Links that the gateway creates'),
      address: limit(300, 60).describe('Unauthenticated requests'),
      registrations: limit(300, 3600).describe('OAuth clients registered from one address'),
      concurrent: z
        .strictObject({
          perUser: z.int().min(1).default(1_000).describe('Open at once by one user on one pod'),
          perPod: z.int().min(1).default(20_000).describe('Open at once on one pod; more is 503'),
          maxEventLoopDelayMs: z
            .int()
            .min(0)
            .default(500)
            .describe('While the event loop is later than this, new requests are 503; 0: never'),
        })
        .prefault({})
        .describe('Streams and calls that are open at once'),
      onStoreFailure: z
        .enum(['local', 'deny'])
        .default('local')
        .describe('Without Redis: count here, or answer 503'),
    })
    .prefault({}),
  body: z
    .strictObject({ maxBytes: z.int().min(1024).max(1_073_741_824).default(4_194_304) })
    .prefault({}),
  drain: z
    .strictObject({
      delaySeconds: seconds(0, 3600).default(5).describe('Not ready, but still serving'),
      timeoutSeconds: seconds(0, 86_400).default(60).describe('Then what still runs is cut'),
    })
    .prefault({}),
  console: z
    .strictObject({
      access: z
        .enum(['operators', 'loopback', 'off'])
        .exactOptional()
        .describe(
          'People of a group, who comes from this machine (as with kubectl port-forward), or nobody; default: loopback in development, otherwise off',
        ),
      operatorsGroup: text().exactOptional().describe('The group, as the login says it'),
      url: httpUrl()
        .exactOptional()
        .describe('Where operators reach the admin listener, e.g. https://viaduct-admin.internal'),
    })
    .prefault({}),
  telemetry: z
    .strictObject({
      otlpEndpoint: httpUrl().describe('OTLP over HTTP; traces go to /v1/traces below it'),
    })
    .optional()
    .describe('OpenTelemetry traces; without it there are none'),
  audit: z
    .strictObject({
      sinks: z
        .array(
          z.discriminatedUnion('type', [
            z.strictObject({ type: z.literal('stdout').describe('The log, which has it anyway') }),
            z.strictObject({ type: z.literal('file'), path: text().describe('Appended to') }),
            z.strictObject({
              type: z.literal('webhook').describe('Sent by the workers, in order'),
              url: httpUrl(),
              secret: text().describe('Key of the HMAC-SHA256 in X-Viaduct-Signature'),
            }),
          ]),
        )
        .min(1)
        .default([{ type: 'stdout' }]),
    })
    .prefault({}),
};

/** What the two sections are before their entries are looked at one by one. */
export const looseList = z.array(z.unknown()).default([]);
export const looseRecord = z.record(z.string(), z.unknown()).default({});

export const file = z.strictObject(sections);
export type File = z.output<typeof file>;
