import { setTimeout as pause } from 'node:timers/promises';
import type { Service } from '../support/stack.ts';
import { Gate } from '../support/until.ts';
import type { Planned } from './schedule.ts';
import type { ChaosWorld } from './world.ts';

export interface Inflicted {
  readonly target: string;
  /** Pods that have to serve again before the fault counts as got over. */
  readonly concerns: readonly Service[];
}

/**
 * Breaks one thing, leaves it so for a while and puts it right; `healing` is called when it does. Undefined where this
 * run has nothing of the kind to break.
 */
export async function inflict(
  at: ChaosWorld,
  { fault, target: chance, forMs }: Planned,
  healing: () => void,
): Promise<Inflicted | undefined> {
  const { stack } = at.world;
  const pod = stack.pods[chance % stack.pods.length]!;
  const worker = stack.workers[chance % stack.workers.length]!;
  const { redis } = at;
  const all = stack.pods;

  async function service(one: Service, how: string): Promise<Inflicted> {
    if (how === 'freeze') {
      one.child.freeze();
      await pause(forMs);
      healing();
      one.child.thaw();
    } else {
      if (how === 'kill') await one.child.kill();
      else {
        const code = await one.child.terminate(30_000);
        if (code !== 0) throw new Error(`${one.name} ended with ${code} after SIGTERM`);
      }
      await pause(forMs);
      healing();
      await stack.restart(one);
    }
    return { target: one.name, concerns: one.port === 0 ? [] : [one] };
  }

  async function store(how: string): Promise<Inflicted> {
    const node = await redis.victim(chance);
    if (how === 'freeze') node.child.freeze();
    else if (how === 'kill') await node.child.kill();
    else await node.child.terminate(20_000);
    await pause(forMs);
    healing();
    if (how === 'freeze') node.child.thaw();
    else node.child = node.spawn();
    return { target: `redis :${node.port}`, concerns: all };
  }

  /** Something outside of the gateway is put into another state, and back. */
  async function weather(target: string, set: () => void, back: () => void): Promise<Inflicted> {
    set();
    await pause(forMs);
    healing();
    back();
    return { target, concerns: all };
  }

  switch (fault) {
    case 'pod-kill':
    case 'pod-freeze':
    case 'pod-restart':
      return service(pod, fault.slice('pod-'.length));
    case 'worker-kill':
    case 'worker-freeze':
    case 'worker-restart':
      return service(worker, fault.slice('worker-'.length));
    case 'redis-kill':
    case 'redis-freeze':
    case 'redis-restart':
      return store(fault.slice('redis-'.length));
    case 'pubsub-kill': {
      const end = performance.now() + forMs;
      while (performance.now() < end) {
        await redis.killPubSub();
        await pause(50);
      }
      healing();
      return { target: 'all subscribers', concerns: all };
    }
    case 'network-drop': {
      if (redis.wires === 'none') return undefined;
      const user = redis.wires === 'each' ? pod.name : 'all';
      redis.network.cut(user);
      await pause(forMs);
      healing();
      redis.network.mend(user);
      return { target: `${user} – redis`, concerns: redis.wires === 'each' ? [pod] : all };
    }
    case 'network-reset':
      await redis.closeConnections(pod.name);
      await pause(forMs);
      healing();
      return { target: `${pod.name} – redis`, concerns: all };
    case 'upstream-slow':
      return weather('upstreams', () => (at.weather.upstream.slowMs = 1_500), () => (at.weather.upstream.slowMs = 0)); // prettier-ignore
    case 'upstream-lies':
      return weather('upstreams', () => (at.weather.upstream.liesOneIn = 2), () => (at.weather.upstream.liesOneIn = 0)); // prettier-ignore
    case 'party-slow': {
      const gate = new Gate();
      return weather('third party', () => (at.acme.gates.token = gate), () => {
        at.acme.gates.token = undefined;
        gate.open();
      }); // prettier-ignore
    }
    case 'party-lies':
      return weather('third party', () => {
        for (const kind of ['server-error', 'html', 'cut-off'] as const) at.acme.failTokens(kind);
      }, () => undefined); // prettier-ignore
  }
}
