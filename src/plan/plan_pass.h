/* plan_pass: a text's sequences through a model layer by layer, some whole sequences at a time, each product's inputs shown to
 * whoever asks. Numbers are those of the runner's pass, bit for bit.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_PASS_H
#define DQ_PLAN_PASS_H

#include "calibrate/calib_text.h"
#include "engine/backend.h"

/* Products with inputs of their own. */
typedef enum dq_plan_product {
    DQ_PLAN_QKV,
    DQ_PLAN_O,
    DQ_PLAN_GATE_UP,
    DQ_PLAN_DOWN,
    DQ_PLAN_PRODUCTS
} dq_plan_product;
int64_t dq_plan_pass_width(const dq_model *m, dq_plan_product product); /* inputs of it */

/* Told the inputs of every product of a layer; the rows of DQ_PLAN_DOWN come in pieces. */
typedef struct dq_plan_inputs {
    void (*see)(void *arg, dq_plan_product product, dq_mat x);
    void *arg;
} dq_plan_inputs;

/* Whole sequences that a pass takes at once. */
typedef struct dq_plan_chunk {
    dq_batch batch;
    int64_t first; /* row in the text */
} dq_plan_chunk;

typedef struct dq_plan_pass {
    dq_backend *b; /* one that computes in host memory */
    dq_arena *arena;
    dq_plan_chunk *chunk;
    int64_t n_chunks, max_rows;
    dq_mat x, h, q, k, v, y, angles, lambda, gate, up; /* of max_rows rows */
} dq_plan_pass;

/* For models of the shape of m. The text and b must outlive it. DQ_RESOURCE. */
dq_status dq_plan_pass_new(dq_plan_pass *p, const dq_model *m, dq_backend *b,
                           const dq_calib_text *text, dq_err *err);
void dq_plan_pass_end(dq_plan_pass *p); /* {0} allowed */
/* The residual stream of a chunk: rows of p->x. */
dq_mat dq_plan_pass_stream(const dq_plan_pass *p, const dq_plan_chunk *k);
/* It through one layer of m, `layer` being that layer or a copy with other weights. inputs: NULL for none. DQ_STOPPED. */
dq_status dq_plan_pass_layer(dq_plan_pass *p, const dq_model *m, const dq_layer *layer,
                             const dq_plan_chunk *k, const dq_plan_inputs *inputs, dq_err *err);
/* The last norm of it: rows of p->h. */
dq_mat dq_plan_pass_final(dq_plan_pass *p, const dq_model *m, const dq_plan_chunk *k);

#endif
