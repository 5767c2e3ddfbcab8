import { expect, it } from 'vitest';
import { scopeInWords } from './scope-words.ts';

it.each([
  ['drive.read', 'read drive'],
  ['files:write', 'change files'],
  ['openid', 'know who you are there'],
  ['offline_access', 'stay connected while you are away'],
  ['https://www.googleapis.com/auth/drive.readonly', 'read drive'],
  ['Mail.Send', 'send mail'],
  ['read', 'read what you have there'],
  ['repo', 'use “repo”'],
  ['admin:org', 'administer org'],
  ['constructor', 'use “constructor”'],
  ['calendarEvents.delete', 'delete calendar events'],
])('%s: %s', (scope, words) => {
  expect(scopeInWords(scope)).toBe(words);
});
