/* calibrate: see calibrate.h. A layer takes five passes over the chunks of the text, each of which ends where the next product
 * needs weights that are not rounded yet; what a pass leaves lies in the scratch file. Chunks are whole sequences and depend
 * on the text alone, so that neither threads nor memory change a byte.
 * SPDX-License-Identifier: MIT */
#include "calibrate/calibrate.h"

#include "base/os.h"
#include "base/utf8.h"
#include "calibrate/activations.h"
#include "calibrate/gptq.h"
#include "calibrate/reference.h"
#include "engine/layer_steps.h"
#include "engine/memory_fit.h"
#include "quantize/quantize_tensor.h"
#include "tensor/coded.h"

#include <stdio.h>
#include <string.h>

const char *const dq_calibrate_part_name[DQ_CALIBRATE_PARTS] = {"forward", "hessians", "factors",
                                                                "rounding", "files"};

const dq_calibrate_rule dq_calibrate_rules[DQ_CALIBRATE_RULES] = {
    {.name = "gptq",
     .about = "layer by layer, errors of columns made up for by those still to be rounded"},
    {.name = "align",
     .about =
         "the same of weights that first make up for what was lost before them; twice the time",
     .aligns = true,
     .refits = 2},
};

enum {
    CHUNK_ROWS = 2048,   /* of a pass */
    FLOP_PER_BYTE = 256, /* of work in f32 that counts as a byte */
    F64_FLOP = 4         /* of f32, in time */
};

struct dq_calibrate {
    dq_calibrate_settings set;
    dq_arena *arena;
    dq_calib_text text;
    dq_calibrate_info info;
    dq_quantize_method method;
    double lap; /* time at which the current part began */
};

/* Whole sequences that a pass takes at once. */
typedef struct chunk {
    dq_batch batch;
    int64_t first; /* row in the text */
} chunk;

/* One run. */
typedef struct job {
    dq_calibrate *c;
    dq_quantize_feed *feed;
    const dq_model *m;
    dq_backend *b;
    dq_activations act;
    dq_hessian *h;
    dq_reference ref; /* of a rule that aligns */
    chunk *chunk;
    int64_t n_chunks, max_rows, y_cols;
    dq_mat x, hidden, q, k, v, y, angles, lambda, gate, up; /* of max_rows rows */
    dq_layer layer; /* the current one, with rounded weights */
    dq_coded coded[7];
    int n_coded, number; /* of the layer */
    int n_layers;        /* behind them nothing is left to round */
} job;

static void begin_part(dq_calibrate *c)
{
    c->lap = dq_os_seconds();
}

static void end_part(dq_calibrate *c, dq_calibrate_part part, double flop)
{
    const double now = dq_os_seconds();
    c->info.seconds[part] += now - c->lap;
    c->info.flop[part] += flop;
    c->lap = now;
}

/* Ends a part, and tells progress of it. */
static void advance(job *j, dq_calibrate_part part, double flop, const char *what)
{
    end_part(j->c, part, flop);
    if (part == DQ_CALIBRATE_FACTORS || part == DQ_CALIBRATE_ROUNDING) flop *= F64_FLOP;
    dq_quantize_feed_advance(j->feed, (int64_t)(flop / FLOP_PER_BYTE), what);
}

/* ---- Sizes ---- */

static int64_t widest(const dq_model *m)
{
    const int64_t y = (int64_t)m->map.n_out * m->map.n_slabs * m->map.head_dim;
    const int64_t other = y > m->ffn ? y : m->ffn;
    return other > m->dim ? other : m->dim;
}

/* Multiplications and additions of a layer's weights for one token. */
static double layer_flop(const dq_layer *l)
{
    const dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    double n = 0;
    for (int i = 0; i < 7; i++) n += 2 * (double)all[i]->rows * (double)all[i]->cols;
    return n;
}

static double hessian_flop(double rows, double n)
{
    return rows * n * n; /* the lower triangle */
}

static double factor_flop(double n)
{
    return n * n * n / 3;
}

