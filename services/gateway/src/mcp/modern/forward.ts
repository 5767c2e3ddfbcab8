/**
 * One request of a modern client to one upstream: which upstream, whether it may, what it needs first, and what of it
 * is the upstream's to see. How it travels is the path's (path.ts).
 */
import { fail, type GatewayError } from '@viaduct/shared/errors';
import {
  applyEdits,
  DuplicateMember,
  findPath,
  objectMembers,
  removeMembers,
  sliceOf,
  type Edit,
  type Slice,
} from '@viaduct/shared/json-text';
import { UpstreamStatus, type Eras, type Upstream } from '../../upstream/upstream.ts';
import type { Credentials, Injected } from '../credentials.ts';
import type { Endpoint, Guard } from '../guard.ts';
import { nameAt } from '../many.ts';
import { resultResponse, type RequestMessage } from '../message.ts';
import { qualifyName, splitName, splitUri } from '../names.ts';
import { CONNECT_TOOL } from '../relay.ts';
import type { Connect, Held } from './connect.ts';
import { setMembers } from './edits.ts';
import { mismatch, SUPPORTED_VERSIONS } from './envelope.ts';
import { namedBy } from './header-values.ts';
import { connectOnly, GATEWAY_META, isUnauthorized, type Lists } from './lists.ts';
import type { Caller, Outcome, Outgoing, Path } from './path.ts';
import type { Reply } from './reply.ts';
import type { Binding, Carried, Opened, RequestStates } from './request-state.ts';
import { callNotification, completeResponse } from './results.ts';
import type { ToolBook } from './tool-book.ts';
import { mismatchOf, paramHeaders } from './tool-headers.ts';

/** Answers for the upstream that a state carries while the person connects; what is longer is asked for again. */
const MAX_HELD = 256 * 1024;
/** What is known of a tool is believed this long without asking its upstream again. */
const TOOL_FRESH_MS = 2_000;

export interface ForwardDeps {
  readonly eras: Pick<Eras, 'of'>;
  readonly paths: Readonly<Record<'modern' | 'legacy', Path>>;
  readonly guard: Guard;
  readonly credentials: Pick<Credentials, 'peek' | 'rejected' | 'stepsUp'>;
  readonly connect: Connect;
  readonly states: RequestStates;
  readonly lists: Lists;
  readonly book: ToolBook;
}

export interface Forwarded extends Caller {
  readonly reply: Reply;
  readonly endpoint: Endpoint;
  /** Begun together with the other commands to Redis; undefined where the upstream was not known yet. */
  readonly credential: Promise<Injected | undefined> | undefined;
}

interface Routed {
  readonly upstream: Upstream;
  /** Tool, prompt or URI by the upstream's own name. */
  readonly target: string | undefined;
  readonly edits: readonly Edit[];
}

