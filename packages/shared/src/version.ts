import { readFileSync } from 'node:fs';

/** Version of this build: of packages/shared, which is released with the services. */
export const VERSION = (
  JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')) as {
    version: string;
  }
).version;
