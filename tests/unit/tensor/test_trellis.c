/* test_trellis: rings of codes against a plain search over all of them, their bytes, and the matrices that they make.
 * SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/rigs/isas.h"
#include "tests/rigs/suite.h"

#include "quantize/quantize.h"
#include "tensor/tensor.h"

#include <math.h>

/* By tensor.h. */
static double lost(float want, double level, double scale)
{
    const double d = (double)want - level * scale;
    return scale != 0 ? d * d / fabs(scale) : 0;
}

/* The least cost of a ring of n rows whose windows of rows n - 1 and 0 meet in `state`, or in any (-1: open), by the definition:
 * the windows of a row are those whose low bits are the high bits of the row before it. */
static double least_cost(const float *want, const float *scale, int64_t n, int bits, int state)
{
    const int states = DQ_TRELLIS_LEVELS >> bits;
    const int8_t *level = dq_trellis_table_of(bits)->level;
    double cost[64], next[64], least = (double)INFINITY;
    for (int s = 0; s < states; s++) cost[s] = state < 0 || s == state ? 0 : (double)INFINITY;
    for (int64_t r = 0; r < n; r++) { /* from the first row on, which the product does not do */
        for (int s = 0; s < states; s++) next[s] = (double)INFINITY;
        for (int w = 0; w < DQ_TRELLIS_LEVELS; w++) {
            const double sum =
                cost[w & (states - 1)] + lost(want[r], (double)level[w], (double)scale[r]);
            if (sum < next[w >> bits]) next[w >> bits] = sum;
        }
        memcpy(cost, next, sizeof cost);
    }
    if (state >= 0) return cost[state];
    for (int s = 0; s < states; s++) least = fmin(least, cost[s]);
    return least;
}

static double cost_of(const uint8_t *u, const float *want, const float *scale, int64_t n, int bits)
{
    const int8_t *level = dq_trellis_table_of(bits)->level;
    double sum = 0;
    for (int64_t r = 0; r < n; r++) sum += lost(want[r], (double)level[u[r]], (double)scale[r]);
    return sum;
}

/* Windows overlap as a ring of bits makes them, and lose what the best ring that closes there loses. */
TEST(rings_are_the_best_that_close_there)
{
    static const int64_t sizes[] = {32, 64, 96, 128};
    uint64_t seed = 3;
    for (int bits = DQ_TRELLIS_MIN_BITS; bits <= DQ_TRELLIS_MAX_BITS; bits++) {
        for (int k = 0; k < 40; k++) {
            const int64_t n = sizes[k % 4];
            const int mask = (DQ_TRELLIS_LEVELS >> bits) - 1;
            float want[DQ_TRELLIS_ROWS], scale[DQ_TRELLIS_ROWS];
            uint8_t u[DQ_TRELLIS_ROWS], plain[DQ_TRELLIS_ROWS];
            for (int64_t r = 0; r < n; r++) {
                scale[r] = 0.02f * (1 + (float)(next_bits(&seed) % 100) / 50) * (k % 3 ? 1 : -1);
                want[r] = next_value(&seed) * 40 * scale[r];
            }
            if (k % 5 == 0) scale[7] = 0; /* counts nothing */
            dq_trellis_encode(u, want, scale, n, bits);
            dq_trellis_encode_plain(plain, want, scale, n, bits);
            assert_memory_equal(u, plain, (size_t)n);
            for (int64_t r = 0; r < n; r++) assert_int_equal(u[r] >> bits, u[(r + 1) % n] & mask);
            const double got = cost_of(u, want, scale, n, bits);
            const double best = least_cost(want, scale, n, bits, u[0] & mask);
            const double open = least_cost(want, scale, n, bits, -1);
            assert_true(got <= best * 1.00001);
            assert_true(open <= got * 1.00001);
            uint8_t ring[DQ_TRELLIS_ROWS];
            dq_trellis_pack(ring, u, n, bits);
            for (int64_t r = 0; r < n; r++)
                assert_int_equal(dq_trellis_window(ring, r, n, bits), u[r]);
        }
    }
}

