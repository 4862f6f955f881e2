/* test_ops: every operation on rows and every product, at every instruction set, against f64
 * loops, and bit for bit across instruction sets, threads and row counts.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "tensor/tensor.h"
#include "tests/rigs/isas.h"
#include "tests/rigs/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- weights of every storage ---------------------------------------------------------------- */

typedef struct storage {
    const char *name;
    int bits;
    dq_dtype dtype, scale_dtype;
    int64_t group; /* columns, DQ_GROUP_ROW or DQ_GROUP_TENSOR */
    int offset;    /* bytes by which the data miss their alignment */
    bool zero;     /* with zero points */
} storage;

static const storage storages[] = {
    {"f32", 16, DQ_F32, DQ_F32, 0, 0, false},
    {"f32 unaligned", 16, DQ_F32, DQ_F32, 0, 3, false},
    {"f16", 16, DQ_F16, DQ_F32, 0, 1, false},
    {"bf16", 16, DQ_BF16, DQ_F32, 0, 1, false},
    {"2 bits, 32", 2, DQ_F32, DQ_F16, 32, 0, false},
    {"3 bits, 32", 3, DQ_F32, DQ_F32, 32, 1, false},
    {"4 bits, 128", 4, DQ_F32, DQ_F16, 128, 0, false},
    {"5 bits, 7", 5, DQ_F32, DQ_F16, 7, 0, false},
    {"6 bits, row", 6, DQ_F32, DQ_F32, DQ_GROUP_ROW, 1, false},
    {"7 bits, tensor", 7, DQ_F32, DQ_F32, DQ_GROUP_TENSOR, 0, false},
    {"8 bits, 32", 8, DQ_F32, DQ_F16, 32, 3, false},
    {"4 bits, 128, zero points", 4, DQ_F32, DQ_F16, 128, 0, true},
    {"3 bits, 7, zero points", 3, DQ_F32, DQ_F32, 7, 1, true},
    {"8 bits, row, zero points", 8, DQ_F32, DQ_F16, DQ_GROUP_ROW, 0, true},
    {"2 bits, tensor, zero points", 2, DQ_F32, DQ_F32, DQ_GROUP_TENSOR, 0, true},
};
enum { N_STORAGES = sizeof storages / sizeof *storages };

typedef struct weight_case {
    dq_weight w;
    uint8_t *data, *scale, *zero;
    double *value; /* [rows, cols] */
} weight_case;

static void store_scale(weight_case *c, int64_t i, float s)
{
    if (c->w.scale_dtype == DQ_F16) {
        const uint16_t h = dq_f16_from_f32(s);
        memcpy(c->scale + 2 * i, &h, 2);
    } else {
        memcpy(c->scale + 4 * i, &s, 4);
    }
}

static void fill_packed(weight_case *c, uint8_t *data, uint64_t *seed)
{
    dq_weight *w = &c->w;
    const int64_t groups = dq_quant_groups(w->cols, w->group_size);
    const size_t bytes = dq_quant_row_bytes(w->cols, w->bits);
    for (int64_t i = 0; i < w->scale_rows * groups; i++)
        store_scale(c, i, dq_quant_stored_scale(0.01f + fabsf(next_value(seed)), w->scale_dtype));
    for (size_t i = 0; w->zero && i < (size_t)w->scale_rows * dq_weight_zero_bytes(groups, w->bits);
         i++)
        c->zero[i] = (uint8_t)(next_bits(seed) & 255);
    for (int64_t r = 0; r < w->rows; r++) {
        uint8_t *row = data + (size_t)r * bytes;
        const int64_t used = w->cols * w->bits; /* what pads a row stays 0 */
        for (int64_t i = 0; i < used; i++)
            row[i / 8] = (uint8_t)(row[i / 8] | (next_bits(seed) & 1) << (i % 8));
        for (int64_t k = 0; k < w->cols; k++) {
            const int64_t at = (w->scale_rows == 1 ? 0 : r) * groups + k / w->group_size;
            float s;
            if (w->scale_dtype == DQ_F16) {
                uint16_t h;
                memcpy(&h, c->scale + 2 * at, 2);
                s = dq_f32_from_f16(h);
            } else {
                memcpy(&s, c->scale + 4 * at, 4);
            }
            int zero = 1 << (w->bits - 1);
            if (w->zero)
                zero =
                    code_at(c->zero + at / groups * (int64_t)dq_weight_zero_bytes(groups, w->bits),
                            at % groups, w->bits, 0);
            c->value[r * w->cols + k] = (double)((float)code_at(row, k, w->bits, zero) * s);
        }
    }
}

