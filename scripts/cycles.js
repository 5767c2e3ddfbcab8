// Fails on import cycles in packages/ and services/. Type-only imports don't count: they are gone
// at run time.
import { globSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import ts from 'typescript';
import { root } from './environment.js';

const files = globSync('{packages,services}/*/src/**/*.ts', { cwd: root }).map((f) =>
  join(root, f),
);
const known = new Set(files);
const graph = new Map(files.map((file) => [file, importsOf(file)]));

/** @param {string} file */
function importsOf(file) {
  const source = ts.createSourceFile(file, readFileSync(file, 'utf8'), ts.ScriptTarget.Latest);
  const found = [];
  for (const node of source.statements) {
    if (!ts.isImportDeclaration(node) && !ts.isExportDeclaration(node)) continue;
    const typeOnly = ts.isImportDeclaration(node)
      ? node.importClause?.phaseModifier === ts.SyntaxKind.TypeKeyword
      : node.isTypeOnly;
    if (typeOnly || !node.moduleSpecifier || !ts.isStringLiteral(node.moduleSpecifier)) continue;
    const target = locate(file, node.moduleSpecifier.text);
    if (known.has(target)) found.push(target);
  }
  return found;
}

/**
 * @param {string} file
 * @param {string} specifier
 */
function locate(file, specifier) {
  if (specifier.startsWith('@viaduct/shared/')) {
    return join(root, 'packages/shared/src', `${specifier.slice('@viaduct/shared/'.length)}.ts`);
  }
  return join(dirname(file), specifier);
}

/** @type {string[]} */
const cycles = [];
const done = new Set();
/**
 * @param {string} file
 * @param {string[]} path
 */
function visit(file, path) {
  const at = path.indexOf(file);
  if (at >= 0) {
    cycles.push([...path.slice(at), file].map((f) => relative(root, f)).join(' → '));
    return;
  }
  if (done.has(file)) return;
  for (const next of graph.get(file) ?? []) visit(next, [...path, file]);
  done.add(file);
}
for (const file of files) visit(file, []);

for (const cycle of cycles) console.error(`import cycle: ${cycle}`);
if (cycles.length > 0) process.exitCode = 1;
else console.log(`no import cycles in ${files.length} files`);
