/* attend_rig: see attend_rig.h. Pages are made by the definition of the format, with values that no row may read
 * where nobody reads them.
 * SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda/attend_rig.h"

#include "tests/simt/numerics.h"

#include <math.h>

/* ---------------------------------------------------------------------------------------- making */

static void *keep(rig *r, size_t bytes, const void *from)
{
    void *p = NULL;
    assert_int_equal(cudaMalloc(&p, bytes), cudaSuccess);
    if (from) assert_int_equal(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    assert_true(r->n_cached < 512);
    return r->cached[r->n_cached++] = p;
}

static int pick(rig *r, int low, int high)
{
    return low + (int)(r->random.bits() % (uint32_t)(high - low + 1));
}

bool rig_has_sets(const rig *r, int side)
{
    return r->spec.sets && !(side && r->spec.mixed);
}

static dq_page_form form_of(const rig *r, int side)
{
    const rig_spec *s = &r->spec;
    dq_page_form f = {};
    f.bits = s->bits[side];
    f.dim = f.cols = f.stride = s->dim;
    f.has_lows = side && s->mixed;
    if (side == 0 && s->second > f.bits) f.bits = s->second;
    if (f.has_lows && s->second) f.bits = 8;
    f.code_bytes = f.bits < 16 ? 64 * s->dim * f.bits / 8 : 0;
    if (rig_has_sets(r, side)) {
        f.set_numbers = 2 * s->dim;
        return f;
    }
    f.group = f.has_lows ? 2 * s->group : f.bits <= 4 ? s->group : s->dim;
    if (f.group > s->dim) f.group = s->dim;
    f.n_scales = (s->dim + f.group - 1) / f.group * (f.has_lows ? 2 : 1);
    return f;
}

/* Code and number of one token and run of channels, begin .. end-1. */
static void encode_run(rig_side *s, int page, int head, int t, int g, int bits, bool wide)
{
    const dq_page_form *f = &s->form;
    const int begin = g * f->group, end = begin + f->group < f->dim ? begin + f->group : f->dim;
    const float top = (float)((1 << bits) - 1), *x = s->plain[page][head][t];
    float least = INFINITY, most = -INFINITY;
    for (int c = begin; c < end; c++) {
        least = fminf(least, x[c]);
        most = fmaxf(most, x[c]);
    }
    float step = (most - least) / top, low = least;
    if (!wide) {
        step = numerics_f16_f32(numerics_f32_f16(step));
        low = numerics_f16_f32(numerics_f32_f16(low));
    }
    s->scale[page][head][g][t] = step;
    s->scale[page][head][f->n_scales / 2 + g][t] = low;
    for (int c = begin; c < end; c++) {
        const float u = fminf(fmaxf(rintf((x[c] - low) / step), 0), top);
        s->code[page][head][t][c] = (int8_t)((int)u - (1 << (bits - 1)));
    }
}

/* Codes and scales of all tokens of a page and head. */
static void encode(rig_side *s, int page, int head, bool wide)
{
    const dq_page_form *f = &s->form;
    const float qmax = (float)((1 << (f->bits - 1)) - 1);
    for (int t = 0; t < 64; t++)
        for (int c = 0; c < f->dim; c++) {
            const int g = c / f->group, begin = g * f->group;
            float max = 0;
            for (int k = begin; k < begin + f->group && k < f->dim; k++)
                max = fmaxf(max, fabsf(s->plain[page][head][t][k]));
            float scale = max / qmax;
            if (!wide) scale = numerics_f16_f32(numerics_f32_f16(scale));
            s->scale[page][head][g][t] = scale;
            const float x = rintf(s->plain[page][head][t][c] / scale);
            s->code[page][head][t][c] = (int8_t)fminf(fmaxf(x, -qmax), qmax);
        }
}

/* How many sets begin before `slot`. */
static int sets_before(const dq_page *p, int slot)
{
    int n = 0;
    for (int i = 0; i < slot; i++) n += (int)(p->begins >> i & 1);
    return n;
}
int rig_set_of(const dq_page *p, int slot)
{
    return sets_before(p, slot + 1) - 1;
}

float rig_dither(const rig *r, const dq_page *p, int side, int t)
{
    return side && p->dither >= 0 ? r->dither[p->dither][t] : 0.0f;
}

/* Codes, steps and lows of the sets of a page and head. */
static void encode_sets(const rig *r, rig_side *s, int side, int page, int head, const dq_page *p)
{
    const int bits = dq_page_bits(&s->form, p, side, head);
    const float top = (float)((1 << bits) - 1);
    for (int c = 0; c < s->form.dim; c++)
        for (int first = p->n_sinks, end; first < 64; first = end) {
            const float gone = s->plain[page][head][first ^ 32][c];
            float least = r->spec.each_slot ? gone : INFINITY,
                  most = r->spec.each_slot ? gone : -INFINITY;
            for (end = first; end < 64 && (end == first || !(p->begins >> end & 1)); end++) {
                least = fminf(least, s->plain[page][head][end][c]);
                most = fmaxf(most, s->plain[page][head][end][c]);
            }
            float step = (most - least) / top, low = least;
            if (!p->wide[side]) {
                step = numerics_f16_f32(numerics_f32_f16(step));
                low = numerics_f16_f32(numerics_f32_f16(low));
            }
            s->step[page][head][rig_set_of(p, first)][c] = step;
            s->low[page][head][rig_set_of(p, first)][c] = low;
            for (int t = first; t < end; t++) {
                const float x = (s->plain[page][head][t][c] - low) / step;
                const float u = rintf(x + rig_dither(r, p, side, t));
                s->code[page][head][t][c] =
                    (int8_t)((int)fminf(fmaxf(u, 0), top) - (1 << (bits - 1)));
            }
        }
}

static void pack(uint8_t *to, const rig_side *s, int side, int bits, int page, int head)
{
    const dq_page_form *f = &s->form;
    const int low = dq_page_low_bits(bits);
    for (int t = 0; t < 64; t++)
        for (int c = 0; c < f->dim; c++) {
            int done = 0;
            const bool two = side == 1 && bits == 8;
            const int u = s->code[page][head][t][c] + (two ? 0 : 1 << (bits - 1));
            for (int w = low; done < bits; done += w, w = bits - w) {
                int shift;
                const int at =
                    64 * f->cols * done / 8 + dq_page_plane_place(&shift, side, w, f->cols, t, c);
                to[at] = (uint8_t)(to[at] | ((u >> done) & ((1 << w) - 1)) << shift);
            }
        }
}

/* Slots first .. end-1 are read as codes by somebody; others hold what must not matter. */
static void put_codes(rig *r, rig_side *s, int side, int p, dq_page *page, int first, int end)
{
    const dq_page_form *f = &s->form;
    const size_t n = (size_t)(s->n_heads * f->n_scales * 64),
                 bytes = (size_t)(s->n_heads * f->code_bytes);
    uint8_t *codes = (uint8_t *)calloc(bytes, 1);
    float *wide = (float *)calloc(n, 4);
    uint16_t *half = (uint16_t *)calloc(n, 2);
    page->side[side].codes = codes;
    for (int h = 0; h < s->n_heads; h++) {
        const int bits = dq_page_bits(f, page, side, h);
        for (int i = 0; f->has_lows && i < f->n_scales / 2 * 64; i++)
            encode_run(s, p, h, i % 64, i / 64, bits, page->wide[side]);
        if (!f->has_lows) encode(s, p, h, page->wide[side]);
        pack(dq_page_codes(f, page, side, h), s, side, bits, p, h);
        for (int i = 0; i < f->n_scales * 64; i++) {
            const int t = i % 64, at = h * f->n_scales * 64 + i;
            wide[at] = t < first || t >= end ? NAN : s->scale[p][h][i / 64][t];
            half[at] = numerics_f32_f16(wide[at]);
        }
    }
    page->side[side].codes = (uint8_t *)keep(r, bytes, codes);
    page->side[side].scale = page->wide[side] ? keep(r, n * 4, wide) : keep(r, n * 2, half);
    free(codes);
    free(wide);
    free(half);
}

/* The same of per-channel codes: sets after slot `end` have numbers that nobody reads. */
static void put_sets(rig *r, rig_side *s, int side, int p, dq_page *page, int end)
{
    const dq_page_form *f = &s->form;
    const int n_sets = sets_before(page, 64), numbers = f->set_numbers;
    const size_t n = (size_t)(n_sets * s->n_heads * numbers),
                 bytes = (size_t)(s->n_heads * f->code_bytes);
    uint8_t *codes = (uint8_t *)calloc(bytes, 1);
    float *wide = (float *)calloc(n, 4);
    uint16_t *half = (uint16_t *)calloc(n, 2);
    assert_true(n_sets <= MAX_SETS);
    page->side[side].codes = codes;
    for (int h = 0; h < s->n_heads; h++) {
        encode_sets(r, s, side, p, h, page);
        pack(dq_page_codes(f, page, side, h), s, side, dq_page_bits(f, page, side, h), p, h);
        for (int k = 0; k < n_sets; k++)
            for (int c = 0; c < f->dim; c++) {
                const bool read = k < sets_before(page, end);
                float *at = wide + (k * s->n_heads + h) * numbers + c;
                at[0] = read ? s->step[p][h][k][c] : NAN;
                at[f->dim] = read ? s->low[p][h][k][c] : NAN;
            }
    }
    for (size_t i = 0; i < n; i++) half[i] = numerics_f32_f16(wide[i]);
    page->side[side].codes = (uint8_t *)keep(r, bytes, codes);
    page->side[side].scale = page->wide[side] ? keep(r, n * 4, wide) : keep(r, n * 2, half);
    free(codes);
    free(wide);
    free(half);
}

static void put_plain(rig *r, rig_side *s, int side, int p, dq_page *page, int keys, bool plain)
{
    const int dim = s->form.dim, n = plain ? 64 : page->n_sinks;
    float *x = (float *)calloc((size_t)(s->n_heads * n * dim), 4);
    for (int h = 0; h < s->n_heads; h++)
        for (int t = 0; t < n; t++)
            for (int c = 0; c < dim; c++)
                x[(h * n + t) * dim + c] = t < keys ? s->plain[p][h][t][c] : NAN;
    float *to = (float *)keep(r, (size_t)(s->n_heads * n * dim) * 4, x);
    if (plain) {
        page->side[side].plain = to;
    } else {
        page->side[side].sinks = to;
    }
    free(x);
}

int rig_slots(int64_t index, int page)
{
    const int64_t n = index - 64 * page;
    return (int)(n < 0 ? 0 : n > 64 ? 64 : n);
}

static void make_side(rig *r, rig_list *l, int side, int p, const int coded[2])
{
    rig_side *s = &l->side[side];
    dq_page *page = &l->page[p];
    const int keys = rig_slots(l->unit.keys, p), low = rig_slots(coded[0], p),
              high = rig_slots(coded[1], p);
    for (int h = 0; h < s->n_heads; h++)
        for (int t = 0; t < 64; t++)
            for (int c = 0; c < s->form.dim; c++)
                s->plain[p][h][t][c] =
                    r->random.value() * (side ? 0.5f : 0.3f) + (c == 3 ? 1.0f : 0.0f);
    if (r->spec.large != 0) s->plain[p][0][0][1] = r->spec.large;
    for (int i = 0; r->spec.rise != 0 && side == 0 && i < 64 * s->n_heads; i++)
        s->plain[p][i / 64][i % 64][0] = i % 64 == 13 ? r->spec.rise * (float)(p + 1) * 4 : 0;
    page->wide[side] = pick(r, 0, 5) == 0;
    const bool codes = s->form.bits < 16 && high > page->n_sinks;
    const bool plain = !codes || low < keys || pick(r, 0, 4) == 0;
    const bool sets = rig_has_sets(r, side);
    if (codes && sets) put_sets(r, s, side, p, page, plain ? high : 64);
    if (codes && !sets) put_codes(r, s, side, p, page, page->n_sinks, plain ? high : keys);
    if (plain) put_plain(r, s, side, p, page, keys, true);
    if (codes && page->n_sinks) put_plain(r, s, side, p, page, keys, false);
}

/* Sets begin where codes begin and where what rows read as codes ends, and at a slot or two besides. */
static void make_sets(rig *r, rig_list *l, int p)
{
    dq_page *page = &l->page[p];
    const int ends[2] = {rig_slots(l->unit.coded[0], p), rig_slots(l->unit.coded[1], p)};
    page->heads = 2;
    page->dither = r->spec.dither ? pick(r, 0, 1) : -1;
    page->begins = (uint64_t)1 << page->n_sinks;
    for (int k = 0; k < 2; k++)
        if (ends[k] > page->n_sinks && ends[k] < 64) page->begins |= (uint64_t)1 << ends[k];
    for (int k = r->spec.many_sets ? pick(r, 7, 9) : pick(r, 0, 4) - 2; k > 0; k--)
        page->begins |= (uint64_t)1 << pick(r, page->n_sinks, 63);
    if (r->spec.each_slot) page->begins = ~(uint64_t)0 << page->n_sinks;
    for (int side = 0; r->spec.second && side < 2; side++)
        page->widths[side] =
            (uint64_t)(r->spec.bits[side] | (side ? r->spec.bits[1] : r->spec.second) << 4);
}

/* Whether each row sees one key more than the one before; else a table says what it sees. */
static bool is_even(const rig_list *l)
{
    return l->visible[0] > 0 && l->unit.keys % 3;
}

/* What rows do not see. Positions that are left out make windows of a table's rows smaller. */
static void make_window(rig *r, rig_list *l)
{
    dq_attention_unit *w = &l->unit;
    for (int k = 0; k < w->n; k++) {
        const int n = l->visible[k] - r->spec.window + (is_even(l) ? 0 : k / 5);
        l->hidden[k] = !r->spec.window || n < 0 ? 0 : n < l->visible[k] ? n : l->visible[k] - 1;
        if (k && l->hidden[k] < l->hidden[k - 1]) l->hidden[k] = l->hidden[k - 1];
    }
    w->hidden[0] = l->hidden[0];
    w->hidden[1] = l->hidden[w->n - 1];
    w->ld -= w->hidden[0] / 64 * 64;
}

static void make_list(rig *r, int i)
{
    rig_list *l = &r->list[i];
    dq_attention_unit *w = &l->unit;
    const int n_rows[5] = {1, 64, 17, 33, pick(r, 1, 64)};
    w->row = r->rows;
    w->n = n_rows[pick(r, 0, 4)];
    if (r->spec.max_rows) w->n = pick(r, 1, r->spec.max_rows);
    w->keys = w->n + (pick(r, 0, 3) ? pick(r, 0, r->spec.max_keys - w->n) : 0);
    const int odd = pick(r, 0, 7) == 0 ? w->n > 3 ? 3 : 1 : 0; /* first rows that see nothing */
    for (int k = 0; k < w->n; k++)
        l->visible[k] = k < odd && w->keys == w->n ? 0 : w->keys - w->n + k + 1;
    w->ld = (w->keys + 63) / 64 * 64 + 8;
    make_window(r, l);
    w->seq = i;
    w->few = 1;
    w->group = 1;
    w->coded[1] = pick(r, 0, 2) ? pick(r, 0, w->keys) : w->keys / 64 * 64;
    w->coded[0] = pick(r, 0, 1) ? pick(r, 0, w->coded[1]) : w->coded[1] / 64 * 64;
    if (r->spec.all_coded) w->coded[0] = w->coded[1] = w->keys;
    w->split = pick(r, 0, w->n);
    if (pick(r, 0, 2) == 0) w->split = w->n;
    if (w->split == w->n) w->coded[1] = w->coded[0];
    l->n_pages = (w->keys + 63) / 64;
    const int sinks[3] = {0, 4, pick(r, 0, 9)};
    l->page[0].n_sinks = sinks[pick(r, 0, 2)];
    for (int p = 0; p < l->n_pages; p++) l->page[p].heads = 2;
    w->uncoded = r->spec.int8 ? l->page[0].n_sinks : 0;
    for (int p = 0; r->spec.sets && p < l->n_pages; p++) make_sets(r, l, p);
    for (int side = 0; side < 2; side++) {
        l->side[side].form = form_of(r, side);
        l->side[side].n_heads = 2;
        for (int p = w->hidden[0] / 64; p < l->n_pages; p++) make_side(r, l, side, p, w->coded);
    }
    r->rows += w->n;
}

static void make_heads(rig *r)
{
    const rig_spec *s = &r->spec;
    int n_q = 0;
    for (int o = 0; o < s->outs; o++) {
        r->o_head[o].out = s->outs - 1 - o + 1;
        for (int m = 0; m < s->maps; m++) {
            if (m && o && s->shared_second) {
                r->o_head[o].q[1] = r->o_head[0].q[1];
                continue;
            }
            r->o_head[o].q[m] = n_q;
            r->q_head[n_q] = dq_q_head{1 + n_q, s->same_keys ? 0 : m};
            n_q++;
        }
        for (int e = 0; e < 2; e++) r->o_head[o].v[e] = e < s->slabs ? (e + o) % 2 : -1;
        r->o_head[o].pair = o % 2;
        if (s->maps == 1) r->o_head[o].q[1] = -1;
    }
    r->units.max_q = n_q;
    r->units.max_out = s->outs;
    r->units.n_q = n_q + 1; /* head 0 belongs to the other group, which no unit has */
    r->units.n_out = s->outs + 1;
}

static void upload_units(rig *r)
{
    dq_attention_units *u = &r->units;
    dq_page pages[MAX_UNITS * MAX_PAGES];
    int32_t visible[MAX_UNITS * 64], hidden[MAX_UNITS * 64], first_q[3] = {0, 0, u->max_q},
                                                             first_o[3] = {0, 0, u->max_out};
    int64_t strip = 0;
    int n_pages = 0, records = 0, factors = 0;
    for (int i = 0; i < r->n_units; i++) {
        rig_list *l = &r->list[i];
        l->unit.page = n_pages;
        const int before = l->unit.hidden[0] / 64 * 64;
        l->unit.strip = strip - before;
        strip += (int64_t)u->max_q * l->unit.n * l->unit.ld;
        l->unit.record = records;
        l->unit.factor = factors;
        records += u->max_q * l->unit.n;
        factors += u->max_out * l->unit.n;
        for (int p = 0; p < l->n_pages; p++) pages[n_pages++] = l->page[p];
        l->unit.visible = is_even(l) ? -1 - l->visible[0] : 64 * i;
        for (int k = 0; k < l->unit.n; k++) {
            visible[64 * i + k] = l->visible[k];
            hidden[64 * i + k] = l->hidden[k];
        }
        r->unit[i] = l->unit;
        if (l->unit.keys - before > u->max_keys) u->max_keys = l->unit.keys - before;
        if (l->unit.n > u->max_rows) u->max_rows = l->unit.n;
    }
    u->n = r->n_units;
    u->n_groups = 2;
    u->unit = (dq_attention_unit *)keep(r, sizeof r->unit, r->unit);
    u->pages = (dq_page *)keep(r, sizeof pages, pages);
    u->visible = (int32_t *)keep(r, sizeof visible, visible);
    u->hidden = (int32_t *)keep(r, sizeof hidden, hidden);
    u->window = r->spec.window;
    u->q_head = (dq_q_head *)keep(r, sizeof r->q_head, r->q_head);
    u->o_head = (dq_o_head *)keep(r, sizeof r->o_head, r->o_head);
    u->q_first = (int32_t *)keep(r, sizeof first_q, first_q);
    u->o_first = (int32_t *)keep(r, sizeof first_o, first_o);
    r->strip = new check_array<float>((size_t)strip);
    u->strip = r->strip->device;
    r->sum = new check_array<double>((size_t)records);
    r->factor = new check_array<float>((size_t)(3 * factors));
    u->sum = r->sum->device;
    u->factor = r->factor->device;
}

void rig_open(rig *r, const rig_spec *spec, uint64_t seed)
{
    memset((void *)r, 0, sizeof *r);
    r->spec = *spec;
    r->random.state = seed;
    for (int i = 0; i < 5; i++) r->random.bits();
    r->list = (rig_list *)calloc(MAX_UNITS, sizeof *r->list);
    r->n_units = pick(r, 1, 2);
    for (int i = 0; i < 128; i++) r->dither[i / 64][i % 64] = 0.5f * r->random.value();
    make_heads(r);
    for (int i = 0; i < r->n_units; i++) make_list(r, i);
    dq_attention_units *u = &r->units;
    r->width = spec->slabs * spec->dim;
    for (int side = 0; side < 2; side++) u->form[side] = r->list[0].side[side].form;
    u->n_slabs = spec->slabs;
    upload_units(r);
    if (spec->dither) u->form[1].dither = (float *)keep(r, sizeof r->dither, r->dither);
    u->n_maps = spec->maps;
    u->scale = 0.25f;
    r->q = new check_array<float>((size_t)(r->rows * u->n_q * spec->dim));
    for (size_t i = 0; i < r->q->n; i++) r->q->host[i] = r->random.value() * (i % 7 ? 0.4f : 0.9f);
    for (size_t i = 0; spec->rise != 0 && i < r->q->n; i++)
        r->q->host[i] = i % (size_t)spec->dim                  ? 0
                        : i < (size_t)(8 * u->n_q * spec->dim) ? 0.25f
                                                               : 1.0f;
    r->lambda = new check_array<float>((size_t)(r->rows * u->n_out));
    for (size_t i = 0; i < r->lambda->n; i++)
        r->lambda->host[i] = spec->lambda + 0.01f * (float)(i % 5);
    r->gain = new check_array<float>((size_t)r->width);
    for (size_t i = 0; i < r->gain->n; i++) r->gain->host[i] = 1.0f + 0.1f * r->random.value();
    r->out = new check_array<float>((size_t)(r->rows * u->n_out * r->width));
    r->absmax = new check_array<float>((size_t)(r->n_units * u->n_q));
    r->q->put();
    r->lambda->put();
    r->gain->put();
    u->q = r->q->device;
    u->lambda = spec->token_lambda ? r->lambda->device : NULL;
    u->lambda_layer = spec->lambda;
    r->finish = dq_attention_finish{r->out->device,
                                    (int64_t)u->n_out * r->width,
                                    spec->norm && pick(r, 0, 1) ? r->gain->device : NULL,
                                    1e-5f,
                                    pick(r, 0, 1) ? 1.0f : 0.8f,
                                    spec->rotated,
                                    spec->norm};
    for (int i = 0; i < r->n_units; i++)
        for (int h = 0; h < u->max_q; h++)
            r->absmax->host[i * u->n_q + 1 + h] =
                spec->round == DQ_ROUND_GIVEN ? (float)rig_absmax(r, i, h) : 0;
    r->absmax->put();
    r->logits = dq_attend_logits{spec->round, 31.0f, r->absmax->device};
}

void rig_close(rig *r)
{
    for (int i = 0; i < r->n_cached; i++) cudaFree(r->cached[i]);
    delete r->q;
    delete r->out;
    delete r->lambda;
    delete r->gain;
    delete r->absmax;
    delete r->strip;
    delete r->sum;
    delete r->factor;
    free(r->list);
}

/* ---------------------------------------------------------------------------------------- calling */

static void *device(rig_call *c, size_t bytes, const void *from)
{
    void *p = NULL;
    assert_int_equal(cudaMalloc(&p, bytes ? bytes : 1), cudaSuccess);
    if (from && bytes)
        assert_int_equal(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    assert_true(c->n_memory < 8);
    return c->memory[c->n_memory++] = p;
}

void rig_call_open(rig_call *c, rig *r, int together)
{
    const dq_attention_units *u = &r->units;
    static int32_t count[MAX_PAGES + 1];
    const int64_t items = dq_attend_items(r->unit, u->n);
    memset((void *)c, 0, sizeof *c);
    dq_attend_plan *p = &c->plan;
    p->list = (dq_unfold_list *)calloc((size_t)u->n, sizeof *p->list);
    p->join = (dq_attend_join *)calloc((size_t)u->n, sizeof *p->join);
    p->item = (dq_attend_item *)calloc((size_t)items, sizeof *p->item);
    dq_attend_plan_units(p, u, r->unit, together, NULL, count);
    assert_true(p->n_items <= items);
    c->call.u = *u;
    c->call.u.max_q++, c->call.u.max_out++; /* heads that the group has not */
    c->call.f = r->finish;
    c->call.logits = r->logits;
    c->call.o = dq_attend_operands(u->form[0].dim, u->n_slabs, 2, 2,
                                   r->spec.maps == 2 && !r->spec.same_keys ? 2 : 1);
    c->call.o.int8 = r->spec.int8;
    c->call.o.page = (uint8_t *)device(c, (size_t)(p->operand_pages * c->call.o.page_bytes), NULL);
    c->call.item = (dq_attend_item *)device(c, (size_t)p->n_items * sizeof *p->item, p->item);
    c->call.n_items = p->n_items;
    c->lists = (dq_unfold_list *)device(c, (size_t)p->n_lists * sizeof *p->list, p->list);
    c->joins = (dq_attend_join *)device(c, (size_t)p->n_joins * sizeof *p->join, p->join);
    const int64_t floats = p->share_rows * dq_attend_share_floats(&c->call);
    c->share_bytes = (size_t)floats * sizeof(float);
    c->call.share = (float *)device(c, c->share_bytes, NULL);
    c->call.together = together;
    c->row_bytes = (size_t)(r->rows * u->n_q) * sizeof(float);
    const int32_t none = 0;
    c->call.beyond = c->beyond = (int32_t *)device(c, sizeof none, &none);
    if (r->spec.round == DQ_ROUND_ROW)
        c->call.logits.absmax =
            (float *)(void *)(c->row_max = (uint32_t *)device(c, c->row_bytes, NULL));
}

void rig_call_unfold(rig_call *c)
{
    const dq_unfold k = dq_attend_unfold_of(&c->call.u, c->call.o, c->call.f.rotated, c->beyond);
    assert_int_equal(
        dq_attend_unfold(k, c->call.u.pages, c->lists, c->plan.n_lists, c->plan.unfold_pages, NULL),
        cudaSuccess);
}

void rig_call_run(rig_call *c, bool hopper)
{
    if (c->call.logits.round == DQ_ROUND_ROW) { /* maxima first */
        uint32_t *const max = c->row_max;
        assert_int_equal(cudaMemset(max, 0, c->row_bytes), cudaSuccess);
        assert_int_equal(dq_attend_absmax(c->call, max, true, hopper, NULL), cudaSuccess);
    }
    assert_int_equal(cudaMemset(c->call.share, 0xff, c->share_bytes), cudaSuccess);
    assert_int_equal(dq_attend_run(c->call, hopper, NULL), cudaSuccess);
    assert_int_equal(dq_attend_combine(c->call, c->joins, c->plan.n_joins, NULL), cudaSuccess);
}

void rig_call_close(rig_call *c)
{
    for (int i = 0; i < c->n_memory; i++) cudaFree(c->memory[i]);
    free(c->plan.list);
    free(c->plan.join);
    free(c->plan.item);
}
