/* draw.js: what a page is made of: elements, numbers, tables, plots and heat maps. Text is only ever text: every string of a
 * document becomes a text node or an attribute, never markup. SPDX-License-Identifier: MIT */
'use strict';

/* ---- Elements ---- */

const NONE = '\u2013', PLUS_MINUS = '\u00b1', LINE_BREAKS_BEFORE = ' ' + PLUS_MINUS + '\u00a0';
const COLOURS = 7;

/* Strings and nodes go inside, objects of the script are attributes; `tip` is what hovering shows: a list of lines. What comes out
 * of a document (its objects have a prototype of their own) is text, whatever it is. */
function fill(element, inside) {
  for (const x of inside.flat(Infinity)) {
    if (x === null || x === undefined || x === '' || x === false) continue;
    if (x instanceof Node) element.append(x);
    else if (typeof x !== 'object') element.append(String(x));
    else if (Object.getPrototypeOf(x) !== Object.prototype) element.append(JSON.stringify(x));
    else for (const [key, value] of Object.entries(x)) {
      if (key === 'tip') element.tip = value;
      else if (value !== undefined && value !== false) element.setAttribute(key, value === true ? '' : value);
    }
  }
  return element;
}

/* el('p.says.soft', 'text', {id: 'x'}): a paragraph of two classes. */
function el(what, ...inside) {
  const [name, ...classes] = what.split('.');
  return fill(document.createElement(name), [classes.length ? {class: classes.join(' ')} : '', inside]);
}

function svg(what, ...inside) {
  const [name, ...classes] = what.split('.');
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  return fill(element, [classes.length ? {class: classes.join(' ')} : '', inside]);
}

function fold(summary, ...inside) {
  return el('details', el('summary', summary), inside);
}

/* ---- Members of documents ---- */

/* at(o, 'metrics.kld_nats'): undefined where any part is missing. */
function at(object, path) {
  return path.split('.').reduce((o, key) => (o === null || o === undefined ? undefined : o[key]), object);
}

function number(object, path) {
  const x = at(object, path);
  return typeof x === 'number' ? x : NaN;
}

/* Texts in which a document has nothing are ''. */
function text(object, path) {
  const x = at(object, path);
  return typeof x === 'string' ? x : '';
}

function list(object, path) {
  const x = at(object, path);
  return Array.isArray(x) ? x : [];
}

function isObject(x) {
  return typeof x === 'object' && x !== null && !Array.isArray(x);
}

function lastPart(path) {
  return path.replace(/(.)\/+$/, '$1').replace(/.*\/(?=.)/, '');
}

function unique(values) {
  return [...new Set(values)];
}

function ascending(a, b) {
  return a - b;
}

/* ---- Numbers as text ---- */

function power(x) {
  return Math.floor(Math.log10(Math.abs(x)));
}

/* As printf has it: an exponent of at least two digits. */
function scientific(x, digits) {
  return x.toExponential(digits).replace(/e([+-])(\d)$/, 'e$10$2');
}

/* As printf rounds: of two that are as near, the even one. */
function rounded(x, digits) {
  const up = x.toFixed(digits), exact = x.toFixed(Math.min(100, digits + 60));
  const tie = /^50*$/.test(exact.slice(exact.indexOf('.') + 1 + digits));
  return tie && up.slice(-1) % 2 ? (x - Math.sign(x) * 10 ** -digits * 0.25).toFixed(digits) : up;
}

function fixed(x, digits) {
  return Number.isFinite(x) ? rounded(x, digits) : NONE;
}

/* So many significant digits, zeros at the end left out. */
function general(x, digits) {
  if (!Number.isFinite(x)) return NONE;
  if (x === 0) return '0';
  const p = Number(x.toExponential(digits - 1).split('e')[1]);
  const cut = s => (s.includes('.') ? s.replace(/\.?0+$/, '') : s);
  if (p >= -4 && p < digits) return cut(rounded(x, digits - 1 - p));
  const [mantissa, exponent] = scientific(x, digits - 1).split('e');
  return cut(mantissa) + 'e' + exponent;
}

