/**
 * Puts requests into the form that oidc-provider compares: resources in canonical spelling (MCP authorization,
 * Canonical Server URI: scheme and host in any case, a slash at the end), a scope where none was asked for (RFC 6749,
 * 3.3), and registrations without what would only be refused. Changes nothing about what a request is allowed.
 */
import type { IncomingMessage } from 'node:http';
import { fail } from '@viaduct/shared/errors';
import { shapeClient } from './documents.ts';

const MAX_BODY = 56 * 1024;

/** As in access-token.ts: what differs only in spelling is the same resource. */
export function canonicalResource(resource: string): string {
  if (!/^https?:\/\//i.test(resource) || /[#?]/.test(resource)) return resource;
  const url = URL.parse(resource);
  return url === null ? resource : url.href.replace(/\/$/, '');
}

export function shapeParameters(params: URLSearchParams, defaultScope: string): URLSearchParams {
  const shaped = new URLSearchParams();
  for (const [name, value] of params) {
    shaped.append(name, name === 'resource' ? canonicalResource(value) : value);
  }
  if ((shaped.get('scope') ?? '').trim() === '' && defaultScope !== '') {
    shaped.set('scope', defaultScope);
  }
  return shaped;
}

export function shapeQuery(req: IncomingMessage, defaultScope: string): void {
  const url = req.url ?? '/';
  const at = url.indexOf('?');
  if (at < 0) return;
  const params = shapeParameters(new URLSearchParams(url.slice(at + 1)), defaultScope);
  req.url = `${url.slice(0, at)}?${params.toString()}`;
}

/** @param defaultScope for this form's client and grant, '' for none */
export async function shapeForm(
  req: IncomingMessage,
  defaultScope: (form: URLSearchParams) => string,
): Promise<void> {
  const form = new URLSearchParams(await readBody(req));
  replaceBody(req, shapeParameters(form, defaultScope(form)).toString());
}

export async function shapeRegistration(req: IncomingMessage): Promise<void> {
  const text = await readBody(req);
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    body = undefined; // oidc-provider says what is wrong with it
  }
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    replaceBody(req, text);
    return;
  }
  // RFC 7591, 2: the server may leave out what it has no use for. Scopes are asked for with each authorization.
  const { scope: _scope, ...given } = body as Record<string, unknown>;
  replaceBody(req, JSON.stringify(shapeClient(given)));
}

async function readBody(req: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of req as AsyncIterable<Buffer>) {
    length += chunk.length;
    if (length > MAX_BODY) throw fail('body_too_large', 'The request is too large.');
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}

/** oidc-provider reads the body by `iterator()` while `readable`; that is all it asks of the stream. */
function replaceBody(req: IncomingMessage, text: string): void {
  const bytes = Buffer.from(text);
  req.headers['content-length'] = String(bytes.length);
  Object.defineProperties(req, {
    readable: { value: true, configurable: true },
    iterator: {
      value: async function* () {
        yield bytes;
      },
      configurable: true,
    },
  });
}
