/** JSON Schema of the configuration file, for editors; viaduct.schema.json is this text. */
import { z } from 'zod';
import { file } from './schema.ts';

/** What a person writes, so before defaults; `${NAME}` is text and passes where text does. */
export function jsonSchemaText(): string {
  const schema = z.toJSONSchema(file, { io: 'input' });
  return `${JSON.stringify({ title: 'Viaduct configuration', ...schema }, null, 2)}\n`;
}
