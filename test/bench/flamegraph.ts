import { readFileSync, writeFileSync } from 'node:fs';

// node test/bench/flamegraph.ts PROFILE.cpuprofile OUT.svg [title]
// A flame graph of what `--cpu-prof` wrote: width is time, depth is who called whom, the root at the bottom.

interface Profile {
  readonly nodes: readonly {
    readonly id: number;
    readonly callFrame: { readonly functionName: string; readonly url: string };
    readonly children?: readonly number[];
  }[];
  readonly samples: readonly number[];
  readonly timeDeltas: readonly number[];
}

interface Frame {
  readonly name: string;
  readonly from: string;
  self: number;
  readonly below: Map<string, Frame>;
}

const [file, out, title = 'CPU'] = process.argv.slice(2);
if (file === undefined || out === undefined) {
  throw new Error('usage: flamegraph.ts PROFILE.cpuprofile OUT.svg [title]');
}
const profile = JSON.parse(readFileSync(file, 'utf8')) as Profile;
const byId = new Map(profile.nodes.map((node) => [node.id, node]));
const took = new Map<number, number>();
for (const [i, id] of profile.samples.entries()) {
  took.set(id, (took.get(id) ?? 0) + Math.max(0, profile.timeDeltas[i] ?? 0));
}

/** Whose code it is: the color, and the word before the name. */
function sourceOf(url: string): string {
  if (url === '') return 'native';
  if (url.startsWith('node:')) return 'node';
  const [, scoped] = /node_modules\/((?:@[^/]+\/)?[^/]+)\/(?!.*node_modules)/.exec(url) ?? [];
  return scoped ?? 'viaduct';
}
const IDLE = new Set(['(idle)', '(program)']);

/** Recursion and closures of one name at one place are one frame. */
function merge(id: number, into: Map<string, Frame>): number {
  const { callFrame, children = [] } = byId.get(id)!;
  const name = callFrame.functionName === '' ? '(anonymous)' : callFrame.functionName;
  if (IDLE.has(name)) return 0;
  const from = sourceOf(callFrame.url);
  const key = `${from} ${name}`;
  const frame: Frame = into.get(key) ?? { name, from, self: 0, below: new Map() };
  into.set(key, frame);
  const own = took.get(id) ?? 0;
  frame.self += own;
  return own + children.reduce((sum, child) => sum + merge(child, frame.below), 0);
}
const top = new Map<string, Frame>();
const all = merge(profile.nodes[0]!.id, top);

const WIDTH = 1_200;
const ROW = 17;
/** Narrower than this nobody can read or see. */
const LEAST = 1.2;
const COLORS: Readonly<Record<string, string>> = { viaduct: '#f2a65a', node: '#9dc183', native: '#c9c9c9', ioredis: '#d98880', undici: '#85b6d9' }; // prettier-ignore
const total = ({ self, below }: Frame): number =>
  [...below.values()].reduce((sum, frame) => sum + total(frame), self);
const escape = (text: string): string =>
  text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);

const boxes: { x: number; width: number; depth: number; frame: Frame; share: number }[] = [];
function place(frames: Iterable<Frame>, from: number, depth: number): void {
  let x = from;
  for (const frame of [...frames].sort((a, b) => total(b) - total(a))) {
    const share = total(frame) / all;
    const width = share * WIDTH;
    if (width >= LEAST) {
      boxes.push({ x, width, depth, frame, share });
      place(frame.below.values(), x, depth + 1);
    }
    x += width;
  }
}
place(top.values(), 0, 0);

const deepest = Math.max(...boxes.map(({ depth }) => depth)) + 1;
const height = deepest * ROW + 44;
const lines = boxes.map(({ x, width, depth, frame, share }) => {
  const y = height - (depth + 1) * ROW - 18;
  const label = `${frame.from} ${frame.name}`;
  const fits = Math.floor(width / 6.2);
  const text = fits < 4 ? '' : `<text x="${(x + 3).toFixed(1)}" y="${y + 12}">${escape(frame.name.slice(0, fits))}</text>`; // prettier-ignore
  const color = COLORS[frame.from] ?? '#d9c27e';
  return `<g><title>${escape(label)}: ${(share * 100).toFixed(1)} %</title><rect x="${x.toFixed(1)}" y="${y}" width="${Math.max(0.5, width - 0.5).toFixed(1)}" height="${ROW - 1}" fill="${color}"/>${text}</g>`;
});
const legend = [...Object.entries(COLORS), ['other packages', '#d9c27e']].map(
  ([name, color], i) => `<rect x="${8 + i * 130}" y="24" width="10" height="10" fill="${color}"/><text x="${22 + i * 130}" y="33">${name}</text>`,
); // prettier-ignore
writeFileSync(
  out,
  `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height + 20}" font-family="ui-monospace, monospace" font-size="10.5"><rect width="100%" height="100%" fill="#fff"/><text x="8" y="15" font-size="13">${escape(title)}</text>${legend.join('')}\n${lines.join('\n')}\n</svg>\n`,
);
process.stdout.write(`${out}: ${boxes.length} frames\n`);
