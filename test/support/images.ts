import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  chmodSync,
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  writeFileSync,
} from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { Child, program, temporaryFolder } from './process.ts';

/**
 * Images built by buildah as `docker build` would build them, on a base made of this machine's own Node, npm and
 * shell: registries of images may be out of reach, and what the Dockerfile does on its base is the same.
 */
export interface Images {
  /** Where they are, for whoever else is to run them. */
  readonly store: readonly string[];
  build(dockerfile: string, target: string, context: string): string;
  /** Files of an image, by path. */
  list(image: string, folder: string): string[];
  /** The command of the image, as its own user, in its own root. */
  start(
    image: string,
    options: { env: Record<string, string>; files: Record<string, string> },
  ): { child: Child; terminate(): Promise<number | NodeJS.Signals> };
  /** One command in it, as its user: exit code and output. */
  run(image: string, ...command: string[]): { status: number | null; output: string };
  stop(): void;
}

const TOOLS = ['sh', 'rm', 'cp', 'mkdir', 'env', 'uname', 'dirname'];

export function openImages(): Images {
  const folder = temporaryFolder();
  const prefix = `viaduct-test-${randomBytes(4).toString('hex')}`;
  // A store of its own, without a daemon, and with the driver that works anywhere.
  const store = ['--root', join(folder, 'store'), '--runroot', join(folder, 'run')];
  const common = [...store, '--storage-driver', 'vfs'];
  const buildah = (...args: string[]): string => {
    const done = spawnSync('buildah', [...common, ...args], {
      encoding: 'utf8',
      maxBuffer: 64 * 1024 * 1024,
      env: { ...process.env, BUILDAH_ISOLATION: 'chroot' },
    });
    if (done.status !== 0) throw new Error(`buildah ${args[0]}: ${done.stderr.slice(-2_000)}`);
    return done.stdout.trim();
  };

  const base = ((): string => {
    const root = join(folder, 'base');
    for (const path of ['bin', 'usr/bin', 'usr/local/lib', 'tmp', 'etc/viaduct', 'root']) {
      mkdirSync(join(root, path), { recursive: true });
    }
    chmodSync(join(root, 'tmp'), 0o1777);
    const node = realpathSync(process.execPath);
    const files = [node, ...TOOLS.map((tool) => program(tool, 'coreutils'))];
    for (const file of files) {
      copyFileSync(file, join(root, 'bin', basename(file)));
      const linked = spawnSync('ldd', [file], { encoding: 'utf8' }).stdout.matchAll(/(\/\S+)/g);
      for (const [, library = ''] of linked) {
        mkdirSync(join(root, dirname(library)), { recursive: true });
        copyFileSync(library, join(root, library));
      }
    }
    copyFileSync(join(root, 'bin/env'), join(root, 'usr/bin/env')); // where scripts look for it
    const npm = dirname(
      dirname(realpathSync(process.env['npm_execpath'] ?? program('npm', 'npm'))),
    );
    cpSync(npm, join(root, 'usr/local/lib/npm'), { recursive: true, dereference: true });
    for (const name of ['npm', 'npx']) {
      const script = `#!/bin/sh\nexec node /usr/local/lib/npm/bin/${name}-cli.js "$@"\n`;
      writeFileSync(join(root, 'bin', name), script, { mode: 0o755 });
    }
    for (const file of ['/etc/resolv.conf', '/etc/hosts', process.env['NODE_EXTRA_CA_CERTS']]) {
      if (file !== undefined && existsSync(file)) copyFileSync(file, join(root, 'etc', basename(file))); // prettier-ignore
    }
    const container = buildah('from', 'scratch');
    buildah('copy', '-q', container, root, '/');
    const authorities = process.env['NODE_EXTRA_CA_CERTS'];
    const env = ['PATH=/bin:/usr/bin', ...(authorities === undefined ? [] : [`NODE_EXTRA_CA_CERTS=/etc/${basename(authorities)}`])]; // prettier-ignore
    buildah(
      'config',
      ...env.flatMap((one) => ['--env', one]),
      '--entrypoint',
      '["node"]',
      container,
    );
    buildah('commit', '-q', '--rm', container, `${prefix}-base`);
    return `localhost/${prefix}-base`;
  })();

  const containers = new Map<string, string>();
  const containerOf = (image: string): string => {
    const known = containers.get(image) ?? buildah('from', image);
    containers.set(image, known);
    return known;
  };
  const commandOf = (image: string): string[] => {
    const { OCIv1 } = JSON.parse(buildah('inspect', '--type', 'image', image)) as {
      OCIv1: { config: { Entrypoint: string[]; Cmd: string[] } };
    };
    return [...OCIv1.config.Entrypoint, ...OCIv1.config.Cmd];
  };
  const running = ['run', '--isolation', 'chroot', '--network', 'host'];

  return {
    store: common,
    build(dockerfile, target, context) {
      const image = `${prefix}-${target}`;
      const args = [`BUILD=${base}`, `RUNTIME=${base}`].flatMap((one) => ['--build-arg', one]);
      buildah('bud', '--network', 'host', '--isolation', 'chroot', ...args, '-f', dockerfile, '--target', target, '-t', image, context); // prettier-ignore
      return `localhost/${image}`;
    },
    list: (image, path) => readdirSync(join(buildah('mount', containerOf(image)), path)),
    run(image, ...command) {
      const args = [...common, ...running, containerOf(image), '--', ...command];
      const { status, stdout, stderr } = spawnSync('buildah', args, { encoding: 'utf8' });
      return { status, output: stdout + stderr };
    },
    start(image, { env, files }) {
      const mounted = Object.entries(files).flatMap(([at, text]) => {
        const file = join(folder, randomBytes(4).toString('hex'));
        writeFileSync(file, text, { mode: 0o644 });
        return ['--volume', `${file}:${at}:ro`];
      });
      const mark = `VIADUCT_IMAGE_TEST=${randomBytes(8).toString('hex')}`;
      const variables = [...Object.entries(env).map((pair) => pair.join('=')), mark];
      const child = new Child('image', 'buildah', [
        ...[...common, ...running, ...mounted],
        ...variables.flatMap((one) => ['--env', one]),
        ...[containerOf(image), '--', ...commandOf(image)],
      ]);
      return {
        child,
        terminate: async () => {
          process.kill(processWith(mark), 'SIGTERM');
          return child.ended;
        },
      };
    },
    stop() {
      for (const container of containers.values()) buildah('rm', container);
      buildah('rmi', '--all', '--force');
    },
  };
}

/** buildah stands between the test and the process that it is about. */
function processWith(mark: string): number {
  for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    try {
      const has = readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0').includes(mark);
      if (has && readFileSync(`/proc/${pid}/comm`, 'utf8').trim() !== 'buildah') return Number(pid);
    } catch {
      continue; // it has ended meanwhile, or is somebody else's
    }
  }
  throw new Error('the process of the image is not there');
}