static void fill_dense(weight_case *c, uint8_t *data, uint64_t *seed)
{
    dq_weight *w = &c->w;
    for (int64_t i = 0; i < w->rows * w->cols; i++) {
        float x = next_value(seed);
        if (w->dtype == DQ_F32) {
            memcpy(data + 4 * i, &x, 4);
        } else {
            const uint16_t h = w->dtype == DQ_F16 ? dq_f16_from_f32(x) : dq_bf16_from_f32(x);
            memcpy(data + 2 * i, &h, 2);
            x = w->dtype == DQ_F16 ? dq_f32_from_f16(h) : dq_f32_from_bf16(h);
        }
        c->value[i] = (double)x;
    }
}

static weight_case new_weight(const storage *s, int64_t rows, int64_t cols, uint64_t seed)
{
    weight_case c = {0};
    dq_err err = {0};
    const size_t row = s->bits == 16 ? (size_t)cols * dq_dtypes[s->dtype].bytes
                                     : dq_quant_row_bytes(cols, s->bits);
    /* exactly as long as needed: the address sanitizer sees any byte read after it */
    c.data = malloc((size_t)rows * row + (size_t)s->offset);
    assert_non_null(c.data);
    memset(c.data, 0, (size_t)rows * row + (size_t)s->offset);
    c.value = dq_block_new((size_t)(rows * cols), sizeof *c.value, &err);
    assert_non_null(c.value);
    c.w = (dq_weight){.name = s->name,
                      .rows = rows,
                      .cols = cols,
                      .format = s->bits == 16 ? NULL
                                : s->zero     ? &dq_format_int_zero
                                              : &dq_format_int,
                      .bits = s->bits,
                      .dtype = s->dtype,
                      .data = c.data + s->offset};
    if (s->bits == 16) {
        fill_dense(&c, c.data + s->offset, &seed);
        return c;
    }
    c.w.group_size = s->group < 0 || s->group > cols ? cols : s->group;
    c.w.scale_rows = s->group == DQ_GROUP_TENSOR ? 1 : rows;
    c.w.scale_dtype = s->scale_dtype;
    c.scale = calloc((size_t)(c.w.scale_rows * dq_quant_groups(cols, c.w.group_size)), 4);
    assert_non_null(c.scale);
    c.w.scale = c.scale;
    if (s->zero) {
        c.zero = malloc((size_t)c.w.scale_rows *
                        dq_weight_zero_bytes(dq_quant_groups(cols, c.w.group_size), s->bits));
        assert_non_null(c.zero);
        c.w.zero = c.zero;
    }
    fill_packed(&c, c.data + s->offset, &seed);
    return c;
}

static void free_weight(weight_case *c)
{
    free(c->data);
    free(c->scale);
    free(c->zero);
    dq_block_free(c->value);
}

/* ---- products -------------------------------------------------------------------------------- */

/* Largest error of got against f64; *plain: that of a plain f32 loop, *top: the largest value. */
static double product_error(const float *got, const float *x, const weight_case *c,
                            const float *bias, int64_t m, double *plain, double *top)
{
    double worst = 0;
    *plain = *top = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < c->w.rows; j++) {
            const double *w = c->value + j * c->w.cols;
            const float *row = x + i * c->w.cols;
            double sum = 0;
            float loop = 0;
            for (int64_t k = 0; k < c->w.cols; k++) {
                sum += (double)row[k] * w[k];
                loop += row[k] * (float)w[k];
            }
            if (bias) {
                sum += (double)bias[j];
                loop += bias[j];
            }
            worst = fmax(worst, fabs((double)got[i * c->w.rows + j] - sum));
            *plain = fmax(*plain, fabs((double)loop - sum));
            *top = fmax(*top, fabs(sum));
        }
    return worst;
}

