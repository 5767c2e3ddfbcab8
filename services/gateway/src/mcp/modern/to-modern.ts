/**
 * The path from a modern client to a modern upstream: the request goes on as it came, with headers rebuilt for the
 * upstream's own names, and what comes back is relayed until the response.
 *
 * Promises: sent once and never again (invariant 10); the client's leaving ends the exchange with the upstream at
 * once (basic/patterns/cancellation); requests of the upstream to the client are never relayed, for this revision
 * has none (Streamable HTTP, Receiving Messages). No session, no log, nothing to resume.
 */
import type { Logger } from 'pino';
import { GatewayError } from '@viaduct/shared/errors';
import { arrayItems, findPath, sliceOf } from '@viaduct/shared/json-text';
import { methodLabel } from '@viaduct/shared/metrics';
import {
  garbage,
  neverSent,
  refusesCredential,
  request,
  responseFault,
  tryParse,
  unreadable,
  UpstreamStatus,
  upstreamTimeout,
  type Eras,
  type Exchange,
  type WireReply,
} from '../../upstream/upstream.ts';
import { callLost, isResponse, refused } from '../call.ts';
import { LIST_FIELDS } from '../many.ts';
import { errorText, objectsIn, type JsonObject, type RequestMessage } from '../message.ts';
import { metaSlice } from './envelope.ts';
import { modernLeg } from './header-values.ts';
import { relayInputRequired, type InputDeps } from './input-required.ts';
import { createModernFeed } from './modern-feed.ts';
import type { Outcome, Outgoing, Page, Path } from './path.ts';
import { errorStatus } from './statuses.ts';

export interface ToModernDeps extends InputDeps {
  readonly eras: Pick<Eras, 'doubt'>;
  readonly log: Logger;
  /** Everything under way here, so that a pod that stops can say so. */
  readonly rounds: Set<Round>;
}

/** HTTP statuses with which a server says that it does not know this kind of request at all. */
const STRANGE: ReadonlySet<number> = new Set([400, 404, 405, 406, 415, 501]);

const LINGER_MS = 1_000;

export function createToModern(deps: ToModernDeps): Path {
  async function ask(
    method: string,
    { upstream, message, credential, timeoutMs }: Parameters<Path['describe']>[0],
    params = '',
  ): Promise<{ text: string; result: JsonObject }> {
    const id = `viaduct-${method}`;
    const reply = await request(
      upstream,
      `{"jsonrpc":"2.0","id":"${id}","method":"${method}","params":{${params}"_meta":${ownMeta(message)}}}`,
      modernLeg(method, undefined, credential?.headers),
      { id, timeoutMs },
    );
    const { result } = reply.parsed;
    if (typeof result !== 'object' || result === null) {
      throw garbage(upstream.name, `${method} was refused`);
    }
    if ((result as JsonObject)['resultType'] === 'input_required') {
      throw garbage(upstream.name, `input_required in answer to ${method}`);
    }
    return { text: reply.text, result: result as JsonObject };
  }

  return {
    request: (out) => new Round(deps, out).run(),

    async page(wanted): Promise<Page> {
      const { method, cursor } = wanted;
      const { text, result } = await ask(
        method,
        wanted,
        cursor === undefined ? '' : `"cursor":${JSON.stringify(cursor)},`,
      );
      const field = LIST_FIELDS[method]!;
      const list = findPath(text, ['result', field]);
      const values = result[field];
      const slices = (list && arrayItems(text, list.start)) ?? [];
      const objects = objectsIn(values);
      const { nextCursor, ttlMs } = result;
      return {
        items: Array.isArray(values)
          ? slices.map((slice, i) => ({
              text: sliceOf(text, slice),
              value: objects[i] ?? {},
            }))
          : [],
        next: typeof nextCursor === 'string' ? nextCursor : undefined,
        ttlMs: Number.isSafeInteger(ttlMs) && (ttlMs as number) > 0 ? (ttlMs as number) : 0,
      };
    },

    async describe(wanted) {
      const { result } = await ask('server/discover', wanted);
      const { capabilities, instructions } = result;
      return {
        capabilities:
          typeof capabilities === 'object' && capabilities !== null
            ? (capabilities as JsonObject)
            : {},
        instructions: typeof instructions === 'string' ? instructions : undefined,
      };
    },

    feed: (wanted) => createModernFeed(deps, wanted),
  };
}