static double rounding_flop(double rows, double n, dq_scale_mode mode, int refits)
{
    const int tries = mode == DQ_SEARCH ? DQ_GPTQ_TRIES : 1;
    /* what is fed back, and the signal of the loss; H once and a rounding for new scales */
    return (tries + 1 + 3 * refits) * rows * n * n;
}

static double cross_flop(double rows, double m, double n)
{
    return 2 * rows * m * n;
}

/* What a rule that aligns adds to a layer: the other forward pass, o and down once more, sums and solutions. */
static double align_flop(const dq_model *m, const dq_layer *l, double tokens)
{
    const double dim = m->dim, y = (double)l->o.cols, ffn = m->ffn;
    double n = tokens * (layer_flop(l) + 2 * dim * (y + ffn));
    n += 2 * cross_flop(tokens, dim, dim) + cross_flop(tokens, dim, y) +
         cross_flop(tokens, dim, ffn);
    return n + F64_FLOP * 2 * dim * (2 * dim * dim + y * y + ffn * ffn);
}

/* All work of a run with every projection coded, in f32 operations. */
static double all_flop(const dq_model *m, const dq_calibrate_rule *rule, double tokens)
{
    double n = 0;
    for (int i = 0; i < m->n_layers; i++) {
        const dq_layer *l = &m->layer[i];
        const dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        n += tokens * layer_flop(l) + (rule->aligns ? align_flop(m, l, tokens) : 0);
        for (int k = 0; k < 7; k++) {
            const double cols = (double)all[k]->cols;
            n += F64_FLOP * rounding_flop((double)all[k]->rows, cols, DQ_SEARCH, rule->refits);
            /* k and v share the Hessian of q, up that of gate */
            if (k == 0 || k == 3 || k == 4 || k == 6)
                n += hessian_flop(tokens, cols) + F64_FLOP * factor_flop(cols);
        }
    }
    return n;
}

/* ---- Chunks and buffers ---- */

static dq_status list_chunks(job *j, dq_arena *a, dq_err *err)
{
    const dq_calib_text *t = &j->c->text;
    int32_t *pos = dq_alloc(a, (size_t)t->n_ids, sizeof *pos, err);
    int32_t *seq = dq_alloc(a, (size_t)t->n_seq, sizeof *seq, err);
    int64_t *cu = dq_alloc(a, 2 * (size_t)t->n_seq, sizeof *cu, err);
    j->chunk = dq_alloc(a, (size_t)t->n_seq, sizeof *j->chunk, err);
    if (err->code != DQ_OK) return err->code;
    for (int64_t s = 0, end; s < t->n_seq; s = end) {
        chunk *now = &j->chunk[j->n_chunks++];
        now->first = t->cu[s];
        for (end = s + 1; end < t->n_seq && t->cu[end + 1] - now->first <= CHUNK_ROWS;) end++;
        now->batch = (dq_batch){.n_seq = (int)(end - s),
                                .n_rows = t->cu[end] - now->first,
                                .cu_rows = cu,
                                .seq = seq,
                                .ids = t->ids + now->first,
                                .pos = pos + now->first};
        for (int64_t i = s; i <= end; i++) *cu++ = t->cu[i] - now->first;
        if (now->batch.n_rows > j->max_rows) j->max_rows = now->batch.n_rows;
    }
    for (int64_t s = 0; s < t->n_seq; s++) {
        for (int64_t i = t->cu[s]; i < t->cu[s + 1]; i++) pos[i] = (int32_t)(i - t->cu[s]);
    }
    return DQ_OK;
}

static dq_mat buffer(job *j, int64_t rows, int64_t cols)
{
    dq_mat m = {.rows = rows, .cols = cols};
    if (cols > 0) m.p = j->b->ops->alloc(j->b, (size_t)(rows * cols) * sizeof *m.p);
    if (cols > 0 && !m.p)
        dq_fail(&j->b->err, DQ_RESOURCE, "out of memory for a pass of %lld rows of calibration",
                (long long)rows);
    return m;
}

