/* test_prepacked_split: activations as split integers are those that simd.h describes, and products with them are as near to the
 * exact ones as docs/math/numbers.md says.
 * SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/rigs/prepacked_rig.h"
#include "tests/rigs/suite.h"

#include <math.h>

/* Parts of x[n] are those of the nearest number of units, ties to even; the rest is exact. */
static void check_split(const dq_simd_prepacked *t, const float *x, int64_t n, float max)
{
    enum { LD = 200 };
    int8_t line[3 * LD];
    float unit, rest[LD];
    int32_t sum[3], want[3] = {0}, below = 0, n_below = 0;
    bool left = false;
    const bool uneven = t->split(line, LD, &unit, sum, rest, x, n, max);
    const double grown = (double)max * 129 / 128, one = (double)unit;
    assert_true(grown < 0x1p23 * one && (grown >= 0x1p22 * one || unit == 0x1p-149f));
    for (int64_t i = 0; i < n; i++) {
        const int d[3] = {line[i], line[LD + i], line[2 * LD + i]};
        const int32_t all = d[0] * 65536 + d[1] * 256 + d[2];
        const double of = (double)x[i] / one;
        assert_true((double)all == rint(of));
        assert_true((double)rest[i] == (of - (double)all) * one);
        for (int k = 0; k < 3; k++) want[k] += d[k];
        left |= rest[i] != 0;
        if (abs(all) > (int)rint((double)max / one) / 8) continue;
        below += abs(all), n_below++;
    }
    for (int k = 0; k < 3; k++) assert_int_equal(sum[k], want[k]);
    assert_int_equal(uneven, left && 2 * n_below >= n && below < n_below * 65536);
}

TEST(split_integers_are_nearest)
{
    enum { N = 128 };
    static const int64_t sizes[] = {1, 7, 32, 77, 128};
    static const float ties[] = {4194304,         2.5f,     3.5f, -0.5f, -1.5f, 0.25f,
                                 -8388607 * 0.5f, 100000.5f};
    static const float times[] = {1, 40, 1000, 0x1p-130f, 0x1p100f};
    float *x = random_floats(N, 21);
    for (int isa = 0; isa < N_ISAS; isa++) {
        dq_backend *b = open_isa(isa, 1);
        if (!b) continue;
        const dq_simd_prepacked *t = dq_cpu_of(b)->blocks;
        check_split(t, ties, sizeof ties / sizeof *ties, ties[0]);
        for (int i = 0; i < 5; i++)
            for (int k = 0; k < 5; k++) {
                float y[N], max = 0;
                memcpy(y, x, sizeof y);
                if (k < 3) y[sizes[i] / 2] *= times[k];
                for (int64_t j = 0; j < sizes[i]; j++) {
                    if (k >= 3) y[j] *= times[k];
                    max = fmaxf(max, fabsf(y[j]));
                }
                check_split(t, y, sizes[i], max);
            }
        dq_backend_close(b);
    }
    dq_block_free(x);
}

TEST(errors_are_bound)
{
    enum { N = 40, K = 768, M = 4 };
    static const int64_t groups[] = {32, 96, 128, 320, K};
    static const float largest[M] = {1, 100, 3000, 0x1p-120f};
    float *x = random_floats(M * K, 31), *y = new_floats(M * N);
    for (int i = 0; i < M; i++) {
        for (int k = 0; k < K && i == 3; k++) x[i * K + k] *= largest[i];
        x[i * K + 77] *= i < 3 ? largest[i] : 1;
    }
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (int bits = 2; bits <= 8; bits++) {
            const dq_weight w = new_weight((shape){N, K, groups[g], false}, bits, bits % 2, DQ_F32);
            dq_backend *b = open_isa(0, 1);
            multiply(b, y, x, M, &w, NULL, DQ_NUM_F32);
            check_bound(y, &w, M, x, NULL, 1);
            dq_backend_close(b);
            drop_weight(&w);
        }
    dq_block_free(x);
    dq_block_free(y);
}

/* Errors of products with normal activations, two in each row times `largest`, against f64: of chains of f32 over 256
 * columns, and of the backend. Each is measured against the root of its own sum of squared terms: where codes of the two
 * are zero, the others alone. */
