// The demo's identity provider: who Alice and Bob are. Gives the gateway its browser logins, and MCP
// clients RS256 access tokens for the very endpoint that they call (RFC 8707).
import { errors } from 'oidc-provider';
import { createSignInServer, PEOPLE, type SignInServer } from './sign-in-server.ts';

export interface IdentityProviderOptions {
  readonly issuer: string;
  readonly gatewayUrl: string;
  readonly gatewaySecret: string;
  readonly assistantRedirectUri: string;
}

export const ASSISTANT_CLIENT_ID = 'demo-assistant';

export function createIdentityProvider(options: IdentityProviderOptions): SignInServer {
  const { issuer, gatewayUrl } = options;
  const scopes = ['openid', 'offline_access', 'profile', 'email', 'groups', 'mcp:tools'];
  const server: SignInServer = createSignInServer({
    issuer,
    title: 'Demo identity provider',
    cookiePrefix: 'demo_idp',
    configuration: {
      scopes,
      clients: [
        {
          client_id: 'viaduct',
          client_secret: options.gatewaySecret,
          redirect_uris: [`${gatewayUrl}/login/callback`],
          post_logout_redirect_uris: [`${gatewayUrl}/connections`],
        },
        {
          client_id: ASSISTANT_CLIENT_ID,
          client_name: 'Demo assistant',
          application_type: 'native',
          token_endpoint_auth_method: 'none',
          redirect_uris: [options.assistantRedirectUri],
          grant_types: ['authorization_code', 'refresh_token'],
        },
      ],
      features: {
        // So that any other MCP client can be pointed at the demo.
        registration: { enabled: true },
        resourceIndicators: {
          enabled: true,
          getResourceServerInfo: (_ctx, resource) => {
            if (resource !== `${gatewayUrl}/mcp` && !resource.startsWith(`${gatewayUrl}/mcp/`)) {
              throw new errors.InvalidTarget('this provider knows only the demo gateway');
            }
            return {
              scope: 'mcp:tools',
              audience: resource,
              accessTokenFormat: 'jwt',
              accessTokenTTL: 3600,
              jwt: { sign: { alg: 'RS256' } },
            };
          },
        },
      },
      extraTokenClaims: (_ctx, token) =>
        token.kind === 'AccessToken' ? { groups: PEOPLE[token.accountId]?.groups } : undefined,
      // Everybody here has agreed to everything: the consent that matters is the gateway's.
      loadExistingGrant: async (ctx) => {
        const { client, session, resourceServers } = ctx.oidc;
        if (!client || !session?.accountId) return undefined;
        const known = session.grantIdFor(client.clientId);
        const grant =
          (known === undefined ? undefined : await server.provider.Grant.find(known)) ??
          new server.provider.Grant({ accountId: session.accountId, clientId: client.clientId });
        grant.addOIDCScope(scopes.join(' '));
        for (const resource of Object.keys(resourceServers ?? {})) {
          grant.addResourceScope(resource, 'mcp:tools');
        }
        await grant.save();
        return grant;
      },
    },
  });
  return server;
}
