/** The HTTP status of an upstream's JSON-RPC error on its way to a modern client. Pure. */
import { isModernError } from '../../upstream/upstream.ts';

/** Requests that this revision defines, and that this gateway so implements, whatever it gets from an upstream. */
const DEFINED: ReadonlySet<string> = new Set([
  'server/discover',
  'tools/list',
  'tools/call',
  'prompts/list',
  'prompts/get',
  'resources/list',
  'resources/templates/list',
  'resources/read',
  'completion/complete',
  'subscriptions/listen',
]);

/**
 * 404 says that *the server* does not implement the *requested method* (Streamable HTTP, Protocol Version Header), and
 * official clients then report nothing but that. So it is said where a method exists nowhere, or where a server of
 * this revision has said it itself. An upstream's own -32601 inside a method that is defined (a tool that may not ask
 * what it wanted to) is an answer like any other: 200, and the client reads code and message.
 */
export function errorStatus(method: string, code: unknown, upstreamStatus = 200): number {
  if (code === -32601) return upstreamStatus === 404 || !DEFINED.has(method) ? 404 : 200;
  return isModernError(code) || upstreamStatus === 400 ? 400 : 200;
}
