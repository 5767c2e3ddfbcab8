import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Manifest } from './manifests.ts';
import { temporaryFolder } from './process.ts';

/**
 * Pods of our manifests, started by `podman play kube`, without a cluster. podman sees the store of images that it is
 * given; limits and cgroups are asked for as narrowly as they can be, since a sandbox may allow no more.
 */
export class KubePods {
  readonly #folder = temporaryFolder();
  readonly #env: NodeJS.ProcessEnv;
  readonly #store: readonly string[];

  constructor(store: readonly string[]) {
    this.#store = store;
    const settings = join(this.#folder, 'containers.conf');
    writeFileSync(
      settings,
      '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n[engine]\ncgroup_manager = "cgroupfs"\nruntime = "runc"\n',
    );
    this.#env = { ...process.env, CONTAINERS_CONF: settings };
  }

  #podman(...args: string[]): { status: number | null; output: string } {
    const done = spawnSync('podman', [...this.#store, ...args], {
      encoding: 'utf8',
      env: this.#env,
      timeout: 60_000,
    });
    return { status: done.status, output: `${done.stdout}${done.stderr}`.trim() };
  }

  /** Can this machine run containers and pods at all? If not, why. */
  trouble(image: string): string | undefined {
    for (const line of [
      ['run', '--rm', '--network', 'host', image, '-v'],
      ['pod', 'create', '--name', 'probe', '--network', 'host'],
      ['pod', 'start', 'probe'],
      ['pod', 'rm', '--force', 'probe'],
    ]) {
      const { status, output } = this.#podman(...line);
      if (status !== 0) return `podman ${line[0]!} ${line[1]!}: ${output.slice(-300)}`;
    }
    return undefined;
  }

  /**
   * A Deployment's pod, as its template says, but for what a cluster does and podman does not: probes, secrets by
   * reference, spreading. @throws when it does not start
   */
  start(
    deployment: Manifest,
    options: { image: string; env: Record<string, string>; config: string },
  ): { stop(): number; logs(): string } {
    const { name } = deployment.metadata;
    const template = structuredClone(deployment['spec'].template.spec) as Record<
      string,
      unknown
    > & {
      containers: Record<string, unknown>[];
    };
    const { livenessProbe, readinessProbe, startupProbe, envFrom, ports, ...rest } =
      template.containers[0]!;
    for (const there of [livenessProbe, readinessProbe, startupProbe, envFrom, ports]) {
      if (there === undefined && name.endsWith('gateway'))
        throw new Error('the template has changed');
    }
    const container: Record<string, unknown> = rest;
    template.containers = [container];
    const given = (container['env'] as { name: string; value?: string }[]).filter(
      ({ value }) => value !== undefined,
    );
    container['image'] = options.image;
    container['imagePullPolicy'] = 'Never';
    container['env'] = [
      ...given,
      ...Object.entries(options.env).map(([key, value]) => ({ name: key, value })),
    ];
    const objects = [
      {
        apiVersion: 'v1',
        kind: 'ConfigMap',
        metadata: { name: 'viaduct' },
        data: { 'viaduct.yaml': options.config },
      },
      {
        apiVersion: 'v1',
        kind: 'Pod',
        metadata: { name },
        spec: { ...template, hostNetwork: true },
      },
    ];
    const file = join(this.#folder, `${name}.yaml`);
    writeFileSync(file, objects.map((one) => JSON.stringify(one)).join('\n---\n'));
    const played = this.#podman('play', 'kube', file);
    if (played.status !== 0) throw new Error(`podman play kube: ${played.output.slice(-500)}`);
    const inside = `${name}-${String(container['name'])}`;
    return {
      logs: () => this.#podman('logs', inside).output,
      stop: () => {
        this.#podman('stop', '--time', '20', inside);
        const { output } = this.#podman('inspect', '--format', '{{.State.ExitCode}}', inside);
        this.#podman('pod', 'rm', '--force', name);
        return Number(output);
      },
    };
  }
}