function signed(x, form, digits) {
  return (x >= 0 ? '+' : '') + form(x, digits);
}

/* A value and its error, with two digits of the error; four significant digits where there is none. */
function value(x, error) {
  if (!Number.isFinite(x)) return NONE;
  if (Number.isFinite(error) && error > 0) {
    const digits = Math.max(0, 1 - power(error));
    if (digits <= 5) return rounded(x, digits) + LINE_BREAKS_BEFORE + rounded(error, digits);
    const more = x !== 0 ? power(x) - power(error) + 1 : 1;
    return scientific(x, Math.min(6, Math.max(0, more))) + LINE_BREAKS_BEFORE + scientific(error, 1);
  }
  const size = Math.abs(x);
  if (x !== 0 && (size < 1e-3 || size >= 1e6)) return scientific(x, 2);
  return rounded(x, size >= 1000 ? 1 : size >= 10 ? 2 : 4);
}

function count(x) {
  return fixed(x, 0);
}

function yes(x) {
  return x === true ? 'yes' : '';
}

/* Of {value, stderr}. */
function measured(m) {
  return value(number(m, 'value'), number(m, 'stderr'));
}

/* The same; where nothing differs, so that there is no standard error, an end of the interval. */
function bounded(m) {
  const [x, low, high] = [number(m, 'value'), number(m, 'interval.0'), number(m, 'interval.1')];
  if (number(m, 'stderr') !== 0 || Number.isNaN(x + low + high)) return measured(m);
  return high <= x ? `${fixed(x, 4)} (\u2265 ${fixed(low, 4)})` : `${fixed(x, 4)} (\u2264 ${fixed(high, 4)})`;
}

/* Of {delta, stderr}. */
function difference(d) {
  return value(number(d, 'delta'), number(d, 'stderr'));
}

function both(ends, form) {
  const [low, high] = [number(ends, '0'), number(ends, '1')];
  return Number.isNaN(low + high) ? NONE : el('span', form(low) + ' to ' + form(high));
}

function interval(ends) {
  return both(ends, x => signed(x, fixed, 4));
}

function ends(pair) {
  return both(pair, x => general(x, 3));
}

function signedEnds(pair) {
  return both(pair, x => signed(x, general, 3));
}

/* ---- Tables ---- */

const numbered = {Figure: 0, Table: 0};
const ROWS_SHOWN = 12;

function caption(kind, words) {
  return el('figcaption', el('b', `${kind} ${++numbered[kind]}.`), ' ', words);
}

/* A cell of whatever a document holds. */
function cell(x) {
  if (typeof x === 'number') return value(x);
  if (typeof x === 'boolean') return x ? 'yes' : 'no';
  if (x === null || x === undefined || x === '') return NONE;
  return Array.isArray(x) ? JSON.stringify(x) : x;
}

/* A column is [title, path or function of the row, form of what that gives]. A title that begins with '<' stands to the left;
 * with '^' too, and what the row before has already is left out. Longer tables fold. */
function table(words, columns, rows, {foldable = true} = {}) {
  if (!rows.length) return null;
  const left = columns.map(c => '<^'.includes(c[0][0]));
  const head = columns.map((c, k) => el(left[k] ? 'th.l' : 'th', {scope: 'col'}, left[k] ? c[0].slice(1) : c[0]));
  let before = [];
  const body = rows.map((row, i) => {
    let again = i > 0;
    const shown = columns.map(([, what, form = cell]) =>
      form(typeof what === 'function' ? what(row, i) : at(row, what)));
    const cells = shown.map((x, k) => {
      if (columns[k][0][0] === '^') again = again && x === before[k];
      return el(left[k] ? 'td.l' : 'td', columns[k][0][0] === '^' && again ? '' : x);
    });
    before = shown;
    return el('tr', cells);
  });
  const numbers = caption('Table', words);
  const box = el('div.scroll', {tabindex: 0, role: 'region', 'aria-label': `Table ${numbered.Table}`},
    el('table', el('thead', el('tr', head)), el('tbody', body)));
  return el('figure.table', numbers, foldable && rows.length > ROWS_SHOWN ? fold(`${rows.length} rows`, box) : box);
}

