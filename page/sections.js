/* sections.js: one row a section: whose documents, its anchor and heading, what it draws, and whether it stands open. It
 * appears where `show` gives something. To add one: a row in SECTIONS. SPDX-License-Identifier: MIT */

/* ---- Outliers: dq stats ---- */

const RANKS = [['1', 'top1'], ['2', 'top2'], ['3', 'top3'], ['10', 'top10'], ['100', 'top100']];
const VALUES = [['attention_logits', 'attention logits', 'Attention logits'],
  ['hidden_states', 'hidden states', 'Hidden states']];
const VALUE_KINDS = [['attention_logits', 'Attention logits'], ['hidden_states', 'Hidden states'], ['queries', 'Queries'],
  ['keys', 'Keys'],
  ['values', 'Values'], ['qkv_input', 'Input of q k v'], ['o_input', 'Input of o'], ['gate_up_input', 'Input of gate up'],
  ['down_input', 'Input of down']];
const SIZE = [['bits per weight', 'bits_per_weight', x => fixed(x, 3)], ['file bytes', 'file_bytes', count]];

function above0(x) {
  return x > 0 ? x : NaN;
}

function styleOf(i) {
  return {colour: i, mark: i, dash: Math.floor(i / 7)};
}

function layersOf(item) {
  return list(item.j, 'layers');
}

function lastLayer(part) {
  return part.items.flatMap(layersOf).reduce((last, layer) => Math.max(last, number(layer, 'layer') || 0), 0);
}

/* Rows of all results: each element with its result. */
function rowsOf(part, path) {
  return part.items.flatMap(item => list(item.j, path).map((x, i) => ({...x, item, name: item.name, own: x.name, i})));
}

function medianOf(x) {
  return value(number(x, 'median'), number(x, 'median_bound'));
}

function tokenOf(path, id) {
  return x => (typeof at(x, path) === 'string' ? `"${at(x, path)}"` : `#${count(number(x, id))}`);
}

/* Settings, and texts, in which documents beside each other differ, but for those that change no number. */
function differences(part) {
  const names = new Set(), idle = ['threads', 'device', 'places'];
  const [first, ...rest] = part.inputs.map(x => x.document), as = x => JSON.stringify(x);
  const data = d => as(list(d, 'inputs').filter(x => !at(x, 'fingerprint')));
  for (const other of rest) {
    if (data(first) !== data(other)) names.add('the text');
    for (const key of Object.keys({...at(first, 'settings'), ...at(other, 'settings')}))
      if (!idle.includes(key) && as(at(first, 'settings')[key]) !== as(at(other, 'settings')[key])) names.add(key);
  }
  return [...names].join(', ');
}

function magnitudes(part) {
  const differ = differences(part);
  return [
    differ && el('div.warn', {role: 'note'}, el('p',
      `These documents differ in: ${differ}. Numbers of different files are no comparison of models.`)),
    el('div.pair', VALUES.map(([key, name, title]) =>
      plot(`${title}: the largest magnitudes and the median, all layers together.`, {
      x: stepAxis('k-th largest', [...RANKS.map(r => r[0]), 'median']), y: {label: 'magnitude', log: true},
      series: part.items.flatMap((item, i) => {
        const of = at(item.j, `table5.${key}`);
        const points = [...RANKS.map(r => r[1]), 'median'].map((rank, k) => ({x: k, y: number(of, rank),
          tip: [item.name, `${name}, ${k < 5 ? `largest no. ${RANKS[k][0]}` : 'median'}: ${value(number(of, rank))}`,
            commandOfItem(item)]}));
        return [{name: item.name, ...styleOf(i), points: points.slice(0, 5)}, {...styleOf(i), points: points.slice(5)}];
      })}))),
    VALUES.map(([key, name]) => table(`Largest magnitudes of the ${name}, all ` +
      `layers${key === 'attention_logits' ? ', heads and maps' : ''} together.`,
      [['<model', 'name'], ...SIZE.map(([title, path, form]) => [title, x => number(x.j, path), form]),
        ...['1st', '2nd', '3rd', '10th', '100th'].map((title, k) => [title, `j.table5.${key}.${RANKS[k][1]}`]),
        ['median', `j.table5.${key}`, medianOf], ['n', `j.table5.${key}.n`, count],
        ['1st / median', x => number(x.j, `table5.${key}.top1`) / above0(number(x.j, `table5.${key}.median`))],
        ['not finite', `j.table5.${key}.n_not_finite`, count]], part.items)),
  ];
}

const BARS_SHOWN = 15;
const FORECASTS = [['local_error', 'local error'], ['logit_error', 'logit error']];

function unitBars(item, kind) {
  const shown = kind.units.slice(0, BARS_SHOWN), kld = u => number(u, 'kld_nats.value');
  const most = Math.max(1e-300, ...shown.map(u => Math.max(kld(u), number(u, 'kld_nats.interval.1') || 0)));
  const heads = kind.by === 'head' || kind.by === 'map';
  const tip = u => [`${item.name}, ${unitName(u)}, ${kind.name}`, `KLD ${general(kld(u), 4)} nats a token`,
    ['95 % interval ', ends(at(u, 'kld_nats.interval')).textContent].join(''), commandOfItem(item)];
  const short = `The ${shown.length} of ${kind.units.length} units that cost most, each rounded alone: KL divergence, nats ` +
    `per token. Thin bars are intervals ` +
    'of 95 %; where they overlap, the order is inconclusive. Two forecasts: what the change does to the residual stream after ' +
      '' +
      'the layer, and the predicted error of a logit.';
  return fold(`${item.name}: ${kind.name}`, table(short, [
    ['<unit', unitName], ['<KLD, from 0', u => bar(kld(u) / most, number(u, 'kld_nats.interval.0') / most,
      number(u, 'kld_nats.interval.1') / most)],
    ['KLD', kld], ['95 % interval', 'kld_nats.interval', ends], ['local error', u => number(u, 'local_error')],
    ['logit error', u => number(u, 'logit_error')]],
  shown, {foldable: false}),
  heads && el('div.maps', headMap(item, `KLD with the ${kind.of === 'logits' ? 'logits' : 'cache'} of one ` +
    `head${kind.by === 'map' ? ' and map' : ''} rounded, thousandths of a nat`,
    'sensitivity', 'logarithm', kind.units.map(u =>
      ({layer: u.layer, head: u.head, map: u.map, x: 1000 * kld(u), tip: tip(u)})))),
  el('div.pair', FORECASTS.map(([key, name]) => forecastPlot(item, kind, key, name, tip))));
}

function forecastPlot(item, kind, key, name, tip) {
  const units = kind.units.filter(u => number(u, key) > 0 && number(u, 'kld_nats.value') > 0);
  const r = kind.correlation(key), known = Number.isFinite(number(r, 'interval.0')) && Number.isFinite(number(r, 'spearman'));
  if (units.length < 3) return null;
  return plot(`${item.name}, ${kind.name}: measured over its ${name}, ${units.length} of ${kind.units.length} units (those ` +
    `above 0).` +
    (known ? ` Rank correlation ${fixed(r.spearman, 2)} (${fixed(r.interval[0], 2)} to ${fixed(r.interval[1], 2)}).` : ''), {
    x: {label: `forecast: ${name}`, log: true}, y: LOSS,
    series: [{line: false, points: units.map(u => ({x: u[key], y: u.kld_nats.value, tip: tip(u)}))}]});
}

function sensitivity(part) {
  const tested = part.items.filter(x => list(x.j, 'sensitivity.units').length);
  return tested.length && [
    tested.map(x => [
      el('p', `${x.name}: one unit rounded to ${count(x.j.sensitivity.bits)} bits, all else as it was; KL divergence of ` +
        `${count(number(x.j, 'sensitivity.scored'))} tokens, error between ${count(number(x.j, 'sensitivity.clusters'))} ` +
          `windows.`),
      unitKinds(x).map(kind => unitBars(x, kind))]),
    table('Rank correlation of forecast and measured KL divergence; itself: of the KL divergence on one half of the windows ' +
      'with that on the other.',
      [['^model', 'name'], ['<of', 'of'], ['<by', 'by'],
        ['<forecast', x => (FORECASTS.find(f => f[0] === x.forecast) || FORECASTS[0])[1]], ['units', 'n', count],
        ['Spearman', 'spearman'], ['95 % interval', 'interval', ends], ['itself', 'repeat']],
        rowsOf(part, 'sensitivity.correlation')),
  ];
}

/* A row for each layer, a column for each head, or head/map; cells {layer, head, map, x, tip}. */
function headMap(item, words, what, shade, cells) {
  const name = item.name;
  const order = (a, b) => { const [h, m] = a.split('/'), [g, n] = b.split('/'); return (m || 0) - (n || 0) || h - g; };
  const known = cells.filter(c => (shade === 'kind' ? c.x : Number.isFinite(c.x)));
  if (!known.length) return null;
  return heat(name, words, {corner: 'layer', shade, small: true, order, data: {'data-grid': what, 'data-model': name},
    cells: cells.map(c => ({row: c.layer, column: c.head + (Number.isFinite(c.map) ? `/${c.map}` : ''), x: c.x,
      tip: c.tip || [`${name}, layer ${c.layer}, head ${c.head}${Number.isFinite(c.map) ? `, map ${c.map}` : ''}`,
        `${words}: ${typeof c.x === 'number' ? value(c.x) : c.x || NONE}`, commandOfItem(item)]}))
      .sort((a, b) => a.row - b.row)});
}

/* Maps of heads: their anchor, what they show, how dark, and their cells of a layer's heads or of a list of the forecast. */
const HEAD_MAPS = [
  ['logits', 'the largest attention logit with an ordinary key', 'value',
    {heads: h => [[h.map, number(h, 'ordinary.max') || number(h, 'max')]]}],
  ['kind', 'what heads do: Retrieval, Sink, Local, Mixed (by where most of their attention goes)', 'kind',
    {looks: h => [[null, h.kind]]}],
  ['support', 'effective support: keys over which a row would be even', 'logarithm', {looks: h => byMap(h.effective_support)}],
  ['sinks', 'attention on the first 4 positions, of 1', 'share', {looks: h => byMap(h.sink_mass)}],
  ['cancelled', 'what of the first map the subtraction takes away, of 1', 'share', {looks: h => [[null, h.cancelled_mass]]}],
  ['error', 'predicted error of a logit at 4 bits, per-tensor', 'value', {forecast: 'heads', of: 'error'}],
  ['map-error', 'error of D at 4 bits, per-tensor: Frobenius norm over that of D', 'value',
    {forecast: 'outputs', of: 'map_error'}],
];

function byMap(pair) {
  const two = Number.isFinite(number(pair, '1'));
  return two ? [[1, pair[0]], [2, pair[1]]] : [[null, number(pair, '0')]];
}

function headCells(item, from) {
  if (from.forecast)
    return list(item.j, `forecast.${from.forecast}`).map(h =>
      ({layer: h.layer, head: h.head, map: h.map, x: number(h, `${from.of}.4.per-tensor`)}));
  return layersOf(item).flatMap(layer => (from.heads ? list(layer, 'heads') : list(layer, 'attention.heads')).flatMap(
    h => (from.heads || from.looks)(h).map(([map, x]) => ({layer: layer.layer, head: h.head, map, x}))));
}

function heads(part) {
  const drawn = part.items.map(item => el('div.maps',
    HEAD_MAPS.map(([what, words, shade, from]) => headMap(item, words, what, shade, headCells(item, from)))));
  return drawn.some(d => d.children.length) && [el('p',
    'A row for each layer, a column for each head; of a differential model, head/map. Darker: more.'), drawn];
}

/* Lines over layers: [{key: of a layer, dash}]. */
function layerPlot(part, words, y, lines, more = {}) {
  return plot(words, {x: layerAxis(lastLayer(part)), y, ...more,
    series: part.items.flatMap((item, i) => lines.map(({of, dash, what}, k) => ({
    name: k ? '' : item.name, ...styleOf(i), ...(dash === undefined ? {} : {dash}),
    points: layersOf(item).map(layer => ({x: number(layer, 'layer'), y: of(layer),
      tip: [item.name, `layer ${layer.layer}, ${what}: ${value(of(layer))}`, commandOfItem(item)]}))})))});
}

