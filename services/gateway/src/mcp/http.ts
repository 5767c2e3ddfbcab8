/** The HTTP rules of the MCP endpoint that have nothing to do with a session: body, media types, paths. Pure but for reading. */
import type { IncomingMessage } from 'node:http';
import { fail } from '@viaduct/shared/errors';

/** What is still taken in of a body that is too large, so that its sender gets to read the 413. */
const MAX_DISCARDED_BYTES = 64 * 1024 * 1024;
const MAX_DISCARDING_MS = 10_000;
/** What is kept of a body before its sender is known, bytes: a usual request, whose id a refusal can echo. */
const MAX_UNPROVEN_BYTES = 64 * 1024;

/**
 * Reads a body of at most `maxBytes`. A larger one is refused once its sender has finished: an answer in the
 * middle of an upload is lost when the connection closes behind it (RFC 9112, 9.6).
 *
 * @param sender settles when the sender has proven who it is, or has not: until then little is read, and of a stranger
 * no more than that is kept
 * @throws GatewayError body_too_large, invalid_request
 */
export function readBody(
  req: IncomingMessage,
  maxBytes: number,
  sender?: Promise<unknown>,
): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    let chunks: Buffer[] | undefined = [];
    let size = 0;
    let limit = maxBytes;
    let proven = sender === undefined;
    let impatience: NodeJS.Timeout | undefined;
    const refuse = (): void => {
      clearTimeout(impatience);
      reject(fail('body_too_large', `The body is larger than ${maxBytes} bytes.`));
    };
    const discard = (): void => {
      if (chunks === undefined) return;
      chunks = undefined;
      impatience = setTimeout(refuse, MAX_DISCARDING_MS);
    };
    if (Number(req.headers['content-length'] ?? 0) > maxBytes) discard();
    sender?.then(
      () => {
        proven = true;
        req.resume();
      },
      () => {
        proven = true;
        limit = Math.min(limit, MAX_UNPROVEN_BYTES);
        if (size > limit) discard();
        req.resume();
      },
    );
    req.on('data', (chunk: Buffer) => {
      size += chunk.length;
      if (chunks === undefined) {
        if (size > maxBytes + MAX_DISCARDED_BYTES) req.destroy();
      } else if (size > limit) discard();
      else {
        chunks.push(chunk);
        if (!proven && size > MAX_UNPROVEN_BYTES) req.pause();
      }
    });
    req.on('end', () => {
      if (chunks === undefined) refuse();
      else resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks));
    });
    const cut = (): void => {
      clearTimeout(impatience);
      reject(fail('invalid_request', 'The request was cut off.'));
    };
    req.on('error', cut);
    req.on('aborted', cut);
  });
}

/** RFC 9110, 8.3.1: type and subtype are case-insensitive; JSON is UTF-8 whatever else is said. */
export function checkContentType(value: string | undefined): void {
  // The spelling of every official client, without a regular expression.
  if (value === 'application/json') return;
  const [type = '', ...parameters] = (value ?? '').split(';').map((part) => part.trim());
  const charset = parameters
    .map((p) => /^charset=("?)([^"]*)\1$/i.exec(p)?.[2]?.toLowerCase())
    .find((c) => c !== undefined);
  if (
    type.toLowerCase() === 'application/json' &&
    (charset === undefined || charset === 'utf-8' || charset === 'utf8')
  ) {
    return;
  }
  throw fail('unsupported_media_type', 'Send Content-Type: application/json, encoded in UTF-8.');
}

/** RFC 9110, 12.5.1: absent means anything, order means nothing, q=0 means no. */
export function accepts(value: string | undefined, type: string): boolean {
  if (value === undefined) return true;
  const [wantedType] = type.split('/');
  let best = -1;
  let quality = 0;
  for (const item of value.split(',')) {
    const [range = '', ...parameters] = item.split(';').map((part) => part.trim().toLowerCase());
    const specificity =
      range === type ? 2 : range === `${wantedType}/*` ? 1 : range === '*/*' ? 0 : -1;
    if (specificity < 0 || specificity < best) continue;
    const q = parameters.map((p) => /^q=([\d.]+)$/.exec(p)?.[1]).find((v) => v !== undefined);
    best = specificity;
    quality = q === undefined ? 1 : Number(q);
  }
  return quality > 0;
}

const BOTH = 'application/json, text/event-stream';

/** 2025-11-25 transports, Sending Messages 2: both types, because either may be the answer. */
export function checkAcceptForPost(value: string | undefined): void {
  if (value === undefined || value === BOTH) return;
  if (accepts(value, 'application/json') && accepts(value, 'text/event-stream')) return;
  throw fail('not_acceptable', `Send Accept: ${BOTH}.`);
}

export function checkAcceptForGet(value: string | undefined): void {
  if (accepts(value, 'text/event-stream')) return;
  throw fail('not_acceptable', 'Send Accept: text/event-stream.');
}

/** '' for `/mcp`, a name for `/mcp/<name>`, undefined for anything else; one trailing slash is no difference. */
export function endpointName(pathname: string): string | undefined {
  if (pathname === '/mcp' || pathname === '/mcp/') return '';
  const match = /^\/mcp\/([a-z][a-z0-9-]{0,31})\/?$/.exec(pathname);
  return match?.[1];
}
