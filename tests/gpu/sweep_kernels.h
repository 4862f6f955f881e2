/* sweep_kernels: variants of attend_hopper to choose from, what they read, and loops that do one thing
 * alone, for the peaks of what attention does. Of compute capability 9.0, and on the simulation.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SWEEP_KERNELS_H
#define DQ_SWEEP_KERNELS_H

#include "kernels/cuda/device/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Heads of 128 channels with values of 256. */
typedef struct dq_sweep_variant {
    int cluster, stages; /* blocks of a cluster, stages of a ring */
    bool swizzled;       /* operands in the 128-byte swizzle, else in cells */
    bool run_last;       /* steps that need masks first, else pages ascending */
    cudaError_t (*run)(dq_attend_call a, cudaStream_t s); /* a.scale is set by it */
} dq_sweep_variant;
extern const dq_sweep_variant dq_sweep_variants[];
extern const int dq_sweep_n_variants;

/* Operand pages of random f16 of variance 1, the same numbers in both layouts; n floats likewise. */
cudaError_t dq_sweep_fill_operands(dq_operands o, int64_t pages, bool swizzled, cudaStream_t s);
cudaError_t dq_sweep_fill(float *x, int64_t n, cudaStream_t s);

/* A loop of `rounds` on every multiprocessor. What one round of all blocks does is in *each, and
 * *wrong is not 0 where a block found another result than it must. */
typedef struct dq_sweep_loop {
    const char *name, *unit; /* of what counts */
    int kind;
} dq_sweep_loop;
extern const dq_sweep_loop dq_sweep_loops[];
extern const int dq_sweep_n_loops;
/* source: of bulk copies, a multiple of 256 KiB, random. */
cudaError_t dq_sweep_run_loop(const dq_sweep_loop *l, int rounds, const uint8_t *source,
                              int64_t source_bytes, int32_t *wrong, double *each, cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
