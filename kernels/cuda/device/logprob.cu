/* logprob: one block takes one row of a piece: its largest entry first, then the sums
 * relative to the largest so far; those of earlier pieces are brought down to it.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/launch.h"

#include <math.h>

#include "kernels/cuda/device/reduce.cuh"

enum { THREADS = 256, WARPS = THREADS / DQ_WARP };

struct best {
    float value;
    int32_t index;
};

DQ_DEVICE void keep_better(best &a, float value, int32_t index)
{
    if (value > a.value || (value == a.value && index < a.index)) {
        a.value = value;
        a.index = index;
    }
}

/* The largest of x[n], in all threads; index INT32_MAX where all are NaN. */
template <int USE> DQ_DEVICE best block_best(const float *x, int n)
{
    DQ_SHARED(best, part, [WARPS]);
    best a = {-INFINITY, INT32_MAX};
    for (int i = (int)dq_thread(); i < n; i += THREADS) keep_better(a, x[i], i);
    for (unsigned o = DQ_WARP / 2; o; o /= 2) {
        const float value = dq_shfl_xor(a.value, o);
        keep_better(a, value, dq_shfl_xor(a.index, o));
    }
    if (dq_lane() == 0) part[dq_warp()] = a;
    DQ_SYNC(block_best_there);
    for (int w = 0; w < WARPS; w++) keep_better(a, part[w].value, part[w].index);
    return a;
}

/* What brings a sum relative to `from` down to `to`. */
DQ_DEVICE double fall(float from, float to)
{
    return from == to ? 1.0 : exp((double)from - (double)to);
}

DQ_KERNEL(THREADS)
logprob_piece(dq_logprob_row *state, const float *logits, int64_t ld, int64_t first, int n,
              const int32_t *target)
{
    const float *x = logits + (int64_t)dq_block_x() * ld;
    dq_logprob_row *at = &state[dq_block_x()];
    dq_logprob_row row = {0, -INFINITY, 0, INT32_MAX, 0};
    if (first > 0) row = *at;
    const best found = block_best<0>(x, n);
    const float max = found.value > row.max ? found.value : row.max;
    double sum[1] = {0};
    for (int i = (int)dq_thread(); i < n; i += THREADS)
        sum[0] = dq_add_rn(sum[0], exp((double)x[i] - (double)max));
    dq_reduce_block_sum<1, THREADS>(sum);
    if (dq_thread() != 0) return;
    row.sum = dq_add_rn(dq_mul_rn(row.sum, fall(row.max, max)), sum[0]);
    if (found.index < n && (found.value > row.max || row.top == INT32_MAX))
        row.top = (int32_t)first + found.index;
    row.max = max;
    const int64_t t = target ? target[dq_block_x()] - first : -1;
    if (t >= 0 && t < n) row.target = x[t];
    *at = row;
}

DQ_KERNEL(THREADS)
logprob_end(double *logp, int32_t *top1, const dq_logprob_row *state, const int32_t *target,
            int64_t rows)
{
    const int64_t i = (int64_t)dq_block_x() * THREADS + dq_thread();
    if (i >= rows) return;
    const dq_logprob_row row = state[i];
    const bool requested = target && target[i] >= 0;
    const double off = requested ? (double)row.target - (double)row.max : 0.0;
    if (logp) logp[i] = off - log(row.sum);
    if (top1) top1[i] = row.top == INT32_MAX ? 0 : row.top;
}

DQ_KERNEL(THREADS)
kld_piece(dq_logprob_kld_row *state, const float *p, const float *q, int64_t ld, int64_t first,
          int n)
{
    const float *x = p + (int64_t)dq_block_x() * ld, *y = q + (int64_t)dq_block_x() * ld;
    dq_logprob_kld_row *at = &state[dq_block_x()];
    dq_logprob_kld_row row = {0, 0, 0, -INFINITY, -INFINITY};
    if (first > 0) row = *at;
    const float found_p = block_best<1>(x, n).value, found_q = block_best<2>(y, n).value;
    const float max_p = found_p > row.max_p ? found_p : row.max_p;
    const float max_q = found_q > row.max_q ? found_q : row.max_q;
    double sum[3] = {0, 0, 0};
    for (int i = (int)dq_thread(); i < n; i += THREADS) {
        const double u = (double)x[i], v = (double)y[i], e = exp(u - (double)max_p);
        sum[0] = dq_add_rn(sum[0], e);
        sum[1] = dq_add_rn(sum[1], exp(v - (double)max_q));
        if (e > 0) sum[2] = dq_add_rn(sum[2], dq_mul_rn(e, u - v));
    }
    dq_reduce_block_sum<3, THREADS>(sum);
    if (dq_thread() != 0) return;
    const double f = fall(row.max_p, max_p);
    row.sum_p = dq_add_rn(dq_mul_rn(row.sum_p, f), sum[0]);
    row.sum_q = dq_add_rn(dq_mul_rn(row.sum_q, fall(row.max_q, max_q)), sum[1]);
    row.weighted = dq_add_rn(dq_mul_rn(row.weighted, f), sum[2]);
    row.max_p = max_p;
    row.max_q = max_q;
    *at = row;
}

/* log p - log q = (p - q) - (max_p - max_q) - (log sum_p - log sum_q), weighted by p. */
DQ_KERNEL(THREADS) kld_end(double *kld, const dq_logprob_kld_row *state, int64_t rows)
{
    const int64_t i = (int64_t)dq_block_x() * THREADS + dq_thread();
    if (i >= rows) return;
    const dq_logprob_kld_row row = state[i];
    const double tops = (double)row.max_p - (double)row.max_q;
    kld[i] = (row.weighted / row.sum_p - tops) + (log(row.sum_q) - log(row.sum_p));
}

/* -------------------------------------------------------------------------------------------- launches */
static unsigned blocks_of(int64_t rows)
{
    return (unsigned)((rows + THREADS - 1) / THREADS);
}

cudaError_t dq_logprob_piece(dq_logprob_row *state, const float *logits, int64_t ld, int64_t first,
                             int64_t n, const int32_t *target, int64_t rows, cudaStream_t s)
{
    if (rows == 0) return cudaSuccess;
    DQ_LAUNCH(logprob_piece, dim3((unsigned)rows), THREADS, 0, s, state, logits, ld, first, (int)n,
              target);
    return cudaGetLastError();
}

cudaError_t dq_logprob_end(double *logp, int32_t *top1, const dq_logprob_row *state,
                           const int32_t *target, int64_t rows, cudaStream_t s)
{
    if (rows == 0) return cudaSuccess;
    DQ_LAUNCH(logprob_end, dim3(blocks_of(rows)), THREADS, 0, s, logp, top1, state, target, rows);
    return cudaGetLastError();
}

cudaError_t dq_logprob_kld_piece(dq_logprob_kld_row *state, const float *p, const float *q,
                                 int64_t ld, int64_t first, int64_t n, int64_t rows, cudaStream_t s)
{
    if (rows == 0) return cudaSuccess;
    DQ_LAUNCH(kld_piece, dim3((unsigned)rows), THREADS, 0, s, state, p, q, ld, first, (int)n);
    return cudaGetLastError();
}

cudaError_t dq_logprob_kld_end(double *kld, const dq_logprob_kld_row *state, int64_t rows,
                               cudaStream_t s)
{
    if (rows == 0) return cudaSuccess;
    DQ_LAUNCH(kld_end, dim3(blocks_of(rows)), THREADS, 0, s, kld, state, rows);
    return cudaGetLastError();
}
