/** Tools that a principal may not call do not show in its lists. Pure. */
import { applyEdits, arrayItems, findPath, sliceOf } from '@viaduct/shared/json-text';
import type { JsonObject } from './message.ts';

/** A `tools/list` response without the tools that `allows` refuses; the others keep their bytes. */
export function filterTools(
  text: string,
  parsed: Record<string, unknown>,
  allows: (tool: string) => boolean,
): string {
  const at = findPath(text, ['result', 'tools']);
  const tools = (parsed['result'] as JsonObject | undefined)?.['tools'];
  if (at === undefined || !Array.isArray(tools)) return text;
  const kept = (arrayItems(text, at.start) ?? []).filter((_, i) =>
    allows(String((tools[i] as JsonObject | undefined)?.['name'])),
  );
  if (kept.length === tools.length) return text;
  return applyEdits(text, [{ ...at, text: `[${kept.map((s) => sliceOf(text, s)).join(',')}]` }]);
}
