// Keeps a page current, while nobody is about to do something on it: without JavaScript, reload by hand.
const main = document.querySelector('main[data-live]');
if (main) {
  setInterval(async () => {
    if (document.hidden || main.contains(document.activeElement)) return;
    try {
      const answer = await fetch(location.href, { headers: { Accept: 'text/html' } });
      if (!answer.ok) return;
      const next = new DOMParser().parseFromString(await answer.text(), 'text/html');
      const content = next.querySelector('main');
      if (content && !main.contains(document.activeElement))
        main.replaceChildren(...content.children);
    } catch {
      // The pod is away; the page stays as it was.
    }
  }, 3000);
}
