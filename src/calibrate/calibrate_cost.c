/* A chunk has a cache of its own for each layer, so that memory is that of one layer.
 * SPDX-License-Identifier: MIT */
#include "base/random.h"
#include "calibrate/inside.h"
#include "work/ranks.h"

#include <math.h>
#include <string.h>

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

int64_t dq_calib_pass_y(const dq_model *m)
{
    return (int64_t)m->map.n_out * m->map.n_slabs * m->map.head_dim;
}

int64_t dq_calib_pass_widest(const dq_model *m)
{
    return larger(larger(dq_calib_pass_y(m), m->ffn), m->dim);
}

int64_t dq_calib_pass_rows(const dq_calib_text *t)
{
    const int64_t rows = larger(DQ_CALIB_PASS_ROWS, dq_calib_text_longest(t));
    return rows < t->n_ids ? rows : t->n_ids;
}

static int64_t gate_rows(int64_t rows)
{
    return dq_ranks_count() > 1 || rows < DQ_FFN_ROWS ? rows : DQ_FFN_ROWS;
}

int64_t dq_calib_pass_bytes(const dq_model *m, int64_t rows)
{
    const dq_head_order *a = &m->map;
    const int64_t ffn_rows = rows < DQ_FFN_ROWS ? rows : DQ_FFN_ROWS, d = a->head_dim;
    const int64_t y = dq_calib_pass_y(m), cache = 2 * (int64_t)a->n_kv * d;
    const int64_t heads = ((int64_t)a->n_q + 2 * (int64_t)a->n_kv + 1) * d + a->n_out;
    const int64_t moved = larger(rows * larger(m->dim, y), ffn_rows * m->ffn);
    const int64_t ffn = (gate_rows(rows) + ffn_rows) * m->ffn;
    return (rows * (2 * m->dim + heads + y + cache) + ffn + moved) * (int64_t)sizeof(float);
}

static dq_status list_chunks(dq_calib_pass *p, const dq_calib_text *t, dq_err *err)
{
    dq_arena *a = p->arena;
    const int ranks = dq_ranks_count();
    int32_t *pos = dq_alloc(a, (size_t)t->n_ids, sizeof *pos, err);
    int32_t *seq = dq_alloc(a, (size_t)t->n_seq, sizeof *seq, err);
    int64_t *cu = dq_alloc(a, 2 * (size_t)t->n_seq, sizeof *cu, err);
    p->chunk = dq_alloc(a, (size_t)t->n_seq, sizeof *p->chunk, err);
    p->row = dq_alloc(a, (size_t)t->n_seq + 1, sizeof *p->row, err);
    if (err->code != DQ_OK) return err->code;
    for (int64_t s = 0, end; s < t->n_seq; s = end) {
        const int64_t first = t->cu[s];
        end = s + 1;
        while (end < t->n_seq && t->cu[end + 1] - t->cu[s] <= DQ_CALIB_PASS_ROWS) end++;
        p->max_rows = larger(p->max_rows, t->cu[end] - first);
        p->row[p->n_all] = first;
        p->row[p->n_all + 1] = t->cu[end];
        if (p->n_all++ % ranks != dq_ranks_number()) continue;
        dq_calib_chunk *k = &p->chunk[p->n_chunks++];
        k->first = p->n_rows;
        k->first_row = first;
        k->first_seq = s;
        k->batch = (dq_batch){.n_seq = (int)(end - s),
                              .n_rows = t->cu[end] - first,
                              .cu_rows = cu,
                              .seq = seq,
                              .ids = t->ids + first,
                              .pos = pos + first};
        for (int64_t i = s; i <= end; i++) *cu++ = t->cu[i] - first;
        p->n_rows += k->batch.n_rows;
    }
    p->n_rounds = (p->n_all + ranks - 1) / ranks;
    for (int64_t s = 0; s < t->n_seq; s++) {
        for (int64_t i = t->cu[s]; i < t->cu[s + 1]; i++) pos[i] = (int32_t)(i - t->cu[s]);
    }
    return DQ_OK;
}

double dq_calib_pass_at_once(const dq_calib_pass *p, int64_t round)
{
    const dq_calib_chunk *own = dq_calib_pass_chunk(p, round);
    const int64_t first = round * dq_ranks_count(), left = p->n_all - first,
                  n = left < dq_ranks_count() ? left : dq_ranks_count();
    return own ? (double)(p->row[first + n] - p->row[first]) / (double)own->batch.n_rows : 0;
}

