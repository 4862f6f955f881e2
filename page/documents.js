/* documents.js: the documents of a page, sorted into parts; names that tell their results apart; the settings of dq eval with
 * their verdicts; the command that measures a point. Nothing here computes a statistic. SPDX-License-Identifier: MIT */

/* One row a kind of document: its schema "dq-stats/1", of plans the setting "kind"; the member that names a result; whether
 * all its documents make one part. In the order of the page. */
const KINDS = [
  {kind: 'stats', schema: 'stats', command: 'stats', subject: 'Outliers', name: 'model', together: true},
  {kind: 'quantize', schema: 'quantize', command: 'quantize', subject: 'Containers', name: 'path', together: true},
  {kind: 'plan weights', schema: 'plan', of: 'weights', command: 'plan weights', subject: 'Plans of weights',
    name: 'path', together: true},
  {kind: 'plan kv', schema: 'plan', of: 'kv', command: 'plan kv', subject: 'Plans of the KV cache', name: 'path',
    together: true},
  {kind: 'plan heads', schema: 'plan', of: 'heads', command: 'plan heads', subject: 'Plans of retrieval heads',
    name: 'path', together: true},
  {kind: 'bench', schema: 'bench', command: 'bench', subject: 'Speed', name: 'model', together: true},
  {kind: 'eval', schema: 'eval', command: 'eval', subject: 'Evaluation', name: 'model', together: false},
];

function isOf(kind, document) {
  return text(document, 'schema').startsWith(`dq-${kind.schema}/`)
    && (!kind.of || text(document, 'settings.kind') === kind.of);
}

/* Objects of a document are told from those of the script: none is taken for attributes, and as text they are JSON. */
const OF_DOCUMENT = {toString() { return JSON.stringify(this); }};

function parseDocuments(json) {
  return JSON.parse(json, (key, x) => (isObject(x) ? Object.setPrototypeOf(x, OF_DOCUMENT) : x));
}

/* [{kind, inputs: [{name, document}], items}]: a document is named by its file, by its path where two files have one name. */
function partsOf(inputs) {
  const files = inputs.map(x => lastPart(text(x, 'name')));
  const named = inputs.map((x, i) => ({document: x.document,
    name: files.filter(f => f === files[i]).length > 1 ? text(x, 'name') : files[i]}));
  const parts = KINDS.flatMap(kind => {
    const its = named.filter(x => isOf(kind, x.document));
    return kind.together ? (its.length ? [{kind, inputs: its}] : []) : its.map(x => ({kind, inputs: [x]}));
  });
  for (const part of parts) {
    part.document = part.inputs[0].document;
    part.items = part.inputs.flatMap(x => list(x.document,
      'results').map(j => ({j, input: x, part, settings: at(x.document, 'settings')})));
    if (part.kind.kind === 'eval') readRows(part);
    else nameItems(part.items, part.kind.name);
    if (part.kind.kind === 'bench') part.items.forEach(x => (x.name = text(x.j, 'model')));
  }
  return parts;
}

/* The last part of a path; the path, its document, its number where another has the same. */
function nameItems(items, key) {
  items.forEach((x, i) => (x.name = lastPart(text(x.j, key)) || `result ${i + 1}`));
  for (const longer of [x => text(x.j, key) || x.name, x => `${x.name} (${x.input.name})`,
    (x, i) => `${x.name}, ${i + 1}`]) {
    const names = items.map(x => x.name);
    const twice = new Set(names.filter((name, i) => names.indexOf(name) !== i));
    items.forEach((x, i) => { if (twice.has(names[i])) x.name = longer(x, i); });
  }
}

function titleOf(part) {
  const names = unique(part.items.map(x => (part.kind.kind === 'eval' ? x.model : x.name))).join(', ');
  const tasks = part.kind.kind === 'eval' ? unique(part.items.map(x => x.task)).join(', ') : '';
  const command = `dq ${part.kind.command}: `;
  if (names.length > 600 || tasks.length > 300) return command +
    `${unique(part.items.map(x => x.model || x.name)).length} models`;
  return command + (names || 'no model') + (tasks ? ` on ${tasks}` : '');
}

/* ---- Rows of dq eval ---- */

function orderOf(row) {
  return text(row.j, 'icl.demo_order');
}

function mainMetric(row) {
  const paper = text(row.j, 'paper_metric');
  return [paper, 'acc', 'exact_match'].find(m => m && at(row.j, 'metrics')[m]) || null;
}

/* The labels of a cache are those of dq eval's tables. */
const SAME_CODES = new Set(['per-channel', 'dither']);

