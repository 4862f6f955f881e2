/* maps: kernels that look at the maps of output heads between softmax and subtraction: per-key sums, and
 * measures of rows. Strips hold exp(S - max); sums and factors are there. Sums are f64 in an order that
 * depends on the sequence alone.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_MAPS_H
#define DQ_MAPS_H

#include "kernels/cuda/device/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Units of one list that follow each other in a launch. */
typedef struct dq_map_run {
    int32_t first, n, keys; /* the most that one of them sees */
} dq_map_run;

/* What backend.h calls columns; NULL: not asked for. List l = seq * n_groups + group has its values from
 * at[l] on. */
typedef struct dq_map_sums {
    double *mass[2], *lambda_mass, *diff;
    const int64_t *at;
} dq_map_sums;

/* Adds what rows first .. n-1 of the units contribute. */
cudaError_t dq_maps_sum(dq_attention_units u, dq_map_sums c, const dq_map_run *runs, int n_runs,
                        int max_keys, cudaStream_t s);

/* Entropy and sink mass of both maps, variation, negative, near_zero[4], skippable[4], rows, keys, pages. */
enum { DQ_MAP_THRESHOLDS = 4, DQ_MAP_FIELDS = 6 + 2 * DQ_MAP_THRESHOLDS + 3 };
typedef struct dq_map_limits {
    double below[DQ_MAP_THRESHOLDS];
} dq_map_limits;
/* into[seq][n_out][DQ_MAP_FIELDS] += all rows of the units; row[factors][DQ_MAP_FIELDS] is overwritten. */
cudaError_t dq_maps_measure(dq_attention_units u, dq_map_limits limits, double *into, double *row,
                            const dq_map_run *runs, int n_runs, cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
