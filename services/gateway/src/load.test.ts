import { EventEmitter } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { expect, it } from 'vitest';
import { createLoad } from './load.ts';

const request = () => ({
  req: new EventEmitter() as unknown as IncomingMessage,
  res: new EventEmitter() as unknown as ServerResponse,
});
const created = () =>
  createLoad({
    limits: { concurrent: { perUser: 1, perPod: 10 } },
    metrics: {
      rateLimited: {
        inc: () => undefined,
        child: () => ({ inc: () => undefined }),
        values: () => [],
      },
    },
    eventLoop: { sheds: () => false },
  });

it('forgets whoever went away while its token was verified', () => {
  const load = created();
  const gone = request();
  load.arrive(gone.req, gone.res);
  gone.res.emit('close');
  load.admit(gone.req, 'ann');
  const next = request();
  load.arrive(next.req, next.res);
  expect(() => {
    load.admit(next.req, 'ann');
  }).not.toThrow();
});

it('knows the request that it refused', () => {
  const load = created();
  const [first, second] = [request(), request()];
  load.arrive(first.req, first.res);
  load.arrive(second.req, second.res);
  load.admit(first.req, 'ann');
  expect(() => {
    load.admit(second.req, 'ann');
  }).toThrow('at once');
  expect([load.refused(first.req), load.refused(second.req)]).toEqual([false, true]);
  first.res.emit('close');
  expect(() => {
    load.admit(second.req, 'ann');
  }).not.toThrow();
});
