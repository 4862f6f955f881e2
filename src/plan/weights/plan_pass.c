/* plan_pass: see plan_pass.h. A layer has a cache of its own for each chunk, so that memory is that of one layer.
 * SPDX-License-Identifier: MIT */
#include "plan/weights/plan_pass.h"

#include "base/os.h"
#include "base/ranks.h"
#include "engine/runner.h"

int64_t dq_plan_pass_width(const dq_model *m, dq_plan_product product)
{
    return product == DQ_PLAN_O ? dq_calib_pass_y(m) : product == DQ_PLAN_DOWN ? m->ffn : m->dim;
}

dq_mat dq_plan_pass_stream(const dq_calib_pass *p, const dq_calib_chunk *k)
{
    return dq_calib_pass_first(p->x, k->batch.n_rows);
}

static void see(const dq_plan_inputs *inputs, dq_plan_product product, dq_mat x)
{
    if (inputs && inputs->see) inputs->see(inputs->arg, product, x);
}

/* Ranks add up whole chunks, for which gate has the rows (calib_pass.h). */
static void feed_forward(dq_calib_pass *p, const dq_layer_steps *s, const dq_plan_inputs *inputs)
{
    const bool whole = inputs && inputs->see && dq_ranks_count() > 1;
    dq_layer_steps_norm_ffn(s);
    see(inputs, DQ_PLAN_GATE_UP, s->h);
    for (int64_t at = 0; at < s->h.rows; at += DQ_FFN_ROWS) {
        const int64_t left = s->h.rows - at, n = left < DQ_FFN_ROWS ? left : DQ_FFN_ROWS,
                      to = whole ? at : 0;
        const dq_mat in = dq_layer_steps_rows(s->h, at, at + n),
                     gate = dq_layer_steps_rows(p->gate, to, to + n);
        dq_layer_steps_gate_up(s, gate, dq_calib_pass_first(p->up, n), in);
        if (!whole) see(inputs, DQ_PLAN_DOWN, gate);
        dq_layer_steps_down(s, in, gate);
    }
    if (whole) see(inputs, DQ_PLAN_DOWN, dq_calib_pass_first(p->gate, s->h.rows));
    p->b->ops->add(p->b, s->x, s->h);
}

/* The absolute maxima that a granularity needs before the first row is rounded; NULL: it needs none, or there is no memory,
 * which sticks in the backend. */
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

static void attention(const dq_layer_steps *s, const dq_plan_change *change,
                      const dq_plan_inputs *inputs)
{
    dq_attend_args extra = {.logit = change && change->logit ? *change->logit : dq_logit_plain,
                            .rounds = change ? change->rounds : NULL};
    dq_layer_steps_norm_attn(s);
    see(inputs, DQ_PLAN_QKV, s->h);
    dq_layer_steps_qkv(s);
    if (inputs && inputs->see_heads) inputs->see_heads(inputs->arg, s);
    float *absmax = find_absmax(s, &extra);
    extra.absmax = absmax;
    dq_layer_steps_attend(s, &extra);
    s->b->ops->free(s->b, absmax);
    see(inputs, DQ_PLAN_O, s->y);
    dq_layer_steps_out(s);
}

dq_status dq_plan_pass_layer(dq_calib_pass *p, const dq_model *m, int layer,
                             const dq_plan_change *change, const dq_calib_chunk *k,
                             const dq_plan_inputs *inputs, dq_err *err)
{
    const dq_layer *own = change && change->layer ? change->layer : &m->layer[layer];
    dq_layer_steps s = dq_calib_pass_steps(p, m, own, k);
    if (change && change->kv) s.kv_spec = change->kv;
    DQ_TRY(dq_os_check_stop(err));
    DQ_TRY(dq_calib_pass_cache(p, &s, err));
    attention(&s, change, inputs);
    feed_forward(p, &s, inputs);
    dq_backend_sync(p->b, err);
    p->b->ops->kv_free(p->b, s.kv);
    return err->code;
}

dq_mat dq_plan_pass_final(dq_calib_pass *p, const dq_model *m, const dq_calib_chunk *k)
{
    const dq_layer_steps s = dq_calib_pass_steps(p, m, &m->layer[m->n_layers - 1], k);
    dq_layer_steps_norm_out(&s);
    return s.h;
}