static dq_status make_buffers(job *j, dq_err *err)
{
    const dq_model *m = j->m;
    const dq_headmap *a = &m->map;
    const int64_t rows = j->max_rows, ffn_rows = rows < DQ_FFN_ROWS ? rows : DQ_FFN_ROWS;
    j->y_cols = (int64_t)a->n_out * a->n_slabs * a->head_dim;
    j->x = buffer(j, rows, m->dim);
    j->hidden = buffer(j, rows, m->dim);
    j->q = buffer(j, rows, (int64_t)a->n_q * a->head_dim);
    j->k = buffer(j, rows, (int64_t)a->n_kv * a->head_dim);
    j->v = buffer(j, rows, (int64_t)a->n_kv * a->head_dim);
    j->y = buffer(j, rows, j->y_cols);
    j->angles = buffer(j, rows, a->head_dim);
    j->lambda = buffer(j, rows, m->layout->lambda == DQ_LAMBDA_TOKEN ? a->n_out : 0);
    j->gate = buffer(j, ffn_rows, m->ffn);
    j->up = buffer(j, ffn_rows, m->ffn);
    return dq_backend_sync(j->b, err);
}

static void free_buffers(job *j)
{
    const dq_mat all[] = {j->x, j->hidden, j->q,      j->k,    j->v,
                          j->y, j->angles, j->lambda, j->gate, j->up};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) j->b->ops->free(j->b, all[i].p);
}

static dq_mat first_rows(dq_mat m, int64_t rows)
{
    m.rows = rows;
    return m;
}

/* The steps of the current layer on a chunk; the cache is the caller's. */
static dq_layer_steps steps_of(const job *j, const chunk *k)
{
    const int64_t n = k->batch.n_rows;
    return (dq_layer_steps){.b = j->b,
                            .m = j->m,
                            .layer = &j->layer,
                            .batch = &k->batch,
                            .kv_spec = &dq_kv_plain,
                            .math = {DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32},
                            .x = first_rows(j->x, n),
                            .h = first_rows(j->hidden, n),
                            .q = first_rows(j->q, n),
                            .k = first_rows(j->k, n),
                            .v = first_rows(j->v, n),
                            .y = first_rows(j->y, n),
                            .angles = first_rows(j->angles, n),
                            .lambda = first_rows(j->lambda, n)};
}

static dq_status get_stream(job *j, const chunk *k, dq_err *err)
{
    DQ_TRY(dq_os_check_stop(err));
    begin_part(j->c);
    DQ_TRY(dq_activations_get(&j->act, DQ_ACTIVATIONS_STREAM, k->first,
                              first_rows(j->x, k->batch.n_rows), err));
    end_part(j->c, DQ_CALIBRATE_FILES, 0);
    return DQ_OK;
}

static dq_status put_stream(job *j, const chunk *k, dq_err *err)
{
    DQ_TRY(dq_activations_put(&j->act, DQ_ACTIVATIONS_STREAM, k->first,
                              first_rows(j->x, k->batch.n_rows), err));
    end_part(j->c, DQ_CALIBRATE_FILES, 0);
    return DQ_OK;
}

/* ---- Rounding one tensor ---- */

static bool is_coded(const job *j, const dq_weight *w)
{
    const dq_quantize_tensor *t = w->rows > 0 ? dq_quantize_feed_tensor(j->feed, w->name) : NULL;
    return t && t->format;
}

/* Whether any of these has to be rounded. */
static bool is_left(const job *j, const dq_weight *const *w, int n)
{
    for (int i = 0; i < n; i++) {
        if (!is_coded(j, w[i])) continue;
        if (!dq_quantize_feed_done(j->feed, dq_quantize_feed_tensor(j->feed, w[i]->name)))
            return true;
    }
    return false;
}

static int layers_left(const job *j)
{
    int n = j->m->n_layers;
    for (; n > 0; n--) {
        const dq_layer *l = &j->m->layer[n - 1];
        const dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        if (is_left(j, all, 7)) break;
    }
    return n;
}

