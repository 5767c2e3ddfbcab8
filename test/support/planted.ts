import { randomBytes } from 'node:crypto';

/**
 * Secrets that the fakes hand out, and people type, carry a mark that nothing else has. `found` looks for it, in
 * the clear and in base64 at each of its three offsets, wherever the product writes: every stack's processes, Redis
 * and metrics when it ends, and every byte that the product's listeners send, as it comes.
 */
const MARK = 'plantedSecret';

export const planted = (kind: string): string =>
  `${MARK}_${kind}_${randomBytes(15).toString('hex')}`;

const forms = [
  MARK,
  // Without the outermost characters, which depend on what stands beside it.
  ...[0, 1, 2].flatMap((offset) => {
    const padded = Buffer.concat([Buffer.alloc(offset), Buffer.from(MARK)]);
    const text = padded.toString('base64').replace(/=+$/, '');
    return [text.slice(offset === 0 ? 0 : offset + 1, -1)];
  }),
  Buffer.from(MARK).toString('hex'),
];

/** What stands around a mark; undefined when there is none. */
export function found(text: string): string | undefined {
  for (const form of forms) {
    const at = text.indexOf(form);
    if (at !== -1) return text.slice(Math.max(0, at - 80), at + 60);
  }
  return undefined;
}

const productPorts = new Set<number>();
const leaks: string[] = [];

/** From now on, what comes from this port is for a client or a person. */
export const watchPort = (port: number): void => void productPorts.add(port);

export function inspect(port: number, text: string): void {
  if (!productPorts.has(port)) return;
  const leak = found(text);
  if (leak !== undefined) leaks.push(`from port ${String(port)}: ${leak}`);
}

export const takeLeaks = (): string[] => leaks.splice(0);
