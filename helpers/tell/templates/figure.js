// Figures of memory blocks that answer: a pointer or a key picks a block, whose size, line and stack stand below; it can be zoomed.
// Names in a figure come from a trace: they are set as text, never as markup. Behind table.js.
(() => {
  if (window.casebook.figures) return window.casebook.figures();
  const {made} = window.casebook;
  const HELP = 'Point at a block, or press the arrow keys; a click keeps it. + and -, or Ctrl and the wheel, zoom; 0 shows all; dragging moves.';
  const COLUMNS = 'start until size state stack own segment operation reserved_at reserved stranded_at stranded'.split(' ');
  const UNITS = [['TiB', 2 ** 40], ['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10], ['B', 1]];
  const numbers = (text) => (text ? text.split(' ').map(Number) : []);
  const count = (number) => number.toLocaleString('en');
  const within = (number, low, high) => Math.min(Math.max(number, low), high);
  const size = (bytes) => {
    const [unit, amount] = UNITS.find((one) => bytes >= one[1]) || UNITS.at(-1);
    return `${amount > 1 ? (bytes / amount).toFixed(2) : bytes} ${unit}`;
  };
  // The place of the last of ascending numbers that is not above a limit.
  const placeOf = (ascending, limit) => {
    let low = 0, high = ascending.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ascending[middle] <= limit) low = middle + 1; else high = middle;
    }
    return low - 1;
  };

  // The colours of the palette on the reader's page, whose words are light where it is dark.
  const inksOf = (looks, words) => {
    const dark = words.match(/[\d.]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) > 384;
    const plain = (name) => looks[name][dark ? 1 : 0];
    const fill = (pen, name) => {
      const hatch = looks[name][2];
      if (!hatch) return plain(name);
      const tile = new OffscreenCanvas(8, 8), brush = tile.getContext('2d');
      brush.fillStyle = plain(name);
      brush.fillRect(0, 0, 8, 8);
      brush.beginPath();
      for (const [x, y, right, bottom] of hatch.startsWith('/') ? [[-2, 2, 2, -2], [-2, 10, 10, -2], [6, 10, 10, 6]] : [[4, 0, 4, 8]]) {
        brush.moveTo(x, y);
        brush.lineTo(right, bottom);
      }
      brush.stroke();
      return pen.createPattern(tile, 'repeat');
    };
    return {words, paper: dark ? '#14171a' : '#ffffff', plain, fill};
  };

  // The blocks in use at each operation of a run, the oldest at the bottom.
  const timeline = (data) => {
    const {start, until, length} = data, sizes = data.size;
    const total = new Float64Array(length + 1);
    start.forEach((from, block) => {
      total[from] += sizes[block];
      total[until[block]] -= sizes[block];
    });
    for (let at = 1; at <= length; at++) total[at] += total[at - 1];
    const fullestOf = (from, to) => {
      let fullest = from;
      for (let at = from; at < to; at++) if (total[at] > total[fullest]) fullest = at;
      return fullest;
    };
    const peak = fullestOf(0, length);
    const top = 1.1 * Math.max(data.capacity_bytes, total[peak], ...data.reserved);
    const live = (at) => {
      const blocks = [], end = placeOf(start, at);
      for (let block = 0; block <= end; block++) if (until[block] > at) blocks.push(block);
      return blocks;
    };
    // A column of the picture shows the fullest of its operations: peaks matter more than shape.
    const operationAt = (view, x, wide) => {
      const each = (view.to - view.from) / wide;
      const from = within(Math.floor(view.from + x * each), 0, length - 1);
      return fullestOf(from, Math.min(view.from + (x + 1) * each, length));
    };
    const paintBlocks = (pen, view, wide, high, inks, picked) => {
      const image = pen.createImageData(wide, high), pixels = new Uint32Array(image.data.buffer);
      const pixel = (name, alpha) => {
        const [red, green, blue] = inks.plain(name).slice(1).match(/../g).map((part) => parseInt(part, 16));
        return ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;
      };
      // Blocks of different stacks differ a little, so that neighbours can be told apart.
      const shades = data.states.slice(0, 2).map((name) => [255, 215, 175].map((alpha) => pixel(name, alpha)));
      const mark = pixel('picked', 255);
      for (let x = 0; x < wide; x++) {
        let sum = 0;
        for (const block of live(operationAt(view, x, wide))) {
          const bottom = Math.round(high - sum / top * high);
          sum += sizes[block];
          const upper = Math.round(high - sum / top * high), edge = bottom - upper > 3 ? 1 : 0;
          const shade = block === picked.block ? mark : shades[data.state[block]][(data.stack[block] + 1) % 3];
          for (let y = upper + edge; y < bottom; y++) pixels[y * wide + x] = shade;
        }
      }
      pen.putImageData(image, 0, 0);
    };
    const paint = (pen, view, wide, high, inks, picked) => {
      paintBlocks(pen, view, wide, high, inks, picked);
      const right = (at) => (at - view.from) / (view.to - view.from) * wide, up = (bytes) => high - bytes / top * high;
      const curve = (name, dashes, at, bytes) => {
        pen.strokeStyle = inks.plain(name);
        pen.setLineDash(dashes);
        pen.beginPath();
        at.forEach((one, place) => pen.lineTo(right(one), up(bytes[place])));
        pen.stroke();
      };
      const {reserved, capacity_bytes: card, fails_at: fails} = data;
      const steps = data.reserved_at.flatMap((at, place) => [at, data.reserved_at[place + 1] ?? length]);
      curve('reserved', [], steps, reserved.flatMap((bytes) => [bytes, bytes]));
      curve('stranded', [8, 4], data.stranded_at, data.stranded);
      curve('card', [], [0, length], [card, card]);
      if (fails >= 0) curve('card', [4, 4], [fails, fails], [0, top]);
      pen.fillStyle = inks.words;
      pen.font = `${11 * devicePixelRatio}px sans-serif`;
      pen.setLineDash([]);
      pen.strokeStyle = inks.paper;
      pen.lineWidth = 3 * devicePixelRatio;
      const tick = 2 ** Math.floor(Math.log2(top / 3));
      for (let bytes = tick; bytes < top; bytes += tick) {
        pen.strokeText(size(bytes), 2, up(bytes));
        pen.fillText(size(bytes), 2, up(bytes));
      }
      if (picked.block !== null) pen.fillRect(right(picked.at + 0.5), 0, 1, high);
    };
    return {
      high: 300, least: 10, paint,
      keys: ['in use', 'small', 'reserved', 'stranded', 'card'],
      first: () => ({at: peak, block: live(peak).at(-1) ?? null}),
      pick: (view, x, y, wide, high) => {
        const at = operationAt(view, x, wide);
        let sum = 0;
        const block = live(at).find((one) => (sum += sizes[one]) > (1 - y / high) * top);
        return {at, block: block ?? null};
      },
      step: (picked, view, wide, across, up) => {
        const far = Math.max(1, Math.round((view.to - view.from) / wide));
        const at = within(picked.at + across * far, 0, length - 1), blocks = live(at), place = blocks.indexOf(picked.block);
        const next = place < 0 ? blocks.length - 1 : within(place + up, 0, blocks.length - 1);
        return {at, block: blocks[next] ?? null};
      },
      words: ({at, block}) => {
        const reserved = data.reserved[placeOf(data.reserved_at, at)] ?? 0;
        const where = `Operation ${count(at)} of ${count(length)}: ${size(total[at])} in use${data.left_out ? ' in the blocks drawn' : ''}, ${size(reserved)} reserved.`;
        if (block === null) return [where, ''];
        const end = until[block] < length ? `freed at operation ${count(until[block])}` : 'never freed';
        return [where, `${size(sizes[block])}, allocated at operation ${count(start[block])}, ${end}`];
      },
      scale: (view) => `operations ${count(Math.round(view.from))} to ${count(Math.round(view.to))}`,
    };
  };

  // Every reserved byte in the order of addresses, as one strip that is folded into rows.
  const map = (data) => {
    const {start, segment, length} = data, sizes = data.size, rows = 20, last = start.length - 1;
    const eachRow = (view) => (view.to - view.from) / rows;
    const of = (block) => ({at: start[block], block});
    const before = (byte) => within(placeOf(start, byte), 0, last);
    // The block at a byte; none where that of a block which is left out is.
    const at = (byte) => {
      const block = before(byte), isInside = byte >= start[block] && byte < start[block] + sizes[block];
      return isInside ? of(block) : {at: byte, block: null};
    };
    const boxes = (view, block, wide, high) => {
      const each = eachRow(view), tall = high / rows, parts = [];
      const from = Math.max(start[block] - view.from, 0), to = Math.min(start[block] + sizes[block], view.to) - view.from;
      for (let row = Math.floor(from / each); row * each < to; row++) {
        const left = Math.max(from / each - row, 0) * wide, right = Math.min(to / each - row, 1) * wide;
        parts.push([left, row * tall + 1, Math.max(right - left, 0.7), tall - 3]);
      }
      return parts;
    };
    const paint = (pen, view, wide, high, inks, picked) => {
      pen.clearRect(0, 0, wide, high);
      const fills = data.states.map((name) => inks.fill(pen, name));
      for (let block = before(view.from); block <= before(view.to - 1); block++) {
        const parts = boxes(view, block, wide, high);
        pen.fillStyle = fills[data.state[block]];
        for (const part of parts) pen.fillRect(...part);
        const [left, upper, , tall] = parts[0] || [];
        pen.fillStyle = inks.words;
        if (parts.length && segment[block] !== segment[block - 1]) pen.fillRect(left, upper, 1, tall);
      }
      pen.strokeStyle = inks.plain('picked');
      pen.lineWidth = 3 * devicePixelRatio;
      if (picked.block !== null) for (const part of boxes(view, picked.block, wide, high)) pen.strokeRect(...part);
    };
    return {
      high: 360, least: 65536, paint,
      keys: data.states.filter((name, state) => data.state.includes(state)),
      first: () => of(0),
      pick: (view, x, y, wide, high) => at(view.from + (within(Math.floor(y / high * rows), 0, rows - 1) + x / wide) * eachRow(view)),
      step: (picked, view, wide, across, up) => (
        up ? of(before(picked.at + sizes[picked.block] / 2 - up * eachRow(view))) : of(within(picked.block + across, 0, last))
      ),
      words: ({at: byte, block}) => {
        if (block === null) return [`${size(byte)} from the first byte: one of the ${count(data.left_out)} small blocks that are left out.`, ''];
        const where = `Block ${count(block + 1)} of ${count(last + 1)}, in segment ${count(segment[block] + 1)} of ${count(segment[last] + 1)}.`;
        const since = data.operation[block] < 0 ? '' : `, allocated at operation ${count(data.operation[block])}`;
        return [where, `${size(sizes[block])}, ${data.looks[data.states[data.state[block]]][3]}${since}`];
      },
      scale: (view) => `${size(Math.round(eachRow(view)))} a row, of ${size(length)} reserved; a thin line begins a segment`,
    };
  };

  const begin = (figure) => {
    figure.dataset.begun = 1;
    const data = JSON.parse(figure.dataset.chart), {length} = data;
    for (const name of COLUMNS) data[name] = numbers(data[name]);
    if (!data.start.length) return;
    const plot = {timeline, map}[data.kind](data);
    const canvas = made('canvas', {tabIndex: 0}), readout = made('div', {className: 'readout'});
    const scale = made('span'), keys = made('p', {className: 'keys'}), tools = made('p', {className: 'keys'});
    let view = {from: 0, to: length}, picked = {at: 0, block: null}, kept = false, waits = false, drag = null;
    const paint = () => {
      waits = false;
      const ratio = devicePixelRatio, wide = Math.round(canvas.clientWidth * ratio), high = plot.high * ratio;
      if (!wide) return;
      Object.assign(canvas, {width: wide, height: high});
      const inks = inksOf(data.looks, getComputedStyle(canvas).color), pen = canvas.getContext('2d');
      pen.lineWidth = 1.5 * ratio;
      plot.paint(pen, view, wide, Math.round(high), inks, picked);
      scale.textContent = plot.scale(view);
      for (const swatch of keys.querySelectorAll('canvas')) {
        const brush = swatch.getContext('2d');
        brush.fillStyle = inks.fill(brush, swatch.dataset.look);
        brush.fillRect(0, 0, 14, 14);
      }
    };
    const repaint = () => {
      if (!waits) requestAnimationFrame(paint);
      waits = true;
    };
    const pick = (next) => {
      picked = next;
      const stack = picked.block === null ? -1 : data.stack[picked.block];
      const frames = numbers(data.stacks[stack]).map((frame) => data.frames[frame]);
      const own = frames[Math.max(data.own[stack], 0)] || '', [where, what] = plot.words(picked);
      const head = made('p'), list = made('ol', {tabIndex: 0, ariaLabel: 'Its stack, the innermost frame first'});
      head.append(made('b', {textContent: what}), ...own ? [', by ', made('code', {textContent: own})] : []);
      list.append(...frames.map((frame) => made('li', {textContent: frame})));
      readout.replaceChildren(head, ...frames.length ? [list] : [], made('p', {textContent: where}));
      canvas.setAttribute('aria-valuenow', picked.at);
      canvas.setAttribute('aria-valuetext', [what, own, where].filter(Boolean).join(', '));
      repaint();
    };
    const show = (from, to) => {
      const wide = within(to - from, Math.min(plot.least, length), length), left = within(from, 0, length - wide);
      view = {from: left, to: left + wide};
      repaint();
    };
    const zoom = (factor, around) => show(around - (around - view.from) * factor, around + (view.to - around) * factor);
    const middle = () => {
      const isSeen = picked.block !== null && picked.at >= view.from && picked.at < view.to;
      return isSeen ? picked.at : (view.from + view.to) / 2;
    };
    const larger = () => zoom(0.5, middle()), smaller = () => zoom(2, middle()), whole = () => show(0, length);
    const under = (event) => plot.pick(view, event.offsetX, event.offsetY, canvas.clientWidth, plot.high);
    canvas.onpointerdown = (event) => { drag = {x: event.offsetX, moved: false, ...view}; };
    canvas.onpointermove = (event) => {
      const far = event.buttons && drag ? drag.x - event.offsetX : 0;
      if (Math.abs(far) > 3) drag.moved = true;
      const shift = far / canvas.clientWidth * (view.to - view.from);
      if (event.buttons && drag?.moved) show(drag.from + shift, drag.to + shift);
      else if (!kept) pick(under(event));
    };
    canvas.onclick = (event) => {
      if (drag?.moved) return;
      kept = !kept;
      pick(under(event));
    };
    canvas.addEventListener('wheel', (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.5 : 1 / 1.5, under(event).at);
    }, {passive: false});
    canvas.onfocus = () => { if (picked.block === null) pick(plot.first()); };
    const moves = {
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1],
      PageUp: [10, 0], PageDown: [-10, 0], Home: [-Infinity, 0], End: [Infinity, 0],
    };
    const acts = {'+': larger, '=': larger, '-': smaller, 0: whole, Escape: () => { kept = false; }};
    canvas.onkeydown = (event) => {
      const isOurs = event.key in moves || event.key in acts;
      if (!isOurs || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      if (event.key in acts) return acts[event.key]();
      pick(plot.step(picked.block === null ? plot.first() : picked, view, canvas.clientWidth, ...moves[event.key]));
      const half = (view.to - view.from) / 2;
      if (picked.at < view.from || picked.at >= view.to) show(picked.at - half, picked.at + half);
    };
    const about = {role: 'slider', 'aria-label': data.title, 'aria-valuemin': 0, 'aria-valuemax': length, 'aria-valuenow': 0, 'aria-valuetext': 'no block is picked'};
    for (const [name, value] of Object.entries(about)) canvas.setAttribute(name, value);
    canvas.style.height = `${plot.high}px`;
    for (const name of plot.keys) {
      const swatch = made('canvas', {width: 14, height: 14}), key = made('span');
      swatch.dataset.look = name;
      key.append(swatch, data.looks[name][3]);
      keys.append(key);
    }
    const button = (words, title, onclick) => made('button', {type: 'button', textContent: words, title, ariaLabel: title, onclick});
    tools.append(button('+', 'Zoom in', larger), button('−', 'Zoom out', smaller), button('All', 'Show all', whole), scale);
    readout.append(made('p', {textContent: HELP}));
    const stage = made('div', {className: 'stage'}), title = made('p', {className: 'title', textContent: data.title});
    stage.append(title, keys, tools, canvas, readout);
    figure.prepend(stage);
    figure.classList.add('answers');
    new ResizeObserver(repaint).observe(canvas);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', repaint);
  };
  const figures = () => document.querySelectorAll('figure[data-chart]:not([data-begun])').forEach(begin);
  window.casebook.figures = figures;
  new MutationObserver(figures).observe(document.body, {childList: true, subtree: true});
  figures();
})();