/* For weights that have to be rounded the Hessian is emptied. */
static bool begin_sums(job *j, const dq_weight *const *w, int n)
{
    const bool any = is_left(j, w, n);
    if (any) dq_hessian_begin(j->h, w[0]->cols);
    return any;
}

static void add_inputs(job *j, dq_mat x)
{
    dq_hessian_add(j->h, j->b, x);
    advance(j, DQ_CALIBRATE_HESSIANS, hessian_flop((double)x.rows, (double)x.cols), "hessians");
}

/* Of the sums of what the rounded model lacks, m outputs. */
static void end_lacks(job *j, int64_t rows, int64_t n)
{
    advance(j, DQ_CALIBRATE_HESSIANS, cross_flop((double)rows, (double)j->ref.sums->m, (double)n),
            "hessians");
}

static dq_status factor(job *j, const char *name, dq_err *err)
{
    dq_calibrate_info *info = &j->c->info;
    DQ_TRY(dq_backend_sync(j->b, err));
    begin_part(j->c);
    DQ_TRY(dq_hessian_factor(j->h, j->c->set.damping, name, err));
    info->n_dead += j->h->n_dead;
    if (j->h->damping_share > 1.5 * j->c->set.damping) {
        if (info->n_damped++ == 0) snprintf(info->damped, sizeof info->damped, "%s", name);
        if (j->h->damping_share > info->damped_share) info->damped_share = j->h->damping_share;
    }
    advance(j, DQ_CALIBRATE_FACTORS, factor_flop((double)j->h->n), name);
    if (!j->ref.act) return DQ_OK;
    DQ_TRY(dq_reference_solve(&j->ref, j->h, name, err));
    const double n = (double)j->h->n;
    advance(j, DQ_CALIBRATE_FACTORS, 2 * (double)j->ref.sums->m * n * n, name);
    return DQ_OK;
}

static dq_status round_tensor(job *j, const dq_quantize_tensor *t, const dq_weight *w,
                              dq_coded *out, dq_err *err)
{
    dq_codes *codes = NULL;
    dq_gptq_loss loss;
    begin_part(j->c);
    float *f32 = dq_block_new((size_t)w->rows, (size_t)w->cols * sizeof *f32, err);
    if (!f32) return err->code;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < w->rows; r++) dq_weight_dequantize_rows(f32 + r * w->cols, w, r, r + 1);
    if (j->ref.act) dq_reference_correct(&j->ref, f32, w->rows, &t->spec, err);
    const int refits = j->c->set.rule->refits;
    if (err->code == DQ_OK)
        dq_gptq(&codes, f32, w->rows, w->cols, j->h, &t->spec, refits, &loss, err);
    dq_block_free(f32);
    if (err->code == DQ_OK) dq_coded_pack(out, codes, err);
    dq_codes_free(codes);
    if (err->code != DQ_OK) return err->code;
    advance(j, DQ_CALIBRATE_ROUNDING,
            rounding_flop((double)w->rows, (double)w->cols, t->spec.mode, refits), w->name);
    DQ_TRY(dq_quantize_feed_put(j->feed, t, &out->weight,
                                loss.signal > 0 ? loss.error / loss.signal : 0, err));
    end_part(j->c, DQ_CALIBRATE_FILES, 0);
    return DQ_OK;
}

/* Gives the layer the rounded form of weights with the same inputs: from an earlier run, or made now by their sums. */
static dq_status round_weights(job *j, dq_weight *const *w, int n, bool sums, dq_err *err)
{
    bool factored = false;
    for (int i = 0; i < n; i++) {
        dq_coded *out = &j->coded[j->n_coded];
        const char *name = w[i]->name;
        if (!is_coded(j, w[i])) continue;
        const dq_quantize_tensor *t = dq_quantize_feed_tensor(j->feed, name);
        DQ_TRY(dq_os_check_stop(err));
        if (dq_quantize_feed_done(j->feed, t)) {
            DQ_TRY(dq_quantize_feed_take(j->feed, t, out, err));
        } else {
            if (!sums) return dq_fail(err, DQ_BUG, "%s: no sums of its inputs", name);
            if (!factored) DQ_TRY(factor(j, name, err));
            factored = true;
            if (round_tensor(j, t, w[i], out, err) != DQ_OK) return err->code;
        }
        *w[i] = out->weight;
        w[i]->name = name;
        j->n_coded++;
    }
    return DQ_OK;
}

