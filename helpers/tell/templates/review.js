// The page of a review: keys move and tick, a search narrows, a preview shows what was ticked, and saving downloads the choices.
(() => {
  const all = (what, where = document) => [...where.querySelectorAll(what)];
  const byId = (id) => document.getElementById(id);
  const texts = all('.text'), search = byId('search'), shown = byId('shown');
  const box = (text) => text.querySelector('input');
  const visible = () => texts.filter((text) => !text.hidden);
  const ticked = () => texts.filter((text) => box(text).checked);
  let here = null;
  const count = () => { byId('count').textContent = `${ticked().length} of ${texts.length} ticked`; };
  const go = (text) => {
    if (!text) return;
    if (here) here.classList.remove('here');
    here = text;
    here.classList.add('here');
    here.focus({preventScroll: true});
    here.scrollIntoView({block: 'nearest'});
  };
  const move = (steps) => {
    const list = visible(), at = list.indexOf(here);
    go(list[at < 0 ? 0 : Math.min(list.length - 1, Math.max(0, at + steps))]);
  };
  const tick = (list, on) => {
    for (const text of list) if (!box(text).disabled) box(text).checked = on;
    count();
  };
  const allOf = (group) => {
    const list = all('.text', group).filter((text) => !text.hidden);
    tick(list, list.some((text) => !box(text).disabled && !box(text).checked));
    return list;
  };
  const preview = () => {
    const copies = ticked().map((text) => text.querySelector('pre').cloneNode(true));
    shown.querySelector('div').replaceChildren(...copies);
    if (!copies.length) shown.querySelector('div').textContent = 'Nothing is ticked.';
    shown.showModal();
  };
  const save = () => {
    const include = ticked().map((text) => box(text).value);
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([JSON.stringify({include}, null, 1)], {type: 'application/json'}));
    link.download = `${document.querySelector('main').dataset.name}.choices.json`;
    link.click();
    URL.revokeObjectURL(link.href);
  };
  const keys = {
    y: () => { if (here) tick([here], true); move(1); },
    n: () => { if (here) tick([here], false); move(1); },
    j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1),
    a: () => {
      if (!here) move(1);
      if (here) { go(allOf(here.closest('.group')).at(-1)); move(1); }
    },
    '/': () => search.focus(), p: preview, s: save,
  };
  document.addEventListener('keydown', (event) => {
    if (event.target === search && event.key === 'Escape') { search.blur(); return; }
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey || event.target === search || shown.open) return;
    event.preventDefault();
    act();
  });
  document.addEventListener('change', count);
  search.addEventListener('input', () => {
    const words = search.value.toLowerCase();
    for (const text of texts) text.hidden = !text.textContent.toLowerCase().includes(words);
    for (const group of all('.group')) group.hidden = !group.querySelector('.text:not([hidden])');
  });
  for (const button of all('.all')) button.addEventListener('click', () => allOf(button.closest('.group')));
  for (const text of texts) text.addEventListener('click', () => go(text));
  byId('preview').addEventListener('click', preview);
  byId('save').addEventListener('click', save);
  byId('close').addEventListener('click', () => shown.close());
  count();
  move(0);
})();