void dq_calib_pass_join(const dq_calib_pass *p, void *x, size_t bytes)
{
    for (int64_t i = 0; i < p->n_all; i++) {
        const size_t at = (size_t)p->row[i] * bytes, end = (size_t)p->row[i + 1] * bytes;
        dq_ranks_spread((int)(i % dq_ranks_count()), (char *)x + at, end - at);
    }
}

static dq_mat buffer(dq_calib_pass *p, int64_t rows, int64_t cols)
{
    dq_mat m = {.rows = rows, .cols = cols};
    if (cols > 0) m.p = p->b->ops->alloc(p->b, (size_t)(rows * cols) * sizeof *m.p);
    if (cols > 0 && !m.p)
        dq_fail(&p->b->err, DQ_RESOURCE, "out of memory for a pass of %lld rows of calibration",
                (long long)rows);
    return m;
}

dq_status dq_calib_pass_new(dq_calib_pass *p, const dq_model *m, dq_backend *b,
                            const dq_calib_text *text, dq_err *err)
{
    const dq_head_order *a = &m->map;
    *p = (dq_calib_pass){.b = b, .arena = dq_arena_new()};
    if (!p->arena) return dq_fail(err, DQ_RESOURCE, "out of memory");
    DQ_TRY(list_chunks(p, text, err));
    const int64_t rows = p->max_rows, ffn_rows = rows < DQ_FFN_ROWS ? rows : DQ_FFN_ROWS;
    p->x = buffer(p, rows, m->dim);
    p->h = buffer(p, rows, m->dim);
    p->q = buffer(p, rows, (int64_t)a->n_q * a->head_dim);
    p->k = buffer(p, rows, (int64_t)a->n_kv * a->head_dim);
    p->v = buffer(p, rows, (int64_t)a->n_kv * a->head_dim);
    p->y = buffer(p, rows, dq_calib_pass_y(m));
    p->angles = buffer(p, rows, a->head_dim);
    p->lambda = buffer(p, rows, m->architecture->lambda == DQ_LAMBDA_TOKEN ? a->n_out : 0);
    p->gate = buffer(p, gate_rows(rows), m->ffn);
    p->up = buffer(p, ffn_rows, m->ffn);
    return dq_backend_sync(b, err);
}

void dq_calib_pass_end(dq_calib_pass *p)
{
    const dq_mat all[] = {p->x, p->h, p->q, p->k, p->v, p->y, p->angles, p->lambda, p->gate, p->up};
    for (size_t i = 0; p->b && i < sizeof all / sizeof *all; i++) p->b->ops->free(p->b, all[i].p);
    dq_arena_free(p->arena);
    *p = (dq_calib_pass){.b = NULL};
}

dq_layer_steps dq_calib_pass_steps(const dq_calib_pass *p, const dq_model *m, const dq_layer *layer,
                                   const dq_calib_chunk *k)
{
    const int64_t n = k->batch.n_rows;
    return (dq_layer_steps){.b = p->b,
                            .m = m,
                            .layer = layer,
                            .batch = &k->batch,
                            .kv_spec = &dq_kv_plain,
                            .math = {DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32},
                            .x = dq_calib_pass_first(p->x, n),
                            .h = dq_calib_pass_first(p->h, n),
                            .q = dq_calib_pass_first(p->q, n),
                            .k = dq_calib_pass_first(p->k, n),
                            .v = dq_calib_pass_first(p->v, n),
                            .y = dq_calib_pass_first(p->y, n),
                            .angles = dq_calib_pass_first(p->angles, n),
                            .lambda = dq_calib_pass_first(p->lambda, n)};
}

dq_status dq_calib_pass_cache(const dq_calib_pass *p, dq_layer_steps *s, dq_err *err)
{
    union { /* handles of this chunk; the batch is read-only for everybody else */
        const int32_t *in;
        int32_t *out;
    } seq = {s->batch->seq};
    s->kv = p->b->ops->kv_new(p->b, &s->m->map, 1, s->kv_spec);
    if (!s->kv) {
        dq_backend_sync(p->b, err);
        return dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache of calibration");
    }
    for (int i = 0; i < s->batch->n_seq; i++) seq.out[i] = p->b->ops->kv_seq_new(p->b, s->kv);
    p->b->ops->rope_table(p->b, s->angles, s->batch->pos, s->layer->rope);
    return DQ_OK;
}

