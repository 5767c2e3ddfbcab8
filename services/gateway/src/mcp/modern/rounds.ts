/** What a modern client gets of a legacy upstream's call: the same words in the first round and in every later one. */
import { GatewayError, fail, type ErrorCode } from '@viaduct/shared/errors';
import { findPath, sliceOf } from '@viaduct/shared/json-text';
import type { JsonObject } from '../message.ts';
import { inputRequiredText, isObject, modernResponse, withProgressToken } from './legacy-words.ts';
import type { Outcome, Outgoing } from './path.ts';
import { errorStatus } from './statuses.ts';

/** What a `requestState` says about a suspended call. Sealed, so only we read it. */
export interface SuspendedState {
  readonly call: string;
  readonly round: number;
  /** Answers of an incomplete retry, JSON texts by key: the upstream gets all of a round's answers at once. */
  readonly held?: Readonly<Record<string, string>>;
}

/** @param leg id of the call on the upstream's leg, which is its progress token there too */
export function relayNotification(
  out: Outgoing,
  leg: string,
  text: string,
  parsed: JsonObject,
): void {
  let own = { text, parsed };
  if (parsed['method'] === 'notifications/progress') {
    const params = parsed['params'];
    if (!isObject(params) || params['progressToken'] !== leg) return;
    const at = findPath(out.message.text, ['params', '_meta', 'progressToken']);
    if (at === undefined) return;
    own = withProgressToken(text, parsed, {
      text: sliceOf(out.message.text, at),
      value: out.envelope.progressToken,
    });
  }
  const line = out.notification(own.text, own.parsed);
  if (line !== undefined) out.reply.notify(line);
}

/** Ends the round with questions. */
export async function askClient(
  out: Outgoing,
  state: SuspendedState,
  requests: string,
): Promise<void> {
  const sealed = await out.seal({ kind: 'suspended', data: JSON.stringify(state) });
  out.reply.finish(inputRequiredText(out.message.idText, requests, sealed));
}

/** Ends the round with the upstream's response. */
export function answerClient(out: Outgoing, text: string, parsed: JsonObject): Outcome['outcome'] {
  const own = modernResponse(text, parsed, out.message.idText);
  const error = parsed['error'];
  const status = isObject(error) ? errorStatus(out.message.method, error['code']) : 200;
  out.reply.finish(out.complete(own, parsed), status);
  return error === undefined ? 'ok' : 'rpc_error';
}

/** An error on its way to the pod that follows. */
export function writeFailure(error: unknown): string {
  const { code, message, data } =
    error instanceof GatewayError
      ? error
      : fail(
          'internal',
          'Something went wrong in the gateway. Quote the request id to its operators.',
        );
  return JSON.stringify({ code, message, data });
}

export function readFailure(text: string): GatewayError {
  const { code, message, data } = JSON.parse(text) as {
    code: ErrorCode;
    message: string;
    data: Record<string, unknown>;
  };
  return fail(code, message, { data });
}
