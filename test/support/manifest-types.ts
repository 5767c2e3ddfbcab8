import { join } from 'node:path';
import ts from 'typescript';
import type { Manifest } from './manifests.ts';

/**
 * Kubernetes' own API types, generated from its OpenAPI document (kubernetes-types), as a schema: the compiler finds
 * fields that there are not, in whatever depth, and values of the wrong type. Of kinds that clusters get by custom
 * resource definitions it knows nothing.
 */
const MODULES: Readonly<Record<string, string>> = {
  'v1/Namespace': 'core/v1',
  'v1/Service': 'core/v1',
  'v1/ServiceAccount': 'core/v1',
  'v1/ConfigMap': 'core/v1',
  'apps/v1/Deployment': 'apps/v1',
  'policy/v1/PodDisruptionBudget': 'policy/v1',
  'autoscaling/v2/HorizontalPodAutoscaler': 'autoscaling/v2',
  'networking.k8s.io/v1/NetworkPolicy': 'networking/v1',
  'networking.k8s.io/v1/Ingress': 'networking/v1',
};

/** Kind and name of what is of no kind that the types know, and what is wrong with the rest. */
export function judgeManifests(manifests: readonly Manifest[]): {
  readonly unknown: string[];
  readonly faults: string[];
} {
  const unknown: string[] = [];
  const lines: string[] = [];
  for (const [i, manifest] of manifests.entries()) {
    const { kind } = manifest;
    const module = MODULES[`${String(manifest['apiVersion'])}/${kind}`];
    if (module === undefined) unknown.push(kind);
    else {
      // A literal, since only those are checked for fields that are too much.
      lines.push(
        `export const _${i}: import('kubernetes-types/${module}').${kind} = ${JSON.stringify(manifest, null, 1)};`,
      );
    }
  }
  return { unknown: [...new Set(unknown)], faults: faultsIn(lines.join('\n')) };
}

function faultsIn(text: string): string[] {
  // Only its place matters: from here the compiler finds the types.
  const name = join(import.meta.dirname, 'manifests-of-a-test.ts');
  const options: ts.CompilerOptions = {
    strict: true,
    noEmit: true,
    skipLibCheck: true,
    types: [],
    module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext,
  };
  const host = ts.createCompilerHost(options);
  const { fileExists, getSourceFile } = host;
  host.fileExists = (path) => path === name || fileExists(path);
  host.getSourceFile = (path, ...more) =>
    path === name
      ? ts.createSourceFile(path, text, ts.ScriptTarget.ES2024)
      : getSourceFile(path, ...more);
  const program = ts.createProgram([name], options, host);
  return ts
    .getPreEmitDiagnostics(program)
    .map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, ' '));
}