const ownMeta = (message: RequestMessage): string => {
  const slice = metaSlice(message);
  return slice === undefined ? '{}' : sliceOf(message.text, slice);
};

type Settled = Outcome['outcome'];

/** One request on its way through one modern upstream. */
export class Round {
  readonly #deps: ToModernDeps;
  readonly #out: Outgoing;
  readonly #started = performance.now();
  readonly #settled: Promise<Outcome>;
  #resolve!: (outcome: Outcome) => void;
  #reject!: (error: unknown) => void;
  #done = false;
  #exchange: Exchange | undefined;
  #deadline: NodeJS.Timeout | undefined;
  #linger: NodeJS.Timeout | undefined;
  #offGone: (() => void) | undefined;

  constructor(deps: ToModernDeps, out: Outgoing) {
    this.#deps = deps;
    this.#out = out;
    this.#settled = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
  }

  /** @throws UpstreamStatus for a 401 */
  run(): Promise<Outcome> {
    const { upstream, message, target, credential, paramHeaders, body, reply } = this.#out;
    this.#deps.rounds.add(this);
    this.#deadline = setTimeout(() => {
      this.#fail(upstreamTimeout(upstream.name));
    }, upstream.config.timeoutSeconds * 1000);
    this.#exchange = upstream.post(
      body,
      modernLeg(message.method, target, credential?.headers, paramHeaders),
    );
    this.#exchange.reply.then(
      (got) => {
        this.#onReply(got);
      },
      (error: unknown) => {
        this.#fail(error);
      },
    );
    this.#offGone = reply.onGone(() => {
      this.#stop('cancelled');
    });
    return this.#settled;
  }

  #onReply(got: WireReply): void {
    if (this.#done) return;
    const { upstream } = this.#out;
    if (refusesCredential(got)) {
      if (got.kind === 'events') this.#exchange?.abort();
      this.#clear();
      this.#reject(new UpstreamStatus(upstream.name, got));
      return;
    }
    if (got.kind === 'events') {
      if (got.status === 200) this.#follow(got);
      else this.#fail(garbage(upstream.name, `HTTP ${got.status} with a stream`));
      return;
    }
    this.#onBody(got);
  }

  #onBody(got: WireReply & { kind: 'body' }): void {
    const { upstream, message } = this.#out;
    const text = got.body.toString('utf8');
    const parsed = got.contentType === 'application/json' ? tryParse(text) : undefined;
    if (parsed === undefined || !isResponse(parsed)) {
      if (STRANGE.has(got.status)) this.#deps.eras.doubt(upstream);
      this.#fail(refused(upstream.name, got));
      return;
    }
    const fault = responseFault(parsed);
    if (fault !== undefined) {
      this.#fail(garbage(upstream.name, fault));
      return;
    }
    if (parsed['id'] === message.id) {
      void this.#onResponse(text, parsed, got.status, got.body);
      return;
    }
    // An error that could not be tied to a request (id null) is about the only request there is.
    if ((parsed['id'] ?? null) !== null || parsed['error'] === undefined) {
      this.#fail(garbage(upstream.name, 'a response with another id'));
      return;
    }
    const error = parsed['error'] as { code: number; message: string };
    void this.#onResponse(errorText(message.idText, error), parsed, got.status);
  }

  #follow({ feed }: WireReply & { kind: 'events' }): void {
    const { upstream, reply } = this.#out;
    reply.onDrain = () => {
      feed.resume();
    };
    feed.subscribe({
      event: ({ data }) => {
        if (data === '' || this.#done) return;
        try {
          this.#onEvent(data);
        } catch (error) {
          this.#fail(error);
        }
        if (reply.blocked) feed.pause();
      },
      // There is nothing to resume: a broken stream is a lost request (Streamable HTTP, Receiving Messages).
      retry: () => undefined,
      end: (error) => {
        clearTimeout(this.#linger);
        if (this.#done) return;
        this.#fail(error ?? garbage(upstream.name, 'the stream ended before the answer'));
      },
    });
  }

  #onEvent(data: string): void {
    const { upstream, message, reply } = this.#out;
    const parsed = tryParse(data);
    if (parsed === undefined) {
      this.#fail(garbage(upstream.name, 'an event that is not a JSON-RPC message'));
      return;
    }
    if (isResponse(parsed)) {
      if (parsed['id'] !== message.id) return;
      const fault = responseFault(parsed);
      if (fault === undefined) void this.#onResponse(data, parsed, 200);
      else this.#fail(garbage(upstream.name, fault));
      this.#closeSoon();
      return;
    }
    if (typeof parsed['method'] !== 'string') return;
    if (parsed['id'] !== undefined) {
      this.#deps.log.warn(
        { upstream: upstream.name },
        'a modern server sent a request to its client; it was left out',
      );
      return;
    }
    const out = this.#out.notification(data, parsed);
    if (out !== undefined) reply.notify(out);
  }

  async #onResponse(
    text: string,
    parsed: JsonObject,
    status: number,
    bytes?: Buffer,
  ): Promise<void> {
    // Whatever the stream says after the response is too late.
    this.#done = true;
    this.#clear();
    const { upstream, reply } = this.#out;
    try {
      const error = parsed['error'] as { code?: unknown } | undefined;
      if (error?.code === -32022) this.#deps.eras.doubt(upstream);
      const result = parsed['result'] as JsonObject | undefined;
      if (result?.['resultType'] === 'input_required') {
        reply.finish(await relayInputRequired(this.#deps, this.#out, text, result));
        this.#settle('input_required');
        return;
      }
      const out = this.#out.complete(text, parsed);
      reply.finish(
        // One write with the head; the bytes only where the text is not what was received.
        out === text && bytes !== undefined && Buffer.byteLength(text) !== bytes.length
          ? bytes
          : out,
        error === undefined ? 200 : errorStatus(this.#out.message.method, error.code, status),
      );
      this.#settle(error === undefined ? 'ok' : 'rpc_error');
    } catch (error) {
      reply.fail(this.#explained(error));
      this.#settle('upstream_error');
    }
  }

  /** The response ends the stream (Streamable HTTP, Receiving Messages); a server that forgets to is helped. */
  #closeSoon(): void {
    this.#linger = setTimeout(() => {
      this.#exchange?.abort();
    }, LINGER_MS);
    this.#linger.unref();
  }

  #fail(error: unknown): void {
    if (this.#done) return;
    this.#out.reply.fail(this.#explained(error));
    this.#stop('upstream_error', neverSent(error));
  }

  #explained(error: unknown): unknown {
    const told = unreadable(this.#out.upstream.name, error);
    this.#report(told);
    return told;
  }

  #report(error: unknown): void {
    const { requestId, upstream, message } = this.#out;
    const { code, detail } =
      error instanceof GatewayError ? error : { code: 'internal', detail: String(error) };
    this.#deps.log.warn(
      { requestId, upstream: upstream.name, method: methodLabel(message.method), code, detail },
      'a call failed',
    );
  }

  get userId(): string {
    return this.#out.principal.userId;
  }

  /** This pod stops, or puts the user out, before the upstream has answered. */
  lost(): void {
    this.#fail(callLost());
  }

  /** Closing the exchange is how a modern upstream is told to stop. */
  #stop(outcome: Settled, unsent = false): void {
    if (this.#done) return;
    this.#clear();
    this.#exchange?.abort();
    this.#settle(outcome, unsent);
  }

  #clear(): void {
    this.#done = true;
    clearTimeout(this.#deadline);
    this.#offGone?.();
    this.#out.reply.onDrain = undefined;
    this.#deps.rounds.delete(this);
  }

  #settle(outcome: Settled, unsent = false): void {
    this.#resolve({ outcome, upstreamMs: performance.now() - this.#started, unsent });
  }
}
