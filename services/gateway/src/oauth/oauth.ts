/**
 * Protected resource metadata (RFC 9728): where to get a token for which resource. The document for `/mcp` also
 * answers at the well-known path without a suffix, where clients of 2025-06-18 look first.
 *
 * Every page may read it: it holds nothing that the challenge does not say, and changes nothing. Without
 * authentication there is no resource to protect, and the answer is 404.
 */
import { Router, type RequestHandler } from 'express';
import type { Config } from '@viaduct/shared/config';
import { fail } from '@viaduct/shared/errors';
import { builtinIssuer, resourceUrl } from '../challenges.ts';
import type { Edge } from '../edge.ts';

export {
  createAuthorizationServer,
  type AuthorizationServer,
  type Question,
} from './authorization-server.ts';
export { createSigningKeys } from './signing-keys.ts';

const BASE = '/.well-known/oauth-protected-resource';

/** Mount before anything that refuses foreign origins. */
export function createResourceMetadata(deps: {
  readonly config: Config;
  readonly edge: Edge;
}): Router {
  const { config, edge } = deps;
  const { auth, publicUrl } = config;
  const documents = new Map<string, string>();
  if (auth.mode !== 'none') {
    const issuer = auth.mode === 'builtin' ? builtinIssuer(publicUrl) : auth.issuer;
    for (const name of ['', ...config.upstreams.map((upstream) => upstream.name)]) {
      const document = {
        // RFC 9728, 3.3: identical to the URL that the client uses, so spelled as in the challenge.
        resource: resourceUrl(publicUrl, name),
        // RFC 8414, 3.3: clients compare it as a string with what the issuer says of itself.
        authorization_servers: [issuer],
        scopes_supported: auth.baseScopes,
        bearer_methods_supported: ['header'],
      };
      documents.set(name, JSON.stringify(document));
    }
  }

  const serve: RequestHandler = (req, res, next) => {
    if (req.method !== 'GET' && req.method !== 'HEAD') {
      next(fail('method_not_allowed', 'Only GET is possible here.', { headers: { Allow: 'GET' } }));
      return;
    }
    const name = req.params['upstream'];
    const document = documents.get(typeof name === 'string' ? name : '');
    if (document === undefined) {
      next(fail('not_found', 'There is no such resource here.'));
      return;
    }
    // Short: scopes may change with the configuration, and a client that lost its way asks again.
    res.setHeader('Cache-Control', 'public, max-age=60');
    res.type('application/json').send(document);
  };

  const router = Router({ caseSensitive: true, strict: false });
  router.all([BASE, `${BASE}/mcp`, `${BASE}/mcp/:upstream`], edge.middleware('public'), serve);
  return router;
}
