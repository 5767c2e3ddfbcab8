import { createPublicKey, createPrivateKey, sign, verify } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { createKeyring } from '@viaduct/shared/keyring';
import { covers, type Approved } from './approvals.ts';
import { checkDocument, documentUrl, shapeClient } from './documents.ts';
import { canonicalResource, shapeParameters } from './shape.ts';
import { isLoopbackRedirect, redirectIdentity } from './redirects.ts';
import { createSigningKeys } from './signing-keys.ts';

const secret = (kid: string, fill: number) => ({ kid, key: Buffer.alloc(32, fill) });

describe('signing keys', () => {
  it('are the same for every pod, one per secret, and sign', () => {
    const [one, two] = [1, 2].map(() =>
      createSigningKeys(createKeyring([secret('b', 2), secret('a', 1)])),
    );
    expect(one?.privateKeys).toEqual(two?.privateKeys);
    expect(new Set(one?.privateKeys.map(({ kid }) => kid)).size).toBe(2);
    const [key] = one!.privateKeys;
    const signature = sign(
      'sha256',
      Buffer.from('x'),
      createPrivateKey({ key: key!, format: 'jwk' }),
    );
    const { d: _d, ...jwk } = key!;
    const publicKey = createPublicKey({ key: jwk, format: 'jwk' });
    expect(verify('sha256', Buffer.from('x'), publicKey, signature)).toBe(true);
  });

  it('overlap when a secret is put in front', () => {
    const before = createSigningKeys(createKeyring([secret('a', 1)]));
    const after = createSigningKeys(createKeyring([secret('b', 2), secret('a', 1)]));
    expect(after.privateKeys[1]).toEqual(before.privateKeys[0]);
    expect(after.privateKeys[0]?.kid).not.toBe(before.privateKeys[0]?.kid);
  });

  it('follow the bytes, not the name of the secret', () => {
    const kids = [1, 2].map(
      (fill) => createSigningKeys(createKeyring([secret('a', fill)])).privateKeys[0]?.kid,
    );
    expect(kids[0]).not.toBe(kids[1]);
  });
});

describe('documentUrl', () => {
  it.each([
    ['https://app.example/client.json', true],
    ['https://app.example/client?v=1', true],
    ['https://app.example', false],
    ['https://app.example/', false],
    ['https://app.example/a/../b', false],
    ['https://app.example/a/%2e%2E/b', false],
    ['https://app.example/a#b', false],
    ['https://user@app.example/a', false],
    ['https://app.example\\@evil.example/a', false],
    ['https://app.example/a b', false],
    ['http://app.example/a', false],
    ['http://localhost:1/a', false],
    ['ftp://app.example/a', false],
    ['client', false],
  ])('%s: %s', (clientId, expected) => {
    expect(documentUrl(clientId, false) !== undefined).toBe(expected);
  });
  it('takes loopback http in development', () => {
    expect(documentUrl('http://localhost:1/a', true)).toBeDefined();
    expect(documentUrl('http://app.example/a', true)).toBeUndefined();
  });
});

describe('checkDocument', () => {
  const id = 'https://app.example/client.json';
  const good = { client_id: id, redirect_uris: ['https://app.example/cb'] };
  it('keeps what is known and sets what is not said', () => {
    expect(checkDocument(id, { ...good, logo_uri: 'x', scope: 'all' })).toEqual({
      client_id: id,
      redirect_uris: ['https://app.example/cb'],
      application_type: 'web',
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: 'none',
    });
  });
  it.each([
    [null],
    [[]],
    [{ ...good, client_id: `${id}/` }],
    [{ ...good, client_secret: 'x' }],
    [{ ...good, token_endpoint_auth_method: 'client_secret_basic' }],
    [{ ...good, redirect_uris: ['http://app.example/cb'] }],
    [{ ...good, redirect_uris: ['javascript:x'] }],
  ])('refuses %j', (document) => {
    expect(() => checkDocument(id, document)).toThrow();
  });
});

describe('shapes', () => {
  it.each([
    ['HTTPS://MCP.Example.com/mcp/', 'https://mcp.example.com/mcp'],
    ['https://mcp.example.com:443/mcp/files', 'https://mcp.example.com/mcp/files'],
    ['https://mcp.example.com/MCP', 'https://mcp.example.com/MCP'],
    ['https://mcp.example.com/mcp#x', 'https://mcp.example.com/mcp#x'],
    ['https://mcp.example.com/mcp?x', 'https://mcp.example.com/mcp?x'],
    ['urn:x', 'urn:x'],
  ])('resource %s', (given, expected) => expect(canonicalResource(given)).toBe(expected));

  it('gives a scope only where none was asked for, and keeps every resource', () => {
    expect(shapeParameters(new URLSearchParams('a=1'), 'mcp:tools').get('scope')).toBe('mcp:tools');
    expect(shapeParameters(new URLSearchParams('scope=x'), 'mcp:tools').get('scope')).toBe('x');
    expect(shapeParameters(new URLSearchParams('a=1'), '').has('scope')).toBe(false);
    const two = shapeParameters(new URLSearchParams('resource=urn:a&resource=urn:b'), '');
    expect(two.getAll('resource')).toEqual(['urn:a', 'urn:b']);
  });

  it('a client that names a redirect on this machine is native', () => {
    expect(shapeClient({ redirect_uris: ['http://127.0.0.1/cb'] })).toMatchObject({
      application_type: 'native',
    });
    expect(
      shapeClient({ redirect_uris: ['http://127.0.0.1/cb'], application_type: 'web' }),
    ).toMatchObject({ application_type: 'web' });
  });
});

describe('approvals', () => {
  const approved: Approved = {
    clientId: 'c',
    redirects: [redirectIdentity('http://127.0.0.1:1/cb'), 'https://app.example/cb'],
    scopes: { 'https://x/mcp': ['a', 'b'] },
    approvedAtMs: 0,
    grants: [],
  };
  const asked = (more: object) => ({
    clientId: 'c',
    redirectUri: 'https://app.example/cb',
    resource: 'https://x/mcp',
    scopes: ['a'],
    ...more,
  });
  it.each([
    [{}, true],
    [{ redirectUri: 'http://127.0.0.1:4711/cb' }, true],
    [{ redirectUri: 'http://127.0.0.1:4711/other' }, false],
    [{ redirectUri: 'https://app.example:8443/cb' }, false],
    [{ scopes: ['a', 'c'] }, false],
    [{ resource: 'https://x/mcp/files' }, false],
  ])('cover %j: %s', (more, expected) => expect(covers(approved, asked(more))).toBe(expected));
  it('know loopback', () => {
    expect(isLoopbackRedirect('http://[::1]:1/x')).toBe(true);
    expect(isLoopbackRedirect('http://localhost.evil.example/x')).toBe(false);
  });
});
