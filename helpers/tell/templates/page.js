// Behind table.js the rest of a page's one script: it copies commands, searches runs, unfolds. Without it all is there, and folds.
(() => {
  const all = (what, where = document) => [...where.querySelectorAll(what)];
  const {made, search} = window.casebook;
  const button = (words, act) => made('button', {textContent: words, type: 'button', onclick: act});
  for (const pre of all('.command pre')) {
    const copy = button('Copy', async () => {
      try {
        await navigator.clipboard.writeText(pre.textContent);
        copy.textContent = 'Copied';
      } catch {
        getSelection().selectAllChildren(pre);
        copy.textContent = 'Selected';
      }
    });
    copy.setAttribute('aria-label', 'Copy these commands');
    pre.before(copy);
  }
  const runs = all('#runs .run');
  if (runs.length > 12) {
    const unfolded = (words) => { for (const rest of all('.rest')) rest.open = words !== ''; };
    search(runs, runs[0].closest('.rest') || runs[0], 'search the runs: state, box, notebook, answer', unfolded);
  }
  const main = document.querySelector('main'), folded = all('details:not(.view)', main);
  const unfold = button('Unfold all', () => {
    const open = unfold.textContent === 'Unfold all';
    for (const one of folded) one.open = open;
    unfold.textContent = open ? 'Fold all' : 'Unfold all';
  });
  if (folded.length) document.querySelector('header').append(unfold);
  const follow = () => {
    const at = location.hash && document.getElementById(location.hash.slice(1));
    for (let up = at; up; up = up.parentElement) if (up.tagName === 'DETAILS') up.open = true;
    if (at) at.scrollIntoView();
  };
  addEventListener('hashchange', follow);
  follow();
})();
