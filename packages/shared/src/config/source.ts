/**
 * From the text of the file to plain values: YAML (JSON is YAML), `${NAME}` from the environment, blank means
 * unset. Every fault carries its path.
 */
import { LineCounter, parseDocument } from 'yaml';
import { fault, type Path } from './faults.ts';

/** Plain values of YAML's core schema. */
type Value = string | number | boolean | null | bigint | Value[] | { [key: string]: Value };

export interface Source {
  /** Undefined when the text is no mapping at all. */
  readonly root: Record<string, unknown> | undefined;
  readonly faults: string[];
}

export function readSource(text: string, env: NodeJS.ProcessEnv): Source {
  const faults: string[] = [];
  const lines = new LineCounter();
  // prettyErrors would quote the line at fault, and with it perhaps a secret.
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false });
  for (const error of document.errors) {
    const { line, col } = lines.linePos(error.pos[0]);
    faults.push(`file: line ${line}, column ${col}: ${oneLine(error.message)}`);
  }
  if (faults.length > 0) return { root: undefined, faults };

  let parsed: Value;
  try {
    parsed = document.toJS({ maxAliasCount: 100 }) as Value;
  } catch (error) {
    faults.push(`file: ${oneLine((error as Error).message)}`); // alias bombs end here
    return { root: undefined, faults };
  }
  if (!isMapping(parsed)) {
    faults.push('file: must be a mapping with keys like publicUrl, auth and upstreams');
    return { root: undefined, faults };
  }
  const root = substitute(parsed, [], env, faults) as Record<string, Value>;
  return { root, faults };
}

/** yaml's messages are short English sentences; a newline in one would break "one fault, one line". */
const oneLine = (message: string): string => message.replace(/\s+/g, ' ').slice(0, 200);

function isMapping(value: unknown): value is Record<string, Value> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Copies, with `${NAME}` replaced in every string value and blank members of mappings left out. */
function substitute(value: Value, path: Path, env: NodeJS.ProcessEnv, faults: string[]): Value {
  if (typeof value === 'string') return expand(value, path, env, faults);
  if (Array.isArray(value)) {
    return value.map((entry, index) => substitute(entry, [...path, index], env, faults));
  }
  if (!isMapping(value)) return value;
  const out = Object.create(null) as Record<string, Value>;
  for (const [key, member] of Object.entries(value)) {
    if (member === null || (typeof member === 'string' && member.trim() === '')) continue;
    out[key] = substitute(member, [...path, key], env, faults);
  }
  return out;
}

/** `$${` is a literal `${`. What a variable contains is not expanded again. */
function expand(text: string, path: Path, env: NodeJS.ProcessEnv, faults: string[]): string {
  return text.replace(
    /\$\$\{|\$\{([^}]*)(\}?)/g,
    (match, name: string | undefined, end: string) => {
      if (name === undefined) return '${';
      if (end === '' || !/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) {
        faults.push(fault(path, 'has a ${…} that is not the name of an environment variable'));
        return match;
      }
      const value = env[name];
      if (value === undefined || value.trim() === '') {
        faults.push(fault(path, `environment variable ${name} is not set`));
        return match;
      }
      return value;
    },
  );
}
