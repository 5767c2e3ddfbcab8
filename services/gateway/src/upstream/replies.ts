/** What an upstream's answers are: a JSON-RPC response, or one of the ways not to be one. */
import { fail, GatewayError } from '@viaduct/shared/errors';
import { DuplicateMember, objectMembers } from '@viaduct/shared/json-text';
import { addedScopes } from './step-up.ts';
import type { Leg, Upstream } from './upstream.ts';
import type { Exchange, ReplyHead, WireReply } from './wire.ts';

export interface RpcReply {
  /** The whole JSON-RPC response, as the upstream wrote it. */
  readonly text: string;
  readonly parsed: { result?: unknown; error?: { code: number; message: string; data?: unknown } };
  readonly sessionId: string | undefined;
}

/**
 * Sends a request of the gateway's own and waits for its response, in JSON or at the end of a stream; whatever
 * else the stream carries is left out.
 *
 * @throws GatewayError upstream_* (timeout, unreachable, garbage); `UpstreamStatus` for a refusal by HTTP status.
 */
export async function request(
  upstream: Upstream,
  body: string,
  leg: Leg,
  { id, timeoutMs }: { id: string | number; timeoutMs: number },
): Promise<RpcReply> {
  const sent = upstream.post(body, leg);
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => {
      sent.abort();
      reject(upstreamTimeout(upstream.name));
    }, timeoutMs);
  });
  try {
    return await Promise.race([responseOf(upstream, sent, id), late]);
  } finally {
    clearTimeout(timer);
  }
}

async function responseOf(
  upstream: Upstream,
  sent: Exchange,
  id: string | number,
): Promise<RpcReply> {
  const reply = await sent.reply;
  if (reply.status < 200 || reply.status >= 300) throw new UpstreamStatus(upstream.name, reply);
  const text = await responseText(upstream.name, reply, id);
  const parsed = parseResponse(upstream.name, text, id);
  return { text, parsed, sessionId: reply.sessionId };
}

/** The body, or the response at the end of a stream. */
export async function responseText(
  name: string,
  reply: WireReply,
  id: string | number,
): Promise<string> {
  return reply.kind === 'body' ? reply.body.toString('utf8') : finalEvent(name, reply, id);
}

function finalEvent(
  name: string,
  reply: WireReply & { kind: 'events' },
  id: string | number,
): Promise<string> {
  return new Promise((resolve, reject) => {
    reply.feed.subscribe({
      event: ({ data }) => {
        const message = data === '' ? undefined : tryParse(data);
        if (message !== undefined && message['method'] === undefined && message['id'] === id) {
          resolve(data);
        }
      },
      retry: () => undefined,
      end: (error) => {
        reject(error ?? garbage(name, 'the stream ended before the answer'));
      },
    });
  });
}

function parseResponse(name: string, text: string, id: string | number): RpcReply['parsed'] {
  const message = tryParse(text);
  if (message?.['id'] !== id) throw garbage(name, 'not the JSON-RPC response to the request');
  const fault = responseFault(message);
  if (fault !== undefined) throw garbage(name, fault);
  return message;
}

/**
 * What makes a JSON-RPC response one that clients disagree about, or hang on: a result that is no object, an error
 * without code and message, both or neither (basic/index, Responses). Undefined for a sound one.
 */
export function responseFault(message: Record<string, unknown>): string | undefined {
  const { result, error } = message;
  if ('result' in message === 'error' in message) {
    return 'a response holds either a result or an error';
  }
  if ('result' in message) return isObject(result) ? undefined : 'a result that is no object';
  if (!isObject(error)) return 'an error that is no object';
  return Number.isInteger(error['code']) && typeof error['message'] === 'string'
    ? undefined
    : 'an error without code or message';
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

export function tryParse(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : undefined;
  } catch {
    return undefined;
  }
}

/** The text of `result` in a response, as written. */
export function resultText(response: string): string | undefined {
  const slice = objectMembers(response)?.get('result');
  return slice && response.slice(slice.start, slice.end);
}

export function garbage(name: string, detail: string): GatewayError {
  return fail('upstream_invalid', `The server "${name}" gave an answer that is not valid MCP.`, {
    data: { reason: 'upstream_invalid' },
    detail,
  });
}

/** Two members of one name: parsers disagree on which one counts, so nobody gets either. Other errors stay as they are. */
export const unreadable = (name: string, error: unknown): unknown =>
  error instanceof DuplicateMember ? garbage(name, error.message) : error;

export function upstreamTimeout(name: string): GatewayError {
  return fail('upstream_timeout', `The server "${name}" did not answer in time.`, {
    data: { reason: 'upstream_timeout' },
  });
}

/** An upstream's refusal by HTTP status. Never relayed as it is: 401 and 404 mean something else to our client. */
export class UpstreamStatus extends GatewayError {
  readonly upstreamStatus: number;
  /** What a 403 `insufficient_scope` asks for, separated by spaces. */
  readonly scopes: string | undefined;
  readonly body: string;
  constructor(name: string, reply: WireReply) {
    super(
      'upstream_unavailable',
      `The server "${name}" refused the request (HTTP ${reply.status}).`,
      {
        data: { reason: 'upstream_refused', upstreamStatus: reply.status },
      },
    );
    this.upstreamStatus = reply.status;
    this.scopes = addedScopes(reply);
    this.body = reply.kind === 'body' ? reply.body.toString('utf8') : '';
  }
}

/** A refusal of the credential, or of how little it may: for the gateway to see to, not for the client. */
export const refusesCredential = (reply: ReplyHead): boolean =>
  reply.status === 401 || addedScopes(reply) !== undefined;
