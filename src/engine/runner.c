/* runner: see runner.h. A pass is a straight line per layer: norm, q k v, rotary angles, append to the cache,
 * attend, compact, o, then the feed-forward in pieces of DQ_FFN_ROWS rows. Activations are buffers that only grow.
 * Errors stick in the backend, so operations need no check of their own; one sync at the end tells, and names the
 * first row that is not finite.
 * SPDX-License-Identifier: MIT */
#include "engine/runner.h"

#include "base/os.h"
#include "engine/layer_steps.h"
#include "engine/memory_fit.h"

#include <string.h>

/* One scratch matrix, grown when a pass needs more rows. */
typedef struct slot {
    float *p;
    size_t bytes;
} slot;

struct dq_runner {
    const dq_model *m;
    dq_backend *b;
    dq_kv *kv;
    dq_kv_spec kv_spec;
    int n_weights; /* of the model's, acquired in the order of weight_at */
    slot x, h, q, k, v, y, angles, lambda, gate, up, absmax;
};

/* The i-th weight of a model, NULL after the last. Absent ones have no rows. */
static const dq_weight *weight_at(const dq_model *m, int i)
{
    enum { PER_LAYER = 8 };
    if (i == 0) return &m->embed;
    if (i == 1) return &m->head;
    i -= 2;
    if (i >= PER_LAYER * m->n_layers) return NULL;
    const dq_layer *l = &m->layer[i / PER_LAYER];
    const dq_weight *const all[PER_LAYER] = {&l->q,    &l->k,  &l->v,    &l->o,
                                             &l->gate, &l->up, &l->down, &l->lambda_proj};
    return all[i % PER_LAYER];
}

/* A head that shares the embedding's memory is acquired itself. */
static bool is_acquired(const dq_runner *r, const dq_weight *w)
{
    return w->rows > 0 && !(w == &r->m->embed && r->b->ops->embeds_in_place);
}

static bool acquire_weights(dq_runner *r)
{
    const dq_ops *op = r->b->ops;
    const dq_weight *w;
    if (!op->weight_acquire) return true;
    for (; (w = weight_at(r->m, r->n_weights)) != NULL; r->n_weights++)
        if (is_acquired(r, w) && !op->weight_acquire(r->b, w)) return false;
    return true;
}

static void release_weights(dq_runner *r)
{
    while (r->n_weights > 0) {
        const dq_weight *w = weight_at(r->m, --r->n_weights);
        if (is_acquired(r, w)) r->b->ops->weight_release(r->b, w);
    }
}

static dq_mat take(dq_runner *r, slot *s, int64_t rows, int64_t cols)
{
    dq_mat m = {.rows = rows, .cols = cols};
    size_t n, bytes;
    if (!dq_mul_ok(&n, (size_t)rows, (size_t)cols) || !dq_mul_ok(&bytes, n, sizeof(float))) {
        dq_fail(&r->b->err, DQ_RESOURCE, "a pass of %lld rows does not fit in memory",
                (long long)rows);
        return m;
    }
    if (bytes > s->bytes) {
        r->b->ops->free(r->b, s->p);
        s->bytes = 0;
        s->p = r->b->ops->alloc(r->b, bytes);
        if (s->p)
            s->bytes = bytes;
        else
            dq_fail(&r->b->err, DQ_RESOURCE, "out of memory (%zu bytes of activations)", bytes);
    }
    m.p = s->p;
    return m;
}

dq_status dq_runner_new(dq_runner **out, const dq_model *m, dq_backend *b, const dq_kv_spec *kv,
                        dq_err *err)
{
    *out = NULL;
    DQ_TRY(dq_model_check_weights(m, err));
    if (dq_kv_check(kv, m->map.head_dim, err) != DQ_OK) return dq_in(err, "%s: ", m->path);
    dq_runner *r = dq_block_new(1, sizeof *r, err);
    if (!r) return err->code;
    r->m = m;
    r->b = b;
    r->kv_spec = *kv;
    const bool placed = acquire_weights(r);
    if (placed) r->kv = b->ops->kv_new(b, &m->map, m->n_layers, kv);
    if (!r->kv) {
        dq_backend_sync(b, err);
        dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
        dq_runner_free(r);
        if (placed || !b->ops->memory) return err->code;
        return dq_memory_fit_advise_bits(m, (double)b->ops->memory(b), err);
    }
    *out = r;
    return DQ_OK;
}

