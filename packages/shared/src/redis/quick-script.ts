/**
 * Runs a script for the request path with the least that ioredis can do: one command and one promise each, and one
 * write to the socket for all that wait. Its own way (Script, autopipelining, callbacks) costs three times as much CPU,
 * a tenth of a whole tool call.
 *
 * While a batch is under way, what comes next waits for its end, as with ioredis' autopipelining: system calls are
 * what a busy pod has least of. A slow batch holds nobody up for longer than MAX_WAIT_MS.
 *
 * Promises what the usual way promises: an error while Redis is away, an end in time, redirections in a
 * Cluster. Not the order relative to commands that went another way in the same tick.
 */
import { createHash } from 'node:crypto';
import { Command } from 'ioredis';
import { COMMAND_TIMEOUT_MS, type Redis } from './client.ts';

/** ioredis' own socket, on the standalone client only; a Cluster chooses one for each command. */
interface WithStream {
  readonly stream?: { cork(): void; uncork(): void };
}

export type RunScript = (
  keys: readonly string[],
  args: readonly (string | number)[],
) => Promise<unknown>;

/** A batch has one timer for all its commands. */
class QuickCommand extends Command {
  /** ioredis' own timeout. */
  override setTimeout(): void {
    // Not armed: see `giveUp`.
  }
}

const UTF8 = { replyEncoding: 'utf8' } as const;
const MAX_WAIT_MS = 10;

export function createQuickScripts(redis: Redis): (lua: string) => RunScript {
  let waiting: Command[] = [];
  let scheduled = false;
  /** Of the last batch; replies come in order, so when its last one is there, all are. */
  let last: Command | undefined;
  let impatience: NodeJS.Timeout | undefined;

  const flush = (): void => {
    scheduled = false;
    clearTimeout(impatience);
    impatience = undefined;
    const commands = waiting;
    waiting = [];
    const mine = commands.at(-1);
    if (mine === undefined) return;
    last = mine;
    const { stream } = redis as WithStream;
    stream?.cork();
    try {
      for (const command of commands) {
        // Failures are the command's own: its promise is what the caller holds.
        void redis.sendCommand(command);
      }
    } finally {
      stream?.uncork();
    }
    const timer = setTimeout(giveUp, COMMAND_TIMEOUT_MS, commands);
    const over = (): void => {
      // In a Cluster the last one's reply says nothing about the others'.
      if (commands.every(({ isSettled }) => isSettled)) clearTimeout(timer);
      if (last !== mine) return;
      last = undefined;
      if (waiting.length > 0) schedule();
    };
    mine.promise.then(over, over);
  };

  /** After a pause of this process the replies may be there, unread: look once before giving up. */
  const giveUp = (commands: readonly Command[]): void => {
    setImmediate(() => {
      for (const command of commands) {
        if (!command.isSettled) command.reject(new Error('Command timed out'));
      }
    });
  };

  /** After all that this turn of the event loop has read. */
  const schedule = (): void => {
    if (scheduled) return;
    scheduled = true;
    setImmediate(flush);
  };

  const send = (command: Command): Promise<unknown> => {
    waiting.push(command);
    if (last === undefined) schedule();
    else impatience ??= setTimeout(schedule, MAX_WAIT_MS);
    return command.promise;
  };

  return (lua) => {
    const sha = createHash('sha1').update(lua).digest('hex');
    return async (keys, args) => {
      try {
        return await send(
          new QuickCommand('evalsha', [sha, keys.length, ...keys, ...args] as string[], UTF8),
        );
      } catch (error) {
        // Redis has restarted, or a replica has taken over.
        if (!(error instanceof Error) || !error.message.startsWith('NOSCRIPT')) throw error;
        return send(
          new QuickCommand('eval', [lua, keys.length, ...keys, ...args] as string[], UTF8),
        );
      }
    };
  };
}
