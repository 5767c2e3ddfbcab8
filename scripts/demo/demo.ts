// `npm start`: the whole product on this machine, and its main job performed on it, live. A person opens
// the link that is printed; with --headless Alice is played by a tiny browser, on the same pages. With
// --once it ends after the first success. Started by scripts/start.js, after provisioning.
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { createAssistant, type Assistant, type Outcome } from './assistant.ts';
import { approve, signIn, title } from './alice.ts';
import { createIdentityProvider } from './identity-provider.ts';
import { createProcesses, freePort } from './processes.ts';
import { secret } from './sign-in-server.ts';
import { startStack, type Stack } from './stack.ts';
import { createThirdParty } from './third-party.ts';
import { createTinyBrowser, type TinyBrowser } from './tiny-browser.ts';
import { createUpstream } from './upstream.ts';

const root = join(import.meta.dirname, '..', '..');
const folder = join(root, '.cache', 'demo');
const headless = process.argv.includes('--headless');
const once = process.argv.includes('--once');
const say = (line = ''): void => console.log(line);

const processes = createProcesses(folder, ({ name, log, ended }) => {
  void ended.then((code) => say(`! ${name} ended (${code}); its log: ${log}`));
});
let assistant: Assistant | undefined;

const exit = { begun: false };
async function leave(code: number): Promise<never> {
  if (exit.begun) return new Promise(() => undefined); // a second Ctrl-C changes nothing
  exit.begun = true;
  await processes.end();
  process.exit(code);
}
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(signal, () => {
    say('\nEnding everything …');
    void leave(0);
  });
}

try {
  await main();
} catch (error) {
  if (!exit.begun) {
    say(`\nThe demo failed: ${error instanceof Error ? error.message : String(error)}`);
    say(`Logs: ${folder}`);
  }
  await leave(1);
}

async function main(): Promise<void> {
  const publicPort = await freePort(8080);
  const gatewayUrl = `http://localhost:${publicPort}`;
  const [idpPort, drivePort, upstreamPort] = [
    await freePort(4001),
    await freePort(4002),
    await freePort(4003),
  ];
  const idp = `http://localhost:${idpPort}`;
  const drive = `http://localhost:${drivePort}`;
  const endpoint = `${gatewayUrl}/mcp/drive`;
  const redirectUri = `http://127.0.0.1:${await freePort(4004)}/callback`;
  const [loginSecret, driveSecret] = [secret(), secret()];

  say('Starting the demo identity provider, Acme Drive and its MCP server …');
  await createIdentityProvider({
    issuer: idp,
    gatewayUrl,
    gatewaySecret: loginSecret,
    assistantRedirectUri: redirectUri,
  }).listen(idpPort);
  await createThirdParty({ issuer: drive, gatewayUrl, gatewaySecret: driveSecret }).listen(
    drivePort,
  );
  await createUpstream({ driveUrl: drive }).listen(upstreamPort);

  say('Starting Redis, two gateway pods and a worker …');
  const stack = await startStack({
    root,
    folder,
    publicPort,
    processes,
    env: { ...process.env, DEMO_LOGIN_SECRET: loginSecret, DEMO_DRIVE_SECRET: driveSecret },
    config: {
      publicUrl: gatewayUrl,
      trustProxy: 1,
      auth: {
        mode: 'external',
        issuer: idp,
        login: { clientId: 'viaduct', clientSecret: '${DEMO_LOGIN_SECRET}' },
      },
      upstreams: [
        { name: 'drive', url: `http://127.0.0.1:${upstreamPort}/mcp`, connection: 'acme-drive' },
      ],
      connections: {
        'acme-drive': {
          type: 'oauth',
          displayName: 'Acme Drive',
          issuer: drive,
          clientId: 'viaduct',
          clientSecret: '${DEMO_DRIVE_SECRET}',
          scopes: ['drive.read'],
          inject: { header: 'Authorization', value: 'Bearer {{accessToken}}' },
        },
      },
      drain: { delaySeconds: 0, timeoutSeconds: 5 },
    },
  });
  const [first, second] = stack.pods.map(({ name, port }) => `${name} (:${port})`);
  say(
    stack.balanced
      ? `  ${gatewayUrl}: haproxy, round robin over ${first} and ${second}`
      : `  ${gatewayUrl}: ${first} itself, for want of haproxy; ${second} runs beside it`,
  );

  const browser = createTinyBrowser();
  assistant = createAssistant({ endpoint, redirectUri });
  const done = createCompletions(assistant);

  say(`\n1. Alice's assistant asks ${endpoint} how to sign in, and does.`);
  await assistant.signIn((url) => signIn(browser, url, redirectUri));
  const { sessionId, protocolVersion } = await assistant.connect();
  say(`   MCP session ${sessionId.slice(0, 8)}…, revision ${protocolVersion}`);

  say("\n2. It calls list_files. That needs Alice's own Acme Drive account.");
  for (;;) {
    const outcome = await assistant.call('list_files');
    if (outcome.kind === 'result') {
      tell(outcome);
      if (outcome.isError) throw new Error('the call failed');
      break;
    }
    say(`   The gateway answers -32042: ${outcome.message}`);
    const completed = done.of(outcome.elicitationId);
    if (headless) {
      say(`   ${outcome.url}`);
      say('\n3. Alice opens the link, signs in, approves; then allows it at Acme Drive.');
      await approveAndWait(browser, outcome.url, completed);
    } else {
      say(`\n3. Open this link in your browser, and sign in as Alice:\n\n   ${outcome.url}\n`);
      say('   (Try Bob first: the link is not his. Ctrl-C ends the demo.)');
      await completed;
    }
    say('\n4. notifications/elicitation/complete: the assistant calls again.');
  }
  await tellPods(stack);
  if (once) await leave(0);
  say(hints(stack, { gatewayUrl, endpoint }));
  repeatOnEnter(assistant);
}

