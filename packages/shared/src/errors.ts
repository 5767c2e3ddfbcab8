/**
 * Every error that a caller may see, in one table. Thrown anywhere, rendered once by each edge
 * (JSON-RPC on /mcp, a page elsewhere).
 *
 * JSON-RPC codes: the standard ones where they fit; ours lie outside the range that JSON-RPC and MCP reserve
 * (MCP 2026-07-28, basic/index, Error Codes: "new error codes … SHOULD be allocated outside").
 */

interface ErrorKind {
  readonly rpcCode: number;
  readonly status: number;
}

const TABLE = {
  parse_error: { rpcCode: -32700, status: 400 },
  invalid_request: { rpcCode: -32600, status: 400 },
  method_not_found: { rpcCode: -32601, status: 404 },
  invalid_params: { rpcCode: -32602, status: 400 },
  internal: { rpcCode: -32603, status: 500 },
  header_mismatch: { rpcCode: -32020, status: 400 },
  missing_capability: { rpcCode: -32021, status: 400 },
  unsupported_version: { rpcCode: -32022, status: 400 },
  unauthorized: { rpcCode: -30401, status: 401 },
  forbidden: { rpcCode: -30403, status: 403 },
  insufficient_scope: { rpcCode: -30403, status: 403 },
  not_found: { rpcCode: -30404, status: 404 },
  session_not_found: { rpcCode: -30404, status: 404 },
  method_not_allowed: { rpcCode: -30405, status: 405 },
  not_acceptable: { rpcCode: -30406, status: 406 },
  body_too_large: { rpcCode: -30413, status: 413 },
  unsupported_media_type: { rpcCode: -30415, status: 415 },
  rate_limited: { rpcCode: -30429, status: 429 },
  store_unavailable: { rpcCode: -30503, status: 503 },
  unavailable: { rpcCode: -30503, status: 503 },
  draining: { rpcCode: -30503, status: 503 },
  upstream_unavailable: { rpcCode: -32603, status: 200 },
  upstream_invalid: { rpcCode: -32603, status: 200 },
  upstream_timeout: { rpcCode: -32603, status: 200 },
  upstream_call_lost: { rpcCode: -32603, status: 200 },
} as const satisfies Record<string, ErrorKind>;

export type ErrorCode = keyof typeof TABLE;

export interface ErrorOptions {
  /** Sent with the answer, e.g. `WWW-Authenticate`, `Retry-After`. */
  headers?: Record<string, string>;
  /** Merged into the JSON-RPC error's `data` beside `requestId` and `reason`. */
  data?: Record<string, unknown>;
  /** Overrides the table, for the one caller that knows better. */
  status?: number;
  rpcCode?: number;
  /** For the log only. */
  detail?: string;
  cause?: unknown;
}

/** `message` is written for the reader of the answer: what is wrong and what to do. `detail` stays in the log. */
export class GatewayError extends Error {
  readonly code: ErrorCode;
  readonly status: number;
  readonly rpcCode: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly data: Readonly<Record<string, unknown>>;
  readonly detail: string | undefined;

  constructor(code: ErrorCode, message: string, options: ErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'GatewayError';
    this.code = code;
    this.status = options.status ?? TABLE[code].status;
    this.rpcCode = options.rpcCode ?? TABLE[code].rpcCode;
    this.headers = options.headers ?? {};
    this.data = options.data ?? {};
    this.detail = options.detail;
  }
}

export function fail(code: ErrorCode, message: string, options?: ErrorOptions): GatewayError {
  return new GatewayError(code, message, options);
}

/** The answer while Redis is away: never 401 (would start OAuth) and never 404 (would end sessions). */
export function storeUnavailable(cause: unknown): GatewayError {
  return fail('store_unavailable', 'The session store is not reachable. Try again in a moment.', {
    headers: { 'Retry-After': '2' },
    cause,
  });
}

/** What ioredis throws when Redis, not the command, is at fault. Everything else is a bug of ours. */
export function isStoreError(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  if (/^(MaxRetriesPerRequestError|ClusterAllFailedError|AbortError)$/.test(error.name))
    return true;
  const code = (error as { code?: unknown }).code;
  if (typeof code === 'string' && /^(ECONN|ETIMEDOUT|EPIPE|EHOST|ENET|ENOTFOUND|EAI_)/.test(code)) {
    return 'command' in error || 'syscall' in error || error.name !== 'GatewayError';
  }
  return /^(READONLY|LOADING|NOAUTH|OOM|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|MISCONF|NOREPLICAS|UNBLOCKED|WRONGPASS|NOSCRIPT)\b|Connection is closed|Command timed out|Stream isn't writeable|Socket timeout|Socket closed|None of startup nodes|Failed to refresh slots|Cluster isn.t ready|Too many Cluster redirections/.test(
    error.message,
  );
}
