import { setTimeout as pause } from 'node:timers/promises';
import { ModernClient } from '../support/modern-client.ts';
import type { Answer, Members, Message } from '../support/net.ts';
import { judge, judgeFailure, judgeMessage, type Judged } from './answers.ts';
import { breathe, hear, Notebook, readStream, WAIT_MS, type ChaosClient, type ClientInput } from './client.ts'; // prettier-ignore
import { disconnect, elicitationOf, follow } from './person.ts';

const STEPS_A_USER = 12;
const MAX_ROUNDS = 8;

/**
 * A client without sessions (2026-07-28): lists, calls quick and slow, calls withdrawn by closing, forms and links in
 * rounds, a subscription that it opens again, tokens whose clock is off.
 */
export class ModernChaosClient implements ChaosClient {
  readonly journal: ClientInput['journal'];
  readonly #in: ClientInput;
  readonly #notes: Notebook;
  #client!: ModernClient;
  #user = '';
  readonly #connected = new Set<string>();

  constructor(input: ClientInput) {
    this.#in = input;
    this.journal = input.journal;
    this.#notes = new Notebook(input.journal, input.name);
  }

  async run(done: () => boolean): Promise<void> {
    for (let n = 1; !done(); n++) {
      this.#user = this.#in.samePerson ? this.#in.name : `${this.#in.name}-u${n}`;
      this.#client = this.#clientOf(this.#user);
      let over = false;
      let close = (): void => undefined;
      const listening = this.#listen(() => over, (closer) => (close = closer)); // prettier-ignore
      for (let i = 0; i < STEPS_A_USER && !done(); i++) {
        await this.#step();
        await breathe(this.#in);
      }
      over = true;
      close();
      await listening;
      if (this.#in.samePerson && this.#connected.delete(this.#user)) await disconnect(this.#in.at, this.#user); // prettier-ignore
    }
    for (const user of this.#connected) await this.#proveCredential(user);
  }

  #clientOf(user: string): ModernClient {
    const { at } = this.#in;
    return new ModernClient({ url: at.url, token: at.token(user), name: user });
  }

  async #step(): Promise<void> {
    const { chance } = this.#in;
    const upstream = chance.pick(['plain', 'alpha']);
    switch (chance.between(1, 10)) {
      case 1:
        await this.#request('tools/list');
        return;
      case 2:
      case 3:
      case 4:
        await this.#call(`${upstream}__mark`);
        return;
      case 5:
        await this.#call(`${upstream}__mark`, { ms: chance.between(400, 2_500), steps: 4 });
        return;
      case 6:
        await this.#withdrawn(`${upstream}__mark`);
        return;
      case 7:
        await this.#call(`${upstream}__ask`);
        return;
      case 8:
        await this.#skewed();
        return;
      default:
        await this.#call('files__mark');
    }
  }

  async #request(what: string): Promise<void> {
    const began = performance.now();
    let judged: Judged;
    try {
      const answer = await this.#client.begin(what).http;
      answer.stream?.close();
      judged = answer.stream ? { ending: 'result', status: answer.status } : judge(answer);
    } catch (error) {
      judged = judgeFailure(error);
    }
    const { ending, status, code, reason } = judged;
    const tookMs = Math.round(performance.now() - began);
    this.journal.write({ kind: 'request', what, ending, status, tookMs, ...(code !== undefined && { code }), ...(reason !== undefined && { reason }) }); // prettier-ignore
  }

