/**
 * `/login/operator/<challenge>`: the way of an operator from the public listener, where people sign in, to the
 * console, which has another origin (operator-codes.ts, console/access.ts). Only people of the configured group get
 * a code, and it goes to the configured address only.
 */
import type { OperatorCodes } from '../operator-codes.ts';
import type { Frame, PageServices, Visit } from './frame.ts';

export const OPERATOR_LOGIN = '/login/operator';
const CHALLENGE = /^[A-Za-z0-9_-]{43}$/;

export function createOperatorPage(
  { config, audit }: Pick<PageServices, 'config' | 'audit'>,
  frame: Frame,
  codes: OperatorCodes,
): (visit: Visit, challenge: string) => Promise<void> {
  const { access, operatorsGroup, url } = config.console;

  return async (visit, challenge) => {
    const known = await frame.known(visit, `${OPERATOR_LOGIN}/${challenge}`);
    if (known === undefined) return;
    const { session, requestId } = known;
    if (access !== 'operators' || url === undefined || !CHALLENGE.test(challenge)) {
      frame.notFound(known, session);
      return;
    }
    const { userId, displayName, groups = [] } = session;
    if (operatorsGroup === undefined || !groups.includes(operatorsGroup)) {
      audit.record({ type: 'console.refused', reason: 'not_in_group', userId, requestId });
      frame.notice(
        known,
        {
          kind: 'bad',
          title: 'The console is for operators',
          text: 'You are signed in, but your account is not in the group that may use it. Groups are those of your last sign-in.',
          links: [
            {
              href: `/login?again=1&to=${encodeURIComponent(visit.req.path)}`,
              text: 'Sign in again',
            },
          ],
        },
        { status: 403, session },
      );
      return;
    }
    const code = await codes.issue({ userId, displayName }, challenge);
    visit.res.redirect(303, `${new URL(url).origin}/console/enter?code=${code}`);
  };
}
