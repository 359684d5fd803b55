'use strict';
// Draws the timeline. Names in the data come from the traced processes: they only ever become textContent.
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const SVG = 'http://www.w3.org/2000/svg';
  const FIRST = 8; // panels drawn at first
  const LEFT = 76, RIGHT = 16, TOP = 66, BOTTOM = 28, ROW = 18, ROWS = 3;
  const whole = { from: data.from_ns, to: Math.max(data.to_ns, data.from_ns + 1) };
  let view = { ...whole };
  let pinned = null;
  const panels = [];

  // ---- words ----

  const digits = (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2));
  function bytes(n) {
    if (n < 1000) return n + ' B';
    const units = ['kB', 'MB', 'GB', 'TB'];
    let x = n / 1000, i = 0;
    while (x >= 999.5 && i < units.length - 1) { x /= 1000; i += 1; }
    return digits(x) + ' ' + units[i];
  }
  function time(ns) {
    if (ns < 1e3) return Math.round(ns) + ' ns';
    if (ns < 999.5e3) return digits(ns / 1e3) + ' µs';
    if (ns < 999.5e6) return digits(ns / 1e6) + ' ms';
    const s = ns / 1e9;
    if (s < 600) return digits(s) + ' s';
    const all = Math.floor;
    return s < 3600 ? all(s / 60) + ' min ' + all(s % 60) + ' s' : all(s / 3600) + ' h ' + all(s / 60 % 60) + ' min';
  }
  // Enough digits to tell ticks apart.
  function tick(ns, step) {
    if (ns === 0) return '0';
    const [unit, name] = whole.to < 1e6 ? [1e3, 'µs'] : whole.to < 1e9 ? [1e6, 'ms'] : [1e9, 's'];
    const places = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
    return (ns / unit).toFixed(Math.min(places, 9)) + ' ' + name;
  }
  const exact = (n) => n.toLocaleString('en-US') + ' B';

  function steps(from, to, about) {
    const rough = Math.max((to - from) / about, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    const all = [];
    for (let at = Math.ceil(from / step) * step; at <= to && all.length < 50; at += step) all.push(at);
    return { step, all };
  }

  // ---- building ----

  function element(name, attributes, text, parent) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    if (text !== undefined && text !== null) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }
  function shape(name, attributes, parent, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }
  const device = (space) => (space.device === null ? 'an unknown device' : 'cuda:' + space.device);
  const source = (space) => (space.source === 'torch' ? "PyTorch's allocator" : "outside PyTorch's allocator");
  const named = (line) => line.line === null ? 'code without a Python line' : line.line + (line.function ? ' ' + line.function : '');

  function panel(space, parent) {
    const section = element('section', {}, null, parent);
    const title = space.name + ' ' + space.pid + ' on ' + device(space) + ', ' + source(space);
    element('h2', {}, title, section);
    const row = element('div', { class: 'row' }, null, section);
    const left = element('div', {}, null, row);
    const svg = shape('svg', { tabindex: '0', role: 'img' }, left);
    svg.setAttribute('aria-label', 'Memory over time: ' + title + '. Arrow keys move, plus and minus zoom, 0 resets.');
    const who = element('div', { class: 'who', 'aria-live': 'polite' }, null, row);
    const marks = element('ol', { class: 'marks' }, null, left);
    const made = { space, svg, who, at: null, chosen: null, rest: fullest(space) };
    for (const mark of space.marks) {
      const button = element('button', { type: 'button', class: mark.kind }, time(mark.at_ns) + '  ' + mark.text,
        element('li', {}, null, marks));
      button.addEventListener('click', () => pin(mark.at_ns));
    }
    listen(made);
    panels.push(made);
    return made;
  }

  // A panel shows the time of its peak until the user points at another.
  function fullest(space) {
    const peak = space.marks.find((mark) => mark.kind === 'peak');
    if (peak) return peak.at_ns;
    const points = space.points;
    return points.length ? points.reduce((most, point) => (point.allocated > most.allocated ? point : most)).at_ns : null;
  }

  // ---- one panel's drawing ----

  function visible(space) {
    const points = space.points;
    let first = index(space, view.from), last = index(space, view.to);
    return { first: Math.max(first, 0), last, points };
  }
  // The index of the point at a time; -1 before the first.
  function index(space, at) {
    let low = 0, high = space.points.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (space.points[middle].at_ns <= at) low = middle + 1; else high = middle;
    }
    return low - 1;
  }
  function end(space, i) {
    const points = space.points;
    if (i + 1 < points.length) return points[i + 1].at_ns;
    const width = points.length > 1 ? points[1].at_ns - points[0].at_ns : 0;
    return Math.min(points[i].at_ns + width, whole.to);
  }

  function draw(one) {
    const { svg, space } = one;
    const width = svg.clientWidth || 900, height = svg.clientHeight || 340;
    svg.replaceChildren();
    svg.setAttribute('viewBox', '0 0 ' + width + ' ' + height);
    const { first, last, points } = visible(space);
    // The device's memory is drawn unless it would flatten the process's own curves: other processes may fill the device.
    let own = 1, seen = 0;
    for (let i = first; i <= last; i += 1) {
      own = Math.max(own, points[i].allocated, points[i].reserved);
      seen = Math.max(seen, points[i].device_used || 0);
    }
    const inSight = (n) => n !== null && n <= 4 * own;
    const total = inSight(space.device_total) ? space.device_total : null;
    const most = Math.max(own, inSight(seen) ? seen : 0, total || 0) * 1.05;
    const beyond = [];
    if (seen && !inSight(seen)) beyond.push('device used, ' + bytes(seen));
    if (space.device_total !== null && total === null) beyond.push('device total, ' + bytes(space.device_total));
    const x = (at) => LEFT + (Math.min(Math.max(at, view.from), view.to) - view.from) / (view.to - view.from) * (width - LEFT - RIGHT);
    const y = (n) => height - BOTTOM - n / most * (height - TOP - BOTTOM);
    Object.assign(one, { x, width, height });
    axes(svg, { x, y, most, width, height });
    if (last >= first && points.length) curves(one, { x, y, first, last, floor: height - BOTTOM, withDevice: inSight(seen) });
    if (total !== null) shape('line', { class: 'total', x1: LEFT, x2: width - RIGHT, y1: y(total), y2: y(total) }, svg);
    if (beyond.length) {
      shape('text', { x: LEFT + 6, y: TOP + 14 }, svg, 'off the scale: ' + beyond.join('; '));
    }
    drawMarks(one, { x, y, width, height });
    one.cursor = shape('line', { class: 'cursor', y1: TOP - ROW * ROWS, y2: height - BOTTOM, visibility: 'hidden' }, svg);
    show(one, one.at);
  }

  function axes(svg, { x, y, most, width, height }) {
    for (const n of steps(0, most, 6).all) {
      shape('line', { class: 'grid', x1: LEFT, x2: width - RIGHT, y1: y(n), y2: y(n) }, svg);
      shape('text', { x: LEFT - 8, y: y(n) + 4, 'text-anchor': 'end' }, svg, n === 0 ? '0' : bytes(n));
    }
    const times = steps(view.from, view.to, Math.max(3, Math.floor(width / 130)));
    for (const at of times.all) {
      shape('line', { class: 'axis', x1: x(at), x2: x(at), y1: height - BOTTOM, y2: height - BOTTOM + 5 }, svg);
      const anchor = x(at) > width - 50 ? 'end' : 'middle';
      shape('text', { x: x(at), y: height - 8, 'text-anchor': anchor }, svg, tick(at, times.step));
    }
    shape('line', { class: 'axis', x1: LEFT, x2: width - RIGHT, y1: height - BOTTOM, y2: height - BOTTOM }, svg);
  }

  function curves({ svg, space }, { x, y, first, last, floor, withDevice }) {
    const points = space.points;
    const walk = (value) => {
      const path = [];
      for (let i = first; i <= last; i += 1) {
        const at = y(value(points[i])).toFixed(1);
        path.push(x(points[i].at_ns).toFixed(1) + ' ' + at, x(end(space, i)).toFixed(1) + ' ' + at);
      }
      return path;
    };
    const most = walk((point) => point.allocated), least = walk((point) => point.allocated_least).reverse();
    const edge = (i) => most[i].split(' ')[0];
    shape('path', { class: 'under', d: 'M' + most.join('L') + 'L' + edge(most.length - 1) + ' ' + floor + 'L' + edge(0) + ' ' + floor + 'Z' }, svg);
    shape('path', { class: 'between', d: 'M' + most.concat(least).join('L') + 'Z' }, svg);
    const samples = [];
    for (let i = first; withDevice && i <= last; i += 1) {
      if (points[i].device_used !== null) samples.push([x(points[i].at_ns), y(points[i].device_used)]);
    }
    if (samples.length) shape('path', { class: 'device', d: 'M' + samples.map((sample) => sample.join(' ')).join('L') }, svg);
    for (const [cx, cy] of samples) shape('circle', { class: 'sample', cx, cy, r: 2.5 }, svg);
    if (space.source === 'torch') shape('path', { class: 'reserved', d: 'M' + walk((point) => point.reserved).join('L') }, svg);
    shape('path', { class: 'allocated', d: 'M' + most.join('L') }, svg);
  }

  function drawMarks({ svg, space }, { x, y, width, height }) {
    const free = new Array(ROWS).fill(0);
    for (const mark of space.marks) {
      if (mark.at_ns < view.from || mark.at_ns > view.to) continue;
      const at = x(mark.at_ns), length = mark.text.length * 7.3;
      // Left of its line if there is no room on the right.
      const start = Math.max(LEFT, at + 5 + length > width - RIGHT ? at - 5 - length : at + 5);
      const row = free.findIndex((taken) => taken <= start);
      const top = row < 0 ? TOP : TOP - ROW * (ROWS - row) + 2;
      shape('line', { class: 'mark ' + mark.kind, x1: at, x2: at, y1: top, y2: height - BOTTOM }, svg);
      if (row < 0) continue;
      free[row] = start + length + 12;
      shape('text', { class: mark.kind, x: start, y: top + 11 }, svg, mark.text);
    }
  }

  // ---- what was live ----

  function show(one, pointed) {
    one.at = pointed;
    const at = pointed === null ? one.rest : pointed;
    const { space, who, cursor } = one;
    who.replaceChildren();
    const inside = at !== null && at >= view.from && at <= view.to;
    cursor.setAttribute('visibility', inside ? 'visible' : 'hidden');
    if (inside) { cursor.setAttribute('x1', one.x(at)); cursor.setAttribute('x2', one.x(at)); }
    if (at === null) { element('p', { class: 'faint' }, 'Hover over a time to see live memory by line.', who); return; }
    const i = index(space, at);
    if (i < 0) { element('p', { class: 'faint' }, time(at) + ': nothing was allocated yet.', who); return; }
    const point = space.points[i];
    const table = element('table', {}, null, who);
    const line = (name, n) => {
      const row = element('tr', {}, null, table);
      element('td', {}, name, row);
      const cell = element('td', {}, n === null ? 'unknown' : bytes(n), row);
      if (n !== null) element('div', { class: 'exact' }, exact(n), cell);
    };
    const row = element('tr', {}, null, table);
    element('td', {}, 'time', row);
    element('td', {}, time(at) + (pointed === null ? ', the peak' : ''), row);
    line('in use, maximum', point.allocated);
    if (space.source === 'torch') line('reserved by PyTorch', point.reserved);
    line('device used, all', used(space, i));
    element('h3', {}, 'Live, by line', who);
    const largest = Math.max(1, ...point.live.map((held) => held[1]), point.others, point.unseen);
    for (const [number, n] of point.live) holder(who, named(space.lines[number]), n, largest);
    if (point.allocated === 0) element('p', { class: 'faint' }, 'nothing', who);
    if (point.others > 0) holder(who, 'other lines', point.others, largest);
    if (point.unseen > 0) holder(who, 'pre-existing or lost', point.unseen, largest);
  }
  // NVML is sampled once a second: the last sample counts.
  function used(space, i) {
    for (let k = i; k >= 0; k -= 1) if (space.points[k].device_used !== null) return space.points[k].device_used;
    return null;
  }
  function holder(who, name, n, largest) {
    const made = element('div', { class: 'holder' }, null, who);
    const words = element('div', {}, null, made);
    element('span', {}, name, words);
    element('span', { title: exact(n) }, bytes(n), words);
    element('div', { class: 'bar' }, null, made).style.width = (100 * n / largest) + '%';
  }

  // ---- moving ----

  const redraw = () => panels.forEach(draw);
  function look(at) { panels.forEach((one) => show(one, at)); }
  function zoom(from, to) {
    const least = Math.max(1000, (whole.to - whole.from) / 1e5);
    const span = Math.min(Math.max(to - from, least), whole.to - whole.from);
    const start = Math.min(Math.max(from, whole.from), whole.to - span);
    view = { from: start, to: start + span };
    redraw();
  }
  function pin(at) {
    pinned = Math.min(Math.max(at, whole.from), whole.to);
    if (pinned < view.from || pinned > view.to) zoom(pinned - (view.to - view.from) / 2, pinned + (view.to - view.from) / 2);
    look(pinned);
    try { history.replaceState(null, '', '#t=' + (pinned / 1e9)); } catch { /* the page may not have an address */ }
  }
  function timeAt(one, event) {
    const box = one.svg.getBoundingClientRect();
    const part = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    return view.from + Math.min(Math.max(part, 0), 1) * (view.to - view.from);
  }

  function listen(one) {
    const { svg } = one;
    let begun = null, chosen = null;
    svg.addEventListener('pointerdown', (event) => {
      if (event.button !== 0) return;
      begun = { at: timeAt(one, event), x: event.clientX };
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener('pointermove', (event) => {
      const at = timeAt(one, event);
      look(at);
      if (!begun || Math.abs(event.clientX - begun.x) < 4) return;
      if (!chosen) chosen = shape('rect', { class: 'chosen', y: TOP - ROW * ROWS, height: one.height - BOTTOM - TOP + ROW * ROWS }, svg);
      const from = Math.min(begun.at, at), to = Math.max(begun.at, at);
      chosen.setAttribute('x', one.x(from));
      chosen.setAttribute('width', one.x(to) - one.x(from));
    });
    svg.addEventListener('pointerup', (event) => {
      if (!begun) return;
      const from = begun.at, to = timeAt(one, event), moved = chosen !== null;
      begun = null;
      chosen = null;
      if (moved) zoom(Math.min(from, to), Math.max(from, to)); else pin(to);
    });
    svg.addEventListener('pointerleave', () => { if (!begun) look(pinned); });
    svg.addEventListener('dblclick', () => zoom(whole.from, whole.to));
    svg.addEventListener('wheel', (event) => {
      event.preventDefault();
      around(timeAt(one, event), Math.exp(Math.sign(event.deltaY) * 0.25));
    }, { passive: false });
    svg.addEventListener('keydown', (event) => { if (key(one, event)) event.preventDefault(); });
  }
  function around(at, factor) {
    zoom(at - (at - view.from) * factor, at + (view.to - at) * factor);
  }
  function key(one, event) {
    const points = one.space.points, span = view.to - view.from;
    const here = one.at === null ? (view.from + view.to) / 2 : one.at;
    const go = (by) => {
      const i = Math.min(Math.max(index(one.space, here) + by, 0), points.length - 1);
      if (points.length) pin(Math.max(points[i].at_ns, whole.from));
    };
    switch (event.key) {
      case 'ArrowLeft': if (event.shiftKey) zoom(view.from - span / 4, view.to - span / 4); else go(-1); return true;
      case 'ArrowRight': if (event.shiftKey) zoom(view.from + span / 4, view.to + span / 4); else go(1); return true;
      case 'Home': go(-points.length); return true;
      case 'End': go(points.length); return true;
      case '+': case '=': around(here, 0.7); return true;
      case '-': around(here, 1 / 0.7); return true;
      case '0': case 'Escape': zoom(whole.from, whole.to); return true;
      default: return false;
    }
  }

  // ---- the page ----

  const run = data.run.split('/').pop();
  document.title = 'GPU memory of ' + run;
  document.getElementById('title').textContent = 'GPU memory of ' + run;
  document.getElementById('verdict').textContent = data.verdict;
  for (const finding of data.findings) {
    const item = element('li', { class: finding.severity }, finding.title, document.getElementById('findings'));
    const fixes = element('ul', {}, null, item);
    for (const fix of finding.fixes) element('li', { class: 'fix' }, 'Fix: ' + fix, fixes);
  }
  document.getElementById('when').textContent = 'The run started at ' + new Date(data.start_unix_ns / 1e6).toISOString() +
    '. Shown: ' + (data.from_ns ? time(data.from_ns) : '0') + ' to ' + time(data.to_ns) + '.';
  const main = document.getElementById('panels');
  if (!data.spaces.length) element('p', {}, 'No process allocated GPU memory in this time.', main);
  data.spaces.slice(0, FIRST).forEach((space) => panel(space, main));
  if (data.spaces.length > FIRST) {
    const more = element('button', { type: 'button' }, 'and ' + (data.spaces.length - FIRST) + ' more', main);
    more.addEventListener('click', () => {
      more.remove();
      data.spaces.slice(FIRST).forEach((space) => draw(panel(space, main)));
    });
  }
  const some = (has) => data.spaces.some(has);
  const legend = (name, there) => { document.querySelector('.legend .' + name).hidden = !there; };
  legend('reserved', some((space) => space.source === 'torch'));
  legend('device', some((space) => space.points.some((point) => point.device_used !== null)));
  legend('total', some((space) => space.device_total !== null));
  redraw();
  // #t=1.25 shows live memory at 1.25 s.
  const asked = /^#t=([0-9.]+)$/.exec(location.hash);
  if (asked && Number.isFinite(Number(asked[1]))) pin(Number(asked[1]) * 1e9);
  window.addEventListener('resize', redraw);
  document.documentElement.dataset.drawn = 'yes';
})();
