/* rows: rows of activations and of logits; a row that has a sum of its own takes one block.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/stored.cuh"

#include <math.h>

enum { THREADS = 256 };

static unsigned blocks_for(int64_t n)
{
    const int64_t max = 1 << 16, blocks = (n + THREADS - 1) / THREADS;
    return (unsigned)(blocks < max ? blocks : max);
}

/* The first of n values of the whole grid that this thread handles, and the step to its next. */
DQ_DEVICE int64_t first_of(void)
{
    return (int64_t)dq_block_x() * THREADS + dq_thread();
}
DQ_DEVICE int64_t step_of(void)
{
    return (int64_t)dq_grid_x() * THREADS;
}

/* ---- copies */
DQ_KERNEL(THREADS) embed(float *dst, dq_cuda_weight table, const int32_t *ids, float scale)
{
    const int64_t row = dq_block_x(), id = ids[row];
    const int cols = (int)table.cols;
    for (int c = (int)dq_thread(); c < cols; c += THREADS)
        dst[row * cols + c] = dq_mul_rn(dq_stored_value(table, id, c), scale);
}

DQ_KERNEL(THREADS) gather(float *dst, const float *src, const int64_t *index, int64_t cols)
{
    const int64_t row = dq_block_x();
    const float *from = src + index[row] * cols;
    for (int64_t c = dq_thread(); c < cols; c += THREADS) dst[row * cols + c] = from[c];
}

/* ---- norms */
DQ_KERNEL(THREADS)
rms_norm(float *dst, const float *src, const float *gain, float eps, int64_t cols)
{
    const float *x = src + (int64_t)dq_block_x() * cols;
    float *y = dst + (int64_t)dq_block_x() * cols;
    double sum[1] = {0};
    for (int64_t c = dq_thread(); c < cols; c += THREADS) {
        const double v = (double)x[c];
        sum[0] = dq_add_rn(sum[0], dq_mul_rn(v, v));
    }
    dq_reduce_block_sum<1, THREADS>(sum);
    const float a = (float)(1.0 / sqrt(sum[0] / (double)cols + (double)eps));
    for (int64_t c = dq_thread(); c < cols; c += THREADS) {
        const float v = dq_mul_rn(x[c], a);
        y[c] = gain ? dq_mul_rn(v, gain[c]) : v;
    }
}

struct poly {
    float w[4];
};

DQ_KERNEL(THREADS) polynorm(float *gate, const float *up, poly p, int64_t cols)
{
    const double eps = 1e-6; /* as on the CPU */
    float *x = gate + (int64_t)dq_block_x() * cols;
    const float *u = up + (int64_t)dq_block_x() * cols;
    double a[3] = {0, 0, 0};
    for (int64_t c = dq_thread(); c < cols; c += THREADS) {
        const double square = dq_mul_rn((double)x[c], (double)x[c]),
                     fourth = dq_mul_rn(square, square);
        a[0] = dq_add_rn(a[0], dq_mul_rn(fourth, square));
        a[1] = dq_add_rn(a[1], fourth);
        a[2] = dq_add_rn(a[2], square);
    }
    dq_reduce_block_sum<3, THREADS>(a);
    DQ_UNROLL
    for (int k = 0; k < 3; k++) a[k] = (double)p.w[k] / sqrt(a[k] / (double)cols + eps);
    for (int64_t c = dq_thread(); c < cols; c += THREADS) {
        const double v = (double)x[c];
        double y = dq_add_rn(dq_mul_rn(a[0], v), a[1]);
        y = dq_add_rn(dq_mul_rn(y, v), a[2]);
        y = dq_add_rn(dq_mul_rn(y, v), (double)p.w[3]);
        x[c] = dq_mul_rn((float)y, u[c]);
    }
}

/* ---- rotations */
DQ_KERNEL(THREADS)
rope_table(float *table, const int32_t *pos, const float *inv_freq, float amplitude, int64_t n,
           int64_t half)
{
    for (int64_t i = first_of(); i < n; i += step_of()) {
        const int64_t row = i / half, j = i % half;
        const double angle = (double)dq_mul_rn(dq_s32_f32(pos[row]), inv_freq[j]);
        float *c = table + row * 2 * half + j;
        c[0] = dq_mul_rn((float)cos(angle), amplitude);
        c[half] = dq_mul_rn((float)sin(angle), amplitude);
    }
}

