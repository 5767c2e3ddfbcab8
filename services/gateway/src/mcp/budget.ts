/** How long one upstream may keep everybody else waiting. */
import { fail } from '@viaduct/shared/errors';

/** @throws GatewayError upstream_timeout when `work` takes longer; it goes on, unheard */
export async function within<T>(work: Promise<T>, milliseconds: number): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => {
      reject(fail('upstream_timeout', 'The server did not answer in time.'));
    }, milliseconds);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
    work.catch(() => undefined); // the loser of the race must not become an unhandled rejection
  }
}
