/* plan_pass: see plan_pass.h. A chunk has a cache of its own for each layer, so that memory is that of one layer.
 * SPDX-License-Identifier: MIT */
#include "plan/plan_pass.h"

#include "base/os.h"
#include "engine/layer_steps.h"
#include "engine/memory_fit.h"

enum { CHUNK_ROWS = 2048 };

static int64_t y_cols(const dq_model *m)
{
    return (int64_t)m->map.n_out * m->map.n_slabs * m->map.head_dim;
}

int64_t dq_plan_pass_width(const dq_model *m, dq_plan_product product)
{
    return product == DQ_PLAN_O ? y_cols(m) : product == DQ_PLAN_DOWN ? m->ffn : m->dim;
}

static dq_status list_chunks(dq_plan_pass *p, const dq_calib_text *t, dq_err *err)
{
    dq_arena *a = p->arena;
    int32_t *pos = dq_alloc(a, (size_t)t->n_ids, sizeof *pos, err);
    int32_t *seq = dq_alloc(a, (size_t)t->n_seq, sizeof *seq, err);
    int64_t *cu = dq_alloc(a, 2 * (size_t)t->n_seq, sizeof *cu, err);
    p->chunk = dq_alloc(a, (size_t)t->n_seq, sizeof *p->chunk, err);
    if (err->code != DQ_OK) return err->code;
    for (int64_t s = 0, end; s < t->n_seq; s = end) {
        dq_plan_chunk *k = &p->chunk[p->n_chunks++];
        k->first = t->cu[s];
        for (end = s + 1; end < t->n_seq && t->cu[end + 1] - k->first <= CHUNK_ROWS;) end++;
        k->batch = (dq_batch){.n_seq = (int)(end - s),
                              .n_rows = t->cu[end] - k->first,
                              .cu_rows = cu,
                              .seq = seq,
                              .ids = t->ids + k->first,
                              .pos = pos + k->first};
        for (int64_t i = s; i <= end; i++) *cu++ = t->cu[i] - k->first;
        if (k->batch.n_rows > p->max_rows) p->max_rows = k->batch.n_rows;
    }
    for (int64_t s = 0; s < t->n_seq; s++) {
        for (int64_t i = t->cu[s]; i < t->cu[s + 1]; i++) pos[i] = (int32_t)(i - t->cu[s]);
    }
    return DQ_OK;
}

static dq_mat buffer(dq_plan_pass *p, int64_t rows, int64_t cols)
{
    dq_mat m = {.rows = rows, .cols = cols};
    if (cols > 0) m.p = p->b->ops->alloc(p->b, (size_t)(rows * cols) * sizeof *m.p);
    if (cols > 0 && !m.p)
        dq_fail(&p->b->err, DQ_RESOURCE, "out of memory for a pass of %lld rows", (long long)rows);
    return m;
}

dq_status dq_plan_pass_new(dq_plan_pass *p, const dq_model *m, dq_backend *b,
                           const dq_calib_text *text, dq_err *err)
{
    const dq_headmap *a = &m->map;
    *p = (dq_plan_pass){.b = b, .arena = dq_arena_new()};
    if (!p->arena) return dq_fail(err, DQ_RESOURCE, "out of memory");
    DQ_TRY(list_chunks(p, text, err));
    const int64_t rows = p->max_rows, ffn_rows = rows < DQ_FFN_ROWS ? rows : DQ_FFN_ROWS;
    p->x = buffer(p, rows, m->dim);
    p->h = buffer(p, rows, m->dim);
    p->q = buffer(p, rows, (int64_t)a->n_q * a->head_dim);
    p->k = buffer(p, rows, (int64_t)a->n_kv * a->head_dim);
    p->v = buffer(p, rows, (int64_t)a->n_kv * a->head_dim);
    p->y = buffer(p, rows, y_cols(m));
    p->angles = buffer(p, rows, a->head_dim);
    p->lambda = buffer(p, rows, m->layout->lambda == DQ_LAMBDA_TOKEN ? a->n_out : 0);
    p->gate = buffer(p, ffn_rows, m->ffn);
    p->up = buffer(p, ffn_rows, m->ffn);
    return dq_backend_sync(b, err);
}