/* Counts follow from shapes; attention itself, norms and conversions are left out. */

double dq_calibrate_work_rows(const dq_weight *w, int64_t rows)
{
    return 2 * (double)rows * (double)w->rows * (double)w->cols;
}

double dq_calibrate_work_layer(const dq_layer *l)
{
    const dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    double n = 0;
    for (int i = 0; i < 7; i++) n += 2 * (double)all[i]->rows * (double)all[i]->cols;
    return n;
}

double dq_calibrate_work_attention(const dq_model *m, int64_t rows)
{
    const dq_head_order *a = &m->map;
    const double pairs = (double)rows * (double)(rows + 1) / 2;
    return 2 * pairs * a->head_dim * (a->n_q + a->n_out * a->n_maps * a->n_slabs);
}

double dq_calibrate_work_hessian(double rows, double n)
{
    return rows * n * n; /* the lower triangle */
}

double dq_calibrate_work_factor(double n)
{
    return n * n * n / 3;
}

double dq_calibrate_work_correction(double m, double n)
{
    enum { RIDGES = DQ_SHRINKAGE_RIDGES / 2 }; /* usually */
    return (RIDGES + 2) * dq_calibrate_work_factor(n) + (3 * RIDGES + 2) * m * n * n;
}

static int tries_of(dq_scale_mode mode)
{
    return dq_quant_modes[mode].tries[0] > 0 ? DQ_GPTQ_TRIES : 1;
}

double dq_calibrate_work_rounding(double rows, double n, dq_scale_mode mode,
                                  const dq_calibrate_rule *rule)
{
    return (tries_of(mode) + 1 + 3 * rule->refits + rule->aligns) * rows * n * n;
}

double dq_calibrate_work_found(double rows, double n, dq_scale_mode mode,
                               const dq_calibrate_rule *rule)
{
    enum { TRELLIS = 1000 }; /* a value in two passes over 256 windows */
    return mode == DQ_TRELLIS ? (tries_of(mode) + rule->refits) * rows * n * TRELLIS : 0;
}

double dq_calibrate_work_cross(double rows, double m, double n)
{
    return 2 * rows * m * n;
}

/* Added by alignment: the reference's forward pass, o and down again, sums and solutions; for v, q
 * and k again, mapped inputs of both models, sums and a factor. */
static double align_flop(const dq_model *m, const dq_layer *l, const dq_calib_text *text)
{
    const double dim = m->dim, y = (double)l->o.cols, ffn = m->ffn, tokens = (double)text->n_ids;
    double n = tokens * (dq_calibrate_work_layer(l) + 2 * dim * (y + ffn));
    n += dq_calibrate_work_rows(&l->q, text->n_ids) + dq_calibrate_work_rows(&l->k, text->n_ids);
    for (int64_t s = 0; s < text->n_seq; s++)
        n += 2 * dq_value_maps_flop(m, text->cu[s + 1] - text->cu[s]);
    n += 3 * dq_calibrate_work_cross(tokens, dim, dim) + dq_calibrate_work_cross(tokens, dim, y) +
         dq_calibrate_work_cross(tokens, dim, ffn) + dq_calibrate_work_hessian(tokens, dim);
    return n + DQ_CALIBRATE_F64_FLOP *
                   (3 * dq_calibrate_work_correction(dim, dim) +
                    dq_calibrate_work_correction(dim, y) + dq_calibrate_work_correction(dim, ffn));
}

double dq_calibrate_work_all(const dq_model *m, const dq_calibrate_rule *rule,
                             const dq_calib_text *text)
{
    const double tokens = (double)text->n_ids;
    double n = 0;
    for (int i = 0; i < m->n_layers; i++) {
        const dq_layer *l = &m->layer[i];
        const dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        n += tokens * dq_calibrate_work_layer(l) + (rule->aligns ? align_flop(m, l, text) : 0);
        for (int k = 0; k < 7; k++) {
            const double cols = (double)all[k]->cols;
            n += DQ_CALIBRATE_F64_FLOP *
                 dq_calibrate_work_rounding((double)all[k]->rows, cols, DQ_SEARCH, rule);
            /* k shares q's Hessian, v too unless aligned, and up that of gate */
            if (k == 0 || k == 3 || k == 4 || k == 6)
                n += dq_calibrate_work_hessian(tokens, cols) +
                     DQ_CALIBRATE_F64_FLOP * dq_calibrate_work_factor(cols);
        }
    }
    /* the last down feeds only the head, and matters only if that is rounded */
    return n - dq_calibrate_work_rows(&m->layer[m->n_layers - 1].down, text->n_ids);
}

