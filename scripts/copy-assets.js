// Copies what tsc does not: `node copy-assets.js FROM TO`, relative to the calling package.
import { cpSync, existsSync } from 'node:fs';

const [from, to] = process.argv.slice(2);
if (!from || !to) throw new Error('usage: copy-assets.js FROM TO');
if (existsSync(from)) cpSync(from, to, { recursive: true, preserveTimestamps: true });
