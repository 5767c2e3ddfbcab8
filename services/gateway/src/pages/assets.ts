/** The pages' own stylesheet and script: read once, served from memory. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { Request, Response } from 'express';

const TYPES = {
  'viaduct.css': 'text/css; charset=utf-8',
  'status.js': 'text/javascript; charset=utf-8',
  'connections.js': 'text/javascript; charset=utf-8',
  'icon.svg': 'image/svg+xml',
} as const;
type AssetName = keyof typeof TYPES;

const files = new Map(
  (Object.keys(TYPES) as AssetName[]).map((name) => {
    const body = readFileSync(new URL(`./assets/${name}`, import.meta.url));
    const version = createHash('sha256').update(body).digest('base64url').slice(0, 10);
    return [name, { body, version, type: TYPES[name] }] as const;
  }),
);

export const assetUrl = (name: AssetName): string =>
  `/assets/${name}?v=${files.get(name)?.version ?? ''}`;

export function serveAsset(req: Request<{ file: string }>, res: Response): void {
  const file = files.get(req.params.file as AssetName);
  if (file === undefined) {
    res.status(404).type('text/plain').send('Not found');
    return;
  }
  // During a rollout a page of the new version may ask a pod of the old one: that answer must not be kept.
  const mine = req.query['v'] === file.version;
  res.set('Cache-Control', mine ? 'public, max-age=31536000, immutable' : 'no-store');
  res.set('Content-Type', file.type);
  res.send(file.body);
}
