import fc from 'fast-check';

/** JSON as text: what no JSON.parse and JSON.stringify would give back. `spaces` may stand between any two tokens. */
export function jsonText(
  spaces: readonly string[] = [' ', '\t', '\n', '\r'],
): fc.Arbitrary<string> {
  const gap = fc.array(fc.constantFrom(...spaces), { maxLength: 3 }).map((parts) => parts.join(''));
  const digits = (min: number, max: number): fc.Arbitrary<string> =>
    fc
      .array(fc.integer({ min: 0, max: 9 }), { minLength: min, maxLength: max })
      .map((list) => list.join(''));
  const number = fc
    .tuple(
      fc.constantFrom('', '-'),
      fc.oneof(
        fc.constant('0'),
        fc.tuple(fc.integer({ min: 1, max: 9 }), digits(0, 40)).map(([a, b]) => `${a}${b}`),
      ),
      fc.oneof(
        fc.constant(''),
        digits(1, 30).map((part) => `.${part}`),
      ),
      fc.oneof(
        fc.constant(''),
        fc
          .tuple(fc.constantFrom('e', 'E', 'e+', 'E-'), digits(1, 4))
          .map((parts) => parts.join('')),
      ),
    )
    .map((parts) => parts.join(''));
  const character = fc.oneof(
    { weight: 5, arbitrary: fc.string({ unit: 'binary', minLength: 1, maxLength: 1 }).map(plain) },
    {
      weight: 2,
      arbitrary: fc.constantFrom('\\"', '\\\\', '\\/', '\\b', '\\f', '\\n', '\\r', '\\t'),
    },
    {
      weight: 2,
      arbitrary: fc
        .integer({ min: 0, max: 0xffff })
        .map((code) => `\\u${code.toString(16).padStart(4, '0')}`),
    },
    { weight: 1, arbitrary: fc.constantFrom('data:', '\u2028', '\u2029', '\ufeff', '😀', 'é') },
  );
  const string = fc.array(character, { maxLength: 12 }).map((parts) => `"${parts.join('')}"`);
  const spaced = (open: string, items: fc.Arbitrary<string>, close: string) =>
    fc
      .array(fc.tuple(gap, items, gap), { maxLength: 5 })
      .map((list) => `${open}${list.map((parts) => parts.join('')).join(',')}${close}`);
  const { value } = fc.letrec<{ value: string; member: string }>((tie) => ({
    value: fc.oneof(
      { depthSize: 'medium', withCrossShrink: true },
      fc.oneof(number, string, fc.constantFrom('null', 'true', 'false', '{}', '[]')),
      spaced('[', tie('value'), ']'),
      spaced('{', tie('member'), '}'),
    ),
    member: fc.tuple(string, gap, gap, tie('value')).map(([k, a, b, v]) => `${k}${a}:${b}${v}`),
  }));
  // now and then far deeper than anybody writes
  return fc
    .tuple(
      value,
      fc.oneof({ weight: 9, arbitrary: fc.constant(0) }, fc.integer({ min: 50, max: 900 })),
    )
    .map(([text, depth]) => '['.repeat(depth) + text + ']'.repeat(depth));
}

/** One character as it may stand in a string; half a pair has no bytes of its own. */
function plain(character: string): string {
  if (character === '"' || character === '\\' || character < ' ') return 'x';
  return character.isWellFormed() ? character : 'y';
}

/** Bytes cut in places that nobody would choose, in the middle of characters too. */
export function cut(bytes: Buffer, at: readonly number[]): Buffer[] {
  const places = [...new Set(at.map((n) => n % (bytes.length + 1)))].sort((a, b) => a - b);
  return [0, ...places]
    .map((from, i) => bytes.subarray(from, places[i] ?? bytes.length))
    .filter((part) => part.length > 0);
}

export const cuts = fc.array(fc.nat(), { maxLength: 8 });
