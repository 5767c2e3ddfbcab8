import { ModernClient, type ModernOptions } from './modern-client.ts';
import { startModernUpstream, type ModernUpstream } from './modern-upstream.ts';
import { startWorld, type World, type WorldClient, type WorldOptions } from './world.ts';

export interface ModernWorld {
  readonly world: World;
  /** Needs nothing. */
  readonly alpha: ModernUpstream;
  /** `secret_report` needs the scope `reports:read`, `count` the group `counters`. */
  readonly beta: ModernUpstream;
  /** Needs the person's credential at the third party for every call. */
  readonly drive: ModernUpstream;
  /** `upstream: ''` is the endpoint of many. */
  client(
    user: string,
    options?: Omit<ModernOptions, 'url' | 'token'> &
      Pick<WorldClient, 'upstream' | 'claims' | 'token'>,
  ): ModernClient;
  url(upstream: string): string;
  stop(): Promise<void>;
}

/** The usual world with modern upstreams instead of the legacy one. `upstreams`: members of their configuration. */
export async function startModernWorld({
  config = {},
  upstreams = {},
  ...options
}: WorldOptions & { upstreams?: Record<string, object> } = {}): Promise<ModernWorld> {
  const alpha = await startModernUpstream({ name: 'alpha' });
  const beta = await startModernUpstream({ name: 'beta' });
  const drive = await startModernUpstream({ name: 'drive' });
  const all = [alpha, beta, drive];
  const stopAll = () => Promise.all(all.map((upstream) => upstream.stop()));
  const more = {
    beta: {
      tools: {
        'secret_*': { scopes: ['reports:read'] },
        count: { groups: ['counters'] },
      },
    },
    drive: { connection: 'acme-drive' },
  } as Record<string, object>;
  let world: World;
  try {
    world = await startWorld({
      ...options,
      config: {
        ...config,
        upstreams: all.map(({ name, endpoint }) => ({
          name,
          url: endpoint,
          allowPrivateNetwork: true,
          ...more[name],
          ...upstreams[name],
        })),
      },
    });
  } catch (error) {
    await stopAll();
    throw error;
  }
  drive.refuses = ({ message, headers }) =>
    message?.method === 'tools/call' &&
    !world.acme.isValid((headers.authorization ?? '').replace('Bearer ', ''));
  const url = (upstream: string) =>
    upstream === '' ? `${world.publicUrl}/mcp` : `${world.publicUrl}/mcp/${upstream}`;
  return {
    world,
    alpha,
    beta,
    drive,
    url,
    client: (user, { upstream = 'alpha', claims, token, ...rest } = {}) =>
      new ModernClient({
        url: url(upstream),
        ports: world.stack.ports,
        token:
          token === null
            ? undefined
            : (token ?? world.idp.mint({ sub: user, aud: url(upstream), ...claims })),
        ...rest,
      }),
    async stop() {
      await world.stop();
      await stopAll();
    },
  };
}
