// Puts a user out on all pods: npm run revoke-user -- <subject> [--user-id] [--connections] [--admin http://pod:9090]
// Any pod's admin listener will do.
const args = process.argv.slice(2);
const flag = (/** @type {string} */ name) => args.includes(name);
const at = args.indexOf('--admin');
const admin = at < 0 ? 'http://127.0.0.1:9090' : (args[at + 1] ?? '');
const [who] = args.filter((arg, index) => !arg.startsWith('--') && (at < 0 || index !== at + 1));

if (who === undefined) {
  console.error(
    'Usage: npm run revoke-user -- <subject> [--user-id] [--connections] [--admin URL]',
  );
  process.exit(2);
}
const answer = await fetch(`${admin}/users/revoke`, {
  method: 'POST',
  headers: { 'Content-Type': 'application/json' },
  body: JSON.stringify({
    [flag('--user-id') ? 'userId' : 'subject']: who,
    connections: flag('--connections'),
  }),
});
const text = await answer.text();
if (answer.ok) console.log(text);
else {
  console.error(`${answer.status} ${text}`);
  process.exit(1);
}
