import { listen, sendJson, type Listener } from './net.ts';

interface Attribute {
  key: string;
  value: { stringValue?: string };
}
interface OtlpSpan {
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  name: string;
  kind: number;
  attributes?: Attribute[];
}
interface OtlpBody {
  resourceSpans: { resource: { attributes: Attribute[] }; scopeSpans: { spans: OtlpSpan[] }[] }[];
}

export interface CollectedSpan {
  traceId: string;
  spanId: string;
  parentSpanId: string;
  /** `pod1`, `worker1`: who made it. */
  by: string;
  name: string;
  kind: 'server' | 'client' | 'producer' | 'consumer' | 'other';
  attributes: Record<string, string | undefined>;
}

/** An OpenTelemetry collector that takes OTLP over HTTP as JSON and keeps it. */
export interface Collector extends Listener {
  readonly spans: CollectedSpan[];
  /** Everything as it came. */
  readonly texts: string[];
  /** `pod1 client tools/call` for each span of a trace. */
  steps(traceId: string): string[];
}

const KINDS = ['other', 'other', 'server', 'client', 'producer', 'consumer'] as const;
const plain = (attributes: Attribute[] = []): Record<string, string | undefined> =>
  Object.fromEntries(attributes.map(({ key, value }) => [key, value.stringValue]));

export async function startCollector(): Promise<Collector> {
  const spans: CollectedSpan[] = [];
  const texts: string[] = [];
  const listener = await listen(({ url, response, body }) => {
    if (url.pathname !== '/v1/traces') {
      sendJson(response, 404, {});
      return;
    }
    const text = body.toString('utf8');
    texts.push(text);
    for (const { resource, scopeSpans } of (JSON.parse(text) as OtlpBody).resourceSpans) {
      const by = (plain(resource.attributes)['service.instance.id'] ?? '?').split('-')[0]!;
      for (const span of scopeSpans.flatMap((scope) => scope.spans)) {
        const { traceId, spanId, parentSpanId = '', name, kind, attributes } = span;
        spans.push({
          ...{ traceId, spanId, parentSpanId, by, name },
          kind: KINDS[kind] ?? 'other',
          attributes: plain(attributes),
        });
      }
    }
    sendJson(response, 200, {});
  });
  return {
    ...listener,
    spans,
    texts,
    steps: (traceId) =>
      spans
        .filter((span) => span.traceId === traceId)
        .map(({ by, kind, name }) => `${by} ${kind} ${name}`),
  };
}