DQ_KERNEL(THREADS)
rope(float *x, const float *table, bool adjacent, int64_t n, int64_t pairs_per_row, int64_t half)
{
    for (int64_t i = first_of(); i < n; i += step_of()) {
        const int64_t row = i / pairs_per_row, pair = i % pairs_per_row, run = pair / half,
                      j = pair % half;
        const float *t = table + row * 2 * half + j;
        const float c = t[0], s = t[half];
        float *at = x + 2 * (row * pairs_per_row + run * half) + (adjacent ? 2 * j : j);
        float *to = at + (adjacent ? 1 : half);
        const float lo = *at, hi = *to;
        *at = dq_sub_rn(dq_mul_rn(lo, c), dq_mul_rn(hi, s));
        *to = dq_add_rn(dq_mul_rn(hi, c), dq_mul_rn(lo, s));
    }
}

/* Runs of a block side by side in shared memory. */
DQ_KERNEL(THREADS) hadamard(float *x, int64_t n, int dim, int per_block, float norm)
{
    DQ_SHARED_DYNAMIC(smem);
    float *v = (float *)smem;
    const int64_t first = (int64_t)dq_block_x() * per_block;
    const int count = n - first < per_block ? (int)(n - first) : per_block;
    for (int i = (int)dq_thread(); i < count; i += THREADS) v[i] = x[first + i];
    for (int step = 1; step < dim; step *= 2) {
        DQ_SYNC(hadamard_step); /* the values are there, with all of the step before */
        for (int i = (int)dq_thread(); i < count / 2; i += THREADS) {
            const int at = i / step * 2 * step + i % step;
            const float lo = v[at], hi = v[at + step];
            v[at] = dq_add_rn(lo, hi);
            v[at + step] = dq_sub_rn(lo, hi);
        }
    }
    DQ_SYNC(hadamard_done);
    for (int i = (int)dq_thread(); i < count; i += THREADS) x[first + i] = dq_mul_rn(v[i], norm);
}

/* ---- elementwise */
DQ_KERNEL(THREADS) silu(float *gate, const float *up, int64_t n)
{
    for (int64_t i = first_of(); i < n; i += step_of()) {
        const float g = gate[i];
        gate[i] = dq_mul_rn(dq_div_rn(g, dq_add_rn(1.0f, dq_exp_as_cpu(-g))), up[i]);
    }
}

DQ_KERNEL(THREADS) gelu(float *gate, const float *up, int64_t n)
{
    const float a = 1.59576912f, b = 0.0713548163f; /* as on the CPU */
    for (int64_t i = first_of(); i < n; i += step_of()) {
        const float g = gate[i], t = dq_mul_rn(g, dq_add_rn(a, dq_mul_rn(b, dq_mul_rn(g, g))));
        gate[i] = dq_mul_rn(dq_div_rn(g, dq_add_rn(1.0f, dq_exp_as_cpu(-t))), up[i]);
    }
}

DQ_KERNEL(THREADS) sigmoid(float *x, int64_t n)
{
    for (int64_t i = first_of(); i < n; i += step_of())
        x[i] = (float)(1.0 / (1.0 + exp(-(double)x[i])));
}

DQ_KERNEL(THREADS) add(float *dst, const float *src, int64_t n)
{
    for (int64_t i = first_of(); i < n; i += step_of()) dst[i] = dq_add_rn(dst[i], src[i]);
}

/* One warp per row. */
DQ_KERNEL(THREADS) first_bad(uint32_t *found, const float *x, int64_t rows, int64_t cols)
{
    const int64_t row = (int64_t)dq_block_x() * (THREADS / DQ_WARP) + dq_warp();
    if (row >= rows) return;
    bool bad = false;
    for (int64_t c = dq_lane(); c < cols; c += DQ_WARP)
        bad = bad || (dq_f32_bits(x[row * cols + c]) & 0x7f800000u) == 0x7f800000u;
    if (dq_any(bad) && dq_lane() == 0) dq_atomic_max(found, 0xffffffffu - (uint32_t)row);
}

/* ---- launches */
cudaError_t dq_rows_embed(float *dst, const dq_cuda_weight *table, const int32_t *ids, float scale,
                          int64_t rows, cudaStream_t s)
{
    if (rows == 0) return cudaSuccess;
    DQ_LAUNCH(embed, dim3((unsigned)rows), THREADS, 0, s, dst, *table, ids, scale);
    return cudaGetLastError();
}

