/* reference: the model before rounding beside the rounded one, on the same calibration text: its residual stream, and the sums of
 * what the rounded model's products would have to give beyond what they do (correction.h).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_REFERENCE_H
#define DQ_REFERENCE_H

#include "calibrate/activations.h"
#include "calibrate/correction.h"
#include "calibrate/shrinkage.h"
#include "engine/runner.h"
#include "tensor/tensor.h"

typedef struct dq_reference {
    dq_activations *act; /* that holds both streams; NULL: there is no reference */
    const dq_model *m;
    dq_mat x;          /* [max_rows, dim] its stream, of the chunk at hand */
    dq_mat lacks;      /* [max_rows, dim] what the rounded model lacks there */
    dq_cross *sums;    /* of the rows that r->half does not hold, until they are solved */
    dq_shrinkage half; /* of the other rows */
    bool of_inputs;    /* what the sums are of */
} dq_reference;

/* act must outlive it. Buffers are host memory. DQ_RESOURCE. */
dq_status dq_reference_new(dq_reference *r, dq_activations *act, const dq_model *m,
                           int64_t max_rows, dq_err *err);
void dq_reference_free(dq_reference *r); /* {0} allowed */
int64_t dq_reference_bytes(const dq_model *m, int64_t max_rows);

/* Steps of the reference in layer `number` with the buffers of s, which are overwritten but for s->x. */
dq_layer_steps dq_reference_steps(const dq_reference *r, const dq_layer_steps *s, int number);
/* r->x from the scratch file, and x[rows, dim] or r->x to it. */
dq_status dq_reference_get(dq_reference *r, int64_t first, int64_t rows, dq_err *err);
dq_status dq_reference_put(dq_reference *r, int64_t first, dq_mat x, dq_err *err);

/* Before the sums of a product: they are empty, and of what is given. */
void dq_reference_begin_inputs(dq_reference *r, int64_t n);
void dq_reference_begin_outputs(dq_reference *r, int64_t n); /* n inputs, dim outputs */
/* The sums are those of all ranks, so the following are called by all of them: dq_reference_add_none by one that has no rows, with the same
 * pieces (tile_sums.h).
 * Adds norm(r->x) - s->h, s->h being the same norm of the rounded stream. */
dq_status dq_reference_add_inputs(dq_reference *r, const dq_layer_steps *s,
                                  void (*norm)(const dq_layer_steps *s), dq_err *err);
dq_status dq_reference_add_none(dq_reference *r, dq_backend *b, int64_t piece, dq_err *err);
/* Adds what is left of r->lacks[rows, n], inputs before rounding, when x[rows, n], the rounded model's, are taken away. */
dq_status dq_reference_add_read(dq_reference *r, dq_backend *b, dq_mat x, dq_err *err);
/* Adds what the rounded stream would lack after attention, if o were not rounded: r->x is after attention, s->x before it,
 * s->y what o reads; s->h is overwritten. */
dq_status dq_reference_add_attention(dq_reference *r, const dq_layer_steps *s, int number,
                                     dq_err *err);
/* The same for down and rows at .. of the chunk: r->x is after the layer, s->x before down, gate[n, ffn] what down reads. */
dq_status dq_reference_add_down(dq_reference *r, const dq_layer_steps *s, int number, int64_t at,
                                dq_mat gate, dq_err *err);
/* x += feed-forward part, for the steps of the reference; gate and up are scratch of at most DQ_FFN_ROWS rows. */
void dq_reference_feed_forward(const dq_layer_steps *s, dq_mat gate, dq_mat up);

/* The sums become what is added to weights of that product, as far as shrinkage.h lets it; h, its sums without those that
 * r->half holds, is factored with `damping`. `what` names it; *share: how much of it outputs keep, on an average. */
dq_status dq_reference_solve(dq_reference *r, dq_hessian *h, double damping, const char *what,
                             double *share, dq_err *err);
/* w[rows, n], rows first .. of the product's weights, with it. A row whose corrected groups have a scale that spec's type
 * cannot hold stays as it is; *kept: how many. DQ_RESOURCE. */
dq_status dq_reference_correct(const dq_reference *r, float *w, int64_t first, int64_t rows,
                               const dq_quant_spec *spec, int64_t *kept, dq_err *err);

#endif
