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
  if (runs.length > 3) {
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
  // On a phone a table that is wider than the screen becomes pairs of a heading and a value, without those that have none.
  const narrow = matchMedia('(max-width: 48rem)');
  const stack = () => {
    for (const table of all('table', main)) {
      table.classList.remove('stacked');
      if (!narrow.matches || !table.tHead || table.offsetWidth <= table.parentElement.clientWidth + 1) continue;
      const labels = [...table.tHead.rows[0].cells].map((one) => one.textContent);
      for (const row of table.tBodies[0].rows) for (const one of row.cells) one.dataset.label = labels[one.cellIndex] ?? '';
      for (const one of all('td', table)) one.classList.toggle('none', one.textContent.trim() === '-');
      table.classList.add('stacked');
    }
  };
  for (const one of folded) one.addEventListener('toggle', stack);
  addEventListener('resize', stack);
  stack();
  const follow = () => {
    const at = location.hash && document.getElementById(location.hash.slice(1));
    for (let up = at; up; up = up.parentElement) if (up.tagName === 'DETAILS') up.open = true;
    if (at) at.scrollIntoView();
  };
  addEventListener('hashchange', follow);
  follow();
})();
