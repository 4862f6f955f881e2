/* cpu_rows: operations on rows of activations.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Fewer values than this are not worth waking the other threads for. */
enum { SMALL = 1 << 14 };

static int team(const dq_backend *b, int64_t rows, int64_t cols)
{
    return rows * cols < SMALL ? 1 : b->threads;
}

void dq_cpu_embed(dq_backend *b, dq_mat dst, const dq_weight *table, const int32_t *ids)
{
    if (b->err.code != DQ_OK) return;
    const dq_simd *simd = dq_cpu_of(b)->simd;
#pragma omp parallel for num_threads(team(b, dst.rows, dst.cols)) schedule(static)
    for (int64_t i = 0; i < dst.rows; i++)
        dq_cpu_weight_row(simd, dst.p + i * dst.cols, table, ids[i], 0, dst.cols);
}

void dq_cpu_first_bad_row(dq_backend *b, int64_t *row, dq_mat x)
{
    if (b->err.code != DQ_OK) return;
    const dq_simd *simd = dq_cpu_of(b)->simd;
    *row = -1;
    for (int64_t i = 0; i < x.rows && *row < 0; i++) {
        if (!isfinite(simd->absmax(x.p + i * x.cols, x.cols))) *row = i;
    }
}

void dq_cpu_rms_norm(dq_backend *b, dq_mat dst, dq_mat src, const float *gain, float eps)
{
    if (b->err.code != DQ_OK) return;
    const dq_simd *simd = dq_cpu_of(b)->simd;
    const int64_t n = src.cols;
#pragma omp parallel for num_threads(team(b, src.rows, n)) schedule(static)
    for (int64_t i = 0; i < src.rows; i++) {
        const float *x = src.p + i * n;
        const double mean = simd->sum_squares(x, n) / (double)n;
        simd->scale_gain(dst.p + i * n, x, n, (float)(1.0 / sqrt(mean + (double)eps)), gain);
    }
}

void dq_cpu_rope_table(dq_backend *b, dq_mat table, const int32_t *pos, const dq_rope *rope)
{
    if (b->err.code != DQ_OK) return;
    const int64_t half = rope->dim / 2;
#pragma omp parallel for num_threads(team(b, table.rows, 16 * half)) schedule(static)
    for (int64_t i = 0; i < table.rows; i++) {
        float *c = table.p + i * table.cols, *s = c + half;
        for (int64_t j = 0; j < half; j++) {
            const float angle = (float)pos[i] * rope->inv_freq[j];
            c[j] = (float)cos((double)angle) * rope->amplitude;
            s[j] = (float)sin((double)angle) * rope->amplitude;
        }
    }
}

static void rotate_adjacent(float *x, const float *cos, const float *sin, int64_t half)
{
    for (int64_t i = 0; i < half; i++) {
        const float lo = x[2 * i], hi = x[2 * i + 1];
        x[2 * i] = lo * cos[i] - hi * sin[i];
        x[2 * i + 1] = hi * cos[i] + lo * sin[i];
    }
}

void dq_cpu_rope(dq_backend *b, dq_mat x, dq_mat table, dq_rope_order order)
{
    if (b->err.code != DQ_OK) return;
    const dq_simd *simd = dq_cpu_of(b)->simd;
    const int64_t dim = table.cols, half = dim / 2;
#pragma omp parallel for num_threads(team(b, x.rows, x.cols)) schedule(static)
    for (int64_t i = 0; i < x.rows; i++) {
        const float *c = table.p + i * dim, *s = c + half;
        for (int64_t h = 0; h + dim <= x.cols; h += dim) {
            float *at = x.p + i * x.cols + h;
            if (order == DQ_ROPE_HALVES)
                simd->rotate(at, at + half, c, s, half);
            else
                rotate_adjacent(at, c, s, half);
        }
    }
}

/* Sums in double: x^6 of an outlier leaves no room for the others in f32. */
static void polynorm_mul(float *x, const float *up, int64_t n, const float *w)
{
    const double eps = 1e-6; /* not in any configuration. Source: vLLM layernorm.py, PolyNorm */
    double sum[3] = {0, 0, 0};
    for (int64_t i = 0; i < n; i++) {
        const double square = (double)x[i] * (double)x[i];
        sum[0] += square * square * square;
        sum[1] += square * square;
        sum[2] += square;
    }
    for (int k = 0; k < 3; k++) sum[k] = (double)w[k] / sqrt(sum[k] / (double)n + eps);
    for (int64_t i = 0; i < n; i++) {
        const double v = (double)x[i];
        const double y = ((sum[0] * v + sum[1]) * v + sum[2]) * v + (double)w[3];
        x[i] = (float)y * up[i];
    }
}

void dq_cpu_ffn_act(dq_backend *b, dq_mat gate, dq_mat up, dq_act act, const float *param)
{
    if (b->err.code != DQ_OK) return;
    const dq_simd *simd = dq_cpu_of(b)->simd;
#pragma omp parallel for num_threads(team(b, gate.rows, gate.cols)) schedule(static)
    for (int64_t i = 0; i < gate.rows; i++) {
        float *x = gate.p + i * gate.cols;
        const float *y = up.p + i * up.cols;
        if (act == DQ_ACT_POLYNORM)
            polynorm_mul(x, y, gate.cols, param);
        else
            simd->silu_mul(x, y, gate.cols);
    }
}

void dq_cpu_sigmoid(dq_backend *b, dq_mat x)
{
    if (b->err.code != DQ_OK) return;
    for (int64_t i = 0; i < x.rows * x.cols; i++)
        x.p[i] = (float)(1.0 / (1.0 + exp(-(double)x.p[i])));
}

void dq_cpu_hadamard_run(float *x, int dim)
{
    for (int step = 1; step < dim; step *= 2) {
        for (int i = 0; i < dim; i += 2 * step) {
            for (int j = i; j < i + step; j++) {
                const float lo = x[j], hi = x[j + step];
                x[j] = lo + hi;
                x[j + step] = lo - hi;
            }
        }
    }
    const float norm = (float)(1.0 / sqrt((double)dim));
    for (int i = 0; i < dim; i++) x[i] *= norm;
}

void dq_cpu_hadamard(dq_backend *b, dq_mat x, int dim)
{
    if (b->err.code != DQ_OK) return;
#pragma omp parallel for num_threads(team(b, x.rows, 4 * x.cols)) schedule(static)
    for (int64_t i = 0; i < x.rows; i++) {
        for (int64_t c = 0; c + dim <= x.cols; c += dim)
            dq_cpu_hadamard_run(x.p + i * x.cols + c, dim);
    }
}

void dq_cpu_add(dq_backend *b, dq_mat dst, dq_mat src)
{
    if (b->err.code != DQ_OK) return;
    const dq_simd *simd = dq_cpu_of(b)->simd;
#pragma omp parallel for num_threads(team(b, dst.rows, dst.cols)) schedule(static)
    for (int64_t i = 0; i < dst.rows; i++)
        simd->add(dst.p + i * dst.cols, src.p + i * src.cols, dst.cols);
}

void dq_cpu_gather(dq_backend *b, dq_mat dst, dq_mat src, const int64_t *index)
{
    if (b->err.code != DQ_OK) return;
    for (int64_t i = 0; i < dst.rows; i++)
        memcpy(dst.p + i * dst.cols, src.p + index[i] * src.cols, (size_t)dst.cols * sizeof *dst.p);
}
