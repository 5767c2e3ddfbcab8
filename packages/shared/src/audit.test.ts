import { describe, expect, it } from 'vitest';
import { createAudit } from './audit.ts';
import { createLogger } from './log.ts';
import { createMetrics } from './metrics.ts';

function setUp(level: 'info' | 'silent') {
  const lines: string[] = [];
  const destination = { write: (line: string) => void lines.push(line) };
  const log = createLogger({ level, service: 'gateway', podId: 'p', version: '0', destination });
  const metrics = createMetrics();
  return { audit: createAudit({ log, metrics }), metrics, lines };
}

describe('audit', () => {
  it.each(['info', 'silent'] as const)('records at LOG_LEVEL=%s', (level) => {
    const { audit, lines } = setUp(level);
    audit.record({
      type: 'consent.given',
      requestId: 'r-1',
      userId: 'u-1',
      clientId: 'c-1',
      connection: 'acme-drive',
    });
    expect(lines).toHaveLength(1);
    expect(JSON.parse(lines[0] ?? '')).toMatchObject({
      level: 30,
      requestId: 'r-1',
      userId: 'u-1',
      clientId: 'c-1',
      audit: { type: 'consent.given', connection: 'acme-drive', userId: 'u-1' },
    });
  });

  it('counts refusals, and only them', async () => {
    const { audit, metrics } = setUp('info');
    audit.record({ type: 'origin.refused', reason: 'unknown' });
    audit.record({ type: 'credential.stored', connection: 'acme-drive' });
    const text = await metrics.text();
    expect(text).toContain('viaduct_security_events_total{type="origin.refused"} 1\n');
    expect(text).not.toContain('type="credential.stored"');
  });
});