function profiles(part) {
  if (!part.items.some(x => isObject(at(layersOf(x)[1], 'hidden_states.ordinary')))) return null;
  const pooled = part.items.flatMap(item => VALUE_KINDS.map(([key, name], k) =>
    ({name: item.name, kind: name, of: at(item.j, `${k < 2 ? 'table5' : 'values'}.${key}`)})))
    .filter(x => isObject(x.of));
  const five = [['top1', 'largest'], ['p99_9', 'p99.9'], ['rms', 'rms'], ['crest', 'max/rms'], ['kurtosis0', 'kurtosis']];
  return [
    el('p', 'Solid: the largest magnitude of ordinary tokens. Dashed: of all tokens. Dotted: the root mean square of ordinary ' +
      '' +
      'ones. Where dashed lies above solid, the first token of a sequence or an attention sink has the largest value.'),
    part.items.length > 1 && legend(part.items.map((x, i) => ({name: x.name, ...styleOf(i)}))),
    el('div.multiples', VALUE_KINDS.filter(([key]) => part.items.some(x => at(layersOf(x)[0], key))).map(([key, name]) =>
      layerPlot(part, `${name}.`, {log: true}, [
      {of: l => number(l, `${key}.top1`), dash: 1, what: 'largest of all tokens'},
      {of: l => number(l, `${key}.ordinary.top1`), dash: 0, what: 'largest of ordinary tokens'},
      {of: l => number(l, `${key}.ordinary.rms`), dash: 2, what: 'root mean square of ordinary tokens'}],
      {wide: 340, high: 220, withLegend: false}))),
    table('All layers together, of all tokens and of ordinary ones (ord.); the kurtosis is taken around 0.',
      [['^model', 'name'], ['<values', 'kind'],
      ...five.map(([key, title]) => [title, `of.${key}`]),
      ...five.map(([key, title], k) => [k ? title : 'ord. largest', `of.ordinary.${key}`])], pooled),
  ];
}

/* "11 to 29 less 2": the layers of an outlier, and how many of these do not have it. */
function layersText(x) {
  const [first, last] = [number(x, 'first_layer'), number(x, 'last_layer')], without = number(x, 'layers_between_without');
  if (Number.isNaN(first + last)) return NONE;
  return last > first ? `${first} to ${last}${without > 0 ? ` less ${without}` : ''}` : count(first);
}

function channels(part) {
  const all = rowsOf(part, 'outliers'), of = test => all.filter(x => test(text(x, 'values')));
  const channel = [['<tokens', 'tokens'], ['channel', 'channel', count], ['layers', layersText], ['before', 'magnitude_before'],
    ['largest', 'magnitude'],
    ['in layer', 'layer', count], ['its rms', 'rms'], ['/ median', 'over_median'], ['sequence', 'sequence', count],
    ['position', 'position', count],
    ['<token', tokenOf('token', 'id')]];
  return all.length && [
    table('Channels of the hidden states, each once: the layers where it comes to a tenth of its largest magnitude, its ' +
      'magnitude in the layer before these, its root mean square in the layer of the largest, and the largest over the median ' +
        '' +
      'of ordinary tokens there.', [['^model', 'name'], ...channel], of(v => v === 'hidden_states')),
    table('Heads with the largest attention logits, by what the key is; query and key are positions in the sequence.',
      [['^model', 'name'], ['<keys', 'tokens'],
      ['layer', 'layer', count], ['head', 'head', count], ['map', 'map', count], ['largest', 'magnitude'], ['its rms', 'rms'],
      ['/ median', 'over_median'],
      ['query', 'query', count], ['<token', tokenOf('query_token', 'query_id')], ['key', 'key', count],
      ['<token', tokenOf('key_token', 'key_id')]],
    of(v => v === 'attention_logits')),
    table('Channels of other values; those of queries, keys, values and the inputs of o and down mean something else in every ' +
      '' +
      'layer.',
      [['^model', 'name'], ['<values', 'values'], ...channel], of(v => v !== 'hidden_states' && v !== 'attention_logits')),
  ];
}

function matrices(part) {
  const all = rowsOf(part, 'weights');
  const columns = [['^model', 'name'], ['<role', 'role'], ['layer', 'layer', count], ['largest', 'max'], ['median', 'median'],
    ['p99.9', 'p99_9'], ['rms', 'rms'],
    ['max/rms', 'crest'], ['kurtosis', 'kurtosis0'], ['row', 'row', count], ['column', 'column', count],
    ['largest column', 'largest_column', count],
    ['/ median', 'column_over_median']];
  const largest = x => all.every(o => o === x || o.item !== x.item || o.role !== x.role || o.crest < x.crest
    || (o.crest === x.crest && o.i > x.i));
  return all.length && [
    table('Of each role the matrix with the largest crest factor (max/rms). Largest column: the input channel with the ' +
      'largest root mean square, and that over the median of channels.', columns, all.filter(largest)),
    fold('All matrices', table('All matrices.', columns, all, {foldable: false}))];
}

function layers(part) {
  if (!part.items.some(x => layersOf(x).length > 1)) return null;
  return [
    el('div.pair', VALUES.map(([key, name, title]) =>
      layerPlot(part, `${title} by layer: the largest magnitude (solid) and the median (dotted).`,
      {label: 'magnitude', log: true},
      [{of: l => number(l, `${key}.top1`), dash: 0, what: 'largest'},
        {of: l => number(l, `${key}.median`), dash: 2, what: 'median'}]))),
    VALUES.map(([key, name, title]) => fold(`${title}, layer by layer`,
      table(`Magnitudes of the ${name} by layer; the kurtosis is taken around 0.`,
      [['^model', 'name'], ['layer', 'layer', count], ['1st', `${key}.top1`], ['10th', `${key}.top10`],
        ['median', key, medianOf], ['rms', `${key}.rms`],
        ['1st / rms', x => number(x, `${key}.top1`) / above0(number(x, `${key}.rms`))], ['kurtosis', `${key}.kurtosis0`]],
        rowsOf(part, 'layers'), {foldable: false}))),
  ];
}

function maps(part) {
  const all = rowsOf(part, 'layers').filter(x => isObject(at(x, 'attention.mean'))), mean = key => `attention.mean.${key}`;
  return all.length && [
    part.items.some(x => layersOf(x).length > 1) && el('div.pair',
      layerPlot(part, 'Entropy of a row of attention, mean over rows and heads of each layer; of the first map where there ' +
        'are two.', {label: 'entropy, nats', zero: true},
        [{of: l => number(l, mean('entropy_nats.0')), what: 'entropy, nats'}]),
      layerPlot(part, 'Keys that a row gives less than 0.001 of attention: their share in each layer.',
        {label: 'share of keys with |D| < 0.001', zero: true},
        [{of: l => number(l, mean('near_zero_keys.1e-03')), what: 'share of keys'}])),
    table('Means over rows and heads of each layer. Entropy in nats and mass on the first 4 positions (sinks), of both maps; ' +
      'D = A1 \u2212 \u03bbA2 where there are two, else A1: the sum of its magnitudes, the sum of its negative entries, the ' +
      'share of keys with |D| below a threshold, and of pages of 64 keys whose sum is. \u03bb where a layer has one.',
      [['^model', 'name'], ['layer', 'layer', count], ['\u03bb', 'attention.lambda'],
      ...[0, 1].map(k => [`entropy ${k + 1}`, mean(`entropy_nats.${k}`)]),
      ...[0, 1].map(k => [`sinks ${k + 1}`, mean(`sink_mass.${k}`)]), ['sum |D|', mean('total_variation')],
      ['D < 0', mean('negative_mass')],
      ...[['keys', 'near_zero_keys'], ['pages', 'skippable_pages']].flatMap(([title, key]) =>
        ['1e-03', '1e-02'].map(x => [`${title} < ${x.replace('-0', '-')}`, mean(`${key}.${x}`)]))], all),
  ];
}

function places(part) {
  const all = rowsOf(part, 'top');
  const shared = [['^model', 'name'], ['rank', 'rank', count], ['magnitude', 'magnitude'], ['sequence', 'sequence', count],
    ['layer', 'layer', count]];
  return all.length && [
    fold('The largest attention logits', table('The largest attention logits, all layers together: query and key are ' +
      'positions in the sequence.', [...shared,
      ['head', 'head', count], ['map', 'map', count], ['query', 'query', count], ['<token', tokenOf('query_token', 'query_id')],
      ['key', 'key', count],
      ['<token', tokenOf('key_token', 'key_id')]], all.filter(x => x.values === 'attention_logits'), {foldable: false})),
    fold('The largest hidden states', table('The largest hidden states, all layers together.',
      [...shared, ['channel', 'channel', count], ['position', 'position', count],
      ['<token', tokenOf('token', 'id')]], all.filter(x => x.values === 'hidden_states'), {foldable: false}))];
}

/* ---- Containers: dq quantize ---- */

function packed(row) {
  return typeof row.group_size === 'number';
}

function sqnr(row) {
  return packed(row) ? number(row, 'sqnr_db') : NaN;
}

function decibels(x) {
  return fixed(x, 2);
}

/* "model.layers.12.self_attn.q_proj.weight": layer 12, role q_proj. */
function placeOf(row) {
  const parts = text(row, 'own').replace(/\.weight$/, '').split('.');
  const layer = text(row, 'own').split('.').find(p => /^\d{1,5}$/.test(p));
  return {layer: layer === undefined ? NaN : Number(layer), role: parts[parts.length - 1]};
}

function worstOf(item) {
  return list(item.j, 'rows').map(sqnr).filter(Number.isFinite).reduce((a, b) => Math.min(a, b), Infinity);
}

function containers(part) {
  const widths = item => list(item.j, 'rows').filter(packed).map(r => r.bits),
    source = item => at(item.input.document, 'inputs.0');
  const planned = part.items.some(x => !text(x.j, 'content_sha256'));
  const bits = item => {
    const all = widths(item), [least, most] = [Math.min(...all), Math.max(...all)];
    return all.length ? (least < most ? `${least} to ${most}` : count(most)) : scalar(at(item.settings, 'bits'));
  };
  return part.items.length && table('What each container holds. Bits per weight count codes, scales and what stays dense, ' +
    'over all parameters; bits per packed weight those of the packed tensors alone. File bytes include alignment and ' +
    'metadata.' + (planned ? ' Without a hash: planned (--dry-run), not written; its sizes are estimates.' : ''), [
    ['<container', 'name'], ['bits per weight', 'j.bits_per_weight', x => fixed(x, 3)], ['file bytes', 'j.file_bytes', count],
    ['<made from', x => lastPart(text(source(x), 'path'))],
    ['bits', bits], ['group', x => String(cell(at(x.settings, 'group'))) + (list(x.settings, 'rules').length ? ', rules' : '')],
    ['scale', 'settings.scale'],
    ['packed tensors', x => `${count(number(x.j, 'packed'))} of ${count(number(x.j, 'tensors'))}`],
    ['bits per packed weight', x => (8 * number(x.j, 'packed_bytes')) / above0(number(x.j, 'packed_params'))],
    ['payload bytes', 'j.weight_bytes', count],
    ['file / source', x => number(x.j, 'file_bytes') / above0(number(source(x), 'file_bytes'))],
    ['worst SQNR, dB', worstOf, decibels],
    ['<content SHA-256', x => el('code', text(x.j, 'content_sha256').slice(0, 16) || NONE)]], part.items, {foldable: false});
}

function sqnrByRole(part) {
  const all = rowsOf(part, 'rows').filter(r => Number.isFinite(sqnr(r))).map(r => ({...r, ...placeOf(r)})),
    roles = unique(all.map(r => r.role));
  const its = (item, role) => all.filter(r => r.item === item && r.role === role);
  const least = rows => rows.reduce((a, b) => (b.sqnr_db < a.sqnr_db ? b : a));
  return all.length && [
    el('div.pair', part.items.map(item => {
      const inLayers = all.filter(r => r.item === item && Number.isFinite(r.layer));
      return inLayers.length && plot([item.name, ': SQNR of its packed tensors by layer, in dB; higher is closer to the ' +
        'source.'], {
        x: layerAxis(Math.max(...inLayers.map(r => r.layer))), y: {label: 'SQNR, dB'},
        series: roles.map((role, k) => ({name: role, ...styleOf(k),
          points: its(item, role).filter(r => Number.isFinite(r.layer)).sort((a, b) => a.layer - b.layer).map(r =>
            ({x: r.layer, y: r.sqnr_db,
            tip: [`${item.name}, ${r.own}`, `SQNR ${decibels(r.sqnr_db)} dB at ${r.bits} bits`, commandOfItem(item)]}))}))});
    })),
    table('SQNR of the packed tensors of each role, the lowest and the highest over layers.',
      [['^container', 'item.name'], ['<role', 'role'], ['tensors', 'rows.length', count],
      ['lowest, dB', x => decibels(least(x.rows).sqnr_db)], ['in layer', x => count(least(x.rows).layer)],
      ['highest, dB', x => decibels(Math.max(...x.rows.map(r => r.sqnr_db)))]],
    part.items.flatMap(item => roles.map(role => ({item, role, rows: its(item, role)}))).filter(x => x.rows.length))];
}

const TENSORS = [['^container', 'name'], ['<tensor', 'own'], ['shape', r => `${r.rows} \u00d7 ${r.cols}`],
  ['<stored as', r => text(r, 'encoding') + (r.skipped === true ? ', skipped' : '')],
  ['bits', 'bits', count], ['group', r => number(r, 'group_size'), count],
  ['bits per weight', r => fixed(r.bits_per_weight, 3)], ['bytes', 'bytes', count], ['SQNR, dB', r => decibels(sqnr(r))]];
const WORST_SHOWN = 10;

function worst(part) {
  const all = rowsOf(part, 'rows').filter(r => Number.isFinite(sqnr(r)));
  return all.length && table(`The packed tensors with the lowest SQNR, at most ${WORST_SHOWN} of each container.`, TENSORS,
    part.items.flatMap(item => all.filter(r => r.item === item).sort((a, b) => a.sqnr_db - b.sqnr_db).slice(0, WORST_SHOWN)));
}

