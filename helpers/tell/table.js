// Tables of the casebook: a click or Enter on a heading sorts by it, a field above a longer table searches its rows.
(() => {
  if (window.casebookTables) return window.casebookTables();
  const units = {KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, ms: 1e-3, min: 60, h: 3600, d: 86400};
  // "117.08 GiB" and "4 min 05 s" by what they amount to; words as words, what has no value last.
  const key = (words) => {
    const parts = [...words.replace(/,/g, '').matchAll(/(-?[\d.]+)(?: ([A-Za-z]+))?/g)];
    return /^(x )?[-\d]/.test(words) && words !== '-'
      ? parts.reduce((sum, [, number, unit]) => sum + number * (units[unit] || 1), 0)
      : /^(-|not available|not allowed)/.test(words) ? null : words.toLowerCase();
  };
  const compare = (a, b) => a === null || b === null ? (a === null) - (b === null)
    : typeof a !== typeof b ? (typeof a === 'string') - (typeof b === 'string')
    : typeof a === 'string' ? a.localeCompare(b) : a - b;
  const sort = (heading) => {
    const down = heading.ariaSort === 'ascending', sign = down ? -1 : 1, at = heading.cellIndex;
    const body = heading.closest('table').tBodies[0];
    [...heading.parentNode.cells].forEach((one) => { one.ariaSort = 'none'; });
    heading.ariaSort = down ? 'descending' : 'ascending';
    const rows = [...body.rows].map((row) => [key(row.cells[at]?.textContent ?? '-'), row]);
    rows.sort(([a], [b]) => a === null || b === null ? compare(a, b) : sign * compare(a, b));
    body.append(...rows.map(([, row]) => row));
  };
  const start = (table) => {
    table.dataset.live = 1;
    const rows = [...table.tBodies[0].rows];
    if (rows.length < 2) return;
    for (const heading of table.tHead.rows[0].cells) {
      Object.assign(heading, {tabIndex: 0, title: 'sort by this column', onclick: () => sort(heading)});
      heading.onkeydown = (event) => { if (event.key === 'Enter') sort(heading); };
      heading.style.cursor = 'pointer';
    }
    if (rows.length < 9 || table.closest('.widget-html, .jupyter-widgets')) return;
    const search = Object.assign(document.createElement('input'), {type: 'search', placeholder: 'search these rows'});
    search.ariaLabel = 'search these rows';
    search.dataset.lmSuppressShortcuts = 'true';
    search.oninput = () => rows.forEach((row) => {
      row.hidden = !row.textContent.toLowerCase().includes(search.value.toLowerCase());
    });
    table.before(search);
  };
  const all = () => document.querySelectorAll('.casebook table:not([data-live])').forEach(start);
  window.casebookTables = all;
  new MutationObserver(all).observe(document.body, {childList: true, subtree: true});
  all();
})();