export function createForward(deps: ForwardDeps): (call: Forwarded) => Promise<void> {
  const { guard, credentials, connect, states, lists, book, paths, eras } = deps;

  /** On the endpoint of many, names say whose they are. @throws GatewayError */
  async function route(call: Forwarded): Promise<Routed> {
    const { message, endpoint } = call;
    if (endpoint.name !== '') {
      const member = namedBy(message.method);
      const target = member === undefined ? undefined : String(message.params?.[member]);
      return { upstream: endpoint.upstreams[0]!, target, edits: [] };
    }
    const named = nameAt(message);
    if (named === undefined) throw methodNotFound(message);
    const { kind, value, path } = named;
    const split = kind === 'uri' ? splitUri(value) : splitName(value);
    const upstream = endpoint.upstreams.find(({ name }) => name === split?.upstream);
    const at = placeOf(message, path);
    if (split === undefined || upstream === undefined || at === undefined) {
      throw unknownTarget(kind, value);
    }
    // Before the upstream is asked anything on this caller's behalf.
    guard.authorize(call.reply.answer, endpoint, call.principal, upstream);
    let own: string;
    if ('uri' in split) own = split.uri;
    else own = split.cut ? await wholeName(call, upstream, value, split.name) : split.name;
    return { upstream, target: own, edits: [{ ...at, text: JSON.stringify(own) }] };
  }

  /** The whole of a name that was cut, out of the upstream's own list. */
  async function wholeName(
    call: Forwarded,
    upstream: Upstream,
    qualified: string,
    beginning: string,
  ): Promise<string> {
    const method = call.message.method === 'tools/call' ? 'tools/list' : 'prompts/list';
    const found = await lists.find(
      call,
      upstream,
      method,
      ({ name }) => typeof name === 'string' && qualifyName(upstream.name, name) === qualified,
    );
    return found === undefined ? beginning : String(found['name']);
  }

  /** @throws GatewayError header_mismatch */
  async function checkMirrored(call: Forwarded, upstream: Upstream, tool: string): Promise<void> {
    const { principal, message, reply } = call;
    const args = message.params?.['arguments'];
    const { headers } = reply.answer.req;
    const known = book.known(upstream, principal.userId, tool);
    if (known === undefined || mismatchOf(known.params, args, headers) === undefined) return;
    let { params } = known;
    if (Date.now() - known.seenAtMs > TOOL_FRESH_MS) {
      // The definition may have changed since, and the client may have seen the new one at another pod.
      await lists.find(call, upstream, 'tools/list', ({ name }) => name === tool);
      params = book.known(upstream, principal.userId, tool)?.params ?? [];
    }
    const fault = mismatchOf(params, args, headers);
    if (fault !== undefined) throw mismatch(fault);
  }

  /** Opens what the client carries from an earlier round. @throws GatewayError invalid_params */
  async function openState(binding: Binding): Promise<Opened | undefined> {
    const { params, method } = binding.message;
    if (namedBy(method) === undefined) return undefined;
    const responses = params?.['inputResponses'];
    if (responses !== undefined && !isObject(responses)) {
      throw fail('invalid_params', 'inputResponses must be an object.', { status: 200 });
    }
    const state = params?.['requestState'];
    if (state === undefined) return undefined;
    if (typeof state !== 'string') {
      throw fail('invalid_params', 'requestState must be the string that was given.', {
        status: 200,
      });
    }
    return states.open(binding, state);
  }

  return async function forward(call) {
    const { reply, principal, endpoint, message, requestId, envelope } = call;
    const { answer } = reply;
    const { upstream, target, edits } = await route(call);
    answer.seen.upstream = upstream.name;
    const tool = message.method === 'tools/call' ? target : undefined;
    guard.authorize(answer, endpoint, principal, upstream, tool);
    if (tool !== undefined) guard.checkGroups(answer, endpoint, principal, upstream, tool);

    const binding: Binding = { principal, endpoint: endpoint.name, message, requestId };
    const opened = await openState(binding);
    const carried = opened?.carried;
    const held = heldOf(message, carried);
    const seal = (next: Carried): Promise<string> => states.seal(binding, opened?.round ?? 0, next);
    const asked = { ...call, upstream, endpoint: endpoint.name, seal };

    const peek = () => credentials.peek(principal, upstream, requestId);
    let credential = await (call.credential ?? peek());
    const connected = upstream.config.connection !== undefined;
    const waits = credential === undefined || credentials.stepsUp(upstream);
    if (connected && waits && carried?.kind === 'connect') {
      if (!(await connect.resume(asked, carried.elicitationId, held))) return;
      credential = await peek();
    }
    if (connected && credential === undefined && tool !== undefined) {
      await connect.ask(asked, held);
      return;
    }
    if (tool === CONNECT_TOOL && carried?.kind === 'connect') {
      // The flow that this tool starts has ended well; unless the upstream has one of that name, that was all.
      const real = await lists.find(call, upstream, 'tools/list', ({ name }) => name === tool);
      if (real === undefined) {
        reply.finish(connectedResult(message, upstream.name));
        return;
      }
    }
    if (tool !== undefined) await checkMirrored(call, upstream, tool);

    const many = endpoint.name === '';
    const context = {
      method: message.method,
      upstream: upstream.config,
      many,
      retry: opened !== undefined,
      seeTools: (tools: readonly Record<string, unknown>[]) => {
        const hidden = book.learn(upstream, principal.userId, tools);
        return (name: string) => !hidden.has(name) && guard.allows(principal, upstream, name);
      },
    };
    const all = [...edits, ...roundEdits(message, carried)];
    const out: Omit<Outgoing, 'credential'> = {
      principal,
      requestId,
      message,
      envelope,
      reply,
      upstream,
      target,
      body: all.length === 0 ? (message.bytes ?? message.text) : applyEdits(message.text, all),
      paramHeaders: paramHeaders(answer.req.headers),
      carried,
      seal,
      notification: (text, parsed) =>
        callNotification(text, parsed, { envelope, upstream: upstream.name, many }),
      complete: (text, parsed) => completeResponse(text, parsed, context),
    };
    if (opened !== undefined) await states.claim(binding, opened);
    if (reply.gone) return;
    const outcome = await send(out, credential, connected);
    if (outcome !== undefined && 'stepUp' in outcome) {
      await connect.ask(asked, held, outcome.stepUp);
      return;
    }
    if (outcome === undefined) {
      await unauthorized(call, upstream, many, () => connect.ask(asked, held));
      return;
    }
    if (outcome.unsent === true && opened !== undefined) await states.release(binding, opened);
    answer.seen.outcome = outcome.outcome;
    answer.seen.upstreamMs = outcome.upstreamMs;
  };

  /** Undefined when the upstream wants a credential that there is none of, or none that it takes. */
  async function send(
    out: Omit<Outgoing, 'credential'>,
    first: Injected | undefined,
    connected: boolean,
  ): Promise<Outcome | { readonly stepUp: string } | undefined> {
    const { upstream, principal, requestId } = out;
    let credential = first;
    for (let refusals = 0; ; refusals++) {
      try {
        const era = await eras.of(upstream, 'modern', credential?.headers);
        return await paths[era].request({ ...out, credential });
      } catch (error) {
        if (connected && error instanceof UpstreamStatus && credentials.stepsUp(upstream)) {
          if (error.scopes !== undefined) return { stepUp: error.scopes };
        }
        if (!isUnauthorized(error) || !connected) throw error;
        if (credential === undefined || refusals > 0) return undefined;
        const { version } = credential;
        credential = await credentials.rejected(principal, upstream, version, requestId);
        if (credential === undefined) return undefined;
      }
    }
  }
}

