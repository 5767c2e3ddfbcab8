import { describe, expect, it } from 'vitest';
import { addressSubject, clientAddress, normalizeAddress } from './address.ts';

describe('normalizeAddress', () => {
  it.each([
    ['192.0.2.7', '192.0.2.7'],
    ['192.0.2.7:443', '192.0.2.7'],
    ['::ffff:192.0.2.7', '192.0.2.7'],
    ['[2001:db8::1]:443', '2001:db8::1'],
    ['[2001:DB8::1]', '2001:db8::1'],
    ['fe80::1%eth0', 'fe80::1'],
    ['127.1', undefined],
    ['0x7f000001', undefined],
    ['2130706433', undefined],
    ['unknown', undefined],
    ['', undefined],
  ])('%s is %s', (text, address) => {
    expect(normalizeAddress(text)).toBe(address);
  });
});

// Case R1: what a client writes into X-Forwarded-For must not change who it is.
describe('clientAddress', () => {
  it.each([
    ['10.0.0.1', undefined, 1, '10.0.0.1'],
    ['10.0.0.1', '1.1.1.1', 1, '1.1.1.1'],
    ['10.0.0.1', '1.1.1.1, 2.2.2.2', 1, '2.2.2.2'],
    ['10.0.0.1', '9.9.9.9,1.1.1.1, 2.2.2.2', 2, '1.1.1.1'],
    ['10.0.0.1', '1.1.1.1', 3, '1.1.1.1'],
    ['10.0.0.1', '1.1.1.1', 0, '10.0.0.1'],
    ['10.0.0.1', '1.1.1.1, nonsense', 1, '10.0.0.1'],
    ['10.0.0.1', 'nonsense, 2.2.2.2', 2, '2.2.2.2'],
    ['10.0.0.1', '', 1, '10.0.0.1'],
    ['10.0.0.1', '1.1.1.1:5555', 1, '1.1.1.1'],
    ['::ffff:10.0.0.1', '::ffff:1.1.1.1', 1, '1.1.1.1'],
    [undefined, undefined, 1, 'unknown'],
  ])('from %s with "%s" and %i hops is %s', (remote, forwarded, hops, address) => {
    expect(clientAddress(remote, forwarded, hops)).toBe(address);
  });
});

describe('addressSubject', () => {
  it.each([
    ['192.0.2.7', '192.0.2.7'],
    ['::ffff:192.0.2.7', '192.0.2.7'],
    ['2001:db8:1:2:3:4:5:6', '2001:db8:1:2::/64'],
    ['2001:DB8:1:2:ffff:ffff:ffff:ffff', '2001:db8:1:2::/64'],
    ['2001:db8:1:3::1', '2001:db8:1:3::/64'],
    ['2001:db8:1:3::/64', '2001:db8:1:3::/64'],
    ['fe80::1%eth0', 'fe80::/64'],
    ['::1', '::/64'],
    ['not an address', 'unknown'],
    ['', 'unknown'],
  ])('%s is %s', (address, subject) => {
    expect(addressSubject(address)).toBe(subject);
  });
});
