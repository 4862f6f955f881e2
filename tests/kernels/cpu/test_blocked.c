/* test_blocked: products with packed weights that are laid out for them equal, bit for bit, those with weights where
 * they lie; a layout lives as long as it is acquired.
 * SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/rigs/levels.h"

#include "kernels/cpu/cpu_blocked.h"
#include "tensor/weight_format.h"

#include <math.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

static uint8_t *random_bytes(size_t n, uint64_t seed)
{
    dq_err err = {0};
    uint8_t *p = dq_block_new(n, 1, &err);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)next_bits(&seed);
    return p;
}

/* Codes of weights stand in files. */
static dq_os_map maps[8];

static const uint8_t *in_file(uint8_t *bytes, size_t n)
{
    char path[128];
    const char *tmp = getenv("TMPDIR");
    size_t i = 0;
    dq_err err = {0};
    while (maps[i].data) i++;
    snprintf(path, sizeof path, "%.80s/dq-blocked-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    FILE *f = fdopen(mkstemp(path), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(dq_os_map_open(&maps[i], path, &err), DQ_OK);
    remove(path);
    dq_block_free(bytes);
    return maps[i].data;
}

static void drop_file(const void *p)
{
    size_t i = 0;
    while (maps[i].data != p) i++;
    dq_os_map_close(&maps[i]);
}

static void drop(const void *p)
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
static dq_weight new_weight(shape s, int bits, bool zeros, dq_dtype scales)
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

static void drop_weight(const dq_weight *w)
{
    drop_file(w->data);
    drop(w->scale);
    drop(w->zero);
}

static void multiply(dq_backend *b, float *y, const float *x, int64_t m, const dq_weight *w,
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

/* Results of all levels are the same. */
static void check(const dq_weight *w, int64_t m, const float *x, const float *bias)
{
    const int64_t n = m * w->rows;
    float *want = new_floats(n), *got = new_floats(n), *plain[2] = {new_floats(n), new_floats(n)};
    for (int level = 0; level < N_LEVELS; level++) {
        dq_backend *b = open_level(level, 1 + (int)(m + level) % 3);
        if (!b) continue;
        for (int int8 = 0; int8 < 2; int8++) {
            const dq_num num = int8 ? DQ_NUM_INT8 : DQ_NUM_F32;
            assert_null(dq_cpu_blocked_of(b, w));
            multiply(b, want, x, m, w, bias, num);
            assert_true(b->ops->weight_acquire(b, w));
            assert_string_equal(b->ops->matmul_kernel(b, w, num),
                                int8 ? "blocked_int8" : "blocked");
            multiply(b, got, x, m, w, bias, num);
            assert_non_null(dq_cpu_blocked_of(b, w)->data);
            for (int64_t i = 0; i < n; i++)
                if (memcmp(&want[i], &got[i], sizeof *got) != 0)
                    fail_msg("%s, %s, %d bits, %lld x %lld, group %lld, %lld rows, element %lld: "
                             "%.9g, expected %.9g",
                             levels[level], int8 ? "int8" : "f32", w->bits, (long long)w->rows,
                             (long long)w->cols, (long long)w->group_size, (long long)m,
                             (long long)i, (double)got[i], (double)want[i]);
            if (level == 0) memcpy(plain[int8], got, (size_t)n * sizeof *got);
            if (!same_bits(plain[int8], got, n))
                fail_msg("%s, %s, %d bits, group %lld, %lld rows: not what plain C gives",
                         levels[level], int8 ? "int8" : "f32", w->bits, (long long)w->group_size,
                         (long long)m);
            b->ops->weight_release(b, w);
        }
        dq_backend_close(b);
    }
    dq_block_free(want);
    dq_block_free(got);
    for (int i = 0; i < 2; i++) dq_block_free(plain[i]);
}

static void equal_row_major(void **state)
{
    static const shape shapes[] = {
        {70, 320, 32, false}, {33, 200, 32, false}, {16, 576, 64, false}, {35, 513, 128, false},
        {1, 100, 100, false}, {64, 300, 300, true}, {40, 256, 64, true},  {200, 320, 160, false}};
    static const int64_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 50};
    enum { MOST = 50, WIDEST = 576, TALLEST = 200 };
    float *x = random_floats(MOST * WIDEST, 11), *bias = random_floats(TALLEST, 12);
    (void)state;
    memset(x, 0, 40 * sizeof *x);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int bits = 2; bits <= 8; bits++)
            for (int kind = 0; kind < 4; kind++) {
                const dq_weight w =
                    new_weight(shapes[s], bits, kind % 2, kind / 2 ? DQ_F16 : DQ_F32);
                for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
                    if (kind == 1 || (r + s + (size_t)bits) % 3 == 0)
                        check(&w, rows[r], x, r % 2 ? bias : NULL);
                drop_weight(&w);
            }
    dq_block_free(x);
    dq_block_free(bias);
}