static void multiply(dq_backend *b, float *y, const float *x, int64_t m, const dq_weight *w,
                     const float *bias)
{
    float *in = new_floats(m * w->cols); /* operations take writable views */
    memcpy(in, x, (size_t)(m * w->cols) * sizeof *in);
    b->ops->matmul(b, (dq_mat){y, m, w->rows}, (dq_mat){in, m, w->cols}, w, bias, DQ_NUM_F32);
    expect_sync(b);
    dq_block_free(in);
}

static void check_product(const storage *s, int64_t m, int64_t n, int64_t k)
{
    weight_case c = new_weight(s, n, k, (uint64_t)(m * 7919 + n * 31 + k));
    float *x = random_floats(m * k, 5), *bias = random_floats(n, 6);
    float *y = new_floats(m * n), *other = new_floats(m * n), *fused = NULL;
    for (int isa = 0; isa < N_ISAS; isa++) {
        dq_backend *b = open_isa(isa, 1), *more;
        double plain, top;
        if (!b) continue;
        multiply(b, y, x, m, &c.w, m % 2 ? bias : NULL);
        const double e = product_error(y, x, &c, m % 2 ? bias : NULL, m, &plain, &top);
        if (!(e <= 2 * plain + 1e-6 * top))
            fail_msg("%s %s %dx%dx%d: error %g, plain loop %g", isas[isa], s->name, (int)m, (int)n,
                     (int)k, e, plain);
        for (int64_t i = 0; i < m; i++) /* row by row */
            multiply(b, other + i * n, x + i * k, 1, &c.w, m % 2 ? bias : NULL);
        assert_true(same_bits(y, other, m * n));
        for (int threads = 2; threads <= 5; threads += 3) {
            more = open_isa(isa, threads);
            multiply(more, other, x, m, &c.w, m % 2 ? bias : NULL);
            assert_true(same_bits(y, other, m * n));
            dq_backend_close(more);
        }
        if (isa == 1) {
            fused = new_floats(m * n);
            memcpy(fused, y, (size_t)(m * n) * sizeof *y);
        }
        if (isa == 2 && fused) assert_true(same_bits(y, fused, m * n));
        dq_backend_close(b);
    }
    dq_block_free(fused);
    dq_block_free(other);
    dq_block_free(y);
    dq_block_free(bias);
    dq_block_free(x);
    free_weight(&c);
}

TEST(products)
{
    static const int64_t shape[][3] = {
        {1, 1, 1},    {2, 3, 5},    {3, 16, 31},  {4, 17, 32},   {5, 64, 255},   {6, 65, 256},
        {7, 80, 257}, {8, 130, 64}, {9, 33, 599}, {12, 63, 512}, {13, 129, 513}, {1, 130, 600},
    };
    for (int i = 0; i < N_STORAGES; i++)
        for (size_t j = 0; j < sizeof shape / sizeof *shape; j++)
            check_product(&storages[i], shape[j][0], shape[j][1], shape[j][2]);
    check_product(&storages[0], 203, 70, 300); /* rows cut into pieces */
    check_product(&storages[3], 100, 1100, 40);
}

TEST(product_of_unfit_math)
{
    weight_case c = new_weight(&storages[0], 4, 4, 1);
    dq_backend *b = open_isa(0, 1);
    dq_err err = {0};
    float x[4] = {0}, y[4] = {0};
    b->ops->matmul(b, (dq_mat){y, 1, 4}, (dq_mat){x, 1, 4}, &c.w, NULL, DQ_NUM_INT8);
    assert_int_equal(dq_backend_sync(b, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "int8"));
    assert_int_equal(b->err.code, DQ_OK); /* moved, not copied */
    dq_backend_close(b);
    free_weight(&c);
}

