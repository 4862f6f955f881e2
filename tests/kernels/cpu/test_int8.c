/* test_int8: products of 8-bit activations with packed weights, bit for bit against plain loops, and
 * near the f32 product.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "kernels/cpu/cpu.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float next_value(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 6; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(*state >> 33) / 2147483648.0 - 0.5;
    }
    return (float)(sum * 1.4142135);
}

static void *block(size_t n, size_t size)
{
    dq_err err = {0};
    void *p = dq_block_new(n, size, &err);
    assert_non_null(p);
    return p;
}

static float *random_floats(int64_t n, uint64_t seed)
{
    float *x = block((size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = next_value(&seed);
    return x;
}

/* A coded weight; its datasets are blocks. */
static dq_weight pack(const float *values, int64_t rows, int64_t cols, int bits, int64_t group,
                      bool one_scale, dq_scale_mode mode)
{
    const dq_weight_format *f = dq_weight_format_of_mode(mode);
    const dq_quant_spec spec = {.bits = bits, .mode = mode, .scale_dtype = DQ_F32};
    dq_weight w = {.name = "w",
                   .rows = rows,
                   .cols = cols,
                   .format = f,
                   .bits = bits,
                   .group_size = group,
                   .scale_rows = one_scale ? 1 : rows,
                   .scale_dtype = DQ_F32};
    uint8_t *dataset[DQ_MAX_DATASETS] = {NULL}, *at[DQ_MAX_DATASETS];
    int8_t *q = block((size_t)cols, 1);
    float *got = block((size_t)cols, sizeof *got);
    for (int i = 0; i < f->n_datasets; i++) {
        const dq_dataset p = dq_weight_dataset(&w, i);
        dataset[i] = block(1, dq_dataset_bytes(&p));
    }
    const dq_grid all = f->fit(values, rows * cols, &spec);
    for (int64_t r = 0; r < rows; r++) {
        for (int i = 0; i < f->n_datasets; i++) {
            const dq_dataset p = dq_weight_dataset(&w, i);
            at[i] = dataset[i] + (p.rows == 1 ? 0 : r) * (int64_t)dq_dataset_bytes(&p) / p.rows;
        }
        for (int64_t g = 0; g < dq_quant_groups(cols, group); g++) {
            const int64_t first = g * group, n = cols - first < group ? cols - first : group;
            const float *x = values + r * cols + first;
            const dq_grid own = one_scale ? all : f->fit(x, n, &spec);
            if (!one_scale || r == 0) f->put(at, g, own, &spec);
            f->encode(q + first, got + first, x, n, own, &spec);
        }
        dq_quant_pack_row(at[0], q, cols, bits);
    }
    dq_block_free(q);
    dq_block_free(got);
    w.data = dataset[0];
    w.scale = dataset[1];
    w.zero = dataset[2];
    return w;
}

static void drop(const void *p)
{
    union { /* the weight's pointers are to const */
        const void *in;
        void *out;
    } u = {.in = p};
    dq_block_free(u.out);
}

static void unpack_free(dq_weight *w)
{
    drop(w->data);
    drop(w->scale);
    drop(w->zero);
}

/* A zero point, bit by bit; 2^(bits-1) where there are none. */
static int zero_at(const dq_weight *w, int64_t row, int64_t group)
{
    if (!w->zero) return 1 << (w->bits - 1);
    const int64_t bytes = (dq_quant_groups(w->cols, w->group_size) * w->bits + 7) / 8;
    const uint8_t *p = (const uint8_t *)w->zero + (w->scale_rows == 1 ? 0 : row) * bytes;
    int z = 0;
    for (int64_t i = 0, b = group * w->bits; i < w->bits; i++, b++)
        z |= (p[b / 8] >> (b % 8) & 1) << i;
    return z;
}

/* One element by the definition in cpu_linear.h. */
static float product(const float *x, const dq_weight *w, int64_t row)
{
    const int64_t groups = dq_quant_groups(w->cols, w->group_size);
    const float *scale = w->scale;
    int8_t *q = block((size_t)w->cols, 1);
    float total = 0;
    dq_quant_unpack_row(
        q, (const uint8_t *)w->data + row * (int64_t)dq_quant_row_bytes(w->cols, w->bits), w->cols,
        w->bits);
    for (int64_t g = 0; g < groups; g++) {
        const int64_t at = g * w->group_size;
        const int64_t end = at + w->group_size < w->cols ? at + w->group_size : w->cols;
        float max = 0;
        for (int64_t k = at; k < end; k++) max = fmaxf(max, fabsf(x[k]));
        const float sx = max / 127.0f;
        const int32_t shift = (1 << (w->bits - 1)) - zero_at(w, row, g);
        int32_t sum = 0;
        for (int64_t k = at; k < end; k++)
            if (sx > 0) sum += (int32_t)rintf(x[k] / sx) * (q[k] + shift);
        total += (float)sum * (sx * scale[(w->scale_rows == 1 ? 0 : row) * groups + g]);
    }
    dq_block_free(q);
    return total;
}

