/* linear: weights widened for products of floats, and activations rounded to 8 bits.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/launch.h"

#include "kernels/cuda/device/stored.cuh"

enum { THREADS = 256 };

static unsigned blocks_for(int64_t n)
{
    const int64_t max = 1 << 16, blocks = (n + THREADS - 1) / THREADS;
    return (unsigned)(blocks < max ? blocks : max);
}

/* ------------------------------------------------------------------------------------ widen, round */
template <bool BF16> DQ_KERNEL(THREADS) widen(void *dst, dq_cuda_weight w, int64_t n0)
{
    const int64_t row = dq_block_x();
    const int cols = (int)w.cols;
    for (int c = (int)dq_thread(); c < cols; c += THREADS) {
        const float v = dq_stored_value(w, n0 + row, c);
        if (BF16)
            ((uint16_t *)dst)[row * cols + c] = dq_f32_bf16(v);
        else
            ((float *)dst)[row * cols + c] = v;
    }
}

DQ_KERNEL(THREADS) to_bf16(uint16_t *dst, const float *src, int64_t n)
{
    const int64_t step = (int64_t)dq_grid_x() * THREADS;
    for (int64_t i = (int64_t)dq_block_x() * THREADS + dq_thread(); i < n; i += step)
        dst[i] = dq_f32_bf16(src[i]);
}

DQ_KERNEL(THREADS) add_bias(float *x, const float *bias, int64_t n, int64_t cols)
{
    const int64_t step = (int64_t)dq_grid_x() * THREADS;
    for (int64_t i = (int64_t)dq_block_x() * THREADS + dq_thread(); i < n; i += step)
        x[i] = dq_add_rn(x[i], bias[i % cols]);
}

/* ------------------------------------------------------------------------------- codes of activations */
/* The largest v of a team: a warp, or (WIDE) the block. */
template <bool WIDE> DQ_DEVICE uint32_t team_max(uint32_t v)
{
    DQ_SHARED(uint32_t, part, [THREADS / DQ_WARP]);
    for (unsigned o = DQ_WARP / 2; o; o /= 2) {
        const uint32_t other = dq_shfl_xor(v, o);
        v = other > v ? other : v;
    }
    if (!WIDE) return v;
    if (dq_lane() == 0) part[dq_warp()] = v;
    DQ_SYNC(team_max_there);
    for (int i = 0; i < THREADS / DQ_WARP; i++) v = part[i] > v ? part[i] : v;
    return v;
}

/* The sum of v over a team, on its first thread. */
template <bool WIDE> DQ_DEVICE int32_t team_sum(int32_t v)
{
    DQ_SHARED(int32_t, part, [THREADS / DQ_WARP]);
    for (unsigned o = DQ_WARP / 2; o; o /= 2) v += dq_shfl_xor(v, o);
    if (!WIDE) return v;
    if (dq_lane() == 0) part[dq_warp()] = v;
    DQ_SYNC(team_sum_there);
    v = 0;
    for (int i = 0; i < THREADS / DQ_WARP; i++) v += part[i];
    return v;
}

struct rounding {
    int8_t *code;
    float *scale;
    int32_t *sum; /* NULL: not wanted */
    const float *x;
    int64_t rows, code_pitch, scale_pitch;
    int cols, group, group_codes, groups;
};

