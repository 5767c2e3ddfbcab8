import { textOf } from '../support/mcp-client.ts';
import type { Answer, Message } from '../support/net.ts';
import type { Ending } from './journal.ts';

/** What an answer was, in the words of a journal. */
export interface Judged {
  readonly ending: Ending;
  readonly status: number;
  readonly code?: number | undefined;
  readonly reason?: string | undefined;
  readonly message?: string | undefined;
  readonly requestId?: string | undefined;
  readonly said?: string | undefined;
}

/** What only some codes say by themselves. */
const BY_CODE: Readonly<Record<number, string>> = {
  [-32042]: 'missing_credential',
  [-32021]: 'missing_capability',
};

export function judgeMessage(status: number, message: Message): Judged {
  const { result, error } = message;
  if (error) {
    const { code, data } = error;
    const { reason = BY_CODE[code], requestId } = data ?? {};
    return { ending: 'error', status, code, reason, message: error.message, requestId };
  }
  if (result?.isError) {
    return { ending: 'error', status, code: 0, reason: 'tool', message: textOf(message) };
  }
  return { ending: 'result', status, said: textOf(message) };
}

export function judge({ status, json, headers, text }: Answer): Judged {
  if (json) return judgeMessage(status, json);
  // Whatever the gateway answers has its request id; the rest is the balancer's.
  if (headers['x-request-id'] === undefined && status >= 502 && status <= 504) {
    return { ending: 'balancer', status };
  }
  if (status < 300) return { ending: 'result', status };
  return { ending: 'error', status, message: text.slice(0, 200) };
}

export const judgeFailure = (error: unknown): Judged => ({
  ending: /no answer in|not on the stream in/.test(String(error)) ? 'hung' : 'broken',
  status: 0,
  message: String(error).slice(0, 200),
});
