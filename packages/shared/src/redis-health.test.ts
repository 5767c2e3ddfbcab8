import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { createRedisHealth } from './redis-health.ts';

/** Each PING takes the next answer: 'ok', 'error', or 'never'. */
function setUp(answers: ('ok' | 'error' | 'never')[]) {
  const gauge: number[] = [];
  let asked = 0;
  const redis = {
    ping: async () => {
      const answer = answers[asked++] ?? 'ok';
      if (answer === 'error') throw new Error('Connection is closed.');
      if (answer === 'never') return new Promise<'PONG'>(() => undefined);
      return 'PONG' as const;
    },
  };
  const redisUp = { set: (value: number) => void gauge.push(value), inc: vi.fn(), dec: vi.fn() };
  const health = createRedisHealth({
    redis,
    metrics: { redisUp },
    log: pino({ level: 'silent' }),
  });
  return { health, gauge, asked: () => asked };
}

describe('redis health', () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  it('is down until Redis answers, down at once on an error, and heals', async () => {
    const { health, gauge } = setUp(['error', 'ok', 'error', 'ok']);
    health.start();
    const seen = [health.isUp()];
    for (let i = 0; i < 4; i++) {
      await vi.advanceTimersByTimeAsync(i === 0 ? 1 : 1_000);
      seen.push(health.isUp());
    }
    expect(seen).toEqual([false, false, true, false, true]);
    expect(gauge).toEqual([0, 1, 0, 1]);
    health.stop();
  });

  it('calls a frozen server down within two seconds, and sends it one PING only', async () => {
    const { health, asked } = setUp(['ok', 'never']);
    health.start();
    await vi.advanceTimersByTimeAsync(1);
    expect(health.isUp()).toBe(true);
    await vi.advanceTimersByTimeAsync(1_000 + 700);
    expect(health.isUp()).toBe(true); // one slow answer is no outage
    await vi.advanceTimersByTimeAsync(300);
    expect(health.isUp()).toBe(false);
    await vi.advanceTimersByTimeAsync(30_000);
    expect(asked()).toBe(2);
    health.stop();
  });
});
