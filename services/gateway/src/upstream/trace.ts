/**
 * The trace of a call as the upstream gets it: the header `traceparent`, and `_meta.traceparent` in the message
 * (SEP-414). Only with traces on; without them the client's bytes travel as they are (invariant 5).
 */
import { applyEdits, objectMembers, setMember, sliceOf } from '@viaduct/shared/json-text';
import { methodLabel } from '@viaduct/shared/metrics';
import { beginSpan, bound } from '@viaduct/shared/tracing';
import type { EventFeed, Exchange } from './wire.ts';

/** Sends one POST as a span of its own. */
export function tracedPost(
  name: string,
  body: string | Buffer,
  send: (body: string | Buffer, headers: Record<string, string>) => Exchange,
): Exchange {
  const text = body.toString();
  const method = methodIn(text);
  const span = beginSpan({
    name: method,
    kind: 'client',
    attributes: { 'mcp.method.name': method, 'viaduct.upstream': name },
  });
  if (span === undefined) return send(body, {});
  const { reply, abort } = send(withTraceparent(text, span.traceparent), {
    traceparent: span.traceparent,
  });
  reply.then(
    () => span.end(),
    (error: unknown) => span.end(error),
  );
  return {
    reply: reply.then((got) =>
      got.kind === 'events' ? { ...got, feed: inThisContext(got.feed) } : got,
    ),
    abort,
  };
}

function inThisContext(feed: EventFeed): EventFeed {
  return {
    subscribe(sink) {
      feed.subscribe({
        event: bound((event) => sink.event(event)),
        retry: bound((milliseconds) => sink.retry(milliseconds)),
        end: bound((error) => sink.end(error)),
      });
    },
    pause: () => feed.pause(),
    resume: () => feed.resume(),
  };
}

/** Everything that is no request or notification is an answer. */
function methodIn(text: string): string {
  const slice = objectMembers(text)?.get('method');
  return slice === undefined ? 'response' : methodLabel(JSON.parse(sliceOf(text, slice)) as string);
}

/** Sets `params._meta.traceparent` of a request; answers and notifications stay as they are. */
export function withTraceparent(text: string, traceparent: string): string {
  const members = objectMembers(text);
  if (members?.has('method') !== true || !members.has('id')) return text;
  const value = JSON.stringify(traceparent);
  const params = members.get('params');
  if (params === undefined) {
    const open = text.indexOf('{');
    return applyEdits(text, [
      setMember(text, open, 'params', `{"_meta":{"traceparent":${value}}}`),
    ]);
  }
  if (text[params.start] !== '{') return text;
  const meta = objectMembers(text, params.start)?.get('_meta');
  if (meta !== undefined && text[meta.start] !== '{') return text;
  const edit =
    meta === undefined
      ? setMember(text, params.start, '_meta', `{"traceparent":${value}}`)
      : setMember(text, meta.start, 'traceparent', value);
  return applyEdits(text, [edit]);
}
