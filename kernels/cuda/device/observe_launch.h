/* observe_launch: kernels that reduce magnitudes of rows of values to what dq_tally holds: counts by the upper 16
 * bits, sums, the largest values with their places. All pointers are device memory.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_OBSERVE_LAUNCH_H
#define DQ_OBSERVE_LAUNCH_H

#include "kernels/cuda/host/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DQ_OBSERVE_TOP = 128, DQ_OBSERVE_BINS = 1 << 15, DQ_OBSERVE_FINE = 1 << 16 };

/* Rows of one sequence and query head (hidden states: head -1). Pieces of a launch stand in the order of
 * their places, and `record` counts their rows, at most 65535 each. */
typedef struct dq_observe_piece {
    const float *x; /* row r from x + r * ld on */
    int64_t ld;
    const int32_t *visible; /* values of row r: visible[r * step]; NULL: cols */
    const int32_t *col;     /* col[i] is the column of value i; NULL: i */
    const int32_t *pos;     /* of each row */
    int32_t step, cols, rows, record, seq, head;
} dq_observe_piece;

/* A large value. */
typedef struct dq_observe_found {
    float value;
    int32_t seq, head, row, col;
} dq_observe_found;

/* What one launch finds: the largest values of its rows, in no order. */
typedef struct dq_observe_top {
    uint32_t bin, value;  /* the smallest of them: its upper bits; its bits */
    uint64_t above, want; /* values in higher bins; how many are wanted */
    uint32_t ties, n;     /* values equal to it that are wanted; entries of found */
    dq_observe_found found[DQ_OBSERVE_TOP];
} dq_observe_top;

/* Of all launches of a call; zero before the first one. */
typedef struct dq_observe_call {
    uint64_t hist[DQ_OBSERVE_BINS];
    double total[4]; /* sums of |x|, x^2, x^4; values that are not finite */
} dq_observe_call;

/* Zero before the first launch, and after each one. */
typedef struct dq_observe_bins {
    uint64_t hist[DQ_OBSERVE_BINS], fine[DQ_OBSERVE_FINE];
} dq_observe_bins;

typedef struct dq_observe_rows {
    const dq_observe_piece *piece;
    int32_t n, max_rows, records;
} dq_observe_rows;

/* sums[records][4] and tied[records] are overwritten. */
cudaError_t dq_observe_launch(dq_observe_rows rows, dq_observe_call *call, dq_observe_top *top,
                              dq_observe_bins *bins, double *sums, uint32_t *tied, cudaStream_t s);
/* fine[DQ_OBSERVE_FINE] += counts by the lower 16 bits of values whose upper ones are `bin`. */
cudaError_t dq_observe_refined(dq_observe_rows rows, uint64_t *fine, uint32_t bin, cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