double dq_calibrate_work_embedding(const dq_model *m, const dq_calibrate_rule *rule, double tokens)
{
    const double cols = (double)m->embed.cols;
    double n = dq_calibrate_work_hessian(tokens, cols);
    for (int i = 0; i < m->n_layers; i++) n += tokens * dq_calibrate_work_layer(&m->layer[i]);
    return n + DQ_CALIBRATE_F64_FLOP *
                   (dq_calibrate_work_factor(cols) +
                    dq_calibrate_work_rounding((double)m->embed.rows, cols, DQ_SEARCH, rule));
}

/* What lives at the same time: a pass, the sums, a layer's codes, and the largest rounding. */

/* False: the layer has no such matrix. */
static bool find_row(dq_quantize_row *out, const dq_quantizer *q, const dq_weight *w)
{
    const int64_t n = q->info.n_tensors;
    for (int64_t i = 0; w->rows > 0 && i < n; i++) {
        *out = dq_quantize_row_at(q, i);
        if (strcmp(out->name, w->name) == 0) return true;
    }
    return false;
}

/* Codes of matrices that are rounded in turn and used together. */
static int64_t matrices_bytes(const dq_calibrate *c, const dq_quantizer *q,
                              const dq_weight *const *all, int n)
{
    int64_t kept = 0, most = 0;
    for (int i = 0; i < n; i++) {
        dq_quantize_row r;
        if (!find_row(&r, q, all[i])) continue;
        if (r.packed) {
            kept += r.bytes;
            /* The largest of: correcting a band of rows, rounding it, fitting scales. */
            const int64_t rows =
                r.one_scale || r.rows < DQ_CALIBRATE_BAND_ROWS ? r.rows : DQ_CALIBRATE_BAND_ROWS;
            const int64_t values = rows * r.cols,
                          groups = (r.cols + r.group_size - 1) / r.group_size;
            const int64_t f32 = values * (int64_t)sizeof(float);
            const int64_t grids = rows * groups * (int64_t)sizeof(dq_grid), codes = values + grids;
            const int64_t corner = 1 << 15; /* what a thread has besides its rows, at most */
            const dq_weight_format *format = dq_weight_format_named(r.format);
            const int64_t tiles = format && format->encode_strip ? DQ_STRIP_ROWS / DQ_F64_TILE : 1;
            const int64_t strips = dq_os_threads() * tiles * (2 * r.cols * DQ_F64_TILE + corner) *
                                   (int64_t)sizeof(double);
            const dq_code_shape shape = {.rows = rows,
                                         .cols = r.cols,
                                         .group_size = r.group_size,
                                         .groups = groups,
                                         .grid_rows = rows};
            const int64_t refit = c->set.rule->refits > 0 ? dq_scale_refit_bytes(&shape) : 0;
            const int64_t round = 2 * codes + larger(grids + strips, refit);
            most = larger(most, f32 + (c->set.rule->aligns ? larger(f32 + strips, round) : round));
        } else if (r.dense_dtype != r.dtype) {
            kept += r.rows * r.cols * (int64_t)sizeof(float);
        }
    }
    return kept + most;
}

static int64_t layer_bytes(const dq_calibrate *c, const dq_quantizer *q, const dq_layer *l)
{
    const dq_weight *const all[] = {&l->q,    &l->k,  &l->v,    &l->o,
                                    &l->gate, &l->up, &l->down, &l->lambda_proj};
    return matrices_bytes(c, q, all, sizeof all / sizeof *all);
}