function tensors(part) {
  return part.items.map(item => fold(item.name,
    table('All tensors, as they are stored.', TENSORS, list(item.j, 'rows').map(r => ({...r, name: item.name, own: r.name})),
      {foldable: false})));
}

/* ---- Plans ---- */

function weightsChosen(part) {
  return table('What was chosen, on unseen text: the interval is that of the look that decided, wider for each look before it.',
    [['<plan', 'name'], ['<budget', 'j.budget'],
    ['<met', x => (x.j.met === true ? 'yes' : 'no')], ['bits per weight', x => fixed(number(x.j, 'packed_bits_per_weight'), 3)],
    ['KLD', 'j.chosen.unseen.kld', measured],
    ['<its interval', 'j.chosen.unseen.kld_interval', ends], ['interim looks', 'j.interim_looks', count]], part.items);
}

function weightsCurve(part) {
  return part.items.length && plot('The trade-off: lines are predicted, points are whole models measured on the search text. ' +
    'Bars are one standard error.', {
    wide: 620, high: 350, x: {label: 'bits per weight of packed tensors'}, y: {label: 'KL divergence, nats per id', log: true},
    series: part.items.flatMap((item, i) => [
      {name: `${item.name}, predicted`, colour: i, mark: i, dash: 1, small: true,
        points: list(item.j, 'curve').map(p => ({x: p.packed_bits_per_weight, y: p.predicted_kld,
        tip: [`${item.name}, predicted`, `${fixed(p.packed_bits_per_weight, 3)} bits per weight, KLD ` +
          `${general(p.predicted_kld, 4)}`]}))},
      {name: `${item.name}, measured`, colour: i, mark: i, line: false,
        points: list(item.j, 'trials').map(t => pointOf(t.packed_bits_per_weight, at(t, 'search.kld'),
        [`${item.name}, measured`, `${fixed(t.packed_bits_per_weight, 3)} bits per weight, KLD ` +
          `${measured(at(t, 'search.kld'))}`, commandOfItem(item)]))}])});
}

function weightsTensors(part) {
  return table('The width of every tensor, and what the model loses when it alone is rounded to that.',
    [['^plan', 'name'], ['<tensor', 'own'], ['weights', 'weights', count],
    ['bits', 'bits', count], ['KLD alone', u => at(list(u, 'widths').find(w => w.bits === u.bits), 'kld'), measured]],
    rowsOf(part, 'units'));
}

function percent(x) {
  return 100 * Math.expm1(x);
}

function percentText(loss) {
  const x = percent(number(loss, 'ln_ppl_ratio.value'));
  return Number.isFinite(x) ? signed(x, fixed, 3) : NONE;
}

function percentEnds(pair) {
  return both(pair, x => signed(percent(x), fixed, 3));
}

function level(loss) {
  return general(100 * (1 - number(loss, 'outside')), 5);
}

const FOUND = [['KLD', 'j.chosen.unseen.kld_nats', measured], ['its interval', 'j.chosen.unseen.kld_interval', ends],
  ['perplexity, %', 'j.chosen.unseen', percentText],
  ['its interval', 'j.chosen.unseen.ln_ppl_interval', percentEnds], ['nominally, %', 'j.chosen.unseen', level]];

/* A plan beside other caches on windows that no choice saw: two pictures and a table; rows are {item, it, label}. */
function besides(rows, {all, one, words, more = []}) {
  const quantities = [['KLD', 'kld_nats', 'kld_interval', x => x, 'is closer'],
    ['perplexity, %', 'ln_ppl_ratio', 'ln_ppl_interval', percent, 'loses less']];
  const decided = (pair, is) => (number(pair, '1') < 0 ? `the plan ${is}` : number(pair, '0') > 0 ? `${one} ${is}`
    : `inconclusive which ${is}`);
  const shown = (of, loss) => (of[1] === 'kld_nats' ? measured(at(loss, 'kld_nats')) : percentText(loss));
  const plotOf = of => plot(`${of[0] === 'KLD' ? 'The KL divergence' : 'The perplexity'} of the plan less that of ${all} on ` +
    `windows that no choice saw, in the order of the table; bars are ` +
    `the intervals of it. Below 0 the plan ${of[4]}.`, {high: 260, x: {label: '', range: [-0.6, rows.length - 0.4], ticks: []},
    y: {label: of[0] === 'KLD' ? 'KLD, nats per id, plan less it' : 'perplexity, %, plan less it', zero: true},
    series: rows.map((r, i) => {
      const less = r.it.plan_less_it, [y, lo, hi] = [number(less, `${of[1]}.value`), number(less, `${of[2]}.0`),
        number(less, `${of[2]}.1`)].map(of[3]);
      return {name: r.label, colour: r.plan, mark: i,
        points: [{x: i, y, lo, hi, tip: [r.label, `difference ${shown(of, less)}`,
        `interval ${general(lo, 3)} to ${general(hi, 3)}`, commandOfItem(r.item)]}]};
    })});
  return rows.length > 0 && [el('div.pair', quantities.map(plotOf)),
    table(words, [['^plan', 'r.item.name'], ...more, ['<what', x => x.of[0]],
    ['of the plan', x => shown(x.of, at(x.r.item.j, 'chosen.unseen'))], ['of uniform', x => shown(x.of, x.r.it.unseen)],
    ['difference', x => shown(x.of, x.r.it.plan_less_it)],
    ['its interval', x => (x.of[1] === 'kld_nats' ? signedEnds : percentEnds)(at(x.r.it, `plan_less_it.${x.of[2]}`))],
    ['nominally, %', x => level(x.r.it.plan_less_it)],
    ['<decision', x => decided(at(x.r.it, `plan_less_it.${x.of[2]}`), x.of[4])]],
    rows.flatMap(r => quantities.map(of => ({r, of}))), {foldable: false})];
}

function kvChosen(part) {
  return table('What was chosen, and what it loses on windows that no choice saw.',
    [['<plan', 'name'], ['<--kv-quant', 'j.chosen.kv.quant'], ['<--kv-bits', 'j.chosen.kv.widths'],
    ['--kv-recent', 'j.chosen.kv.recent', count], ['--kv-sink', 'j.chosen.kv.sink', count],
    ['bits', x => general(number(x.j, 'chosen.mean_bits'), 4)], ...FOUND], part.items);
}

function kvUniform(part) {
  const rows = part.items.flatMap((item, plan) =>
    list(item.j, 'baselines').map(it => ({item, it, plan, label: `${item.name} against ${text(it, 'widths')}`})));
  const words = item => {
    const its = list(item.j, 'baselines'), more = Math.max(0,
      ...its.map(b => number(item.j, 'chosen.mean_bits') - b.mean_bits));
    if (!its.length) return list(item.j, 'trials').length === 1 ? 'no other mix within the mean was measured.'
      : 'the plan is uniform: nothing else that was measured on the search windows is closer there (no interval).';
    return more > 1e-9 ? `the plan has ${general(more, 3)} bits more: no uniform widths come nearer to the mean from below.`
      : '';
  };
  return [besides(rows, {all: 'uniform widths', one: 'the uniform width',
    more: [['^against', 'r.it.widths'], ['its bits', x => general(number(x.r.it, 'mean_bits'), 4)]],
    words: 'The plan beside uniform widths of at most the same mean, the nearest that there are, on windows that no choice ' +
      'saw. An interval that holds 0 decides nothing.'}),
  part.items.map(item => words(item) && el('p', `${item.name}: ${words(item)}`))];
}

function unitOfCache(unit) {
  const [first, last] = list(unit, 'layers');
  return `${text(unit, 'side')} of layer${last > first ? 's' : ''} ` +
    `${first}${last > first ? ` to ${last}` : ''}${Number.isFinite(unit.map) ? `, map ${unit.map}` : ''}`;
}

function kvUnits(part) {
  return [el('p', 'KLD \u00b1 one standard error on the search windows where one unit is coded at a width and all others at 8 ' +
    '' +
    'bits. Darker: more, by its logarithm. In bold: the width that the unit got, where it was measured alone.'),
  el('div.maps', part.items.map(item => heat(item.name, 'units alone',
    {corner: 'unit \\ bits', shade: 'logarithm', cells: list(item.j, 'units').flatMap(
    unit => list(unit, 'alone').map(w => ({row: unitOfCache(unit), column: w.bits, x: number(w, 'kld_nats.value'),
      shown: measured(w.kld_nats), bold: w.bits === unit.bits,
      tip: [`${item.name}, ${unitOfCache(unit)}, ${w.bits} bits`, `KLD ${measured(w.kld_nats)}`, commandOfItem(item)]})))})))];
}

const ORIGINS = [['units', 'by units'], ['uniform', 'uniform'], ['trade', 'a step away']];

function kvSearch(part) {
  const trials = rowsOf(part, 'trials').map(t => ({...t, origin: (ORIGINS.find(o => o[0] === t.from) || [t.from, t.from])[1]}));
  const steps = [['^plan', 'name'], ['mix', t => count(t.i + 1)], ['<from', 'origin'], ['<widths', 'widths'],
    ['bits', t => general(t.mean_bits, 4)], ['KLD', t => general(number(t, 'kld_nats'), 3)]];
  const point = t => ({x: t.mean_bits, y: number(t, 'kld_nats'),
    tip: [`${t.name}, ${t.widths}, ${t.origin}`, `${general(t.mean_bits, 4)} bits, KLD ${general(number(t, 'kld_nats'), 3)}`,
    commandOfItem(t.item)]});
  return [
    plot('Mixes of widths that were measured whole on the search windows. A ring: the plan for a while; the last of them is ' +
      'the plan. Points have no intervals: other windows decide.', {
      wide: 620, high: 350, x: {label: 'bits of keys and values, without scales'},
      y: {label: 'KL divergence, nats per id', log: true}, rings: trials.filter(t => t.taken === true).map(point),
      series: part.items.flatMap((item, i) => ORIGINS.map(([from, name], k) =>
        ({name: `${item.name}, ${name}`, colour: i, mark: k, small: k === 2, line: false,
        points: trials.filter(t => t.item === item && t.from === from).map(point)})))}),
    table('The steps of the search: mixes that were the plan for a while, with their place among those measured.', steps,
      trials.filter(t => t.taken === true)),
    fold('All mixes that were measured whole', table('All mixes in the order in which they were measured.',
      [...steps, ['<taken', 'taken', yes]], trials, {foldable: false}))];
}

function headsChosen(part) {
  return [table('What was chosen, and what it loses on windows that no choice saw.',
    [['<plan', 'name'], ['<--kv-policy', 'j.chosen.kv.policy'], ['--kv-keep', x => general(number(x.j, 'chosen.kv.keep'), 15)],
    ['--kv-sink', 'j.chosen.kv.sink', count], ['--kv-recent', 'j.chosen.kv.recent', count],
    ['groups that share', x => `${count(number(x.j, 'chosen.sharing'))} of ${list(x.j, 'units').length}`], ...FOUND],
  part.items),
  part.items.map(x => {
    const kv = at(x.j, 'chosen.kv');
    return [el('p', `${x.name}, as settings of a command:`),
      el('pre', `--kv-policy ${shellWord(text(kv, 'policy'))} --kv-keep ${general(number(kv, 'keep'), 15)} --kv-sink ` +
      `${count(number(kv, 'sink'))} ` +
      `--kv-recent ${count(number(kv, 'recent'))} --kv-budget heads --kv-heads ${shellWord(text(kv, 'heads'))}`)];
  })];
}

function headsUniform(part) {
  const rows = part.items.flatMap((item, plan) =>
    list(item.j, 'baselines').slice(0, 1).map(it => ({item, it, plan, label: `${item.name} against the uniform share`})));
  return [besides(rows, {all: 'the uniform share', one: 'the uniform share',
    words: 'The plan beside the uniform share, which keeps as much in every group, on windows that no choice saw. An interval ' +
      '' +
      'that holds 0 decides nothing.'}),
  part.items.filter(x => !list(x.j, 'baselines').length).map(x =>
    el('p', `${x.name}: the plan is this one: all groups share, so each keeps as much. Nothing is compared.`))];
}

/* What cutting a group alone costs: the KLD on windows, or what answers lack. */
const COSTS = [['KLD', 'alone.kld_nats'], ['what the answers lack', 'lack_nats']];