function hasWideValues(kv) {
  const widths = text(kv, 'widths');
  if (!widths) return number(kv, 'v_bits') >= 4 && number(kv, 'v_bits') < 16;
  return (widths.split(':')[1] || '').replace(/\*\d+/g, '').split(/\D+/).some(bits => bits && bits >= 4 && bits < 16);
}

/* Whether per-channel codes and dithered ones are the same: none of the values has a width that is dithered. */
function isUndithered(kv) {
  return SAME_CODES.has(text(kv, 'quant')) && !hasWideValues(kv);
}

function codeOf(kv) {
  if (!(number(kv, 'k_bits') < 16 || number(kv, 'v_bits') < 16)) return '';
  return isUndithered(kv) ? 'per-channel' : text(kv, 'quant');
}

/* What rotates where `auto` would not, or the other way round. */
function rotationOf(kv) {
  const [k, v] = [at(kv, 'rotate.k'), at(kv, 'rotate.v')], code = text(kv, 'quant'), perToken = code === 'per-token';
  if (typeof k !== 'boolean' || typeof v !== 'boolean') return '';
  const usualK = number(kv, 'k_bits') <= (perToken ? 4 : 8);
  const usualV = (perToken || code === 'mixed') && number(kv, 'v_bits') <= (perToken ? 4 : 8);
  return k === usualK && v === usualV ? '' : k || v ? ' rotated' : ' unrotated';
}

function codesLabel(kv) {
  const type = text(kv, 'dense_type') || 'f32', f32 = type === 'f32', code = codeOf(kv), widths = text(kv, 'widths');
  const wide = bits => (bits === 16 && f32 ? 32 : bits);
  const dense = type === 'bf16' || (f32 && (code || widths));
  return (widths || `${fixed(wide(number(kv, 'k_bits')), 0)}:${fixed(wide(number(kv, 'v_bits')), 0)}`) +
    (code && code !== 'per-token' ? ` ${code}` : '') + (dense ? ` ${type}` : '') + rotationOf(kv);
}

function keptLabel(kv) {
  const [keep, tokens, budget] = [number(kv, 'keep'), number(kv, 'tokens'), text(kv, 'budget')];
  const shared = budget && budget !== 'uniform' ? ` ${budget}` : '';
  if (Number.isFinite(tokens)) return `${text(kv, 'policy')} ${count(tokens)} tokens${shared}`;
  return keep < 1 ? `${text(kv, 'policy')} keep ${general(keep, 6)}${shared}` : '';
}

/* Fills the rows of a part: kv is '' for a cache that changes nothing; label and line hold the model and what differs among
 * the rows of a task, the line without logit bits. */
function readRows(part) {
  const rows = part.items;
  part.models = unique(rows.map(r => text(r.j, 'model')));
  for (const r of rows) {
    const bits = number(r.j, 'logit_bits'), kv = at(r.j, 'kv');
    Object.assign(r, {model: text(r.j, 'model'), task: text(r.j, 'task'), granularity: text(r.j, 'logit_granularity'),
      bits: bits >= 2 && bits <= 16 ? bits : 16, math: text(r.j, 'math.linear'), kv: '', kept: '', code: codeOf(kv),
      undithered: isUndithered(kv)});
    r.colour = part.models.indexOf(r.model);
    if (Number.isNaN(number(kv, 'k_bits') + number(kv, 'v_bits'))) continue;
    r.kept = keptLabel(kv);
    const codes = codesLabel(kv);
    r.kv = r.kept || codes !== '32:32' ? codes + (r.kept ? ` ${r.kept}` : '') : '';
  }
  part.tasks = unique(rows.map(r => r.task));
  for (const task of part.tasks) nameRows(part, rows.filter(r => r.task === task));
  part.showsKv = part.kvDiffers || (rows.length > 0 && rows[0].kv !== '');
}

