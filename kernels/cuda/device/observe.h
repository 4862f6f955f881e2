/* observe: kernels that reduce magnitudes of rows of values to what dq_tally holds: counts by the upper 16
 * bits, sums, the largest values with their places. All pointers are device memory.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_OBSERVE_H
#define DQ_OBSERVE_H

#include "kernels/cuda/host/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DQ_TALLY_TOP = 128, DQ_TALLY_BINS = 1 << 15, DQ_TALLY_FINE = 1 << 16 };

/* Rows of one sequence and query head (hidden states: head -1). Pieces of a launch stand in the order of
 * their places, and `record` counts their rows, at most 65535 each. */
typedef struct dq_piece {
    const float *x; /* row r from x + r * ld on */
    int64_t ld;
    const int32_t *visible; /* values of row r: visible[r * step]; NULL: cols */
    const int32_t *col;     /* col[i] is the column of value i; NULL: i */
    const int32_t *pos;     /* of each row */
    int32_t step, cols, rows, record, seq, head;
} dq_piece;

/* A large value. */
typedef struct dq_found {
    float value;
    int32_t seq, head, row, col;
} dq_found;

/* What one launch finds: the largest values of its rows, in no order. */
typedef struct dq_launch_top {
    uint32_t bin, value;  /* the smallest of them: its upper bits; its bits */
    uint64_t above, want; /* values in higher bins; how many are wanted */
    uint32_t ties, n;     /* values equal to it that are wanted; entries of found */
    dq_found found[DQ_TALLY_TOP];
} dq_launch_top;

/* Of all launches of a call; zero before the first one. */
typedef struct dq_call_tally {
    uint64_t hist[DQ_TALLY_BINS];
    double total[4]; /* sums of |x|, x^2, x^4; values that are not finite */
} dq_call_tally;

/* Zero before the first launch, and behind each one. */
typedef struct dq_tally_bins {
    uint64_t hist[DQ_TALLY_BINS], fine[DQ_TALLY_FINE];
} dq_tally_bins;

typedef struct dq_tally_rows {
    const dq_piece *piece;
    int32_t n, most_rows, records;
} dq_tally_rows;

/* sums[records][4] and tied[records] are overwritten. */
cudaError_t dq_tally_launch(dq_tally_rows rows, dq_call_tally *call, dq_launch_top *top,
                            dq_tally_bins *bins, double *sums, uint32_t *tied, cudaStream_t s);
/* fine[DQ_TALLY_FINE] += counts by the lower 16 bits of values whose upper ones are `bin`. */
cudaError_t dq_tally_refined(dq_tally_rows rows, uint64_t *fine, uint32_t bin, cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
