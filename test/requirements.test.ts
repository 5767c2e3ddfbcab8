import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { requirements } from './requirements.ts';

/** What a row says in code's letters and is no test. */
const NAMES = new Set([
  'publicUrl',
  'authorize',
  'oauth',
  'consent_required',
  '__Host-',
  '__Secure-',
]);

// The gate: a promise that no test shows, and a test that shows an unknown promise, both fail.

const here = import.meta.dirname;
const sources = readdirSync(here, { recursive: true, encoding: 'utf8' })
  .filter((file) => /^(e2e|failure|chaos|fuzz|soak|conformance|browser)\/.*\.test\.ts$/.test(file))
  .map((file) => readFileSync(join(here, file), 'utf8'));
const cited = new Set(
  sources.flatMap((text) =>
    [...text.matchAll(/['"`]\[([A-Za-z][\w.-]*)\] /g)].map(([, id]) => id!),
  ),
);

test('every requirement is shown by a test', () => {
  expect(requirements.filter(({ id }) => !cited.has(id)).map(({ id }) => id)).toEqual([]);
});

test('every test that cites a requirement cites one that is written down', () => {
  const known = new Set(requirements.map(({ id }) => id));
  expect([...cited].filter((id) => !known.has(id))).toEqual([]);
  expect(known.size, 'no id twice').toBe(requirements.length);
});

describe('docs/security.md', () => {
  const root = join(here, '..');
  const rows = readFileSync(join(root, 'docs/security.md'), 'utf8')
    .split('\n')
    .filter((line) => line.startsWith('| ') && !line.startsWith('| Rule |'))
    .map((line) => line.split(' | ').map((cell) => cell.replace(/^\| | \|$/g, '')));
  const known = new Set(requirements.map(({ id }) => id));

  test('has a row for each rule, in two cells', () => {
    expect(rows.length).toBeGreaterThan(80);
    expect(rows.filter((cells) => cells.length !== 2 || cells.includes(''))).toEqual([]);
  });

  test.for(rows)('%s', ([, shown = '']) => {
    if (/^Not ours: \w/.test(shown)) return;
    const files = [...shown.matchAll(/`([\w/.-]+\.test\.ts)` “([^”]+)”/g)];
    for (const [, file, title] of files) {
      expect(readFileSync(join(root, file!), 'utf8')).toContain(title);
    }
    const ids = [...shown.matchAll(/`([A-Za-z][\w.-]*)`/g)]
      .map(([, id]) => id!)
      .filter((id) => !NAMES.has(id));
    expect(ids.filter((id) => !known.has(id))).toEqual([]);
    expect(files.length + ids.filter((id) => known.has(id)).length).toBeGreaterThan(0);
  });
});
