// Keeps the connections page live: fetches it again while it is looked at, and shows what has changed. Without
// JavaScript the page is right at the moment when it is opened.
const EVERY_MS = 2000;
const page = () => document.querySelector('[data-connections]');

async function look() {
  try {
    if (document.visibilityState === 'visible') await show();
  } catch {
    // The network is away for a moment; the next look will tell.
  }
  setTimeout(look, EVERY_MS);
}

async function show() {
  const response = await fetch(location.pathname, {
    cache: 'no-store',
    credentials: 'same-origin',
    headers: { Accept: 'text/html' },
  });
  if (!response.ok || response.redirected) {
    // Signed out, here or in another window: the login is the page's own.
    if (response.redirected) location.reload();
    return;
  }
  const next = new DOMParser()
    .parseFromString(await response.text(), 'text/html')
    .querySelector('[data-connections]');
  const now = page();
  if (next === null || now === null || next.dataset.connections === now.dataset.connections) return;
  // Whoever is on a button with the keyboard stays on it.
  const held = document.activeElement?.closest('form')?.getAttribute('action');
  now.replaceWith(document.adoptNode(next));
  if (held !== undefined && held !== null) {
    page()
      ?.querySelector(`form[action="${CSS.escape(held)}"] button`)
      ?.focus();
  }
  const told = document.querySelector('[role=status]');
  if (told !== null) told.textContent = 'Your connections have changed, and this page with them.';
}

if (page() !== null) setTimeout(look, EVERY_MS);
