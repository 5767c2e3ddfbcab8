import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createEgress, createFetch, isPublicAddress } from './egress.ts';

describe('isPublicAddress', () => {
  it.each(['8.8.8.8', '1.1.1.1', '2606:4700:4700::1111', '93.184.216.34'])('%s is public', (a) => {
    expect(isPublicAddress(a)).toBe(true);
  });
  it.each([
    '127.0.0.1',
    '10.1.2.3',
    '172.16.0.1',
    '192.168.1.1',
    '169.254.169.254',
    '100.64.0.1',
    '0.0.0.0',
    '224.0.0.1',
    '255.255.255.255',
    '192.0.2.1',
    '198.18.0.1',
    '240.0.0.1',
    '::1',
    '::',
    'fe80::1',
    'fe80::1%eth0',
    'fc00::1',
    'fd12::1',
    'ff02::1',
    'fec0::1',
    '::ffff:8.8.8.8',
    '::ffff:127.0.0.1',
    '64:ff9b::8.8.8.8',
    '64:ff9b:1::1',
    '2002:7f00:1::',
    '2001::1',
    '2001:db8::1',
    '::127.0.0.1',
    '[::1]',
    'not an address',
    '',
  ])('%s is not', (a) => {
    expect(isPublicAddress(a)).toBe(false);
  });
});

describe('createFetch', () => {
  const server = createServer((req, res) => {
    if (req.url === '/big') res.end('x'.repeat(300 * 1024));
    else if (req.url === '/drip') {
      const drip = setInterval(() => res.write('x'), 20);
      res.on('close', () => clearInterval(drip));
    } else if (req.url === '/redirect') res.writeHead(302, { location: '/ok' }).end();
    else res.writeHead(200, { 'content-type': 'application/json' }).end('{"ok":true}');
  });
  let port = 0;
  beforeAll(async () => {
    await new Promise<void>((r) => server.listen(0, '127.0.0.1', r));
    port = (server.address() as AddressInfo).port;
  });
  afterAll(() => void server.close());

  const fetchWith = (development: boolean, trusted: string[], addresses?: string[]) => {
    const egress = createEgress({
      development,
      ...(addresses && {
        resolve: async () =>
          addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 })),
      }),
    });
    return createFetch({ egress, development, trustedOrigins: new Set(trusted) });
  };

  it('reaches loopback in the clear in development only', async () => {
    const url = `http://127.0.0.1:${port}/ok`;
    expect(await (await fetchWith(true, [])(url, {})).json()).toEqual({ ok: true });
    await expect(fetchWith(false, [new URL(url).origin])(url, {})).rejects.toThrow('not https');
    await expect(fetchWith(true, [])('http://example.com/', {})).rejects.toThrow('not https');
  });
  it('refuses private addresses behind a name, even when another one is public', async () => {
    const fetch = fetchWith(false, [], ['93.184.216.34', '10.0.0.1']);
    await expect(fetch('https://evil.example/', {})).rejects.toThrow('not a public address');
    await expect(fetchWith(false, [])('https://169.254.169.254/', {})).rejects.toThrow(
      'not a public address',
    );
    await expect(fetchWith(false, [])('https://[::ffff:10.0.0.1]/', {})).rejects.toThrow(
      'not a public address',
    );
  });
  it('connects to the address that it checked', async () => {
    const fetch = fetchWith(true, [], ['127.0.0.1']);
    expect((await fetch(`http://pinned.localhost:${port}/ok`, {})).status).toBe(200);
  });
  it.each([
    ['decimal', 'https://2130706433/'],
    ['octal', 'https://0177.0.0.1/'],
    ['hex', 'https://0x7f.1/'],
    ['short', 'https://127.1/'],
    ['mapped', 'https://[::ffff:a9fe:a9fe]/'],
    ['NAT64', 'https://[64:ff9b::a9fe:a9fe]/'],
    ['6to4', 'https://[2002:a9fe:a9fe::]/'],
  ])('knows a private address in %s', async (_name, url) => {
    await expect(fetchWith(false, [])(url, {})).rejects.toThrow('not a public address');
  });
  it('asks the DNS once, so a second answer changes nothing', async () => {
    const answers = ['127.0.0.1', '10.0.0.1'];
    const asked: string[] = [];
    const egress = createEgress({
      development: true,
      resolve: (name) => {
        asked.push(name);
        return Promise.resolve([{ address: answers[asked.length - 1] ?? '10.0.0.1', family: 4 }]);
      },
    });
    const fetch = createFetch({ egress, development: true, trustedOrigins: new Set() });
    const url = `http://rebind.localhost:${port}/ok`;
    expect((await fetch(url, {})).status).toBe(200);
    expect(asked).toEqual(['rebind.localhost']);
    // Another connection asks anew, and is judged anew.
    await expect(fetch(url, {})).rejects.toThrow('not a public address');
  });
  it('gives up on a body that never ends, however slowly it comes', async () => {
    const fetch = fetchWith(true, []);
    const signal = AbortSignal.timeout(300);
    await expect(fetch(`http://127.0.0.1:${port}/drip`, { signal })).rejects.toThrow();
  });
  it('goes through a proxy when there is one, and judges written addresses all the same', async () => {
    const asked: string[] = [];
    const proxy = createServer().on('connect', (req, socket) => {
      asked.push(req.url ?? '');
      socket.end('HTTP/1.1 403 Forbidden\r\n\r\n');
    });
    await new Promise<void>((r) => proxy.listen(0, '127.0.0.1', r));
    const at = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
    const egress = createEgress({ development: false, proxy: at });
    const fetch = createFetch({ egress, development: false, trustedOrigins: new Set() });
    await expect(fetch('https://auth.example/x', {})).rejects.toThrow();
    await expect(fetch('https://10.0.0.1/x', {})).rejects.toThrow('not a public address');
    expect(asked).toEqual(['auth.example:443']);
    await egress.close();
    proxy.close();
  });
  it('follows no redirect and reads no endless body', async () => {
    const fetch = fetchWith(true, []);
    expect((await fetch(`http://127.0.0.1:${port}/redirect`, {})).status).toBe(302);
    await expect(fetch(`http://127.0.0.1:${port}/big`, {})).rejects.toThrow('too large');
  });
});
