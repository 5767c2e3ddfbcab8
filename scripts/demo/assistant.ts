// The MCP client of the demo, made of the official SDK and nothing of the gateway's: it finds out by
// itself how to sign in (RFC 9728), connects, calls tools, and says when a link has been dealt with.
import { randomUUID } from 'node:crypto';
import { auth, type OAuthClientProvider } from '@modelcontextprotocol/sdk/client/auth.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import type { OAuthTokens } from '@modelcontextprotocol/sdk/shared/auth.js';
import {
  CallToolResultSchema,
  ElicitationCompleteNotificationSchema,
  ElicitRequestSchema,
  UrlElicitationRequiredError,
} from '@modelcontextprotocol/sdk/types.js';
import { ASSISTANT_CLIENT_ID } from './identity-provider.ts';

export type Outcome =
  | { kind: 'result'; text: string; isError: boolean }
  | { kind: 'link'; elicitationId: string; url: string; message: string };

export interface Assistant {
  /** Signs in: `browse` is given the authorization URL and returns where it ended. */
  signIn(browse: (url: string) => Promise<string>): Promise<void>;
  connect(): Promise<{ sessionId: string; protocolVersion: string }>;
  call(tool: string, onProgress?: (done: number, total: number) => void): Promise<Outcome>;
  onComplete(listener: (elicitationId: string) => void): void;
  close(): Promise<void>;
}

export function createAssistant({
  endpoint,
  redirectUri,
}: {
  endpoint: string;
  redirectUri: string;
}): Assistant {
  const listeners: ((elicitationId: string) => void)[] = [];
  const identity = createIdentity(redirectUri);
  const transport = new StreamableHTTPClientTransport(new URL(endpoint), {
    authProvider: identity.provider,
  });
  const client = new Client(
    { name: 'demo-assistant', title: 'Demo assistant', version: '1.0.0' },
    { capabilities: { elicitation: { form: {}, url: {} } } },
  );
  client.setNotificationHandler(ElicitationCompleteNotificationSchema, ({ params }) => {
    for (const listener of listeners) listener(params.elicitationId);
  });
  // No tool of the demo asks with a form; one that did would learn that nobody is there to fill it in.
  client.setRequestHandler(ElicitRequestSchema, () => ({ action: 'decline' }));

  return {
    async signIn(browse) {
      const found = await fetch(endpoint, { method: 'POST' });
      await found.body?.cancel();
      const challenge = found.headers.get('www-authenticate') ?? '';
      const read = (name: string) => new RegExp(`${name}="([^"]*)"`).exec(challenge)?.[1];
      const [scope, metadata] = [read('scope'), read('resource_metadata')];
      const options = {
        serverUrl: endpoint,
        ...(scope === undefined ? {} : { scope }),
        ...(metadata === undefined ? {} : { resourceMetadataUrl: new URL(metadata) }),
      };
      await auth(identity.provider, options);
      const answer = new URL(await browse(identity.authorizationUrl())).searchParams;
      const authorizationCode = answer.get('code');
      if (authorizationCode === null) {
        throw new Error(`the identity provider answered ${answer.get('error') ?? 'nothing'}`);
      }
      await auth(identity.provider, { ...options, authorizationCode });
    },

    async connect() {
      await client.connect(transport);
      return {
        sessionId: transport.sessionId ?? 'none',
        protocolVersion: transport.protocolVersion ?? 'unknown',
      };
    },

    async call(tool, onProgress) {
      try {
        const result = await client.callTool(
          { name: tool, arguments: {} },
          CallToolResultSchema,
          onProgress
            ? { onprogress: ({ progress, total }) => onProgress(progress, total ?? progress) }
            : {},
        );
        const text = CallToolResultSchema.parse(result)
          .content.map((part) => (part.type === 'text' ? part.text : `(${part.type})`))
          .join('\n');
        return { kind: 'result', text, isError: result.isError === true };
      } catch (error) {
        const asked =
          error instanceof UrlElicitationRequiredError ? error.elicitations[0] : undefined;
        if (!asked) throw error;
        return { kind: 'link', ...asked };
      }
    },

    onComplete: (listener) => void listeners.push(listener),

    async close() {
      await transport.terminateSession();
      await client.close();
    },
  };
}

/** What the SDK's OAuth client asks of its host: here, memory. */
function createIdentity(redirectUri: string): {
  provider: OAuthClientProvider;
  authorizationUrl(): string;
} {
  let tokens: OAuthTokens | undefined;
  let verifier = '';
  let authorizationUrl = '';
  return {
    authorizationUrl: () => authorizationUrl,
    provider: {
      redirectUrl: redirectUri,
      clientMetadata: {
        client_name: 'Demo assistant',
        redirect_uris: [redirectUri],
        token_endpoint_auth_method: 'none',
      },
      state: () => randomUUID(),
      clientInformation: () => ({ client_id: ASSISTANT_CLIENT_ID }),
      tokens: () => tokens,
      saveTokens: (issued) => {
        tokens = issued;
      },
      redirectToAuthorization: (url) => {
        authorizationUrl = url.href;
      },
      saveCodeVerifier: (value) => {
        verifier = value;
      },
      codeVerifier: () => verifier,
    },
  };
}
