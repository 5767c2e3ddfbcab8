// Keeps the status page live: asks for the state as JSON and shows the page anew when it has changed.
// Without JavaScript the page reloads itself (meta refresh in <noscript>).
const element = document.querySelector('[data-elicitation-state]');
const state = element?.dataset.elicitationState;
// States that look the same on the page.
const phase = (name) => ({ opened: 'created', exchanging: 'authorized' })[name] ?? name;
const EVERY_MS = 1000;
const GIVE_UP_MS = 15 * 60 * 1000;
const began = Date.now();

async function look() {
  try {
    const response = await fetch(location.pathname, {
      headers: { Accept: 'application/json' },
      cache: 'no-store',
      credentials: 'same-origin',
    });
    const changed = response.ok
      ? phase((await response.json()).state) !== phase(state)
      : response.status < 500;
    if (changed) {
      location.reload();
      return;
    }
  } catch {
    // The network is away for a moment; the next look will tell.
  }
  if (Date.now() - began < GIVE_UP_MS) setTimeout(look, EVERY_MS);
}

if (state !== undefined) setTimeout(look, EVERY_MS / 2);
