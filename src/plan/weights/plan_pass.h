/* plan_pass: chunks of a text (calib_pass.h) through a model layer by layer, each product's inputs shown to whoever asks.
 * Numbers are those of the runner's pass, bit for bit.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_PASS_H
#define DQ_PLAN_PASS_H

#include "calibrate/calib_pass.h"

/* How a layer differs from the model's own. {0}: in nothing. */
typedef struct dq_plan_change {
    const dq_layer *layer;      /* a copy with other weights; NULL: the model's */
    const dq_logit_spec *logit; /* of attention logits; NULL: not rounded */
    const bool
        *rounds; /* [n_q] query heads that are rounded; NULL: all. Backends that have_rounds */
    const dq_kv_spec *kv; /* of its cache; NULL: plain */
} dq_plan_change;

/* Products with inputs of their own. */
typedef enum dq_plan_product {
    DQ_PLAN_QKV,
    DQ_PLAN_O,
    DQ_PLAN_GATE_UP,
    DQ_PLAN_DOWN,
    DQ_PLAN_PRODUCTS
} dq_plan_product;
int64_t dq_plan_pass_width(const dq_model *m, dq_plan_product product); /* inputs of it */

/* Told the inputs of every product of a layer, in the order of products, and heads before they attend. The rows of DQ_PLAN_DOWN
 * come in pieces of at most DQ_FFN_ROWS, but of several ranks (base/ranks.h) as a whole chunk. */
typedef struct dq_plan_inputs {
    void (*see)(void *arg, dq_plan_product product, dq_mat x); /* NULL: nobody is told */
    void (*see_heads)(void *arg,
                      const dq_layer_steps *s); /* q, k, v as attention has them; NULL likewise */
    void *arg;
} dq_plan_inputs;

/* The residual stream of a chunk: rows of p->x. */
dq_mat dq_plan_pass_stream(const dq_calib_pass *p, const dq_calib_chunk *k);
/* It through layer number `layer` of m. change, inputs: NULL for none. DQ_STOPPED. */
dq_status dq_plan_pass_layer(dq_calib_pass *p, const dq_model *m, int layer,
                             const dq_plan_change *change, const dq_calib_chunk *k,
                             const dq_plan_inputs *inputs, dq_err *err);
/* The last norm of it: rows of p->h. */
dq_mat dq_plan_pass_final(dq_calib_pass *p, const dq_model *m, const dq_calib_chunk *k);

#endif