/* ---- Passes of a layer ---- */

/* Behind add_inputs(s->h), where there is a reference. */
static dq_status add_lacking_inputs(job *j, const chunk *k, const dq_layer_steps *s,
                                    void (*norm)(const dq_layer_steps *s), dq_err *err)
{
    if (!j->ref.act) return DQ_OK;
    DQ_TRY(dq_reference_get(&j->ref, k->first, k->batch.n_rows, err));
    end_part(j->c, DQ_CALIBRATE_FILES, 0);
    dq_reference_add_inputs(&j->ref, s, norm);
    end_lacks(j, s->h.rows, s->h.cols);
    return DQ_OK;
}

static dq_status pass_qkv(job *j, dq_err *err)
{
    dq_layer *l = &j->layer;
    const dq_weight *const in[] = {&l->q, &l->k, &l->v};
    const bool sums = begin_sums(j, in, 3);
    if (j->ref.act) dq_reference_begin_inputs(&j->ref, l->q.cols);
    for (int64_t i = 0; sums && i < j->n_chunks; i++) {
        const dq_layer_steps s = steps_of(j, &j->chunk[i]);
        DQ_TRY(get_stream(j, &j->chunk[i], err));
        dq_layer_steps_norm_attn(&s);
        add_inputs(j, s.h);
        DQ_TRY(add_lacking_inputs(j, &j->chunk[i], &s, dq_layer_steps_norm_attn, err));
    }
    return round_weights(j, (dq_weight *const[]){&l->q, &l->k, &l->v}, 3, sums, err);
}

static double rows_flop(const dq_weight *w, int64_t rows)
{
    return 2 * (double)rows * (double)w->rows * (double)w->cols;
}

/* y of one chunk and the stream in s, in a cache that lives as long. */
static dq_status attend(job *j, const chunk *k, dq_layer_steps s, dq_err *err)
{
    const dq_ops *op = j->b->ops;
    const dq_attend_args plain = {.logit = dq_logit_plain};
    union { /* handles of this chunk; the batch is read-only for everybody else */
        const int32_t *in;
        int32_t *out;
    } seq = {k->batch.seq};
    s.kv = op->kv_new(j->b, &j->m->map, 1, s.kv_spec);
    if (!s.kv) {
        dq_backend_sync(j->b, err);
        return dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache of calibration");
    }
    for (int i = 0; i < k->batch.n_seq; i++) seq.out[i] = op->kv_seq_new(j->b, s.kv);
    dq_layer_steps_norm_attn(&s);
    op->rope_table(j->b, s.angles, k->batch.pos, &j->m->rope);
    dq_layer_steps_qkv(&s);
    dq_layer_steps_attend(&s, &plain);
    dq_backend_sync(j->b, err);
    op->kv_free(j->b, s.kv);
    const int64_t n = k->batch.n_rows;
    advance(j, DQ_CALIBRATE_FORWARD,
            rows_flop(&s.layer->q, n) + rows_flop(&s.layer->k, n) + rows_flop(&s.layer->v, n),
            "attention");
    return err->code;
}

/* Takes the reference through attention, o included. */
static dq_status reference_attend(job *j, const chunk *k, dq_err *err)
{
    const dq_layer_steps rounded = steps_of(j, k);
    const dq_layer_steps s = dq_reference_steps(&j->ref, &rounded, j->number);
    begin_part(j->c);
    DQ_TRY(dq_reference_get(&j->ref, k->first, k->batch.n_rows, err));
    end_part(j->c, DQ_CALIBRATE_FILES, 0);
    DQ_TRY(attend(j, k, s, err));
    dq_layer_steps_out(&s);
    DQ_TRY(dq_reference_put(&j->ref, k->first, s.x, err));
    advance(j, DQ_CALIBRATE_FORWARD, rows_flop(&s.layer->o, k->batch.n_rows), "attention");
    return DQ_OK;
}

