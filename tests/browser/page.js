// What the driver asks of a notebook in JupyterLab; cells are counted from 0.
window.lab = {
  cells: () => [...document.querySelectorAll('.jp-Notebook .jp-Cell')],
  output: n => lab.cells()[n].querySelector('.jp-Cell-outputArea'),
  prompt: n => lab.cells()[n].querySelector('.jp-InputPrompt').textContent,
  rows: n => [...lab.cells()[n].querySelectorAll('tbody tr:not([hidden])')].map(e => e.textContent),
  idle: () => lab.cells().length > 0 && !!document.querySelector('.jp-Notebook-ExecutionIndicator[data-status=idle]'),
  // The words of a cell's output, alternative words of pictures included.
  text: n => {
    const out = lab.output(n);
    return out ? out.innerText + [...out.querySelectorAll('img, [aria-label]')].map(e => e.alt || e.ariaLabel).join(' ') : '';
  },
  // Puts the keyboard into the control of that label, the field above a table, or onto the button with those words.
  focus: (n, words) => {
    const labels = [...lab.cells()[n].querySelectorAll('.jp-OutputArea label, .jp-OutputArea button')];
    const label = labels.find(e => e.textContent.trim() === words);
    const found = lab.cells()[n].querySelector(`input[aria-label="${words}"]`) || label && (label.tagName === 'BUTTON' ? label : label.closest('.widget-checkbox, .jupyter-widgets')
      .querySelector('textarea, select, .noUi-handle, input'));
    if (found) { found.scrollIntoView({block: 'center'}); found.focus(); }
    return !!found && document.activeElement === found;
  },
  sort: (n, words) => [...lab.cells()[n].querySelectorAll('th')].find(e => e.textContent === words).firstElementChild.click(),
  edit: n => { lab.cells()[n].scrollIntoView({block: 'center'}); lab.cells()[n].querySelector('.cm-content').focus(); },
  label: () => document.activeElement.closest('.jupyter-widgets')?.querySelector('label').textContent,
  box: n => { lab.output(n).scrollIntoView(); const r = lab.output(n).getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; },
};