static dq_backend *open_cpu(const char *isa, int threads)
{
    setenv("DQ_CPU", isa, 1);
    dq_backend *b = given_backend(threads);
    unsetenv("DQ_CPU");
    return b;
}

static void check_products(dq_scale_mode mode)
{
    static const struct {
        int64_t rows, cols, group;
        bool one_scale;
    } shapes[] = {{33, 128, 32, false}, {64, 100, 100, false}, {5, 77, 20, false},
                  {96, 256, 256, true}, {1, 3, 2, false},      {40, 513, 128, false}};
    static const char *const isas[] = {"scalar", "avx2", "avx512"};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int bits = 2; bits <= 8; bits++) {
            const int64_t n = shapes[s].rows, k = shapes[s].cols, m = s == 0 ? 101 : 7;
            float *values = random_floats(n * k, 7 + s), *x = random_floats(m * k, 99 + s);
            float *y = block((size_t)(m * n), sizeof *y), *bias = random_floats(n, 5);
            dq_weight w = pack(values, n, k, bits, shapes[s].group, shapes[s].one_scale, mode);
            memset(x, 0, (size_t)k * sizeof *x); /* a row of zeros */
            for (int isa = 0; isa < 3; isa++) {
                dq_backend *b = open_cpu(isas[isa], 1 + isa % 2);
                b->ops->matmul(b, (dq_mat){y, m, n}, (dq_mat){x, m, k}, &w, bias, DQ_NUM_INT8);
                dq_err err = {0};
                dq_backend_sync(b, &err);
                assert_string_equal(err.text, "");
                for (int64_t i = 0; i < m * n; i++) {
                    const float want = product(x + i / n * k, &w, i % n) + bias[i % n];
                    if (memcmp(&want, &y[i], sizeof want) != 0)
                        fail_msg("%d bits, %s, shape %zu, element %lld: %.9g, expected %.9g", bits,
                                 isas[isa], s, (long long)i, (double)y[i], (double)want);
                }
                dq_backend_close(b);
            }
            unpack_free(&w);
            dq_block_free(values);
            dq_block_free(x);
            dq_block_free(y);
            dq_block_free(bias);
        }
    }
}

TEST(products_are_exact)
{
    check_products(DQ_ABSMAX);
}

TEST(products_with_zero_points_are_exact)
{
    check_products(DQ_ASYM);
}

/* Rounding activations to 8 bits costs about half a percent. */
TEST(products_are_near)
{
    enum { M = 20, N = 64, K = 512 };
    float *values = random_floats(N * K, 3), *x = random_floats(M * K, 4);
    float *y = block((size_t)M * N, sizeof *y), *z = block((size_t)M * N, sizeof *z);
    dq_weight w = pack(values, N, K, 8, 128, false, DQ_ABSMAX);
    dq_backend *b = open_cpu("avx512", 2);
    double error = 0, size = 0;
    b->ops->matmul(b, (dq_mat){y, M, N}, (dq_mat){x, M, K}, &w, NULL, DQ_NUM_INT8);
    b->ops->matmul(b, (dq_mat){z, M, N}, (dq_mat){x, M, K}, &w, NULL, DQ_NUM_F32);
    for (int i = 0; i < M * N; i++) {
        error += pow((double)(y[i] - z[i]), 2);
        size += pow((double)z[i], 2);
    }
    assert_true(sqrt(error / size) > 1e-4 && sqrt(error / size) < 1e-2);
    dq_backend_close(b);
    unpack_free(&w);
    dq_block_free(values);
    dq_block_free(x);
    dq_block_free(y);
    dq_block_free(z);
}

TEST(odd_input_is_reported)
{
    enum { N = 4, K = 8 };
    float *values = random_floats(N * K, 3), x[2 * K] = {0}, y[2 * N];
    dq_weight w = pack(values, N, K, 4, 8, false, DQ_ABSMAX),
              dense = {.name = "dense", .rows = N, .cols = K};
    dq_backend *b = open_cpu("avx512", 1);
    dq_err err = {0};
    x[3] = INFINITY;
    x[K + 1] = 1.0f;
    b->ops->matmul(b, (dq_mat){y, 2, N}, (dq_mat){x, 2, K}, &w, NULL, DQ_NUM_INT8);
    for (int j = 0; j < N; j++) assert_true(isnan(y[j]) && isfinite(y[N + j]));
    dense.bits = 16;
    dense.dtype = DQ_F32;
    dense.data = values;
    b->ops->matmul(b, (dq_mat){y, 2, N}, (dq_mat){x, 2, K}, &dense, NULL, DQ_NUM_INT8);
    assert_int_equal(dq_backend_sync(b, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "not packed"));
    dq_backend_close(b);
    unpack_free(&w);
    dq_block_free(values);
}
