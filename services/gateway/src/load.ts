/**
 * How much may be open at once, streams and calls alike, so that one user cannot hold a pod, and a pod that is full
 * says so (503, and the load balancer's other pods go on) before its event loop suffers; and while the event loop is
 * late all the same, a part of what comes is sent away too (event-loop.ts).
 *
 * Counted in this process only: what is open here is what it costs here. The limits by time are in rate-limit.ts.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { LimitsConfig } from '@viaduct/shared/config';
import { fail, type GatewayError } from '@viaduct/shared/errors';
import type { Metrics } from '@viaduct/shared/metrics';
import type { EventLoop } from './event-loop.ts';

export interface Load {
  /** Counts an answer from now until it closes. Returns the refusal when the pod is full or late. */
  arrive(req: IncomingMessage, res: ServerResponse): GatewayError | undefined;
  /** @throws GatewayError rate_limited when this user has too much open here */
  admit(req: IncomingMessage, userId: string): void;
  /** Was it this that refused the request? */
  refused(req: IncomingMessage): boolean;
}

export function createLoad(deps: {
  readonly limits: { readonly concurrent: Pick<LimitsConfig['concurrent'], 'perUser' | 'perPod'> };
  readonly metrics: Pick<Metrics, 'rateLimited'>;
  readonly eventLoop: Pick<EventLoop, 'sheds'>;
}): Load {
  const { perUser, perPod } = deps.limits.concurrent;
  const byUser = new Map<string, number>();
  const seats = new WeakMap<IncomingMessage, Seat>();
  let open = 0;

  const leave = (seat: Seat): void => {
    const { userId } = seat;
    open--;
    seat.left = true;
    if (userId === undefined) return;
    const left = (byUser.get(userId) ?? 1) - 1;
    if (left > 0) byUser.set(userId, left);
    else byUser.delete(userId);
  };

  return {
    arrive(req, res) {
      if (open >= perPod) {
        deps.metrics.rateLimited.inc({ limit: 'concurrentPod' });
        return fail('unavailable', 'This pod is full. Try again in a moment.', {
          headers: { 'Retry-After': '1' },
        });
      }
      if (deps.eventLoop.sheds()) {
        deps.metrics.rateLimited.inc({ limit: 'eventLoop' });
        return fail('unavailable', 'This pod is overloaded. Try again in a moment.', {
          headers: { 'Retry-After': '1' },
        });
      }
      open++;
      const seat: Seat = { userId: undefined, refused: false, left: false };
      seats.set(req, seat);
      res.once('close', () => {
        leave(seat);
      });
      return undefined;
    },

    admit(req, userId) {
      const seat = seats.get(req);
      const count = byUser.get(userId) ?? 0;
      if (count >= perUser) {
        deps.metrics.rateLimited.inc({ limit: 'concurrentUser' });
        if (seat !== undefined) seat.refused = true;
        throw fail('rate_limited', `No more than ${perUser} requests and streams at once.`, {
          headers: {
            'Retry-After': '1',
            RateLimit: '"concurrentUser";r=0;t=1',
            'RateLimit-Policy': `"concurrentUser";q=${perUser}`,
          },
          data: { limit: 'concurrentUser', retryAfterSeconds: 1 },
        });
      }
      // Whoever went away while its token was verified holds nothing any more.
      if (seat === undefined || seat.left) return;
      byUser.set(userId, count + 1);
      seat.userId = userId;
    },

    refused: (req) => seats.get(req)?.refused === true,
  };
}

/** One open answer: whose it is, once that is known. */
interface Seat {
  userId: string | undefined;
  refused: boolean;
  left: boolean;
}
