/* cpu: state and shared helpers of the CPU backend. Private to kernels/cpu.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CPU_H
#define DQ_CPU_H

#include "engine/backend.h"
#include "kernels/cpu/simd.h"

/* cpu_kv.c: blocks of one size; a cache has whole pages, codes by width, sinks and numbers of 1 to
 * 64 sets, of keys and of values. */
enum { DQ_CPU_BINS = 32 };
typedef struct dq_cpu_chunk dq_cpu_chunk;
typedef struct dq_cpu_bin {
    size_t bytes;       /* of a block */
    int64_t chunks;     /* 0: the bin is free for another size */
    int64_t capacity;   /* blocks in all chunks, in use or not */
    dq_cpu_chunk *open; /* those that have free blocks */
} dq_cpu_bin;
typedef struct dq_cpu_prepacked dq_cpu_prepacked; /* cpu_prepacked.c */
typedef struct dq_cpu_dense dq_cpu_dense;         /* cpu_matmul.c */

/* b->state. */
typedef struct dq_cpu {
    const dq_simd *simd;
    const dq_simd_pages *pages;
    const dq_simd_peak *peak;
    const dq_simd_prepacked *blocks;
    dq_levels_chunks *levels;
    dq_cpu_prepacked *prepacked; /* weights that are kept prepacked, NULL: none */
    dq_cpu_dense *dense;         /* dense weights that are acquired, NULL: none yet */
    size_t block_bytes;          /* of each thread's block */
    void **block;                /* [b->threads] scratch, 64-byte aligned */
    size_t shared_bytes;
    void *shared; /* scratch that all threads see */
    size_t operand_bytes;
    void *operand; /* likewise, of products */
    dq_cpu_bin bin[DQ_CPU_BINS];
    size_t kept_bytes; /* of chunks without a block in use */
} dq_cpu;

static inline dq_cpu *dq_cpu_of(dq_backend *b)
{
    return b->state;
}

/* Makes each thread's scratch dq_cpu_of(b)->block[omp_get_thread_num()] at least `bytes` long,
 * contents undefined, for regions opened with num_threads(b->threads); called outside of these.
 * False with the sticky error set when memory is short. */
bool dq_cpu_reserve(dq_backend *b, size_t bytes);
/* One block for all threads, on the same terms. NULL with the sticky error set. */
void *dq_cpu_shared(dq_backend *b, size_t bytes);
/* Likewise, for a product's activations beside what dq_cpu_shared gave. Split integers take 3 bytes
 * a column and 16 a piece, less than floats; the limit of packings (cpu_linear.h) counts them. */
void *dq_cpu_operand(dq_backend *b, size_t bytes);

/* The state for dq_backend_open: fills b->state, b->ops and b->device; b->threads is set. */
dq_status dq_cpu_open(dq_backend *b, dq_err *err);

void dq_cpu_rope_table(dq_backend *b, dq_mat table, const int32_t *pos, const dq_rope *rope);
void dq_cpu_rope(dq_backend *b, dq_mat x, dq_mat table, dq_rope_order order);
void dq_cpu_hadamard(dq_backend *b, dq_mat x, int dim);
/* One run of dim values. */
void dq_cpu_hadamard_run(float *x, int dim);
/* cpu_matmul.c */
void dq_cpu_matmul(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w, const float *bias,
                   dq_num num);
const char *dq_cpu_matmul_kernel(const dq_backend *b, const dq_weight *w, dq_num num);
/* cpu_prepacked.c. A run of activations in 8 bits: scale absmax/127 (NaN where x is not finite),
 * code rint(x/scale). Returns the sum of the codes. */
int32_t dq_cpu_round8(const dq_simd *simd, int8_t *code, float *scale, const float *x, int64_t n);
void dq_cpu_logprob(dq_backend *b, double *logp, int32_t *top1, dq_mat hidden,
                    const dq_weight *head, const int32_t *target, dq_num num);
int64_t dq_cpu_logit_bytes(int64_t rows, int64_t vocab);
void dq_cpu_kld(dq_backend *b, double *kld, dq_mat ref, const dq_weight *ref_head, dq_num ref_num,
                dq_mat hidden, const dq_weight *head, dq_num num);
/* dst[n] = columns first..first+n-1 of row `row` of w, dequantized. first is a multiple of 32. */
void dq_cpu_weight_row(const dq_simd *simd, float *dst, const dq_weight *w, int64_t row,
                       int64_t first, int64_t n);

#endif