static dq_status pass_attend(job *j, dq_err *err)
{
    const dq_weight *const in[] = {&j->layer.o};
    const bool sums = begin_sums(j, in, 1);
    if (j->ref.act) dq_reference_begin_outputs(&j->ref, j->layer.o.cols);
    for (int64_t i = 0; i < j->n_chunks; i++) {
        const chunk *k = &j->chunk[i];
        const dq_layer_steps s = steps_of(j, k);
        if (j->ref.act) DQ_TRY(reference_attend(j, k, err));
        DQ_TRY(get_stream(j, k, err));
        DQ_TRY(attend(j, k, s, err));
        DQ_TRY(dq_activations_put(&j->act, DQ_ACTIVATIONS_OTHER, k->first, s.y, err));
        end_part(j->c, DQ_CALIBRATE_FILES, 0);
        if (!sums) continue;
        add_inputs(j, s.y);
        if (!j->ref.act) continue;
        dq_reference_add_attention(&j->ref, &s, j->number);
        end_lacks(j, s.y.rows, s.y.cols);
    }
    return round_weights(j, (dq_weight *const[]){&j->layer.o}, 1, sums, err);
}

static dq_status pass_out(job *j, dq_err *err)
{
    dq_layer *l = &j->layer;
    const dq_weight *const in[] = {&l->gate, &l->up};
    const bool sums = begin_sums(j, in, 2);
    if (j->ref.act) dq_reference_begin_inputs(&j->ref, l->gate.cols);
    for (int64_t i = 0; i < j->n_chunks; i++) {
        const chunk *k = &j->chunk[i];
        const dq_layer_steps s = steps_of(j, k);
        DQ_TRY(get_stream(j, k, err));
        DQ_TRY(dq_activations_get(&j->act, DQ_ACTIVATIONS_OTHER, k->first, s.y, err));
        end_part(j->c, DQ_CALIBRATE_FILES, 0);
        dq_layer_steps_out(&s);
        advance(j, DQ_CALIBRATE_FORWARD, rows_flop(&l->o, k->batch.n_rows), "attention");
        DQ_TRY(put_stream(j, k, err));
        if (!sums) continue;
        dq_layer_steps_norm_ffn(&s);
        add_inputs(j, s.h);
        DQ_TRY(add_lacking_inputs(j, k, &s, dq_layer_steps_norm_ffn, err));
    }
    return round_weights(j, (dq_weight *const[]){&l->gate, &l->up}, 2, sums, err);
}

/* What down reads, in pieces of at most DQ_FFN_ROWS rows. */
static dq_status gate_up(job *j, const chunk *k, bool sums, dq_err *err)
{
    const dq_layer_steps s = steps_of(j, k);
    dq_layer_steps_norm_ffn(&s);
    for (int64_t at = 0; at < k->batch.n_rows; at += DQ_FFN_ROWS) {
        const int64_t left = k->batch.n_rows - at, n = left < DQ_FFN_ROWS ? left : DQ_FFN_ROWS;
        const dq_mat gate = first_rows(j->gate, n), up = first_rows(j->up, n);
        dq_layer_steps_gate_up(&s, gate, up, dq_layer_steps_rows(s.h, at, at + n));
        DQ_TRY(dq_backend_sync(j->b, err));
        advance(j, DQ_CALIBRATE_FORWARD, 2 * rows_flop(&j->layer.gate, n), "feed-forward");
        DQ_TRY(dq_activations_put(&j->act, DQ_ACTIVATIONS_OTHER, k->first + at, gate, err));
        end_part(j->c, DQ_CALIBRATE_FILES, 0);
        if (!sums) continue;
        add_inputs(j, gate);
        if (!j->ref.act) continue;
        dq_reference_add_down(&j->ref, &s, j->number, at, gate);
        end_lacks(j, n, gate.cols);
    }
    return DQ_OK;
}

