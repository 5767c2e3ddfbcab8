/**
 * Traces by OpenTelemetry, off unless `telemetry` is configured. Spans are made by hand at our own seams: an answer to
 * a client, a call of an upstream or third party, an event on the bus, a job. What is between them costs nothing, and
 * without a tracer each seam costs one comparison: the SDK is not even loaded.
 *
 * Promises: attributes are methods, configured names and ids; never a secret, an argument, a result or an error's text.
 * The tracer is the process's own, like OpenTelemetry's context, so it is kept here and not handed through.
 */
import {
  context,
  SpanKind,
  SpanStatusCode,
  trace,
  TraceFlags,
  type Attributes,
  type Context,
  type Span,
  type Tracer,
} from '@opentelemetry/api';

export interface SpanOptions {
  readonly name: string;
  readonly kind: 'server' | 'client' | 'producer' | 'consumer';
  /** `traceparent` of what caused it; default: what is under way here. */
  readonly parent?: string | undefined;
  readonly attributes?: Attributes;
}

export interface TracingOptions {
  readonly otlpEndpoint: string | undefined;
  readonly service: string;
  readonly podId: string;
  readonly version: string;
}

export interface Tracing {
  /** Sends what is still here. */
  stop(): Promise<void>;
}

const KINDS = {
  server: SpanKind.SERVER,
  client: SpanKind.CLIENT,
  producer: SpanKind.PRODUCER,
  consumer: SpanKind.CONSUMER,
} as const;
/** How long a process that ends waits for the collector. */
const STOP_MS = 2_000;
/** W3C Trace Context, version 00 and what later ones must begin with. */
const TRACEPARENT =
  /^(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-|$)/;

let tracer: Tracer | undefined;

export const isTracing = (): boolean => tracer !== undefined;

export async function startTracing(options: TracingOptions): Promise<Tracing> {
  const { otlpEndpoint, service, podId, version } = options;
  if (otlpEndpoint === undefined) return { stop: () => Promise.resolve() };
  const [
    sdk,
    { OTLPTraceExporter },
    { resourceFromAttributes },
    { AsyncLocalStorageContextManager },
  ] = await Promise.all([
    import('@opentelemetry/sdk-trace'),
    import('@opentelemetry/exporter-trace-otlp-http'),
    import('@opentelemetry/resources'),
    import('@opentelemetry/context-async-hooks'),
  ]);
  const provider = new sdk.TracerProvider({
    resource: resourceFromAttributes({
      'service.name': `viaduct-${service}`,
      'service.version': version,
      'service.instance.id': podId,
    }),
    // A client that does not sample its trace is not overruled.
    sampler: new sdk.ParentBasedSampler({ root: new sdk.AlwaysOnSampler() }),
    spanProcessors: [
      new sdk.BatchSpanProcessor({
        exporter: new OTLPTraceExporter({ url: tracesUrl(otlpEndpoint) }),
        scheduledDelayMillis: 1_000,
      }),
    ],
  });
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  tracer = provider.getTracer('viaduct', version);
  return {
    async stop() {
      tracer = undefined;
      let timer: NodeJS.Timeout | undefined;
      const late = new Promise<void>((resolve) => {
        timer = setTimeout(resolve, STOP_MS);
      });
      // A collector that is away is no reason to end otherwise than well.
      await Promise.race([provider.shutdown().catch(() => undefined), late]);
      clearTimeout(timer);
    },
  };
}

/** OTLP's rule for a base address: `/v1/traces` is added (unless it is there). */
export function tracesUrl(otlpEndpoint: string): string {
  const base = otlpEndpoint.replace(/\/+$/, '');
  return base.endsWith('/v1/traces') ? base : `${base}/v1/traces`;
}

/** Runs `work` as one span, and what it calls inside of it. */
export function traced<T>(options: SpanOptions, work: () => T): T {
  if (tracer === undefined) return work();
  const parent = contextOf(options.parent);
  const span = begin(tracer, options, parent);
  const fail = (error: unknown): never => {
    end(span, error);
    throw error;
  };
  return context.with(trace.setSpan(parent, span), () => {
    let result: T;
    try {
      result = work();
    } catch (error) {
      return fail(error);
    }
    if (result instanceof Promise) {
      return result.then((value: unknown) => {
        span.end();
        return value;
      }, fail) as T;
    }
    span.end();
    return result;
  });
}

export interface Begun {
  readonly traceparent: string;
  end(error?: unknown): void;
}

/** For what ends elsewhere than it begins. @returns undefined when there are no traces */
export function beginSpan(options: SpanOptions): Begun | undefined {
  if (tracer === undefined) return undefined;
  const span = begin(tracer, options, contextOf(options.parent));
  return {
    traceparent: format(span),
    end(error) {
      end(span, error);
    },
  };
}

/** Of what is under way here; undefined when nothing is, or there are no traces. */
export function traceparent(): string | undefined {
  if (tracer === undefined) return undefined;
  const span = trace.getSpan(context.active());
  return span === undefined ? undefined : format(span);
}

/** Id (32 hex digits) of the trace that is under way here, if it is kept: one that is not sampled leads nowhere. */
export function traceId(): string | undefined {
  const parent = traceparent();
  return parent?.endsWith('1') === true ? parent.slice(3, 35) : undefined;
}

/** Callbacks of sockets run in the context of whoever opened the socket; bound ones run in this one. */
export function bound<A extends unknown[]>(work: (...args: A) => void): (...args: A) => void {
  return tracer === undefined ? work : context.bind(context.active(), work);
}

function begin(by: Tracer, { name, kind, attributes = {} }: SpanOptions, parent: Context): Span {
  return by.startSpan(name, { kind: KINDS[kind], attributes }, parent);
}

/** A code of ours, or the kind of the error: its text may quote what others have said. */
function end(span: Span, error: unknown): void {
  if (error !== undefined) {
    const { code } = error as { code?: unknown };
    const kind = typeof code === 'string' ? code : error instanceof Error ? error.name : 'error';
    span.setAttribute('error.type', kind);
    span.setStatus({ code: SpanStatusCode.ERROR });
  }
  span.end();
}

function contextOf(given: string | undefined): Context {
  const [, traceId, spanId, flags] = TRACEPARENT.exec(given ?? '') ?? [];
  if (traceId === undefined || spanId === undefined) return context.active();
  const traceFlags = Number.parseInt(flags ?? '00', 16) & TraceFlags.SAMPLED;
  return trace.setSpanContext(context.active(), { traceId, spanId, traceFlags, isRemote: true });
}

function format(span: Span): string {
  const { traceId, spanId, traceFlags } = span.spanContext();
  return `00-${traceId}-${spanId}-${traceFlags.toString(16).padStart(2, '0')}`;
}
