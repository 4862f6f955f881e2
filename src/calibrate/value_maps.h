/* value_maps: what attention makes of the inputs of v_proj, as a sample.
 *
 * An output head reads values by its maps: its row t, before the head norm, is W z'_t with W the rows of v_proj after it and
 *     z'_t = sum_s D_ts h_s,   D = A1 - lambda A2 (A of a single map),
 * and the norm multiplies that by g_t = 1 / rms(W z'_t + bias). An error E in v_proj moves what a head gives, with
 * g_t held as it is, by E z_t, z_t = g_t z'_t: in the mean of squares tr(E H E^T) with H the mean of z z^T over rows and heads,
 * not that of the inputs h, of which most is averaged away. Left out is that the norm takes back the part of an error along
 * its output (its derivative is g (I - u u^T / n), u of n values being that output), and what o_proj makes of each head: all
 * heads count alike.
 * One H serves all rows of v_proj. It is sampled: DQ_VALUE_MAPS_BLOCK rows in succession take z of one output head, the next
 * ones that of the next head, so that all heads and positions come in at the price of one pass of attention by one head.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_VALUE_MAPS_H
#define DQ_VALUE_MAPS_H

#include "engine/runner.h"

enum {
    DQ_VALUE_MAPS_BLOCK = 64,
    DQ_VALUE_MAPS_PANEL = 256 /* rows that are multiplied by the inputs at once: whole blocks */
};

/* Buffers. */
typedef struct dq_value_maps {
    float *inputs;    /* [dim, longest] h of the keys of a panel, transposed */
    float *d;         /* [PANEL, longest] D, 0 after a row's own key */
    float *logits[2]; /* [BLOCK, longest] of each map */
    float *q, *k;     /* [BLOCK, head_dim], [longest, head_dim] of one head */
    float *y;         /* [BLOCK, head_dim] a slab of what the head gives */
} dq_value_maps;

/* For sequences of at most `longest` rows. DQ_RESOURCE. */
dq_status dq_value_maps_new(dq_value_maps **out, const dq_model *m, int64_t longest, dq_err *err);
void dq_value_maps_free(dq_value_maps *v); /* NULL allowed */
int64_t dq_value_maps_bytes(const dq_model *m, int64_t longest);

/* The output head that row `row` of sequence `seq` of the text takes. */
int dq_value_maps_head(const dq_head_order *map, int64_t seq, int64_t row);
/* z[n_rows, dim] of the steps' h, q, k and lambda, v_proj being a dense matrix. Every sequence of the batch begins in it, with
 * the number first_seq, first_seq + 1 .. in the text. Host memory; errors stick in the backend. The same bits for any number
 * of threads, and however sequences are batched. */
void dq_value_maps_read(dq_value_maps *v, dq_mat z, const dq_layer_steps *s, int64_t first_seq);
/* Multiplications and additions for a sequence of `rows` rows. */
double dq_value_maps_flop(const dq_model *m, int64_t rows);

#endif