static void measure_errors(const dq_weight *w, float largest, double error[2])
{
    enum { M = 8 };
    float *x = random_floats(M * w->cols, 41), *row = new_floats(w->cols),
          *y = new_floats(M * w->rows);
    dq_backend *b = open_isa(0, 1);
    for (int i = 0; i < M; i++)
        for (int k = 0; k < 2; k++) x[i * w->cols + (77 + 997 * (i + 3 * k)) % w->cols] *= largest;
    multiply(b, y, x, M, w, NULL, DQ_NUM_F32);
    error[0] = error[1] = 0;
    for (int64_t j = 0; j < w->rows; j++) {
        w->format->dequantize(row, w, j, 0, w->cols);
        for (int64_t i = 0; i < M; i++) {
            double want = 0, size = 0;
            float all = 0, chain = 0;
            for (int64_t k = 0; k < w->cols; k++) {
                const float v = x[i * w->cols + k];
                const double term = (double)v * (double)row[k];
                want += term, size += term * term;
                chain = fmaf(v, row[k], chain);
                if (k % 256 == 255) all += chain, chain = 0;
            }
            error[0] += pow((double)all - want, 2) / size;
            error[1] += pow((double)y[i * w->rows + j] - want, 2) / size;
        }
    }
    for (int i = 0; i < 2; i++) error[i] = sqrt(error[i] / (double)(M * w->rows));
    dq_backend_close(b);
    dq_block_free(x);
    dq_block_free(y);
    dq_block_free(row);
}

/* The table of docs/math/numbers.md. */
TEST(errors_are_those_of_f32)
{
    static const float largest[] = {1, 20, 50, 3000};
    static const int64_t groups[] = {32, 128, 2048};
    enum { N = sizeof largest / sizeof *largest };
    for (int i = 0; i < 3 * N; i++) {
        double error[2];
        const dq_weight w = new_weight((shape){64, 2048, groups[i / N], false}, 4, false, DQ_F32);
        measure_errors(&w, largest[i % N], error);
        print_message("group %lld, times %g: chains %.1e, integers %.1e\n",
                      (long long)groups[i / N], (double)largest[i % N], error[0], error[1]);
        assert_true(error[1] < 1.5 * error[0]);
        drop_weight(&w);
    }
}

/* No number stays none, where it is and nowhere else; the largest ones and the smallest ones are numbers. */
TEST(ends_of_numbers)
{
    enum { N = 33, K = 96, M = 7 };
    const dq_weight w = new_weight((shape){N, K, 32, false}, 4, false, DQ_F32);
    float *x = random_floats(M * K, 5), *y = new_floats(M * N), *one = new_floats(N);
    x[0 * K + 40] = NAN;
    x[1 * K + 41] = INFINITY;
    x[2 * K + 95] = -INFINITY;
    for (int k = 0; k < K; k++) {
        x[3 * K + k] = 0;
        x[4 * K + k] = k % 2 ? 0x1p-149f : -0x1p-140f;
        x[5 * K + k] *= 0x1p+120f;
    }
    for (int isa = 0; isa < N_ISAS; isa++) {
        dq_backend *b = open_isa(isa, 1);
        if (!b) continue;
        multiply(b, y, x, M, &w, NULL, DQ_NUM_F32);
        for (int j = 0; j < N; j++) {
            for (int i = 0; i < M; i++) assert_int_equal(!isfinite(y[i * N + j]), i < 3);
            assert_true(y[3 * N + j] == 0.0f);
            assert_true(y[4 * N + j] != 0.0f && fabsf(y[4 * N + j]) < 0x1p-120f);
            assert_true(fabsf(y[5 * N + j]) > 0x1p+100f);
        }
        multiply(b, one, x + 6 * K, 1, &w, NULL, DQ_NUM_F32);
        assert_true(same_bits(one, y + 6 * N, N));
        dq_backend_close(b);
    }
    dq_block_free(x);
    dq_block_free(y);
    dq_block_free(one);
    drop_weight(&w);
}
