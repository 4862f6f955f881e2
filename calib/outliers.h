/* outliers: magnitudes of attention logits and layer outputs of one model over given sequences: the
 * numbers of Table 5 of arXiv 2410.05258, pooled and per layer.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_OUTLIERS_H
#define DQ_OUTLIERS_H

#include "base/json.h"
#include "engine/runner.h"

#include <stdio.h>

/* A view: sequence i is ids[cu[i]] .. ids[cu[i+1]-1], fed from position 0. */
typedef struct dq_sequences {
    int64_t n;
    const int64_t *cu; /* [n + 1], from 0 */
    const int32_t *ids;
} dq_sequences;

/* The median of |x|: within `bound` of the true value; bound 0 says exact. NaN without values. */
typedef struct dq_median {
    double value, bound;
} dq_median;

/* One kind of value. `pooled` covers all layers. */
typedef struct dq_outlier_kind {
    dq_tally pooled, *layer; /* layer[n_layers] */
    dq_median pooled_median, *layer_median;
} dq_outlier_kind;

enum { DQ_KIND_LOGITS, DQ_KIND_HIDDEN, DQ_N_KINDS };
extern const char *const dq_outlier_name[DQ_N_KINDS]; /* "attention_logits", "hidden_states" */

typedef struct dq_outliers {
    int n_layers, n_out;
    dq_outlier_kind kind[DQ_N_KINDS];
    dq_head_measure *measure; /* [n_layers][n_out] what the attention maps look like */
    int64_t n_rows;           /* tokens fed in the first pass over the data */
} dq_outliers;

/* How the data are walked. */
typedef struct dq_outlier_plan {
    int64_t max_rows; /* of one pass; a longer sequence is a pass of its own */
    /* 1: top values are exact, medians carry a bound. 2: the pooled medians are exact too. 3: those of
     * the layers as well. Each is one more walk over all sequences. */
    int walks;
    /* Called between layers and after each pass of the model; may be NULL. `walk` counts from 0. */
    void (*tick)(void *arg, int walk, int64_t rows_done);
    void *arg;
} dq_outlier_plan;

dq_status dq_outliers_init(dq_outliers *o, int n_layers, int n_out, dq_err *err);
void dq_outliers_free(dq_outliers *o); /* zeroed or initialised */
/* Sequences longer than the model's positions are DQ_MISMATCH, ids outside its vocabulary too; both
 * are found before anything runs. By all ranks (base/ranks.h); only on rank 0 *o holds all of it then. The numbers do not
 * depend on how many there are. */
dq_status dq_outliers_collect(dq_outliers *o, dq_runner *r, const dq_sequences *s,
                              const dq_outlier_plan *plan, dq_err *err);

/* The first walk alone, in blocks whose numbers are kept as text by whoever computes them: for runs of one walk that processes
 * share which never meet. Blocks follow from sequences and plan->max_rows alone; `walks` is not read. */
typedef struct dq_outlier_walk dq_outlier_walk;
enum { DQ_OUTLIER_BLOCKS = 128 }; /* at most */
/* `o` is of dq_outliers_init and of this model; all but `w` has to stay. Refuses as dq_outliers_collect does. */
dq_status dq_outlier_walk_new(dq_outlier_walk **w, dq_outliers *o, const dq_model *m,
                              const dq_sequences *s, const dq_outlier_plan *plan, dq_err *err);
void dq_outlier_walk_free(dq_outlier_walk *w); /* NULL allowed */
int dq_outlier_walk_blocks(const dq_outlier_walk *w);
int64_t dq_outlier_walk_rows(const dq_outlier_walk *w, int block);
/* Computes a block and writes its numbers as members of a JSON object, each after a comma; *o is empty then. */
dq_status dq_outlier_walk_run(dq_outlier_walk *w, dq_runner *r, int block, FILE *f, dq_err *err);
/* Takes a block from such members, in any order of blocks. DQ_DAMAGED: they are none, or it has been taken. */
dq_status dq_outlier_walk_take(dq_outlier_walk *w, int block, const json_t *members, dq_err *err);
/* After the last block: *o is what dq_outliers_collect makes of one walk, bit for bit. DQ_MISMATCH: a block lacks. */
dq_status dq_outlier_walk_end(dq_outlier_walk *w, dq_err *err);

/* What follows from a tally; NaN where there are too few values. */
double dq_outlier_top(const dq_tally *t, int k); /* k-th largest magnitude, k from 1 to DQ_TOP */
double dq_outlier_rms(const dq_tally *t);
/* n sum x^4 / (sum x^2)^2: the kurtosis of the values taken around zero; 3 for a normal distribution
 * without mean. */
double dq_outlier_kurtosis0(const dq_tally *t);
/* 1 or 2: the softmax map that query head `head` belongs to; 0 when the model has one map. */
int dq_outlier_map(const dq_head_order *map, int head);

#endif
