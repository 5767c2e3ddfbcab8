/**
 * One request of a sessionful client on its way through a modern upstream (2026-07-28 basic/patterns/mrtr): what the
 * upstream requires is asked of the client on the call's stream, and when all answers of the round are there the
 * request is sent again with them and the upstream's `requestState` exactly as given.
 *
 * Promises: nothing is asked that the client has not declared; decline and cancel go through as they are; an answer
 * that this revision cannot carry ends the call in words, never in silence. The pod that holds the call waits; an
 * answer may arrive at any (round-answers.ts).
 */
import { randomBytes } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { GatewayError, fail } from '@viaduct/shared/errors';
import { DuplicateMember, findPath, sliceOf } from '@viaduct/shared/json-text';
import type { Principal } from '@viaduct/shared/principal';
import { garbage, tryParse, type Eras, type Leg, type Upstream } from '../../upstream/upstream.ts';
import type { Asks } from '../asks.ts';
import type { CallStreamWriter, Dialect, Sending, UpstreamResponse } from '../dialect.ts';
import type { JsonObject, RequestMessage } from '../message.ts';
import type { Envelope } from '../modern/envelope.ts';
import { modernLeg, namedBy } from '../modern/header-values.ts';
import { checkDeclared, type InputDeps } from '../modern/input-required.ts';
import { callNotification } from '../modern/results.ts';
import { capabilitiesOf, type Session } from '../sessions.ts';
import type { Headers } from './mirrored.ts';
import { Questions, type Question } from './questions.ts';
import { levelOf, retryOf } from './requests.ts';
import { explained, lacking, legacyResponse } from './responses.ts';
import type { ClientAnswer, RoundAnswers, Waiting } from './round-answers.ts';

/** A server that is never content is not served for ever. */
const MAX_ROUNDS = 50;
/** Pauses before a request that the upstream wants again without asking anything. */
const FIRST_PAUSE_MS = 100;
const MAX_PAUSE_MS = 2_000;
const HEADER_MISMATCH = -32020;
const MISSING_CAPABILITY = -32021;
const UNSUPPORTED_VERSION = -32022;

export interface RoundTripDeps extends InputDeps {
  readonly asks: Asks;
  readonly rounds: RoundAnswers;
  readonly eras: Pick<Eras, 'doubt'>;
}

export interface RoundTripInput {
  readonly session: Session;
  readonly principal: Principal;
  readonly upstream: Upstream;
  readonly message: RequestMessage;
  readonly requestId: string;
  /** The request as this upstream wants it, but for what a repetition adds. */
  readonly request: string;
  /** Tool, prompt or URI by the upstream's own name. */
  readonly target: string | undefined;
  readonly paramHeaders: Headers;
  credential(): Leg['credential'];
  /** `Mcp-Param-*` by the tool's definition of this moment; undefined when it must not be called. */
  paramHeadersNow(): Promise<Headers | undefined>;
  /** Takes the tools that must not be shown out of a list. */
  hideTools(reply: UpstreamResponse): UpstreamResponse;
  /** A message of ours on its way to the client: names as the endpoint of many has them. */
  toClient(text: string, method: string): string;
}

export class RoundTrip implements Dialect {
  readonly #deps: RoundTripDeps;
  readonly #in: RoundTripInput;
  readonly #envelope: Envelope;
  #headers: Headers;
  #attempts = 0;
  #rounds = 0;
  #pauseMs = FIRST_PAUSE_MS;
  #refreshed = false;
  #retry:
    | { inputResponses: Record<string, string> | undefined; requestState: string | undefined }
    | undefined;
  readonly #questions: Questions;
  #waiting: Waiting | undefined;
  /** Ids that the client has not answered yet. */
  #open: readonly string[] = [];
  #over = false;

