/* cpu_blocked_matmul: products with blocked weights. See cpu_blocked.h.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/cpu_blocked.h"

#include <omp.h>
#include <string.h>

enum { ROWS = DQ_BLOCKED_ROWS, COLS = DQ_BLOCKED_COLS };

/* Rows in tiles of at most `most`, nearly equal ones. Tile i begins at the row tile_at(..., i). */
static int64_t n_tiles(int64_t rows, int most)
{
    return (rows + most - 1) / most;
}

static int64_t tile_at(int64_t rows, int most, int64_t i)
{
    return rows * i / n_tiles(rows, most);
}

/* dst[m][n] from y[m][ld], plus bias. */
static void put(dq_mat dst, int64_t row, int64_t col, const float *y, int64_t ld, int m,
                const float *bias, const dq_simd *simd)
{
    const int64_t left = dst.cols - col, n = left < ld ? left : ld;
    for (int i = 0; i < m; i++) {
        float *to = dst.p + (row + i) * dst.cols + col;
        memcpy(to, y + i * ld, (size_t)n * sizeof *to);
        if (bias) simd->add(to, bias + col, n);
    }
}

/* All activations of a call: tiles of rows one after another. */
typedef struct activations {
    int8_t *code;
    float *scale;
    int32_t *sum;
    int64_t padded, groups; /* of a row */
} activations;

static dq_simd_blocked_rows rows_at(const activations *a, int64_t first)
{
    return (dq_simd_blocked_rows){a->code + first * a->padded, a->scale + first * a->groups,
                                  a->sum + first * a->groups};
}

/* Rounds rows first .. first + m into their tile; line[padded]. */
static void round_tile(const dq_simd *simd, const activations *a, int8_t *line, dq_mat src,
                       int64_t group_size, int64_t first, int m)
{
    int8_t *code = a->code + first * a->padded;
    for (int i = 0; i < m; i++) {
        const float *x = src.p + (first + i) * src.cols;
        for (int64_t g = 0; g < a->groups; g++) {
            const int64_t k = g * group_size, left = src.cols - k;
            const int64_t at = first * a->groups + g * m + i;
            a->sum[at] = dq_cpu_round8(simd, line + k, &a->scale[at], x + k,
                                       left < group_size ? left : group_size);
        }
        memset(line + src.cols, 0, (size_t)(a->padded - src.cols));
        for (int64_t k = 0; k < a->padded; k += 4) memcpy(code + k * m + 4 * i, line + k, 4);
    }
}

static void run_int8(dq_backend *b, dq_mat dst, const activations *a,
                     const dq_simd_blocked_weight *w, const float *bias)
{
    const dq_cpu *cpu = dq_cpu_of(b);
    const int most = cpu->blocks->int8_rows;
    const int64_t n_blocks = (w->rows + ROWS - 1) / ROWS;
#pragma omp parallel for num_threads(b->threads) schedule(dynamic)
    for (int64_t i = 0; i < n_blocks; i++) {
        for (int64_t t = 0; t < n_tiles(dst.rows, most); t++) {
            const int64_t first = tile_at(dst.rows, most, t);
            const int m = (int)(tile_at(dst.rows, most, t + 1) - first);
            const dq_simd_blocked_rows rows = rows_at(a, first);
            float y[DQ_BLOCKED_INT8_MAX * ROWS];
            cpu->blocks->int8(y, w, i, &rows, m);
            put(dst, first, i * ROWS, y, ROWS, m, bias, cpu->simd);
        }
    }
}

void dq_cpu_blocked_int8(dq_backend *b, dq_mat dst, dq_mat src, const dq_simd_blocked_weight *w,
                         int64_t group_size, const float *bias)
{
    const dq_cpu *cpu = dq_cpu_of(b);
    const int most = cpu->blocks->int8_rows;
    activations a = {.padded = w->chunks * COLS, .groups = w->groups};
    const size_t codes = (size_t)(src.rows * a.padded + 63) / 64 * 64;
    const size_t words = (size_t)(src.rows * a.groups);
    uint8_t *shared = dq_cpu_shared(b, codes + words * (sizeof(float) + sizeof(int32_t)));
    if (!shared || !dq_cpu_reserve(b, (size_t)a.padded)) return;
    a.code = (int8_t *)shared;
    a.scale = (float *)(void *)(shared + codes);
    a.sum = (int32_t *)(void *)(a.scale + words);
#pragma omp parallel for num_threads(b->threads) schedule(static) if (src.rows > most)
    for (int64_t t = 0; t < n_tiles(src.rows, most); t++) {
        const int64_t first = tile_at(src.rows, most, t), end = tile_at(src.rows, most, t + 1);
        round_tile(cpu->simd, &a, cpu->block[omp_get_thread_num()], src, group_size, first,
                   (int)(end - first));
    }
    run_int8(b, dst, &a, w, bias);
}

/* Tiles of src as [column][rows of the tile]. */
static void turn(float *to, dq_mat src, int most)
{
    for (int64_t t = 0; t < n_tiles(src.rows, most); t++) {
        const int64_t first = tile_at(src.rows, most, t);
        const int m = (int)(tile_at(src.rows, most, t + 1) - first);
        for (int i = 0; i < m; i++)
            for (int64_t k = 0; k < src.cols; k++)
                to[first * src.cols + k * m + i] = src.p[(first + i) * src.cols + k];
    }
}

void dq_cpu_blocked_f32(dq_backend *b, dq_mat dst, dq_mat src, const dq_simd_blocked_weight *w,
                        const float *bias)
{
    const dq_cpu *cpu = dq_cpu_of(b);
    const int64_t n_blocks = (w->rows + ROWS - 1) / ROWS;
    const int most = cpu->blocks->f32_rows;
    const float *x = src.p;
    if (src.rows > 1) {
        if (!dq_cpu_reserve(b, (size_t)(src.rows * src.cols) * sizeof *x)) return;
        x = cpu->block[0]; /* all threads read it */
        turn(cpu->block[0], src, most);
    }
#pragma omp parallel for num_threads(b->threads) schedule(dynamic)
    for (int64_t i = 0; i < n_blocks; i += 2) {
        for (int64_t t = 0; t < n_tiles(src.rows, most); t++) {
            const int64_t first = tile_at(src.rows, most, t);
            const int m = (int)(tile_at(src.rows, most, t + 1) - first);
            float y[DQ_BLOCKED_F32_MAX * 2 * ROWS];
            cpu->blocks->f32(y, w, i, i + 1 < n_blocks ? 2 : 1, x + first * src.cols, m);
            put(dst, first, i * ROWS, y, 2 * ROWS, m, bias, cpu->simd);
        }
    }
}
