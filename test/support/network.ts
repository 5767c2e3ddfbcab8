import { spawnSync } from 'node:child_process';
import net from 'node:net';
import { freePort } from './net.ts';

// The wires between Redis and what uses it, which a fault cuts. With the privilege: Redis lives in a network namespace
// of its own, and a cut is its end of the wire going down, so that packets are lost without a word. Without: a
// forwarder in this process that stops forwarding.

export interface Network {
  readonly kind: 'network namespace' | 'forwarder';
  /** The command that starts a program where Redis lives. */
  inside(command: string, args: readonly string[]): [string, string[]];
  /** What Redis binds to. */
  readonly bind: string;
  /** Lays a wire from `user` to a server at `port`; where the user finds it. */
  wire(user: string, port: number): Promise<{ host: string; port: number }>;
  cut(user: string): void;
  mend(user: string): void;
  stop(): Promise<void>;
}

const ip = (...args: string[]): boolean =>
  spawnSync('ip', args, { stdio: 'ignore', env: { ...process.env, PATH: `${process.env['PATH']}:/usr/sbin:/sbin` } }).status === 0; // prettier-ignore

const PREFIX = 'viaduct-chaos-';
const alive = (pid: number): boolean => {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
};

/** What a killed run has left behind. */
function sweep(): void {
  const { stdout } = spawnSync('ip', ['netns', 'list'], { encoding: 'utf8' }) as { stdout: string | null }; // prettier-ignore
  for (const [name, pid] of (stdout ?? '').matchAll(/^viaduct-chaos-(\d+)/gm)) {
    if (!alive(Number(pid))) ip('netns', 'del', name);
  }
}

function openNamespace(): Network | undefined {
  if (process.platform !== 'linux') return undefined;
  sweep();
  const name = `${PREFIX}${process.pid}`;
  if (!ip('netns', 'add', name)) return undefined;
  const remove = (): void => void ip('netns', 'del', name); // takes its wires along
  process.once('exit', remove);
  if (!ip('-n', name, 'link', 'set', 'lo', 'up')) {
    remove();
    return undefined;
  }
  const third = process.pid % 256;
  const wires = new Map<string, { inner: string; host: string }>();
  return {
    kind: 'network namespace',
    bind: '0.0.0.0',
    inside: (command, args) => ['ip', ['netns', 'exec', name, command, ...args]],
    wire: (user, port) => {
      let wire = wires.get(user);
      if (wire === undefined) {
        const i = wires.size;
        const [outer, inner] = [
          `vc${process.pid % 100_000}o${i}`,
          `vc${process.pid % 100_000}i${i}`,
        ];
        const [near, far] = [`10.77.${third}.${4 * i + 1}`, `10.77.${third}.${4 * i + 2}`];
        const laid =
          ip('link', 'add', outer, 'type', 'veth', 'peer', 'name', inner, 'netns', name) &&
          ip('addr', 'add', `${near}/30`, 'dev', outer) &&
          ip('link', 'set', outer, 'up') &&
          ip('-n', name, 'addr', 'add', `${far}/30`, 'dev', inner) &&
          ip('-n', name, 'link', 'set', inner, 'up');
        if (!laid) return Promise.reject(new Error(`no wire into the namespace for ${user}`));
        wire = { inner, host: far };
        wires.set(user, wire);
      }
      return Promise.resolve({ host: wire.host, port });
    },
    cut: (user) => void ip('-n', name, 'link', 'set', wires.get(user)!.inner, 'down'),
    mend: (user) => void ip('-n', name, 'link', 'set', wires.get(user)!.inner, 'up'),
    stop: () => {
      process.off('exit', remove);
      remove();
      return Promise.resolve();
    },
  };
}

function openForwarder(): Network {
  const servers: net.Server[] = [];
  const cutOff = new Set<string>();
  const sockets = new Map<string, Set<net.Socket>>();

  const forward = (user: string, port: number): net.Server =>
    net.createServer({ noDelay: true }, (socket) => {
      const onward = net.connect({ port, host: '127.0.0.1', noDelay: true });
      const mine = sockets.get(user)!;
      for (const one of [socket, onward]) {
        mine.add(one);
        one.on('close', () => mine.delete(one));
        one.on('error', () => one.destroy());
        if (cutOff.has(user)) one.pause();
      }
      // Not pipe: what is paused by a cut must stay so, whatever its other end does.
      socket.on('data', (chunk) => void onward.write(chunk));
      onward.on('data', (chunk) => void socket.write(chunk));
      socket.on('close', () => onward.destroy());
      onward.on('close', () => socket.destroy());
      if (cutOff.has(user)) for (const one of [socket, onward]) one.pause();
    });
  return {
    kind: 'forwarder',
    bind: '127.0.0.1',
    inside: (command, args) => [command, [...args]],
    wire: async (user, port) => {
      const own = await freePort();
      if (!sockets.has(user)) sockets.set(user, new Set());
      const server = forward(user, port);
      await new Promise<void>((resolve) => server.listen(own, '127.0.0.1', resolve));
      servers.push(server);
      return { host: '127.0.0.1', port: own };
    },
    cut: (user) => {
      cutOff.add(user);
      for (const socket of sockets.get(user) ?? []) socket.pause();
    },
    mend: (user) => {
      cutOff.delete(user);
      for (const socket of sockets.get(user) ?? []) socket.resume();
    },
    stop: async () => {
      for (const of of sockets.values()) for (const socket of of) socket.destroy();
      await Promise.all(servers.map((server) => new Promise((done) => server.close(done))));
    },
  };
}

export const openNetwork = (): Network => openNamespace() ?? openForwarder();
