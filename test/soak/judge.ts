// Whether something grows: pure, and made for curves that are never quite flat.

export interface Series {
  readonly name: string;
  /** In the order in which they were taken. */
  readonly points: readonly { readonly atMs: number; readonly value: number }[];
}

export interface Margin {
  /** What may be gained over the later part of the run, in units of the series… */
  readonly absolute: number;
  /** …and as a part of its mean. */
  readonly relative: number;
}

export interface Verdict {
  readonly name: string;
  readonly mean: number;
  /** Over the later part, by the line that fits it best. */
  readonly growth: number;
  readonly allowed: number;
  readonly flat: boolean;
}

/** Caches fill and pools open at first; what comes after this part of the run is judged. */
const WARM_UP = 0.4;

export function judge({ name, points }: Series, { absolute, relative }: Margin): Verdict {
  const last = points.at(-1)?.atMs ?? 0;
  const first = points[0]?.atMs ?? 0;
  const later = points.filter(({ atMs }) => atMs >= first + (last - first) * WARM_UP);
  if (later.length < 4) throw new Error(`${name}: too few samples to judge`);
  const mean = later.reduce((sum, { value }) => sum + value, 0) / later.length;
  const middle = later.reduce((sum, { atMs }) => sum + atMs, 0) / later.length;
  const spread = later.reduce((sum, { atMs }) => sum + (atMs - middle) ** 2, 0);
  const together = later.reduce(
    (sum, { atMs, value }) => sum + (atMs - middle) * (value - mean),
    0,
  );
  const growth = (together / spread) * (last - later[0]!.atMs);
  const allowed = absolute + relative * mean;
  return { name, mean, growth, allowed, flat: growth <= allowed };
}