/* Of normal values in groups of 64 a strip loses what tensor.h says, and that much less than integers. */
TEST(normal_values_lose_what_is_said)
{
    enum { ROWS = DQ_STRIP_ROWS, COLS = 64 * 8 };
    static const double says[] = {0, 0, .077, .021, .0056, .0015},
                        of[] = {0, 0, .63, .67, .69, .74};
    float *w = new_floats(ROWS * COLS), got[64];
    int8_t q[64];
    uint64_t seed = 8;
    for (int64_t i = 0; i < ROWS * COLS; i++) { /* Box and Muller: next_value has no tails */
        const double a = ((double)next_bits(&seed) + 1) / 2147483649.0;
        const double b = (double)next_bits(&seed) / 2147483648.0;
        w[i] = (float)(sqrt(-2 * log(a)) * cos(6.283185307179586 * b));
    }
    for (int bits = DQ_TRELLIS_MIN_BITS; bits <= DQ_TRELLIS_MAX_BITS; bits++) {
        const dq_quant_spec spec = {bits, 64, DQ_TRELLIS, DQ_F16, NULL};
        dq_quant_error e = {0}, alone = {0};
        dq_codes *c;
        dq_err err = {0};
        assert_int_equal(dq_codes_new(&c, ROWS, COLS, &spec, &err), DQ_OK);
        dq_codes_round_strip(c, w);
        for (int64_t i = 0; i < ROWS * COLS; i += 64) {
            const dq_grid g = dq_codes_grid(c, i / COLS, i % COLS);
            const float scale = dq_quant_group_scale(w + i, 64, bits, DQ_SEARCH, DQ_F16);
            for (int k = 0; k < 64; k++)
                got[k] = (float)dq_trellis_table_of(bits)->level[(uint8_t)c->code[i + k]] * g.scale;
            dq_quant_error_add(&e, w + i, got, 64);
            dq_quant_encode_back(q, got, w + i, 64, bits, scale, DQ_SEARCH);
            dq_quant_error_add(&alone, w + i, got, 64);
        }
        assert_true(fabs(e.noise / e.signal / says[bits] - 1) < .06);
        assert_true(fabs(e.noise / alone.noise / of[bits] - 1) < .06);
        dq_codes_free(c);
    }
    dq_block_free(w);
}

/* Of a column that has the same large value in every row its factor makes one of the usual size. */
TEST(columns_of_large_values_have_factors)
{
    enum { ROWS = 200, COLS = 24 };
    float *w = random_floats(ROWS * COLS, 5);
    double sums[COLS] = {0};
    int8_t column[COLS];
    dq_err err = {0};
    for (int64_t r = 0; r < ROWS; r++) {
        w[r * COLS + 3] = 12;
        w[r * COLS + 9] *= 0.01f;
        w[r * COLS + 10] = 0;
    }
    dq_codes_column_sums(sums, w, ROWS, COLS);
    assert_int_equal(dq_codes_columns(column, sums, COLS, &err), DQ_OK);
    for (int k = 0; k < COLS; k++) {
        if (k != 3) assert_int_equal(column[k], 0);
    }
    assert_true(fabs(12 / (double)dq_weight_factor(column[3]) - 1.5) < 0.2);
    for (int c = -128; c < 128; c++)
        assert_true(fabs((double)dq_weight_factor((int8_t)c) / exp2(c / 8.0) - 1) < 1e-7);
    dq_block_free(w);
}

static double error_of(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sum;
}

/* What dq quantize stores without a text, tile by tile: the bytes of strips that are rounded one by one, in any shape. */
typedef struct datasets {
    uint8_t *at[DQ_MAX_DATASETS];
    size_t n[DQ_MAX_DATASETS];
} datasets;

static dq_status keep(void *arg, int dataset, const void *p, size_t bytes, dq_err *err)
{
    datasets *all = arg;
    (void)err;
    memcpy(all->at[dataset] + all->n[dataset], p, bytes);
    all->n[dataset] += bytes;
    return DQ_OK;
}