function nameRows(part, rows) {
  const differ = of => unique(rows.map(of)).length > 1;
  const several = {bits: differ(r => r.bits), math: differ(r => r.math), kv: differ(r => r.kv), order: differ(orderOf),
    granularity: unique(rows.filter(r => r.bits !== 16).map(r => r.granularity)).length > 1};
  part.kvDiffers = part.kvDiffers || several.kv;
  const beside = r => JSON.stringify([r.model, r.bits, r.granularity, r.math, orderOf(r),
    ...['k_bits', 'v_bits', 'widths', 'policy', 'keep', 'tokens', 'dense_type',
      'budget'].map(key => at(r.j, `kv.${key}`))]);
  const codes = new Map();
  for (const r of rows) codes.set(beside(r), (codes.get(beside(r)) || new Set()).add(r.code));
  part.codesDiffer = part.codesDiffer || [...codes.values()].some(set => set.size > 1);
  for (const r of rows) {
    const said = [several.granularity && r.bits !== 16 ? r.granularity : '', several.math ? r.math : '',
      several.kv ? `KV ${r.kv || '32:32'}` : '',
        several.order && orderOf(r) ? `order ${orderOf(r)}` : ''].filter(x => x);
    r.line = [r.model, ...said].join(', ');
    r.label = [r.model, ...(several.bits ? [`${r.bits} bits`] : []), ...said].join(', ');
  }
  const before = new Map();
  for (const r of rows) {
    const n = before.get(r.model) || 0;
    before.set(r.model, n + 1);
    r.style = {colour: r.colour, mark: n, dash: n};
  }
}

/* Lines over logit bits: [{name, rows}], the widest first; a row of 16 bits belongs to the lines of all granularities. */
function bitLines(rows) {
  const alike = new Map(), lines = [];
  const key = r => JSON.stringify([r.model, r.math, r.kv, orderOf(r)]);
  for (const r of rows) alike.set(key(r), [...(alike.get(key(r)) || []), r]);
  for (const r of rows) {
    const its = alike.get(key(r)).filter(o => o.bits === 16 || r.bits === 16 || o.granularity === r.granularity);
    const first = r.bits !== 16 ? its.find(o => o.bits !== 16) : its.every(o => o.bits === 16) && its[0];
    if (first !== r) continue;
    const byBits = unique(its.map(o => o.bits)).sort((a, b) => b - a).map(bits => its.find(o => o.bits === bits));
    if (byBits.length > 1) lines.push({row: r, rows: byBits});
  }
  return lines.map((line, i) => {
    const before = lines.slice(0, i).filter(o => o.row.model === line.row.model).length;
    return {...line, name: line.row.line, colour: line.row.colour, mark: line.row.colour + before, dash: before};
  });
}

function clusterOf(part) {
  return text(part.document, 'settings.text_stderr').includes('document') ? 'document' : 'window';
}

/* ---- Settings whose loss is judged ---- */

/* What is lower than in the reference. */
const AXES = ['logits', 'weights', 'KV cache, codes', 'KV cache, eviction', 'KV cache, both', 'several'];
const [LOGITS, WEIGHTS, CODES, EVICTED, CACHE, MIXED] = AXES.keys();
const SAVES_NOTHING = 'saves nothing at this context';

function weightBits(row) {
  return number(row.j, 'weights.bits_per_weight');
}

function cacheShare(row) {
  const all = number(row.j, 'kv.baseline_bytes');
  return all > 0 ? number(row.j, 'kv.bytes_held') / all : NaN;
}

function axisOf(row) {
  const whose = text(row.j, 'reference_weights');
  const weights = whose ? whose !== 'own' : text(row.j, 'reference') !== row.model;
  if (weights + (row.bits < 16) + (row.kv !== '') !== 1) return MIXED;
  if (weights) return WEIGHTS;
  if (row.bits < 16) return LOGITS;
  if (!row.kept) return CODES;
  return number(row.j, 'kv.k_bits') >= 16 && number(row.j, 'kv.v_bits') >= 16 ? EVICTED : CACHE;
}

/* Of all parts: those of one model, margin, axis, kind, document and task make a group, the largest size first. */
function settingsOf(parts) {
  const all = parts.flatMap((part, n) => (part.kind.kind === 'eval' ? part.items : []).map(row => {
    const verdict = at(row.j, 'verdict'), axis = axisOf(row);
    const logits = row.bits < 16 ? `logits ${row.bits} bits ${row.granularity}` : '';
    return {
      part, n, row, axis, verdict, kld: number(row.j, 'metrics.kld_nats.value'), margin: number(verdict, 'margin'),
      is: text(verdict, 'is') || NONE, model: text(row.j, 'reference') || row.model, task: row.task,
      kind: [axis === LOGITS ? row.granularity : '', row.math !== 'f32' ? row.math : ''].filter(x => x).join(', '),
      label: axis === LOGITS ? `${row.bits} bits` : axis === WEIGHTS ? row.model : axis !== MIXED ? row.kv
        : [row.model, logits, row.kv ? `KV ${row.kv}` : ''].filter(x => x).join(', '),
      size: axis === LOGITS ? row.bits : axis === WEIGHTS ? weightBits(row) : axis === MIXED ? NaN : cacheShare(row),
      savesNothing: cacheShare(row) >= 1,
      where: (parts.length > 1 ? `${part.inputs[0].name}, ` : '') + row.task,
    };
  })).filter(s => Number.isFinite(s.kld) && Number.isFinite(s.margin));
  const words = (a, b) => (a < b ? -1 : a > b ? 1 : 0),
    larger = (a, b) => (Number.isNaN(a) - Number.isNaN(b)) || b - a || 0;
  return all.sort((a, b) => words(a.model, b.model) || larger(a.margin, b.margin) || a.axis - b.axis
    || words(a.kind, b.kind) ||
    a.n - b.n || words(a.task, b.task) || larger(a.size, b.size));
}

