/* plan_pass: see plan_pass.h. A layer has a cache of its own for each chunk, so that memory is that of one layer.
 * SPDX-License-Identifier: MIT */
#include "plan/weights/plan_pass.h"

#include "base/os.h"
#include "base/ranks.h"
#include "engine/memory_fit.h"

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
    if (inputs) inputs->see(inputs->arg, product, x);
}

/* Ranks add up whole chunks, for which gate has the rows (calib_pass.h). */
static void feed_forward(dq_calib_pass *p, const dq_layer_steps *s, const dq_plan_inputs *inputs)
{
    const bool whole = inputs && dq_ranks_count() > 1;
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

static void attention(const dq_layer_steps *s, const dq_plan_inputs *inputs)
{
    const dq_attend_args plain = {.logit = dq_logit_plain};
    dq_layer_steps_norm_attn(s);
    see(inputs, DQ_PLAN_QKV, s->h);
    dq_layer_steps_qkv(s);
    dq_layer_steps_attend(s, &plain);
    see(inputs, DQ_PLAN_O, s->y);
    dq_layer_steps_out(s);
}

dq_status dq_plan_pass_layer(dq_calib_pass *p, const dq_model *m, const dq_layer *layer,
                             const dq_calib_chunk *k, const dq_plan_inputs *inputs, dq_err *err)
{
    dq_layer_steps s = dq_calib_pass_steps(p, m, layer, k);
    DQ_TRY(dq_os_check_stop(err));
    DQ_TRY(dq_calib_pass_cache(p, &s, err));
    attention(&s, inputs);
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