function headsGroups(part) {
  const groups = rowsOf(part, 'units').map(g => ({...g, role: g.shares === true ? 'shares' : 'cut'}));
  return [el('p', 'What it costs \u00b1 one standard error to cut one group of KV heads to the first and last tokens, while ' +
    'the others keep all: the KLD on the windows that find, and where questions count what their answers lack. Darker: more, ' +
    'by its logarithm. In bold: the groups that share what the cache may keep; the others are cut.'),
  el('div.maps', part.items.flatMap(item => COSTS.map(([what, path]) => {
    const its = groups.filter(g => g.item === item && isObject(at(g, path)));
    return heat(item.name, what, {corner: 'layer \\ group', shade: 'logarithm',
      cells: its.map(g => ({row: g.layer, column: g.group, x: number(g, `${path}.value`), shown: measured(at(g, path)),
      bold: g.shares === true, word: g.role, tip: [`${item.name}, layer ${g.layer}, group ${g.group}: ${g.role}`,
        `${what} ${measured(at(g, path))}`, commandOfItem(item)]})).sort((a, b) => a.row - b.row)});
  }))),
  fold('All groups in order of need', table('All groups, the first needs most, with what it costs to cut each.',
    [['^plan', 'name'], ['layer.group', g => `${g.layer}.${g.group}`], ['<role', 'role'],
    ['KLD', 'alone.kld_nats', measured], ['answers lack', 'lack_nats', measured]], groups, {foldable: false}))];
}

function headsSharing(part) {
  const trials = rowsOf(part, 'trials'), kld = t => number(t, 'kld_nats'), lack = t => number(t, 'lack_nats');
  const counts = t => (Number.isNaN(kld(t)) ? lack(t) : Number.isNaN(lack(t)) ? kld(t) : kld(t) + lack(t));
  const point = of => t => ({x: number(t, 'sharing'), y: of(t),
    tip: [`${t.name}, ${t.sharing} groups share`, `KLD ${general(kld(t), 4)}, answers lack ${general(lack(t), 4)}`,
    commandOfItem(t.item)]});
  const shares = trials.map(t => t.sharing), wide = Math.max(...shares) > 16;
  const parts = item => {
    const its = trials.filter(t => t.item === item), windows = its.some(t => !Number.isNaN(kld(t))),
      asked = its.some(t => !Number.isNaN(lack(t)));
    return windows && asked ? [['KLD + answers', counts], ['KLD', kld], ['answers lack', lack]] : windows ? [['KLD', kld]]
      : [['answers lack', lack]];
  };
  return [
    plot('What is lost where so many groups, in order of need, share what the cache may keep and the others are cut, on the ' +
      'windows and questions that find. A ring: taken, as it loses least. Points have no intervals: other windows decide.',
      {wide: 620, high: 320, y: {label: 'loss, nats', log: true},
      rings: trials.filter(t => t.taken === true).map(point(counts)),
      x: {label: 'groups that share', ...(wide ? {log: 2}
        : {range: [Math.min(...shares) - 0.4, Math.max(...shares) + 0.4], whole: true, most: 16})},
      series: part.items.flatMap((item, i) => parts(item).map(([name, of], k) =>
        ({name: `${item.name}, ${name}`, colour: i, mark: i + k, dash: k,
        points: trials.filter(t => t.item === item).map(point(of))})))}),
    table('What is lost by number of groups that share. What counts is the KLD, what answers lack, or the sum where both are ' +
      'asked for.', [['^plan', 'name'], ['groups that share', 'sharing', count],
      ['KLD', t => general(kld(t), 4)], ['answers lack', t => general(lack(t), 4)], ['what counts', t => general(counts(t), 4)],
      ['<taken', 'taken', yes]], trials)];
}

/* ---- Speed: dq bench ---- */

/* One row a kind of work: its caption; of its curve the members x, seconds and what divides them, and those that tell curves
 * apart; its columns [title, member, factor, digits], without a factor text. */
const WORKS = {
  prefill: {x: 'tokens', seconds: 'seconds_median', each: 'tokens', label: ['weights'],
    words: 'Prefill of one prompt: shares are of one dense product of the same model, and of the peak, multiply-adds on ' +
      'registers alone, which products of other instructions may exceed; products and attention are shares of the pass, times ' +
        '' +
      'is against unrounded logits.',
    columns: [['tokens', 'tokens', 1, 0], ['<weights', 'weights'], ['median s', 'seconds_median', 1, 3],
      ['tokens/s', 'tokens_per_second', 1, 0], ['GFLOP/s', 'flops_per_second', 1e-9, 1],
      ['share of matmul', 'share_of_matmul', 1, 2], ['share of peak', 'share_of_peak', 1, 2],
      ['products', 'share_of_products', 1, 3], ['attention', 'share_of_attention', 1, 3],
      ['logit bits', 'logit_bits', 1, 0], ['<granularity', 'logit_granularity'], ['times', 'times_first_median', 1, 3]]},
  attention: {x: 'tokens', seconds: 'seconds_median', each: 'tokens', label: ['form'],
    words: 'Attention of one layer over a prompt: two softmaxes are both maps as attentions of their own over the same keys ' +
      'and values; times is against the first form, unrounded; as codes is the share of the pairs of query and key that are ' +
      'multiplied in int8.',
    columns: [['tokens', 'tokens', 1, 0], ['<form', 'form'], ['logit bits', 'logit_bits', 1, 0],
      ['<granularity', 'logit_granularity'], ['ms', 'seconds_median', 1e3, 2],
      ['GFLOP/s', 'flops_per_second', 1e-9, 1], ['share of peak', 'share_of_peak', 1, 2], ['times', 'times_first_median', 1, 3],
      ['as codes', 'share_of_codes', 1, 3]]},
  generate: {x: 'context', seconds: 'step_seconds_median', each: 'batch', label: ['weights', 'batch'],
    words: 'Decoding with the whole model: GB/s are stored bytes of the weights and KV that a step reads, over its time; the ' +
      'shares are of a plain read of memory, and of the peak, multiply-adds on registers alone, timed in turns.',
    columns: [['context', 'context', 1, 0], ['batch', 'batch', 1, 0], ['<weights', 'weights'],
      ['bits per weight', 'bits_per_weight', 1, 2], ['ms/step', 'step_seconds_median', 1e3, 3],
      ['tokens/s', 'tokens_per_second', 1, 1], ['least', 'tokens_per_second_min', 1, 1],
      ['most', 'tokens_per_second_max', 1, 1], ['GB/s', 'bytes_per_second', 1e-9, 1],
      ['share of read', 'share_of_read', 1, 2], ['share of peak', 'share_of_peak', 1, 2]]},
  decode: {x: 'context', seconds: 'token_seconds_median', label: ['kv_bits', 'attention_math'],
    words: 'Attention of one token after a context, with nothing in the caches: the share is of a plain read of the KV; ' +
      'ms/token is the whole model, projections in f32.',
    columns: [['context', 'context', 1, 0], ['<KV bits', 'kv_bits'], ['<attention', 'attention_math'],
      ['KV, MiB', 'kv_bytes', 2 ** -20, 2], ['ms', 'attention_seconds_median', 1e3, 3],
      ['GB/s', 'attention_bytes_per_second', 1e-9, 1], ['share of read', 'share_of_read', 1, 2],
      ['times 16 bits', 'speedup_over_16_bits', 1, 2], ['ms/token', 'token_seconds_median', 1e3, 2]]},
  evict: {words: 'Evicting three quarters of a context: what watching the prefill and evicting after it took more than a ' +
    'prefill that nobody watches, as a share of that.',
    columns: [['tokens', 'tokens', 1, 0], ['<policy', 'policy'], ['prefill s', 'prefill_seconds_median', 1, 3],
      ['more', 'over_prefill_median', 1, 3], ['least', 'over_prefill_min', 1, 3],
      ['most', 'over_prefill_max', 1, 3], ['evicting', 'evicting_over_prefill_median', 1, 3]]},
  items: {words: 'Scoring of short items: computed tokens, and beside them one long prefill and the bare products of the same ' +
    '' +
    'rows.',
    columns: [['<task', 'task'], ['items', 'items', 1, 0], ['computed/s', 'computed_tokens_per_second_median', 1, 0],
      ['naive/s', 'naive_tokens_per_second_median', 1, 0],
      ['prefill/s', 'prefill_tokens_per_second_median', 1, 0], ['of prefill', 'share_of_prefill_median', 1, 2],
      ['of floor', 'share_of_floor_median', 1, 2]]},
};

/* Results with one label lie on one curve. */
function curveLabel(part, item) {
  const work = WORKS[item.j.what], bits = number(item.j, 'logit_bits'), math = text(item.settings, 'math');
  const apart = work.label.map(key => (typeof item.j[key] === 'number' ? `${key} ${general(item.j[key], 6)}`
    : item.j[key])).filter(x => x);
  return [`${item.name}: ${item.j.what}`, ...apart,
    ...(bits < 16 ? [`${bits}-bit logits`, text(item.j, 'logit_granularity')] : []), math,
    `threads: ${count(number(item.settings, 'threads'))}`]
    .filter(x => x).join(', ') + (part.inputs.length > 1 ? ` (${lastPart(item.input.name)})` : '');
}

function growth(part) {
  const drawn = part.items.filter(x => (WORKS[x.j.what] || {}).x).map(x =>
    ({item: x, label: curveLabel(part, x), work: WORKS[x.j.what]}));
  return drawn.length > 0 && plot('Time per token: of prefill and attention (one layer) the mean over the prompt, of decoding ' +
    '' +
    'that of one token after the context, a batch sharing its step.', {
    wide: 620, high: 350, x: {label: 'tokens in the context', log: 2}, y: {label: 'milliseconds per token', log: true},
    series: unique(drawn.map(d => d.label)).map((name, i) =>
      ({name, ...styleOf(i), points: drawn.filter(d => d.label === name).map(({item, work}) => {
      const y = (1e3 * number(item.j, work.seconds)) / (work.each ? number(item.j, work.each) : 1);
      return {x: number(item.j, work.x), y, tip: [name,
        `${count(number(item.j, work.x))} tokens: ${general(y, 4)} ms per token`,
        commandLine(text(item.input.document, 'command'), ['', text(item.j, 'model')]) + ' ...']};
    }).sort((a, b) => a.x - b.x)}))});
}

function speeds(part) {
  return Object.entries(WORKS).map(([what, work]) =>
    table(work.words, [['<model', 'name'], ...(part.inputs.length > 1 ? [['<document', x => lastPart(x.input.name)]] : []),
    ['threads', 'settings.threads', count], ['<arithmetic', 'settings.math'],
    ...work.columns.map(([title, key, times, digits]) => [title,
      x => (times ? fixed(times * number(x.j, key), digits) : text(x.j, key) || NONE)])],
      part.items.filter(x => x.j.what === what)));
}

/* ---- Evaluation: dq eval ---- */

const ROW = [['<row', 'label'], ['<task', 'task']];

function isText(row) {
  return at(row.j, 'metrics.kld_nats') !== undefined;
}

/* What hovering over a row's point shows. */
function tipOf(row, metric, words) {
  const m = at(row.j, `metrics.${metric}`), v = at(row.j, 'verdict');
  return [row.label, `${row.task}: ${words || metric} ${bounded(m)}`, v && number(v, 'interval.0') === number(v, 'interval.0')
    ? `loss ${value(number(v, 'loss'))}, 95 % interval ${interval(v.interval).textContent}: ${text(v, 'is')}` : '',
    commandOfRow(row)];
}

function verdicts(part) {
  const rows = part.items.filter(r => isObject(at(r.j, 'verdict')));
  const widths = (x, is) => Object.keys(at(x, 'widths')
    || {}).filter(bits => x.widths[bits] === is).sort((a, b) => b - a).join(', ') || NONE;
  return rows.length && [
    el('p', `A row is within the margin, ${general(number(rows[0].j, 'verdict.margin'), 6)}, if all of the interval of its ` +
      `loss is at most that; it exceeds the margin if all of it is more; else the row is ` +
      'inconclusive.'),
    list(part.document, 'says').map(sentence => el('p', sentence)),
    table('The lowest width of the attention logits within the margin, with every larger width that was tested. 16 bits stand ' +
      '' +
      'for no rounding.', [['<model', 'model'], ['<task', 'task'],
      ['<granularity', 'logit_granularity'], ['<KV cache', x => `${text(x, 'kv_label')}, ${text(x, 'math.linear')}`],
      ['lowest', x => (x.lowest ? count(x.lowest) : 'none')],
      ['within', x => widths(x, 'within the margin')], ['exceeds', x => widths(x, 'exceeds the margin')],
      ['inconclusive', x => widths(x, 'inconclusive')]], list(part.document, 'lowest_logit_bits')),
    table('Loss of each row against its reference on the same items or tokens: accuracy lost, or nats of negative ' +
      'log-likelihood. The interval is a paired one of 95 % (Student\'s t over clusters; of independent items, Tango\'s score ' +
        '' +
      'interval). The last column is a rough count of clusters.',
      [...ROW, ['<compared with', 'j.reference'], ['<verdict', 'j.verdict.is'], ['loss', 'j.verdict.loss'],
      ['interval', 'j.verdict.interval', interval], ['clusters', 'j.verdict.n_clusters', count], ['<each a', 'j.cluster'],
      ['more that would decide', r => number(r.j, 'verdict.missing_clusters'), count]], rows)];
}

/* Rows of each task: [task, rows]. */
function byTask(part, rows = part.items) {
  return part.tasks.map(task => [task, rows.filter(r => r.task === task)]).filter(([, its]) => its.length);
}

/* A metric over logit bits, a line for each model, granularity and cache; beside each other by a little, so that bars do not
 * cover each other. */
