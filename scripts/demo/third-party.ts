// The demo's third party: "Acme Drive", which keeps files for its users and lets other software read
// them with an OAuth token. The gateway obtains such tokens; nobody else ever sees one.
import { createSignInServer, PEOPLE, type SignInServer } from './sign-in-server.ts';

export interface ThirdPartyOptions {
  readonly issuer: string;
  readonly gatewayUrl: string;
  readonly gatewaySecret: string;
}

const FILES: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  alice: {
    'roadmap.md': '# Roadmap\n\n1. Bridges that carry water.\n2. Bridges that carry trains.\n',
    'on-call.txt': 'This week: Alice. Next week: nobody, hopefully.\n',
    'arches.csv': 'arch,span_m\nnorth,24.4\nsouth,24.5\n',
  },
  bob: { 'pipeline.md': '# Pipeline\n\nOne large customer, thinking about it.\n' },
};

export function createThirdParty({
  issuer,
  gatewayUrl,
  gatewaySecret,
}: ThirdPartyOptions): SignInServer {
  const server = createSignInServer({
    issuer,
    title: 'Acme Drive',
    cookiePrefix: 'acme_drive',
    asks: (clientId, scope) => `“${clientId}” asks for ${scope}: to read your files.`,
    configuration: {
      scopes: ['drive.read'],
      clients: [
        {
          client_id: 'viaduct',
          client_secret: gatewaySecret,
          redirect_uris: [`${gatewayUrl}/connect/callback`],
          grant_types: ['authorization_code', 'refresh_token'],
        },
      ],
      features: {
        revocation: {
          enabled: true,
          allowedPolicy: (_ctx, client, token) => token.clientId === client.clientId,
        },
      },
      issueRefreshToken: () => true,
      rotateRefreshToken: true,
      // Short, so that the demo shows a refresh to whoever waits two minutes.
      ttl: { AccessToken: 120 },
    },
  });

  const owner = async (authorization: string | undefined): Promise<string | undefined> => {
    const token = await server.provider.AccessToken.find(
      authorization?.slice('Bearer '.length) ?? '',
    );
    return token?.isValid && token.scopes.has('drive.read') ? token.accountId : undefined;
  };
  server.app.get('/api/me', async (req, res) => {
    const account = await owner(req.headers.authorization);
    if (account === undefined) res.status(401).json({ error: 'invalid_token' });
    else res.json({ account, name: PEOPLE[account]?.name });
  });
  server.app.get('/api/files', async (req, res) => {
    const account = await owner(req.headers.authorization);
    if (account === undefined) res.status(401).json({ error: 'invalid_token' });
    else res.json(FILES[account] ?? {});
  });
  return server;
}