/* A bar from 0, over it a thin one from low to high; all shares of 1. */
function bar(share, low, high) {
  const percent = x => (100 * Math.min(1, Math.max(0, x || 0))).toFixed(2);
  return el('div.bar', {'aria-hidden': 'true'}, el('i', {style: `width:${percent(share)}%`}),
    el('b', {style: `left:${percent(low)}%;width:${percent(percent(high) / 100 - percent(low) / 100)}%`}));
}

/* Numbers by row and column, darker where they are larger. shade 'share': of 1; 'value': of the largest; 'logarithm'; 'kind':
 * a letter and a colour. Cells are {row, column, x, shown, bold, word, tip}. */
const KINDS_OF_HEADS = ['retrieval', 'sink', 'local', 'mixed'];
const CELLS_MAX = 1 << 17;

function heat(title, words, {corner, cells, shade, order = ascending, data = {}, small = false, columnName = String}) {
  const rows = unique(cells.map(c => c.row)), columns = unique(cells.map(c => c.column)).sort(order);
  if (!cells.length) return null;
  if (rows.length * columns.length > CELLS_MAX)
    return el('p', `${title}: ${rows.length} rows of ${columns.length} cells are too many for a map.`);
  const at = new Map(cells.map(c => [c.row + '\n' + c.column, c]));
  const scaled = shade === 'logarithm' ? x => (x > 0 ? Math.log(x) : NaN) : x => x;
  const known = cells.map(c => scaled(c.x)).filter(Number.isFinite);
  const low = shade === 'logarithm' ? known.reduce((a, b) => Math.min(a, b), Infinity) : 0;
  const high = shade === 'share' ? 1 : known.reduce((a, b) => Math.max(a, b), -Infinity);
  const one = c => {
    if (shade === 'kind') {
      const k = KINDS_OF_HEADS.indexOf(c && c.x);
      return k < 0 ? el('td.k3', NONE) : el(`td.k${k}`, c.x[0].toUpperCase(), {tip: c.tip});
    }
    const v = Math.min(1, Math.max(0, c && high > low ? (scaled(c.x) - low) / (high - low) : 0)) || 0;
    const shown = c ? c.shown || inFourCharacters(c.x) : NONE;
    return el(v > 0.78 ? 'td.hi' : 'td', {style: `--v:${v.toFixed(2)}`, tip: c && c.tip},
      c && c.bold ? el('b', shown) : shown,
      c && c.word ? [el('br'), c.word] : '');
  };
  return el('figure', caption('Figure', [title, ': ', words]),
    el('div.scroll', {tabindex: 0, role: 'region', 'aria-label': title},
      el(small ? 'table.heat.small' : 'table.heat', data,
        el('thead', el('tr', el('th', {scope: 'col'}, corner),
          columns.map(k => el('th', {scope: 'col'}, columnName(k))))),
        el('tbody', rows.map(r => el('tr', el('th', {scope: 'row'}, r),
          columns.map(k => one(at.get(r + '\n' + k)))))))));
}