/* Takes the reference through the rest of the layer. */
static dq_status reference_feed_forward(job *j, const chunk *k, dq_err *err)
{
    const dq_layer_steps rounded = steps_of(j, k);
    const dq_layer_steps s = dq_reference_steps(&j->ref, &rounded, j->number);
    begin_part(j->c);
    DQ_TRY(dq_reference_get(&j->ref, k->first, k->batch.n_rows, err));
    dq_reference_feed_forward(&s, j->gate, j->up);
    DQ_TRY(dq_reference_put(&j->ref, k->first, s.x, err));
    const double flop =
        2 * rows_flop(&s.layer->gate, s.x.rows) + rows_flop(&s.layer->down, s.x.rows);
    advance(j, DQ_CALIBRATE_FORWARD, flop, "feed-forward");
    return DQ_OK;
}

static dq_status pass_gate_up(job *j, dq_err *err)
{
    const dq_weight *const in[] = {&j->layer.down};
    const bool sums = begin_sums(j, in, 1), last = j->number == j->n_layers - 1;
    if (j->ref.act) dq_reference_begin_outputs(&j->ref, j->layer.down.cols);
    for (int64_t i = 0; (sums || !last) && i < j->n_chunks; i++) {
        if (j->ref.act) DQ_TRY(reference_feed_forward(j, &j->chunk[i], err));
        DQ_TRY(get_stream(j, &j->chunk[i], err));
        DQ_TRY(gate_up(j, &j->chunk[i], sums, err));
    }
    return round_weights(j, (dq_weight *const[]){&j->layer.down}, 1, sums, err);
}

static dq_status pass_down(job *j, dq_err *err)
{
    for (int64_t i = 0; i < j->n_chunks; i++) {
        const chunk *k = &j->chunk[i];
        const dq_layer_steps s = steps_of(j, k);
        DQ_TRY(get_stream(j, k, err));
        for (int64_t at = 0; at < k->batch.n_rows; at += DQ_FFN_ROWS) {
            const int64_t left = k->batch.n_rows - at, n = left < DQ_FFN_ROWS ? left : DQ_FFN_ROWS;
            const dq_mat gate = first_rows(j->gate, n);
            DQ_TRY(dq_activations_get(&j->act, DQ_ACTIVATIONS_OTHER, k->first + at, gate, err));
            end_part(j->c, DQ_CALIBRATE_FILES, 0);
            dq_layer_steps_down(&s, dq_layer_steps_rows(s.h, at, at + n), gate);
            DQ_TRY(dq_backend_sync(j->b, err));
            advance(j, DQ_CALIBRATE_FORWARD, rows_flop(&j->layer.down, n), "feed-forward");
        }
        j->b->ops->add(j->b, s.x, s.h);
        DQ_TRY(put_stream(j, k, err));
    }
    return DQ_OK;
}

static dq_status embed(job *j, dq_err *err)
{
    begin_part(j->c);
    for (int64_t i = 0; i < j->n_chunks; i++) {
        const chunk *k = &j->chunk[i];
        j->b->ops->embed(j->b, first_rows(j->x, k->batch.n_rows), &j->m->embed, k->batch.ids);
        DQ_TRY(put_stream(j, k, err));
        if (j->ref.act)
            DQ_TRY(dq_reference_put(&j->ref, k->first, first_rows(j->x, k->batch.n_rows), err));
    }
    return DQ_OK;
}

static dq_status run_layer(job *j, int number, dq_err *err)
{
    j->layer = j->m->layer[number];
    j->number = number;
    if (pass_qkv(j, err) == DQ_OK && pass_attend(j, err) == DQ_OK && pass_out(j, err) == DQ_OK &&
        pass_gate_up(j, err) == DQ_OK && number + 1 < j->n_layers)
        pass_down(j, err);
    while (j->n_coded > 0) dq_coded_free(&j->coded[--j->n_coded]);
    if (err->code != DQ_OK && err->code != DQ_STOPPED && err->code != DQ_DAMAGED)
        dq_in(err, "layer %d: ", number);
    return err->code;
}

/* ---- The method ---- */

