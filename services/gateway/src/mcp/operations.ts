/**
 * What an operation needs before anything is sent upstream: scopes, groups, and the tool it names. Pure.
 */
import type { UpstreamConfig } from '@viaduct/shared/config';
import type { Principal } from '@viaduct/shared/principal';
import type { JsonObject } from './message.ts';

interface CompiledRule {
  readonly matches: (tool: string) => boolean;
  readonly scopes: readonly string[];
  readonly groups: readonly string[];
}

/** Patterns are compiled once per upstream configuration; `*` stands for any characters. */
const compiled = new WeakMap<UpstreamConfig, readonly CompiledRule[]>();

function rulesOf(upstream: UpstreamConfig): readonly CompiledRule[] {
  let rules = compiled.get(upstream);
  if (rules === undefined) {
    rules = Object.entries(upstream.tools).map(([pattern, rule]) => {
      const expression = new RegExp(
        `^${pattern
          .split('*')
          .map((part) => part.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&'))
          .join('.*')}$`,
        's',
      );
      return {
        matches: (tool: string) => expression.test(tool),
        scopes: rule.scopes,
        groups: rule.groups,
      };
    });
    compiled.set(upstream, rules);
  }
  return rules;
}

/** All scopes that one operation needs beyond the base scopes, so that one challenge can name them all. */
export function scopesFor(upstream: UpstreamConfig, tool: string | undefined): readonly string[] {
  if (tool === undefined) return upstream.scopes;
  const rules = rulesOf(upstream);
  if (rules.length === 0) return upstream.scopes;
  const needed = new Set(upstream.scopes);
  for (const rule of rules)
    if (rule.matches(tool)) for (const scope of rule.scopes) needed.add(scope);
  return [...needed];
}

/** False when the tool is reserved to groups that the principal is in none of. */
export function groupAllows(upstream: UpstreamConfig, tool: string, principal: Principal): boolean {
  for (const rule of rulesOf(upstream)) {
    if (rule.groups.length === 0 || !rule.matches(tool)) continue;
    if (!rule.groups.some((group) => principal.groups.includes(group))) return false;
  }
  return true;
}

/** True when lists of this upstream differ by principal. */
export const hasToolRules = (upstream: UpstreamConfig): boolean => rulesOf(upstream).length > 0;

export function stringParam(params: JsonObject | undefined, name: string): string | undefined {
  const value = params?.[name];
  return typeof value === 'string' ? value : undefined;
}