void dq_plan_pass_end(dq_plan_pass *p)
{
    const dq_mat all[] = {p->x, p->h, p->q, p->k, p->v, p->y, p->angles, p->lambda, p->gate, p->up};
    for (size_t i = 0; p->b && i < sizeof all / sizeof *all; i++) p->b->ops->free(p->b, all[i].p);
    dq_arena_free(p->arena);
    *p = (dq_plan_pass){.b = NULL};
}

static dq_mat first_rows(dq_mat m, int64_t rows)
{
    m.rows = rows;
    return m;
}

dq_mat dq_plan_pass_stream(const dq_plan_pass *p, const dq_plan_chunk *k)
{
    return first_rows(p->x, k->batch.n_rows);
}

static void see(const dq_plan_inputs *inputs, dq_plan_product product, dq_mat x)
{
    if (inputs) inputs->see(inputs->arg, product, x);
}

static void feed_forward(dq_plan_pass *p, const dq_layer_steps *s, const dq_plan_inputs *inputs)
{
    dq_layer_steps_norm_ffn(s);
    see(inputs, DQ_PLAN_GATE_UP, s->h);
    for (int64_t at = 0; at < s->h.rows; at += DQ_FFN_ROWS) {
        const int64_t left = s->h.rows - at, n = left < DQ_FFN_ROWS ? left : DQ_FFN_ROWS;
        const dq_mat in = dq_layer_steps_rows(s->h, at, at + n), gate = first_rows(p->gate, n);
        dq_layer_steps_gate_up(s, gate, first_rows(p->up, n), in);
        see(inputs, DQ_PLAN_DOWN, gate);
        dq_layer_steps_down(s, in, gate);
    }
    p->b->ops->add(p->b, s->x, s->h);
}

static void attention(dq_plan_pass *p, const dq_layer_steps *s, const dq_plan_inputs *inputs)
{
    const dq_attend_args plain = {.logit = dq_logit_plain};
    union { /* handles of this chunk; the batch is read-only for everybody else */
        const int32_t *in;
        int32_t *out;
    } seq = {s->batch->seq};
    for (int i = 0; i < s->batch->n_seq; i++) seq.out[i] = p->b->ops->kv_seq_new(p->b, s->kv);
    p->b->ops->rope_table(p->b, s->angles, s->batch->pos, &s->m->rope);
    dq_layer_steps_norm_attn(s);
    see(inputs, DQ_PLAN_QKV, s->h);
    dq_layer_steps_qkv(s);
    dq_layer_steps_attend(s, &plain);
    see(inputs, DQ_PLAN_O, s->y);
    dq_layer_steps_out(s);
}

dq_status dq_plan_pass_layer(dq_plan_pass *p, const dq_model *m, const dq_layer *layer,
                             const dq_plan_chunk *k, const dq_plan_inputs *inputs, dq_err *err)
{
    const int64_t n = k->batch.n_rows;
    dq_layer_steps s = {.b = p->b,
                        .m = m,
                        .layer = layer,
                        .batch = &k->batch,
                        .kv_spec = &dq_kv_plain,
                        .math = {DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32},
                        .x = first_rows(p->x, n),
                        .h = first_rows(p->h, n),
                        .q = first_rows(p->q, n),
                        .k = first_rows(p->k, n),
                        .v = first_rows(p->v, n),
                        .y = first_rows(p->y, n),
                        .angles = first_rows(p->angles, n),
                        .lambda = first_rows(p->lambda, n)};
    DQ_TRY(dq_os_check_stop(err));
    s.kv = p->b->ops->kv_new(p->b, &m->map, 1, s.kv_spec);
    if (!s.kv) {
        dq_backend_sync(p->b, err);
        return dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache of a pass");
    }
    attention(p, &s, inputs);
    feed_forward(p, &s, inputs);
    dq_backend_sync(p->b, err);
    p->b->ops->kv_free(p->b, s.kv);
    return err->code;
}

dq_mat dq_plan_pass_final(dq_plan_pass *p, const dq_model *m, const dq_plan_chunk *k)
{
    const dq_mat h = first_rows(p->h, k->batch.n_rows);
    p->b->ops->rms_norm(p->b, h, dq_plan_pass_stream(p, k), m->norm_out, m->norm_eps);
    return h;
}
