import { describe, expect, it } from 'vitest';
import { Circuit } from './circuit.ts';

describe('circuit', () => {
  it('opens after three failures in a row, probes one at a time, closes when reached', () => {
    let now = 0;
    const circuit = new Circuit(() => now);
    for (let i = 0; i < 3; i++) {
      expect(circuit.admit()).toBe(true);
      circuit.failed(1_000);
    }
    expect(circuit.admit()).toBe(false);
    now = 500;
    expect(circuit.admit()).toBe(true);
    expect(circuit.admit()).toBe(false);
    circuit.failed(1_000);
    now = 1_400;
    expect(circuit.admit()).toBe(false);
    now = 1_500;
    expect(circuit.admit()).toBe(true);
    circuit.reached();
    expect([circuit.admit(), circuit.admit()]).toEqual([true, true]);
  });

  it('says since when nothing was reached, however quickly that failed', () => {
    let now = 7;
    const circuit = new Circuit(() => now);
    expect(circuit.lostAtMs).toBeUndefined();
    circuit.failed(5);
    now = 9;
    circuit.failed(5);
    expect(circuit.lostAtMs).toBe(7);
    circuit.reached();
    expect(circuit.lostAtMs).toBeUndefined();
  });

  it('stays closed while failures are quick', () => {
    const circuit = new Circuit(() => 0);
    for (let i = 0; i < 10; i++) circuit.failed(5);
    expect(circuit.admit()).toBe(true);
  });

  it('forgets failures that are not in a row', () => {
    const circuit = new Circuit(() => 0);
    for (let i = 0; i < 10; i++) {
      circuit.failed(1_000);
      circuit.failed(1_000);
      circuit.reached();
    }
    expect(circuit.admit()).toBe(true);
  });
});