function inFourCharacters(x) {
  const size = Math.abs(x);
  if (!Number.isFinite(x)) return NONE;
  if (size >= 9999.5 || (size < 0.005 && size > 0)) return scientific(x, 0);
  return x.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

/* ---- Plots ---- */

/* Around (0, 0): filled marks, then open ones. */
const MARKS = ['M4 0A4 4 0 1 1-4 0A4 4 0 1 1 4 0z', 'M-3.6-3.6H3.6V3.6H-3.6z', 'M0-5.2L-4.6 3H4.6z',
  'M0 5.2L-4.6-3H4.6z',
  'M0-5.2L4.6 0L0 5.2L-4.6 0z', 'M3.8 0A3.8 3.8 0 1 1-3.8 0A3.8 3.8 0 1 1 3.8 0z', 'M-3.4-3.4H3.4V3.4H-3.4z'];
const DASHES = ['', '7 4', '2 3', '7 3 2 3'];

function mark(style, place, tip) {
  const k = (style.mark || 0) % MARKS.length;
  return svg(k > 4 ? 'path.mark.open' : 'path.mark',
    {d: MARKS[k], transform: `translate(${place})${style.small ? 'scale(.6)' : ''}`,
    tip});
}

function colourOf(style) {
  return `s${(style.colour || 0) % COLOURS}`;
}

function legend(items) {
  return el('ul.legend', items.map(s => el('li',
    svg(`svg.${colourOf(s)}`, {viewBox: '0 0 34 12', 'aria-hidden': 'true'},
      s.swatch ? svg('path', {d: 'M11 0H23V12H11z', fill: 'currentColor'})
        : [s.line === false ? '' : svg('path', {d: 'M1 6H33', stroke: 'currentColor', 'stroke-width': 2,
          'stroke-dasharray': DASHES[(s.dash || 0) % DASHES.length]}), mark(s, '17 6')]),
    el('span', s.name))));
}

/* What lies beyond has no place in a picture. */
function drawable(x) {
  return Number.isFinite(x) && (x === 0 || Math.abs(Math.log10(Math.abs(x))) < 100);
}

function superscript(n) {
  return '10' + String(n).replace(/[-0-9]/g,
    c => (c === '-' ? '\u207b' : '\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079'[c]));
}

function linearTicks(low, high, whole, most) {
  const raw = (high - low) / most, unit = 10 ** power(raw);
  let step = unit * [1, 2, 5, 10].find(k => k * unit >= raw * 0.999);
  if (whole) step = Math.max(1, step);
  const first = Math.ceil(low / step - 1e-9), n = Math.min(50, Math.floor(high / step + 1e-9) - first + 1);
  return labelled(Array.from({length: Math.max(0, n)}, (_, i) => (first + i) * step));
}

/* Places with labels of as many digits as tell them apart. */
function labelled(places) {
  for (let digits = 3; digits < 17; digits++) {
    const labels = places.map(x => (Math.abs(x) >= 1e5 || (x !== 0 && Math.abs(x) < 1e-3) ? general(x, digits)
      : general(x, Math.max(digits, 1 + power(x || 1)))));
    if (new Set(labels).size === places.length) return places.map((x, i) => [x, labels[i]]);
  }
  return places.map(x => [x, String(x)]);
}

/* Whole decades where there are three; else steps within them, else even ones. */
function logTicks(low, high) {
  const p = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)], step = Math.ceil((p[1] - p[0] + 1) / 8);
  const decades = [];
  for (let k = p[0]; k <= p[1]; k++) if (k % step === 0) decades.push(k);
  if (decades.length >= 3) return decades.map(k =>
    [10 ** k, k < -3 || k > 4 ? superscript(k) : general(10 ** k, 1 + Math.max(0, k))]);
  for (const steps of [[1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9]]) {
    const places = [];
    for (let k = p[0] - 1; k <= p[1]; k++) places.push(...steps.map(s => s * 10 ** k).filter(x => x >= low && x <= high));
    if (places.length >= 3) return labelled(places.length > 9 ? places.filter((_, i) => i % 2 === 0) : places);
  }
  return linearTicks(low, high, false, 5);
}

/* Tokens: powers of 2 where there are three. */
function tokenTicks(low, high) {
  const ticks = [];
  for (let x = 2 ** Math.ceil(Math.log2(low) - 1e-9); x <= high; x *= high / low > 64 ? 4 : 2)
    ticks.push([x, x >= 1024 && x % 1024 === 0 ? `${x / 1024}K` : general(x, 4)]);
  return ticks.length >= 3 ? ticks : linearTicks(low, high, true, 5);
}

