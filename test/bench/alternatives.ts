/**
 * Gateways that npm has, beside ours: installed for one run into a temporary folder, because nothing else needs them.
 * Both turn a local stdio server into an HTTP endpoint, with neither authentication nor limits, in one process.
 */
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { freePort, send } from '../support/net.ts';
import { Child, temporaryFolder } from '../support/process.ts';
import { until } from '../support/until.ts';
import type { Program } from './setting.ts';

const PACKAGES = { 'mcp-proxy': '6.7.19', supergateway: '4.0.0' };
const server = new URL('stdio-server.ts', import.meta.url).pathname;

async function start(name: string, args: (port: string) => string[]): Promise<Program> {
  const port = await freePort();
  const child = new Child(name, process.execPath, args(String(port)));
  await until(`${name} listens`, async () => {
    if (!child.running) throw new Error(`${name} ended: ${child.output}`);
    return (await send(`http://127.0.0.1:${port}/`).catch(() => undefined)) !== undefined;
  });
  return { port, child, origin: `http://127.0.0.1:${port}` };
}

export async function startAlternatives(): Promise<Record<string, Program>> {
  const folder = temporaryFolder();
  const packages = Object.entries(PACKAGES).map(([name, version]) => `${name}@${version}`);
  console.log(`installing ${packages.join(' and ')} into a temporary folder, for this run only`);
  const flags = ['--prefix', folder, '--ignore-scripts', '--no-audit', '--no-fund'];
  const installed = spawnSync('npm', ['install', ...flags, ...packages], { encoding: 'utf8' });
  if (installed.status !== 0) throw new Error(`npm install failed: ${installed.stderr}`);
  const inside = (path: string): string => join(folder, 'node_modules', path);
  const command = `"${process.execPath}" "${server}"`;
  return {
    [`mcp-proxy ${PACKAGES['mcp-proxy']}`]: await start('mcp-proxy', (port) => [
      inside('mcp-proxy/dist/bin/mcp-proxy.mjs'),
      ...['--host', '127.0.0.1', '--port', port, '--server', 'stream'],
      ...['--', process.execPath, server],
    ]),
    [`supergateway ${PACKAGES.supergateway}`]: await start('supergateway', (port) => [
      inside('supergateway/dist/index.js'),
      ...['--stdio', command, '--outputTransport', 'streamableHttp', '--stateful'],
      ...['--port', port, '--logLevel', 'none'],
    ]),
  };
}
