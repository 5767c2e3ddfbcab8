import { setTimeout as pause } from 'node:timers/promises';
import { until } from '../support/until.ts';
import type { ChaosWorld } from './world.ts';

export const elicitationOf = (link: string): string => new URL(link).pathname.split('/')[2] ?? '';

const ENDS: ReadonlySet<string> = new Set(['completed', 'failed', 'declined', 'cancelled', 'expired']); // prettier-ignore
const PATIENCE_MS = 90_000;

/**
 * Somebody with a browser who follows a link to its end, and tries again when a page does not come. What the status
 * page says in the end, or `stuck` when it says nothing final in a time that nobody would wait.
 */
export async function follow({ world }: ChaosWorld, user: string, link: string): Promise<string> {
  const deadline = performance.now() + PATIENCE_MS;
  const browser = world.browser(user);
  let state: string | undefined;
  while (performance.now() < deadline) {
    try {
      if (state === undefined || state === 'created' || state === 'opened') {
        const page = await browser.open(link);
        const asks = page.forms.some(({ buttons }) =>
          buttons.some(({ name, value }) => name === 'decision' && value === 'approve'),
        );
        if (asks) await browser.submit({ decision: 'approve' });
      }
      state = await world.state(browser.clone(), link);
      if (state !== undefined && ENDS.has(state)) return state;
    } catch {
      state = undefined; // a page that did not come: once more
    }
    await pause(200);
  }
  return 'stuck';
}

/** Takes the connection back, on the page for that; a page that does not come is asked for again. */
export async function disconnect({ world }: ChaosWorld, user: string): Promise<void> {
  await until(
    'the connection is taken back',
    async () => {
      const browser = world.browser(user);
      const page = await browser.open(`${world.publicUrl}/connections`);
      if (page.status !== 200) return false;
      const connected = page.forms.some(({ action }) => action.endsWith('/disconnect'));
      return !connected || (await browser.press('/disconnect')).status < 400;
    },
    { timeoutMs: PATIENCE_MS, everyMs: 200 },
  );
}