TEST(memory_failures_stick)
{
    weight_case c = new_weight(&storages[0], 4, 4, 1);
    dq_backend *b = open_isa(0, 2);
    dq_err err = {0};
    float x[4] = {1, 2, 3, 4}, y[4] = {9, 9, 9, 9};
    dq_alloc_fail_at(2);
    b->ops->matmul(b, (dq_mat){y, 1, 4}, (dq_mat){x, 1, 4}, &c.w, NULL, DQ_NUM_F32);
    dq_alloc_fail_at(0);
    b->ops->add(b, (dq_mat){y, 1, 4}, (dq_mat){x, 1, 4});
    assert_true(y[0] == 9.0f);
    assert_null(b->ops->alloc(b, 16));
    assert_int_equal(dq_backend_sync(b, &err), DQ_RESOURCE);
    multiply(b, y, x, 1, &c.w, NULL);
    assert_true(y[0] != 9.0f);
    dq_backend_close(b);
    free_weight(&c);
}

/* ---- rows ------------------------------------------------------------------------------------ */

TEST(embeddings)
{
    const int32_t ids[5] = {0, 6, 3, 3, 10};
    for (int i = 0; i < N_STORAGES * N_ISAS; i++) {
        weight_case c = new_weight(&storages[i / N_ISAS], 11, 77, 3);
        dq_backend *b = open_isa(i % N_ISAS, 2);
        float *y = new_floats(5 * 77);
        if (b) {
            for (int k = 1; k < 3; k++) { /* times 1, and 2 */
                b->ops->embed(b, (dq_mat){y, 5, 77}, &c.w, ids, (float)k);
                expect_sync(b);
                for (int64_t j = 0; j < 5 * 77; j++)
                    assert_true((double)y[j] == k * c.value[ids[j / 77] * 77 + j % 77]);
            }
        }
        dq_backend_close(b);
        dq_block_free(y);
        free_weight(&c);
    }
}

TEST(norms)
{
    enum { ROWS = 5, COLS = 403 };
    float *x = random_floats(ROWS * COLS, 11), *gain = random_floats(COLS, 12);
    float *y = new_floats(ROWS * COLS);
    for (int isa = 0; isa < N_ISAS; isa++) {
        dq_backend *b = open_isa(isa, 2);
        if (!b) continue;
        b->ops->rms_norm(b, (dq_mat){y, ROWS, COLS}, (dq_mat){x, ROWS, COLS}, gain, 1e-5f);
        for (int64_t i = 0; i < ROWS; i++) {
            double sum = 0;
            for (int64_t j = 0; j < COLS; j++) sum += pow((double)x[i * COLS + j], 2);
            const double inv = 1 / sqrt(sum / COLS + (double)1e-5f);
            for (int64_t j = 0; j < COLS; j++) {
                const double want = (double)x[i * COLS + j] * inv * (double)gain[j];
                assert_true(fabs((double)y[i * COLS + j] - want) <= 2e-7 * fabs(want));
            }
        }
        memcpy(y, x, ROWS * COLS * sizeof *y); /* in place */
        b->ops->rms_norm(b, (dq_mat){y, ROWS, COLS}, (dq_mat){y, ROWS, COLS}, NULL, 1e-5f);
        expect_sync(b);
        assert_true(fabs((double)(y[0] / x[0] - y[7] / x[7])) < 1e-5);
        dq_backend_close(b);
    }
    dq_block_free(y);
    dq_block_free(gain);
    dq_block_free(x);
}