const isObject = (value: unknown): boolean =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** What a client sees of an upstream that lets nobody in without a credential. */
async function unauthorized(
  { message, reply }: Forwarded,
  upstream: Upstream,
  many: boolean,
  ask: () => Promise<void>,
): Promise<void> {
  const { method, idText } = message;
  const finish = (result: Record<string, unknown>): void => {
    reply.finish(
      resultResponse(idText, {
        resultType: 'complete',
        ...result,
        ttlMs: 0,
        cacheScope: 'private',
        _meta: GATEWAY_META,
      }),
    );
  };
  switch (method) {
    case 'tools/list':
      finish({ tools: connectOnly(method, upstream, many) });
      return;
    case 'prompts/list':
      finish({ prompts: [] });
      return;
    case 'resources/list':
      finish({ resources: [] });
      return;
    case 'resources/templates/list':
      finish({ resourceTemplates: [] });
      return;
    case 'server/discover':
      finish({
        supportedVersions: SUPPORTED_VERSIONS,
        capabilities: {
          tools: { listChanged: true },
          resources: { listChanged: true },
          prompts: { listChanged: true },
        },
        instructions: `This server needs an account that is not connected yet. Call the tool "${CONNECT_TOOL}".`,
      });
      return;
    default:
      await ask();
  }
}

/** What an upstream is to get once there is a credential: its own state, and the answers that are meant for it. */
function heldOf(message: RequestMessage, carried: Carried | undefined): Held {
  if (carried?.kind === 'connect') {
    const { upstreamState, inputResponses } = carried;
    return {
      ...(upstreamState !== undefined && { upstreamState }),
      ...(inputResponses !== undefined && { inputResponses }),
    };
  }
  const upstreamState = carried?.kind === 'upstream' ? carried.upstreamState : undefined;
  const at = findPath(message.text, ['params', 'inputResponses']);
  const inputResponses = at === undefined ? undefined : sliceOf(message.text, at);
  return {
    ...(upstreamState !== undefined && { upstreamState }),
    ...(inputResponses !== undefined && inputResponses.length <= MAX_HELD && { inputResponses }),
  };
}

/** Puts the upstream's own `requestState` where ours was, and takes out answers that are not its own. */
export function roundEdits(message: RequestMessage, carried: Carried | undefined): Edit[] {
  const params = message.members.get('params');
  if (carried === undefined || carried.kind === 'suspended' || params === undefined) return [];
  const wanted: Record<string, string | undefined> = { requestState: carried.upstreamState };
  if (carried.kind === 'connect') wanted['inputResponses'] = carried.inputResponses;
  const present = objectMembers(message.text, params.start) ?? new Map<string, unknown>();
  const set: Record<string, string> = {};
  const remove: string[] = [];
  for (const [name, value] of Object.entries(wanted)) {
    if (value !== undefined) set[name] = value;
    else if (present.has(name)) remove.push(name);
  }
  // What is put in comes first: both may begin at the same place.
  return [
    ...setMembers(message.text, params.start, set),
    ...removeMembers(message.text, params.start, remove),
  ];
}

/** @throws GatewayError invalid_request when a member on the way stands twice */
function placeOf(message: RequestMessage, path: readonly string[]): Slice | undefined {
  try {
    return findPath(message.text, path);
  } catch (error) {
    if (!(error instanceof DuplicateMember)) throw error;
    throw fail('invalid_request', `The params are ambiguous: ${error.message}.`);
  }
}

function connectedResult(message: RequestMessage, name: string): string {
  const text = `The server "${name}" is connected. List the tools again to see what it offers.`;
  return resultResponse(message.idText, {
    resultType: 'complete',
    content: [{ type: 'text', text }],
    _meta: GATEWAY_META,
  });
}

export const methodNotFound = ({ method }: RequestMessage): GatewayError =>
  fail('method_not_found', `Method not found: ${method.slice(0, 200)}`);

function unknownTarget(kind: 'tool' | 'prompt' | 'uri', value: string): GatewayError {
  return kind === 'uri'
    ? fail('invalid_params', 'Resource not found', { status: 200, data: { uri: value } })
    : fail('invalid_params', `Unknown ${kind}: ${value.slice(0, 200)}`, { status: 200 });
}
