/* plan_part: see plan_part.h. Final states of the source lie in the scratch file, its logits are made again for every
 * comparison, as no file could hold them. Numbers of rows are added up in the order of the text, once all ranks have all of them.
 * SPDX-License-Identifier: MIT */
#include "plan/weights/plan_part.h"

#include "base/ranks.h"
#include "calibrate/calibrate_work.h"

#include <math.h>
#include <string.h>

int64_t dq_plan_part_bytes(const dq_calib_text *text, const dq_model *m)
{
    return dq_activations_bytes(text->n_ids, m->dim, 1, m->dim);
}

int64_t dq_plan_part_first(int64_t n)
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

double dq_plan_part_source_flop(const dq_model *m, double ids)
{
    return layers_flop(m, 0, ids) + head_flop(m, ids / 2);
}

/* Of the rows that are scored, which are half: both heads. */
double dq_plan_part_kld_flop(const dq_model *m, int from, double ids)
{
    return layers_flop(m, from, ids) + 2 * head_flop(m, ids / 2);
}

double dq_plan_part_flop(const dq_model *m, int from, double ids)
{
    return dq_plan_part_kld_flop(m, from, ids) + head_flop(m, ids / 2);
}

int64_t *dq_plan_part_scored(const dq_calib_text *t, dq_arena *a, dq_err *err)
{
    int64_t *ids = dq_alloc(a, (size_t)t->n_clusters, sizeof *ids, err);
    for (int64_t s = 0; ids && s < t->n_seq; s++) {
        const int64_t n = t->cu[s + 1] - t->cu[s];
        ids[t->cluster[s]] += n - dq_plan_part_first(n);
    }
    return ids;
}

/* Told of a chunk of a round, in which other ranks do the same of theirs. */
static void advance(const dq_plan_part *p, int64_t round, double flop, const char *what)
{
    dq_plan_work_add(p->work, flop * dq_calib_pass_at_once(&p->pass, round), what);
}

/* Rows of a sequence whose next token is scored. */
typedef struct rows {
    int64_t begin, end;
} rows;
static rows scored_rows(const int64_t *cu, int64_t s)
{
    return (rows){cu[s] + dq_plan_part_first(cu[s + 1] - cu[s]) - 1, cu[s + 1] - 1};
}