/* One team per row and group. The bits of |x| order as |x| does, with NaN above infinity. */
template <bool WIDE> DQ_KERNEL(THREADS) round_rows(rounding p)
{
    const int team = WIDE ? THREADS : DQ_WARP;
    const int64_t which =
        WIDE ? (int64_t)dq_block_x() : (int64_t)dq_block_x() * (THREADS / DQ_WARP) + dq_warp();
    const int me = WIDE ? (int)dq_thread() : (int)dq_lane();
    if (which >= p.rows * p.groups) return;
    const int64_t row = which / p.groups;
    const int g = (int)(which % p.groups), first = g * p.group;
    const int n = p.cols - first < p.group ? p.cols - first : p.group;
    const float *x = p.x + row * p.cols + first;

    uint32_t max = 0;
    for (int i = me; i < n; i += team) {
        const uint32_t a = dq_f32_bits(x[i]) & 0x7fffffffu;
        max = a > max ? a : max;
    }
    max = team_max<WIDE>(max);
    const bool finite = max < 0x7f800000u;
    const float scale = dq_div_rn(dq_bits_f32(max), 127.0f);
    const bool any = finite && scale > 0;
    if (me == 0) /* NaN shows in every result of the row */
        p.scale[g * p.scale_pitch + row] = finite ? scale : dq_bits_f32(0x7fc00000u);

    const int64_t end =
        g + 1 < p.groups ? p.group_codes : p.code_pitch - (int64_t)g * p.group_codes;
    int8_t *code = p.code + row * p.code_pitch + (int64_t)g * p.group_codes;
    int32_t sum = 0;
    for (int i = 4 * me; i < end; i += 4 * team) {
        uint32_t word = 0;
        DQ_UNROLL
        for (int k = 0; k < 4; k++)
            if (any && i + k < n) {
                const int32_t c = dq_f32_s8(dq_div_rn(x[i + k], scale));
                word |= ((uint32_t)c & 255u) << (8 * k);
                sum += c;
            }
        *(uint32_t *)(code + i) = word;
    }
    if (!p.sum) return;
    sum = team_sum<WIDE>(sum);
    if (me == 0) p.sum[g * p.scale_pitch + row] = sum;
}

/* -------------------------------------------------------------------------------------------- launches */
cudaError_t dq_linear_widen(void *dst, bool bf16, const dq_cuda_weight *w, int64_t n0, int64_t n,
                            cudaStream_t s)
{
    if (n == 0) return cudaSuccess;
    if (bf16)
        DQ_LAUNCH(widen<true>, dim3((unsigned)n), THREADS, 0, s, dst, *w, n0);
    else
        DQ_LAUNCH(widen<false>, dim3((unsigned)n), THREADS, 0, s, dst, *w, n0);
    return cudaGetLastError();
}

cudaError_t dq_linear_bf16(uint16_t *dst, const float *src, int64_t n, cudaStream_t s)
{
    if (n == 0) return cudaSuccess;
    DQ_LAUNCH(to_bf16, dim3(blocks_for(n)), THREADS, 0, s, dst, src, n);
    return cudaGetLastError();
}

cudaError_t dq_linear_bias(float *x, const float *bias, int64_t rows, int64_t cols, cudaStream_t s)
{
    const int64_t n = rows * cols;
    if (n == 0) return cudaSuccess;
    DQ_LAUNCH(add_bias, dim3(blocks_for(n)), THREADS, 0, s, x, bias, n, cols);
    return cudaGetLastError();
}

int64_t dq_linear_scale_pitch(int64_t rows)
{
    return (rows + 3) / 4 * 4;
}

cudaError_t dq_linear_round(int8_t *code, float *scale, int32_t *sum, const float *x, int64_t rows,
                            const dq_cuda_weight *w, cudaStream_t s)
{
    const int64_t teams = rows * w->groups;
    rounding p = {};
    p.code = code;
    p.scale = scale;
    p.sum = sum;
    p.x = x;
    p.rows = rows;
    p.code_pitch = dq_linear_code_pitch(w);
    p.scale_pitch = dq_linear_scale_pitch(rows);
    p.cols = (int)w->cols;
    p.group = (int)w->group;
    p.group_codes = (int)w->group_codes;
    p.groups = (int)w->groups;
    if (teams == 0) return cudaSuccess;
    if (w->group > 512)
        DQ_LAUNCH(round_rows<true>, dim3((unsigned)teams), THREADS, 0, s, p);
    else
        DQ_LAUNCH(round_rows<false>, dim3((unsigned)((teams * DQ_WARP + THREADS - 1) / THREADS)),
                  THREADS, 0, s, p);
    return cudaGetLastError();
}