  constructor(deps: RoundTripDeps, input: RoundTripInput) {
    this.#deps = deps;
    this.#in = input;
    this.#headers = input.paramHeaders;
    this.#questions = new Questions(input.session.protocolVersion);
    this.#envelope = {
      capabilities: capabilitiesOf(input.session),
      logLevel: levelOf(input.session.level),
      progressToken: (input.message.params?.['_meta'] as JsonObject | undefined)?.['progressToken'],
    };
  }

  next(): Sending {
    const { request, message, target, credential } = this.#in;
    const first = this.#attempts === 0;
    // Requests of different rounds are independent, and so are their ids (mrtr, Client Requirements 3).
    const id = first
      ? message.id
      : `viaduct-${randomBytes(9).toString('base64url')}-${this.#attempts}`;
    this.#attempts++;
    return {
      id,
      body: first
        ? request
        : retryOf(request, {
            id: String(id),
            inputResponses: this.#retry?.inputResponses,
            requestState: this.#retry?.requestState,
          }),
      address: modernLeg(message.method, target, credential(), this.#headers),
    };
  }

  notification(text: string, parsed: JsonObject): string | undefined {
    if (parsed['id'] !== undefined) return undefined; // a server of this revision has no requests to send
    const { upstream } = this.#in;
    const context = { envelope: this.#envelope, upstream: upstream.name, many: false };
    return callNotification(text, parsed, context);
  }

  farewell(): readonly string[] {
    return this.#open.map((id) =>
      JSON.stringify({
        jsonrpc: '2.0',
        method: 'notifications/cancelled',
        params: { requestId: id, reason: 'The call that needed this answer has ended.' },
      }),
    );
  }

  end(): void {
    this.#over = true;
    this.#waiting?.forget();
  }

  async response(
    reply: UpstreamResponse,
    stream: CallStreamWriter,
  ): Promise<'again' | UpstreamResponse> {
    try {
      return await this.#respond(reply, stream);
    } catch (error) {
      if (error instanceof DuplicateMember) throw garbage(this.#in.upstream.name, error.message);
      if (error instanceof GatewayError && error.code === 'missing_capability') {
        return this.#inWords(
          lacking(this.#in.upstream.name, error.data['requiredCapabilities']),
          'missing_capability',
          { requiredCapabilities: error.data['requiredCapabilities'] },
        );
      }
      throw error;
    }
  }

  async #respond(
    reply: UpstreamResponse,
    stream: CallStreamWriter,
  ): Promise<'again' | UpstreamResponse> {
    const { upstream, message } = this.#in;
    const { text, parsed } = reply;
    const error = parsed['error'] as { code?: unknown; data?: JsonObject } | undefined;
    if (error !== undefined) return this.#onError(reply, error);
    const result = parsed['result'] as JsonObject | null;
    const type = result?.['resultType'] ?? 'complete';
    if (type === 'input_required') return this.#onInputRequired(text, result!, stream);
    if (type !== 'complete') {
      throw garbage(
        upstream.name,
        `a resultType that nobody has asked for: ${JSON.stringify(type).slice(0, 100)}`,
      );
    }
    this.#completeLinks(stream, {});
    const shown = message.method === 'tools/list' ? this.#in.hideTools(reply) : reply;
    return { ...shown, text: legacyResponse(shown.text, shown.parsed, message) };
  }

  async #onError(
    reply: UpstreamResponse,
    error: { code?: unknown; data?: JsonObject },
  ): Promise<'again' | UpstreamResponse> {
    const { upstream, message } = this.#in;
    switch (error.code) {
      case HEADER_MISMATCH:
        if (await this.#headersChanged()) return 'again';
        break;
      case MISSING_CAPABILITY: {
        const required = error.data?.['requiredCapabilities'];
        return this.#inWords(lacking(upstream.name, required), 'missing_capability', {
          ...(required !== undefined && { requiredCapabilities: required }),
        });
      }
      case UNSUPPORTED_VERSION:
        this.#deps.eras.doubt(upstream);
        break;
      default:
    }
    return { ...reply, text: legacyResponse(reply.text, reply.parsed, message) };
  }

  /**
   * The upstream refused the headers before it did anything: with another definition of the tool, other headers
   * (Streamable HTTP, Custom Headers, Client Behavior). Once.
   */
  async #headersChanged(): Promise<boolean> {
    if (this.#refreshed || this.#in.message.method !== 'tools/call') return false;
    this.#refreshed = true;
    const now = await this.#in.paramHeadersNow();
    if (now === undefined || JSON.stringify(now) === JSON.stringify(this.#headers)) return false;
    this.#headers = now;
    return true;
  }

  async #onInputRequired(
    text: string,
    result: JsonObject,
    stream: CallStreamWriter,
  ): Promise<'again' | UpstreamResponse> {
    const { upstream, message } = this.#in;
    const { name } = upstream;
    if (namedBy(message.method) === undefined) {
      throw garbage(name, `input_required in answer to ${message.method}`);
    }
    const { inputRequests, requestState } = result;
    if (inputRequests === undefined && requestState === undefined) {
      throw garbage(name, 'input_required without inputRequests and requestState');
    }
    if (requestState !== undefined && typeof requestState !== 'string') {
      throw garbage(name, 'a requestState that is no string');
    }
    if (++this.#rounds > MAX_ROUNDS) throw garbage(name, `more than ${MAX_ROUNDS} rounds`);
    const state = findPath(text, ['result', 'requestState']);
    let inputResponses: Record<string, string> | undefined;
    if (isEmpty(inputRequests)) {
      await this.#pause();
    } else {
      checkDeclared(this.#deps, this.#caller, name, inputRequests);
      this.#completeLinks(stream, inputRequests as JsonObject);
      const answers = await this.#ask(
        this.#questions.of(text, inputRequests as JsonObject),
        stream,
      );
      if (!('inputResponses' in answers)) return answers;
      ({ inputResponses } = answers);
    }
    this.#retry = { inputResponses, requestState: state && sliceOf(text, state) };
    return 'again';
  }

  get #caller(): Parameters<typeof checkDeclared>[1] {
    const { principal, requestId, message } = this.#in;
    return { principal, requestId, message, envelope: this.#envelope };
  }

  /** "The client MAY retry immediately"; a server that says so again and again is asked more and more slowly. */
  async #pause(): Promise<void> {
    await delay(this.#pauseMs, undefined, { ref: false });
    this.#pauseMs = Math.min(this.#pauseMs * 2, MAX_PAUSE_MS);
  }

  async #ask(
    asks: readonly Question[],
    stream: CallStreamWriter,
  ): Promise<{ inputResponses: Record<string, string> } | UpstreamResponse> {
    const { session, upstream } = this.#in;
    const id = stream.open();
    if (id === undefined) {
      return this.#inWords(
        `The server "${upstream.name}" needs input, but this call was sent in a batch, where nobody can be asked. Send it alone.`,
        'input_required',
      );
    }
    const round = randomBytes(9).toString('base64url');
    // Before anything goes out: an answer may be here before the next line.
    this.#waiting = this.#deps.rounds.wait(
      session,
      round,
      asks.map((ask) => ask.id),
    );
    this.#open = asks.map((ask) => ask.id);
    const texts = await this.#deps.asks.registerRound(
      { session, upstream, stream: id, round },
      asks,
    );
    if (this.#over) return never();
    for (const text of texts) stream.send(text);
    return this.#read(asks, await this.#waiting.answers, stream);
  }

  #read(
    asks: readonly Question[],
    answers: ReadonlyMap<string, ClientAnswer>,
    stream: CallStreamWriter,
  ): { inputResponses: Record<string, string> } | UpstreamResponse {
    this.#open = this.#open.filter((id) => !answers.has(id));
    const inputResponses = Object.create(null) as Record<string, string>; // keys are the upstream's
    for (const { key, id, method } of asks) {
      const answer = answers.get(id);
      if (answer?.kind === 'result') {
        inputResponses[key] = answer.text;
        if (tryParse(answer.text)?.['action'] === 'accept') this.#questions.accepted(key);
      } else if (answer !== undefined) {
        for (const last of this.farewell()) stream.send(last);
        return this.#refusedByClient(method, answer.text);
      }
    }
    return { inputResponses };
  }

  /** The answers of a retry are results; there is no place for an error in them (mrtr, InputResponses). */
  #refusedByClient(method: string, text: string): UpstreamResponse {
    const error = tryParse(text);
    const said =
      typeof error?.['message'] === 'string' ? `: ${error['message'].slice(0, 500)}` : '';
    return this.#inWords(
      `The server "${this.#in.upstream.name}" needed an answer to ${method}, but the client answered with an error${said}. The call has ended.`,
      'client_refused',
      {
        method,
        ...(error !== undefined && {
          clientError: { code: error['code'], message: error['message'] },
        }),
      },
    );
  }

  #inWords(text: string, reason: string, data: JsonObject = {}): UpstreamResponse {
    const out = explained(this.#in.message, text, reason, {
      ...data,
      requestId: this.#in.requestId,
    });
    return { text: out, parsed: tryParse(out) ?? {} };
  }

  #completeLinks(stream: CallStreamWriter, wanted: JsonObject): void {
    const method = 'notifications/elicitation/complete';
    for (const elicitationId of this.#questions.completed(wanted)) {
      const text = JSON.stringify({ jsonrpc: '2.0', method, params: { elicitationId } });
      stream.send(this.#in.toClient(text, method));
    }
  }
}

/** Nothing is asked; what is no object at all is for others to refuse. */
const isEmpty = (value: unknown): boolean =>
  value === undefined ||
  (typeof value === 'object' && value !== null && Object.keys(value).length === 0);

/** The call has ended meanwhile; whoever waits for this is not interested any more. */
const never = (): Promise<never> =>
  Promise.reject(fail('internal', 'The call has ended while its client was being asked.'));