int64_t dq_calibrate_memory(const dq_calibrate *c, const dq_quantizer *q)
{
    const dq_model *m = c->m;
    const int64_t rows = dq_calib_pass_rows(&c->text);
    int64_t layer = 0;
    for (int i = 0; i < m->n_layers; i++) layer = larger(layer, layer_bytes(c, q, &m->layer[i]));
    const dq_weight *const end[] = {m->tied ? &m->embed : &m->head};
    layer = larger(layer, matrices_bytes(c, q, end, 1));
    int64_t sums = dq_hessian_bytes(dq_calib_pass_widest(m), rows);
    if (c->set.rule->aligns)
        sums +=
            dq_reference_bytes(m, rows) + dq_value_maps_bytes(m, dq_calib_text_longest(&c->text));
    const int64_t text = c->sampled ? dq_calib_sample_bytes(m, &c->text) : 0;
    return larger(dq_calib_pass_bytes(m, rows) + sums + layer, text) / 8 * 9;
}

dq_status dq_calibrate_memory_check(const dq_calibrate *c, const dq_quantizer *q, dq_err *err)
{
    const double mib = 1024.0 * 1024.0;
    const int64_t have = dq_os_memory_bytes(), want = dq_calibrate_memory(c, q);
    if (have <= 0 || want <= have) return DQ_OK;
    const char *less = c->set.rule->aligns ? ". gptq takes less than align" : "";
    return dq_fail(
        err, DQ_RESOURCE,
        "%s: not enough memory to calibrate (expected about %.1f MiB, this process can have "
        "%.1f MiB)%s.",
        c->m->name, (double)want / mib, (double)have / mib, less);
}

/* Expected time: each phase's arithmetic at the speed of pieces timed on this machine, with the
 * model's layers and shapes. */

#define ALL(x)                                                                                     \
    {                                                                                              \
        0, 0, x, x, x, x, x, x, x                                                                  \
    }
const dq_calibrate_rates dq_calibrate_pace_usual = {.flop = {[DQ_CALIBRATE_TEXT] = 4e-11,
                                                             [DQ_CALIBRATE_FORWARD] = 2e-11,
                                                             [DQ_CALIBRATE_MAPS] = 4e-11,
                                                             [DQ_CALIBRATE_HESSIANS] = 2e-11,
                                                             [DQ_CALIBRATE_FACTORS] = 1e-10,
                                                             [DQ_CALIBRATE_ROUNDING] = 6e-11},
                                                    .value = {[DQ_ABSMAX] = ALL(5e-8),
                                                              [DQ_SEARCH] = ALL(4e-7),
                                                              [DQ_ASYM] = ALL(1e-7),
                                                              [DQ_TRELLIS] = ALL(1.5e-5)}};

double dq_calibrate_pace_rounding(const dq_calibrate *c, double rows, double cols,
                                  const dq_quant_spec *spec)
{
    return dq_calibrate_work_rounding(rows, cols, spec->mode, c->set.rule) *
               c->rates.flop[DQ_CALIBRATE_ROUNDING] +
           rows * cols * c->rates.value[spec->mode][spec->bits];
}

static void expect(const dq_calibrate_job *j, dq_pace *p, dq_calibrate_phase phase, double flop)
{
    dq_pace_expect(p, DQ_QUANTIZE_METHOD + (int)phase, flop * j->c->rates.flop[phase]);
}

/* Matrices with common inputs: sums, sums for m lacking outputs, the factor, and codes. */
static void expect_group(const dq_calibrate_job *j, dq_pace *p, const dq_weight *const *w, int n,
                         double m, bool aligns)
{
    const double tokens = (double)j->c->text.n_ids, cols = (double)w[0]->cols;
    if (!dq_calibrate_job_is_left(j, w, n)) return;
    double sums = dq_calibrate_work_hessian(tokens, cols);
    if (aligns) sums += dq_calibrate_work_cross(tokens, m, cols);
    expect(j, p, DQ_CALIBRATE_HESSIANS, sums);
    expect(j, p, DQ_CALIBRATE_FACTORS,
           aligns ? dq_calibrate_work_correction(m, cols) : dq_calibrate_work_factor(cols));
    for (int i = 0; i < n; i++) {
        const dq_weight *one = w[i];
        if (dq_calibrate_job_is_left(j, &one, 1)) {
            const dq_quant_spec *spec = &dq_quantize_tensor_of(j->q, one->name)->spec;
            dq_pace_expect(
                p, DQ_QUANTIZE_METHOD + DQ_CALIBRATE_ROUNDING,
                dq_calibrate_pace_rounding(j->c, (double)one->rows, (double)one->cols, spec));
        }
    }
}

