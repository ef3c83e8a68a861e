// The page of a review: keys move and tick, a search narrows, a preview shows what was ticked, and saving downloads the choices.
(() => {
  const all = (what, where = document) => [...where.querySelectorAll(what)];
  const byId = (id) => document.getElementById(id);
  const main = document.querySelector('main'), texts = all('.text'), search = byId('search'), shown = byId('shown');
  const MOST_MARKS = 5000;
  const box = (text) => text.querySelector('input');
  const groupOf = (text) => text.closest('.group');
  const visible = () => texts.filter((text) => !text.hidden);
  const ticked = () => texts.filter((text) => box(text).checked);
  const tickable = (group) => all('.text:not([hidden])', group).filter((text) => !box(text).disabled);
  const marks = new Map();
  let here = null, unsaved = false;

  const count = () => {
    const list = visible(), place = list.indexOf(here) + 1, of = search.value ? 'found' : 'texts';
    byId('count').textContent = `${place ? `${place} of ` : ''}${list.length} ${of}, ${ticked().length} ticked`;
    for (const button of all('.all')) {
      const boxes = tickable(groupOf(button)).map(box);
      button.disabled = !boxes.length;
      button.textContent = boxes.length && boxes.every((one) => one.checked) ? 'Untick all' : 'Tick all';
    }
  };
  const mark = (text) => {
    if (here) here.classList.remove('here');
    here = text || null;
    if (here) here.classList.add('here');
    count();
  };
  const go = (text) => {
    if (!text) return;
    mark(text);
    here.focus({preventScroll: true});
    here.scrollIntoView({block: 'nearest'});
    const pre = here.querySelector('pre'), first = marks.get(here);
    if (first) pre.scrollTop += first.getBoundingClientRect().top - pre.getBoundingClientRect().top - pre.clientHeight / 2;
  };
  const move = (steps) => {
    const list = visible(), at = list.indexOf(here);
    go(list[at < 0 ? 0 : Math.min(list.length - 1, Math.max(0, at + steps))]);
  };
  const nextGroup = () => {
    if (here) mark(visible().findLast((text) => groupOf(text) === groupOf(here)));
    move(1);
  };
  const tick = (list, on) => {
    for (const text of list) if (!box(text).disabled) box(text).checked = on;
    unsaved = true;
    count();
  };
  const allOf = (group) => {
    const list = tickable(group);
    tick(list, list.some((text) => !box(text).checked));
  };
  const preview = () => {
    const copies = ticked().flatMap((text) => {
      const place = document.createElement('p');
      place.className = 'eyebrow';
      place.textContent = text.dataset.place;
      return [place, text.querySelector('pre').cloneNode(true)];
    });
    shown.querySelector('div').replaceChildren(...(copies.length ? copies : ['Nothing is ticked.']));
    shown.showModal();
    byId('close').focus();
    shown.scrollTop = 0;
  };
  const save = () => {
    const include = ticked().map((text) => box(text).value);
    const moment = new Date().toISOString().slice(0, 19).replaceAll(/[-:]/g, '');
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([JSON.stringify({include}, null, 1)], {type: 'application/json'}));
    link.download = `${main.dataset.name}-${moment}.choices.json`;
    link.click();
    shown.close();
    unsaved = false;
    byId('ticks').textContent = include.length;
    byId('command').textContent = `${main.dataset.command} --include ~/Downloads/${link.download}`;
    byId('saved').hidden = false;
  };
  const narrow = () => {
    const words = search.value.replaceAll(/[$()*+./?[\\\]^{|}]/g, '\\$&');
    const wanted = new RegExp(words, 'iu');
    for (const text of texts) text.hidden = !wanted.test(text.textContent);
    for (const group of all('.group')) group.hidden = !group.querySelector('.text:not([hidden])');
    mark(here && !here.hidden ? here : visible()[0]);
    marks.clear();
    if (!window.Highlight) return;
    const places = new Highlight();
    for (const text of search.value.length > 1 ? visible() : []) {
      const node = text.querySelector('pre').firstChild;
      for (const match of node ? node.data.matchAll(new RegExp(words, 'giu')) : []) {
        if (places.size > MOST_MARKS) break;
        const range = new Range();
        range.setStart(node, match.index);
        range.setEnd(node, match.index + match[0].length);
        places.add(range);
        if (!marks.has(text)) marks.set(text, range);
      }
    }
    CSS.highlights.set('search', places);
  };
  const clear = () => { search.value = ''; narrow(); go(here); };
  const more = () => {
    const pre = here && here.querySelector('pre');
    if (!pre || pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 1) move(1);
    else pre.scrollBy(0, pre.clientHeight * 0.9);
  };
  const keys = {
    y: () => { if (here) tick([here], true); move(1); },
    n: () => { if (here) tick([here], false); move(1); },
    j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1),
    a: () => { if (here) allOf(groupOf(here)); nextGroup(); },
    c: nextGroup, ' ': more, '/': () => search.select(), p: preview, s: save, Escape: clear,
  };
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyped = event.target === search, isPressed = event.key === ' ' && event.target.matches('button, input');
    let act = isPressed ? null : keys[event.key];
    if (isTyped) act = {Escape: clear, Enter: () => go(here)}[event.key];
    else if (shown.open) act = {p: () => shown.close(), s: save}[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  document.addEventListener('change', (event) => { unsaved = unsaved || event.target !== search; count(); });
  window.addEventListener('beforeunload', (event) => { if (unsaved) event.preventDefault(); });
  search.addEventListener('input', narrow);
  for (const button of all('.all')) button.addEventListener('click', () => allOf(groupOf(button)));
  for (const text of texts) text.addEventListener('click', () => mark(text));
  byId('preview').addEventListener('click', preview);
  byId('save').addEventListener('click', save);
  byId('close').addEventListener('click', () => shown.close());
  move(0);
  count();
})();
