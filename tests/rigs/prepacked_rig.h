/* prepacked_rig: packed weights of any codes whose codes lie in the mapping of a file, and products with them. For tests.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PREPACKED_RIG_H
#define DQ_PREPACKED_RIG_H

#include "tests/rigs/isas.h"

#include "kernels/cpu/linear/cpu_linear.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

static inline uint8_t *random_bytes(size_t n, uint64_t seed)
{
    dq_err err = {0};
    uint8_t *p = dq_block_new(n, 1, &err);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)next_bits(&seed);
    return p;
}

/* Codes of weights stand in files. */
static dq_os_map maps[8];

static inline const uint8_t *in_file(uint8_t *bytes, size_t n)
{
    char path[128];
    const char *tmp = getenv("TMPDIR");
    size_t i = 0;
    dq_err err = {0};
    while (maps[i].data) i++;
    snprintf(path, sizeof path, "%.80s/dq-prepacked-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    FILE *f = fdopen(mkstemp(path), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(dq_os_map_open(&maps[i], path, &err), DQ_OK);
    remove(path);
    dq_block_free(bytes);
    return maps[i].data;
}

static inline void drop_file(const void *p)
{
    size_t i = 0;
    while (maps[i].data != p) i++;
    dq_os_map_close(&maps[i]);
}

static inline void drop(const void *p)
{
    union { /* a weight's pointers are to const */
        const void *in;
        void *out;
    } u = {.in = p};
    dq_block_free(u.out);
}

typedef struct shape {
    int64_t rows, cols, group;
    bool one_scale;
} shape;

/* Any codes, padding and zero points; scales of both signs. */
static inline dq_weight new_weight(shape s, int bits, bool zeros, dq_dtype scales)
{
    dq_weight w = {.name = "w",
                   .rows = s.rows,
                   .cols = s.cols,
                   .format = zeros ? &dq_format_int_zero : &dq_format_int,
                   .bits = bits,
                   .group_size = s.group,
                   .scale_rows = s.one_scale ? 1 : s.rows,
                   .scale_dtype = scales};
    const int64_t groups = dq_quant_groups(s.cols, s.group), n = w.scale_rows * groups;
    const size_t bytes = (size_t)s.rows * dq_quant_row_bytes(s.cols, bits);
    w.data = in_file(random_bytes(bytes, (uint64_t)(17 * s.cols + bits)), bytes);
    float *f = random_floats(n, 3);
    w.scale = f;
    if (scales == DQ_F16) {
        uint8_t *half = random_bytes((size_t)n * 2, 9);
        for (int64_t i = 0; i < n; i++) half[2 * i + 1] = (half[2 * i + 1] & 0x87) | 0x20;
        w.scale = half;
        dq_block_free(f);
    }
    if (zeros) w.zero = random_bytes((size_t)w.scale_rows * dq_weight_zero_bytes(groups, bits), 5);
    return w;
}

static inline void drop_weight(const dq_weight *w)
{
    drop_file(w->data);
    drop(w->scale);
    drop(w->zero);
}

static inline void multiply(dq_backend *b, float *y, const float *x, int64_t m, const dq_weight *w,
                            const float *bias, dq_num num)
{
    union { /* src is not written */
        const float *in;
        float *out;
    } u = {.in = x};
    const dq_mat src = {u.out, m, w->cols}, dst = {y, m, w->rows};
    memset(y, 0x5a, (size_t)(m * w->rows) * sizeof *y);
    b->ops->matmul(b, dst, src, w, bias, num);
    expect_sync(b);
}

/* What docs/math/numbers.md says of an element's error: half a unit of each activation, at most 2^-22.9 of the largest of its piece,
 * and a few roundings of each piece's sum. */
static inline double error_bound(const dq_weight *w, const double *value, const float *x)
{
    const int64_t group = w->group_size < w->cols ? w->group_size : w->cols;
    double bound = 0, all = 0;
    for (int64_t k = 0; k < w->cols;) {
        int64_t end = (k / group + 1) * group;
        double max = 0, sum = 0;
        if (end > k + 128) end = k + 128;
        if (end > w->cols) end = w->cols;
        for (int64_t i = k; i < end; i++) max = fmax(max, fabs((double)x[i]));
        for (; k < end; k++) {
            sum += fabs(value[k]);
            all += fabs(value[k] * (double)x[k]);
            bound += all * 0x1p-23 / 32; /* of the totals, a piece has 32 columns at least */
        }
        bound += sum * max * 0x1p-23 * 129 / 128;
    }
    return bound + all * 0x1p-21;
}

/* f32 products y[m][w->rows] with x[m][w->cols] are within that of the exact ones with what the format says of its codes:
 * one of `every` in each row and column. */
static inline void check_bound(const float *y, const dq_weight *w, int64_t m, const float *x,
                               const float *bias, int64_t every)
{
    dq_err err = {0};
    float *row = new_floats(w->cols);
    double *value = dq_block_new((size_t)w->cols, sizeof *value, &err);
    assert_non_null(value);
    for (int64_t j = 0; j < w->rows; j++) {
        w->format->dequantize(row, w, j, 0, w->cols);
        for (int64_t k = 0; k < w->cols; k++) value[k] = (double)row[k];
        for (int64_t i = j % every; i < m; i += every) {
            const float *xi = x + i * w->cols;
            double want = bias ? (double)bias[j] : 0, bound;
            for (int64_t k = 0; k < w->cols; k++) want += value[k] * (double)xi[k];
            bound = error_bound(w, value, xi) + fabs(want) * 0x1p-24;
            const double off = fabs((double)y[i * w->rows + j] - want);
            if (!(off <= bound))
                fail_msg("%d bits, %lld x %lld, group %lld, row %lld of %lld, column %lld: %.9g, "
                         "expected %.9g within %.3g",
                         w->bits, (long long)w->rows, (long long)w->cols, (long long)w->group_size,
                         (long long)i, (long long)m, (long long)j, (double)y[i * w->rows + j], want,
                         bound);
        }
    }
    dq_block_free(row);
    dq_block_free(value);
}

#endif
