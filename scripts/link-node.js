// Puts the Node that came as an npm package first on the PATH of npm scripts: node_modules/.bin/node.
// npm 11 links it by itself; npm 10, which comes with Node 20, drops the link again when it leaves out
// the packages of other platforms, since they name the same command.
import { existsSync, lstatSync, rmSync, symlinkSync } from 'node:fs';
import { join, resolve } from 'node:path';

const modules = resolve(import.meta.dirname, '..', 'node_modules');
const target = join('..', `node-${process.platform}-${process.arch}`, 'bin', 'node');
const link = join(modules, '.bin', 'node');

if (existsSync(join(modules, '.bin', target)) && !existsSync(link)) {
  // A link that leads nowhere is in the way, too.
  if (lstatSync(link, { throwIfNoEntry: false })) rmSync(link);
  symlinkSync(target, link);
}
