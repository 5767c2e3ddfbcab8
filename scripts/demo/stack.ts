// The product as the demo runs it: Redis, two gateway pods, a worker, and haproxy in front where it is
// installed. Everything listens on loopback only.
import { randomBytes } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { answersOk, freePort, ready, type Process, type Processes } from './processes.ts';

export interface Pod {
  readonly name: string;
  readonly port: number;
  readonly adminPort: number;
  readonly process: Process;
}

export interface Stack {
  readonly pods: readonly Pod[];
  readonly worker: { readonly adminPort: number; readonly process: Process };
  readonly redis: string;
  readonly balanced: boolean;
}

export interface StackOptions {
  readonly root: string;
  readonly folder: string;
  readonly publicPort: number;
  readonly config: Record<string, unknown>;
  readonly processes: Processes;
  readonly env: NodeJS.ProcessEnv;
}

export async function startStack(options: StackOptions): Promise<Stack> {
  const { root, folder, config, processes, env } = options;
  mkdirSync(folder, { recursive: true });
  const configFile = join(folder, 'viaduct.yaml');
  writeFileSync(configFile, stringify(config));

  const redis = await startRedis(options);
  const haproxy = env['VIADUCT_HAPROXY'];
  const shared: NodeJS.ProcessEnv = {
    ...env,
    VIADUCT_CONFIG: configFile,
    REDIS_URL: redis,
    HOST: '127.0.0.1',
    // All processes open what any of them has sealed.
    VIADUCT_SECRET_KEYS: `demo:${randomBytes(32).toString('base64')}`,
  };
  const service = (name: string) => join(root, 'services', name, 'dist', 'main.js');

  const pods = await Promise.all(
    [1, 2].map(async (n): Promise<Pod> => {
      // Without a balancer the first pod takes its place.
      const port = !haproxy && n === 1 ? options.publicPort : await freePort(8080 + n);
      const adminPort = await freePort(9090 + n);
      const name = `pod-${n}`;
      const started = processes.start(name, process.execPath, [service('gateway')], {
        cwd: folder,
        env: { ...shared, POD_NAME: name, PORT: String(port), ADMIN_PORT: String(adminPort) },
      });
      await ready(started, () => answersOk(`http://127.0.0.1:${adminPort}/healthz/ready`));
      return { name, port, adminPort, process: started };
    }),
  );

  const adminPort = await freePort(9093);
  const worker = processes.start('worker', process.execPath, [service('worker')], {
    cwd: folder,
    env: { ...shared, POD_NAME: 'worker-1', ADMIN_PORT: String(adminPort) },
  });
  await ready(worker, () => answersOk(`http://127.0.0.1:${adminPort}/healthz/ready`));

  if (haproxy) {
    const file = join(folder, 'haproxy.cfg');
    writeFileSync(file, haproxyConfig(options.publicPort, pods));
    const balancer = processes.start('haproxy', haproxy, ['-db', '-f', file]);
    // Any answer from a pod will do: this asks without a token.
    await ready(balancer, () => answersOk(`http://127.0.0.1:${options.publicPort}${METADATA}`));
  }
  return { pods, worker: { adminPort, process: worker }, redis, balanced: haproxy !== undefined };
}

const METADATA = '/.well-known/oauth-protected-resource/mcp';

async function startRedis({ folder, processes, env }: StackOptions): Promise<string> {
  const server = env['VIADUCT_REDIS_SERVER'];
  const given = env['REDIS_URL'];
  if (given) return given;
  const port = await freePort(6380);
  const started = server
    ? processes.start('redis', server, [
        ...['--port', String(port), '--bind', '127.0.0.1'],
        ...['--save', '', '--appendonly', 'no', '--dir', folder],
      ])
    : processes.start('redis', env['VIADUCT_DOCKER'] ?? 'docker', [
        ...['run', '--rm', '--init', '--publish', `127.0.0.1:${port}:6379`],
        ...['redis:7', 'redis-server', '--save', '', '--appendonly', 'no'],
      ]);
  // Docker may have to pull the image first.
  await ready(started, () => pong(port), server ? 10_000 : 180_000);
  return `redis://127.0.0.1:${port}`;
}

function pong(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => socket.write('PING\r\n'));
    socket.setTimeout(1000, () => socket.destroy());
    socket.once('data', (data) => {
      resolve(data.toString().startsWith('+PONG'));
      socket.destroy();
    });
    socket.once('error', () => socket.destroy());
    socket.once('close', () => resolve(false));
  });
}

function haproxyConfig(port: number, pods: readonly Pod[]): string {
  const servers = pods.map(
    (pod) => `  server ${pod.name} 127.0.0.1:${pod.port} check port ${pod.adminPort}`,
  );
  return `# Written by npm start. Round robin: no pod is anybody's.
global
  maxconn 4096
defaults
  mode http
  # Without it each event of a stream waits 200 ms for company.
  option http-no-delay
  option forwardfor
  option redispatch
  retries 2
  timeout connect 2s
  timeout http-request 10s
  # Streams are silent for as long as nothing happens.
  timeout client 1h
  timeout server 1h
frontend public
  bind 127.0.0.1:${port}
  default_backend pods
backend pods
  balance roundrobin
  option httpchk
  http-check send meth GET uri /healthz/ready
  http-check expect status 200
  default-server inter 500ms fall 1 rise 1
${servers.join('\n')}
`;
}