cudaError_t dq_rows_gather(float *dst, const float *src, const int64_t *index, int64_t rows,
                           int64_t cols, cudaStream_t s)
{
    if (rows == 0) return cudaSuccess;
    DQ_LAUNCH(gather, dim3((unsigned)rows), THREADS, 0, s, dst, src, index, cols);
    return cudaGetLastError();
}

cudaError_t dq_rows_rms_norm(float *dst, const float *src, const float *gain, float eps,
                             int64_t rows, int64_t cols, cudaStream_t s)
{
    if (rows == 0) return cudaSuccess;
    DQ_LAUNCH(rms_norm, dim3((unsigned)rows), THREADS, 0, s, dst, src, gain, eps, cols);
    return cudaGetLastError();
}

cudaError_t dq_rows_rope_table(float *table, const int32_t *pos, const float *inv_freq,
                               float amplitude, int64_t rows, int64_t half, cudaStream_t s)
{
    const int64_t n = rows * half;
    if (n == 0) return cudaSuccess;
    DQ_LAUNCH(rope_table, dim3(blocks_for(n)), THREADS, 0, s, table, pos, inv_freq, amplitude, n,
              half);
    return cudaGetLastError();
}

cudaError_t dq_rows_rope(float *x, const float *table, bool adjacent, int64_t rows, int64_t cols,
                         int64_t dim, cudaStream_t s)
{
    const int64_t n = rows * cols / 2;
    if (n == 0) return cudaSuccess;
    DQ_LAUNCH(rope, dim3(blocks_for(n)), THREADS, 0, s, x, table, adjacent, n, cols / 2, dim / 2);
    return cudaGetLastError();
}

cudaError_t dq_rows_hadamard(float *x, int64_t n_runs, int dim, float norm, cudaStream_t s)
{
    const int per_block = dim > 2 * THREADS ? dim : 2 * THREADS;
    const int64_t n = n_runs * dim, blocks = (n + per_block - 1) / per_block;
    if (n == 0) return cudaSuccess;
    if (dim > 8192) return cudaErrorInvalidValue;
    DQ_LAUNCH(hadamard, dim3((unsigned)blocks), THREADS, sizeof(float) * (size_t)per_block, s, x, n,
              dim, per_block, norm);
    return cudaGetLastError();
}

cudaError_t dq_rows_silu(float *gate, const float *up, int64_t n, cudaStream_t s)
{
    if (n == 0) return cudaSuccess;
    DQ_LAUNCH(silu, dim3(blocks_for(n)), THREADS, 0, s, gate, up, n);
    return cudaGetLastError();
}

cudaError_t dq_rows_gelu(float *gate, const float *up, int64_t n, cudaStream_t s)
{
    if (n == 0) return cudaSuccess;
    DQ_LAUNCH(gelu, dim3(blocks_for(n)), THREADS, 0, s, gate, up, n);
    return cudaGetLastError();
}

cudaError_t dq_rows_polynorm(float *gate, const float *up, const float param[4], int64_t rows,
                             int64_t cols, cudaStream_t s)
{
    const poly p = {{param[0], param[1], param[2], param[3]}};
    if (rows == 0) return cudaSuccess;
    DQ_LAUNCH(polynorm, dim3((unsigned)rows), THREADS, 0, s, gate, up, p, cols);
    return cudaGetLastError();
}

cudaError_t dq_rows_sigmoid(float *x, int64_t n, cudaStream_t s)
{
    if (n == 0) return cudaSuccess;
    DQ_LAUNCH(sigmoid, dim3(blocks_for(n)), THREADS, 0, s, x, n);
    return cudaGetLastError();
}

cudaError_t dq_rows_add(float *dst, const float *src, int64_t n, cudaStream_t s)
{
    if (n == 0) return cudaSuccess;
    DQ_LAUNCH(add, dim3(blocks_for(n)), THREADS, 0, s, dst, src, n);
    return cudaGetLastError();
}

cudaError_t dq_rows_first_bad(uint32_t *found, const float *x, int64_t rows, int64_t cols,
                              cudaStream_t s)
{
    const int64_t blocks = (rows + THREADS / DQ_WARP - 1) / (THREADS / DQ_WARP);
    if (rows == 0) return cudaSuccess;
    DQ_LAUNCH(first_bad, dim3((unsigned)blocks), THREADS, 0, s, found, x, rows, cols);
    return cudaGetLastError();
}

/* ---- log-probabilities */
/* A block takes a row of a piece: its maximum, then sums relative to it, those before rescaled. */

enum { WARPS = THREADS / DQ_WARP };

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

/* ---- launches */
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