/* A row does not know how many others there are, nor in how many threads. */
static void rows_are_alone(void **state)
{
    enum { M = 21, N = 96, K = 384 };
    const dq_weight w = new_weight((shape){N, K, 32, false}, 6, true, DQ_F16);
    float *x = random_floats(M * K, 4), *all = new_floats(M * N), *one = new_floats(N);
    (void)state;
    for (int level = 0; level < N_LEVELS; level++) {
        for (int int8 = 0; int8 < 2; int8++) {
            const dq_num num = int8 ? DQ_NUM_INT8 : DQ_NUM_F32;
            for (int threads = 1; threads <= 3; threads++) {
                dq_backend *b = open_level(level, threads);
                if (!b) continue;
                assert_true(b->ops->weight_acquire(b, &w));
                if (threads == 1) multiply(b, all, x, M, &w, NULL, num);
                for (int i = 0; i < M; i += 4) {
                    multiply(b, one, x + i * K, 1, &w, NULL, num);
                    assert_true(same_bits(one, all + i * N, N));
                }
                dq_backend_close(b); /* frees what is still acquired */
            }
        }
    }
    dq_block_free(x);
    dq_block_free(all);
    dq_block_free(one);
    drop_weight(&w);
}

/* Digits of x[n] are those of the nearest number of units, ties to even; the rest is exact. */
static void check_digits(const dq_simd_blocked *t, const float *x, int64_t n, float max)
{
    enum { LD = 200 };
    int8_t line[3 * LD];
    float unit, rest[LD];
    int32_t sum[3], want[3] = {0}, below = 0, n_below = 0;
    bool left = false;
    const bool uneven = t->digits(line, LD, &unit, sum, rest, x, n, max);
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

static void digits_are_nearest(void **state)
{
    enum { N = 128 };
    static const int64_t sizes[] = {1, 7, 32, 77, 128};
    static const float ties[] = {4194304,         2.5f,     3.5f, -0.5f, -1.5f, 0.25f,
                                 -8388607 * 0.5f, 100000.5f};
    static const float times[] = {1, 40, 1000, 0x1p-130f, 0x1p100f};
    float *x = random_floats(N, 21);
    (void)state;
    for (int level = 0; level < N_LEVELS; level++) {
        dq_backend *b = open_level(level, 1);
        if (!b) continue;
        const dq_simd_blocked *t = dq_cpu_of(b)->blocks;
        check_digits(t, ties, sizeof ties / sizeof *ties, ties[0]);
        for (int i = 0; i < 5; i++)
            for (int k = 0; k < 5; k++) {
                float y[N], max = 0;
                memcpy(y, x, sizeof y);
                if (k < 3) y[sizes[i] / 2] *= times[k];
                for (int64_t j = 0; j < sizes[i]; j++) {
                    if (k >= 3) y[j] *= times[k];
                    max = fmaxf(max, fabsf(y[j]));
                }
                check_digits(t, y, sizes[i], max);
            }
        dq_backend_close(b);
    }
    dq_block_free(x);
}

/* What MODEL.md says of an element's error: half a unit of each activation, at most 2^-22.9 of the largest of its piece,
 * and a few roundings of each piece's sum. */
static double error_bound(const dq_weight *w, const double *value, const float *x)
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

static void errors_are_bound(void **state)
{
    enum { N = 40, K = 768, M = 4 };
    static const int64_t groups[] = {32, 96, 128, 320, K};
    static const float largest[M] = {1, 100, 3000, 0x1p-120f};
    float *x = random_floats(M * K, 31), *y = new_floats(M * N);
    float row[K];
    double value[K];
    (void)state;
    for (int i = 0; i < M; i++) {
        for (int k = 0; k < K && i == 3; k++) x[i * K + k] *= largest[i];
        x[i * K + 77] *= i < 3 ? largest[i] : 1;
    }
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (int bits = 2; bits <= 8; bits++) {
            const dq_weight w = new_weight((shape){N, K, groups[g], false}, bits, bits % 2, DQ_F32);
            dq_backend *b = open_level(0, 1);
            multiply(b, y, x, M, &w, NULL, DQ_NUM_F32);
            for (int64_t j = 0; j < N; j++) {
                w.format->dequantize(row, &w, j, 0, K);
                for (int64_t k = 0; k < K; k++) value[k] = (double)row[k];
                for (int i = 0; i < M; i++) {
                    double want = 0;
                    for (int k = 0; k < K; k++) want += value[k] * (double)x[i * K + k];
                    const double off = fabs((double)y[i * N + j] - want);
                    if (!(off <= error_bound(&w, value, x + i * K)))
                        fail_msg("%d bits, group %lld, row %d: %.9g, expected %.9g within %.3g",
                                 bits, (long long)groups[g], i, (double)y[i * N + j], want,
                                 error_bound(&w, value, x + i * K));
                }
            }
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
    dq_backend *b = open_level(0, 1);
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

/* The table of MODEL.md. */
static void errors_are_those_of_f32(void **state)
{
    static const float largest[] = {1, 20, 50, 3000};
    static const int64_t groups[] = {32, 128, 2048};
    enum { N = sizeof largest / sizeof *largest };
    (void)state;
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
static void ends_of_numbers(void **state)
{
    enum { N = 33, K = 96, M = 7 };
    const dq_weight w = new_weight((shape){N, K, 32, false}, 4, false, DQ_F32);
    float *x = random_floats(M * K, 5), *y = new_floats(M * N), *one = new_floats(N);
    (void)state;
    x[0 * K + 40] = NAN;
    x[1 * K + 41] = INFINITY;
    x[2 * K + 95] = -INFINITY;
    for (int k = 0; k < K; k++) {
        x[3 * K + k] = 0;
        x[4 * K + k] = k % 2 ? 0x1p-149f : -0x1p-140f;
        x[5 * K + k] *= 0x1p+120f;
    }
    for (int level = 0; level < N_LEVELS; level++) {
        dq_backend *b = open_level(level, 1);
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

/* The head's logits pass through the same products. */
static void a_head_is_a_weight(void **state)
{
    enum { M = 5, N = 100, K = 128 };
    const dq_weight w = new_weight((shape){N, K, 64, false}, 4, false, DQ_F16);
    float *x = random_floats(M * K, 8);
    double want[M], got[M];
    int32_t top[2][M];
    (void)state;
    for (int level = 0; level < N_LEVELS; level++) {
        dq_backend *b = open_level(level, 2);
        if (!b) continue;
        b->ops->logprob(b, want, top[0], (dq_mat){x, M, K}, &w, NULL, DQ_NUM_F32);
        assert_true(b->ops->weight_acquire(b, &w));
        b->ops->logprob(b, got, top[1], (dq_mat){x, M, K}, &w, NULL, DQ_NUM_F32);
        expect_sync(b);
        assert_memory_equal(want, got, sizeof want);
        assert_memory_equal(top[0], top[1], sizeof top[0]);
        b->ops->weight_release(b, &w);
        dq_backend_close(b);
    }
    dq_block_free(x);
    drop_weight(&w);
}

/* Another weight at the same address gets a layout of its own, once the first one has gone. */
static void layouts_end(void **state)
{
    enum { N = 32, K = 64 };
    dq_weight w = new_weight((shape){N, K, 32, false}, 4, false, DQ_F32);
    const dq_weight odd = new_weight((shape){N, 60, 20, false}, 4, false, DQ_F32);
    float *x = random_floats(K, 4), first[N], second[N], third[N];
    dq_backend *b = open_level(0, 1);
    (void)state;
    b->ops->weight_release(b, &w); /* never acquired */
    for (int i = 0; i < 2; i++) assert_true(b->ops->weight_acquire(b, &w));
    multiply(b, first, x, 1, &w, NULL, DQ_NUM_F32);
    const dq_simd_blocked_weight *kept = dq_cpu_blocked_of(b, &w);
    b->ops->weight_release(b, &w);
    assert_ptr_equal(kept, dq_cpu_blocked_of(b, &w));
    b->ops->weight_release(b, &w);
    assert_null(dq_cpu_blocked_of(b, &w));
    drop(w.scale);
    w.scale = random_floats(N * K / 32, 77);
    multiply(b, second, x, 1, &w, NULL, DQ_NUM_F32);
    assert_false(same_bits(first, second, N));
    assert_true(b->ops->weight_acquire(b, &w));
    multiply(b, third, x, 1, &w, NULL, DQ_NUM_F32);
    assert_true(same_bits(second, third, N));
    assert_true(b->ops->weight_acquire(b, &odd)); /* groups of 20 stay where they lie */
    assert_string_equal(b->ops->matmul_kernel(b, &odd, DQ_NUM_INT8), "gemm_int8");
    assert_string_equal(b->ops->matmul_kernel(b, &odd, DQ_NUM_F32), "gemm");
    assert_null(dq_cpu_blocked_of(b, &odd));
    b->ops->weight_release(b, &odd);
    dq_backend_close(b);
    dq_block_free(x);
    drop_weight(&w);
    drop_weight(&odd);
}

/* Sums of 16384 columns of 8 bits, one group a row. */
static void long_rows_are_exact(void **state)
{
    enum { K = 16384, M = 6 };
    float *x = random_floats(M * K, 21);
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        const dq_weight w = new_weight((shape){3, K, K, false}, 8, kind == 1, DQ_F32);
        check(&w, 1, x, NULL);
        check(&w, M, x, NULL);
        drop_weight(&w);
    }
    dq_block_free(x);
}

/* A weight without a layout is counted, too: whoever releases it takes none from another one at its address. */
static void every_user_counts(void **state)
{
    dq_weight w = new_weight((shape){32, 64, 32, false}, 4, false, DQ_F32), odd = w;
    dq_backend *b = open_level(0, 1);
    (void)state;
    odd.group_size = 20;
    assert_true(b->ops->weight_acquire(b, &odd));
    assert_true(b->ops->weight_acquire(b, &w));
    b->ops->weight_release(b, &odd);
    assert_string_equal(b->ops->matmul_kernel(b, &w, DQ_NUM_F32), "gemm_blocked");
    b->ops->weight_release(b, &w);
    assert_string_equal(b->ops->matmul_kernel(b, &w, DQ_NUM_F32), "gemm_blocked or blocked");
    assert_true(b->ops->weight_acquire(b, &w));
    assert_true(b->ops->weight_acquire(b, &odd));
    const dq_simd_blocked_weight *kept = dq_cpu_blocked_of(b, &w);
    assert_non_null(kept);
    b->ops->weight_release(b, &odd);
    assert_ptr_equal(kept, dq_cpu_blocked_of(b, &w));
    b->ops->weight_release(b, &w);
    assert_null(dq_cpu_blocked_of(b, &w));
    dq_backend_close(b);
    drop_weight(&w);
}

/* What is not of a file would take its memory twice. */
static void memory_of_our_own_stays(void **state)
{
    enum { N = 32, K = 64 };
    dq_weight w = new_weight((shape){N, K, 32, false}, 4, false, DQ_F32);
    const void *codes = w.data;
    dq_backend *b = open_level(0, 1);
    (void)state;
    w.data = random_bytes(N * K / 2, 1);
    assert_string_equal(b->ops->matmul_kernel(b, &w, DQ_NUM_INT8), "gemm_int8");
    assert_true(b->ops->weight_acquire(b, &w));
    assert_null(dq_cpu_blocked_of(b, &w));
    assert_string_equal(b->ops->matmul_kernel(b, &w, DQ_NUM_INT8), "gemm_int8");
    dq_backend_close(b);
    drop(w.data);
    w.data = codes;
    drop_weight(&w);
}

/* No weight is acquired by half; a layout that is not to be had is none. */
static void short_memory(void **state)
{
    enum { N = 32, K = 64 };
    const dq_weight w = new_weight((shape){N, K, 32, false}, 4, false, DQ_F32);
    float *x = random_floats(K, 4), want[N], got[N];
    dq_err err = {0};
    dq_backend *b = open_level(0, 1);
    (void)state;
    multiply(b, want, x, 1, &w, NULL, DQ_NUM_F32);
    for (int n = 1; n <= 2; n++) { /* the table, its list */
        dq_alloc_fail_at(n);
        assert_false(b->ops->weight_acquire(b, &w));
        dq_alloc_fail_at(0);
        assert_int_equal(dq_backend_sync(b, &err), DQ_RESOURCE);
        err = (dq_err){0};
        dq_backend_close(b);
        b = open_level(0, 1);
    }
    assert_true(b->ops->weight_acquire(b, &w));
    dq_alloc_fail_at(1);
    assert_null(dq_cpu_blocked_of(b, &w));
    dq_alloc_fail_at(0);
    assert_string_equal(b->ops->matmul_kernel(b, &w, DQ_NUM_F32), "gemm_blocked");
    multiply(b, got, x, 1, &w, NULL, DQ_NUM_F32);
    assert_true(same_bits(want, got, N));
    b->ops->weight_release(b, &w);
    assert_true(b->ops->weight_acquire(b, &w)); /* there is memory again */
    assert_non_null(dq_cpu_blocked_of(b, &w));
    dq_backend_close(b);
    dq_block_free(x);
    drop_weight(&w);
}

static int64_t mapped_bytes(void)
{
    long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%lld", &pages) != 1) pages = 0;
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

/* All layouts together: 3/4 of 2 MiB hold one of a MiB and a small one, not two. */
static void a_limit_holds(void **state)
{
    const shape large = {512, 4096, 4096, false};
    const dq_weight a = new_weight(large, 4, false, DQ_F32),
                    c = new_weight(large, 4, false, DQ_F32),
                    small = new_weight((shape){32, 64, 32, false}, 4, false, DQ_F32);
    dq_backend *b = open_level(0, 1);
    struct rlimit old, less;
    (void)state;
    if (mapped_bytes() == 0 || getrlimit(RLIMIT_AS, &old) != 0) skip();
    less = old;
    less.rlim_cur = (rlim_t)mapped_bytes() + (2 << 20);
    assert_int_equal(setrlimit(RLIMIT_AS, &less), 0);
    const bool done = b->ops->weight_acquire(b, &a) && b->ops->weight_acquire(b, &c) &&
                      b->ops->weight_acquire(b, &small);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_true(done);
    assert_string_equal(b->ops->matmul_kernel(b, &a, DQ_NUM_F32), "blocked");
    assert_string_equal(b->ops->matmul_kernel(b, &c, DQ_NUM_F32), "gemm_blocked");
    assert_string_equal(b->ops->matmul_kernel(b, &small, DQ_NUM_F32), "blocked");
    assert_null(dq_cpu_blocked_of(b, &c));
    assert_non_null(dq_cpu_blocked_of(b, &a));
    b->ops->weight_release(b, &c);
    b->ops->weight_release(b, &a);
    b->ops->weight_release(b, &small);
    assert_true(b->ops->weight_acquire(b, &c)); /* the limit is taken anew */
    assert_non_null(dq_cpu_blocked_of(b, &c));
    dq_backend_close(b);
    drop_weight(&a);
    drop_weight(&c);
    drop_weight(&small);
}

/* The code that simd.h puts at column k of row j of a block. */
static int code_in(const uint8_t *block, int bits, int64_t j, int64_t k)
{
    const uint8_t *at = block + k / 32 * bits * 128 + 4 * j + k % 4;
    const int step = (int)(k % 32 / 4);
    int code = 0;
    for (int done = 0, width; done < bits; done += width) {
        width = bits - done >= 8 ? 8 : bits - done >= 4 ? 4 : bits - done >= 2 ? 2 : 1;
        const int each = 8 / width;
        code |= (at[step / each * 128] >> step % each * width & ((1 << width) - 1)) << done;
        at += 8 / each * 128;
    }
    return code;
}

/* Every level writes the block that simd.h describes, wherever codes begin and whatever stands behind a row's last. */
static void blocks_are_as_described(void **state)
{
    enum { ROWS = 37, COLS = 1100 };
    const unsigned level[] = {0, DQ_CPU_AVX2, DQ_CPU_AVX2 | DQ_CPU_AVX512};
    const int64_t cols[] = {1, 31, 32, 33, 511, 512, 513, COLS};
    _Alignas(64) static uint8_t block[COLS * 64];
    static int8_t want[COLS];
    uint8_t *bytes = random_bytes(ROWS * (COLS + 4) + 4, 5);
    float scale[ROWS] = {0};
    (void)state;
    for (int n = 0; n < 3 * 7 * 8 * 4; n++) {
        const unsigned l = level[n % 3];
        const dq_weight w = {.rows = ROWS,
                             .cols = cols[n / 3 % 8],
                             .format = &dq_format_int,
                             .bits = 2 + n / 24 % 7,
                             .data = bytes + n / 168,
                             .scale = scale,
                             .group_size = COLS,
                             .scale_rows = ROWS,
                             .scale_dtype = DQ_F32};
        const dq_simd_blocked_weight d = dq_cpu_blocked_shape(&w);
        const size_t row = dq_quant_row_bytes(w.cols, w.bits);
        if ((dq_os_cpu_features(NULL) & l) != l) continue;
        for (int64_t j = 0; j < 64; j++) {
            if (j % 32 == 0) dq_cpu_blocked_lay_out(dq_simd_pick(l), block, &w, &d, j / 32);
            if (j < ROWS)
                dq_quant_unpack_row(want, bytes + n / 168 + (size_t)j * row, w.cols, w.bits);
            for (int64_t k = 0; k < d.chunks * 32; k++)
                assert_int_equal(code_in(block, w.bits, j % 32, k),
                                 j < ROWS && k < w.cols ? want[k] + (1 << (w.bits - 1)) : 0);
        }
    }
    dq_block_free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_row_major),         cmocka_unit_test(rows_are_alone),
        cmocka_unit_test(a_head_is_a_weight),      cmocka_unit_test(layouts_end),
        cmocka_unit_test(long_rows_are_exact),     cmocka_unit_test(every_user_counts),
        cmocka_unit_test(memory_of_our_own_stays), cmocka_unit_test(short_memory),
        cmocka_unit_test(a_limit_holds),           cmocka_unit_test(digits_are_nearest),
        cmocka_unit_test(errors_are_bound),        cmocka_unit_test(ends_of_numbers),
        cmocka_unit_test(errors_are_those_of_f32), cmocka_unit_test(blocks_are_as_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
