import { setTimeout as pause } from 'node:timers/promises';
import type { EventStream } from '../support/event-stream.ts';
import { McpClient } from '../support/mcp-client.ts';
import type { Answer, Members, Message } from '../support/net.ts';
import { until } from '../support/until.ts';
import { judge, judgeFailure, judgeMessage, type Judged } from './answers.ts';
import { breathe, hear, Notebook, readStream, WAIT_MS, type ChaosClient, type ClientInput } from './client.ts'; // prettier-ignore
import { disconnect, follow } from './person.ts';

const COMPLETE = 'notifications/elicitation/complete';
const STEPS_A_SESSION = 12;

interface CallOptions {
  readonly args?: Members;
  /** Closes the stream after its first event, and resumes it. */
  readonly drop?: boolean;
}

/**
 * A client with sessions (2025-11-25): initialize, a listening stream that it resumes by Last-Event-ID, calls quick and
 * slow, forms, links, streams dropped and resumed, tokens whose clock is off, DELETE; then the next session.
 */
export class LegacyChaosClient implements ChaosClient {
  readonly journal: ClientInput['journal'];
  readonly #in: ClientInput;
  readonly #notes: Notebook;
  #client!: McpClient;
  #user = '';
  #sessions = 0;
  #lost = false;
  #listening: EventStream | undefined;
  #told = new Set<string>();
  readonly #connected = new Set<string>();

  constructor(input: ClientInput) {
    this.#in = input;
    this.journal = input.journal;
    this.#notes = new Notebook(input.journal, input.name);
  }

  async run(done: () => boolean): Promise<void> {
    while (!done()) await this.#session(done);
    for (const user of this.#connected) await this.#proveCredential(user);
  }

  async #session(done: () => boolean): Promise<void> {
    await this.#begin();
    let over = false;
    const listening = this.#listen(() => over);
    try {
      if (await this.#within('the stream is open', () => this.#listening?.open)) {
        for (let i = 0; i < STEPS_A_SESSION && !done() && !this.#lost; i++) {
          await this.#step();
          await breathe(this.#in);
        }
      }
    } finally {
      over = true;
      this.#listening?.close();
      await listening;
    }
    if (this.#in.samePerson && this.#connected.delete(this.#user)) await disconnect(this.#in.at, this.#user); // prettier-ignore
    if (this.#lost) return;
    const { ending, status } = await this.#request('DELETE', () => this.#client.end());
    if (ending === 'result' || status === 404) this.journal.write({ kind: 'session', what: 'ended' });
  } // prettier-ignore

  async #within(what: string, condition: () => unknown): Promise<boolean> {
    try {
      await until(what, () => Boolean(condition()) || this.#lost, { timeoutMs: WAIT_MS });
      return !this.#lost;
    } catch {
      return false;
    }
  }

  async #begin(): Promise<void> {
    const { at, name } = this.#in;
    this.#user = this.#in.samePerson ? name : `${name}-s${++this.#sessions}`;
    this.#lost = false;
    this.#listening = undefined;
    this.#told = new Set();
    for (;;) {
      this.#client = new McpClient({ url: at.url, token: at.token(this.#user), name: this.#user });
      let answer: Answer | undefined;
      const judged = await this.#request('initialize', async () => {
        answer = await this.#client.post(this.#client.initializeMessage());
        return answer;
      });
      const sid = answer?.headers['mcp-session-id'];
      if (judged.ending === 'result' && typeof sid === 'string') {
        this.#client.sessionId = sid;
        this.#client.negotiated = answer?.json?.result?.protocolVersion;
        this.journal.write({ kind: 'session', what: 'begun' });
        await this.#request('notifications/initialized', () => this.#client.notify('notifications/initialized')); // prettier-ignore
        return;
      }
      await pause(200);
    }
  }

