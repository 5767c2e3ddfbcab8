/**
 * JSON lines on stdout, one per event, through pino.
 *
 * Promises: no field that is named like a secret, and no text that has the form of a token, leaves here, in
 * whatever depth and from whatever library's error. That is a net below callers who don't log such things in
 * the first place (invariant 9), not a licence. Bodies are never logged.
 */
import { pino, type DestinationStream, type Logger } from 'pino';
import type { LogLevel, Service } from './config/environment.ts';

export type { Logger } from 'pino';

export interface LogOptions {
  readonly level: LogLevel;
  readonly service: Service;
  readonly podId: string;
  readonly version: string;
  /** For tests; default: stdout, written synchronously so that a crash loses no line. */
  readonly destination?: DestinationStream;
}

/** A request's logger is `log.child({ requestId })`. */
export function createLogger(options: LogOptions): Logger {
  const { level, service, podId, version, destination } = options;
  return pino(
    {
      level,
      base: { service, pod: podId, version },
      timestamp: pino.stdTimeFunctions.isoTime,
      // `log` below has seen to errors already, wherever they stand.
      serializers: { err: (described: unknown) => described },
      formatters: { log: (fields) => redact(fields, 0) as Record<string, unknown> },
      hooks: { streamWrite: scrub },
    },
    destination ?? pino.destination({ dest: 1, sync: true }),
  );
}

const REDACTED = '[redacted]';
const MAX_DEPTH = 6;

/**
 * Field names whose values are secret wherever they stand. `token` covers access_token and refreshToken;
 * counts and names (`tokenEndpoint`, `tokenType`) are let through.
 */
const SECRET_NAME =
  /^(proxy-)?authorization$|cookie|password|passphrase|secret|token(?!_?(type|endpoint|refreshes|expires))|api[-_]?key|private[-_]?key|credential(?!s?_?(id|count))|code_?verifier|^jwe$|^assertion$|client_assertion$/i;

/** Error codes and flow states have these names too; authorization codes and OAuth state are long. */
const MAYBE_SECRET_NAME = /^(code|state|nonce)$/i;

function isSecret(name: string, value: unknown): boolean {
  if (typeof value === 'boolean' || value === undefined) return false;
  if (SECRET_NAME.test(name)) return true;
  return (
    MAYBE_SECRET_NAME.test(name) &&
    typeof value === 'string' &&
    value.length >= 16 &&
    /\d/.test(value)
  );
}

function redact(value: unknown, depth: number): unknown {
  if (typeof value !== 'object' || value === null) return value;
  if (value instanceof Error) return describeError(value);
  if (depth >= MAX_DEPTH) return '[deep]';
  if (Array.isArray(value)) return value.map((entry) => redact(entry, depth + 1));
  if (ArrayBuffer.isView(value)) return '[bytes]';
  if (value instanceof Date) return value.toISOString();
  if (value instanceof URL) return value.href;
  if (!isPlain(value)) return Object.prototype.toString.call(value);
  const out: Record<string, unknown> = {};
  for (const [name, member] of Object.entries(value)) {
    out[name] = isSecret(name, member) ? REDACTED : redact(member, depth + 1);
  }
  return out;
}

/** Requests, sockets and clients carry headers and buffers: their name is all that a log needs. */
function isPlain(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype;
}

/**
 * Type, message, code, stack and causes. Nothing else: errors of HTTP and Redis clients carry responses,
 * request options and command arguments as properties.
 */
function describeError(error: unknown, depth = 0): unknown {
  if (!(error instanceof Error)) return redact(error, 1);
  const { code, status, detail } = error as { code?: unknown; status?: unknown; detail?: unknown };
  return {
    type: error.name,
    message: error.message.slice(0, 2_000),
    ...((typeof code === 'string' || typeof code === 'number') && { code }),
    ...(typeof status === 'number' && { status }),
    ...(typeof detail === 'string' && { detail }),
    ...(depth === 0 && error.stack !== undefined && { stack: error.stack.slice(0, 8_000) }),
    ...(error.cause instanceof Error &&
      depth < 4 && { cause: describeError(error.cause, depth + 1) }),
  };
}

/** Tokens inside text: in messages, stacks and URLs. Runs over the finished line. */
const TOKEN_TEXT =
  /\b(Bearer|Basic|DPoP)(\s+)[A-Za-z0-9._~+/=-]{8,}|\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]*){0,3}|([?&](?:code|state|access_token|refresh_token|id_token|token|client_secret)=)[^&\s"\\#]+/gi;

function scrub(line: string): string {
  return line.replace(TOKEN_TEXT, (match, scheme?: string, space?: string, name?: string) => {
    if (scheme !== undefined) return `${scheme}${space ?? ' '}${REDACTED}`;
    return name === undefined ? REDACTED : `${name}${REDACTED}`;
  });
}