static void rope_case(dq_backend *b, dq_rope_order order, int dim)
{
    enum { ROWS = 3, HEADS = 2 };
    const int32_t pos[ROWS] = {0, 4001, 60000};
    float *inv = new_floats(dim / 2), *table = new_floats(ROWS * dim);
    float *x = random_floats(ROWS * HEADS * dim, 3), *y = new_floats(ROWS * HEADS * dim);
    const dq_rope rope = {.order = order, .dim = dim, .inv_freq = inv, .amplitude = 1.0f};
    for (int i = 0; i < dim / 2; i++) inv[i] = (float)pow(10000.0, -2.0 * i / dim);
    memcpy(y, x, (size_t)(ROWS * HEADS * dim) * sizeof *y);
    b->ops->rope_table(b, (dq_mat){table, ROWS, dim}, pos, &rope);
    b->ops->rope(b, (dq_mat){y, ROWS, HEADS * dim}, (dq_mat){table, ROWS, dim}, order);
    expect_sync(b);
    for (int r = 0; r < ROWS * HEADS; r++)
        for (int i = 0; i < dim / 2; i++) {
            const int lo = order == DQ_ROPE_HALVES ? i : 2 * i;
            const int hi = order == DQ_ROPE_HALVES ? i + dim / 2 : 2 * i + 1;
            const float angle = (float)pos[r / HEADS] * inv[i];
            const float c = (float)cos((double)angle), s = (float)sin((double)angle);
            const float u = x[r * dim + lo], v = x[r * dim + hi];
            const float lc = u * c, hs = v * s, hc = v * c, ls = u * s;
            assert_true(y[r * dim + lo] == lc - hs);
            assert_true(y[r * dim + hi] == hc + ls);
        }
    dq_block_free(y);
    dq_block_free(x);
    dq_block_free(table);
    dq_block_free(inv);
}

TEST(ropes)
{
    for (int isa = 0; isa < N_ISAS; isa++) {
        dq_backend *b = open_isa(isa, 2);
        if (!b) continue;
        for (int dim = 2; dim <= 128; dim += 14) {
            rope_case(b, DQ_ROPE_HALVES, dim);
            rope_case(b, DQ_ROPE_ADJACENT, dim);
        }
        dq_backend_close(b);
    }
}

/* ---- logits ---------------------------------------------------------------------------------- */

static double *softmax64(const float *x, const weight_case *c)
{
    dq_err err = {0};
    double *z = dq_block_new((size_t)c->w.rows, sizeof *z, &err), top = -INFINITY, sum = 0;
    assert_non_null(z);
    for (int64_t j = 0; j < c->w.rows; j++) {
        for (int64_t k = 0; k < c->w.cols; k++) z[j] += (double)x[k] * c->value[j * c->w.cols + k];
        top = fmax(top, z[j]);
    }
    for (int64_t j = 0; j < c->w.rows; j++) sum += exp(z[j] - top);
    for (int64_t j = 0; j < c->w.rows; j++) z[j] -= top + log(sum);
    return z;
}

TEST(logprobs)
{
    enum { ROWS = 37, DIM = 45, VOCAB = 1003 };
    weight_case c = new_weight(&storages[6], VOCAB, DIM, 4);
    float *x = random_floats(ROWS * DIM, 9);
    int32_t target[ROWS], top1[ROWS], one_top;
    double logp[ROWS], one;
    for (int i = 0; i < ROWS * DIM; i++) x[i] *= 0.1f; /* logits of about 10 */
    for (int i = 0; i < ROWS; i++) target[i] = i == 5 ? -1 : (i * 29) % VOCAB;
    for (int isa = 0; isa < N_ISAS; isa++) {
        dq_backend *b = open_isa(isa, 2), *single = open_isa(isa, 1);
        if (!b) continue;
        b->ops->logprob(b, logp, top1, (dq_mat){x, ROWS, DIM}, &c.w, target, DQ_NUM_F32);
        expect_sync(b);
        for (int i = 0; i < ROWS; i++) {
            double *z = softmax64(x + i * DIM, &c);
            assert_true(fabs(logp[i] - z[target[i] < 0 ? top1[i] : target[i]]) < 2e-5);
            for (int j = 0; j < VOCAB; j++) assert_true(z[j] <= z[top1[i]] + 1e-5);
            dq_block_free(z);
            single->ops->logprob(single, &one, &one_top, (dq_mat){x + i * DIM, 1, DIM}, &c.w,
                                 target + i, DQ_NUM_F32);
            assert_true(memcmp(&one, &logp[i], sizeof one) == 0 && one_top == top1[i]);
        }
        memset(x, 0, DIM * sizeof *x); /* all logits equal: the lowest index wins */
        b->ops->logprob(b, NULL, top1, (dq_mat){x, 1, DIM}, &c.w, NULL, DQ_NUM_F32);
        expect_sync(b);
        assert_int_equal(top1[0], 0);
        dq_backend_close(single);
        dq_backend_close(b);
    }
    dq_block_free(x);
    free_weight(&c);
}