TEST(tensors_are_their_strips)
{
    static const int64_t shapes[][3] = {
        {300, 70, 32}, {128, 64, 64}, {31, 9, 4}, {1, 200, 200}, {700, 513, 128}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const int64_t rows = shapes[k][0], cols = shapes[k][1];
        const int bits = 2 + (int)k % 4;
        float *w = random_floats(rows * cols, 21 + k), *back = new_floats(rows * cols);
        int8_t column[600];
        const dq_tensor t = {.name = "w",
                             .n_dims = 2,
                             .shape = {rows, cols},
                             .data = NULL /* pages of a file would be given back */};
        dq_quantize_tensor q = {.t = &t,
                                .w = dq_weight_of_f32("w", rows, cols, w),
                                .rows = rows,
                                .cols = cols,
                                .format = &dq_format_trellis,
                                .spec = {bits, shapes[k][2], DQ_TRELLIS, DQ_F16, column},
                                .column = column,
                                .group_size = shapes[k][2],
                                .scale_rows = rows};
        dq_quantize_tensor_buffers buffers = {{NULL}, {0}};
        dq_quant_error e;
        dq_coded coded;
        dq_err err = {0};
        datasets all = {{NULL}, {0}};
#pragma omp parallel
#pragma omp single
        {
            dq_quantize_tensor_scan(&q, &buffers, NULL, &err);
            if (err.code == DQ_OK) dq_coded_new(&coded, rows, cols, &q.spec, &err);
            for (int i = 0; i < q.format->n_datasets; i++) all.at[i] = dq_coded_dataset(&coded, i);
            const dq_quantize_sink sink = {keep, &all};
            dq_quantize_tensor_write(&q, &buffers, &sink, &e, NULL, &err);
        }
        assert_int_equal(err.code, DQ_OK);
        for (int i = 0; i < q.format->n_datasets; i++) {
            const dq_dataset p = dq_weight_dataset(&coded.weight, i);
            assert_int_equal(all.n[i], dq_dataset_bytes(&p));
            assert_null(q.format->dataset[i].wrong(&p, DQ_TRELLIS));
        }
        dq_weight_dequantize_rows(back, &coded.weight, 0, rows);
        assert_true(fabs(error_of(w, back, rows * cols) / e.noise - 1) < 1e-6);
        assert_true(e.noise < e.signal * (bits == 2 ? .15 : .05));
        for (int64_t first = 0; first < rows; first += DQ_STRIP_ROWS) {
            const int64_t n = rows - first < DQ_STRIP_ROWS ? rows - first : DQ_STRIP_ROWS;
            dq_codes *c;
            dq_coded strip;
            float *its = new_floats(n * cols);
            assert_int_equal(dq_codes_new(&c, n, cols, &q.spec, &err), DQ_OK);
            dq_codes_round_strip(c, w + first * cols);
            assert_int_equal(dq_coded_pack(&strip, c, &err), DQ_OK);
            dq_weight_dequantize_rows(its, &strip.weight, 0, n);
            assert_memory_equal(its, back + first * cols, (size_t)(n * cols) * sizeof *its);
            dq_coded_free(&strip);
            dq_codes_free(c);
            dq_block_free(its);
        }
        dq_coded_free(&coded);
        dq_quantize_tensor_buffers_free(&buffers);
        dq_block_free(w);
        dq_block_free(back);
    }
}

/* Nothing to say: zeros stay zeros. */
TEST(zeros_stay_zeros)
{
    enum { ROWS = 40, COLS = 16 };
    static const float w[ROWS * COLS];
    const dq_quant_spec spec = {3, 8, DQ_TRELLIS, DQ_F16, NULL};
    float back[ROWS * COLS];
    dq_codes *c;
    dq_coded coded;
    dq_err err = {0};
    assert_int_equal(dq_codes_new(&c, ROWS, COLS, &spec, &err), DQ_OK);
    dq_codes_round_strip(c, w);
    assert_int_equal(dq_coded_pack(&coded, c, &err), DQ_OK);
    dq_weight_dequantize_rows(back, &coded.weight, 0, ROWS);
    for (int i = 0; i < ROWS * COLS; i++) assert_true(back[i] == 0);
    dq_coded_free(&coded);
    dq_codes_free(c);
}