static double of_sequences(const dq_calibrate_job *j,
                           double (*flop)(const dq_model *m, int64_t rows))
{
    const dq_calib_text *t = &j->c->text;
    double n = 0;
    for (int64_t s = 0; s < t->n_seq; s++) n += flop(j->m, t->cu[s + 1] - t->cu[s]);
    return n;
}

static double forward_flop(const dq_calibrate_job *j, const dq_layer *l)
{
    return (double)j->c->text.n_ids * dq_calibrate_work_layer(l) +
           of_sequences(j, dq_calibrate_work_attention);
}

static void expect_layer(const dq_calibrate_job *j, dq_pace *p, int number)
{
    const dq_layer *l = &j->m->layer[number];
    const dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    const int64_t tokens = j->c->text.n_ids;
    const bool aligns = j->c->set.rule->aligns, last = number == j->n_layers - 1 && !j->head;
    const double dim = (double)j->m->dim;
    double forward = forward_flop(j, l), products = 0;
    expect_group(j, p, all, aligns ? 2 : 3, dim, aligns);
    expect_group(j, p, all + 3, 1, dim, aligns);
    expect_group(j, p, all + 4, 2, dim, aligns);
    expect_group(j, p, all + 6, 1, dim, aligns);
    if (aligns) {
        expect_group(j, p, all + 2, 1, dim, true);
        forward += forward_flop(j, l);
        if (dq_calibrate_job_is_left(j, all + 2, 1)) {
            forward +=
                dq_calibrate_work_rows(&l->q, tokens) + dq_calibrate_work_rows(&l->k, tokens);
            expect(j, p, DQ_CALIBRATE_MAPS, 2 * of_sequences(j, dq_value_maps_flop));
        }
        for (int i = 3; i < 7; i += 3)
            if (dq_calibrate_job_is_left(j, all + i, 1))
                products += dq_calibrate_work_rows(all[i], tokens);
        expect(j, p, DQ_CALIBRATE_HESSIANS, products);
    }
    if (last) forward -= dq_calibrate_work_rows(&l->down, tokens);
    expect(j, p, DQ_CALIBRATE_FORWARD, forward);
}

void dq_calibrate_pace_expect(const dq_calibrate_job *j, dq_pace *p)
{
    const dq_weight *const embed[] = {&j->m->embed}, *const head[] = {&j->m->head};
    if (j->c->sampled && (j->n_layers > 0 || j->embed))
        expect(j, p, DQ_CALIBRATE_TEXT, dq_calib_sample_flop(j->m, &j->c->text));
    for (int i = 0; j->embed && i < j->m->n_layers; i++)
        expect(j, p, DQ_CALIBRATE_FORWARD, forward_flop(j, &j->m->layer[i]));
    if (j->embed) expect_group(j, p, embed, 1, 0, false);
    for (int i = 0; i < j->n_layers; i++) expect_layer(j, p, i);
    if (j->head) expect_group(j, p, head, 1, (double)j->m->dim, j->c->set.rule->aligns);
}

/* Enough rows and operations for timing. The least of several times counts: the first touches
 * memory and wakes threads. */
enum { LEAST_ROWS = 64, ROUND_COLS = 512, VALUE_COLS = 64, TIMES = 5 };
static const double much = 2e9;

typedef struct timing {
    dq_calibrate *c;
    const dq_quantizer *q;
    dq_calib_text text; /* one short sequence */
    int64_t cu[2];
    dq_calib_pass pass;
    dq_hessian *h;
    double begin, least;
} timing;

static void begin(timing *t, int number)
{
    if (number == 0) t->least = INFINITY;
    t->begin = dq_os_seconds();
}

static void end(timing *t)
{
    t->least = fmin(t->least, dq_os_seconds() - t->begin);
}

static void keep(const timing *t, dq_calibrate_phase phase, double flop)
{
    t->c->rates.flop[phase] = t->least / flop;
}

