/**
 * What a modern upstream requires, in the shape in which a sessionful client is asked: a request each, with what an
 * elicitation has in one era only (an id for links since 2025-11-25, no mode at all before that). Keeps in mind which
 * links the person was sent to, so that the client can be told when they are done with.
 */
import { randomBytes } from 'node:crypto';
import {
  applyEdits,
  findPath,
  objectMembers,
  removeMembers,
  setMember,
  sliceOf,
} from '@viaduct/shared/json-text';
import { newRoundAskId } from '../asks.ts';
import type { JsonObject } from '../message.ts';

const FIRST_VERSION_WITH_MODES = '2025-11-25';

export interface Question {
  /** The upstream's own name for it. */
  readonly key: string;
  /** Under which the client is asked. */
  readonly id: string;
  readonly method: string;
  /** The request, with any id. */
  readonly text: string;
}

interface Link {
  readonly id: string;
  readonly url: unknown;
  accepted: boolean;
}

export class Questions {
  readonly #protocolVersion: string;
  readonly #links = new Map<string, Link>();

  /** @param protocolVersion of the client */
  constructor(protocolVersion: string) {
    this.#protocolVersion = protocolVersion;
  }

  /**
   * @param text the upstream's response
   * @param inputRequests the same, parsed; checked already
   */
  of(text: string, inputRequests: JsonObject): Question[] {
    const at = findPath(text, ['result', 'inputRequests'])!;
    const slices = objectMembers(text, at.start)!;
    return Object.entries(inputRequests).map(([key, value]) => {
      const request = value as JsonObject;
      const method = String(request['method']);
      const params = findPath(text, ['params'], slices.get(key)!.start);
      const written = params && this.#params(key, request, method, sliceOf(text, params));
      const rest = written === undefined ? '' : `,"params":${written}`;
      return {
        key,
        id: newRoundAskId(),
        method,
        text: `{"jsonrpc":"2.0","id":0,"method":${JSON.stringify(method)}${rest}}`,
      };
    });
  }

  #params(key: string, request: JsonObject, method: string, text: string): string {
    if (method !== 'elicitation/create') return text;
    const params = request['params'] as JsonObject | undefined;
    if (params?.['mode'] !== 'url') {
      return this.#protocolVersion < FIRST_VERSION_WITH_MODES
        ? applyEdits(text, removeMembers(text, 0, ['mode']))
        : text;
    }
    const { url } = params;
    const before = this.#links.get(key);
    // Asked for the same link again, the client learns that it is the same.
    const link =
      before?.url === url
        ? before!
        : { id: randomBytes(16).toString('base64url'), url, accepted: false };
    this.#links.set(key, link);
    return applyEdits(text, [setMember(text, 0, 'elicitationId', JSON.stringify(link.id))]);
  }

  /** The person has agreed to follow a link; whether it was followed, the upstream knows. */
  accepted(key: string): void {
    const link = this.#links.get(key);
    if (link !== undefined) link.accepted = true;
  }

  /**
   * The upstream has gone on after the person was sent to a link: ids of the links that are done with (2025-11-25
   * client/elicitation, Completion Notifications).
   *
   * @param wanted what the upstream asks for in this round
   */
  completed(wanted: JsonObject): string[] {
    const ids: string[] = [];
    for (const [key, link] of this.#links) {
      const again = wanted[key] as { params?: JsonObject } | undefined;
      if (again?.params?.['url'] === link.url) continue;
      this.#links.delete(key);
      if (link.accepted) ids.push(link.id);
    }
    return ids;
  }
}