function groupsOf(settings) {
  const groups = new Map();
  for (const s of settings) {
    const key = JSON.stringify([s.model, s.margin, s.axis, s.kind, s.n, s.task]);
    groups.set(key, [...(groups.get(key) || []), s]);
  }
  return [...groups.values()];
}

/* The lowest of a group that lies within the margin; of logits, with every larger width. */
function lowestOf(group) {
  let found;
  for (const s of group) {
    const within = s.is === 'within the margin' && Number.isFinite(s.size) && !s.savesNothing;
    if (!within && s.axis === LOGITS) break;
    if (within) found = s;
  }
  return found;
}

/* ---- Units of dq stats --sensitivity ---- */

/* "layer 11 head 3", or the name of a tensor. */
function unitName(unit) {
  return text(unit, 'tensor') || ['layer', 'head', 'map'].filter(key => Number.isFinite(number(unit, key)))
    .map(key => `${key} ${unit[key]}`).join(' ') || NONE;
}

/* What was rounded by what, in the order of the document: [{of, by, units}], the largest KLD first. */
function unitKinds(item) {
  const kinds = new Map();
  for (const unit of list(item.j, 'sensitivity.units')) {
    const key = `${text(unit, 'of')} by ${text(unit, 'by')}`;
    if (!kinds.has(key)) kinds.set(key, {name: key, of: text(unit, 'of'), by: text(unit, 'by'), units: []});
    if (Number.isFinite(number(unit, 'kld_nats.value'))) kinds.get(key).units.push(unit);
  }
  const isOfKind = kind => x => text(x, 'of') === kind.of && text(x, 'by') === kind.by;
  return [...kinds.values()].filter(k => k.units.length).map(k => ({
    ...k, units: k.units.slice().sort((a, b) => number(b, 'kld_nats.value') - number(a, 'kld_nats.value')),
    decided: list(item.j, 'sensitivity.first').find(x => isOfKind(k)(at(x, 'first'))),
    correlation: forecast => list(item.j, 'sensitivity.correlation').find(x => isOfKind(k)(x)
      && text(x, 'forecast') === forecast),
  }));
}

/* ---- Commands ---- */

function shellWord(x) {
  const word = String(x);
  return /^[\w.,:/=+@%-]+$/.test(word) ? word : `'${word.replace(/'/g, '\'\\\'\'')}'`;
}

/* Pairs of an option and its value; '' before what is no option, no pair where there is no value, --positions has none. */
function commandLine(command, ...pairs) {
  return ['dq', command, ...pairs.filter(x => x && x[1] !== undefined && x[1] !== null
    && (x[1] !== '' || x[0] === '--positions')
    && !(Array.isArray(x[1]) && !x[1].length))
    .flatMap(([option, x]) => (x === '' ? [option] : option ? [option, shellWord(x)] : [shellWord(x)]))].join(' ');
}

function pathOf(document, name) {
  const model = list(document, 'inputs').find(x => lastPart(text(x, 'path')) === name || text(x, 'path') === name);
  return model ? text(model, 'path') : name;
}

function textsOf(document) {
  return list(document, 'inputs').filter(x => text(x, 'kind') === 'text').map(x => ['--text', text(x, 'path')]);
}

/* What measures this row alone, with its reference. " ..." ends a command that needs more options than are spelled here: those of
 * prompts that are generated, of few-shot examples, of drawn numbers. */
const MORE = ' ...';

