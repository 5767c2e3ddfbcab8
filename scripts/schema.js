// Writes viaduct.schema.json from the schema that the services check the file with. A unit test fails
// when the two differ. Runs the TypeScript source as it is: Node 24 strips types.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { root } from './environment.js';

/** @type {{ jsonSchemaText(): string }} */
const { jsonSchemaText } = await import(
  join(root, 'packages', 'shared', 'src', 'config', 'json-schema.ts')
);
writeFileSync(join(root, 'viaduct.schema.json'), jsonSchemaText());
