import { createHash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';

export type OauthClients = Record<string, { secret?: string }>;

export const sha256 = (text: string): string =>
  createHash('sha256').update(text).digest('base64url');

/** The product's name for a person, as the contract spells it (design, section 1). */
export const userIdOf = (issuer: string, subject: string): string =>
  sha256(`${issuer}\n${subject}`).slice(0, 22);

export const escapeHtml = (text: string): string =>
  text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);

/** client_secret_basic (form-encoded, RFC 6749 2.3.1), client_secret_post, or a public client. */
export function authenticateClient(
  request: IncomingMessage,
  form: URLSearchParams,
  clients: OauthClients,
): string | undefined {
  const basic = /^Basic (.+)$/i.exec(request.headers.authorization ?? '')?.[1];
  const [id = '', secret] = basic
    ? Buffer.from(basic, 'base64')
        .toString('utf8')
        .split(':')
        .map((part) => decodeURIComponent(part.replaceAll('+', ' ')))
    : [form.get('client_id') ?? '', form.get('client_secret') ?? undefined];
  const client = clients[id];
  return client && client.secret === secret ? id : undefined;
}
