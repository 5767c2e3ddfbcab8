/** Addresses of clients: read past trusted proxies, and turned into one subject per subscriber. Pure. */
import { isIP } from 'node:net';
import ipaddr from 'ipaddr.js';

/**
 * An IP address in one spelling: IPv4 in its own form also when mapped into IPv6; no port, no brackets, no
 * zone. Undefined for everything else.
 */
export function normalizeAddress(text: string): string | undefined {
  const bare = /^\[([^\]]*)\](?::\d+)?$/.exec(text)?.[1] ?? text.replace(/^([\d.]+):\d+$/, '$1');
  const address = bare.replace(/%.*$/s, '');
  // net.isIP takes the usual spellings only; ipaddr would also read `127.1` and `0x7f000001`.
  return isIP(address) === 0 ? undefined : ipaddr.process(address).toString();
}

/**
 * The address `hops` trusted proxies away, as Express computes `req.ip` for a number in "trust proxy": each
 * trusted proxy appended the address that it saw, so the list is read from its end. What stands further left
 * was written by the client. An entry that is no address ends the walk at the last one that was.
 *
 * @param remote address of the socket's other end
 * @param forwarded value of X-Forwarded-For
 * @returns `unknown` when the socket is already closed
 */
export function clientAddress(
  remote: string | undefined,
  forwarded: string | readonly string[] | undefined,
  hops: number,
): string {
  let address = normalizeAddress(remote ?? '') ?? 'unknown';
  if (hops === 0 || forwarded === undefined) return address;
  const entries = (typeof forwarded === 'string' ? forwarded : forwarded.join(',')).split(',');
  for (let hop = 1; hop <= hops && hop <= entries.length; hop++) {
    const next = normalizeAddress((entries.at(-hop) ?? '').trim());
    if (next === undefined) break;
    address = next;
  }
  return address;
}

/**
 * One client, one subject: IPv4 as it is, IPv6 by its /64, which is what one subscriber has (RFC 6177);
 * rotating through it must not raise a limit.
 */
export function addressSubject(address: string): string {
  const normal = normalizeAddress(address.replace(/\/64$/, '')); // a subject is its own subject
  if (normal === undefined) return 'unknown';
  const parsed = ipaddr.parse(normal);
  if (parsed.kind() === 'ipv4') return normal;
  const prefix = [...parsed.toByteArray().slice(0, 8), ...new Array<number>(8).fill(0)];
  return `${ipaddr.fromByteArray(prefix).toString()}/64`;
}
