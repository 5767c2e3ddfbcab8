/** What a subscription asks for, agrees to and lets through (2026-07-28 basic/patterns/subscriptions). Pure. */
import { fail } from '@viaduct/shared/errors';
import type { JsonObject } from '../message.ts';
import type { Filter } from './path.ts';

/** More resources than anybody watches at once. */
const MAX_RESOURCES = 1_000;

export const NOTHING: Filter = {
  toolsListChanged: false,
  promptsListChanged: false,
  resourcesListChanged: false,
  resourceSubscriptions: [],
};

export const LIST_CHANGED = {
  toolsListChanged: 'notifications/tools/list_changed',
  promptsListChanged: 'notifications/prompts/list_changed',
  resourcesListChanged: 'notifications/resources/list_changed',
} as const;
const LISTS = Object.keys(LIST_CHANGED) as (keyof typeof LIST_CHANGED)[];
export const RESOURCE_UPDATED = 'notifications/resources/updated';

const isObject = (value: unknown): value is JsonObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** A client's `params.notifications`. @throws GatewayError invalid_params */
export function readFilter(value: unknown): Filter {
  const refuse = (what: string) => fail('invalid_params', `subscriptions/listen: ${what}.`);
  if (!isObject(value)) throw refuse('params.notifications must be an object');
  for (const name of LISTS) {
    if (value[name] !== undefined && typeof value[name] !== 'boolean') {
      throw refuse(`${name} must be true or false`);
    }
  }
  const uris = value['resourceSubscriptions'];
  if (
    uris !== undefined &&
    !(Array.isArray(uris) && uris.every((uri) => typeof uri === 'string'))
  ) {
    throw refuse('resourceSubscriptions must be a list of URIs');
  }
  if (uris !== undefined && uris.length > MAX_RESOURCES) {
    throw refuse(`more than ${MAX_RESOURCES} resources in one subscription`);
  }
  return lenient(value);
}

/** What an upstream acknowledged, as far as it can be understood. */
export function lenient(value: unknown): Filter {
  if (!isObject(value)) return NOTHING;
  const uris = value['resourceSubscriptions'];
  return {
    toolsListChanged: value['toolsListChanged'] === true,
    promptsListChanged: value['promptsListChanged'] === true,
    resourcesListChanged: value['resourcesListChanged'] === true,
    resourceSubscriptions: Array.isArray(uris)
      ? [...new Set(uris.filter((uri) => typeof uri === 'string'))]
      : [],
  };
}

/** As `params.notifications`: what is not asked for is left out. */
export function writeFilter(filter: Filter): JsonObject {
  const out: JsonObject = {};
  for (const name of LISTS) if (filter[name]) out[name] = true;
  if (filter.resourceSubscriptions.length > 0) {
    out['resourceSubscriptions'] = filter.resourceSubscriptions;
  }
  return out;
}

export const isNothing = (filter: Filter): boolean => Object.keys(writeFilter(filter)).length === 0;

/** What both want. */
export function both(a: Filter, b: Filter): Filter {
  const uris = new Set(b.resourceSubscriptions);
  return {
    toolsListChanged: a.toolsListChanged && b.toolsListChanged,
    promptsListChanged: a.promptsListChanged && b.promptsListChanged,
    resourcesListChanged: a.resourcesListChanged && b.resourcesListChanged,
    resourceSubscriptions: a.resourceSubscriptions.filter((uri) => uris.has(uri)),
  };
}

/** What either wants. */
export function either(a: Filter, b: Filter): Filter {
  return {
    toolsListChanged: a.toolsListChanged || b.toolsListChanged,
    promptsListChanged: a.promptsListChanged || b.promptsListChanged,
    resourcesListChanged: a.resourcesListChanged || b.resourcesListChanged,
    resourceSubscriptions: [...a.resourceSubscriptions, ...b.resourceSubscriptions],
  };
}

/** Is the notification one that the filter asks for? A resource may be part of one that was subscribed to. */
export function admits(filter: Filter, method: unknown, params: unknown): boolean {
  for (const name of LISTS) if (method === LIST_CHANGED[name]) return filter[name];
  if (method !== RESOURCE_UPDATED || !isObject(params)) return false;
  const { uri } = params;
  if (typeof uri !== 'string') return false;
  return filter.resourceSubscriptions.some((wanted) => isPartOf(uri, wanted));
}

function isPartOf(uri: string, whole: string): boolean {
  if (uri === whole) return true;
  if (!uri.startsWith(whole)) return false;
  return whole.endsWith('/') || /^[/?#]/.test(uri.slice(whole.length));
}

/** One notification for everything that a filter asks for: something may have changed unseen. */
export function everythingIn(filter: Filter): { method: string; uri?: string }[] {
  return [
    ...LISTS.filter((name) => filter[name]).map((name) => ({ method: LIST_CHANGED[name] })),
    ...filter.resourceSubscriptions.map((uri) => ({ method: RESOURCE_UPDATED, uri })),
  ];
}
