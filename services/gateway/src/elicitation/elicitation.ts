/**
 * What a client may be asked, and how the gateway says that it has to ask.
 *
 * The declaration is the whole truth: `elicitation: {}` is form mode only, what is no object declares nothing,
 * and a mode that was not declared is never sent (2025-11-25 client/elicitation, Capabilities; invariant 6).
 */
import type { Elicitation } from '@viaduct/shared/elicitations';
import { badLink, findSecretField } from './form-guard.ts';

export type ElicitationMode = 'form' | 'url';

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

export function canElicit(capabilities: Record<string, unknown>, mode: ElicitationMode): boolean {
  const declared = capabilities['elicitation'];
  if (!isObject(declared)) return false;
  if (mode === 'url') return isObject(declared['url']);
  // `{}` stands for form mode, as before modes existed.
  return isObject(declared['form']) || declared['url'] === undefined;
}

/** Why an upstream may not make a request of this client; undefined when it may. */
export function refusal(
  capabilities: Record<string, unknown>,
  method: string,
  params: Record<string, unknown> | undefined,
): { code: number; message: string; mode: string } | undefined {
  switch (method) {
    case 'elicitation/create': {
      const mode = params?.['mode'] === undefined ? 'form' : params['mode'];
      if (!isObject(capabilities['elicitation'])) {
        return { code: -32601, message: 'The client does not support elicitation.', mode: 'form' };
      }
      if (mode !== 'form' && mode !== 'url') {
        return { code: -32602, message: 'There is no such elicitation mode.', mode: 'other' };
      }
      if (!canElicit(capabilities, mode)) {
        return {
          code: -32602,
          message: `The client does not support elicitation by ${mode}.`,
          mode,
        };
      }
      return undefined;
    }
    case 'sampling/createMessage': {
      const sampling = capabilities['sampling'];
      if (!isObject(sampling)) {
        return { code: -32601, message: 'The client does not support sampling.', mode: 'sampling' };
      }
      if (params?.['tools'] !== undefined && !isObject(sampling['tools'])) {
        return {
          code: -32602,
          message: 'The client does not support tools in sampling.',
          mode: 'sampling',
        };
      }
      return undefined;
    }
    case 'roots/list':
      return isObject(capabilities['roots'])
        ? undefined
        : { code: -32601, message: 'The client does not support roots.', mode: 'roots' };
    default:
      return undefined;
  }
}

export interface Guard {
  readonly development: boolean;
  readonly mode: 'refuse' | 'report';
  readonly words: readonly string[];
}

export interface UnsafeAsk {
  readonly message: string;
  /** For the audit: what gave it away, never a value. */
  readonly detail: string;
  /** False when it is only to be reported. */
  readonly refuse: boolean;
}

/** An elicitation of an upstream that would endanger its user: a secret by form, or a link that is none. */
export function unsafeAsk(
  params: Record<string, unknown> | undefined,
  guard: Guard,
): UnsafeAsk | undefined {
  if (params?.['mode'] === 'url') {
    const fault = badLink(params['url'], guard.development);
    if (fault === undefined) return undefined;
    return {
      message: `The link of the elicitation ${fault}.`,
      detail: `link ${fault}`,
      refuse: true,
    };
  }
  const found = findSecretField(params?.['requestedSchema'], guard.words);
  if (found === undefined) return undefined;
  return {
    message:
      `The field "${found.field}" asks for a secret (${found.because}). Secrets are asked for in URL mode ` +
      'only, never by a form that passes through the client.',
    detail: `${found.field}: ${found.because}`,
    refuse: guard.mode === 'refuse',
  };
}

/** `-32042` of 2025-11-25: the call can be sent again once the link has been followed to its end. */
export function urlRequired(
  elicitation: Elicitation,
  url: string,
): {
  code: number;
  message: string;
  data: unknown;
} {
  return {
    code: -32042,
    message: elicitation.message,
    data: {
      elicitations: [
        { mode: 'url', elicitationId: elicitation.id, url, message: elicitation.message },
      ],
    },
  };
}

export const linkOf = (publicUrl: string, elicitationId: string): string =>
  `${publicUrl}/connect/${elicitationId}`;

/** For clients that cannot open links: in words, what the person can do (design, section 6). */
export function explainedRefusal(publicUrl: string, displayName: string): string {
  return (
    `This tool needs your ${displayName} account, which is not connected yet, and this client cannot open ` +
    `links for you. Connect it at ${publicUrl}/connections in a browser and call the tool again.`
  );
}