/* An axis {label, log: true or 2, range, ticks, clip: [least, most], zero, whole} over values: where x lies from 0 to 1. */
function scaleOf(axis, values) {
  let [low, high] = values.reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [Infinity, -Infinity]);
  if (!(high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high)))) high = low; /* sums in another order are equal */
  if (axis.range) [low, high] = axis.range;
  else if (axis.log) {
    const room = axis.log === 2 ? 1.1 : axis.room || Math.max(1.05, (high / low) ** 0.06);
    [low, high] = low < high || axis.room ? [low / room, high * room] : [low / 2, high * 2];
  } else {
    if (axis.zero) [low, high] = [Math.min(0, low), Math.max(0, high)];
    const room = high > low ? 0.06 * (high - low) : Math.abs(high) / 10 || 1;
    low = axis.zero && low === 0 ? 0 : low - room;
    high += room;
    if (axis.clip) [low, high] = [Math.max(axis.clip[0], low), Math.min(axis.clip[1] + 0.3 * room, high)];
  }
  const f = axis.log ? Math.log : x => x;
  return {
    place: x => (f(x) - f(low)) / (f(high) - f(low)), low, high,
    ticks: (axis.ticks || (axis.log === 2 ? tokenTicks(low, high) : axis.log ? logTicks(low, high)
      : linearTicks(low, high, axis.whole, axis.most || 6))).filter(([x]) => x >= low && x <= high * (1 + 1e-9)),
  };
}

function path(points) {
  return points.map(([x, y], i) => (i ? 'L' : 'M') + x.toFixed(1) + ' ' + y.toFixed(1)).join('');
}

/* Series are {name, colour, mark, dash, line, small, points: [{x, y, lo, hi, far, tip}], band: [{x, lo, hi}]}: a line of
 * marks with bars from lo to hi and a dotted reach up to `far`. Rings are points; `level` is a dotted line. */
function plot(words, {x, y, series, rings = [], level, wide = 460, high = 280, withLegend = true, before}) {
  const shown = series.map(s => ({...s, points: s.points.filter(p => drawable(p.x) && drawable(p.y)
    && (!y.log || p.y > 0) && (!x.log || p.x > 0))}))
    .filter(s => s.points.length);
  const points = shown.flatMap(s => s.points), there = new Set(shown.map(s => s.name));
  const names = withLegend ? legend(series.filter(s => s.name && (there.has(s.name) || !points.length))) : '';
  if (!points.some(p => drawable(p.lo) && drawable(p.hi))) words = [words].flat().map(w =>
    (typeof w === 'string' ? w.replace(/ Bars are [^.]*\./, '').replace(/; bars are [^;.]*/, '') : w));
  if (!points.length)
    return el('figure', before, el('p.soft', 'No value that could be drawn.'), names, caption('Figure', words));
  const heights = points.flatMap(p => [p.y, p.lo, p.hi,
    p.far]).concat(shown.flatMap(s => (s.band || []).flatMap(p => [p.lo, p.hi])),
    level === undefined ? [] : [level]);
  const sx = scaleOf(x, points.map(p => p.x)), sy = scaleOf(y, heights.filter(v => drawable(v) && (!y.log || v > 0)));
  const left = 26 + 7.2 * Math.max(...sy.ticks.map(t => t[1].length), 1), right = wide - 12, top = 10,
    bottom = high - 44;
  const px = v => left + (right - left) * sx.place(v),
    py = v => bottom - (bottom - top) * sy.place(Math.max(v, y.log ? sy.low : v));
  const draw = s => svg(`g.${colourOf(s)}`,
    s.band && s.band.length > 1 && svg('path.band',
      {d: path([...s.band.map(p => [px(p.x), py(p.hi)]), ...s.band.map(p => [px(p.x), py(p.lo)]).reverse()]) + 'z'}),
    s.points.map(p => [
      drawable(p.lo) && drawable(p.hi) && svg('path.error',
        {d: `M${px(p.x).toFixed(1)} ${py(p.lo).toFixed(1)}V${py(p.hi).toFixed(1)}m-3 0h6M${(px(p.x) - 3).toFixed(1)} ` +
        `${py(p.lo).toFixed(1)}h6`}),
      drawable(p.far) && [svg('path.reach', {d: `M${px(p.x).toFixed(1)} ` +
        `${py(p.y).toFixed(1)}V${py(p.far).toFixed(1)}`}),
        mark({mark: 6, small: true}, `${px(p.x).toFixed(1)} ${py(p.far).toFixed(1)}`)],
    ]),
    s.line !== false && s.points.length > 1 && svg('path.line',
      {d: path(s.points.map(p => [px(p.x), py(p.y)])), 'stroke-dasharray': DASHES[(s.dash || 0) % DASHES.length]}),
    s.points.map(p => mark(s, `${px(p.x).toFixed(1)} ${py(p.y).toFixed(1)}`, p.tip)));
  const middle = (top + bottom) / 2;
  return el('figure', before,
    svg('svg.plot', {viewBox: `0 0 ${wide} ${high}`, role: 'img',
      'aria-label': [words].flat().filter(w => typeof w === 'string').join('')},
      sy.ticks.map(([v, label]) => [svg('path.grid', {d: `M${left} ${py(v).toFixed(1)}H${right}`}),
        svg('text', {x: left - 6, y: (py(v) + 4.5).toFixed(1), 'text-anchor': 'end'}, label)]),
      sx.ticks.map(([v, label]) => [svg('path.axis', {d: `M${px(v).toFixed(1)} ${bottom}v5`}),
        svg('text', {x: px(v).toFixed(1), y: bottom + 19, 'text-anchor': 'middle'}, label)]),
      svg('path.axis', {d: `M${left} ${top}V${bottom}H${right}`}),
      !y.log && sy.low < 0 && sy.high > 0 && svg('path.axis', {d: `M${left} ${py(0).toFixed(1)}H${right}`}),
      svg('text', {x: (left + right) / 2, y: high - 7, 'text-anchor': 'middle'}, x.label || ''),
      svg('text', {transform: `translate(13 ${middle})rotate(-90)`, 'text-anchor': 'middle'}, y.label || ''),
      level !== undefined && svg('path.level', {d: `M${left} ${py(level).toFixed(1)}H${right}`}),
      rings.filter(p => drawable(p.x) && drawable(p.y)
        && (!y.log || p.y > 0)).map(p => svg('circle.ring', {cx: px(p.x).toFixed(1), cy: py(p.y).toFixed(1), r: 8})),
      shown.map(draw)),
    names, caption('Figure', words));
}

