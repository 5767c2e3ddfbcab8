import { expect, it } from 'vitest';
import type { OAuthConnection } from './config.ts';
import { connectionHash, thirdPartyOrigin } from './third-party.ts';

const connection: OAuthConnection = {
  type: 'oauth',
  name: 'acme',
  displayName: 'Acme',
  issuer: 'https://auth.acme.example/realm',
  clientId: 'c',
  clientSecret: 's',
  scopes: ['a', 'b'],
  inject: { header: 'Authorization', value: 'Bearer {{accessToken}}' },
};

it('asks for a new grant when what was granted changes, and not when a secret is rotated', () => {
  const before = connectionHash(connection);
  expect(connectionHash({ ...connection, clientSecret: 'other', displayName: 'New name' })).toBe(
    before,
  );
  expect(connectionHash({ ...connection, scopes: ['b', 'a'] })).toBe(before);
  expect(connectionHash({ ...connection, scopes: ['a', 'b', 'c'] })).not.toBe(before);
  expect(connectionHash({ ...connection, clientId: 'd' })).not.toBe(before);
  expect(connectionHash({ ...connection, issuer: 'https://other.example' })).not.toBe(before);
});

it('names the origin that the operator wrote', () => {
  expect(thirdPartyOrigin(connection)).toBe('https://auth.acme.example');
});