static dq_status time_forward(timing *t, dq_err *err)
{
    const dq_model *m = t->c->m;
    const dq_layer *l = &m->layer[m->n_layers - 1];
    const dq_attend_args plain = {.logit = dq_logit_plain};
    const dq_calib_chunk *k = dq_calib_pass_chunk(&t->pass, 0);
    dq_backend *b = t->c->set.backend;
    dq_layer_steps s = dq_calib_pass_steps(&t->pass, m, l, k);
    const int64_t n = k->batch.n_rows;
    for (int i = 0; i < TIMES; i++) {
        begin(t, i);
        b->ops->embed(b, s.x, &m->embed, k->batch.ids, m->embed_scale);
        DQ_TRY(dq_calib_pass_cache(&t->pass, &s, err));
        dq_layer_steps_norm_attn(&s);
        dq_layer_steps_qkv(&s);
        dq_layer_steps_attend(&s, &plain);
        dq_layer_steps_out(&s);
        dq_reference_feed_forward(&s, t->pass.gate, t->pass.up);
        DQ_TRY(dq_backend_sync(b, err));
        b->ops->kv_free(b, s.kv);
        end(t);
    }
    keep(t, DQ_CALIBRATE_FORWARD,
         (double)n * dq_calibrate_work_layer(l) + dq_calibrate_work_attention(m, n));
    /* A pass over few rows reads all weights for them: with 8 it took 2.6 times as long for each as
     * one over many, with 32 1.2 times. */
    const double all = 0.75, one = 15;
    t->c->rates.flop[DQ_CALIBRATE_TEXT] =
        (all + one / (double)t->c->text.n_seq) * t->c->rates.flop[DQ_CALIBRATE_FORWARD];
    if (!t->c->set.rule->aligns) return DQ_OK;
    dq_value_maps *maps = NULL;
    if (dq_value_maps_new(&maps, m, s.x.rows, err) == DQ_OK) {
        for (int i = 0; i < TIMES; i++) {
            begin(t, i);
            dq_value_maps_read(maps, s.x, &s, 0);
            end(t);
        }
        keep(t, DQ_CALIBRATE_MAPS, dq_value_maps_flop(m, s.x.rows));
    }
    dq_value_maps_free(maps);
    return dq_backend_sync(t->c->set.backend, err);
}

static void fill(float *x, int64_t n)
{
    dq_random r = dq_random_of(0, 1);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(dq_random_next(&r) >> 40) / (float)(1 << 24) - 0.5f;
}

static dq_status time_sums(timing *t, dq_mat x, int64_t n, dq_err *err)
{
    const dq_tile_sums_rows all = {DQ_ROWS_ALL, DQ_TILE_SUMS_NO_PIECES};
    x.cols = n;
    dq_hessian_begin(t->h, n);
    for (int i = 0; i < TIMES; i++) {
        begin(t, i);
        DQ_TRY(dq_hessian_add(t->h, t->c->set.backend, x, all, err));
        DQ_TRY(dq_backend_sync(t->c->set.backend, err));
        end(t);
    }
    keep(t, DQ_CALIBRATE_HESSIANS, dq_calibrate_work_hessian((double)x.rows, (double)n));
    return dq_hessian_share(t->h, err);
}

/* An aligning rule mostly solves with the factor. */
static dq_status time_factor(timing *t, dq_err *err)
{
    for (int i = 0; i < TIMES; i++) {
        begin(t, i);
        DQ_TRY(dq_hessian_refactor(t->h, 1, "timing", err));
        end(t);
    }
    keep(t, DQ_CALIBRATE_FACTORS, dq_calibrate_work_factor((double)t->h->n));
    if (!t->c->set.rule->aligns) return DQ_OK;
    const int64_t n = t->h->n;
    dq_cross *x = NULL;
    if (dq_cross_new(&x, n, n, 1, err) == DQ_OK) {
        dq_cross_begin(x, n, n);
        for (int i = 0; i < TIMES && err->code == DQ_OK; i++) {
            begin(t, i);
            dq_correction_solve(x, t->h, err);
            end(t);
        }
        keep(t, DQ_CALIBRATE_FACTORS, 2 * (double)n * (double)n * (double)n);
    }
    dq_cross_free(x);
    return err->code;
}

static dq_status time_rounding(timing *t, int64_t rows, const dq_quant_spec *spec, dq_err *err)
{
    const int64_t n = t->h->n;
    dq_quant_spec own = *spec;
    own.column = NULL;
    dq_gptq_loss *loss = dq_block_new((size_t)rows, sizeof *loss, err);
    float *w = dq_block_new((size_t)rows, (size_t)n * sizeof *w, err);
    for (int i = 0; i < TIMES && err->code == DQ_OK; i++) {
        dq_codes *codes = NULL;
        fill(w, rows * n);
        begin(t, i);
        dq_gptq(&codes, w, rows, n, t->h, NULL, &own, t->c->set.rule->refits, loss, err);
        end(t);
        dq_codes_free(codes);
    }
    dq_block_free(loss);
    dq_block_free(w);
    return err->code;
}

