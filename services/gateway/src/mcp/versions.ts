/** Revisions of MCP that the gateway speaks, newest first. */

export const LEGACY_VERSIONS = ['2025-11-25', '2025-06-18', '2025-03-26'] as const;
export const LATEST_LEGACY = LEGACY_VERSIONS[0];
export const MODERN_VERSION = '2026-07-28';

export const isLegacyVersion = (version: unknown): version is (typeof LEGACY_VERSIONS)[number] =>
  (LEGACY_VERSIONS as readonly unknown[]).includes(version);