function overBits(rows, words, y, metricOf, {far, level: floor} = {}) {
  const lines = bitLines(rows), widths = unique(lines.flatMap(l => l.rows.map(r => r.bits))).sort((a, b) => b - a);
  const aside = k => (lines.length < 2 ? 0 : 0.2 * (k / (lines.length - 1) - 0.5));
  return plot(words, {x: stepAxis('bits of the attention logits', widths.map(String)), y, level: floor,
    series: lines.map((line, k) => ({...line, points: line.rows.map(r => {
    const metric = metricOf(r), p = pointOf(widths.indexOf(r.bits) + aside(k), at(r.j, `metrics.${metric}`), tipOf(r, metric));
    const p99 = far ? number(r.j, `metrics.${metric}.p99`) : NaN;
    return {...p, lo: y.log && p.lo <= 0 ? p.y / 100 : p.lo, far: p99 > p.y ? p99 : undefined};
  })}))});
}

function accuracy(part) {
  const scored = byTask(part).map(([task, rows]) =>
    [task, rows.filter(r => mainMetric(r) && Number.isFinite(number(r.j, `metrics.${mainMetric(r)}.value`)))]).filter(([,
    rows]) => rows.length);
  const swept = scored.filter(([, rows]) => bitLines(rows).length), plain = scored.filter(([, rows]) => !bitLines(rows).length);
  return scored.length && [
    el('div.pair', swept.map(([task, rows]) => overBits(rows,
      [task, ': ', el('code', mainMetric(rows[0])),
      ' (a fraction) over the bits of the attention logits; 16 is not rounded. Bars are one standard error over the items. ' +
      'Points of one width stand a little apart to be seen.'], scoreAxis(mainMetric(rows[0])), mainMetric))),
    plain.map(([task, rows]) => [el('h4', `${task}, `, el('code', mainMetric(rows[0]))),
      table('A bar per row, from 0 to 1; the thin bar reaches one standard error over the items to either side.', [
      ['<row', 'label'], ['<0 to 1', r => { const p = pointOf(0, at(r.j, `metrics.${mainMetric(r)}`)); return bar(p.y,
        Number.isFinite(p.lo) ? p.lo : p.y, Number.isFinite(p.hi) ? p.hi : p.y); }],
      ['value', r => at(r.j, `metrics.${mainMetric(r)}`), bounded]], rows)])];
}

function weightScores(part) {
  const points = part.items.filter(r => r.bits === 16 && !r.kv && mainMetric(r)
    && Number.isFinite(number(r.j, `metrics.${mainMetric(r)}.value`) + weightBits(r)));
  const source = r => text(r.j, 'reference') || r.model;
  const drawn = byTask(part, points).filter(([, rows]) =>
    rows.some(r => rows.some(o => source(o) === source(r) && weightBits(o) !== weightBits(r))));
  return drawn.length > 0 && el('div.pair', drawn.map(([task, rows]) =>
    plot(`${task}: the score (a fraction) over bits per weight, containers and what they were made of. Bars are one standard ` +
    `error over the items.`, {
    x: {label: 'bits per weight'}, y: {label: 'score', clip: [0, 1]},
    series: unique(rows.map(source)).map((name, i) => ({name, ...styleOf(i),
      points: rows.filter(r => source(r) === name).sort((a, b) => weightBits(a) - weightBits(b)).map(r =>
        pointOf(weightBits(r), at(r.j, `metrics.${mainMetric(r)}`),
        [...tipOf(r, mainMetric(r)).slice(0, 2), `${fixed(weightBits(r), 3)} bits per weight`,
          ...tipOf(r, mainMetric(r)).slice(2)]))}))})));
}

function averages(part) {
  const named = x => list(x, 'tasks').map((task, i) => task +
    ([undefined, null, 'acc'].includes(list(x, 'metrics')[i]) ? '' : ` (${x.metrics[i]})`)).join(', ');
  return table('Mean over tasks, each of which counts as much, \u00b1 standard error, and its paired differences.',
    [['<model', 'model'], ['logit bits', 'logit_bits', count], ['<granularity', 'logit_granularity'],
    ['KV bits', x => `${general(number(x, 'kv.k_bits'), 6)}:${general(number(x, 'kv.v_bits'), 6)}`], ['<tasks', named],
    ['mean', 'mean', measured], ['minus reference', 'paired', difference],
    ['<verdict', 'verdict.is'], ['minus first model', 'cross_paired', difference]], list(part.document, 'averages'));
}

/* A row that differs from its reference, so that KLD says something. */
function hasKld(row) {
  const x = number(row.j, 'metrics.kld_nats.value');
  return Number.isFinite(x) && !(x === 0 && row.bits === 16);
}

function floorOf(row) {
  const x = at(row.j, 'metrics.kld_nats.noise_floor');
  return typeof x === 'number' ? x : number(x, 'value');
}

function kldOverBits(part, task, rows) {
  const floor = Math.max(...rows.map(floorOf).filter(x => x > 0), 0),
    least = Math.min(...rows.filter(hasKld).map(r => number(r.j, 'metrics.kld_nats.value')).filter(x => x > 0));
  const drawn = floor > least / 100, cluster = clusterOf(part); /* decades below, it would take the picture from them */
  return [
    overBits(rows, `KL divergence of the next-token distribution from that of the reference, in nats per token, over the bits ` +
      `` +
      `of the attention logits. Marks are means; bars are one standard error, each ${cluster} ` +
      'a cluster; thin dotted lines reach up to the 99th percentile of single tokens (squares).' +
        (floor ? ` ${drawn ? 'The dotted level is' : 'Far below the picture lies'} the noise floor, ${scientific(floor, 1)} ` +
        `nats: ` +
      'the divergence of the reference from itself when every number of its final states is moved by one unit in the last ' +
        'place; rounding in the layers before comes on top.' : ''),
    LOSS, () => 'kld_nats', {far: true, level: drawn ? floor : undefined}),
    overBits(rows, `Mean negative log-likelihood less that of the reference on the same tokens (the logarithm of the ratio of ` +
      `` +
      `perplexities). Bars are one paired standard error, each ${cluster} a cluster.`,
      {label: 'NLL minus reference, nats per token', zero: true}, () => 'ln_ppl_ratio')];
}

function kld(part) {
  const rows = part.items.filter(hasKld), kldOf = key => r => number(r.j, `metrics.kld_nats.${key}`);
  return rows.length && [
    el('div.pair', byTask(part).filter(([, its]) => isText(its[0])
      && bitLines(its).length).map(([task, its]) => kldOverBits(part, task, its))),
    table(`KL divergence from the reference, nats per token: mean \u00b1 standard error (${clusterOf(part)}s as clusters), ` +
      `and percentiles of single tokens.`, [['<row', 'label'], ['mean', 'j.metrics.kld_nats', measured],
      ...[['p50', 'p50'], ['p90', 'p90'], ['p99', 'p99'], ['p99.9', 'p999'],
        ['max', 'max']].map(([title, key]) => [title, kldOf(key)]), ['noise floor', floorOf]], rows),
    table('The share of tokens whose most probable successor is the reference\'s. \u0394p: what the probability of the ' +
      'text\'s next token gains, as a mean and as a root mean square.', [['<row', 'label'],
      ['same top-1', 'j.metrics.same_top1', measured], ['\u0394p', 'j.metrics.delta_p', measured],
      ['RMS \u0394p', r => value(number(r.j, 'metrics.delta_p.rms'), number(r.j, 'metrics.delta_p.rms_stderr'))]], rows),
    confidence(rows)];
}

function confidence(rows) {
  const bins = rows.flatMap(r => list(r.j, 'kld_by_confidence').map(b => ({...b, label: r.label})));
  return bins.length > 0 && fold('By how sure the reference is',
    table('The same by how sure the reference is.',
    [['^row', 'label'], ['reference\'s top-1 probability', b => `${general(b.from, 6)} to ${general(b.to, 6)}`],
    ['tokens', 'n', count], ['KLD', 'kld_nats', measured], ['same top-1', 'same_top1', measured]], bins, {foldable: false}));
}

/* ---- What the bytes of a cache buy ---- */

function frontTitle(front) {
  const bits = number(front, 'logit_bits');
  return `${text(front, 'model')}, ${text(front, 'task')}, ${general(bits, 6)}-bit ` +
    `logits${bits < 16 ? ` (${text(front, 'logit_granularity')})` : ''}, ${text(front, 'math.linear')}`;
}

/* The curve of a point: its policy and budget, and where codes are compared how numbers become codes. Points without codes
 * belong to the curve of each code, per-channel codes that dithering leaves alone to both. */
function curveOf(part, point) {
  const row = part.items[point.result], kv = row && at(row.j, 'kv'),
    policy = text(point, 'kept') === 'least' ? 'nothing but first and last tokens' : text(point, 'policy');
  return {policy, budget: (text(point, 'policy') && text(kv, 'budget')) || 'uniform',
    code: row && part.codesDiffer ? row.code : '', undithered: Boolean(row && row.undithered)};
}

function liesOn(its, curve) {
  return its.policy === curve.policy && its.budget === curve.budget
    && (!its.code || its.code === curve.code || (its.undithered && curve.code === 'dither'));
}

function curvesOf(part, front) {
  const curves = [], points = list(front, 'points').map(p => ({p, c: curveOf(part, p)})).sort((a, b) =>
    a.p.result - b.p.result);
  const stage = c => (!c.code ? 2 : c.undithered ? 1 : 0);
  for (const cut of [false, true]) {
    for (const now of [0, 1, 2])
      for (const {c} of points) if ((c.policy !== '') === cut && stage(c) === now
        && !curves.some(curve => liesOn(c, curve))) curves.push(c);
    if (!cut && !curves.length) curves.push({policy: '', budget: 'uniform', code: ''}); /* its colour is kept */
  }
  return curves;
}

function curveName(c) {
  const code = c.code ? `, ${c.code} codes` : '';
  return !c.policy ? `all tokens kept${code}` : c.budget === 'uniform' ? c.policy + code
    : `${c.policy}, budget ${c.budget}${code}`;
}

function frontPlot(part, front) {
  const loses = text(front, 'metric') === 'kld_nats', better = (y, best) => best === undefined || (loses ? y < best : y > best);
  const points = list(front, 'points').filter(p => !loses
    || number(p, 'value') > 0).map(p => ({x: number(p, 'share'), y: number(p, 'value'), p, curve: curveOf(part, p),
    tip: [text(p, 'kv_label'), `share ${value(number(p, 'share'))}, ${loses ? 'KLD' : 'score'} ` +
      `${value(number(p, 'value'), number(p, 'stderr'))}: ${text(p, 'is')}`,
      list(p, 'interval').length ? `worse by ${value(number(p, 'worse'))}, interval ${interval(p.interval).textContent}` : '',
      part.items[p.result] ? commandOfRow(part.items[p.result]) : '']}));
  return plot(`${frontTitle(front)}: ${loses ? 'KL divergence from the reference' : 'the score'} over the bytes held (codes, ` +
    `scales, unquantized tokens and indices, as allocated), as a share of 2 bytes for every element of ` +
    `every token. A curve joins the best points of a policy and ` +
      `budget${part.codesDiffer ? ' with one kind of codes (16 bits have none and belong to all, per-channel codes of values ' +
      'that dithering leaves alone also to dithered ones)' : ''},
      over shares kept and widths; dots are its others. A ring: decided to be better than everything that holds no more.`, {
    wide: 520, high: 340, x: SHARE_OF_CACHE, y: loses ? LOSS : scoreAxis(text(front, 'metric')),
    rings: points.filter(p => text(p.p, 'is') === 'on the Pareto front'),
    series: curvesOf(part, front).flatMap((curve, i) => {
      let best;
      const style = {colour: i, mark: i + Math.floor(i / 7), dash: Math.floor(i / 49)}, on = [], off = [];
      for (const p of points.filter(q => liesOn(q.curve, curve))) {
        (better(p.y, best) ? on : off).push(p);
        if (better(p.y, best)) best = p.y;
      }
      return [{...style, name: curveName(curve), points: on}, {...style, points: off, line: false, small: true}];
    })});
}

function fronts(part) {
  const all = list(part.document, 'pareto_fronts');
  const against = (front, k) => (Number.isInteger(k) ? text(list(front, 'points').find(p => p.result === k), 'kv_label') : '')
    || 'nothing holds as little';
  return all.length && [
    el('div.pair', all.map(front => frontPlot(part, front))),
    all.map(front => [el('p', [`${frontTitle(front)}.`, ...list(front, 'says'), 'Dominated is what one of them is better ' +
      'than; about the others nothing is decided. From a share of 1 on a cache saves nothing at this context.'].join(' ')),
    table('Caches by bytes held; value is the score, or nats of KLD. Each is compared with the one of no more bytes that ' +
      'decided, or came nearest to it.', [['<KV cache', 'kv_label'], ['bytes held', 'bytes_held', count],
      ['share of 16 bits', 'share'], ['value', p => value(number(p, 'value'), number(p, 'stderr'))], ['<front', 'is'],
      ['<compared with', p => against(front, p.against)], ['worse by', p => number(p, 'worse')],
      ['interval', 'interval', interval]], list(front, 'points'))])];
}