/* logp[row] of the tokens after the scored rows of a chunk. */
static dq_status ask(dq_plan_part *p, const dq_calib_chunk *k, dq_mat h, const dq_weight *head,
                     double *logp, dq_err *err)
{
    const dq_batch *batch = &k->batch;
    dq_backend *b = p->pass.b;
    for (int s = 0; s < batch->n_seq; s++) {
        const rows at = scored_rows(batch->cu_rows, s);
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

/* kld[row] of the scored rows; ref: the source's final states. */
static dq_status diverge(dq_plan_part *p, const dq_calib_chunk *k, dq_mat ref, dq_mat h,
                         const dq_weight *head, double *kld, dq_err *err)
{
    dq_backend *b = p->pass.b;
    for (int s = 0; s < k->batch.n_seq; s++) {
        const rows at = scored_rows(k->batch.cu_rows, s);
        if (at.begin < at.end)
            b->ops->kld(b, kld + at.begin, dq_layer_steps_rows(ref, at.begin, at.end),
                        &p->source->head, DQ_NUM_F32, dq_layer_steps_rows(h, at.begin, at.end),
                        head, DQ_NUM_F32);
        dq_backend_sync(b, err);
        for (int64_t i = at.begin; err->code == DQ_OK && i < at.end; i++) {
            if (!isfinite(kld[i])) dq_fail(err, DQ_DAMAGED, "gives a KL divergence of %g", kld[i]);
        }
    }
    return err->code;
}

static dq_status run_source(dq_plan_part *p, dq_err *err)
{
    const dq_model *m = p->source;
    for (int64_t i = 0; i < p->pass.n_chunks; i++) {
        const dq_calib_chunk *k = &p->pass.chunk[i];
        const dq_mat x = dq_plan_pass_stream(&p->pass, k);
        p->pass.b->ops->embed(p->pass.b, x, &m->embed, k->batch.ids);
        DQ_TRY(dq_activations_put(&p->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
        const double n = (double)k->batch.n_rows;
        for (int l = 0; l < m->n_layers; l++) {
            DQ_TRY(dq_plan_pass_layer(&p->pass, m, l, NULL, k, NULL, err));
            advance(p, i, n * dq_calibrate_work_layer(&m->layer[l]), "source");
        }
        const dq_mat h = dq_plan_pass_final(&p->pass, m, k);
        DQ_TRY(dq_activations_put(&p->act, DQ_ACTIVATIONS_OTHER, k->first, h, err));
        if (ask(p, k, h, &m->head, p->logp + k->first, err) != DQ_OK)
            return dq_in(err, "%s: ", m->path);
        advance(p, i, head_flop(m, n / 2), "source");
    }
    return DQ_OK;
}

static dq_status begin(dq_plan_part *p, dq_backend *b, const char *beside, dq_err *err)
{
    const dq_calib_text *text = p->text;
    const dq_model *m = p->source;
    p->arena = dq_arena_new();
    if (!p->arena) return dq_fail(err, DQ_RESOURCE, "out of memory");
    DQ_TRY(dq_calib_pass_new(&p->pass, m, b, text, err));
    p->logp = dq_alloc(p->arena, (size_t)p->pass.n_rows, sizeof *p->logp, err);
    p->scored = dq_plan_part_scored(text, p->arena, err);
    DQ_TRY(err->code);
    DQ_TRY(dq_activations_open(&p->act, b, beside, p->pass.n_rows, m->dim, p->keeps_next ? 2 : 1,
                               m->dim, err));
    return run_source(p, err);
}

dq_status dq_plan_part_new(dq_plan_part *p, const dq_calib_text *text, const dq_model *source,
                           dq_backend *b, const char *beside, bool keeps_next, dq_plan_work *work,
                           dq_err *err)
{
    *p = (dq_plan_part){
        .text = text, .source = source, .work = work, .keeps_next = keeps_next, .act.file.fd = -1};
    begin(p, b, beside, err);
    return dq_ranks_agree(NULL, NULL, err);
}

void dq_plan_part_end(dq_plan_part *p)
{
    dq_activations_close(&p->act);
    dq_calib_pass_end(&p->pass);
    dq_arena_free(p->arena);
    *p = (dq_plan_part){.act.file.fd = -1};
}

dq_status dq_plan_part_advance(dq_plan_part *p, int layer, dq_err *err)
{
    for (int64_t i = 0; i < p->pass.n_chunks; i++) {
        const dq_calib_chunk *k = &p->pass.chunk[i];
        const dq_mat x = dq_plan_pass_stream(&p->pass, k);
        DQ_TRY(dq_activations_get(&p->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
        DQ_TRY(dq_plan_pass_layer(&p->pass, p->source, layer, NULL, k, NULL, err));
        DQ_TRY(dq_activations_put(&p->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
        advance(p, i, (double)x.rows * dq_calibrate_work_layer(&p->source->layer[layer]),
                "forward");
    }
    return DQ_OK;
}

/* The other model's final states of a chunk. */
static dq_status run_other(dq_plan_part *p, const dq_calib_chunk *k, const dq_plan_other *o,
                           dq_err *err)
{
    const dq_mat x = dq_plan_pass_stream(&p->pass, k);
    int l = o->embed ? 0 : o->from;
    if (!o->embed && o->from == o->m->n_layers) { /* the source's own final states */
        dq_mat h = p->pass.h;
        h.rows = x.rows;
        return dq_activations_get(&p->act, DQ_ACTIVATIONS_OTHER, k->first, h, err);
    }
    if (o->embed)
        p->pass.b->ops->embed(p->pass.b, x, o->embed, k->batch.ids);
    else
        DQ_TRY(dq_activations_get(&p->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
    for (; l < o->m->n_layers; l++) {
        const dq_plan_change *change = l == o->from ? o->change : NULL;
        DQ_TRY(dq_plan_pass_layer(&p->pass, o->m, l, change, k, NULL, err));
    }
    dq_plan_pass_final(&p->pass, o->m, k);
    return dq_backend_sync(p->pass.b, err);
}

/* What a row says of the id after it; whether that is scored is left to the sums. */
typedef struct row {
    double kld, loss;
} row;

/* Buffers of a chunk's rows. */
typedef struct chunk_rows {
    double *kld, *logp; /* [max_rows]; logp NULL: not wanted */
} chunk_rows;

/* The scored rows of a chunk, into x. The source's states take the buffer of the stream, which has served. */
static dq_status compare(dq_plan_part *p, const dq_calib_chunk *k, const dq_plan_other *o, row *x,
                         chunk_rows buf, dq_err *err)
{
    const dq_mat ref = dq_plan_pass_stream(&p->pass, k);
    dq_mat h = p->pass.h;
    h.rows = k->batch.n_rows;
    DQ_TRY(run_other(p, k, o, err));
    DQ_TRY(dq_activations_get(&p->act, DQ_ACTIVATIONS_OTHER, k->first, ref, err));
    DQ_TRY(diverge(p, k, ref, h, o->head, buf.kld, err));
    if (buf.logp) DQ_TRY(ask(p, k, h, o->head, buf.logp, err));
    for (int s = 0; s < k->batch.n_seq; s++) {
        const rows at = scored_rows(k->batch.cu_rows, s);
        for (int64_t r = at.begin; r < at.end; r++)
            x[r] = (row){buf.kld[r], buf.logp ? p->logp[k->first + r] - buf.logp[r] : 0};
    }
    return DQ_OK;
}

static dq_status compare_all(row *x, dq_plan_part *p, const dq_plan_other *o, bool loss,
                             dq_err *err)
{
    double *buf = dq_block_new((size_t)p->pass.max_rows, 2 * sizeof *buf, err);
    const int from = o->embed ? 0 : o->from;
    for (int64_t i = 0; err->code == DQ_OK && i < p->pass.n_chunks; i++) {
        const dq_calib_chunk *k = &p->pass.chunk[i];
        const double n = (double)k->batch.n_rows;
        if (compare(p, k, o, x + k->first_row,
                    (chunk_rows){buf, loss ? buf + p->pass.max_rows : NULL}, err) == DQ_OK)
            advance(p, i,
                    loss ? dq_plan_part_flop(o->m, from, n) : dq_plan_part_kld_flop(o->m, from, n),
                    o->what);
    }
    dq_block_free(buf);
    return dq_ranks_agree(NULL, NULL, err);
}

/* Row by row, so that the sums are those of one process whoever has compared the rows. */
static void add_up(dq_plan_sums *out, const dq_calib_text *t, const row *x)
{
    memset(out->kld, 0, (size_t)out->n * sizeof *out->kld);
    if (out->loss) memset(out->loss, 0, (size_t)out->n * sizeof *out->loss);
    for (int64_t s = 0; s < t->n_seq; s++) {
        const int32_t c = t->cluster[s];
        const rows at = scored_rows(t->cu, s);
        for (int64_t r = at.begin; r < at.end; r++) {
            out->kld[c] += x[r].kld;
            if (out->loss) out->loss[c] += x[r].loss;
        }
    }
}

dq_status dq_plan_part_next(dq_plan_part *p, int from, const dq_plan_inputs *inputs, dq_err *err)
{
    const dq_model *m = p->source;
    for (int64_t i = 0; i < p->pass.n_chunks; i++) {
        const dq_calib_chunk *k = &p->pass.chunk[i];
        const dq_mat x = dq_plan_pass_stream(&p->pass, k);
        if (from < 0) {
            p->pass.b->ops->embed(p->pass.b, x, &m->embed, k->batch.ids);
        } else {
            DQ_TRY(dq_activations_get(&p->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
            DQ_TRY(dq_plan_pass_layer(&p->pass, m, from, NULL, k, inputs, err));
            advance(p, i, (double)x.rows * dq_calibrate_work_layer(&m->layer[from]), "forward");
        }
        DQ_TRY(dq_activations_put(&p->act, DQ_ACTIVATIONS_BEFORE, k->first, x, err));
    }
    return DQ_OK;
}

dq_status dq_plan_part_move(dq_plan_part *p, dq_err *err)
{
    for (int64_t i = 0; i < p->pass.n_chunks; i++) {
        const dq_calib_chunk *k = &p->pass.chunk[i];
        const dq_mat x = dq_plan_pass_stream(&p->pass, k);
        DQ_TRY(dq_activations_get(&p->act, DQ_ACTIVATIONS_BEFORE, k->first, x, err));
        DQ_TRY(dq_activations_put(&p->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
    }
    return DQ_OK;
}

/* |x - y|^2 / |y|^2 of one row; 0 for rows that are alike. */
static double relative_error(const float *x, const float *y, int64_t n)
{
    double error = 0, signal = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)x[i] - (double)y[i];
        error += d * d;
        signal += (double)y[i] * (double)y[i];
    }
    return error <= 0 ? 0 : error / signal;
}

/* A chunk's rows; the source's take the buffer of norms, which has served. */
static dq_status local_chunk(double *x, dq_plan_part *p, const dq_calib_chunk *k,
                             const dq_plan_other *o, dq_err *err)
{
    dq_backend *b = p->pass.b;
    const dq_mat is = dq_plan_pass_stream(&p->pass, k);
    dq_mat was = p->pass.h;
    was.rows = is.rows;
    if (o->embed) {
        b->ops->embed(b, is, o->embed, k->batch.ids);
    } else {
        DQ_TRY(dq_activations_get(&p->act, DQ_ACTIVATIONS_STREAM, k->first, is, err));
        DQ_TRY(dq_plan_pass_layer(&p->pass, o->m, o->from, o->change, k, NULL, err));
    }
    DQ_TRY(dq_activations_get(&p->act, DQ_ACTIVATIONS_BEFORE, k->first, was, err));
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < is.rows; r++)
        x[r] = relative_error(is.p + r * is.cols, was.p + r * is.cols, is.cols);
    return DQ_OK;
}

static dq_status local_rows(double *x, dq_plan_part *p, const dq_plan_other *o, dq_err *err)
{
    for (int64_t i = 0; err->code == DQ_OK && i < p->pass.n_chunks; i++) {
        const dq_calib_chunk *k = &p->pass.chunk[i];
        if (local_chunk(x + k->first_row, p, k, o, err) == DQ_OK && !o->embed)
            advance(p, i, (double)k->batch.n_rows * dq_calibrate_work_layer(&o->m->layer[o->from]),
                    o->what);
    }
    return dq_ranks_agree(NULL, NULL, err);
}

dq_status dq_plan_part_local(double *out, dq_plan_part *p, const dq_plan_other *other, dq_err *err)
{
    const dq_calib_text *t = p->text;
    double *x = dq_block_new((size_t)t->n_ids, sizeof *x, err), sum = 0;
    int64_t n = 0;
    if (!x) return err->code;
    if (local_rows(x, p, other, err) == DQ_OK) {
        dq_calib_pass_join(&p->pass, x, sizeof *x);
        for (int64_t s = 0; s < t->n_seq; s++) {
            const rows at = scored_rows(t->cu, s);
            for (int64_t r = at.begin; r < at.end; r++) sum += x[r];
            n += at.end > at.begin ? at.end - at.begin : 0;
        }
        *out = n ? sum / (double)n : 0;
        if (!isfinite(*out)) dq_fail(err, DQ_DAMAGED, "gives a hidden state that is not finite");
    }
    dq_block_free(x);
    return err->code;
}

dq_status dq_plan_part_measure(dq_plan_sums *out, dq_plan_part *p, const dq_plan_other *other,
                               dq_err *err)
{
    row *x = dq_block_new((size_t)p->text->n_ids, sizeof *x, err);
    out->n = p->text->n_clusters;
    out->ids = p->scored;
    if (compare_all(x, p, other, out->loss, err) == DQ_OK) {
        dq_calib_pass_join(&p->pass, x, sizeof *x);
        add_up(out, p->text, x);
    }
    dq_block_free(x);
    return err->code;
}
