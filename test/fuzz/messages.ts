import fc from 'fast-check';

// JSON-RPC messages as text, right in most of it and wrong somewhere: text, because half of what is wrong cannot be
// said with values (members twice, numbers out of range, lone surrogates).

const deep = (depth: number): string => `${'['.repeat(depth)}${']'.repeat(depth)}`;
const deepObject = (depth: number): string => `${'{"a":'.repeat(depth)}1${'}'.repeat(depth)}`;

export const oddText: fc.Arbitrary<string> = fc.oneof(
  fc.constantFrom(
    'null', 'true', '0', '-0', '-1', '1.5', '1e400', '9007199254740993', '123456789012345678901234567890',
    '""', '"\\u0000"', '"\\ud800"', '"\u2028é😀"', '"__proto__"', '[]', '{}', '[[]]', '[null]', '{"a":1,"a":2}',
    '{"__proto__":{"x":1}}', '{"":""}', '" "', '"../../etc"', '"plain__echo"', '"=?base64?//8=?="',
  ),
  fc.constantFrom(50, 5_000, 40_000).map(deep),
  fc.constantFrom(50, 2_000).map(deepObject),
  fc.constantFrom(300, 70_000).map((length) => JSON.stringify('x'.repeat(length))),
  fc.string({ unit: 'binary' }).map((text) => JSON.stringify(text)),
  fc.json({ maxDepth: 3 }),
); // prettier-ignore

export type Members = readonly (readonly [name: string, text: string])[];

/** Most of the time as it is; otherwise one thing about it is changed. */
export const bent = (members: Members): fc.Arbitrary<Members> =>
  fc.oneof(
    { arbitrary: fc.constant(members), weight: 5 },
    {
      arbitrary: fc
        .tuple(
          fc.nat({ max: Math.max(0, members.length - 1) }),
          fc.constantFrom('drop', 'twice', 'replace', 'rename', 'add', 'reverse'),
          oddText,
        )
        .map(([at, how, text]) => bend(members, at, how, text)),
      weight: 2,
    },
  );

function bend(members: Members, at: number, how: string, text: string): Members {
  const one = members[at];
  if (one === undefined || how === 'add') return [...members, ['x-odd', text]];
  const put = (...instead: Members): Members => [
    ...members.slice(0, at),
    ...instead,
    ...members.slice(at + 1),
  ];
  switch (how) {
    case 'drop':
      return put();
    case 'twice':
      return put(one, [one[0], text]);
    case 'replace':
      return put([one[0], text]);
    case 'rename':
      return put([`${one[0]}\u0000`, one[1]]);
    default:
      return [...members].reverse();
  }
}

export const objectText = (members: Members): string =>
  `{${members.map(([name, text]) => `${JSON.stringify(name)}:${text}`).join(',')}}`;

export const METHODS = [
  'initialize', 'ping', 'tools/list', 'tools/call', 'prompts/list', 'prompts/get', 'resources/list',
  'resources/templates/list', 'resources/read', 'resources/subscribe', 'resources/unsubscribe', 'completion/complete',
  'logging/setLevel', 'server/discover', 'subscriptions/listen', 'tasks/get', 'sampling/createMessage',
  'notifications/initialized', 'notifications/cancelled', 'notifications/progress', 'notifications/roots/list_changed',
  'rpc.discover', '', 'tools/call\u0000', 'constructor', '__proto__',
] as const; // prettier-ignore

const TOOLS = ['echo', 'count', 'awkward', 'fail', 'sorry', 'logs', 'ask_form', 'nowhere', 'plain__echo', 'alpha__echo', 'connect', '__proto__']; // prettier-ignore
const URIS = ['res://doc/1', 'alpha+res://doc/1', 'plain+x:y', '::', ''];
const PREFIX = 'io.modelcontextprotocol/';
export const MODERN_META: Members = [
  [`${PREFIX}protocolVersion`, '"2026-07-28"'],
  [`${PREFIX}clientInfo`, '{"name":"fuzz","version":"1"}'],
  [`${PREFIX}clientCapabilities`, '{"elicitation":{"form":{},"url":{}}}'],
  ['progressToken', '"p"'],
];
const quoted = (items: readonly string[]): fc.Arbitrary<string> =>
  fc.constantFrom(...items).map((item) => JSON.stringify(item));

const params = (meta: Members): fc.Arbitrary<string> =>
  fc
    .tuple(quoted(TOOLS), quoted(URIS), bent(meta), oddText)
    .chain(([name, uri, metaMembers, odd]) =>
      bent([
        ['name', name],
        ['arguments', '{"text":"hi"}'],
        ['_meta', objectText(metaMembers)],
        ['uri', uri],
        ['cursor', odd],
        ['level', '"info"'],
        ['requestId', '1'],
        ['protocolVersion', '"2025-11-25"'],
        ['capabilities', '{"elicitation":{}}'],
        ['clientInfo', '{"name":"f","version":"1"}'],
        ['ref', '{"type":"ref/prompt","name":"greet"}'],
        ['notifications', '{"toolsListChanged":true}'],
        ['requestState', odd],
        ['inputResponses', '{"q1":{"action":"accept"}}'],
      ]),
    )
    .chain((members) => fc.subarray([...members], { minLength: 1 }))
    .map(objectText);

/** One message of an era, a batch of some, or something that is no message. */
export const bodyText = (
  era: 'legacy' | 'modern',
): fc.Arbitrary<{ method: string; text: string }> => {
  const message = fc
    .tuple(fc.constantFrom(...METHODS), params(era === 'modern' ? MODERN_META : []), oddText)
    .chain(([method, own, odd]) =>
      bent([
        ['jsonrpc', '"2.0"'],
        ['id', odd.length > 300 || odd.length % 3 > 0 ? `${odd.length}` : odd],
        ['method', JSON.stringify(method)],
        ['params', own],
      ]).map((members) => ({ method, text: objectText(members) })),
    );
  return fc.oneof(
    { arbitrary: message, weight: 12 },
    {
      arbitrary: fc
        .array(message, { maxLength: 4 })
        .map((all) => ({ method: 'batch', text: `[${all.map(({ text }) => text).join(',')}]` })),
      weight: 2,
    },
    { arbitrary: oddText.map((text) => ({ method: 'odd', text })), weight: 1 },
    {
      arbitrary: fc
        .tuple(message, fc.nat(400))
        .map(([{ method, text }, cut]) => ({ method, text: text.slice(0, cut) })),
      weight: 1,
    },
  );
};
