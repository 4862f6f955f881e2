/* batch: the rows that one pass appends to many sequences, and the views that operations take.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BATCH_H
#define DQ_BATCH_H

#include "base/base.h"

/* f32 activations, row-major, in backend memory; only the backend follows p. */
typedef struct dq_mat {
    float *p;
    int64_t rows, cols;
} dq_mat;

/* A pass appends rows cu_rows[i] .. cu_rows[i+1]-1 to sequence seq[i]. A sequence occurs at most
 * once in a batch; a range may be empty. Positions are absolute, not negative, ascend by 1 inside a
 * range and lie above those that the sequence holds; they need not start at 0 or right after them
 * (goldens start at 60 000). The batch is a view: arrays belong to the caller, on the host. */
typedef struct dq_batch {
    int n_seq;
    int64_t n_rows;         /* cu_rows[n_seq] */
    const int64_t *cu_rows; /* [n_seq + 1], from 0 */
    const int32_t *seq;     /* [n_seq] handles from kv_seq_new or kv_fork of dq_ops */
    const int32_t *ids;     /* [n_rows] */
    const int32_t *pos;     /* [n_rows] */
} dq_batch;

#endif