/* One logit that is no number shows in the answer, whatever was asked for and wherever it stands. */
TEST(logits_that_are_no_numbers_show)
{
    enum { DIM = 5, VOCAB = 75 };
    static const float bad[] = {NAN, -NAN, INFINITY};
    float head[VOCAB * DIM], x[DIM] = {1, 0, 0, 0, 0};
    const dq_weight w = {
        .name = "head", .rows = VOCAB, .cols = DIM, .bits = 16, .dtype = DQ_F32, .data = head};
    for (int isa = 0; isa < N_ISAS; isa++) {
        dq_backend *b = open_isa(isa, 1);
        if (!b) continue;
        for (int i = 0; i < 3 * VOCAB; i++) {
            int32_t target[2] = {-1, (i * 7 + 1) % VOCAB}, top1;
            double logp;
            for (int k = 0; k < VOCAB * DIM; k++) head[k] = (float)(k % 11) - 5;
            head[i / 3 * DIM] = bad[i % 3];
            for (int k = 0; k < 2; k++) {
                b->ops->logprob(b, &logp, &top1, (dq_mat){x, 1, DIM}, &w, &target[k], DQ_NUM_F32);
                expect_sync(b);
                assert_true(!isfinite(logp));
            }
        }
        dq_backend_close(b);
    }
}

/* A head in codes gives what the f32 head of their values gives, in int8 arithmetic too. */
static void head_on_codes(const storage *as, int isa)
{
    enum { ROWS = 21, DIM = 77, VOCAB = 203 };
    weight_case c = new_weight(as, VOCAB, DIM, 5), other = new_weight(&storages[3], VOCAB, DIM, 6);
    float *x = random_floats(ROWS * DIM, 9), *y = random_floats(ROWS * DIM, 10),
          *value = new_floats(VOCAB * DIM);
    const dq_weight dense = {
        .name = "dense", .rows = VOCAB, .cols = DIM, .bits = 16, .dtype = DQ_F32, .data = value};
    const dq_weight *const head[2] = {&c.w, &dense};
    double logp[2][ROWS] = {{0}}, kld[2][ROWS] = {{0}}, from[2][ROWS] = {{0}};
    int32_t top1[2][ROWS] = {{0}};
    const double by = rounding_of(c.value, VOCAB, DIM);
    for (int64_t i = 0; i < VOCAB * DIM; i++) value[i] = (float)c.value[i];
    for (int num = 0; num < 2; num++) {
        dq_backend *b = open_isa(isa, 2);
        for (int k = 0; b && k < 2; k++) {
            const dq_num n = num && k == 0 ? DQ_NUM_INT8 : DQ_NUM_F32;
            const dq_mat s = {x, ROWS, DIM}, t = {y, ROWS, DIM};
            b->ops->logprob(b, logp[k], top1[k], s, head[k], NULL, n);
            b->ops->kld(b, kld[k], t, &other.w, DQ_NUM_F32, s, head[k], n);
            b->ops->kld(b, from[k], s, head[k], n, t, &other.w, DQ_NUM_F32);
            expect_sync(b);
        }
        if (!are_near(logp[0], logp[1], ROWS, by) || !are_near(kld[0], kld[1], ROWS, by) ||
            !are_near(from[0], from[1], ROWS, by) || memcmp(top1[0], top1[1], sizeof top1[0]) != 0)
            fail_msg("%s, isa %d: a head in codes differs from its values", as->name, isa);
        dq_backend_close(b);
    }
    dq_block_free(x);
    dq_block_free(y);
    dq_block_free(value);
    free_weight(&c);
    free_weight(&other);
}

TEST(heads_on_codes)
{
    for (int i = 0; i < N_STORAGES * N_ISAS; i++) head_on_codes(&storages[i / N_ISAS], i % N_ISAS);
}

