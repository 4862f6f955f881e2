/* layer_steps: one layer of a model in steps on the rows of a batch: norm, q k v, attend, o; norm, gate and up, down.
 * A step's input and output are matrices of the caller, so that somebody who wants to look at the input of a product, or to
 * exchange a weight between two steps, sees what the forward pass sees.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LAYER_STEPS_H
#define DQ_LAYER_STEPS_H

#include "engine/backend.h"
#include "model/model.h"

/* All matrices are backend memory, a row a row of the batch, and do not overlap. Errors stick in the backend. */
typedef struct dq_layer_steps {
    dq_backend *b;
    const dq_model *m;
    const dq_layer *
        layer; /* whose weights are used: the model's, or a copy of it with others of the same shapes */
    const dq_batch *batch;
    dq_math math;
    dq_kv *kv;
    const dq_kv_spec *kv_spec;
    int kv_layer;   /* the layer of kv that this one fills */
    dq_mat x, h;    /* [n_rows, dim] residual stream; its norm, and what is added to it */
    dq_mat q, k, v; /* [n_rows, heads * head_dim] */
    dq_mat y;       /* [n_rows, n_out * n_slabs * head_dim] */
    dq_mat angles;  /* [n_rows, head_dim] from rope_table */
    dq_mat lambda;  /* [n_rows, n_out], DQ_LAMBDA_TOKEN only */
} dq_layer_steps;

/* h = norm(x), before attention or before the feed-forward part. */
void dq_layer_steps_norm_attn(const dq_layer_steps *s);
void dq_layer_steps_norm_ffn(const dq_layer_steps *s);
/* After the last layer: what the head reads. */
void dq_layer_steps_norm_out(const dq_layer_steps *s);
/* q, k and lambda of h, with positions and rotations; and v, and k and v in the cache. */
void dq_layer_steps_qk(const dq_layer_steps *s);
void dq_layer_steps_qkv(const dq_layer_steps *s);
/* y of q and the cache. extra: logit, absmax and what is observed are taken from it, the rest is filled in. */
void dq_layer_steps_attend(const dq_layer_steps *s, const dq_attend_args *extra);
dq_attend_args dq_layer_steps_args(const dq_layer_steps *s, const dq_attend_args *extra);
/* x += y Wo + bias, through h. */
void dq_layer_steps_out(const dq_layer_steps *s);
/* gate = act(in Wgate) * (in Wup) for rows of h; up is scratch. */
void dq_layer_steps_gate_up(const dq_layer_steps *s, dq_mat gate, dq_mat up, dq_mat in);
/* out = gate Wdown + bias: rows of what is to be added to x. */
void dq_layer_steps_down(const dq_layer_steps *s, dq_mat out, dq_mat gate);

/* Rows begin .. end - 1 of a matrix. */
static inline dq_mat dq_layer_steps_rows(dq_mat m, int64_t begin, int64_t end)
{
    return (dq_mat){.p = m.p ? m.p + begin * m.cols : NULL, .rows = end - begin, .cols = m.cols};
}

#endif
