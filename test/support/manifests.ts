import { spawnSync } from 'node:child_process';
import { parseAllDocuments } from 'yaml';

/** Kubernetes' objects as `kubectl kustomize` builds them. Their fields are looked at as far as a test needs them. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any -- other people's shapes, asserted on one by one
export type Manifest = Record<string, any> & {
  kind: string;
  metadata: { name: string; namespace?: string };
};

/** Is the command there? Where it is not, its tests are skipped, and say so. */
export function hasCommand(command: string, ...args: string[]): boolean {
  const there = spawnSync(command, args).status === 0;
  if (!there) console.warn(`no ${command} on this machine: the tests that need it are skipped`);
  return there;
}

export function buildManifests(folder: string): Manifest[] {
  const { status, stdout, stderr } = spawnSync('kubectl', ['kustomize', folder], {
    encoding: 'utf8',
    maxBuffer: 16 * 1024 * 1024,
  });
  if (status !== 0) throw new Error(`kubectl kustomize ${folder}: ${stderr}`);
  return parseAllDocuments(stdout).map((document) => {
    if (document.errors.length > 0) throw new Error(document.errors[0]!.message);
    return document.toJS() as Manifest;
  });
}