TEST(divergences)
{
    enum { ROWS = 19, DIM = 40, VOCAB = 517 };
    weight_case p = new_weight(&storages[0], VOCAB, DIM, 4);
    weight_case q = new_weight(&storages[10], VOCAB, DIM, 8);
    float *x = random_floats(ROWS * DIM, 9), *y = random_floats(ROWS * DIM, 10);
    double kld[ROWS], one;
    for (int isa = 0; isa < N_ISAS; isa++) {
        dq_backend *b = open_isa(isa, 2);
        if (!b) continue;
        const dq_mat ref = {x, ROWS, DIM}, hid = {y, ROWS, DIM};
        b->ops->kld(b, kld, ref, &p.w, DQ_NUM_F32, ref, &p.w, DQ_NUM_F32);
        for (int i = 0; i < ROWS; i++) assert_true(kld[i] == 0);
        b->ops->kld(b, kld, ref, &p.w, DQ_NUM_F32, hid, &q.w, DQ_NUM_F32);
        expect_sync(b);
        for (int i = 0; i < ROWS; i++) {
            double *u = softmax64(x + i * DIM, &p), *v = softmax64(y + i * DIM, &q), want = 0;
            for (int j = 0; j < VOCAB; j++) want += exp(u[j]) * (u[j] - v[j]);
            assert_true(fabs(kld[i] - want) < 1e-5 * (1 + want));
            b->ops->kld(b, &one, (dq_mat){x + i * DIM, 1, DIM}, &p.w, DQ_NUM_F32,
                        (dq_mat){y + i * DIM, 1, DIM}, &q.w, DQ_NUM_F32);
            assert_true(memcmp(&one, &kld[i], sizeof one) == 0);
            dq_block_free(u);
            dq_block_free(v);
        }
        dq_backend_close(b);
    }
    dq_block_free(y);
    dq_block_free(x);
    free_weight(&q);
    free_weight(&p);
}

/* Ceilings: every instruction set has its own for f32 and int8, on as many threads as there are, and reads whatever it is given. */
TEST(peaks)
{
    const char *scalar = NULL;
    weight_case dense = new_weight(&storages[0], 4, 64, 1);
    weight_case packed = new_weight(&storages[4], 4, 64, 1);
    for (int isa = 0; isa < N_ISAS; isa++) {
        const char *name = "";
        dq_backend *one = open_isa(isa, 1), *two = open_isa(isa, 2);
        if (!one) continue;
        for (dq_num num = DQ_NUM_F32; num <= DQ_NUM_INT8; num++) {
            const double ops = one->ops->peak_ops(one, num, NULL, &name);
            if (num == DQ_NUM_BF16) {
                assert_true(ops == 0 && name == NULL);
                continue;
            }
            assert_non_null(name);
            assert_true(ops > 0);
            assert_true(two->ops->peak_ops(two, num, NULL, &name) == 2 * ops);
        }
        /* a product in f32 with packed weights is three of codes */
        const char *dot = NULL, *split = NULL;
        const double dots = one->ops->peak_ops(one, DQ_NUM_INT8, &packed.w, &dot);
        assert_true(3 * one->ops->peak_ops(one, DQ_NUM_F32, &packed.w, &split) == dots);
        assert_string_not_equal(dot, split);
        one->ops->peak_ops(one, DQ_NUM_F32, &dense.w, &name);
        assert_string_not_equal(name, split);
        one->ops->peak_ops(one, DQ_NUM_F32, NULL, &name);
        if (isa == 0) scalar = name;
        assert_true((isa == 0) == (strcmp(name, scalar) == 0));
        for (size_t lines = 0; lines < 20;
             lines++) { /* a byte more would be seen by the sanitizer */
            void *p = one->ops->alloc(one, 64 * lines + 1);
            one->ops->peak_read(one, p, 64 * lines);
            two->ops->peak_read(two, p, 64 * lines);
            one->ops->free(one, p);
        }
        expect_sync(one);
        expect_sync(two);
        dq_backend_close(one);
        dq_backend_close(two);
    }
    free_weight(&packed);
    free_weight(&dense);
}
