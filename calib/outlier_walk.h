/* outlier_walk: a model's forward passes over given sequences, from which outliers (outliers.h) are collected.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_OUTLIER_WALK_H
#define DQ_OUTLIER_WALK_H

#include "calib/outliers.h"

/* A view: sequence i is ids[cu[i]] .. ids[cu[i+1]-1], fed from position 0. */
typedef struct dq_sequences {
    int64_t n;
    const int64_t *cu; /* [n + 1], from 0 */
    const int32_t *ids;
} dq_sequences;

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

/* A profile's classes of tokens. A token not at the first position is a sink from the first layer on in which the queries that
 * see it give it this share of their attention, on average over them and the layer's maps; where fewer see it, nothing is known,
 * and it is none. What a layer puts out is classed by the attention of the next layer, which reads it; after the last layer by
 * that one's. */
#define DQ_OUTLIER_SINK_SHARE 0.02
enum { DQ_OUTLIER_SINK_QUERIES = 128 };

/* Fills *o, of dq_outliers_init and this model. Sequences longer than the model's positions are DQ_MISMATCH, ids outside its
 * vocabulary and a profile on a backend without profile_rows too; all are found before anything runs. By all ranks
 * (base/ranks.h); only on rank 0 *o holds all of it then. The numbers do not depend on how many there are. */
dq_status dq_outlier_walk_collect(dq_outliers *o, dq_runner *r, const dq_sequences *s,
                                  const dq_outlier_plan *plan, dq_err *err);

/* The first walk alone, in blocks: for runs of one walk that processes share which never meet. Blocks follow from sequences and
 * plan->max_rows alone; `walks` is not read. */
typedef struct dq_outlier_walk dq_outlier_walk;
enum { DQ_OUTLIER_BLOCKS = 128 }; /* at most */
/* `o` is of dq_outliers_init and of this model; all but `w` has to stay. Refuses as dq_outlier_walk_collect does. */
dq_status dq_outlier_walk_new(dq_outlier_walk **w, dq_outliers *o, const dq_model *m,
                              const dq_sequences *s, const dq_outlier_plan *plan, dq_err *err);
void dq_outlier_walk_free(dq_outlier_walk *w); /* NULL allowed */
int dq_outlier_walk_blocks(const dq_outlier_walk *w);
int64_t dq_outlier_walk_rows(const dq_outlier_walk *w, int block);
/* Adds a block to *o. */
dq_status dq_outlier_walk_run(dq_outlier_walk *w, dq_runner *r, int block, dq_err *err);
/* Whether the places of *o stand in its sequences: bytes may come from a file, and ids are looked up by places. */
bool dq_outlier_walk_check(const dq_outlier_walk *w);
/* After the last block, wherever blocks were run (dq_outliers_merge): *o is what dq_outlier_walk_collect makes of one walk, bit for
 * bit. */
void dq_outlier_walk_end(dq_outlier_walk *w);

#endif
