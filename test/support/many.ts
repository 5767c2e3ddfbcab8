import type { McpClient } from './mcp-client.ts';
import type { World, WorldClient } from './world.ts';

/** A client of the endpoint of many, `/mcp`. */
export function manyClient(
  world: World,
  user: string,
  { claims, ...options }: WorldClient = {},
): McpClient {
  const url = `${world.publicUrl}/mcp`;
  return world.client(user, { ...options, claims: { aud: url, ...claims } }).as({ url });
}
