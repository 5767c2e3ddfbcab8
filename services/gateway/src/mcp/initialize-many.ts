/**
 * `initialize` on the endpoint of many: every upstream is told hello at once, with the client's own
 * capabilities; who does not answer in time joins later, when somebody calls it or lists.
 */
import type { Logger } from 'pino';
import type { Principal } from '@viaduct/shared/principal';
import { keys } from '@viaduct/shared/redis/keys';
import type { Scripts } from '@viaduct/shared/redis/scripts';
import { tryParse, type Upstream } from '../upstream/upstream.ts';
import type { Answer } from './answer.ts';
import { readHello, type InitializeDeps } from './initialize.ts';
import { INIT_ID, type OpenedLeg } from './legs.ts';
import { within } from './budget.ts';
import { resultResponse, type JsonObject, type RequestMessage } from './message.ts';
import { UPSTREAM_GRACE_SECONDS, upstreamFields, type Session } from './sessions.ts';

/** The whole handshake is out within two seconds. */
const HELLO_BUDGET_MS = 1_500;

export interface Joining {
  readonly scripts: Scripts;
  readonly ttlSeconds: number;
  readonly log: Logger;
  /** An upstream is there now that the lists so far were without. */
  onJoined(session: Session): Promise<void>;
}

export async function initializeMany(
  deps: InitializeDeps & Joining,
  input: {
    principal: Principal;
    upstreams: readonly Upstream[];
    message: RequestMessage;
    answer: Answer;
  },
): Promise<void> {
  const { principal, upstreams, message, answer } = input;
  const hello = readHello(message);
  const body = `{"jsonrpc":"2.0","id":"${INIT_ID}","method":"initialize","params":${hello.initText}}`;
  const hellos = upstreams.map((upstream) => ({
    upstream,
    work: greet(deps, principal, upstream, body),
  }));
  const opened = await Promise.all(
    hellos.map(({ upstream, work }) =>
      within(work, HELLO_BUDGET_MS).catch((error: unknown) => {
        deps.log.info({ err: error, upstream: upstream.name }, 'an upstream joins a session later');
        return undefined;
      }),
    ),
  );
  const legs = opened.filter((leg) => leg !== undefined);
  const session = await deps.sessions.create(principal, {
    endpoint: '',
    protocolVersion: hello.version,
    capabilitiesText: hello.capabilitiesText,
    clientInfoText: hello.clientInfoText,
    initText: hello.initText,
    upstreams: legs.map((leg) => leg.state),
  });
  deps.onStarted(session, answer);
  hellos.forEach(({ upstream, work }, i) => {
    if (opened[i] === undefined) void joinLate(deps, session, upstream, work);
  });
  answer.json(200, resultResponse(message.idText, merged(hello.version, legs, upstreams.length)), {
    'Mcp-Session-Id': session.sessionId,
  });
}

async function greet(
  deps: InitializeDeps,
  principal: Principal,
  upstream: Upstream,
  body: string,
): Promise<OpenedLeg> {
  const credential = await deps.credential(principal, upstream);
  const leg = await deps.legs.open(upstream, body, INIT_ID, credential);
  if (tryParse(leg.text)?.['error'] !== undefined) throw new Error('initialize was refused');
  await deps.legs.ready(upstream, leg.state, credential);
  return leg;
}

/** A slow hello that ends well is kept, unless the session opened another leg meanwhile. */
async function joinLate(
  deps: Joining & Pick<InitializeDeps, 'legs'>,
  session: Session,
  upstream: Upstream,
  work: Promise<OpenedLeg>,
): Promise<void> {
  const { userId, sessionId } = session;
  try {
    const { state } = await work;
    const reply = await deps.scripts.swapUpstream(
      [keys.session(userId, sessionId), keys.upstream(userId, sessionId, upstream.name)],
      ['', deps.ttlSeconds + UPSTREAM_GRACE_SECONDS, ...upstreamFields(state)],
    );
    if (Array.isArray(reply) && reply[0] === 1) {
      await deps.onJoined(session);
      return;
    }
    deps.legs.end([
      { name: upstream.name, sid: state.sid, protocolVersion: state.protocolVersion ?? '' },
    ]);
  } catch (error) {
    deps.log.debug({ err: error, upstream: upstream.name }, 'an upstream did not join a session');
  }
}

const CHANGING = ['tools', 'prompts', 'resources'] as const;

/** One server's capabilities out of many. Lists may always change: an upstream that was away comes back. */
function merged(version: string, legs: readonly OpenedLeg[], total: number): JsonObject {
  const all = legs.map(({ text, state }) => ({
    name: state.name,
    result: (tryParse(text)?.['result'] ?? {}) as JsonObject,
  }));
  const capabilities: Record<string, JsonObject> = {};
  for (const { result } of all) {
    const own = (result['capabilities'] ?? {}) as Record<string, JsonObject | undefined>;
    for (const name of CHANGING) {
      if (own[name] === undefined) continue;
      const subscribe =
        own[name]['subscribe'] === true || capabilities[name]?.['subscribe'] === true;
      capabilities[name] = { listChanged: true, ...(subscribe && { subscribe }) };
    }
    for (const name of ['logging', 'completions'])
      if (own[name] !== undefined) capabilities[name] = {};
  }
  if (legs.length < total)
    for (const name of CHANGING) capabilities[name] ??= { listChanged: true };
  const instructions = all
    .filter(
      ({ result }) => typeof result['instructions'] === 'string' && result['instructions'] !== '',
    )
    .map(({ name, result }) => `# ${name}\n\n${String(result['instructions'])}`)
    .join('\n\n');
  return {
    protocolVersion: version,
    capabilities,
    serverInfo: { name: 'viaduct', version: '1' },
    ...(instructions !== '' && { instructions }),
  };
}
