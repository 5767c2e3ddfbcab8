import { expect, test } from 'vitest';
import { fail, isStoreError } from './errors.ts';

test.each([
  'READONLY You can’t write against a read only replica.',
  'LOADING Redis is loading the dataset in memory',
  'CLUSTERDOWN The cluster is down',
  'NOSCRIPT No matching script. Please use EVAL.',
  "Cluster isn't ready and enableOfflineQueue options is false",
  "Stream isn't writeable and enableOfflineQueue options is false",
  'Connection is closed.',
  'Command timed out',
  'None of startup nodes is available',
  'Too many Cluster redirections. Last error: ReplyError: CLUSTERDOWN The cluster is down',
])('“%s” is Redis’ fault', (message) => {
  expect(isStoreError(new Error(message))).toBe(true);
});

test.each([
  ['a reply to a wrong command', new Error('WRONGTYPE Operation against a key')],
  ['a fault of ours', new TypeError('x is not a function')],
  ['an error for the caller', fail('not_found', 'no')],
  ['no error at all', 'Connection is closed.'],
])('%s is not', (_name, error) => {
  expect(isStoreError(error)).toBe(false);
});
