import { spawnSync } from 'node:child_process';
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { judgeManifests } from '../support/manifest-types.ts';
import { buildManifests, hasCommand, type Manifest } from '../support/manifests.ts';
import { program, temporaryFolder } from '../support/process.ts';
import { startRefused } from '../support/stack.ts';

// deploy/ (issue 7, items 8 and 9): what a security review and an on-call engineer would ask of it.

const deploy = join(import.meta.dirname, '../../deploy');
const kubectl = hasCommand('kubectl', 'version', '--client');
const overlays = ['dev', 'production'] as const;
type Overlay = (typeof overlays)[number];

const built = new Map<Overlay, Manifest[]>();
function all(overlay: Overlay): Manifest[] {
  let manifests = built.get(overlay);
  if (manifests === undefined) {
    manifests = buildManifests(join(deploy, 'k8s/overlays', overlay));
    built.set(overlay, manifests);
  }
  return manifests;
}
const ofKind = (overlay: Overlay, kind: string): Manifest[] =>
  all(overlay).filter((manifest) => manifest.kind === kind);
const one = (overlay: Overlay, kind: string, name: string): Manifest => {
  const found = ofKind(overlay, kind).find(({ metadata }) => metadata.name === name);
  if (found === undefined) throw new Error(`${overlay} has no ${kind} ${name}`);
  return found;
};
const services = ['gateway', 'worker'] as const;
const configuration = (overlay: Overlay) =>
  parse(one(overlay, 'ConfigMap', 'viaduct')['data']['viaduct.yaml'] as string) as {
    drain: { delaySeconds: number; timeoutSeconds: number };
  };

const NAMESPACED_API: Record<string, string> = {
  ServiceAccount: 'v1',
  ConfigMap: 'v1',
  Service: 'v1',
  Namespace: 'v1',
  Deployment: 'apps/v1',
  PodDisruptionBudget: 'policy/v1',
  HorizontalPodAutoscaler: 'autoscaling/v2',
  NetworkPolicy: 'networking.k8s.io/v1',
  Ingress: 'networking.k8s.io/v1',
  Gateway: 'gateway.networking.k8s.io/v1',
  HTTPRoute: 'gateway.networking.k8s.io/v1',
  ServiceMonitor: 'monitoring.coreos.com/v1',
  PrometheusRule: 'monitoring.coreos.com/v1',
};