/* The time per value of each rounding, beyond f64 products. */
static dq_status time_values(timing *t, dq_err *err)
{
    const int64_t rows = (int64_t)DQ_STRIP_ROWS * dq_os_threads(), n = t->q->info.n_tensors;
    bool known[DQ_QUANT_MODES][9] = {{false}};
    for (int64_t i = 0; i < n; i++) {
        const dq_quantize_row r = dq_quantize_row_at(t->q, i);
        if (!r.fed) continue;
        const dq_quant_spec *spec = &dq_quantize_tensor_of(t->q, r.name)->spec;
        if (known[spec->mode][spec->bits]) continue;
        double *each = &t->c->rates.value[spec->mode][spec->bits];
        known[spec->mode][spec->bits] = true;
        *each = 0;
        DQ_TRY(time_rounding(t, rows, spec, err));
        const double products =
            dq_calibrate_pace_rounding(t->c, (double)rows, (double)t->h->n, spec);
        *each = fmax(0, t->least - products) / (double)(rows * t->h->n);
    }
    return DQ_OK;
}

/* With few inputs, products do not hide the time per value. */
static dq_status factor_few(timing *t, dq_mat x, dq_err *err)
{
    const dq_tile_sums_rows all = {DQ_ROWS_ALL, DQ_TILE_SUMS_NO_PIECES};
    x.cols = VALUE_COLS;
    dq_hessian_begin(t->h, VALUE_COLS);
    DQ_TRY(dq_hessian_add(t->h, t->c->set.backend, x, all, err));
    DQ_TRY(dq_hessian_share(t->h, err));
    return dq_hessian_factor(t->h, 1, "timing", err);
}

static dq_status time_all(timing *t, dq_err *err)
{
    const dq_model *m = t->c->m;
    const dq_quant_spec plain = {.bits = 4, .group = 128, .mode = DQ_ABSMAX, .scale_dtype = DQ_F32};
    const int64_t cols = m->dim < ROUND_COLS ? m->dim : ROUND_COLS,
                  rows = (int64_t)DQ_F64_TILE * dq_os_threads();
    /* The start of the longest sequence, short enough for a fast layer. */
    const dq_calib_text *all = &t->c->text;
    const double fit = much / dq_calibrate_work_layer(&t->c->m->layer[0]);
    int64_t longest = 0;
    for (int64_t s = 0; s < all->n_seq; s++)
        if (all->cu[s + 1] - all->cu[s] > all->cu[longest + 1] - all->cu[longest]) longest = s;
    int64_t n = all->cu[longest + 1] - all->cu[longest];
    const int64_t most = fit > LEAST_ROWS ? (int64_t)fit : LEAST_ROWS;
    if (n > most) n = most;
    t->text = *all;
    t->text.ids = all->ids + all->cu[longest];
    t->text.n_ids = t->cu[1] = n;
    t->text.cu = t->cu;
    t->text.n_seq = 1;
    DQ_TRY(dq_calib_pass_new(&t->pass, m, t->c->set.backend, &t->text, err));
    DQ_TRY(dq_hessian_new(&t->h, m->dim, t->pass.max_rows, err));
    DQ_TRY(time_forward(t, err));
    const dq_mat x = t->pass.x;
    fill(x.p, x.rows * x.cols);
    DQ_TRY(time_sums(t, x, cols, err));
    DQ_TRY(dq_hessian_factor(t->h, 1, "timing", err));
    DQ_TRY(time_factor(t, err));
    DQ_TRY(time_rounding(t, rows, &plain, err));
    keep(t, DQ_CALIBRATE_ROUNDING,
         dq_calibrate_work_rounding((double)rows, (double)cols, DQ_ABSMAX, t->c->set.rule));
    if (cols > VALUE_COLS) DQ_TRY(factor_few(t, x, err));
    return time_values(t, err);
}

dq_status dq_calibrate_measure(dq_calibrate *c, const dq_quantizer *q, dq_err *err)
{
    timing t = {.c = c, .q = q};
    if (dq_ranks_count() > 1) return DQ_OK; /* a rank alone has no chunk to time */
    time_all(&t, err);
    dq_hessian_free(t.h);
    dq_calib_pass_end(&t.pass);
    return err->code;
}