void dq_runner_free(dq_runner *r)
{
    if (!r) return;
    slot *all[] = {&r->x,      &r->h,      &r->q,    &r->k,  &r->v,     &r->y,
                   &r->angles, &r->lambda, &r->gate, &r->up, &r->absmax};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) r->b->ops->free(r->b, all[i]->p);
    if (r->kv) r->b->ops->kv_free(r->b, r->kv);
    release_weights(r);
    dq_block_free(r);
}

const dq_model *dq_runner_model(const dq_runner *r)
{
    return r->m;
}

dq_backend *dq_runner_backend(const dq_runner *r)
{
    return r->b;
}

dq_kv *dq_runner_kv(dq_runner *r)
{
    return r->kv;
}

const dq_kv_spec *dq_runner_kv_spec(const dq_runner *r)
{
    return &r->kv_spec;
}

static double bytes_in_use(const dq_runner *r)
{
    const slot *const all[] = {&r->x,      &r->h,      &r->q,    &r->k,  &r->v,     &r->y,
                               &r->angles, &r->lambda, &r->gate, &r->up, &r->absmax};
    const dq_kv_bytes kv = r->b->ops->kv_bytes(r->b, r->kv);
    double bytes = (double)(kv.codes + kv.scales + kv.unquantized);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) bytes += (double)all[i]->bytes;
    return bytes;
}

/* What a pass may take: what is free, and what earlier ones of this runner have taken. */
static double available_for(const dq_runner *r)
{
    return (double)r->b->ops->memory(r->b) + bytes_in_use(r);
}

int64_t dq_runner_rows(const dq_runner *r, int64_t max)
{
    return r->b->ops->memory ? dq_memory_fit_rows(r->m, &r->kv_spec, available_for(r), max) : max;
}

dq_status dq_runner_advise(const dq_runner *r, int64_t rows, dq_err *err)
{
    if (err->code != DQ_RESOURCE || !r->b->ops->memory) return err->code;
    return dq_memory_fit_advise_rows(r->m, &r->kv_spec, available_for(r), rows, err);
}

/* ends: nothing after the maps is wanted. */
static void attention(dq_runner *r, const dq_layer_steps *s, const dq_pass *pass, int i, bool ends)
{
    const dq_model *m = r->m;
    const dq_ops *op = r->b->ops;
    dq_backend *b = r->b;
    dq_attend_args extra = {.logit = pass->logit,
                            .columns = pass->columns ? &pass->columns[i] : NULL,
                            .spans = pass->spans ? &pass->spans[i] : NULL,
                            .measure = pass->watch && pass->watch->measure
                                           ? pass->watch->measure + (int64_t)i * m->map.n_out
                                           : NULL,
                            .look =
                                pass->watch && pass->watch->look ? &pass->watch->look[i] : NULL};
    dq_layer_steps_norm_attn(s);
    dq_layer_steps_qkv(s);
    const dq_attend_args args = dq_layer_steps_args(s, &extra);
    if (dq_logit_needs_absmax(pass->logit)) {
        dq_mat absmax = take(r, &r->absmax, s->batch->n_seq, m->map.n_q);
        op->attn_absmax(b, absmax.p, &args);
        if (pass->logit.granularity == DQ_GRANULARITY_TENSOR)
            op->absmax_join(b, absmax.p, s->batch->n_seq, m->map.n_q);
        extra.absmax = absmax.p;
    }
    dq_layer_steps_attend(s, &extra);
    if (pass->watch && pass->watch->attended) pass->watch->attended(pass->watch->arg, i, s, &args);
    if (!ends) dq_layer_steps_out(s);
}

static void feed_forward(dq_runner *r, const dq_layer_steps *s, const dq_pass *pass, int i)
{
    const dq_watch *watch = pass->watch && pass->watch->fed ? pass->watch : NULL;
    dq_layer_steps_norm_ffn(s);
    for (int64_t begin = 0; begin < s->h.rows; begin += DQ_FFN_ROWS) {
        int64_t end = begin + DQ_FFN_ROWS < s->h.rows ? begin + DQ_FFN_ROWS : s->h.rows;
        dq_mat in = dq_layer_steps_rows(s->h, begin, end);
        dq_mat gate = take(r, &r->gate, end - begin, r->m->ffn);
        dq_mat up = take(r, &r->up, end - begin, r->m->ffn);
        if (r->b->err.code != DQ_OK) return;
        dq_layer_steps_gate_up(s, gate, up, in);
        if (watch) watch->fed(watch->arg, i, s, begin, in, gate);
        dq_layer_steps_down(s, in, gate); /* gate does not overlap h */
    }
    r->b->ops->add(r->b, s->x, s->h);
}

