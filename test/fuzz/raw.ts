import net from 'node:net';
import fc from 'fast-check';

// HTTP as bytes, for what no client library would send.

export type Mutation = readonly [
  how: 'flip' | 'cut' | 'insert' | 'double',
  at: number,
  byte: number,
  length: number,
];

export const mutations: fc.Arbitrary<readonly Mutation[]> = fc.array(
  fc.tuple(
    fc.constantFrom('flip' as const, 'cut' as const, 'insert' as const, 'double' as const),
    fc.nat(2_000),
    fc.nat(255),
    fc.nat(40),
  ),
  { maxLength: 3 },
);

export function mutate(bytes: Buffer, how: readonly Mutation[]): Buffer {
  let out = bytes;
  for (const [kind, position, byte, length] of how) {
    const at = position % (out.length + 1);
    const [head, tail] = [out.subarray(0, at), out.subarray(at)];
    if (kind === 'flip' && tail.length > 0)
      out = Buffer.concat([head, Buffer.from([byte]), tail.subarray(1)]); // prettier-ignore
    else if (kind === 'cut') out = Buffer.concat([head, tail.subarray(length)]);
    else if (kind === 'insert') out = Buffer.concat([head, Buffer.alloc(length, byte), tail]);
    else if (kind === 'double') out = Buffer.concat([head, tail.subarray(0, length), tail]);
  }
  return out;
}

const PATIENCE_MS = 250;

/**
 * Sends bytes in two pieces, then says that no more come, and reads until the other side closes. What was read, and
 * whether the other side let go in time.
 */
export function exchange(port: number, bytes: Buffer, split: number, withinMs = 15_000): Promise<{ text: string; letGo: boolean }> {
  return new Promise((resolve) => {
    const chunks: Buffer[] = [];
    const socket = net.connect({ port, host: '127.0.0.1', allowHalfOpen: true, noDelay: true });
    const done = (letGo: boolean): void => {
      clearTimeout(timer);
      clearTimeout(patience);
      socket.destroy();
      resolve({ text: Buffer.concat(chunks).toString('latin1'), letGo });
    };
    const timer = setTimeout(() => done(false), withinMs);
    socket.on('connect', () => {
      const at = split % (bytes.length + 1);
      socket.write(bytes.subarray(0, at), () => setImmediate(() => socket.write(bytes.subarray(at))));
    });
    // Whoever says at once that no more comes is not answered either: some time to answer first.
    const patience = setTimeout(() => socket.end(), PATIENCE_MS);
    socket.on('data', (chunk) => {
      chunks.push(chunk);
      // A stream that has been opened was answered; it would go on for as long as we listen.
      if (/^content-type: text\/event-stream/im.test(chunk.toString('latin1'))) done(true);
    });
    socket.on('end', () => done(true));
    socket.on('error', () => done(true));
  });
} // prettier-ignore

/** Of every response in what was read. */
export const statusesOf = (text: string): number[] =>
  [...text.matchAll(/^HTTP\/1\.1 (\d{3})/gm)].map(([, status]) => Number(status));
