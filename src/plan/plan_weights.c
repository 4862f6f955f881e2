/* A total that turns out too small grows with what is done.
 * SPDX-License-Identifier: MIT */
#include "plan/plan_weights.h"

#include "base/os.h"
#include "calibrate/calibrate.h"
#include "engine/runner.h"
#include "plan/inside.h"
#include "stat/stat.h"
#include "tensor/tensor.h"
#include "work/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void dq_plan_work_add(dq_plan_work *w, double flop, const char *what)
{
    w->done += flop;
    if (w->total < w->done) w->total = w->done;
    if (w->step) w->step(w->arg, w->done, w->total, what);
}

void dq_plan_work_expect(dq_plan_work *w, double flop)
{
    w->total = w->done + flop;
}

void dq_plan_work_step(void *share, const dq_pace *pace, const char *what)
{
    dq_plan_work_share *s = share;
    const double taken = dq_pace_taken(pace), all = taken + dq_pace_left(pace);
    const double done = all > 0 ? s->flop * taken / all : 0;
    if (done <= s->told) return;
    dq_plan_work_add(s->work, done - s->told, what);
    s->told = done;
}

/* The scratch file holds the source's final states; its logits, too large for a file, are
 * recomputed for each comparison. Sums follow the order of the text, once all ranks have all
 * rows. */

int64_t dq_plan_reference_bytes(const dq_calib_text *text, const dq_model *m)
{
    return dq_activations_bytes(text->n_ids, m->dim, 1, m->dim);
}

int64_t dq_plan_reference_first(int64_t n)
{
    return n < 3 ? 1 : n / 2 + 1;
}

static double layers_flop(const dq_model *m, int from, double ids)
{
    double n = 0;
    for (int l = from; l < m->n_layers; l++) n += ids * dq_calibrate_work_layer(&m->layer[l]);
    return n;
}

static double head_flop(const dq_model *m, double ids)
{
    return 2 * ids * (double)m->vocab * (double)m->dim;
}

double dq_plan_reference_source_flop(const dq_model *m, double ids)
{
    return layers_flop(m, 0, ids) + head_flop(m, ids / 2);
}

/* Both heads run, on the scored half of the rows. */
double dq_plan_reference_kld_flop(const dq_model *m, int from, double ids)
{
    return layers_flop(m, from, ids) + 2 * head_flop(m, ids / 2);
}

double dq_plan_reference_flop(const dq_model *m, int from, double ids)
{
    return dq_plan_reference_kld_flop(m, from, ids) + head_flop(m, ids / 2);
}

int64_t *dq_plan_reference_scored(const dq_calib_text *t, dq_arena *a, dq_err *err)
{
    int64_t *ids = dq_alloc(a, (size_t)t->n_clusters, sizeof *ids, err);
    for (int64_t s = 0; ids && s < t->n_seq; s++) {
        const int64_t n = t->cu[s + 1] - t->cu[s];
        ids[t->cluster[s]] += n - dq_plan_reference_first(n);
    }
    return ids;
}

static void advance(const dq_plan_reference *p, int64_t round, double flop, const char *what)
{
    dq_plan_work_add(p->work, flop * dq_calib_pass_at_once(&p->pass, round), what);
}

/* Rows of a sequence whose next token is scored. */
typedef struct row_range {
    int64_t begin, end;
} row_range;
static row_range scored_rows(const int64_t *cu, int64_t s)
{
    return (row_range){cu[s] + dq_plan_reference_first(cu[s + 1] - cu[s]) - 1, cu[s + 1] - 1};
}

/* logp[row] of the tokens after a chunk's scored rows. */
static dq_status ask(dq_plan_reference *p, const dq_calib_chunk *k, dq_mat h, const dq_weight *head,
                     double *logp, dq_err *err)
{
    const dq_batch *batch = &k->batch;
    dq_backend *b = p->pass.b;
    for (int s = 0; s < batch->n_seq; s++) {
        const row_range at = scored_rows(batch->cu_rows, s);
        if (at.begin < at.end)
            b->ops->logprob(b, logp + at.begin, NULL, dq_layer_steps_rows(h, at.begin, at.end),
                            head, batch->ids + at.begin + 1, DQ_NUM_F32);
        dq_backend_sync(b, err);
        for (int64_t i = at.begin; err->code == DQ_OK && i < at.end; i++) {
            if (!isfinite(logp[i]))
                dq_fail(err, DQ_DAMAGED, "gives a log-probability of %g", logp[i]);
        }
    }
    return err->code;
}

static dq_mat pass_stream(const dq_calib_pass *p, const dq_calib_chunk *k)
{
    return dq_calib_pass_first(p->x, k->batch.n_rows);
}

static void see(const dq_plan_inputs *inputs, dq_plan_product product, dq_mat x)
{
    if (inputs && inputs->see) inputs->see(inputs->arg, product, x);
}

/* Absolute maxima needed before the first row is rounded; NULL: not needed, or no memory, which
 * sticks in the backend. */
static float *find_absmax(const dq_layer_steps *s, const dq_attend_args *extra)
{
    const size_t n = (size_t)s->batch->n_seq * (size_t)s->m->map.n_q;
    if (!dq_logit_needs_absmax(extra->logit)) return NULL;
    float *absmax = s->b->ops->alloc(s->b, n * sizeof *absmax);
    if (!absmax) {
        dq_fail(&s->b->err, DQ_RESOURCE, "out of memory for the maxima of attention logits");
        return NULL;
    }
    const dq_attend_args args = dq_layer_steps_args(s, extra);
    s->b->ops->attn_absmax(s->b, absmax, &args);
    if (extra->logit.granularity == DQ_GRANULARITY_TENSOR)
        s->b->ops->absmax_join(s->b, absmax, s->batch->n_seq, s->m->map.n_q);
    return absmax;
}

/* change, inputs: NULL for none. DQ_STOPPED. */
static dq_status pass_layer(dq_calib_pass *p, const dq_model *m, int layer,
                            const dq_plan_change *change, const dq_calib_chunk *k,
                            const dq_plan_inputs *inputs, dq_err *err)
{
    const dq_layer *own = change && change->layer ? change->layer : &m->layer[layer];
    dq_layer_steps s = dq_calib_pass_steps(p, m, own, k);
    if (change && change->kv) s.kv_spec = change->kv;
    DQ_TRY(dq_os_check_stop(err));
    DQ_TRY(dq_calib_pass_cache(p, &s, err));
    dq_attend_args extra = {.logit = change && change->logit ? *change->logit : dq_logit_plain,
                            .rounds = change ? change->rounds : NULL};
    dq_layer_steps_norm_attn(&s);
    see(inputs, DQ_PLAN_QKV, s.h);
    dq_layer_steps_qkv(&s);
    if (inputs && inputs->see_heads) inputs->see_heads(inputs->arg, &s);
    float *absmax = find_absmax(&s, &extra);
    extra.absmax = absmax;
    dq_layer_steps_attend(&s, &extra);
    s.b->ops->free(s.b, absmax);
    see(inputs, DQ_PLAN_O, s.y);
    dq_layer_steps_out(&s);
    /* Ranks add up whole chunks, for which gate has the rows (calibrate.h). */
    const bool whole = inputs && inputs->see && dq_ranks_count() > 1;
    dq_layer_steps_norm_ffn(&s);
    see(inputs, DQ_PLAN_GATE_UP, s.h);
    for (int64_t at = 0; at < s.h.rows; at += DQ_FFN_ROWS) {
        const int64_t left = s.h.rows - at, n = left < DQ_FFN_ROWS ? left : DQ_FFN_ROWS,
                      to = whole ? at : 0;
        const dq_mat in = dq_layer_steps_rows(s.h, at, at + n),
                     gate = dq_layer_steps_rows(p->gate, to, to + n);
        dq_layer_steps_gate_up(&s, gate, dq_calib_pass_first(p->up, n), in);
        if (!whole) see(inputs, DQ_PLAN_DOWN, gate);
        dq_layer_steps_down(&s, in, gate);
    }
    if (whole) see(inputs, DQ_PLAN_DOWN, dq_calib_pass_first(p->gate, s.h.rows));
    dq_layer_steps_add_ffn(&s);
    dq_backend_sync(p->b, err);
    p->b->ops->kv_free(p->b, s.kv);
    return err->code;
}

