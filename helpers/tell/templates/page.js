// The one script of a page: it copies commands, sorts and filters. Without it all is there, and folds.
(() => {
  const all = (what, where = document) => [...where.querySelectorAll(what)];
  const made = (tag, words, about = {}) => Object.assign(document.createElement(tag), {textContent: words}, about);
  const button = (words, act) => made('button', words, {type: 'button', onclick: act});
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
  // "1.5 GiB" and "4 min 05 s" as numbers, null where a cell holds none.
  const units = {KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, ms: 1e-3, min: 60, h: 3600, d: 86400};
  const number = words => {
    const parts = [...words.matchAll(/(-?[\d.]+)\s*([A-Za-z]*)/g)];
    return /^-?[\d.]/.test(words) ? parts.reduce((sum, [, n, unit]) => sum + n * (units[unit] || 1), 0) : null;
  };
  const order = (a, b) => {
    const [x, y] = [number(a), number(b)];
    return x === null || y === null ? (x === null) - (y === null) || a.localeCompare(b) : x - y;
  };
  const filter = (items, before, words) => {
    const field = made('input', '', {type: 'search', placeholder: words, oninput: () => {
      const asked = field.value.toLowerCase();
      for (const item of items) item.hidden = !item.textContent.toLowerCase().includes(asked);
      for (const rest of all('.rest')) rest.open = asked !== '';
    }});
    field.setAttribute('aria-label', words);
    before.before(field);
  };
  for (const table of all('table')) {
    const rows = all('tbody tr', table);
    if (rows.length < 2) continue;
    for (const head of all('thead th', table)) {
      const sort = button(head.textContent, () => {
        const up = head.ariaSort !== 'ascending', at = head.cellIndex;
        for (const one of all('thead th', table)) one.ariaSort = null;
        head.ariaSort = up ? 'ascending' : 'descending';
        const words = row => row.cells[at] ? row.cells[at].innerText.trim() : '';
        rows.sort((a, b) => (up ? 1 : -1) * order(words(a), words(b)));
        table.tBodies[0].append(...rows);
      });
      if (head.textContent.trim()) head.replaceChildren(sort);
    }
    if (rows.length > 7) filter(rows, table.closest('.scroll') || table, 'Filter the rows');
  }
  const runs = all('#runs .run');
  if (runs.length > 3) filter(runs, runs[0].closest('.rest') || runs[0], 'Filter the runs: state, box, notebook, answer');
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
