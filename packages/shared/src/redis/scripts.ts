/**
 * Loads the Lua scripts and gives each a typed call. One file per atomic transition; each opens with its
 * keys, arguments and replies. A changed script gets a new descriptive name, so that pods of two versions
 * work side by side during a rollout.
 */
import { readFileSync } from 'node:fs';
import type { Metrics } from '../metrics.ts';
import { inTime, type Redis } from './client.ts';
import { createQuickScripts } from './quick-script.ts';

type Reply = string | number | null | Reply[];
type Run = (keys: readonly string[], args: readonly (string | number)[]) => Promise<Reply>;

const NAMES = {
  'enter-session': 'enterSession',
  'take-points': 'takePoints',
  'create-session': 'createSession',
  'end-session': 'endSession',
  'append-event': 'appendEvent',
  'claim-listener': 'claimListener',
  'release-listener': 'releaseListener',
  'advance-cursor': 'advanceCursor',
  'beat-session': 'beatSession',
  'open-call-stream': 'openCallStream',
  'claim-call-stream': 'claimCallStream',
  'claim-pending': 'claimPending',
  'answer-round': 'answerRound',
  'subscribe-resource': 'subscribeResource',
  'swap-upstream': 'swapUpstream',
  'open-elicitation': 'openElicitation',
  'move-elicitation': 'moveElicitation',
  'reopen-elicitation': 'reopenElicitation',
  'note-stranger': 'noteStranger',
  'complete-elicitation': 'completeElicitation',
  'claim-flow': 'claimFlow',
  'watch-elicitation': 'watchElicitation',
  'compare-and-set': 'compareAndSet',
  'compare-and-swap': 'compareAndSwap',
  'compare-and-delete': 'compareAndDelete',
  'renew-lease': 'renewLease',
  'suspend-call': 'suspendCall',
  'claim-suspended': 'claimSuspended',
  'continue-call': 'continueCall',
  'expire-suspended': 'expireSuspended',
  'join-ear': 'joinEar',
  'leave-ear': 'leaveEar',
  hear: 'hear',
  'consume-once': 'consumeOnce',
} as const;

/** Those of every request. */
const QUICK: ReadonlySet<string> = new Set(['enter-session', 'take-points']);

type ScriptName = (typeof NAMES)[keyof typeof NAMES];
export type Scripts = Readonly<Record<ScriptName, Run>>;

export function createScripts(
  redis: Redis,
  metrics?: Pick<Metrics, 'redisCommandDuration'>,
): Scripts {
  const quick = createQuickScripts(redis);
  const usual = (name: string, lua: string): Run => {
    const command = `viaduct_${name}`;
    redis.defineCommand(command, { lua });
    const call = (redis as unknown as Record<string, (...args: unknown[]) => Promise<Reply>>)[
      command
    ];
    if (call === undefined) throw new Error(`script ${name} was not defined`);
    return (keys, args) => inTime(call.call(redis, keys.length, ...keys, ...args));
  };
  const measured = (run: Run): Run => {
    if (metrics === undefined) return run;
    return async (keys, args) => {
      const began = performance.now();
      const reply = await run(keys, args);
      metrics.redisCommandDuration.observe((performance.now() - began) / 1000);
      return reply;
    };
  };
  const scripts: Partial<Record<ScriptName, Run>> = {};
  for (const [file, name] of Object.entries(NAMES)) {
    const lua = readFileSync(new URL(`./lua/${file}.lua`, import.meta.url), 'utf8');
    scripts[name] = measured(QUICK.has(file) ? (quick(lua) as Run) : usual(name, lua));
  }
  return scripts as Scripts;
}