static dq_status check_batch(const dq_runner *r, const dq_batch *batch, const dq_pass *pass,
                             dq_err *err)
{
    const int limit = r->m->rope.max_positions;
    if (pass->math.kv != r->kv_spec.num)
        return dq_fail(err, DQ_BUG, "the cache was made for another arithmetic");
    for (int64_t i = 0; i < batch->n_rows; i++) {
        if (batch->ids[i] < 0 || batch->ids[i] >= r->m->vocab)
            return dq_fail(err, DQ_MISMATCH, "%s: id %d is outside the vocabulary of %d tokens",
                           r->m->path, (int)batch->ids[i], r->m->vocab);
        if (batch->pos[i] < 0) return dq_fail(err, DQ_BUG, "negative position in a batch");
        if (limit && batch->pos[i] >= limit)
            return dq_fail(err, DQ_MISMATCH,
                           "%s: position %d: rope type \"dynamic\" is supported up to "
                           "max_position_embeddings (%d) only. Give shorter texts.",
                           r->m->path, (int)batch->pos[i], limit);
    }
    return DQ_OK;
}

static dq_status bad_row(const dq_runner *r, const dq_batch *batch, int64_t row, dq_err *err)
{
    int s = 0;
    while (batch->cu_rows[s + 1] <= row) s++;
    return dq_fail(err, DQ_DAMAGED,
                   "%s: the hidden state is not finite at position %d (sequence %d of the pass); a "
                   "weight is NaN or the model overflows in f32",
                   r->m->path, (int)batch->pos[row], s);
}

dq_status dq_runner_pass(dq_runner *r, const dq_batch *batch, const dq_pass *pass, dq_mat *hidden,
                         dq_err *err)
{
    const dq_model *m = r->m;
    const dq_head_order *a = &m->map;
    const dq_ops *op = r->b->ops;
    int64_t n = batch->n_rows, bad = -1;

    DQ_TRY(check_batch(r, batch, pass, err));
    dq_layer_steps s = {.b = r->b,
                        .m = m,
                        .batch = batch,
                        .math = pass->math,
                        .kv = r->kv,
                        .kv_spec = &r->kv_spec,
                        .x = take(r, &r->x, n, m->dim),
                        .h = take(r, &r->h, n, m->dim),
                        .q = take(r, &r->q, n, (int64_t)a->n_q * a->head_dim),
                        .k = take(r, &r->k, n, (int64_t)a->n_kv * a->head_dim),
                        .v = take(r, &r->v, n, (int64_t)a->n_kv * a->head_dim),
                        .y = take(r, &r->y, n, (int64_t)a->n_out * a->n_slabs * a->head_dim),
                        .angles = take(r, &r->angles, n, a->head_dim)};
    if (m->architecture->lambda == DQ_LAMBDA_TOKEN) s.lambda = take(r, &r->lambda, n, a->n_out);
    if (r->b->err.code != DQ_OK) {
        dq_backend_sync(r->b, err);
        return dq_runner_advise(r, n, err);
    }

    op->embed(r->b, s.x, &m->embed, batch->ids);
    op->rope_table(r->b, s.angles, batch->pos, &m->rope);
    for (int i = 0; i < m->n_layers; i++) {
        if (dq_os_check_stop(err) != DQ_OK) break;
        s.layer = &m->layer[i];
        s.kv_layer = i;
        const bool ends = pass->maps_only && i + 1 == m->n_layers;
        if (ends) s.y.p = NULL;
        attention(r, &s, pass, i, ends);
        if (ends) break;
        feed_forward(r, &s, pass, i);
        if (pass->watch && pass->watch->passed) pass->watch->passed(pass->watch->arg, i, &s);
        if (r->b->err.code != DQ_OK) break;
        if (pass->listener.tell) pass->listener.tell(pass->listener.arg, (double)n / m->n_layers);
    }
    if (!pass->maps_only) dq_layer_steps_norm_out(&s);
    op->first_bad_row(r->b, &bad, pass->maps_only ? s.x : s.h);
    dq_backend_sync(r->b, err); /* on every way out: the caller's arrays may be in use till here */
    if (err->code == DQ_OK && bad >= 0) bad_row(r, batch, bad, err);
    *hidden = pass->maps_only ? (dq_mat){0} : s.h;
    return dq_runner_advise(r, n, err);
}