function commandOfRow(row) {
  const document = row.input.document, s = row.settings || {}, kv = at(row.j, 'kv') || {}, reference = text(row.j, 'reference');
  const isText = at(row.j, 'metrics.ppl') !== undefined,
    data = list(document, 'inputs').find(x => text(x, 'kind') === row.task);
  if (text(document, 'command') !== 'eval') return commandLine(text(document, 'command'),
    data ? ['', text(data, 'path')] : null) + MORE;
  const isContainer = at(s, 'kv.stored') && Object.keys(s.kv.stored).length > 0; /* it may store settings of its own */
  const coded = codeOf(kv) !== '', window = text(s, 'window'), dense = number(kv, 'k_bits') === 32;
  const bits = text(kv, 'widths') || (kv.k_bits === kv.v_bits ? kv.k_bits : `${kv.k_bits}:${kv.v_bits}`);
  const cache = [['--kv-bits', bits], ...(dense && !row.kept ? [] : [['--kv-dense-type', text(kv, 'dense_type')]]),
    ...(coded ? [['--kv-quant', text(kv, 'quant')], ['--kv-group', kv.group === 32 ? null : kv.group]] : []),
    ...(coded || row.kept ? [['--kv-recent', kv.recent], ['--kv-sink', kv.sink]] : []),
    ...(row.kept ? [['--kv-policy', text(kv, 'policy')],
      Number.isFinite(number(kv, 'tokens')) ? ['--kv-tokens', kv.tokens] : ['--kv-keep', kv.keep],
      ['--kv-budget', text(kv, 'budget')], ['--kv-heads', text(kv, 'heads')], ['--kv-window', kv.window || null],
      ['--kv-every', kv.every || null]] : [])];
  const spelled = isText || (row.task === 'mc' && !s.num_fewshot);
  const more = !spelled || s.slices || s.long || s.head_order || s.icl || !['auto', undefined].includes(s.bos) || rotationOf(kv)
    || text(kv, 'policy') === 'random';
  return commandLine('eval', ['', pathOf(document, row.model)],
    reference && reference !== row.model ? ['--ref', pathOf(document, reference)] : null,
    ...(isText ? textsOf(document) : [['--task', row.task], data ? ['--data', text(data, 'path')] : null]),
    ...(isText ? [['--ctx', s.ctx], window === 'positions' ? ['--positions', ''] : window === 'chunk' ? null
      : ['--window', window], ['--stride', s.stride]] : []),
    ['--limit', s.limit], ...(row.bits < 16 || isContainer ? [['--logit-bits', row.bits]] : []),
    row.bits < 16 ? ['--logit-granularity', row.granularity] : null,
    row.math && row.math !== 'f32' ? ['--math', row.math] : null, ...(row.kv || isContainer ? cache : []),
    s.margin !== undefined && s.margin !== 0.01 ? ['--margin', s.margin] : null) + (more ? MORE : '');
}

/* Settings of dq quantize that the command spells, and those that are as they are by themselves. */
const QUANTIZE = {bits: '--bits', group: '--group', scale: '--scale', embed_bits: '--embed-bits'};
const QUANTIZE_IDLE = {logit_bits: [16], logit_granularity: ['per-tensor'], scale_dtype: ['f16'], skip: [null],
  dry_run: [true, false]};

function commandOfItem(item) {
  const document = item.input.document, s = item.settings || {};
  const models = list(document, 'inputs').filter(x => at(x, 'architecture')).map(x => ['', text(x, 'path')]);
  if (item.part.kind.kind === 'stats') {
    const more = at(item.j, 'sensitivity') || at(item.j, 'forecast') || s.head_order || !['auto', undefined].includes(s.bos)
      || !textsOf(document).length;
    return commandLine('stats', ['', pathOf(document, text(item.j, 'model'))], ...textsOf(document),
      s.ctx === 'auto' ? null : ['--ctx', s.ctx], ['--limit', s.limit],
      ['--detail', text(s, 'detail')], ...(at(item.j, 'sensitivity')
        ? [['--sensitivity', list(s, 'sensitivity').join(',')], ['--sensitivity-bits', s.sensitivity_bits],
        ['--sensitivity-windows', s.sensitivity_windows]] : [])) + (more ? MORE : '');
  }
  if (item.part.kind.kind === 'quantize') {
    const more = Object.keys(s).some(key => !QUANTIZE[key] && key !== 'kv' && !(QUANTIZE_IDLE[key] || []).includes(s[key]));
    return commandLine('quantize', ...models, ['-o', text(item.j, 'path') || 'out.h5'],
      ...Object.keys(QUANTIZE).map(key => [QUANTIZE[key], s[key]])) + (more ? MORE : '');
  }
  return commandLine(text(document, 'command') || item.part.kind.command, ...models, ...textsOf(document)) + MORE;
}