async function approveAndWait(browser: TinyBrowser, link: string, completed: Promise<unknown>) {
  const last = await approve(browser, link, (page) => say(`   · ${page}`));
  const late = sleep(20_000, 'late', { ref: false });
  if ((await Promise.race([completed, late])) === 'late') {
    const now = await browser.open(last.url);
    throw new Error(`no completion within 20 s; the page now says “${title(now)}” (${now.url})`);
  }
  const end = await browser.open(last.url);
  say(`   · ${title(end)}  (${new URL(end.url).origin})`);
}

/** Remembers completions, which may come before anybody waits for them. */
function createCompletions(from: Assistant): { of(elicitationId: string): Promise<unknown> } {
  const waiting = new Map<string, PromiseWithResolvers<unknown>>();
  const entry = (id: string) => {
    const known = waiting.get(id) ?? Promise.withResolvers<unknown>();
    waiting.set(id, known);
    return known;
  };
  from.onComplete((id) => {
    entry(id).resolve(undefined);
  });
  return { of: (id) => entry(id).promise };
}

function repeatOnEnter(from: Assistant): void {
  if (headless || !process.stdin.isTTY) return;
  createInterface({ input: process.stdin }).on('line', () => {
    from
      .call('count_words', (progress, total) => say(`   … ${progress} of ${total} files`))
      .then((outcome) =>
        outcome.kind === 'link'
          ? say(`   Open ${outcome.url} and press Enter again.`)
          : tell(outcome),
      )
      .catch((error: unknown) =>
        say(`   ${error instanceof Error ? error.message : String(error)}`),
      );
  });
}

function tell(outcome: Outcome & { kind: 'result' }): void {
  say(`   ${outcome.isError ? 'Error' : 'Result'}: ${outcome.text}`);
}

/** How the requests fell on the pods, by the pods' own metrics. */
async function tellPods(stack: Stack): Promise<void> {
  const counts = await Promise.all(
    stack.pods.map(async (pod) => {
      const response = await fetch(`http://127.0.0.1:${pod.adminPort}/metrics`);
      const lines = (await response.text()).matchAll(/^viaduct_requests_total\{.*\} (\d+)$/gm);
      return `${pod.name} ${[...lines].reduce((sum, [, n]) => sum + Number(n), 0)}`;
    }),
  );
  say(`   MCP requests answered: ${counts.join(', ')}`);
}

function hints(
  stack: Stack,
  { gatewayUrl, endpoint }: { gatewayUrl: string; endpoint: string },
): string {
  const [first] = stack.pods;
  const lines = [
    '\nEverything keeps running. What to try next:',
    `   - ${gatewayUrl}/connections   what Alice has connected; disconnect there`,
    `   - kill -9 ${first?.process.pid ?? ''}   ends ${first?.name ?? ''}; the assistant goes on at the other pod`,
    `   - ${endpoint}   for any MCP client of yours: it can register itself and sign in`,
    `   - http://127.0.0.1:${first?.adminPort ?? ''}/metrics   what ${first?.name ?? ''} has done`,
    `   - ${folder}   configuration and logs of this run`,
    '   - Ctrl-C   ends everything',
  ];
  if (!headless) lines.splice(1, 0, '   - Enter   calls a slow tool, with progress');
  return lines.join('\n');
}