/* Rows with neighbours in their task that differ in the cache and in nothing else. */
function sweptCaches(part) {
  return part.items.filter(r => part.items.some(o => o.model === r.model && o.bits === r.bits && o.task === r.task
    && o.granularity === r.granularity && o.kv !== r.kv));
}

function kv(part) {
  const swept = sweptCaches(part), inFront = new Set(list(part.document,
    'pareto_fronts').map(f => (part.items[number(f, 'points.0.result')] || {}).task));
  const metricOf = r => (isText(r) ? 'kld_nats' : mainMetric(r)),
    drawn = swept.filter(r => metricOf(r) && Number.isFinite(cacheShare(r))
    && Number.isFinite(number(r.j, `metrics.${metricOf(r)}.value`)));
  const saves = r => (Number.isFinite(cacheShare(r))
    ? general(cacheShare(r), 4) + (cacheShare(r) >= 1 ? `, ${SAVES_NOTHING}` : '') : NONE);
  const pictures = byTask(part, drawn).filter(([task]) => !inFront.has(task)).map(([task, rows]) => {
    const log = isText(rows[0]), several = unique(rows.map(r => r.bits)).length > 1,
      key = r => JSON.stringify([r.model, r.bits, r.kept, r.bits === 16 ? '' : r.granularity]);
    return plot(`${task}: ${log ? 'KL divergence from the reference' : 'the score'} over the bytes that the KV cache holds ` +
      `(codes, scales, unquantized tokens and indices, as allocated), as a share of 2 bytes for every element ` +
      'of every token. Bars are one standard error.',
      {high: 300, x: {...SHARE_OF_CACHE, log: false}, y: log ? LOSS : scoreAxis(mainMetric(rows[0])),
        series: unique(rows.map(key)).map(k => {
      const its = rows.filter(r => key(r) === k).sort((a, b) => cacheShare(a) - cacheShare(b)), r = its[0];
      const before = unique(rows.filter(o => o.model === r.model).map(key)).indexOf(k);
      return {name: [r.model, ...(several ? [`${r.bits} logit bits`] : []), r.kept || 'all tokens kept'].join(', '),
        colour: r.colour, mark: before, dash: before, points: its.map(o => {
        const p = pointOf(cacheShare(o), at(o.j, `metrics.${metricOf(o)}`), tipOf(o, metricOf(o)));
        return {...p, lo: log && p.lo <= 0 ? p.y / 100 : p.lo};
      })};
    })});
  });
  return drawn.length > 0 && [el('div.pair', pictures),
    table('What the caches hold: bytes over all contexts and per token of context, as a share of 16 bits, the share of tokens ' +
      '' +
    'kept, and the share of codes among the keys that scored rows read.',
    [...ROW, ['bytes held', 'j.kv.bytes_held', count], ['per token', 'j.kv.bytes_per_token'], ['share of 16 bits', saves],
    ['tokens kept', 'j.kv.kept_fraction'],
    ['read as codes', 'j.kv.lowbit_fraction']], swept.filter(r => Number.isFinite(number(r.j, 'kv.bytes_held'))))];
}

/* ---- Kinds of evaluation ---- */

function positions(part) {
  const rows = part.items.filter(r => isObject(at(r.j, 'positions'))),
    differ = rows.some(r => list(r.j, 'positions.difference_nats').length);
  const curve = (path, bars) => rows.filter(r => list(r.j, `positions.${path}`).length).map(r =>
    ({name: r.label, ...r.style, points: list(r.j, `positions.${path}`).map((m, i) => {
    const p = pointOf(number(r.j, `positions.at.${i}`), m,
      [r.label, `position ${at(r.j, `positions.at.${i}`)}: ${measured(m)} nats`, commandOfRow(r)]);
    return bars ? p : {...p, lo: NaN, hi: NaN};
  })}));
  const x = {label: 'position, tokens', log: 2};
  const columns = rows.reduce((a, r) => (list(r.j, 'positions.at').length > a.length ? list(r.j, 'positions.at') : a), []);
  const lines = rows.flatMap(r => [['cumulative NLL', 'cumulative_nll_nats'],
    ['minus reference', 'difference_nats']].filter(([, key]) => Array.isArray(at(r.j, `positions.${key}`)))
    .map(([what, key]) => ({label: r.label, what,
      at: n => list(r.j, `positions.${key}`)[list(r.j, 'positions.at').indexOf(n)]})));
  const fits = rows.filter(r => isObject(at(r.j, 'positions.fit')));
  const bins = rows.flatMap(r => list(r.j, 'positions.bins').map(b => ({...b, label: r.label})));
  return rows.length && [
    el('p', `Documents: ${count(number(rows[0].j, 'positions.documents'))}.`),
    el('div.pair', plot('Mean negative log-likelihood of all tokens up to a position, averaged over documents that reach the ' +
      'last one. Standard errors over documents stand in the table.',
      {x, y: {label: 'cumulative NLL, nats per token'}, series: curve('cumulative_nll_nats', false)}),
    differ && plot('The same less the reference on the same documents. Bars are one paired standard error over documents.',
      {x, y: {label: 'difference, nats per token', zero: true}, series: curve('difference_nats', true)})),
    table('Cumulative negative log-likelihood in nats per token up to a position, \u00b1 standard error over documents; ' +
      'differences \u00b1 paired standard error.',
      [['^row', 'label'], ['<value', 'what'], ...columns.map(n => [count(n), x => measured(x.at(n))])], lines),
    table('alpha t^beta + gamma through the cumulative NLL of the first t tokens, by least squares \u00b1 standard error over ' +
      '' +
      'documents.', [['<row', 'label'],
      ...['alpha', 'beta', 'gamma'].map(key => [key, `j.positions.fit.${key}`, measured]),
      ['residual (nats)', 'j.positions.fit.residual_nats']], fits),
    bins.length > 0 && fold('Mean in ranges of positions',
      table('Mean negative log-likelihood within ranges of positions: damage at late positions, which a cumulative mean ' +
      'hides; and the paired difference to the reference.',
      [['^row', 'label'], ['positions', b => `${b.from} to ${b.to}`], ['tokens', 'n', count],
        ['NLL (nats)', 'nll_nats', measured], ['minus reference (nats)', 'difference_nats', measured]], bins,
        {foldable: false}))];
}

/* Cells of needles by length and depth, with their row. */
function needleCells(part) {
  return part.items.flatMap(r => list(r.j, 'needle.cells').map(c =>
    ({...c, row: r, label: r.label, kind: `N = ${c.n_needles}, R = ${c.n_queries}`})));
}

function depthText(c) {
  return `${general(100 * c.depth, 6)} %`;
}

const ANSWERS = [['correct', 'correct', 0], ['other_needle', 'another needle\'s number', 4],
  ['near_miss', 'near miss (at least 5 of 7 digits)', 5], ['none', 'none of these', 6]];

function needle(part) {
  const cells = needleCells(part);
  if (!cells.length) return null;
  const first = at(cells[0].row.j, 'needle'), boundary = text(first, 'kv_boundary'),
    answered = cells.filter(c => isObject(c.confusion));
  const where = c => [['^row', 'label'], ['length', 'length', count], ['depth', depthText], ['<numbers', 'kind']];
  return [
    el('p', `Accuracy: the share of the R numbers asked for, out of N in the text, that are ` +
      `${text(first, 'mode') === 'generated' ? 'generated exactly' : 'predicted exactly, digit by digit, when the right ' +
      'digits before are given'}. ` +
      'Rows are depths of the first needle that is asked for, columns lengths in tokens. The stronger the colour, the more ' +
        'are found; hovering shows the standard error.' +
      (boundary && part.showsKv ? ` A KV cache that evicts or rounds does so ${boundary}.` : '')),
    el('div.maps', unique(cells.map(c => c.label + '\n' + c.kind)).map(key => {
      const its = cells.filter(c => c.label + '\n' + c.kind === key).sort((a, b) => a.depth - b.depth);
      return heat(its[0].label, its[0].kind, {corner: 'depth \\ length', shade: 'share',
        cells: its.map(c => ({row: depthText(c), column: c.length, x: number(c, 'acc.value'),
        shown: fixed(number(c, 'acc.value'), 2),
        tip: [c.label, `length ${c.length}, depth ${depthText(c)}: ${measured(c.acc)}, n = ${c.n}`, commandOfRow(c.row)]}))});
    })),
    answered.length > 0 && fold('What is answered instead',
      legend(ANSWERS.map(([, name, colour]) => ({name, colour, swatch: true}))),
      table('Shares of the numbers asked for, at each length and depth.',
        [...where(), ['<shares', c => el('div.stack', {'aria-hidden': 'true'},
        ANSWERS.filter(([key]) => c.confusion[key] > 0).map(([key, , colour]) =>
          el(`i.s${colour}`, {style: `width:${(100 * c.confusion[key]).toFixed(2)}%`})))],
      ...[['correct', 'correct'], ['other needle', 'other_needle'], ['near miss', 'near_miss'],
        ['none', 'none']].map(([title, key]) => [title, c => fixed(number(c, `confusion.${key}`), 3)])], answered,
        {foldable: false}))];
}

/* Ways to make shares of a row of attention whose entries may be negative. The first lies in 0 to 1 and counts all attention.
 * */
const NORMS = [['absolute', 'absolute values, divided by their sum'],
  ['positive', 'negative entries left out, divided by the sum of the rest'],
  ['sum', 'divided by the sum of the row: no share where that sum is near 0']];

function attention(part) {
  const cells = needleCells(part).filter(c => isObject(c.attention));
  if (!cells.length) return null;
  const best = cells.filter(c => isObject(at(c, 'attention.best_head'))), lengths = unique(cells.map(c => c.length)).length > 1;
  const lines = unique(cells.map(c => c.label + '\n' + c.length + '\n' + c.kind)).map((key, i) =>
    ({cells: cells.filter(c => c.label + '\n' + c.length + '\n' + c.kind === key), i}));
  const picture = (norm, what, words) => plot(words,
    {x: {label: 'depth of the answer, %'}, y: {label: what === 'answer' ? 'attention to the answer' : 'attention noise',
    zero: true}, series: lines.map(({cells: its, i}) => ({
    name: its[0].label + (lengths ? `, ${its[0].length} tokens` : ''), ...styleOf(i),
    points: its.map(c => pointOf(100 * c.depth, at(c, `attention.${norm}.table3.${what}`),
      [c.label, `length ${c.length}, depth ${depthText(c)}: ${measured(at(c, `attention.${norm}.table3.${what}`))}`,
        commandOfRow(c.row)])).sort((a, b) => a.x - b.x)}))});
  return [
    NORMS.map(([norm, name], k) => {
      const shown = [el('div.pair', picture(norm, 'answer',
        'Attention to the sentence that holds the answer, averaged over heads, layers and samples. Bars are one standard ' +
        'error.'),
        picture(norm, 'noise', 'Attention noise: mass on tokens that are neither the first, nor the answer\'s sentence, nor ' +
          'the question; other needles count.')),
      table(`Shares by length and depth of the answer, \u00b1 one standard error: ${name}.`,
        [['^row', 'label'], ['length', 'length', count], ['depth', depthText],
        ['answer', `attention.${norm}.table3.answer`, measured],
        ['noise', `attention.${norm}.table3.noise`, measured], ['rows of heads', 'attention.head_rows', count],
        ['sum below 0.1', 'attention.small_sums', count]], cells)];
      return k ? fold(`Other normalization: ${name}`, shown) : [el('p', `Normalization: ${name}.`), shown];
    }),
    best.length > 0 && fold('The best head of each cell',
      table('Means hide heads that retrieve: the head with the most attention to the answer.',
      [['^row', 'label'], ['length', 'length', count], ['depth', depthText],
      ['layer', 'attention.best_head.layer', count], ['head', 'attention.best_head.head', count],
      ['attention to the answer', 'attention.best_head.answer']], best, {foldable: false}))];
}