  /** Anything but a tool call; a 404 means that the session is gone. */
  async #request(what: string, send: () => Promise<Answer>): Promise<Judged> {
    const began = performance.now();
    let judged: Judged;
    try {
      const answer = await send();
      if (answer.stream) {
        judged = { ending: 'result', status: answer.status };
        answer.close();
      } else judged = judge(answer);
    } catch (error) {
      judged = judgeFailure(error);
    }
    const { ending, status, code, reason } = judged;
    const tookMs = Math.round(performance.now() - began);
    this.journal.write({ kind: 'request', what, ending, status, tookMs, ...(code !== undefined && { code }), ...(reason !== undefined && { reason }) }); // prettier-ignore
    this.#noteLoss(status);
    return judged;
  }

  #noteLoss(status: number): void {
    if (status !== 404 || this.#lost) return;
    this.#lost = true;
    this.journal.write({ kind: 'session', what: 'lost' });
  }

  async #listen(over: () => boolean): Promise<void> {
    let lastEventId: string | undefined;
    while (!over() && !this.#lost) {
      try {
        const answer = await this.#client.get(lastEventId === undefined ? {} : { lastEventId });
        const { stream } = answer;
        if (over()) stream?.close();
        if (stream) {
          this.#listening = stream;
          await readStream(stream, ({ message }) => {
            hear(this.journal, message);
            const id = message?.params?.['elicitationId'];
            if (message?.method === COMPLETE) this.#told.add(String(id));
            return over();
          });
          lastEventId = stream.lastEventId ?? lastEventId;
        } else {
          const { ending, status, reason } = judge(answer);
          this.journal.write({ kind: 'request', what: 'GET', ending, status, tookMs: 0, ...(reason !== undefined && { reason }) }); // prettier-ignore
          this.#noteLoss(status);
        }
      } catch (error) {
        const { ending, status } = judgeFailure(error);
        this.journal.write({ kind: 'request', what: 'GET', ending, status, tookMs: 0 });
      }
      if (!over()) await pause(150);
    }
  }

  async #step(): Promise<void> {
    const { chance } = this.#in;
    const upstream = chance.pick(['plain', 'alpha']);
    switch (chance.between(1, 10)) {
      case 1:
        await this.#request('tools/list', () => this.#client.post({ jsonrpc: '2.0', id: 'list', method: 'tools/list' })); // prettier-ignore
        return;
      case 2:
      case 3:
      case 4:
        await this.#call(`${upstream}__mark`);
        return;
      case 5:
        await this.#call(`${upstream}__mark`, { args: { ms: chance.between(400, 2_500), steps: 4 } }); // prettier-ignore
        return;
      case 6:
        await this.#call(`${upstream}__mark`, { args: { ms: chance.between(800, 2_500), steps: 8 }, drop: true }); // prettier-ignore
        return;
      case 7:
        await this.#call(`${upstream}__ask`);
        return;
      case 8:
        await this.#skewed();
        return;
      default:
        await this.#flow();
    }
  }

  async #call(tool: string, { args = {}, drop = false }: CallOptions = {}): Promise<{ judged: Judged; error?: Message['error'] }> {
    const nonce = this.#notes.begin(tool);
    let last: Message | undefined;
    const end = (judged: Judged) => {
      this.#noteLoss(judged.status);
      return { judged: this.#notes.end(nonce, judged), ...(last?.error && { error: last.error }) };
    };
    const params = { name: tool, arguments: { ...args, nonce }, _meta: { progressToken: nonce } };
    const deadline = performance.now() + WAIT_MS;
    let answer: Answer;
    try {
      answer = await this.#client.post({ jsonrpc: '2.0', id: nonce, method: 'tools/call', params }, { timeoutMs: WAIT_MS }); // prettier-ignore
    } catch (error) {
      return end(judgeFailure(error));
    }
    if (!answer.stream) {
      last = answer.json;
      return end(judge(answer));
    }
    let { stream } = answer as { stream: EventStream };
    let lastEventId: string | undefined;
    let dropping = drop;
    for (;;) {
      try {
        await readStream(stream, async ({ id, message }) => {
          lastEventId = id ?? lastEventId;
          hear(this.journal, message);
          if (message?.method === undefined && message?.id === nonce) last = message;
          else if (message?.method !== undefined && message.id != null) await this.#answer(message.id);
          if (dropping && message !== undefined && lastEventId !== undefined) stream.close();
          return last !== undefined || (dropping && lastEventId !== undefined && message !== undefined);
        }, deadline - performance.now()); // prettier-ignore
      } catch (error) {
        return end(judgeFailure(error));
      }
      if (last !== undefined) return end(judgeMessage(200, last));
      if (dropping) await pause(this.#in.chance.between(20, 1_200));
      dropping = false;
      if (lastEventId === undefined) return end({ ending: 'broken', status: 0 });
      const resumed = await this.#resume(lastEventId, deadline);
      if (!('raw' in resumed)) return end(resumed);
      stream = resumed;
    }
  } // prettier-ignore

  async #resume(lastEventId: string, deadline: number): Promise<EventStream | Judged> {
    while (performance.now() < deadline) {
      try {
        const answer = await this.#client.get({ lastEventId });
        if (answer.stream) return answer.stream;
        if (answer.status === 404) return judge(answer);
      } catch {
        // once more
      }
      await pause(150);
    }
    return { ending: 'hung', status: 0, message: 'never resumed' };
  }

  /** A form is filled in; the answer is posted until somebody has taken it. */
  async #answer(id: string | number): Promise<void> {
    const deadline = performance.now() + WAIT_MS / 2;
    while (performance.now() < deadline) {
      const judged = await this.#request('answer', () => this.#client.answer(id, { action: 'accept', content: { name: 'Ann' } })); // prettier-ignore
      if (judged.ending === 'result' || (judged.status >= 400 && judged.status < 500)) return;
      await pause(150);
    }
  }

  async #skewed(): Promise<void> {
    const { at, chance } = this.#in;
    const [offBy, claims, accepted] = chance.pick([
      ['issued in 20 s', { issuedIn: 20 }, true],
      ['valid in 20 s', { notBeforeIn: 20 }, true],
      ['expired for 15 s', { issuedIn: -600, expiresIn: -15 }, true],
      ['valid in 10 min', { notBeforeIn: 600 }, false],
      ['expired for 10 min', { issuedIn: -6_000, expiresIn: -600 }, false],
    ] as const);
    const twin = this.#client.as({ token: at.token(this.#user, claims) });
    try {
      const { status, stream } = await twin.post({ jsonrpc: '2.0', id: 'skew', method: 'ping' });
      stream?.close();
      if (status < 500) this.journal.write({ kind: 'skewed', offBy, status, accepted });
    } catch {
      // An answer that did not come says nothing of clocks.
    }
  }

  async #flow(): Promise<void> {
    for (let attempt = 0; attempt < 3 && !this.#lost; attempt++) {
      const { judged, error } = await this.#call('files__mark');
      const asked = error?.data?.elicitations?.[0];
      if (judged.ending === 'result' || asked === undefined) return;
      const { elicitationId, url } = asked;
      this.journal.write({ kind: 'asked', elicitationId, user: this.#user });
      const state = await follow(this.#in.at, this.#user, url);
      const completed = state === 'completed';
      if (completed) this.#connected.add(this.#user);
      const told = completed && (await this.#within('the end is told', () => this.#told.has(elicitationId))); // prettier-ignore
      const listening = told || !this.#lost;
      this.journal.write({ kind: 'flow', elicitationId, state, listening });
      if (completed) {
        await this.#call('files__mark');
        return;
      }
    }
  }

  /** At the very end, when everything is well: whoever connected once need not connect again. */
  async #proveCredential(user: string): Promise<void> {
    const { at } = this.#in;
    const client = new McpClient({ url: at.url, token: at.token(user), name: user });
    try {
      await client.initialize();
      const nonce = this.#notes.begin('files__mark');
      const message = await client.callTool('files__mark', { nonce });
      const judged = this.#notes.end(nonce, judgeMessage(200, message));
      this.journal.write({ kind: 'credential', user, works: judged.ending === 'result', detail: JSON.stringify(judged) }); // prettier-ignore
      await client.end();
    } catch (error) {
      this.journal.write({ kind: 'credential', user, works: false, detail: String(error) });
    }
  }
}
