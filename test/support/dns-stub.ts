import { createSocket } from 'node:dgram';

/**
 * A name server whose answers change: `answers` are taken one after the other, the last one again and again. A
 * process of the product asks it for the names in `.localhost` when it starts with `env` (see dns-preload.ts).
 */
export interface DnsStub {
  readonly env: Record<string, string>;
  /** What it was asked, in order. */
  readonly asked: string[];
  answers: string[][];
  stop: () => Promise<void>;
}

export async function startDnsStub(answers: string[][]): Promise<DnsStub> {
  const socket = createSocket('udp4');
  const stub: DnsStub = {
    env: {},
    asked: [],
    answers,
    stop: () => new Promise((resolve) => void socket.close(() => resolve())),
  };
  socket.on('message', (query, from) => {
    const labels: string[] = [];
    let at = 12;
    for (let length = query[at]!; length > 0; length = query[at]!) {
      labels.push(query.toString('latin1', at + 1, at + 1 + length));
      at += length + 1;
    }
    const end = at + 5; // the root label, type and class
    const addresses = stub.answers[Math.min(stub.asked.length, stub.answers.length - 1)] ?? [];
    stub.asked.push(labels.join('.'));
    const header = Buffer.from(query.subarray(0, 12));
    header.writeUInt16BE(0x8180, 2);
    header.writeUInt16BE(addresses.length, 6);
    header.writeUInt16BE(0, 8);
    header.writeUInt16BE(0, 10);
    const records = addresses.map((address) =>
      Buffer.from([
        ...[0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4], // the name asked for, A, IN, not to be kept
        ...address.split('.').map(Number),
      ]),
    );
    socket.send(Buffer.concat([header, query.subarray(12, end), ...records]), from.port);
  });
  await new Promise<void>((resolve) => void socket.bind(0, '127.0.0.1', resolve));
  const { port } = socket.address();
  const preload = new URL('./dns-preload.ts', import.meta.url).href;
  Object.assign(stub.env, {
    TEST_DNS: `127.0.0.1:${String(port)}`,
    NODE_OPTIONS: `--import=${preload}`,
  });
  return stub;
}
