/* layer_steps: see layer_steps.h. The order of operations inside a layer, which the runner and calibration share.
 * SPDX-License-Identifier: MIT */
#include "engine/layer_steps.h"

void dq_layer_steps_norm_attn(const dq_layer_steps *s)
{
    s->b->ops->rms_norm(s->b, s->h, s->x, s->layer->norm_attn, s->m->norm_eps);
}

void dq_layer_steps_norm_ffn(const dq_layer_steps *s)
{
    s->b->ops->rms_norm(s->b, s->h, s->x, s->layer->norm_ffn, s->m->norm_eps);
}

void dq_layer_steps_norm_out(const dq_layer_steps *s)
{
    s->b->ops->rms_norm(s->b, s->h, s->x, s->m->norm_out, s->m->norm_eps);
}

void dq_layer_steps_qk(const dq_layer_steps *s)
{
    const dq_layer *l = s->layer;
    const dq_ops *op = s->b->ops;
    const int head_dim = s->m->map.head_dim;
    dq_backend *b = s->b;
    op->matmul(b, s->q, s->h, &l->q, l->q_bias, s->math.linear);
    op->matmul(b, s->k, s->h, &l->k, l->k_bias, s->math.linear);
    op->rope(b, s->q, s->angles, s->m->rope.order);
    op->rope(b, s->k, s->angles, s->m->rope.order);
    if (s->kv_spec->rotate_k) {
        op->hadamard(b, s->q, head_dim);
        op->hadamard(b, s->k, head_dim);
    }
    if (l->attn.lambda_kind == DQ_LAMBDA_TOKEN) {
        op->matmul(b, s->lambda, s->h, &l->lambda_proj, NULL, DQ_NUM_F32); /* never packed */
        op->sigmoid(b, s->lambda);
    }
}

void dq_layer_steps_qkv(const dq_layer_steps *s)
{
    const dq_layer *l = s->layer;
    dq_layer_steps_qk(s);
    s->b->ops->matmul(s->b, s->v, s->h, &l->v, l->v_bias, s->math.linear);
    if (s->kv_spec->rotate_v) s->b->ops->hadamard(s->b, s->v, s->m->map.head_dim);
    s->b->ops->kv_append(s->b, s->kv, s->kv_layer, s->batch, s->k, s->v);
}

dq_attend_args dq_layer_steps_args(const dq_layer_steps *s, const dq_attend_args *extra)
{
    dq_attend_args args = *extra;
    args.attn = &s->layer->attn;
    args.batch = s->batch;
    args.kv = s->kv;
    args.layer = s->kv_layer;
    args.q = s->q;
    args.lambda = s->lambda;
    args.math = s->math;
    return args;
}

void dq_layer_steps_attend(const dq_layer_steps *s, const dq_attend_args *extra)
{
    const dq_attend_args args = dq_layer_steps_args(s, extra);
    s->b->ops->attend(s->b, s->y, &args);
    s->b->ops->kv_compact(s->b, s->kv, s->kv_layer, s->batch);
}

void dq_layer_steps_out(const dq_layer_steps *s)
{
    s->b->ops->matmul(s->b, s->h, s->y, &s->layer->o, s->layer->o_bias, s->math.linear);
    s->b->ops->add(s->b, s->x, s->h);
}

void dq_layer_steps_gate_up(const dq_layer_steps *s, dq_mat gate, dq_mat up, dq_mat in)
{
    const dq_layer *l = s->layer;
    s->b->ops->matmul(s->b, gate, in, &l->gate, l->gate_bias, s->math.linear);
    s->b->ops->matmul(s->b, up, in, &l->up, l->up_bias, s->math.linear);
    s->b->ops->ffn_act(s->b, gate, up, s->m->architecture->act, l->act);
}

void dq_layer_steps_down(const dq_layer_steps *s, dq_mat out, dq_mat gate)
{
    s->b->ops->matmul(s->b, out, gate, &s->layer->down, s->layer->down_bias, s->math.linear);
}