/* ---- Axes that many plots share ---- */

function layerAxis(last) {
  let step = 1;
  while (last / step > 12) step *= 2;
  const ticks = [];
  for (let k = 0; k <= last; k += step) ticks.push([k, String(k)]);
  return {label: 'layer', range: [-0.4 * step, last + 0.4 * step], ticks};
}

/* One for each of a few things, evenly spaced. */
function stepAxis(label, names) {
  return {label, range: [-0.35, names.length - 0.65], ticks: names.map((name, k) => [k, name])};
}

const LOSS = {label: 'KL divergence, nats per token', log: true};
const SHARE_OF_CACHE = {label: 'bytes held / bytes of a 16-bit cache of all tokens', log: true};

function scoreAxis(metric) {
  return {label: metric === 'exact_match' ? 'exact match' : 'accuracy', clip: [0, 1]};
}

/* A point of {value, stderr}: the bar is one standard error. */
function pointOf(x, metric, tip) {
  const [y, error] = [number(metric, 'value'), number(metric, 'stderr')];
  return {x, y, lo: error > 0 ? y - error : NaN, hi: error > 0 ? y + error : NaN, tip};
}

/* ---- What hovering shows ---- */

function showTips() {
  const tip = el('div', {id: 'tip', hidden: true});
  document.body.append(tip);
  document.addEventListener('pointermove', e => {
    let target = e.target;
    while (target && !target.tip) target = target.parentElement;
    tip.hidden = !target;
    if (!target || !Array.isArray(target.tip)) return;
    tip.replaceChildren(...target.tip.filter(line => line !== '' && line !== undefined).map(
      line => el(typeof line === 'string' && line.startsWith('dq ') ? 'div.command' : 'div', line)));
    tip.style.left = Math.max(4, Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8)) + 'px';
    const below = e.clientY + 18 + tip.offsetHeight < innerHeight;
    tip.style.top = (below ? e.clientY + 18 : Math.max(4, e.clientY - tip.offsetHeight - 12)) + 'px';
  });
}
