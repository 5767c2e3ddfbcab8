import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { program, temporaryFolder } from './process.ts';

/** A certificate for localhost that lives as long as the test; the product trusts it by NODE_EXTRA_CA_CERTS. */
export function makeCertificate(): { key: string; cert: string; certFile: string } {
  const folder = temporaryFolder();
  const keyFile = join(folder, 'key.pem');
  const certFile = join(folder, 'cert.pem');
  const made = spawnSync(
    program('openssl', 'openssl'),
    [
      ...['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes'],
      ...['-days', '2', '-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost'],
      ...['-keyout', keyFile, '-out', certFile],
    ],
    { encoding: 'utf8' },
  );
  if (made.status !== 0) throw new Error(`openssl: ${made.stderr}`);
  return { key: readFileSync(keyFile, 'utf8'), cert: readFileSync(certFile, 'utf8'), certFile };
}