  async #listen(over: () => boolean, closer: (close: () => void) => void): Promise<void> {
    while (!over()) {
      try {
        const call = this.#client.begin('subscriptions/listen', { notifications: { toolsListChanged: true } }); // prettier-ignore
        const { stream } = await call.http;
        if (stream) {
          closer(stream.close);
          if (over()) stream.close();
          await readStream(stream, ({ message }) => {
            hear(this.journal, message);
            return over();
          });
        }
      } catch {
        // The calls beside it say what is the matter.
      }
      if (!over()) await pause(200);
    }
  }

  /** One round: the response, or how there was none. */
  async #round(body: Message): Promise<{ answer: Judged; message?: Message }> {
    let http: Answer;
    try {
      http = await this.#client.post(body, { timeoutMs: WAIT_MS });
    } catch (error) {
      return { answer: judgeFailure(error) };
    }
    if (!http.stream) return { answer: judge(http), ...(http.json && { message: http.json }) };
    let message: Message | undefined;
    try {
      await readStream(http.stream, (event) => {
        hear(this.journal, event.message);
        if (event.message?.method === undefined && event.message?.id === body.id) message = event.message; // prettier-ignore
        return message !== undefined;
      }, WAIT_MS); // prettier-ignore
    } catch (error) {
      return { answer: judgeFailure(error) };
    }
    if (message === undefined) return { answer: { ending: 'broken', status: 0 } };
    return { answer: judgeMessage(200, message), message };
  }

  async #call(tool: string, args: Members = {}): Promise<Judged> {
    const nonce = this.#notes.begin(tool);
    let answers: Members = {};
    for (let round = 0; round < MAX_ROUNDS; round++) {
      const params = { name: tool, arguments: { ...args, nonce }, ...answers };
      const body = this.#client.body('tools/call', params, { id: `${nonce}#${round}`, meta: { progressToken: nonce } }); // prettier-ignore
      const { answer, message } = await this.#round(body);
      const result = message?.result;
      if (result?.['resultType'] !== 'input_required') {
        if (answer.ending === 'result' && tool.startsWith('files__')) this.#connected.add(this.#user); // prettier-ignore
        return this.#notes.end(nonce, answer);
      }
      answers = {
        requestState: result['requestState'],
        inputResponses: await this.#answers(result['inputRequests'] as Record<string, Message>),
      };
    }
    return this.#notes.end(nonce, { ending: 'hung', status: 0, message: `${MAX_ROUNDS} rounds` });
  }

  async #answers(requests: Record<string, Message>): Promise<Members> {
    const answers: Members = {};
    for (const [key, { params = {} }] of Object.entries(requests)) {
      const { mode, url } = params;
      if (mode !== 'url') {
        answers[key] = { action: 'accept', content: { name: 'Ann' } };
        continue;
      }
      const elicitationId = elicitationOf(String(url));
      this.journal.write({ kind: 'asked', elicitationId, user: this.#user });
      const state = await follow(this.#in.at, this.#user, String(url));
      this.journal.write({ kind: 'flow', elicitationId, state, listening: false });
      answers[key] = { action: 'accept' };
    }
    return answers;
  }

  /** Closed in the middle, which is how this revision cancels. */
  async #withdrawn(tool: string): Promise<void> {
    const nonce = this.#notes.begin(tool);
    const params = { name: tool, arguments: { nonce, ms: 3_000, steps: 6 } };
    const body = this.#client.body('tools/call', params, { meta: { progressToken: nonce } });
    try {
      const http = await this.#client.post(body, { timeoutMs: WAIT_MS });
      if (!http.stream) {
        this.#notes.end(nonce, judge(http));
        return;
      }
      let answer: Message | undefined;
      await readStream(http.stream, ({ message }) => {
        hear(this.journal, message);
        if (message?.method === undefined) answer = message;
        return true;
      }, WAIT_MS); // prettier-ignore
      http.close();
      this.#notes.end(nonce, answer ? judgeMessage(200, answer) : { ending: 'withdrawn', status: 200 }); // prettier-ignore
    } catch (error) {
      this.#notes.end(nonce, judgeFailure(error));
    }
  }

  async #skewed(): Promise<void> {
    const { at, chance } = this.#in;
    const [offBy, claims, accepted] = chance.pick([
      ['valid in 20 s', { notBeforeIn: 20 }, true],
      ['expired for 15 s', { issuedIn: -600, expiresIn: -15 }, true],
      ['valid in 10 min', { notBeforeIn: 600 }, false],
      ['expired for 10 min', { issuedIn: -6_000, expiresIn: -600 }, false],
    ] as const);
    try {
      const twin = this.#client.as({ token: at.token(this.#user, claims) });
      const { status, stream } = await twin.begin('server/discover').http;
      stream?.close();
      if (status < 500) this.journal.write({ kind: 'skewed', offBy, status, accepted });
    } catch {
      // An answer that did not come says nothing of clocks.
    }
  }

  async #proveCredential(user: string): Promise<void> {
    this.#user = user;
    this.#client = this.#clientOf(user);
    const nonce = this.#notes.begin('files__mark');
    const params = { name: 'files__mark', arguments: { nonce } };
    const { answer, message } = await this.#round(this.#client.body('tools/call', params));
    const again = message?.result?.['resultType'] === 'input_required';
    const judged = this.#notes.end(nonce, again ? { ...answer, ending: 'withdrawn' } : answer);
    const works = answer.ending === 'result' && !again;
    this.journal.write({ kind: 'credential', user, works, detail: JSON.stringify(judged) });
  }
}
