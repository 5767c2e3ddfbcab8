import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** One folder for a whole run, removed with everything in it: workers are ended without a word, and clean up nothing. */
export default function setup(): () => void {
  const folder = mkdtempSync(join(tmpdir(), 'viaduct-tests-'));
  process.env['VIADUCT_TEST_FOLDER'] = folder;
  return () => {
    rmSync(folder, { recursive: true, force: true });
  };
}
