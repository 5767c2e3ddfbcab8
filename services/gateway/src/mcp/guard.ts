/**
 * What a request has to pass before anything is sent upstream, in both eras: limits, scopes, groups.
 */
import type { Audit } from '@viaduct/shared/audit';
import { fail, type GatewayError } from '@viaduct/shared/errors';
import type { Principal } from '@viaduct/shared/principal';
import type { Charge, Limits, Verdict, Wanted } from '@viaduct/shared/rate-limit';
import type { Upstream } from '../upstream/upstream.ts';
import type { Answer } from './answer.ts';
import { groupAllows, scopesFor } from './operations.ts';

/** What one URL offers. */
export interface Endpoint {
  /** Upstream name, or '' for all of them. */
  readonly name: string;
  /** The URL that tokens are for. */
  readonly resource: string;
  readonly upstreams: readonly Upstream[];
  /** Theirs, in the same order. */
  readonly names: readonly string[];
}

export interface GuardDeps {
  readonly limits: Pick<Limits, 'charge' | 'checkAll'>;
  readonly audit: Audit;
  /** Do the scopes of this token cover these, beyond the base scopes? */
  hasScopes(principal: Principal, needed: readonly string[]): boolean;
  requireScopes(
    principal: Principal,
    needed: readonly string[],
    resource: string,
    requestId: string,
  ): void;
  tooMany(verdict: Verdict, requestId: string, principal: Principal): GatewayError;
}

export interface GuardCharge extends Pick<Charge, 'keys' | 'limits'> {
  /** @throws GatewayError rate_limited */
  settle(taken: readonly number[]): void;
}

export interface Guard {
  /**
   * Every limit of this operation, in one round trip to Redis.
   * @param tool as the client names it; it has one counter, whichever endpoint it is called on
   * @throws GatewayError rate_limited
   */
  within(answer: Answer, endpoint: Endpoint, principal: Principal, tool?: string): Promise<void>;
  /**
   * The same limits, for whoever has more to do in that round trip.
   * @throws GatewayError rate_limited
   */
  charge(
    answer: Answer,
    endpoint: Endpoint,
    principal: Principal,
    tool: string | undefined,
  ): GuardCharge;
  /** @returns the scopes needed. @throws GatewayError insufficient_scope, with all of them in one challenge */
  authorize(
    answer: Answer,
    endpoint: Endpoint,
    principal: Principal,
    upstream: Upstream | undefined,
    tool?: string,
  ): readonly string[];
  /** @throws GatewayError insufficient_scope */
  requireScopes(
    answer: Answer,
    endpoint: Endpoint,
    principal: Principal,
    needed: readonly string[],
  ): void;
  /** @throws GatewayError for a tool of other groups, as for one that does not exist */
  checkGroups(
    answer: Answer,
    endpoint: Endpoint,
    principal: Principal,
    upstream: Upstream,
    tool: string,
  ): void;
  /** May this principal see and call the tool? */
  allows(principal: Principal, upstream: Upstream, tool: string): boolean;
  /** The upstreams that this principal's scopes let it see. */
  visible(principal: Principal, upstreams: readonly Upstream[]): readonly Upstream[];
}

export function createGuard(deps: GuardDeps): Guard {
  const { limits, audit } = deps;
  return {
    async within(answer, endpoint, principal, tool) {
      const denied = await limits.checkAll(wantedBy(endpoint, principal, tool));
      if (denied !== undefined) throw deps.tooMany(denied, answer.requestId, principal);
    },

    charge(answer, endpoint, principal, tool) {
      const charge = limits.charge(wantedBy(endpoint, principal, tool));
      const refuse = (denied: Verdict | undefined): void => {
        if (denied !== undefined) throw deps.tooMany(denied, answer.requestId, principal);
      };
      refuse(charge.denied);
      return {
        keys: charge.keys,
        limits: charge.limits,
        settle: (taken) => {
          refuse(charge.settle(taken));
        },
      };
    },

    authorize(answer, endpoint, principal, upstream, tool) {
      const needed = upstream === undefined ? [] : scopesFor(upstream.config, tool);
      deps.requireScopes(principal, needed, endpoint.resource, answer.requestId);
      return needed;
    },

    requireScopes(answer, endpoint, principal, needed) {
      deps.requireScopes(principal, needed, endpoint.resource, answer.requestId);
    },

    checkGroups(answer, endpoint, principal, upstream, tool) {
      if (groupAllows(upstream.config, tool, principal)) return;
      audit.record({
        type: 'group.refused',
        requestId: answer.requestId,
        userId: principal.userId,
        clientId: principal.clientId,
        endpoint: endpoint.name,
        tool,
      });
      throw fail('invalid_params', `Unknown tool: ${tool.slice(0, 200)}`, { status: 200 });
    },

    allows: (principal, upstream, tool) =>
      groupAllows(upstream.config, tool, principal) &&
      deps.hasScopes(principal, scopesFor(upstream.config, tool)),

    visible: (principal, upstreams) =>
      upstreams.filter((upstream) => deps.hasScopes(principal, upstream.config.scopes)),
  };
}

function wantedBy(
  endpoint: Endpoint,
  { userId: subject }: Principal,
  tool: string | undefined,
): Wanted[] {
  const user: Wanted = { limit: 'user', subject };
  return tool === undefined
    ? [user]
    : [user, { limit: 'userTool', subject, detail: counterOf(endpoint, tool) }];
}

const counterOf = (endpoint: Endpoint, tool: string): string =>
  endpoint.name === '' ? tool.replace('__', ':') : `${endpoint.name}:${tool}`;
