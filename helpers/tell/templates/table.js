// Tables of notebooks and pages: a button in a heading sorts by it, a field above a longer table searches its rows. And figures.
(() => {
  if (window.casebook) return window.casebook.tables();
  const units = {KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, ms: 1e-3, min: 60, h: 3600, d: 86400};
  // "117.08 GiB" and "4 min 05 s" by what they amount to; words as words, what has no value last.
  const key = (words) => {
    const parts = [...words.replace(/,/g, '').matchAll(/(-?[\d.]+)(?: ([A-Za-z]+))?/g)];
    return /^(x )?[-\d]/.test(words) && words !== '-'
      ? parts.reduce((sum, [, number, unit]) => sum + number * (units[unit] || 1), 0)
      : /^(-|not available|not allowed|$)/.test(words) ? null : words.toLowerCase();
  };
  const compare = (a, b) => a === null || b === null ? (a === null) - (b === null)
    : typeof a !== typeof b ? (typeof a === 'string') - (typeof b === 'string')
    : typeof a === 'string' ? a.localeCompare(b) : a - b;
  const made = (tag, about) => {
    const one = Object.assign(document.createElement(tag), about);
    one.dataset.lmSuppressShortcuts = 'true';  // JupyterLab leaves its keys alone
    return one;
  };
  const search = (items, before, words, heard) => before.before(made('input', {
    type: 'search', placeholder: words, ariaLabel: words, oninput() {
      for (const item of items) item.hidden = !item.textContent.toLowerCase().includes(this.value.toLowerCase());
      heard?.(this.value);
    },
  }));
  const sort = (heading) => {
    const down = heading.ariaSort === 'ascending', sign = down ? -1 : 1, at = heading.cellIndex;
    const body = heading.closest('table').tBodies[0];
    for (const one of heading.parentNode.cells) one.ariaSort = null;
    heading.ariaSort = down ? 'descending' : 'ascending';
    const rows = [...body.rows].map((row) => [key((row.cells[at]?.textContent ?? '').trim()), row]);
    rows.sort(([a], [b]) => a === null || b === null ? compare(a, b) : sign * compare(a, b));
    body.append(...rows.map(([, row]) => row));
  };
  // On a phone a table that is wider than the screen becomes pairs of a heading and a value, without those that have none.
  const narrow = matchMedia('(max-width: 48rem)');
  const stack = (table) => {
    table.classList.remove('stacked');
    if (!narrow.matches || !table.tHead || table.offsetWidth <= table.parentElement.clientWidth + 1) return;
    const labels = [...table.tHead.rows[0].cells].map((one) => one.textContent);
    for (const one of table.tBodies[0].querySelectorAll('td, th')) {
      one.dataset.label = (labels[one.cellIndex] ?? '').replace(/_/g, '_\u200b');  // a name is broken between its words
      one.classList.toggle('none', one.textContent.trim() === '-');
    }
    table.classList.add('stacked');
  };
  const start = (table) => {
    table.dataset.live = 1;
    new ResizeObserver(() => stack(table)).observe(table.parentElement);
    stack(table);
    const rows = [...table.tBodies[0]?.rows ?? []];
    if (rows.length < 2) return;
    for (const heading of table.tHead?.rows[0]?.cells ?? []) {
      const words = heading.textContent.trim();
      const about = {type: 'button', textContent: words, title: 'sort by this column', onclick: () => sort(heading)};
      if (words) heading.replaceChildren(made('button', about));
    }
    if (rows.length < 9 || table.closest('.widget-html, .jupyter-widgets')) return;
    search(rows, table.closest('.scroll') || table, 'search these rows');
  };
  const tables = () => {
    document.querySelectorAll('.casebook table:not([data-live])').forEach(start);
  };
  window.casebook = {made, search, tables};
  new MutationObserver(tables).observe(document.body, {childList: true, subtree: true});
  tables();
})();
