import { setTimeout as pause } from 'node:timers/promises';
import { McpClient } from '../support/mcp-client.ts';
import type { ChaosWorld } from './world.ts';

export interface Sample {
  readonly target: string;
  readonly fromMs: number;
  readonly toMs: number;
  readonly ok: boolean;
}

const EVERY_MS = 100;
const PATIENCE_MS = 2_500;

/** Small calls in a session, again and again, to each pod by itself and to the balancer: when each of them serves. */
export class Probes {
  readonly samples: Sample[] = [];
  readonly #at: ChaosWorld;
  #over = false;
  #loops: Promise<void>[] = [];

  constructor(at: ChaosWorld) {
    this.#at = at;
  }

  start(): void {
    const { pods } = this.#at.world.stack;
    this.#loops = [...pods.map((_, i) => this.#loop(pods[i]!.name, i)), this.#loop('balancer')];
  }

  async #loop(target: string, pod?: number): Promise<void> {
    const { url, world } = this.#at;
    const client = new McpClient({ url, ports: world.stack.ports, token: this.#at.token(`probe-${target}`) }); // prettier-ignore
    for (let n = 1; !this.#over; n++) {
      const fromMs = this.#at.now();
      let ok = false;
      try {
        const at = { pod, timeoutMs: PATIENCE_MS };
        if (client.sessionId === undefined) await client.initialize(at);
        const call = client.beginTool('plain__mark', { nonce: `probe-${target}.${n}` }, at);
        const { result } = await call.message();
        ok = result !== undefined;
        if ((await call.http).status === 404) client.sessionId = undefined;
      } catch {
        // not served
      }
      this.samples.push({ target, fromMs, toMs: this.#at.now(), ok });
      await pause(EVERY_MS);
    }
  }

  async stop(): Promise<void> {
    this.#over = true;
    await Promise.all(this.#loops);
  }

  /** When a target first served something that was asked after `sinceMs`. */
  servedAfter(target: string, sinceMs: number): number | undefined {
    const found = this.samples.find(
      (one) => one.target === target && one.ok && one.fromMs >= sinceMs,
    );
    return found?.toMs;
  }

  /** The longest time without a served call in a span. */
  longestGap(target: string, fromMs: number, toMs: number): number {
    const served = this.samples.filter((one) => one.target === target && one.ok);
    let longest = 0;
    let last: number | undefined;
    for (const { toMs: at } of served) {
      if (last !== undefined && at >= fromMs && last <= toMs)
        longest = Math.max(longest, at - last);
      last = at;
    }
    return longest;
  }
}