describe.skipIf(!kubectl).each(overlays)('overlay %s', (overlay) => {
  test('[k8s.shape] every object has the API version of its kind, and a namespace', () => {
    for (const { kind, apiVersion, metadata } of all(overlay)) {
      expect([kind, apiVersion]).toEqual([kind, NAMESPACED_API[kind]]);
      if (kind !== 'Namespace') expect(metadata.namespace, metadata.name).toMatch(/^viaduct/);
    }
  });

  test('[k8s.schema] Kubernetes’ own types know every field', () => {
    const { unknown, faults } = judgeManifests(all(overlay));
    expect(faults).toEqual([]);
    // What clusters get by custom resource definitions.
    for (const kind of unknown)
      expect(kind).toMatch(/^(ServiceMonitor|PrometheusRule|Gateway|HTTPRoute)$/);
    const planted = structuredClone(ofKind(overlay, 'Deployment')[0]!);
    planted['spec'].template.spec.containers[0].livenessProbe.periodSecond = 5;
    expect(judgeManifests([planted]).faults).toEqual([expect.stringContaining('periodSecond')]);
    const typo = structuredClone(ofKind(overlay, 'Deployment')[0]!);
    typo['spec'].replicas = '2';
    expect(judgeManifests([typo]).faults).toHaveLength(1);
  });

  test('[k8s.security] no root, no writable root, no privileges, no token of the cluster', () => {
    for (const deployment of ofKind(overlay, 'Deployment')) {
      const pod = deployment['spec'].template.spec;
      expect(pod.automountServiceAccountToken).toBe(false);
      expect(pod.securityContext).toMatchObject({
        runAsNonRoot: true,
        seccompProfile: { type: 'RuntimeDefault' },
      });
      expect(pod.securityContext.runAsUser).toBeGreaterThan(0);
      for (const container of pod.containers) {
        expect(container.securityContext).toEqual({
          allowPrivilegeEscalation: false,
          readOnlyRootFilesystem: true,
          capabilities: { drop: ['ALL'] },
        });
        expect(container.resources.requests).toMatchObject({
          cpu: expect.any(String),
          memory: expect.any(String),
        });
        expect(container.resources.limits.memory).toEqual(expect.any(String));
        expect(container.image).toMatch(/:(?!latest$)[\w.-]+$/);
      }
    }
  });

  test('[k8s.probes] live says nothing of Redis, ready takes a pod out at once, both on the admin port', () => {
    for (const name of services) {
      const [container] = one(overlay, 'Deployment', `viaduct-${name}`)['spec'].template.spec
        .containers;
      expect(container.livenessProbe.httpGet).toEqual({ path: '/healthz/live', port: 'admin' });
      expect(container.startupProbe.httpGet).toEqual({ path: '/healthz/live', port: 'admin' });
      expect(container.readinessProbe).toMatchObject({
        httpGet: { path: '/healthz/ready', port: 'admin' },
        failureThreshold: 1,
      });
      // Out of the Service before the pod stops serving.
      expect(container.readinessProbe.periodSeconds).toBeLessThan(
        configuration(overlay).drain.delaySeconds,
      );
    }
  });

  test('[k8s.drain] a pod is given longer than its drain takes, and a new one is ready before an old one goes', () => {
    const { delaySeconds, timeoutSeconds } = configuration(overlay).drain;
    for (const name of services) {
      const { spec } = one(overlay, 'Deployment', `viaduct-${name}`) as Record<string, any>; // eslint-disable-line @typescript-eslint/no-explicit-any
      expect(spec.template.spec.terminationGracePeriodSeconds).toBeGreaterThanOrEqual(
        delaySeconds + timeoutSeconds + 5,
      );
      expect(spec.strategy.rollingUpdate).toEqual({ maxSurge: 1, maxUnavailable: 0 });
    }
  });

  test('[k8s.spread] pods are spread, kept in number during disruptions, and the gateway scales', () => {
    for (const name of services) {
      const { topologySpreadConstraints } = one(overlay, 'Deployment', `viaduct-${name}`)['spec']
        .template.spec;
      expect(
        (topologySpreadConstraints as { topologyKey: string }[]).map((one) => one.topologyKey),
      ).toEqual(['topology.kubernetes.io/zone', 'kubernetes.io/hostname']);
      const budget = one(overlay, 'PodDisruptionBudget', `viaduct-${name}`);
      expect(budget['spec'].maxUnavailable).toBe(1);
    }
    const { spec } = one(overlay, 'HorizontalPodAutoscaler', 'viaduct-gateway') as Manifest & {
      spec: Record<string, number>;
    };
    expect(spec['minReplicas']).toBeGreaterThanOrEqual(2);
    // With replicas in the Deployment each `kubectl apply` would undo the autoscaler.
    expect(one(overlay, 'Deployment', 'viaduct-gateway')['spec'].replicas).toBeUndefined();
    expect(one(overlay, 'Deployment', 'viaduct-worker')['spec'].replicas).toBeGreaterThanOrEqual(2);
  });

  test('[k8s.network] everything is denied but what is named; the admin port is for monitoring only', () => {
    const policies = ofKind(overlay, 'NetworkPolicy').map(({ metadata, ...rest }) => ({
      name: metadata.name,
      spec: rest['spec'] as Record<string, any>, // eslint-disable-line @typescript-eslint/no-explicit-any
    }));
    const deny = policies.find(({ name }) => name === 'viaduct-default-deny');
    expect(deny?.spec).toEqual({ podSelector: {}, policyTypes: ['Ingress', 'Egress'] });
    const ways = policies.flatMap(({ spec }) => (spec['ingress'] ?? []) as Manifest[]);
    for (const way of ways) {
      expect(way['from'], 'an ingress rule names who may').toHaveLength(1);
      expect(way['ports'], 'and one port').toHaveLength(1);
      if (way['ports'][0].port === 'admin') {
        expect(way['from'][0].namespaceSelector.matchLabels).toEqual({
          'kubernetes.io/metadata.name': 'monitoring',
        });
      }
    }
    expect(ways.some((way) => way['ports'][0].port === 'http')).toBe(true);
    const open = policies.flatMap(({ spec }) => (spec['egress'] ?? []) as Manifest[]);
    const world = open.filter((way) => JSON.stringify(way['to']).includes('0.0.0.0/0'));
    expect(world.map((way): unknown => way['ports'])).toEqual([[{ port: 443, protocol: 'TCP' }]]);
    // The public Service never leads to the admin port, and nothing but ClusterIP leads anywhere.
    for (const service of ofKind(overlay, 'Service')) {
      expect(service['spec'].type ?? 'ClusterIP').toBe('ClusterIP');
      if (service.metadata.name === 'viaduct-gateway') {
        expect(service['spec'].ports).toEqual([{ name: 'http', port: 80, targetPort: 'http' }]);
        expect(service['spec'].sessionAffinity).toBeUndefined();
      }
    }
  });

  test('[k8s.secrets] secrets come by reference, and the configuration as a whole folder', () => {
    expect(ofKind(overlay, 'Secret')).toEqual([]);
    for (const name of services) {
      const pod = one(overlay, 'Deployment', `viaduct-${name}`)['spec'].template.spec;
      const [container] = pod.containers;
      expect(container.envFrom).toEqual([{ secretRef: { name: 'viaduct' } }]);
      for (const { name: variable, value } of container.env as { name: string; value?: string }[]) {
        if (value !== undefined) expect(variable).toBe('NODE_OPTIONS');
      }
      // A subPath mount never sees an update.
      expect(container.volumeMounts).toEqual([
        { name: 'config', mountPath: '/etc/viaduct', readOnly: true },
      ]);
      expect(pod.volumes).toEqual([{ name: 'config', configMap: { name: 'viaduct' } }]);
    }
  });

  test('[k8s.config] the product takes the configuration that the overlay brings', async () => {
    // Everything but the port is right, so the port is all that it can complain about.
    for (const service of services) {
      const { lines } = await startRefused(
        one(overlay, 'ConfigMap', 'viaduct')['data']['viaduct.yaml'] as string,
        {
          service,
          env: { ADMIN_PORT: 'x', IDP_SECRET: 'k4J8v2Lq9sXw', ACME_SECRET: 'z7Tn3Bq6dRpM' },
        },
      );
      expect(lines).toEqual([expect.stringContaining('ADMIN_PORT')]);
    }
  });
});