static dq_mat pass_final(dq_calib_pass *p, const dq_model *m, const dq_calib_chunk *k)
{
    const dq_layer_steps s = dq_calib_pass_steps(p, m, &m->layer[m->n_layers - 1], k);
    dq_layer_steps_norm_out(&s);
    return s.h;
}

static dq_status begin(dq_plan_reference *p, dq_backend *b, const char *beside, dq_err *err)
{
    const dq_calib_text *text = p->text;
    const dq_model *m = p->source;
    p->arena = dq_arena_new();
    if (!p->arena) return dq_fail(err, DQ_RESOURCE, "out of memory");
    DQ_TRY(dq_calib_pass_new(&p->pass, m, b, text, err));
    p->logp = dq_alloc(p->arena, (size_t)p->pass.n_rows, sizeof *p->logp, err);
    p->scored = dq_plan_reference_scored(text, p->arena, err);
    DQ_TRY(err->code);
    DQ_TRY(dq_activations_open(&p->act, b, beside, p->pass.n_rows, m->dim, p->keeps_next ? 2 : 1,
                               m->dim, err));
    for (int64_t i = 0; i < p->pass.n_chunks; i++) {
        const dq_calib_chunk *k = &p->pass.chunk[i];
        const dq_mat x = pass_stream(&p->pass, k);
        p->pass.b->ops->embed(p->pass.b, x, &m->embed, k->batch.ids, m->embed_scale);
        DQ_TRY(dq_activations_put(&p->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
        const double n = (double)k->batch.n_rows;
        for (int l = 0; l < m->n_layers; l++) {
            DQ_TRY(pass_layer(&p->pass, m, l, NULL, k, NULL, err));
            advance(p, i, n * dq_calibrate_work_layer(&m->layer[l]), "source");
        }
        const dq_mat h = pass_final(&p->pass, m, k);
        DQ_TRY(dq_activations_put(&p->act, DQ_ACTIVATIONS_OTHER, k->first, h, err));
        if (ask(p, k, h, &m->head, p->logp + k->first, err) != DQ_OK)
            return dq_in(err, "%s: ", m->path);
        advance(p, i, head_flop(m, n / 2), "source");
    }
    return DQ_OK;
}

dq_status dq_plan_reference_new(dq_plan_reference *p, const dq_calib_text *text,
                                const dq_model *source, dq_backend *b, const char *beside,
                                bool keeps_next, dq_plan_work *work, dq_err *err)
{
    *p = (dq_plan_reference){
        .text = text, .source = source, .work = work, .keeps_next = keeps_next, .act.file.fd = -1};
    begin(p, b, beside, err);
    return dq_ranks_agree(NULL, NULL, err);
}

void dq_plan_reference_end(dq_plan_reference *p)
{
    dq_activations_close(&p->act);
    dq_calib_pass_end(&p->pass);
    dq_arena_free(p->arena);
    *p = (dq_plan_reference){.act.file.fd = -1};
}

static dq_status run_other(dq_plan_reference *p, const dq_calib_chunk *k, const dq_plan_other *o,
                           dq_err *err)
{
    const dq_mat x = pass_stream(&p->pass, k);
    int l = o->embed ? 0 : o->from;
    if (!o->embed && o->from == o->m->n_layers) { /* the source's own final states */
        dq_mat h = p->pass.h;
        h.rows = x.rows;
        return dq_activations_get(&p->act, DQ_ACTIVATIONS_OTHER, k->first, h, err);
    }
    if (o->embed)
        p->pass.b->ops->embed(p->pass.b, x, o->embed, k->batch.ids, o->m->embed_scale);
    else
        DQ_TRY(dq_activations_get(&p->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
    for (; l < o->m->n_layers; l++) {
        const dq_plan_change *change = l == o->from ? o->change : NULL;
        DQ_TRY(pass_layer(&p->pass, o->m, l, change, k, NULL, err));
    }
    pass_final(&p->pass, o->m, k);
    return dq_backend_sync(p->pass.b, err);
}

/* ln p of the token after a row; the sums decide whether it is scored. */
typedef struct row {
    double kld, loss;
} row;

typedef struct chunk_rows {
    double *kld, *logp; /* [max_rows]; logp NULL: not wanted */
} chunk_rows;

/* The source's states take the buffer of the stream, which is free by then. */
static dq_status compare(dq_plan_reference *p, const dq_calib_chunk *k, const dq_plan_other *o,
                         row *x, chunk_rows buf, dq_err *err)
{
    const dq_mat ref = pass_stream(&p->pass, k);
    dq_mat h = p->pass.h;
    h.rows = k->batch.n_rows;
    DQ_TRY(run_other(p, k, o, err));
    DQ_TRY(dq_activations_get(&p->act, DQ_ACTIVATIONS_OTHER, k->first, ref, err));
    double *kld = buf.kld;
    dq_backend *b = p->pass.b;
    for (int s = 0; s < k->batch.n_seq; s++) {
        const row_range at = scored_rows(k->batch.cu_rows, s);
        if (at.begin < at.end)
            b->ops->kld(b, kld + at.begin, dq_layer_steps_rows(ref, at.begin, at.end),
                        &p->source->head, DQ_NUM_F32, dq_layer_steps_rows(h, at.begin, at.end),
                        o->head, DQ_NUM_F32);
        dq_backend_sync(b, err);
        for (int64_t i = at.begin; err->code == DQ_OK && i < at.end; i++) {
            if (!isfinite(kld[i])) dq_fail(err, DQ_DAMAGED, "gives a KL divergence of %g", kld[i]);
        }
    }
    if (err->code != DQ_OK) return err->code;
    if (buf.logp) DQ_TRY(ask(p, k, h, o->head, buf.logp, err));
    for (int s = 0; s < k->batch.n_seq; s++) {
        const row_range at = scored_rows(k->batch.cu_rows, s);
        for (int64_t r = at.begin; r < at.end; r++)
            x[r] = (row){buf.kld[r], buf.logp ? p->logp[k->first + r] - buf.logp[r] : 0};
    }
    return DQ_OK;
}

dq_status dq_plan_reference_next(dq_plan_reference *p, int from, const dq_plan_inputs *inputs,
                                 dq_err *err)
{
    const dq_model *m = p->source;
    for (int64_t i = 0; i < p->pass.n_chunks; i++) {
        const dq_calib_chunk *k = &p->pass.chunk[i];
        const dq_mat x = pass_stream(&p->pass, k);
        if (from < 0) {
            p->pass.b->ops->embed(p->pass.b, x, &m->embed, k->batch.ids, m->embed_scale);
        } else {
            DQ_TRY(dq_activations_get(&p->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
            DQ_TRY(pass_layer(&p->pass, m, from, NULL, k, inputs, err));
            advance(p, i, (double)x.rows * dq_calibrate_work_layer(&m->layer[from]), "forward");
        }
        DQ_TRY(dq_activations_put(&p->act, DQ_ACTIVATIONS_BEFORE, k->first, x, err));
    }
    return DQ_OK;
}

dq_status dq_plan_reference_move(dq_plan_reference *p, dq_err *err)
{
    for (int64_t i = 0; i < p->pass.n_chunks; i++) {
        const dq_calib_chunk *k = &p->pass.chunk[i];
        const dq_mat x = pass_stream(&p->pass, k);
        DQ_TRY(dq_activations_get(&p->act, DQ_ACTIVATIONS_BEFORE, k->first, x, err));
        DQ_TRY(dq_activations_put(&p->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
    }
    return DQ_OK;
}

/* The source's rows take the buffer of norms, which is free by then. */
static dq_status local_chunk(double *x, dq_plan_reference *p, const dq_calib_chunk *k,
                             const dq_plan_other *o, dq_err *err)
{
    dq_backend *b = p->pass.b;
    const dq_mat is = pass_stream(&p->pass, k);
    dq_mat was = p->pass.h;
    was.rows = is.rows;
    if (o->embed) {
        b->ops->embed(b, is, o->embed, k->batch.ids, o->m->embed_scale);
    } else {
        DQ_TRY(dq_activations_get(&p->act, DQ_ACTIVATIONS_STREAM, k->first, is, err));
        DQ_TRY(pass_layer(&p->pass, o->m, o->from, o->change, k, NULL, err));
    }
    DQ_TRY(dq_activations_get(&p->act, DQ_ACTIVATIONS_BEFORE, k->first, was, err));
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < is.rows; r++) {
        /* |x - y|^2 / |y|^2 of a row; 0 where both are equal. */
        const float *y = was.p + r * is.cols;
        double error = 0, signal = 0;
        for (int64_t i = 0; i < is.cols; i++) {
            const double d = (double)(is.p + r * is.cols)[i] - (double)y[i];
            error += d * d;
            signal += (double)y[i] * (double)y[i];
        }
        x[r] = error <= 0 ? 0 : error / signal;
    }
    return DQ_OK;
}

dq_status dq_plan_reference_local(double *out, dq_plan_reference *p, const dq_plan_other *other,
                                  dq_err *err)
{
    const dq_calib_text *t = p->text;
    double *x = dq_block_new((size_t)t->n_ids, sizeof *x, err), sum = 0;
    int64_t n = 0;
    if (!x) return err->code;
    for (int64_t i = 0; err->code == DQ_OK && i < p->pass.n_chunks; i++) {
        const dq_calib_chunk *k = &p->pass.chunk[i];
        if (local_chunk(x + k->first_row, p, k, other, err) == DQ_OK && !other->embed)
            advance(p, i,
                    (double)k->batch.n_rows *
                        dq_calibrate_work_layer(&other->m->layer[other->from]),
                    other->what);
    }
    if (dq_ranks_agree(NULL, NULL, err) == DQ_OK) {
        dq_calib_pass_join(&p->pass, x, sizeof *x);
        for (int64_t s = 0; s < t->n_seq; s++) {
            const row_range at = scored_rows(t->cu, s);
            for (int64_t r = at.begin; r < at.end; r++) sum += x[r];
            n += at.end > at.begin ? at.end - at.begin : 0;
        }
        *out = n ? sum / (double)n : 0;
        if (!isfinite(*out)) dq_fail(err, DQ_DAMAGED, "gives a hidden state that is not finite");
    }
    dq_block_free(x);
    return err->code;
}

dq_status dq_plan_reference_measure(dq_plan_sums *out, dq_plan_reference *p,
                                    const dq_plan_other *other, dq_err *err)
{
    row *x = dq_block_new((size_t)p->text->n_ids, sizeof *x, err);
    out->n = p->text->n_clusters;
    out->ids = p->scored;
    double *buf = dq_block_new((size_t)p->pass.max_rows, 2 * sizeof *buf, err);
    const int from = other->embed ? 0 : other->from;
    for (int64_t i = 0; err->code == DQ_OK && i < p->pass.n_chunks; i++) {
        const dq_calib_chunk *k = &p->pass.chunk[i];
        const double n = (double)k->batch.n_rows;
        if (compare(p, k, other, x + k->first_row,
                    (chunk_rows){buf, out->loss ? buf + p->pass.max_rows : NULL}, err) == DQ_OK)
            advance(p, i,
                    out->loss ? dq_plan_reference_flop(other->m, from, n)
                              : dq_plan_reference_kld_flop(other->m, from, n),
                    other->what);
    }
    dq_block_free(buf);
    if (dq_ranks_agree(NULL, NULL, err) == DQ_OK) {
        dq_calib_pass_join(&p->pass, x, sizeof *x);
        /* Row by row, so that the sums do not depend on the ranks. */
        const dq_calib_text *t = p->text;
        memset(out->kld, 0, (size_t)out->n * sizeof *out->kld);
        if (out->loss) memset(out->loss, 0, (size_t)out->n * sizeof *out->loss);
        for (int64_t s = 0; s < t->n_seq; s++) {
            const int32_t c = t->cluster[s];
            const row_range at = scored_rows(t->cu, s);
            for (int64_t r = at.begin; r < at.end; r++) {
                out->kld[c] += x[r].kld;
                if (out->loss) out->loss[c] += x[r].loss;
            }
        }
    }
    dq_block_free(x);
    return err->code;
}

/* Each chunk has a cache for one layer only, which bounds memory. */

static int64_t pass_width(const dq_model *m, dq_plan_product product)
{
    return product == DQ_PLAN_O ? dq_calib_pass_y(m) : product == DQ_PLAN_DOWN ? m->ffn : m->dim;
}

/* The passes of both measured texts are always there; beside them is the larger of a calibrated run
 * (with four Hessians and a head's values, or the embedding as values and codes) and the compared
 * logits. */

/* Log-probabilities of a text and, while measured, numbers of its rows and of a chunk. */
static int64_t numbers_bytes(const dq_calib_text *t, int64_t rows)
{
    return (2 * rows + 3 * t->n_ids) * (int64_t)sizeof(double);
}

static int64_t references_bytes(const dq_plan_weights *p)
{
    int64_t n = 0;
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++) {
        const int64_t rows = dq_calib_pass_rows(&p->text[i]);
        n += dq_calib_pass_bytes(p->model, rows) + numbers_bytes(&p->text[i], rows);
    }
    const int64_t rows = dq_calib_pass_rows(&p->probe_text);
    return n + dq_calib_pass_bytes(p->model, rows) + numbers_bytes(&p->probe_text, rows);
}

/* Without the largest, which the calibrated run counts. */
static int64_t hessians_bytes(const dq_model *m, int64_t rows)
{
    int64_t n = -dq_hessian_bytes(dq_calib_pass_widest(m), rows);
    for (int i = 0; i < DQ_PLAN_PRODUCTS; i++)
        n += dq_hessian_bytes(pass_width(m, (dq_plan_product)i), rows);
    return n;
}

/* Values, codes and both packed; the embedding comes before, a head after everything else. */
static int64_t end_bytes(const dq_plan_weights *p, dq_plan_slot slot)
{
    for (int64_t i = 0; i < p->n_tensors; i++) {
        const dq_plan_tensor *t = &p->tensor[i];
        if (t->slot == slot)
            return t->rows * t->cols * (int64_t)(sizeof(float) + 1) + 2 * t->bytes[t->n - 1];
    }
    return 0;
}

static int64_t logits_bytes(const dq_plan_weights *p)
{
    const dq_backend *b = p->set.backend;
    int64_t rows = 0;
    for (int i = DQ_PLAN_SEARCH; i < DQ_PLAN_TEXTS; i++) {
        const int64_t n = dq_calib_pass_rows(&p->text[i]);
        rows = n > rows ? n : rows;
    }
    return b->ops->logit_bytes ? b->ops->logit_bytes(rows, p->model->vocab) : 0;
}

dq_status dq_plan_memory(int64_t *out, const dq_plan_weights *p, dq_err *err)
{
    dq_quantize_settings set = dq_plan_weights_uniform(p, p->set.bits[p->set.n_bits - 1]);
    const dq_calibrate_settings how = dq_plan_trial_calibrate(p, NULL);
    dq_calibrate *c = NULL;
    dq_quantizer *q = NULL;
    if (dq_calibrate_new(&c, &how, err) == DQ_OK) {
        set.method = &c->method;
        if (dq_quantize_open(&q, p->set.model, &set, err) == DQ_OK) {
            const bool tied = p->model->tied;
            const int64_t run =
                dq_calibrate_memory(c, q) +
                hessians_bytes(p->model, dq_calib_pass_rows(&p->text[DQ_PLAN_CALIB])) +
                end_bytes(p, tied ? DQ_PLAN_EMBED : DQ_PLAN_HEAD);
            const int64_t embed = tied ? 0 : end_bytes(p, DQ_PLAN_EMBED);
            *out = references_bytes(p) + logits_bytes(p) + (run > embed ? run : embed);
        }
    }
    dq_quantize_close(q);
    dq_calibrate_free(c);
    return err->code;
}

dq_status dq_plan_memory_check(const dq_plan_weights *p, dq_err *err)
{
    const double mib = 1024.0 * 1024.0;
    const int64_t have = dq_os_memory_bytes();
    int64_t want;
    DQ_TRY(dq_plan_memory(&want, p, err));
    if (have <= 0 || want <= have) return DQ_OK;
    const char *less = p->set.rule->aligns ? ". gptq takes less than align" : "";
    return dq_fail(err, DQ_RESOURCE,
                   "%s: not enough memory to plan (expected about %.1f MiB, this process can have "
                   "%.1f MiB)%s.",
                   p->set.model, (double)want / mib, (double)have / mib, less);
}

/* One pass of the calibration text through a layer gives the Hessians of its four kinds of inputs
 * and moves the text on; the final norm gives the head's. */

typedef struct job {
    dq_plan_probe *p;
    dq_calib_pass pass; /* of the calibration text */
    dq_activations act;
    dq_hessian *h[DQ_PLAN_PRODUCTS];
    bool wanted[DQ_PLAN_PRODUCTS], factored[DQ_PLAN_PRODUCTS];
    dq_plan_sums sums;
    dq_err *err; /* of what sees inputs */
} job;

/* A head's inputs are as wide as those of q, k and v, and reuse their Hessian. */
static dq_plan_product product_of(dq_plan_slot s)
{
    if (s <= DQ_PLAN_V || s >= DQ_PLAN_EMBED) return DQ_PLAN_QKV;
    if (s == DQ_PLAN_OUT) return DQ_PLAN_O;
    return s == DQ_PLAN_DOWN_PROJ ? DQ_PLAN_DOWN : DQ_PLAN_GATE_UP;
}

static bool is_end(const dq_plan_tensor *t)
{
    return t->slot == DQ_PLAN_EMBED || t->slot == DQ_PLAN_HEAD;
}

dq_weight *dq_plan_probe_weight(dq_layer *l, dq_plan_slot s)
{
    dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    return all[s];
}

/* An embedding that is no head has no Hessian, as nothing weights its columns. */
static bool is_nearest(const dq_model *m, const dq_plan_tensor *t)
{
    return t->slot == DQ_PLAN_EMBED && !m->tied;
}

static bool wants_head(const dq_plan_probe *p)
{
    for (int64_t i = 0; i < p->n; i++) {
        const dq_plan_tensor *t = &p->tensor[i];
        if (is_end(t) && !is_nearest(p->m, t) && !t->known) return true;
    }
    return false;
}

dq_mean dq_plan_probe_kld(const dq_plan_tensor *t, int option)
{
    const double of = t->loss[t->measured], share = of > 0 ? t->loss[option] / of : 1;
    dq_mean k = t->kld;
    k.value *= share;
    k.std_err *= share;
    return k;
}

int dq_plan_probe_measured(const dq_plan_tensor *t)
{
    enum { SMALL = 3 };
    int i = 0;
    while (i + 1 < t->n && t->bits[i] < SMALL) i++;
    return i;
}

static int first_layer(const dq_model *m, const dq_plan_tensor *t)
{
    return t->slot == DQ_PLAN_HEAD ? m->n_layers : t->layer;
}

static double rounding_flop(const dq_plan_probe *p, const dq_plan_tensor *t)
{
    if (is_nearest(p->m, t)) return 0;
    const double rows = (double)t->rows, cols = (double)t->cols;
    return DQ_CALIBRATE_F64_FLOP * (dq_calibrate_work_rounding(rows, cols, t->spec.mode, p->rule) +
                                    dq_calibrate_work_found(rows, cols, t->spec.mode, p->rule));
}

static double tensor_flop(const dq_plan_probe *p, const dq_plan_tensor *t, double search_ids)
{
    const int from = t->slot == DQ_PLAN_EMBED ? 0 : first_layer(p->m, t);
    return t->n * rounding_flop(p, t) + dq_plan_reference_flop(p->m, from, search_ids);
}

static double hessians_flop(const dq_model *m, const bool *wanted, double ids)
{
    double n = 0;
    for (int i = 0; i < DQ_PLAN_PRODUCTS; i++) {
        const double width = (double)pass_width(m, (dq_plan_product)i);
        n += wanted[i] ? dq_calibrate_work_hessian(ids, width) : 0;
    }
    return n;
}

static double head_hessian_flop(const dq_model *m, double ids)
{
    return dq_calibrate_work_hessian(ids, (double)m->dim);
}

static double head_factor_flop(const dq_model *m)
{
    return DQ_CALIBRATE_F64_FLOP * dq_calibrate_work_factor((double)m->dim);
}

static double factors_flop(const dq_model *m, const bool *wanted)
{
    double n = 0;
    for (int i = 0; i < DQ_PLAN_PRODUCTS; i++) {
        const double width = (double)pass_width(m, (dq_plan_product)i);
        n += wanted[i] ? DQ_CALIBRATE_F64_FLOP * dq_calibrate_work_factor(width) : 0;
    }
    return n;
}

static void find_wanted(bool wanted[DQ_PLAN_PRODUCTS], const dq_plan_probe *p, int layer)
{
    memset(wanted, 0, DQ_PLAN_PRODUCTS * sizeof *wanted);
    for (int64_t i = 0; i < p->n; i++) {
        const dq_plan_tensor *t = &p->tensor[i];
        if (!is_end(t) && !t->known && t->layer == layer) wanted[product_of(t->slot)] = true;
    }
}

double dq_plan_probe_flop(const dq_plan_probe *p, int64_t calib_ids, int64_t search_ids)
{
    double n = 0;
    for (int64_t i = 0; i < p->n; i++)
        n += p->tensor[i].known ? 0 : tensor_flop(p, &p->tensor[i], (double)search_ids);
    for (int l = 0; l < p->m->n_layers; l++) {
        bool wanted[DQ_PLAN_PRODUCTS];
        find_wanted(wanted, p, l);
        n += (double)(calib_ids + search_ids) * dq_calibrate_work_layer(&p->m->layer[l]) +
             hessians_flop(p->m, wanted, (double)calib_ids) + factors_flop(p->m, wanted);
    }
    if (wants_head(p)) n += head_hessian_flop(p->m, (double)calib_ids) + head_factor_flop(p->m);
    return n;
}

typedef struct by_method {
    job *j;
    const float *w;
    const dq_plan_tensor *t;
    const dq_quant_spec *spec;
} by_method;

static dq_status round_rows(void *arg, dq_codes **out, dq_gptq_loss *loss, int64_t first,
                            int64_t rows, dq_err *err)
{
    const by_method *m = arg;
    const dq_plan_tensor *t = m->t;
    return dq_gptq(out, m->w + first * t->cols, rows, t->cols, m->j->h[product_of(t->slot)], NULL,
                   m->spec, m->j->p->rule->refits, loss, err);
}

/* Bands are independent, so that memory beside a head's values is that of one band. */
static dq_status round_by_method(dq_coded *out, dq_gptq_loss *loss, by_method *m, dq_err *err)
{
    enum { BAND = 4096 };
    const dq_plan_tensor *t = m->t;
    const bool whole = m->spec->group == DQ_GROUP_TENSOR;
    const int64_t band = whole || t->rows < BAND ? t->rows : BAND;
    const dq_gptq_stripes stripes = {m->spec, t->cols, whole, round_rows, m};
    DQ_TRY(dq_coded_new(out, t->rows, t->cols, m->spec, err));
    dq_gptq_loss *each = dq_block_new((size_t)band, sizeof *each, err);
    for (int64_t first = 0; err->code == DQ_OK && first < t->rows; first += band) {
        const int64_t left = t->rows - first, n = left < band ? left : band;
        if (dq_gptq_stripes_round(&stripes, out, each, first, n, err) == DQ_OK)
            dq_gptq_loss_add(loss, each, n);
    }
    dq_block_free(each);
    return err->code;
}

static dq_status probe_option(job *j, dq_plan_tensor *t, int option, const dq_weight *w,
                              dq_err *err)
{
    dq_plan_probe *p = j->p;
    dq_coded coded = {.bytes = NULL};
    DQ_TRY(dq_os_check_stop(err));
    const bool fed = !is_nearest(j->p->m, t);
    dq_gptq_loss loss = {0};
    dq_quant_spec spec = t->spec;
    int8_t *column = NULL;
    float *f32;
    spec.bits = t->bits[option];
    spec.mode = dq_quantize_mode(spec.mode, spec.bits, fed);
    if (dq_plan_round_values(&f32, w, err) == DQ_OK && spec.mode == DQ_TRELLIS) {
        spec.column = column = dq_block_new((size_t)t->cols, 1, err);
        if (column) dq_codes_columns_of(column, f32, t->rows, t->cols, err);
    }
    if (err->code == DQ_OK) {
        spec.scale_dtype = dq_plan_round_scale(f32, t->rows, t->cols, &spec);
        if (!fed)
            dq_plan_round_nearest(&coded, &loss, f32, t->rows, t->cols, &spec, err);
        else
            round_by_method(&coded, &loss, &(by_method){j, f32, t, &spec}, err);
    }
    t->loss[option] = loss.signal > 0 ? loss.error / loss.signal : 0;
    dq_block_free(f32);
    dq_block_free(column);
    coded.weight.name = t->name;
    if (err->code == DQ_OK) {
        dq_plan_work_add(p->work, rounding_flop(p, t), t->name);
        if (option == t->measured) {
            const dq_model *m = j->p->m;
            dq_layer layer = m->layer[t->layer];
            const dq_plan_change change = {.layer = &layer};
            dq_plan_other other = {
                .m = m, .from = first_layer(m, t), .head = &m->head, .what = t->name};
            if (t->slot == DQ_PLAN_EMBED) other.embed = &coded.weight;
            if (t->slot == DQ_PLAN_HEAD || (t->slot == DQ_PLAN_EMBED && m->tied))
                other.head = &coded.weight;
            if (!is_end(t)) {
                *dq_plan_probe_weight(&layer, t->slot) = coded.weight;
                other.change = &change;
            }
            dq_plan_reference_measure(&j->sums, j->p->search, &other, err);
        }
    }
    dq_coded_free(&coded);
    return err->code;
}

static double damping_of(const job *j, const dq_plan_tensor *t)
{
    const double usual = dq_calibrate_damping(t->cols, j->p->calib->n_ids);
    return t->slot == DQ_PLAN_EMBED ? fmax(usual, DQ_CALIBRATE_EMBED_DAMPING) : usual;
}

static dq_status probe_tensor(job *j, int64_t i, dq_err *err)
{
    dq_plan_tensor *t = &j->p->tensor[i];
    const dq_model *m = j->p->m;
    dq_layer layer = m->layer[t->layer];
    const dq_weight *w = t->slot == DQ_PLAN_EMBED  ? &m->embed
                         : t->slot == DQ_PLAN_HEAD ? &m->head
                                                   : dq_plan_probe_weight(&layer, t->slot);
    if (!is_nearest(m, t)) {
        const dq_plan_product product = product_of(t->slot);
        if (!j->factored[product]) {
            DQ_TRY(dq_hessian_share(j->h[product], err));
            DQ_TRY(dq_hessian_factor(j->h[product], damping_of(j, t), t->name, err));
        }
        j->factored[product] = true;
    }
    t->measured = dq_plan_probe_measured(t);
    for (int o = 0; o < t->n; o++) DQ_TRY(probe_option(j, t, o, w, err));
    dq_plan_mean kld;
    DQ_TRY(dq_plan_mean_of(&kld, j->sums.kld, j->sums.ids, j->sums.n, err));
    t->kld = kld.of;
    t->known = true;
    return j->p->found(j->p->arg, i, err);
}

static dq_status add_inputs(job *j, dq_plan_product product, dq_mat x, dq_err *err)
{
    const int64_t piece = product == DQ_PLAN_DOWN ? DQ_FFN_ROWS : DQ_TILE_SUMS_NO_PIECES;
    return dq_hessian_add(j->h[product], j->pass.b, x, (dq_tile_sums_rows){DQ_ROWS_ALL, piece},
                          err);
}

static void probe_see(void *arg, dq_plan_product product, dq_mat x)
{
    job *j = arg;
    if (j->wanted[product]) add_inputs(j, product, x, j->err);
}

/* Sums need all ranks, also in a round without a chunk for this one. */
static dq_status see_none(job *j, dq_err *err)
{
    for (int i = 0; i < DQ_PLAN_PRODUCTS; i++) {
        if (j->wanted[i])
            DQ_TRY(add_inputs(j, (dq_plan_product)i, (dq_mat){NULL, 0, j->h[i]->n}, err));
    }
    return DQ_OK;
}

static void probe_advance(const job *j, int64_t round, double flop)
{
    dq_plan_work_add(j->p->work, flop * dq_calib_pass_at_once(&j->pass, round), "hessians");
}

static dq_status see_chunk(job *j, int number, const dq_calib_chunk *k, dq_err *err)
{
    const dq_model *m = j->p->m;
    const dq_plan_inputs inputs = {.see = probe_see, .arg = j};
    const dq_mat x = pass_stream(&j->pass, k);
    j->err = err;
    DQ_TRY(dq_activations_get(&j->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
    DQ_TRY(pass_layer(&j->pass, m, number, NULL, k, &inputs, err));
    return dq_activations_put(&j->act, DQ_ACTIVATIONS_STREAM, k->first, x, err);
}

/* *later: tensors of a later layer are still to do. */
static bool wants_layer(job *j, int number, bool *later)
{
    bool any = false;
    *later = false;
    find_wanted(j->wanted, j->p, number);
    for (int i = 0; i < DQ_PLAN_PRODUCTS; i++) any = any || j->wanted[i];
    for (int64_t i = 0; i < j->p->n; i++) {
        const dq_plan_tensor *t = &j->p->tensor[i];
        *later = *later || (!is_end(t) && !t->known && t->layer > number);
    }
    return any;
}

static dq_status run_layers(job *j, bool head, dq_err *err)
{
    dq_plan_probe *p = j->p;
    bool any = true, later = true;
    for (int l = 0; l < p->m->n_layers && (later || head); l++) {
        any = wants_layer(j, l, &later);
        if (any || later || head) {
            const dq_model *m = j->p->m;
            const double layer = dq_calibrate_work_layer(&m->layer[l]);
            for (int i = 0; i < DQ_PLAN_PRODUCTS; i++) {
                j->factored[i] = false;
                if (j->wanted[i]) dq_hessian_begin(j->h[i], pass_width(m, (dq_plan_product)i));
            }
            for (int64_t i = 0; i < j->pass.n_rounds; i++) {
                const dq_calib_chunk *k = dq_calib_pass_chunk(&j->pass, i);
                DQ_TRY(k ? see_chunk(j, l, k, err) : see_none(j, err));
                const double rows = k ? (double)k->batch.n_rows : 0;
                probe_advance(j, i, rows * layer + hessians_flop(m, j->wanted, rows));
            }
            dq_plan_work_add(j->p->work, factors_flop(m, j->wanted), "hessians");
        }
        for (int64_t i = 0; any && i < p->n; i++) {
            const dq_plan_tensor *t = &p->tensor[i];
            if (is_end(t) || t->layer != l || t->known) continue;
            if (probe_tensor(j, i, err) != DQ_OK)
                return err->code == DQ_STOPPED ? err->code : dq_in(err, "layer %d: ", l);
        }
        if (later) {
            dq_plan_reference *ref = p->search;
            for (int64_t i = 0; i < ref->pass.n_chunks; i++) {
                const dq_calib_chunk *k = &ref->pass.chunk[i];
                const dq_mat x = pass_stream(&ref->pass, k);
                DQ_TRY(dq_activations_get(&ref->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
                DQ_TRY(pass_layer(&ref->pass, ref->source, l, NULL, k, NULL, err));
                DQ_TRY(dq_activations_put(&ref->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
                advance(ref, i, (double)x.rows * dq_calibrate_work_layer(&ref->source->layer[l]),
                        "forward");
            }
        }
    }
    return DQ_OK;
}

/* NULL: no chunk in this round. */
static dq_status see_final(job *j, const dq_calib_chunk *k, dq_err *err)
{
    if (!k) return add_inputs(j, DQ_PLAN_QKV, (dq_mat){NULL, 0, j->p->m->dim}, err);
    const dq_mat x = pass_stream(&j->pass, k);
    DQ_TRY(dq_os_check_stop(err));
    DQ_TRY(dq_activations_get(&j->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
    DQ_TRY(add_inputs(j, DQ_PLAN_QKV, pass_final(&j->pass, j->p->m, k), err));
    return dq_backend_sync(j->pass.b, err);
}

static dq_status run_head(job *j, dq_err *err)
{
    const dq_model *m = j->p->m;
    j->factored[DQ_PLAN_QKV] = false;
    dq_hessian_begin(j->h[DQ_PLAN_QKV], m->dim);
    for (int64_t i = 0; i < j->pass.n_rounds; i++) {
        const dq_calib_chunk *k = dq_calib_pass_chunk(&j->pass, i);
        DQ_TRY(see_final(j, k, err));
        probe_advance(j, i, head_hessian_flop(m, k ? (double)k->batch.n_rows : 0));
    }
    dq_plan_work_add(j->p->work, head_factor_flop(m), "hessians");
    for (int64_t i = 0; i < j->p->n; i++) {
        const dq_plan_tensor *t = &j->p->tensor[i];
        if (is_end(t) && !is_nearest(m, t) && !t->known) DQ_TRY(probe_tensor(j, i, err));
    }
    return DQ_OK;
}

static dq_status embed(job *j, dq_err *err)
{
    for (int64_t i = 0; i < j->pass.n_chunks; i++) {
        const dq_calib_chunk *k = &j->pass.chunk[i];
        const dq_mat x = pass_stream(&j->pass, k);
        j->pass.b->ops->embed(j->pass.b, x, &j->p->m->embed, k->batch.ids, j->p->m->embed_scale);
        DQ_TRY(dq_activations_put(&j->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
    }
    return DQ_OK;
}

static dq_status run_job(job *j, dq_err *err)
{
    dq_plan_probe *p = j->p;
    const dq_model *m = p->m;
    j->sums.kld = dq_block_new((size_t)p->search->text->n_clusters, sizeof(double), err);
    j->sums.loss = dq_block_new((size_t)p->search->text->n_clusters, sizeof(double), err);
    DQ_TRY(err->code);
    for (int64_t i = 0; i < p->n; i++) { /* while the stream is that of layer 0 */
        if (is_nearest(m, &p->tensor[i]) && !p->tensor[i].known) DQ_TRY(probe_tensor(j, i, err));
    }
    DQ_TRY(dq_calib_pass_new(&j->pass, m, p->b, p->calib, err));
    DQ_TRY(dq_activations_open(&j->act, p->b, p->beside, j->pass.n_rows, m->dim, 1, 0, err));
    DQ_TRY(embed(j, err));
    for (int i = 0; i < DQ_PLAN_PRODUCTS; i++)
        DQ_TRY(dq_hessian_new(&j->h[i], pass_width(m, (dq_plan_product)i), j->pass.max_rows, err));
    const bool head = wants_head(p);
    DQ_TRY(run_layers(j, head, err));
    return head ? run_head(j, err) : DQ_OK;
}

dq_status dq_plan_probe_run(dq_plan_probe *p, dq_err *err)
{
    job j = {.p = p, .act.file.fd = -1};
    int64_t missing = 0;
    for (int64_t i = 0; i < p->n; i++) missing += !p->tensor[i].known;
    if (missing == 0) return DQ_OK;
    run_job(&j, err);
    for (int i = 0; i < DQ_PLAN_PRODUCTS; i++) dq_hessian_free(j.h[i]);
    dq_activations_close(&j.act);
    dq_calib_pass_end(&j.pass);
    dq_block_free(j.sums.kld);
    dq_block_free(j.sums.loss);
    return err->code;
}

static dq_status ignore(void *arg, int64_t tensor, dq_err *err)
{
    (void)arg;
    (void)tensor;
    return err->code;
}

/* The last layer's tensors or, without any, the ends; each with its measured option. */
static int64_t take_last(dq_plan_tensor *out, const dq_plan_weights *p)
{
    int64_t n = 0;
    int last = -1;
    for (int64_t i = 0; i < p->n_tensors; i++) {
        const dq_plan_tensor *t = &p->tensor[i];
        if (t->slot < DQ_PLAN_EMBED && t->layer > last) last = t->layer;
    }
    for (int64_t i = 0; i < p->n_tensors; i++) {
        const dq_plan_tensor *t = &p->tensor[i];
        if (last >= 0 && (t->layer != last || t->slot >= DQ_PLAN_EMBED)) continue;
        out[n] = *t;
        out[n].n = 1;
        out[n].known = false;
        out[n++].bits[0] = t->bits[dq_plan_probe_measured(t)];
    }
    return n;
}

dq_status dq_plan_pace(double *seconds, const dq_plan_weights *p, const char *beside, dq_err *err)
{
    /* One sequence, or one chunk for each rank. */
    const dq_calib_text *t = &p->text[DQ_PLAN_CALIB];
    const int64_t others = DQ_CALIB_PASS_ROWS * ((int64_t)dq_ranks_count() - 1);
    dq_calib_text text = *t;
    text.n_seq = text.n_clusters = 0;
    while (text.n_seq < t->n_seq && (text.n_seq == 0 || t->cu[text.n_seq] <= others)) {
        const int64_t next = t->cluster[text.n_seq++] + 1;
        if (next > text.n_clusters) text.n_clusters = next;
    }
    text.n_ids = t->cu[text.n_seq];
    dq_plan_work work = {.step = NULL};
    dq_plan_reference ref = {.act.file.fd = -1};
    dq_plan_probe probe = {.m = p->model,
                           .rule = p->set.rule,
                           .b = p->set.backend,
                           .beside = beside,
                           .calib = &text,
                           .search = &ref,
                           .found = ignore,
                           .work = &work};
    probe.tensor = dq_alloc(p->arena, (size_t)p->n_tensors, sizeof *probe.tensor, err);
    if (!probe.tensor) return err->code;
    probe.n = take_last(probe.tensor, p);
    const double flop = dq_plan_probe_flop(&probe, text.n_ids, text.n_ids) +
                        dq_plan_reference_source_flop(p->model, (double)text.n_ids);
    const double before = dq_os_seconds();
    if (dq_plan_reference_new(&ref, &text, p->model, p->set.backend, beside, false, &work, err) ==
        DQ_OK)
        dq_plan_probe_run(&probe, err);
    *seconds = (dq_os_seconds() - before) / flop;
    dq_plan_reference_end(&ref);
    return err->code;
}

/* Rows are coded group by group with the loop of the format, as in a container. */

dq_dtype dq_plan_round_scale(const float *w, int64_t rows, int64_t cols, const dq_quant_spec *spec)
{
    dq_code_shape s = dq_code_shape_of(rows, cols, spec);
    if (s.grid_rows == 1 && s.groups == 1) /* one scale for all rows, which lie side by side */
        s = (dq_code_shape){.rows = 1, .cols = rows * cols, .group_size = rows * cols};
    for (int64_t r = 0; r < s.rows; r++) {
        if (!dq_codes_row_fits(w + r * s.cols, &s, spec)) return DQ_F32;
    }
    return spec->scale_dtype;
}

dq_status dq_plan_round_values(float **out, const dq_weight *w, dq_err *err)
{
    const int64_t n = w->rows * w->cols;
    float *f32 = *out = dq_block_new((size_t)w->rows, (size_t)w->cols * sizeof *f32, err);
    bool finite = true;
    if (!f32) return err->code;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < w->rows; r++) dq_weight_dequantize_rows(f32 + r * w->cols, w, r, r + 1);
#pragma omp parallel for schedule(static) reduction(&& : finite)
    for (int64_t i = 0; i < n; i++) finite = finite && isfinite(f32[i]);
    return finite ? DQ_OK : dq_fail(err, DQ_DAMAGED, "%s: has values that are not finite", w->name);
}

dq_status dq_plan_round_nearest(dq_coded *out, dq_gptq_loss *loss, const float *w, int64_t rows,
                                int64_t cols, const dq_quant_spec *spec, dq_err *err)
{
    dq_codes *c;
    DQ_TRY(dq_codes_new(&c, rows, cols, spec, err));
    const dq_weight_format *f = dq_weight_format_of_mode(spec->mode);
    float *got = dq_block_new((size_t)cols, sizeof *got, err);
    dq_codes_fit(c, w);
    for (int64_t r = 0; got && r < rows; r++) {
        for (int64_t at = 0; at < cols; at += c->shape.group_size) {
            const int64_t left = cols - at;
            const int64_t n = left < c->shape.group_size ? left : c->shape.group_size;
            f->encode(c->code + r * cols + at, got, w + r * cols + at, n, dq_codes_grid(c, r, at),
                      spec);
            for (int64_t i = 0; i < n; i++) {
                const double is = (double)w[r * cols + at + i];
                const double off = is - (double)got[i];
                loss->error += off * off;
                loss->signal += is * is;
            }
        }
    }
    dq_block_free(got);
    if (err->code == DQ_OK) dq_coded_pack(out, c, err);
    dq_codes_free(c);
    return err->code;
}

const dq_plan_size dq_plan_sizes[DQ_PLAN_SIZES] = {
    {"small", 3.5},
    {"balanced", 4.5},
    {"near-lossless", 6.5},
};

static const int widths[] = {2, 3, 4, 5, 6, 8};
enum { WIDTHS = sizeof widths / sizeof *widths, PROJECTIONS = 7, ROLES = 9 };

/* The embedding comes last, as it may be the head too. */
static const dq_role roles[ROLES] = {DQ_ROLE_Q,    DQ_ROLE_K,    DQ_ROLE_V,
                                     DQ_ROLE_O,    DQ_ROLE_GATE, DQ_ROLE_UP,
                                     DQ_ROLE_DOWN, DQ_ROLE_HEAD, DQ_ROLE_EMBED};

/* KLD in nats of each role's 3-bit codes with all other roles unrounded, and the loss at other
 * widths relative to that. */
typedef struct costs {
    double role[ROLES - 1], width[WIDTHS];
    double embed[WIDTHS], tied[WIDTHS]; /* of an embedding, and of one that is the head, in nats */
} costs;

/* SmolLM2-135M, in groups of 64, trellis codes of up to 5 bits: gptq with 16384 tokens, and
 * nearest. */
static const costs calibrated = {
    .role = {0.0083, 0.0281, 0.0971, 0.0098, 0.0319, 0.0471, 0.0530, 0.0622},
    .width = {3.76, 1, 0.26, 0.07, 0.03, 0.0019},
    .embed = {0.324, 0.0395, 0.0078, 0.0018, 0.0004, 0.00003},
    .tied = {0.427, 0.1075, 0.0266, 0.0077, 0.0018, 0.0001},
};
static const costs nearest = {
    .role = {0.0474, 0.0471, 0.1238, 0.0406, 0.0747, 0.1247, 0.1735, 0.55},
    .width = {6.3, 1, 0.206, 0.062, 0.042, 0.0026},
    .embed = {0.324, 0.0395, 0.0078, 0.0018, 0.0004, 0.00003},
    .tied = {3, 0.593, 0.139, 0.0268, 0.0063, 0.0004},
};

typedef struct offer {
    char name[ROLES][256];
    double bytes[ROLES][WIDTHS];
    double other, params; /* bytes of what is not packed; of all tensors */
    bool tied;
} offer;

static int index_of(dq_role role)
{
    int i = 0;
    while (i < ROLES && roles[i] != role) i++;
    return i;
}

static dq_status take_width(offer *o, int w, const char *model, const dq_quantize_settings *set,
                            dq_err *err)
{
    dq_quantize_settings s = *set;
    dq_quantizer *q;
    if (s.method) s.method_name = s.method->name; /* which need not read its text for this */
    s.method = NULL;
    s.bits = s.embed_bits = widths[w];
    s.head_bits = DQ_QUANTIZE_BITS_AUTO;
    DQ_TRY(dq_quantize_open(&q, model, &s, err));
    const dq_quantize_info *info = &q->info;
    o->tied = q->set.head_bits == 0;
    o->params = (double)info->params;
    o->other = (double)(info->weight_bytes - info->packed_bytes);
    for (int64_t i = 0; i < info->n_tensors; i++) {
        const dq_quantize_row r = dq_quantize_row_at(q, i);
        /* a head stored beside its equal embedding has the embedding's width */
        const int k = index_of(o->tied && r.role == DQ_ROLE_HEAD ? DQ_ROLE_EMBED : r.role);
        if (!r.packed || !r.counts || k == ROLES) continue;
        o->bytes[k][w] += (double)r.bytes;
        snprintf(o->name[k], sizeof o->name[k], "%s", r.name);
    }
    dq_quantize_close(q);
    return DQ_OK;
}

/* "^model\.layers\.[0-9]+\.mlp\.down_proj\.weight$" matches the tensors of a role. */
static json_t *rule_of(const char *name, int bits)
{
    char text[1024] = "^";
    size_t n = 1;
    char before = 0;
    for (; *name && n + 16 < sizeof text; before = *name++) {
        if (before == '.' && *name >= '0' && *name <= '9') {
            while (name[1] >= '0' && name[1] <= '9') name++;
            n += (size_t)snprintf(text + n, sizeof text - n, "[0-9]+");
        } else {
            n += (size_t)snprintf(text + n, sizeof text - n, *name == '.' ? "\\%c" : "%c", *name);
        }
    }
    snprintf(text + n, sizeof text - n, "$");
    return json_pack("{s:s, s:i}", "match", text, "bits", bits);
}

/* The width of most bytes becomes the settings'; others become rules. */
static dq_status take_choice(dq_quantize_settings *s, json_t **rules, const offer *o,
                             const int *role, const int *choice, int64_t n, dq_err *err)
{
    double bytes[WIDTHS] = {0};
    int usual = 0;
    for (int64_t i = 0; i < n; i++)
        bytes[choice[i]] += role[i] < PROJECTIONS ? o->bytes[role[i]][choice[i]] : 0;
    for (int w = 0; w < WIDTHS; w++) usual = bytes[w] > bytes[usual] ? w : usual;
    s->bits = widths[usual];
    *rules = json_array();
    for (int64_t i = 0; i < n; i++) {
        const int bits = widths[choice[i]];
        if (roles[role[i]] == DQ_ROLE_EMBED) s->embed_bits = bits;
        if (roles[role[i]] == DQ_ROLE_HEAD) s->head_bits = bits;
        if (role[i] < PROJECTIONS && choice[i] != usual)
            json_array_append_new(*rules, rule_of(o->name[role[i]], bits));
    }
    s->rules = json_array_size(*rules) ? *rules : NULL;
    return dq_json_complete(err);
}

dq_status dq_plan_size_choose(dq_quantize_settings *s, json_t **rules, const char *model,
                              double bits, dq_err *err)
{
    offer o = {.other = 0};
    dq_plan_item item[ROLES];
    dq_plan_curve curve;
    int role[ROLES], choice[ROLES];
    *rules = NULL;
    for (int w = 0; w < WIDTHS; w++) DQ_TRY(take_width(&o, w, model, s, err));
    const costs *c = s->method ? &calibrated : &nearest;
    int64_t n = 0;
    for (int k = 0; k < ROLES; k++) {
        if (!*o.name[k]) continue;
        role[n] = k;
        item[n].n = WIDTHS;
        const double *ends = o.tied ? c->tied : c->embed;
        for (int i = 0; i < WIDTHS; i++) {
            item[n].cost[i] = o.bytes[k][i];
            item[n].loss[i] = roles[k] == DQ_ROLE_EMBED ? ends[i] : c->role[k] * c->width[i];
        }
        n++;
    }
    const double room = bits * o.params / 8 - o.other;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_plan_alloc_curve(&curve, item, n, a, err) == DQ_OK) {
        const int64_t point = dq_plan_alloc_by_cost(&curve, room);
        if (point < 0) {
            dq_fail_with(
                err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_SIZE},
                "%s: the narrowest codes take %.3f bits per weight, other tensors included, and "
                "at most %g are asked for.",
                model, 8 * (curve.cost[0] + o.other) / o.params, bits);
        } else {
            dq_plan_alloc_at(choice, &curve, point);
            dq_plan_alloc_fill(choice, &curve, point, room);
            take_choice(s, rules, &o, role, choice, n, err);
        }
    }
    dq_arena_free(a);
    return err->code;
}
