/**
 * The only place where an error becomes an answer: JSON-RPC on /mcp, a page or JSON elsewhere.
 *
 * Promises: a body on every error, never a stack, never HTML for an MCP client; `requestId` in the body is
 * that of the header, for whoever asks support; our faults read as ours (500, 503), not as the caller's. What
 * is not a GatewayError is logged once, here.
 */
import { STATUS_CODES, type IncomingMessage, type ServerResponse } from 'node:http';
import type { Logger } from 'pino';
import {
  fail,
  GatewayError,
  isStoreError,
  storeUnavailable,
  type ErrorCode,
} from '@viaduct/shared/errors';
import { DuplicateMember } from '@viaduct/shared/json-text';

/** Where a JSON-RPC error goes; `Answer` of the MCP endpoint fits. */
export interface RpcTarget {
  readonly res: ServerResponse;
  readonly requestId: string;
  /** JSON text of the request's id, spliced in as it is (case J1); `null` when none could be read. */
  readonly idText: string;
  /** From the edge: request id, CORS. */
  readonly headers: Readonly<Record<string, string>>;
}

export interface ErrorPage {
  readonly status: number;
  readonly title: string;
  readonly message: string;
  readonly requestId: string;
}

export interface Responder {
  /** Any thrown value as a GatewayError; logs what is unexpected. */
  explain(error: unknown, requestId: string): GatewayError;
  rpc(target: RpcTarget, error: unknown): void;
  /** Express error handler: an HTML page for browsers, JSON for everything else. */
  handler(
    error: unknown,
    req: IncomingMessage,
    res: ServerResponse,
    next: (error?: unknown) => void,
  ): void;
}

export interface ResponderDeps {
  readonly log: Logger;
  /** The project's page; default: plain HTML without styles. */
  readonly page?: (page: ErrorPage) => string;
}

/** Nothing is loaded and nothing runs, whatever ends up in the page. */
const PLAIN_PAGE_CSP =
  "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

export function createResponder({ log, page = plainPage }: ResponderDeps): Responder {
  function explain(error: unknown, requestId: string): GatewayError {
    if (error instanceof GatewayError) {
      const { code, detail, cause } = error;
      if (error.status >= 500)
        log.warn({ requestId, code, detail, err: cause ?? error }, 'refused');
      else if (detail !== undefined) log.debug({ requestId, code, detail }, 'refused');
      return error;
    }
    if (isStoreError(error)) {
      log.warn({ requestId, err: error }, 'redis is not reachable');
      return storeUnavailable(error);
    }
    // What clients send is checked where it is read, so this was said by a server behind us.
    if (error instanceof DuplicateMember) {
      return explain(
        fail('upstream_invalid', `A server gave an answer that is ambiguous: ${error.message}.`, {
          data: { reason: 'upstream_invalid' },
        }),
        requestId,
      );
    }
    const refusal = clientFault(error);
    if (refusal !== undefined) return refusal;
    log.error({ requestId, err: error }, 'unexpected error');
    return fail(
      'internal',
      `Something went wrong on our side. Support can find it by ${requestId}.`,
      {
        cause: error,
      },
    );
  }

  return {
    explain,

    rpc({ res, requestId, idText, headers }, error) {
      const refused = explain(error, requestId);
      if (!canAnswer(res)) return;
      const body = rpcErrorText(refused, requestId, idText);
      res.writeHead(refused.status, {
        ...headers,
        ...refused.headers,
        'Content-Type': 'application/json',
        'Content-Length': Buffer.byteLength(body),
        'Cache-Control': 'no-store',
        'X-Content-Type-Options': 'nosniff',
      });
      res.end(body);
    },

    handler(error, req, res, _next) {
      const requestId = String(res.getHeader('X-Request-Id') ?? '');
      const refused = explain(error, requestId);
      if (!canAnswer(res)) return;
      for (const [name, value] of Object.entries(refused.headers)) res.setHeader(name, value);
      res.setHeader('Cache-Control', 'no-store');
      res.setHeader('X-Content-Type-Options', 'nosniff');
      const html = wantsHtml(req.headers.accept);
      if (html && !res.hasHeader('Content-Security-Policy')) {
        res.setHeader('Content-Security-Policy', PLAIN_PAGE_CSP);
      }
      const { status, code, message } = refused;
      const body = html
        ? page({ status, title: STATUS_CODES[status] ?? 'Error', message, requestId })
        : JSON.stringify({ error: code, message, requestId });
      res.writeHead(status, {
        'Content-Type': html ? 'text/html; charset=utf-8' : 'application/json',
        'Content-Length': Buffer.byteLength(body),
      });
      res.end(req.method === 'HEAD' ? undefined : body);
    },
  };
}

/** False when it is too late for an answer; a half-sent one is cut, so that nobody takes it for whole. */
function canAnswer(res: ServerResponse): boolean {
  if (res.headersSent && !res.writableEnded) res.destroy();
  return !res.headersSent && !res.destroyed;
}

/** A JSON-RPC error response as text. `idText` is the id's own JSON, so no number loses a digit. */
export function rpcErrorText(error: GatewayError, requestId: string, idText: string): string {
  const { rpcCode, message, code, data } = error;
  const body = JSON.stringify({
    code: rpcCode,
    message,
    data: { reason: code, ...data, requestId },
  });
  return `{"jsonrpc":"2.0","id":${idText},"error":${body}}`;
}

/** Errors that Express and its parsers make of bad requests: they carry a 4xx status and say `expose`. */
function clientFault(error: unknown): GatewayError | undefined {
  if (!(error instanceof Error)) return undefined;
  const { status } = error as { status?: unknown };
  // Express gives decodeURIComponent's error a status only; the others have `expose` as well.
  const exposed = (error as { expose?: unknown }).expose === true || error instanceof URIError;
  if (typeof status !== 'number' || status < 400 || status > 499 || !exposed) return undefined;
  const codes: Partial<Record<number, ErrorCode>> = {
    404: 'not_found',
    413: 'body_too_large',
    415: 'unsupported_media_type',
  };
  return fail(codes[status] ?? 'invalid_request', STATUS_CODES[status] ?? 'Bad Request', {
    status,
    detail: error.message,
  });
}

/** A browser's Accept names text/html; clients of APIs send a wildcard or nothing. */
function wantsHtml(accept: string | undefined): boolean {
  return (
    accept !== undefined && /(^|[\s,])text\/html\s*(;(?!\s*q=0(\.0*)?\s*(,|$))|,|$)/i.test(accept)
  );
}

function plainPage({ status, title, message, requestId }: ErrorPage): string {
  return `<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>${escape(title)}</title></head>
<body><main><h1>${escape(title)}</h1><p>${escape(message)}</p><p>${status} · ${escape(requestId)}</p></main></body>
</html>
`;
}

function escape(text: string): string {
  const names: Record<string, string> = {
    '&': 'amp',
    '<': 'lt',
    '>': 'gt',
    '"': 'quot',
    "'": '#39',
  };
  return text.replace(/[&<>"']/g, (character) => `&${names[character] ?? ''};`);
}
