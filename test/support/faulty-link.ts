import net from 'node:net';
import { freePort } from './net.ts';

/** A network in front of a fake that can break: an address that stays while what is behind it goes and comes back. */
export interface FaultyLink {
  readonly url: string;
  /** Nobody listens there any more, and open connections are cut. */
  down(): Promise<void>;
  /** Connections are taken and never answered. */
  hang(): Promise<void>;
  up(): Promise<void>;
  /** Connections so far. */
  readonly connections: number;
  stop(): Promise<void>;
}

export async function startFaultyLink(target: string): Promise<FaultyLink> {
  const { hostname, port: targetPort, pathname } = new URL(target);
  const port = await freePort();
  const sockets = new Set<net.Socket>();
  let forwards = true;
  let connections = 0;
  let server: net.Server | undefined;

  const keep = (socket: net.Socket): void => {
    sockets.add(socket);
    socket.on('close', () => sockets.delete(socket));
    socket.on('error', () => socket.destroy());
  };
  const onConnection = (socket: net.Socket): void => {
    connections += 1;
    keep(socket);
    if (!forwards) return;
    const onward = net.connect(Number(targetPort), hostname);
    keep(onward);
    socket.pipe(onward).pipe(socket);
    socket.on('close', () => onward.destroy());
    onward.on('close', () => socket.destroy());
  };
  const cut = (): void => {
    for (const socket of sockets) socket.destroy();
  };
  const listen = async (): Promise<void> => {
    if (server) return;
    const next = net.createServer({ noDelay: true }, onConnection);
    await new Promise<void>((resolve) => next.listen(port, '127.0.0.1', resolve));
    server = next;
  };
  const close = async (): Promise<void> => {
    const last = server;
    server = undefined;
    cut();
    if (last) await new Promise((resolve) => last.close(resolve));
  };
  await listen();
  return {
    url: `http://127.0.0.1:${port}${pathname}`,
    get connections() {
      return connections;
    },
    down: close,
    hang: async () => {
      forwards = false;
      cut();
      await listen();
    },
    up: async () => {
      forwards = true;
      cut();
      await listen();
    },
    stop: close,
  };
}