function icl(part) {
  const rows = part.items.filter(r => isObject(at(r.j, 'icl'))),
    flat = key => rows.flatMap(r => list(r.j, `icl.${key}`).map(x =>
    ({...x, row: r, label: r.label, task: r.task, order: orderOf(r)})));
  const where = [['^row', 'label'], ['^task', 'task'], ['^order', 'order']];
  const spread = over => [...where, ['shots', 'shots', count], [over, over, count], ['mean', 'acc_mean'],
    ['std. dev.', 'acc_std'], ['worst', 'acc_min'], ['best', 'acc_max'], ['spread', x => x.acc_max - x.acc_min]];
  return rows.length && [
    el('div.pair', byTask(part, rows).map(([task, its]) =>
      plot(`${task}: accuracy over the number of demonstrations. Lines are means over runs, each with other demonstrations in ` +
        `` +
      `another order; bands reach from the worst run to ` +
      'the best; small marks are single runs.', {x: {label: 'demonstrations (shots)', whole: true},
        y: {label: 'accuracy', range: [0, 1.03]}, series: its.flatMap(r => [
      {name: r.label, ...r.style, band: list(r.j, 'icl.curve').map(c => ({x: c.shots, lo: c.acc_min, hi: c.acc_max})),
        points: list(r.j, 'icl.curve').map(c => ({x: c.shots, y: c.acc_mean,
        tip: [r.label, `${c.shots} demonstrations: ${value(c.acc_mean)}`,
          `runs from ${value(c.acc_min)} to ${value(c.acc_max)}`, commandOfRow(r)]}))},
      {...r.style, line: false, small: true, points: list(r.j,
        'icl.runs').map(x => ({x: x.shots, y: number(x, 'acc.value'),
        tip: [r.label, `one run of ${x.shots} demonstrations: ${bounded(x.acc)}`]}))}])}))),
    table('Accuracy by number of demonstrations, over runs; the spread is the best run less the worst. A standard error of ' +
      'the mean is the standard deviation divided by the root of the number of runs.', spread('runs'), flat('curve')),
    table('Mean accuracy over the larger numbers of demonstrations \u00b1 standard error for other runs and queries, and its ' +
      'paired differences.', [...ROW, ['<order', orderOf], ['from shots', 'j.icl.plateau.from', count],
      ['mean', 'j.icl.plateau.acc', measured], ['minus reference', 'j.icl.plateau.paired', difference],
      ['minus first model', 'j.icl.plateau.cross_paired', difference]], rows.filter(r => isObject(at(r.j, 'icl.plateau')))),
    table('The same demonstrations, those of the first run, in several orders: what their order alone does to the accuracy.',
      spread('permutations'), flat('permutation_spread'))];
}

function slices(part) {
  const rows = part.items.filter(r => isObject(at(r.j, 'slices'))), s = rows.length && rows[0].j.slices;
  return rows.length && [
    el('p', `AR hits are the last tokens of bigrams that occurred earlier in the same context and are rare: at most ` +
      `${general(s.threshold, 6)} times in ${text(s, 'counted_in')}; ${fixed(100 * s.share_ar_hit, 1)} % of the tokens here.`),
    table('Mean negative log-likelihood of the two slices \u00b1 standard error, and the paired difference to the reference.',
      [['^row', 'label'], ['<slice', 'slice'], ['tokens', 'of.n', count],
      ['NLL (nats)', 'of.nll_nats', measured], ['minus reference (nats)', 'of.delta_nats', measured]],
    rows.flatMap(r => [['AR hit', 'ar_hit'], ['others', 'others']].map(([slice, key]) =>
      ({label: r.label, slice, of: at(r.j, `slices.${key}`)}))))];
}

function generation(part) {
  const ended = g => Object.entries(at(g, 'ends') || {}).filter(([, n]) => n).map(([why, n]) => `${why} ${n}`).join(', ')
    || NONE;
  return table('Answers generated greedily. Exact match: the share whose last number is right; strict match: whose number ' +
    'after #### is; finished: the share that ended by a stop before the limit. New tokens are a mean. Standard errors over ' +
    'items.', [...ROW, ['items', 'j.n', count], ['exact match', 'j.metrics.exact_match', measured],
    ['strict match', 'j.metrics.strict_match', measured], ['finished', 'j.generation.finished', measured],
    ['new tokens', 'j.generation.new_tokens_mean'], ['<ended by', 'j.generation', ended]],
    part.items.filter(r => isObject(at(r.j, 'generation'))));
}

function results(part) {
  return byTask(part).map(([task, rows]) => {
    const metrics = unique(rows.flatMap(r => Object.keys(at(r.j, 'metrics')))),
      paper = rows.map(r => text(r.j, 'paper_metric')).find(x => x);
    const cluster = rows.map(r => text(r.j, 'cluster')).find(x => x), texts = rows.some(r => at(r.j, 'metrics.ppl'));
    const over = texts ? `n: scored tokens; \u00b1 one standard error, each ${clusterOf(part)} a cluster; \u2013 where a row ` +
      `is its own reference.`
      : `n: items; \u00b1 one standard error over ${cluster === 'query' ? 'queries, which runs share' : 'items'}.`;
    return [el('h4', task), table(`All rows of this task. ` +
      `${over}${paper ? ' The metric with a star is the one that the paper\'s tables use.' : ''}`, [
      ['<model', r => r.model + (orderOf(r) ? `, order ${orderOf(r)}` : '')],
      ...SIZE.map(([title, key, form]) => [title, r => number(r.j, `weights.${key}`), form]),
      ['weight bits', 'j.weights.bits', scalar],
      ['logit bits', 'bits', count], ['<granularity', r => (r.bits === 16 ? NONE : r.granularity)],
      ...(part.showsKv ? [['<KV cache', r => r.kv || '32:32']] : []), ['n', 'j.n', count],
      ...metrics.map(m => [m === paper ? `${m} *` : m, r => bounded(at(r.j, `metrics.${m}`))]),
      ['tokens/s', r => count(number(r.j, 'throughput.tokens_per_second'))]], rows)];
  });
}

function paired(part) {
  const rows = part.items.flatMap(r => [['paired', text(r.j, 'reference')],
    ['cross_paired', text(r.j, 'cross_paired.model')]].flatMap(
    ([key, against]) => Object.entries(at(r.j, key)
      || {}).filter(([, d]) => isObject(d)).map(([metric, d]) => ({...r, against, metric, d}))));
  return table('Differences on the same items or tokens, \u00b1 one paired standard error. n01: items whose score fell; n10: ' +
    'whose score rose; p: exact two-sided McNemar test of the two, or where items share queries a t test over these. Of tests ' +
      '' +
    'at 0.05, one in 20 calls equal rows different.',
    [...ROW, ['<compared with', 'against'], ['<metric', 'metric'],
    ['difference', x => (x.d.delta > 0 ? '+' : '') + difference(x.d)],
    ['95 % interval', 'd.interval', interval], ['n01', x => count(number(x.d, 'n01'))], ['n10', x => count(number(x.d, 'n10'))],
    ['p', x => general(number(x.d, 'p' in x.d ? 'p' : 'mcnemar_p'), 2)]], rows);
}

/* ---- What ran ---- */

const ABOUT = {
  stats: 'Attention logits are scaled, before the softmax, of the entries that a query sees, all heads and both maps; hidden ' +
    'states are the outputs of every layer. Largest values and counts are exact; a median with \u00b1 is the middle of a bin ' +
    'of a histogram, and at most that far off.',
  quantize: 'SQNR is the signal-to-quantization-noise ratio of a tensor: 10 log10 of the sum of its squares over the sum of ' +
    'the squared errors. It says what was done to the weights, not what the model lost: dq eval does.',
  'plan weights': 'Bits are those of packed tensors, scales included. The prediction is the sum of what each tensor loses ' +
    'when it alone is rounded; measured are whole models on the search text, and the chosen one on text that the search has ' +
    'not seen.',
  'plan kv': 'KLD is in nats per id. It and the perplexity are against the same weights with an unquantized cache, on the ' +
    'second half of each window. Bits are those of codes, the mean over keys and values, without scales. \u00b1 is one ' +
    'standard error between documents, or between windows of a single one.',
  'plan heads': 'KLD is in nats per id. It and the perplexity are against the same weights with a cache that evicts nothing, ' +
    'on the second half of each window. What answers lack is \u2212ln of the right answer\'s share of all choices, in nats, ' +
    'the mean over questions. \u00b1 is one standard error: between documents, or between windows of a single one; of answers ' +
      '' +
    'between questions.',
  bench: 'Times are medians; one thread of the CPU is timed by processor time, several by the clock on the wall.',
  eval: 'Every row is compared with its reference: the same checkpoint at 16-bit logits and a cache of 32 bits, or the model ' +
    'given with --ref. A container without either is compared with nothing. \u00b1 is one standard error over the clusters of ' +
      '' +
    'a row (items, queries, documents or windows); where no item differs, a 95 % bound stands instead.',
};

function scalar(x) {
  return typeof x === 'number' && !Number.isInteger(x) ? general(x, 6) : String(typeof x === 'number' ? x : cell(x));
}

function ran(part) {
  const nested = x => typeof x === 'object' && x !== null
    && (!Array.isArray(x) || x.some(y => typeof y === 'object' && y !== null));
  const shown = x => (nested(x) ? fold('show', el('pre', JSON.stringify(x, null, 1))) : Array.isArray(x)
    ? x.map(scalar).join(', ') : scalar(x));
  const hash = x => text(x, 'content_sha256') || text(x, 'fingerprint') || text(x, 'sha256');
  const one = ({name, document}) => [
    part.inputs.length > 1 && el('h4', name),
    el('p', 'Made by ', el('code', `dq ${text(document, 'command')}`), `, version ${text(document, 'dq_version')}.`),
    fold('Settings and inputs', table('Settings, as they took effect.', [['<setting', '0'], ['<value', x => shown(x[1])]],
      Object.entries(at(document, 'settings') || {}), {foldable: false}),
      table('Inputs. The hash of a model is over its configuration and tensors; the first 16 of 64 digits.',
        [['<kind', 'kind'], ['<path', x => (typeof x === 'string' ? x : text(x, 'path') || list(x, 'sequences').join('; '))],
        ['bytes', x => number(x, 'file_bytes' in Object(x) ? 'file_bytes' : 'bytes'), count],
        ['<SHA-256', x => el('code', hash(x).slice(0, 16))]], list(document, 'inputs'), {foldable: false}))];
  return [el('p', ABOUT[part.kind.kind]), part.inputs.map(one)];
}

/* Of a part, before its sections. */
function warnings(part) {
  const all = part.inputs.flatMap(x => list(x.document, 'warnings').map(w => (part.inputs.length > 1 ? `${x.name}: ${w}` : w)));
  return all.length > 0 && el('div.warn', {role: 'note'},
    fold(el('b', `${all.length} warning${all.length === 1 ? '' : 's'}`), el('ul', all.map(w => el('li', w)))));
}

/* ---- KL divergence over size: settings of all documents ---- */

const SIZES = [['bits per weight', s => weightBits(s.row),
  'Over bits per weight, every setting. Above one another stand settings of the same weights.'],
  ['megabytes of weight files', s => number(s.row.j, 'weights.file_bytes') / 1e6, 'Over the bytes of the files of weights.'],
  ['bytes of the KV cache / bytes at 16 bits', s => (s.row.kv ? cacheShare(s.row) : NaN),
    'Over the bytes that the KV cache takes, settings that change it.']];
const AXIS_COLOURS = [0, 1, 2, 3, 4, 6];

function sizes(settings) {
  const drawn = SIZES.filter(([, of]) => unique(settings.filter(s => s.kld > 0).map(of).filter(Number.isFinite)).length > 1);
  if (!drawn.length) return null;
  const models = unique(settings.map(s => s.model)), axes = unique(settings.map(s => s.axis)).sort(ascending);
  return [
    legend([...axes.map(a => ({name: AXES[a], colour: AXIS_COLOURS[a], swatch: true})),
      ...(models.length > 1 ? models.map((name, m) => ({name, colour: 6, mark: m, line: false})) : [])]),
    el('div.pair', drawn.map(([label, of, words]) =>
      plot(words, {high: 300, withLegend: false, x: {label}, y: LOSS,
      series: models.flatMap((model, m) => axes.map(a => ({colour: AXIS_COLOURS[a], mark: m, line: false,
      points: settings.filter(s => s.model === model
        && s.axis === a).map(s => ({x: of(s), y: s.kld,
        tip: [`${model}: ${AXES[a]}, ${s.label}`, `${general(of(s), 4)} ${label}, KLD ${value(s.kld)}`,
        `loss ${value(number(s.verdict, 'loss'))}${Number.isFinite(number(s.verdict, 'interval.0')) ? `, 95 % interval ` +
          `${interval(s.verdict.interval).textContent}` : ''}: ${s.is}`, commandOfRow(s.row)]}))})))}))),
    table('Every setting of the run; share: bytes of the KV cache as a share of 16 bits for every element of every token; ' +
      'loss: nats of NLL.', [['^model', 'model'], ['<what', s => [AXES[s.axis], s.kind].filter(x => x).join(', ')],
      ['<setting', 'label'], ...SIZE.map(([title, key, form]) => [title, s => number(s.row.j, `weights.${key}`), form]),
      ['share', SIZES[2][1]], ['KLD', 'kld'], ['loss', 'verdict.loss'],
      ['95 % interval', 'verdict.interval', interval], ['<verdict', 'is'], ['<task', 'where']], settings)];
}

/* ---- The answer ---- */

function foundText(s) {
  return s.axis === LOGITS ? s.label : s.axis === WEIGHTS ? `${fixed(s.size, 2)} bits per weight (${s.label})`
    : `${s.label}, ${fixed(s.size, 2)} of the bytes of 16 bits`;
}

function notFoundText(group) {
  const rest = group.filter(s => !s.savesNothing);
  return !rest.length ? SAVES_NOTHING : rest.every(s => s.is === 'exceeds the margin') ? 'none that was tested'
    : 'inconclusive';
}