static dq_status run_job(job *j, dq_err *err)
{
    dq_calibrate *c = j->c;
    j->n_layers = layers_left(j);
    if (j->n_layers == 0) return DQ_OK;
    DQ_TRY(list_chunks(j, c->arena, err));
    DQ_TRY(make_buffers(j, err));
    DQ_TRY(dq_hessian_new(&j->h, widest(j->m), err));
    const int streams = c->set.rule->aligns ? 2 : 1;
    DQ_TRY(dq_activations_open(&j->act, j->b, c->set.out, c->text.n_ids, j->m->dim, streams,
                               widest(j->m), err));
    if (streams == 2) DQ_TRY(dq_reference_new(&j->ref, &j->act, j->m, j->max_rows, err));
    DQ_TRY(embed(j, err));
    for (int i = 0; i < j->n_layers; i++) DQ_TRY(run_layer(j, i, err));
    return DQ_OK;
}

static dq_status run(void *arg, dq_quantize_feed *feed, dq_err *err)
{
    dq_calibrate *c = arg;
    job j = {.c = c,
             .feed = feed,
             .m = dq_quantize_feed_model(feed),
             .b = c->set.backend,
             .act.file.fd = -1};
    run_job(&j, err);
    dq_reference_free(&j.ref);
    dq_activations_close(&j.act);
    dq_hessian_free(j.h);
    free_buffers(&j);
    dq_err ignore = {0};
    dq_backend_sync(j.b, &ignore);
    return err->code;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static dq_status begin(void *arg, const dq_model *m, dq_quantize_needs *out, dq_err *err)
{
    dq_calibrate *c = arg;
    const dq_calib_text *t = &c->text;
    DQ_TRY(dq_calib_text_read(&c->text, c->set.path, m, c->set.tokens, c->set.ctx, c->arena, err));
    c->info.text = t;
    c->info.scratch_bytes =
        dq_activations_bytes(t->n_ids, m->dim, c->set.rule->aligns ? 2 : 1, widest(m));
    out->scratch_bytes = c->info.scratch_bytes;
    out->work = (int64_t)(all_flop(m, c->set.rule, (double)t->n_ids) / FLOP_PER_BYTE);
    json_t *o = out->calib = json_object();
    const char *file = base_name(c->set.path);
    int64_t first;
    if (dq_utf8_check(file, strlen(file), &first) > 0)
        return dq_fail(err, DQ_USAGE, "%s: the name of the calibration text is not UTF-8",
                       c->set.path);
    json_object_set_new(o, "file", json_string(file));
    json_object_set_new(o, "sha256", json_string(t->sha256));
    json_object_set_new(o, "tokens", json_integer(t->n_ids));
    json_object_set_new(o, "sequences", json_integer(t->n_seq));
    json_object_set_new(o, "ctx", json_integer(t->ctx));
    json_object_set_new(o, "damping", json_real(c->set.damping));
    return json_object_size(o) == 6 ? DQ_OK : dq_fail(err, DQ_RESOURCE, "out of memory");
}

dq_status dq_calibrate_new(dq_calibrate **out, const dq_calibrate_settings *s, dq_err *err)
{
    dq_calibrate *c = *out = dq_block_new(1, sizeof *c, err);
    if (!c) return err->code;
    c->set = *s;
    if (c->set.damping == 0) c->set.damping = DQ_CALIBRATE_DAMPING;
    c->method = (dq_quantize_method){.name = s->rule->name, .begin = begin, .run = run, .arg = c};
    c->arena = dq_arena_new();
    if (c->arena) return DQ_OK;
    dq_calibrate_free(c);
    *out = NULL;
    return dq_fail(err, DQ_RESOURCE, "out of memory");
}

void dq_calibrate_free(dq_calibrate *c)
{
    if (!c) return;
    dq_arena_free(c->arena);
    dq_block_free(c);
}

const dq_calibrate_info *dq_calibrate_result(const dq_calibrate *c)
{
    return &c->info;
}

const dq_quantize_method *dq_calibrate_method(const dq_calibrate *c)
{
    return &c->method;
}
