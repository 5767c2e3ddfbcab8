import http from 'node:http';
import { setImmediate as turn } from 'node:timers/promises';
import { EventStream } from './event-stream.ts';
import type { Headers } from './net.ts';

/** Writes a body piece by piece, each in a packet of its own as far as the system lets us. */
export async function writePieces(
  to: { write(piece: Buffer): boolean; end(): unknown },
  pieces: readonly Buffer[],
): Promise<void> {
  for (const piece of pieces) {
    to.write(piece);
    await turn();
  }
  to.end();
}

export interface PiecesAnswer {
  status: number;
  body: Buffer;
  stream: EventStream | undefined;
}

/** One POST whose body goes out in pieces; the whole answer, or its stream at once. */
export function postPieces(
  url: string,
  port: number,
  headers: Headers,
  pieces: readonly Buffer[],
): Promise<PiecesAnswer> {
  const target = new URL(url);
  return new Promise((resolve, reject) => {
    const request = http.request({
      host: '127.0.0.1',
      port,
      method: 'POST',
      path: target.pathname,
      headers: { ...headers, host: target.host },
      agent: false,
    });
    request.setNoDelay(true);
    request.on('error', reject);
    request.on('response', (response) => {
      const status = response.statusCode ?? 0;
      if (response.headers['content-type']?.includes('event-stream')) {
        const stream = new EventStream(response, () => request.destroy());
        resolve({ status, body: Buffer.alloc(0), stream });
        return;
      }
      const chunks: Buffer[] = [];
      response.on('data', (chunk: Buffer) => chunks.push(chunk));
      response.on('end', () => {
        resolve({ status, body: Buffer.concat(chunks), stream: undefined });
      });
    });
    writePieces(request, pieces).catch(reject);
  });
}