function lowestSettings(settings, groups) {
  const models = unique(groups.map(g => JSON.stringify([g[0].model, g[0].margin])));
  const elsewhere = g => settings.some(s => s.axis === g.axis && s.model === g.model && s.kind === g.kind
    && (s.n !== g.n || s.task !== g.task));
  return models.map(key => {
    const its = groups.filter(g => JSON.stringify([g[0].model, g[0].margin]) === key);
    return el('p.says', `Lowest settings of ${its[0][0].model} whose loss is within the margin, ` +
      `${general(its[0][0].margin, 6)} nats of NLL: `, its.map((group, i) => [i ? '; ' : '', AXES[group[0].axis], ' ',
      group[0].kind ? `${group[0].kind} ` : '', el('b', lowestOf(group) ? foundText(lowestOf(group)) : notFoundText(group)),
      elsewhere(group[0]) ? ` (${group[0].where})` : '']), '.');
  });
}

function lowestTable(groups) {
  const labels = (group, is) => {
    const its = group.filter(s => is(s)).map(s => s.label);
    return its.length > 4 ? `${its.slice(0, 4).join(', ')} and ${its.length - 4} more` : its.join(', ') || NONE;
  };
  const known = groups.flat().filter(s => Number.isFinite(number(s.verdict, 'interval.0'))).length;
  return fold('What this follows from', el('p',
    'The verdicts are those of dq eval on the loss: nats of NLL per token against the reference. A setting is within the ' +
    'margin if the upper end of the paired 95 % interval of its loss is at most the margin; it exceeds the margin if the ' +
    'lower end is above; else it is inconclusive. The KL divergence is shown, not judged. A width of logits counts if every ' +
    'larger one that was tested is within the margin too. A cache of as many bytes as all tokens take in 16 bits saves ' +
    'nothing at this context, and does not count. Nothing but the named setting differs from the reference. ' +
    (known ? `${known} intervals: about ${fixed(0.05 * known, 1)} are expected to miss by chance.` : '')),
  table('The lowest settings within the margin.',
    [['^model', '0.model'], ['<what', g => [AXES[g[0].axis], g[0].kind].filter(x => x).join(', ')], ['<task', '0.where'],
    ['<lowest within', g => (lowestOf(g) ? foundText(lowestOf(g)) : NONE)], ['loss', g => number(lowestOf(g), 'verdict.loss')],
    ['95 % interval', g => interval(at(lowestOf(g), 'verdict.interval'))], ['KLD', g => number(lowestOf(g), 'kld')],
    ['margin', '0.margin'], ['<inconclusive', g => labels(g, s => s.is === 'inconclusive' && !s.savesNothing)],
    ['<exceeds', g => labels(g, s => s.is === 'exceeds the margin' && !s.savesNothing)],
    ['<saves nothing', g => labels(g, s => s.savesNothing)]], groups, {foldable: false}));
}

/* What windows that did not choose the first unit of a kind say of it; logits by head or map come first. */
function firstToBreak(item) {
  const s = at(item.j, 'sensitivity'), open = [], decided = [];
  const byHead = k => k.of === 'logits' && k.by !== 'layer';
  for (const kind of unitKinds(item).sort((a, b) => byHead(b) - byHead(a))) {
    const [low, high] = [number(kind.decided, 'more_nats.interval.0'), number(kind.decided, 'more_nats.interval.1')];
    if (Number.isNaN(low + high)) continue;
    const [first, next] = [unitName(kind.decided.first), unitName(kind.decided.next)];
    if (low > 0) decided.push(el('li', `${kind.name}: `, el('b', first),
      `, ${general(low, 3)} to ${general(high, 3)} nats a token more than any other; next ${next}`));
    else open.push(`${kind.name} (${first} or ${next})`);
  }
  return decided.length + open.length > 0 && [
    el('p.says', `First to break of ${item.name}, each alone at ${count(number(s, 'bits'))} ` +
      `bits${text(s, 'granularity') ? `, logits ${text(s, 'granularity')}` : ''}:`),
    el('ul', decided, open.length > 0 && el('li', `inconclusive: ${open.join('; ')}`))];
}

/* Bits fewer than another model, where an interval decides it. */
function bitsFewer(item) {
  const all = at(item.j, 'forecast.bit_advantage');
  const said = ['logits', 'maps'].map(of => [of, at(all, `${of}.per-tensor`)]).filter(([, x]) => number(x, 'interval.0') > 0
    || number(x, 'interval.1') < 0);
  return said.length > 0 && el('p.says', `For the error that ${lastPart(text(all, 'over'))} has at 4 bits per-tensor, ` +
    `${item.name} needs: `, said.map(([of, x], i) => {
    const [low, high] = x.interval, fewer = low > 0;
    return [i ? ', ' : '', el('b', `${fixed(Math.abs(x.value), 2)} bits ${fewer ? 'fewer' : 'more'}`),
      ` for ${of} (${fixed(fewer ? low : -high, 2)} to ${fixed(fewer ? high : -low, 2)})`];
  }), '.');
}

/* Maxima are exact, of the text that was read. */
function largestOutliers(item) {
  const largest = values => list(item.j, 'outliers').filter(x => x.values === values).reduce((a, b) =>
    (a && a.magnitude >= b.magnitude ? a : b), undefined);
  const [logit, state] = [largest('attention_logits'), largest('hidden_states')];
  return (logit || state) && el('p.says', `Largest of ${item.name} on this text: `,
    logit && ['attention logit ', el('b', value(logit.magnitude)),
      ` in layer ${logit.layer} head ${logit.head}${Number.isFinite(logit.map) ? ` map ${logit.map}` : ''}, key: ` +
      `${text(logit, 'tokens')} token`],
    state && [logit ? '; ' : '', 'hidden state ', el('b', value(state.magnitude)),
      ` in channel ${state.channel} of layer ${state.layer}, ${text(state, 'tokens')} token`], '.');
}

/* A sentence stands only where an interval of a document bears it; the table below has these intervals. */
function answer(parts, settings) {
  const groups = groupsOf(settings).filter(g => g[0].axis !== MIXED);
  const items = parts.filter(p => p.kind.kind === 'stats').flatMap(p => p.items);
  const said = [lowestSettings(settings, groups),
    items.map(x => [firstToBreak(x), bitsFewer(x), largestOutliers(x)])].flat(Infinity).filter(x => x);
  return said.length > 0 && el('section.answer', {id: 'answer'}, el('h2', 'In short'), said,
    groups.length > 0 && lowestTable(groups));
}

/* ---- The page ---- */

const SECTIONS = [
  {of: 'stats', id: 'magnitudes', title: 'Largest magnitudes', show: magnitudes, open: true},
  {of: 'stats', id: 'sensitivity', title: 'Sensitivity', show: sensitivity, open: true},
  {of: 'stats', id: 'heads', title: 'Heads', show: heads},
  {of: 'stats', id: 'profiles', title: 'Profiles over layers', show: profiles},
  {of: 'stats', id: 'channels', title: 'Each outlier once', show: channels},
  {of: 'stats', id: 'matrices', title: 'Weights', show: matrices},
  {of: 'stats', id: 'layers', title: 'Magnitudes by layer', show: layers},
  {of: 'stats', id: 'maps', title: 'Attention maps', show: maps},
  {of: 'stats', id: 'places', title: 'Where the largest are', show: places},
  {of: 'quantize', id: 'containers', title: 'Containers', show: containers, open: true},
  {of: 'quantize', id: 'sqnr', title: 'SQNR by role and layer', show: sqnrByRole},
  {of: 'quantize', id: 'worst', title: 'Worst tensors', show: worst},
  {of: 'quantize', id: 'tensors', title: 'All tensors', show: tensors},
  {of: 'plan weights', id: 'chosen', title: 'Chosen', show: weightsChosen, open: true},
  {of: 'plan weights', id: 'curve', title: 'Bits against KL divergence', show: weightsCurve, open: true},
  {of: 'plan weights', id: 'tensors', title: 'All tensors', show: weightsTensors},
  {of: 'plan kv', id: 'chosen', title: 'Chosen', show: kvChosen, open: true},
  {of: 'plan kv', id: 'uniform', title: 'Beside uniform widths', show: kvUniform, open: true},
  {of: 'plan kv', id: 'units', title: 'Units alone', show: kvUnits},
  {of: 'plan kv', id: 'search', title: 'The search', show: kvSearch},
  {of: 'plan heads', id: 'chosen', title: 'Chosen', show: headsChosen, open: true},
  {of: 'plan heads', id: 'uniform', title: 'Beside the uniform share', show: headsUniform, open: true},
  {of: 'plan heads', id: 'groups', title: 'Groups alone', show: headsGroups},
  {of: 'plan heads', id: 'sharing', title: 'How many share', show: headsSharing},
  {of: 'bench', id: 'growth', title: 'Time per token', show: growth, open: true},
  {of: 'bench', id: 'speed', title: 'Speed', show: speeds, open: true},
  {of: 'eval', id: 'accuracy', title: 'Accuracy', show: accuracy, open: true},
  {of: 'eval', id: 'weights', title: 'Accuracy over bits per weight', show: weightScores, open: true},
  {of: 'eval', id: 'averages', title: 'Means over tasks', show: averages, open: true},
  {of: 'eval', id: 'kld', title: 'KL divergence from the reference', show: kld, open: true},
  {of: 'eval', id: 'front', title: 'What the bytes of the KV cache buy', show: fronts, open: true},
  {of: 'eval', id: 'kv', title: 'KV cache', show: kv, open: true},
  {of: 'eval', id: 'positions', title: 'Loss by position', show: positions, open: true},
  {of: 'eval', id: 'needle', title: 'Multi-needle retrieval', show: needle, open: true},
  {of: 'eval', id: 'attention', title: 'Attention to the answer, attention noise', show: attention, open: true},
  {of: 'eval', id: 'icl', title: 'In-context learning', show: icl, open: true},
  {of: 'eval', id: 'slices', title: 'Associative recall slices', show: slices, open: true},
  {of: 'eval', id: 'generation', title: 'Generation', show: generation, open: true},
  {of: 'eval', id: 'verdicts', title: 'Verdicts', show: verdicts},
  {of: 'eval', id: 'results', title: 'Results', show: results},
  {of: 'eval', id: 'paired', title: 'Paired differences', show: paired},
];

function section(id, title, shown, open) {
  const there = [shown].flat(Infinity).filter(x => x
    && !(x instanceof Element && x.matches('.pair, .maps, .multiples') && !x.children.length));
  return there.length > 0 && el('details.section', {id, open: Boolean(open)}, el('summary', el('h3', title)), there);
}

/* A document that was edited may hold what no section expects: it says so, and the others are drawn. */
function shownBy(show, part) {
  try {
    return show(part);
  } catch (error) {
    return el('p.warn', `Nothing could be drawn of this document: ${error.message}`);
  }
}

function partSection(part, k, several) {
  const id = x => (several ? `part${k + 1}-${x}` : x),
    title = `${part.kind.subject}: ${part.inputs.length > 1 ? `${part.inputs.length} documents` : part.inputs[0].name}`;
  const inside = [...SECTIONS.filter(s => s.of === part.kind.kind).map(s =>
    section(id(s.id), s.title, shownBy(s.show, part), s.open)),
    section(id('run'), 'What ran', shownBy(ran, part))].filter(x => x);
  return {id: `part${k + 1}`, title, inside, node: [warnings(part), inside]};
}

function entry(id, title, inside) {
  return el('li', el('a', {href: `#${id}`}, title), inside);
}

/* A link to what is folded opens it, and what it stands in. */
function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  for (let e = target; e; e = e.parentElement) if (e.tagName === 'DETAILS') e.open = true;
  if (target) target.scrollIntoView();
}

function drawPage(inputs) {
  const parts = partsOf(inputs), settings = settingsOf(parts), several = parts.length > 1;
  const title = parts.length === 1 ? titleOf(parts[0]) : inputs.length > 8 ? `dq report: ${inputs.length} documents`
    : `dq report: ${parts.flatMap(p => p.inputs.map(x => x.name)).join(', ')}`;
  const lead = shownBy(() => answer(parts, settings));
  const size = section('size', 'KL divergence over size', shownBy(sizes, settings), true);
  const shown = parts.map((part, k) => partSection(part, k, several));
  const links = p => p.inside.map(s => entry(s.id, s.querySelector('h3').textContent));
  const all = open => el('button', {type: 'button'}, open ? 'Open all' : 'Fold all');
  const buttons = [all(true), all(false)];
  buttons.forEach((b, k) => b.addEventListener('click',
    () => document.querySelectorAll('main details').forEach(d => (d.open = k === 0))));
  document.title = title;
  document.body.append(
    el('header', el('h1', title), lead, el('nav', {'aria-label': 'Contents'}, el('h2', 'Contents'),
      el('ol', size && entry('size', 'KL divergence over size'),
        several ? shown.map(p => entry(p.id, p.title, el('ol', links(p)))) : shown.flatMap(links)), buttons)),
    el('main', size, shown.map(p => (several ? el('section.part', {id: p.id}, el('h2', p.title), p.node) : p.node))));
  showTips();
  addEventListener('hashchange', openTarget);
  document.querySelector('nav').addEventListener('click', () => setTimeout(openTarget)); /* the same link again */
  if (location.hash) openTarget();
}

drawPage(parseDocuments(document.getElementById('documents').textContent));
