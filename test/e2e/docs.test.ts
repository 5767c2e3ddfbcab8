import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { expect, test } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { startRefused } from '../support/stack.ts';

// The guides are true: what they tell people to write is taken, and what they point to is there.

const root = join(import.meta.dirname, '../..');
const pages = [
  'README.md',
  'AGENTS.md',
  ...readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.md'))
    .map((name) => join('docs', name)),
];

interface Block {
  readonly page: string;
  readonly text: string;
}
const blocks = pages.flatMap((page): Block[] =>
  [...readFileSync(join(root, page), 'utf8').matchAll(/^```yaml\n([\s\S]*?)^```$/gm)].map(
    ([, text = '']) => ({ page, text }),
  ),
);
const SECTIONS =
  /^(publicUrl|auth|upstreams|connections|console|limits|sessions|audit|telemetry|drain|vault|elicitation|body|allowedOrigins|trustProxy):/m;

test('[docs.yaml] every piece of configuration in the guides is taken as it stands', async () => {
  const ours = blocks.filter(({ text }) => SECTIONS.test(text));
  expect(ours.length).toBeGreaterThan(3);
  const whole = {
    publicUrl: 'https://mcp.example.com',
    auth: {
      mode: 'external',
      issuer: 'https://idp.example.com',
      login: { clientId: 'viaduct' },
    },
    upstreams: [{ name: 'files', url: 'http://files.internal:3000/mcp' }],
  };
  for (const { page, text } of ours) {
    const given = parseAllDocuments(text)[0]!.toJS() as Record<string, unknown>;
    const names = [...text.matchAll(/\$\{(\w+)\}/g)].map(([, name = '']) => name);
    const env = Object.fromEntries(
      names.map((name) => [name, 'a-secret-of-32-characters-at-least']),
    );
    // Everything but the port has to be right, so the port is all that it can complain about.
    const { lines } = await startRefused(
      { ...whole, ...given },
      { env: { ...env, ADMIN_PORT: 'x' } },
    );
    expect(lines, `${page}:\n${text}`).toEqual([expect.stringContaining('ADMIN_PORT')]);
  }
}, 120_000);

test('[docs.links] what a page points to in this repository is there', () => {
  const missing = pages.flatMap((page) => {
    const text = readFileSync(join(root, page), 'utf8').replaceAll(/^```[\s\S]*?^```$/gm, '');
    return [...text.matchAll(/\]\(([^)\s]+)\)/g)].flatMap(([, target = '']) => {
      const [path = ''] = target.split('#');
      if (path === '' || /^[a-z]+:/.test(path)) return [];
      const file = join(root, dirname(page), path);
      return existsSync(file) ? [] : [`${page} → ${relative(root, file)}`];
    });
  });
  expect(missing).toEqual([]);
});
