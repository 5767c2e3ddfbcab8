/**
 * How a fault reads: one line, the path first (`upstreams[1].url: must be …`). No line repeats a value: it
 * could be a secret that came in through `${NAME}` or was typed into the wrong place.
 */
import type { z } from 'zod';

export class ConfigError extends Error {
  readonly faults: readonly string[];

  constructor(faults: readonly string[]) {
    super(
      `the configuration has ${faults.length === 1 ? 'a fault' : `${faults.length} faults`}:\n${faults.join('\n')}`,
    );
    this.name = 'ConfigError';
    this.faults = faults;
  }
}

export type Path = readonly PropertyKey[];

/** `upstreams[0].tools["delete_*"].scopes[1]` */
export function formatPath(path: Path): string {
  let out = '';
  for (const part of path) {
    if (typeof part === 'number') out += `[${part}]`;
    else if (/^[A-Za-z_][\w-]*$/.test(String(part)))
      out += out === '' ? String(part) : `.${String(part)}`;
    else out += `[${JSON.stringify(String(part).slice(0, 80))}]`;
  }
  return out === '' ? 'file' : out;
}

export const fault = (path: Path, message: string): string => `${formatPath(path)}: ${message}`;

/** Every issue of a failed parse as lines, below `base`. */
export function faultsOf(error: z.ZodError, base: Path): string[] {
  return error.issues.flatMap((issue) => {
    const path = [...base, ...issue.path];
    switch (issue.code) {
      case 'unrecognized_keys':
        return issue.keys.map((key) => fault([...path, key], 'unknown key'));
      case 'invalid_key': {
        const why = issue.issues[0]?.message ?? 'is not allowed';
        return [fault(path, `name ${why}`)];
      }
      case 'invalid_type':
        return [
          fault(
            path,
            issue.input === undefined && isMissing(issue.message)
              ? 'is required'
              : `must be ${noun(issue.expected)}`,
          ),
        ];
      case 'invalid_value':
        return [fault(path, oneOf(issue.values, issue.message))];
      case 'invalid_union':
        return [fault(path, oneOf('options' in issue ? (issue.options ?? []) : [], issue.message))];
      case 'too_small':
        return [fault(path, bound(issue.origin, 'at least', issue.minimum, issue.inclusive))];
      case 'too_big':
        return [fault(path, bound(issue.origin, 'at most', issue.maximum, issue.inclusive))];
      default:
        return [fault(path, issue.message)];
    }
  });
}

/** zod keeps no input in its issues by default, but says what it received. */
const isMissing = (message: string): boolean => message.endsWith('received undefined');

function oneOf(values: readonly unknown[], message: string): string {
  if (values.length === 0 || isMissing(message))
    return isMissing(message) ? 'is required' : message;
  const list = values.map((value) => String(value)).join(', ');
  return values.length === 1 ? `must be ${list}` : `must be one of ${list}`;
}

function noun(expected: string): string {
  const nouns: Record<string, string> = {
    string: 'text',
    number: 'a number',
    int: 'a whole number',
    boolean: 'true or false',
    array: 'a list',
    object: 'a mapping',
    record: 'a mapping',
  };
  return nouns[expected] ?? `of type ${expected}`;
}

function bound(origin: string, word: string, limit: number | bigint, inclusive = true): string {
  if (origin === 'array') return `must have ${word} ${limit} ${limit === 1 ? 'entry' : 'entries'}`;
  if (origin === 'string')
    return limit === 1 && word === 'at least'
      ? 'must not be empty'
      : `must have ${word} ${limit} characters`;
  return inclusive
    ? `must be ${word} ${limit}`
    : `must be ${word === 'at least' ? 'more' : 'less'} than ${limit}`;
}