describe.skipIf(!kubectl)('the way in', () => {
  test('[k8s.streams] Ingress and Gateway API let a stream stay open, and never send a call twice', () => {
    const { annotations } = one('production', 'Ingress', 'viaduct').metadata as unknown as {
      annotations: Record<string, string>;
    };
    const nginx = (name: string) => annotations[`nginx.ingress.kubernetes.io/${name}`];
    expect(nginx('proxy-buffering')).toBe('off');
    expect(Number(nginx('proxy-read-timeout'))).toBeGreaterThanOrEqual(3600);
    expect(nginx('proxy-next-upstream')).not.toContain('non_idempotent');
    const gateway = buildManifests(join(deploy, 'k8s/components/gateway-api'));
    const route = gateway.find(({ kind }) => kind === 'HTTPRoute');
    for (const rule of route?.['spec'].rules as Manifest[]) {
      expect(rule['timeouts']).toEqual({ request: '0s', backendRequest: '0s' });
      expect(rule['retry']).toBeUndefined();
    }
  });
});

describe('images', () => {
  const dockerfile = readFileSync(join(deploy, 'docker/Dockerfile'), 'utf8');

  test('[image] several stages, no root, no development dependencies, no foreign install scripts', () => {
    const last = dockerfile.slice(dockerfile.indexOf('AS runtime'));
    expect(last).toMatch(/^USER 65532:65532$/m);
    expect(last).not.toMatch(/^RUN /m);
    expect(dockerfile.match(/npm ci .*/g)).toHaveLength(2);
    for (const line of dockerfile.match(/npm ci .*/g)!) {
      expect(line).toContain('--ignore-scripts');
      expect(line).toContain('--omit=optional');
    }
    expect(dockerfile).toMatch(/npm ci .*--omit=dev/);
    expect(last).not.toMatch(/COPY (?!--from)/);
    for (const target of services) expect(last).toContain(`FROM runtime AS ${target}`);
  });

  test('[image.compose] compose.yaml: two pods and a worker that cannot write, and time to drain', () => {
    const compose = parse(readFileSync(join(deploy, 'docker/compose.yaml'), 'utf8'), {
      merge: true,
    }) as { services: Record<string, Record<string, unknown>> };
    for (const name of ['pod1', 'pod2', 'worker']) {
      expect(compose.services[name]).toMatchObject({
        read_only: true,
        cap_drop: ['ALL'],
        stop_grace_period: '30s',
      });
    }
    expect(Object.keys(compose.services)).toEqual(
      expect.arrayContaining(['redis', 'haproxy', 'prometheus', 'grafana']),
    );
  });

  test('[image.compose] what it mounts is taken: the product’s, the balancer’s and Prometheus’ configuration', async () => {
    const docker = (name: string) => readFileSync(join(deploy, 'docker', name), 'utf8');
    const { lines } = await startRefused(docker('config/viaduct.yaml'), {
      env: { ADMIN_PORT: 'x' },
    });
    expect(lines).toEqual([expect.stringContaining('ADMIN_PORT')]);
    const folder = temporaryFolder();
    // Names of its own network, which are nobody's here.
    const haproxy = join(folder, 'haproxy.cfg');
    writeFileSync(haproxy, docker('haproxy.cfg').replaceAll(/ pod[12]:8080/g, ' 127.0.0.1:8080'));
    const checked = spawnSync(program('haproxy', 'haproxy'), ['-c', '-f', haproxy]);
    expect(checked.stderr.toString()).not.toContain('ALERT');
    expect(checked.status).toBe(0);
    if (!hasCommand('promtool', '--version')) return;
    writeFileSync(join(folder, 'prometheus.yaml'), docker('prometheus.yaml'));
    copyFileSync(join(deploy, 'k8s/components/monitoring/rules.yaml'), join(folder, 'rules.yaml'));
    const prometheus = spawnSync('promtool', ['check', 'config', join(folder, 'prometheus.yaml')]);
    expect(prometheus.stderr.toString(), prometheus.stdout.toString()).toBe('');
  });
});
