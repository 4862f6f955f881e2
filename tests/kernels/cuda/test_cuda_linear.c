/* test_cuda_linear: products with weights on the CUDA backend. Integers equal the CPU's bit for bit in
 * every order of threads; floats are near it, and a row's result does not depend on the rows beside it.
 * SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda/cuda_rig.h"
#include "tests/rigs/suite.h"

static const int64_t ragged[] = {1, 3, 70};
enum { N_RAGGED = 3 };

static dq_mat multiply(dq_backend *b, const float *x, int64_t rows, const dq_weight *w,
                       const float *bias, dq_num num)
{
    dq_mat src = rig_put(b, x, rows, w->cols), dst = rig_put(b, NULL, rows, w->rows);
    if (b->ops->weight_acquire) assert_true(b->ops->weight_acquire(b, w));
    b->ops->matmul(b, dst, src, w, bias, num);
    if (b->ops->weight_release) b->ops->weight_release(b, w);
    b->ops->free(b, src.p);
    return dst;
}

static void check(const rig *r, const float *x, int64_t rows, const dq_weight *w, bool biased,
                  dq_num num, double absolute)
{
    float *bias = biased ? rig_floats(w->rows, 31) : NULL;
    const dq_num on_cpu = num == DQ_NUM_BF16 ? DQ_NUM_F32 : num;
    dq_mat want = multiply(r->cpu, x, rows, w, bias, on_cpu);
    dq_mat got = multiply(r->cuda, x, rows, w, bias, num);
    rig_compare_mats(r, want, got, 0, absolute);
    rig_drop(bias);
}

/* ----------------------------------------------------------------------------------------- integers */
/* group 0: one scale for the whole tensor; more than cols: one per row. */
static void check_int8(const rig *r, int64_t rows, int64_t out, int64_t cols, int bits,
                       int64_t group, dq_dtype type)
{
    float *x = rig_floats(rows * cols, (uint64_t)(rows + cols));
    dq_weight w = rig_packed(out, cols, bits, group, type, (uint64_t)(bits + group));
    check(r, x, rows, &w, out % 2 == 1, DQ_NUM_INT8, 0);
    rig_drop_weight(&w);
    w = rig_zeroed(out, cols, bits, group, type, (uint64_t)(bits + group));
    check(r, x, rows, &w, out % 2 == 1, DQ_NUM_INT8, 0);
    rig_drop(x);
    rig_drop_weight(&w);
}

TEST(test_packed)
{
    static const int64_t groups[] = {32, 128, 1 << 20, 0};
    rig r = rig_open();
    for (int bits = 2; bits <= 8; bits++)
        for (int g = 0; g < 4; g++) {
            check_int8(&r, 1, 67, 300, bits, groups[g], DQ_F16);
            check_int8(&r, 19, 70, 300, bits, groups[g], g % 2 ? DQ_F16 : DQ_F32);
        }
    rig_close(&r);
}

TEST(test_packed_shapes)
{
    rig r = rig_open();
    check_int8(&r, 3, 1, 1, 4, 1, DQ_F16);
    check_int8(&r, 16, 33, 31, 4, 32, DQ_F16);
    check_int8(&r, 17, 9, 640, 8, 64, DQ_F32);
    check_int8(&r, 70, 131, 129, 4, 128, DQ_F16);
    check_int8(&r, 130, 65, 256, 6, 96, DQ_F16); /* groups end inside stages */
    check_int8(&r, 5, 40, 200, 5, 20, DQ_F32);   /* groups are padded */
    check_int8(&r, 18, 40, 1100, 3, 50, DQ_F16);
    check_int8(&r, 18, 12, 700, 2, 600, DQ_F16); /* one block rounds a group */
    rig_close(&r);
}

TEST(test_orders)
{
    rig r = rig_open();
    for (uint64_t seed = 0; seed < 4; seed++) {
        dq_simt_set_schedule(seed ? DQ_SIMT_GREEDY : DQ_SIMT_ROUND_ROBIN, seed);
        check_int8(&r, 130, 70, 520, 4, 128, DQ_F16);
        check_int8(&r, 40, 70, 520, 8, 32, DQ_F32);
        check_int8(&r, 5, 70, 1300, 6, 64, DQ_F16);
    }
    dq_simt_set_schedule(DQ_SIMT_GREEDY, 1);
    rig_close(&r);
}

/* Zeros, values that are not finite, and rows that only differ in scale. */
TEST(test_special_activations)
{
    rig r = rig_open();
    float *x = rig_floats(20 * 96, 32);
    dq_weight w = rig_packed(24, 96, 4, 32, DQ_F16, 33);
    for (int i = 0; i < 96; i++) {
        x[i] = 0;
        x[96 + i] *= 1e-30f;
        x[2 * 96 + i] *= 1e30f;
        x[3 * 96 + i] = (float)(i % 5) - 2.0f; /* quotients that lie on ties */
    }
    x[4 * 96 + 40] = INFINITY;
    x[5 * 96 + 80] = NAN;
    check(&r, x, 20, &w, false, DQ_NUM_INT8, 0);
    rig_drop(x);
    rig_drop_weight(&w);
    rig_close(&r);
}

/* ------------------------------------------------------------------------------------------- floats */
static void check_floats(const rig *r, dq_weight w, dq_num num, double absolute)
{
    for (int i = 0; i < N_RAGGED; i++) {
        float *x = rig_floats(ragged[i] * w.cols, 34);
        check(r, x, ragged[i], &w, i == 2, num, absolute);
        rig_drop(x);
    }
    rig_drop_weight(&w);
}

TEST(test_floats)
{
    static const dq_dtype dense[] = {DQ_F32, DQ_F16, DQ_BF16};
    rig r = rig_open();
    for (int64_t cols = 205; cols <= 208; cols += 3) { /* 8 columns at a time, too */
        for (int i = 0; i < 3; i++) {
            check_floats(&r, rig_dense(131, cols, dense[i], 35), DQ_NUM_F32, 2e-4);
            check_floats(&r, rig_dense(131, cols, dense[i], 35), DQ_NUM_BF16, 0.5);
        }
        for (int bits = 2; bits <= 8; bits++) {
            check_floats(&r, rig_packed(131, cols, bits, 128, DQ_F16, 36), DQ_NUM_F32, 2e-4);
            check_floats(&r, rig_packed(131, cols, bits, 48, DQ_F32, 37), DQ_NUM_BF16, 0.5);
            check_floats(&r, rig_packed(131, cols, bits, 20, DQ_F32, 37), DQ_NUM_F32, 2e-4);
            check_floats(&r, rig_zeroed(131, cols, bits, 48, DQ_F16, 36), DQ_NUM_F32, 1e-3);
        }
        check_floats(&r, rig_packed(20, cols, 4, 0, DQ_F16, 38), DQ_NUM_F32, 2e-4);
    }
    rig_close(&r);
}

/* Trellis codes are uploaded as what they stand for. */
TEST(test_levels)
{
    int8_t level[256], column[205];
    rig r = rig_open();
    for (int i = 0; i < 256; i++) level[i] = (int8_t)(i * 67 % 255 - 127);
    for (int i = 0; i < 205; i++) column[i] = (int8_t)(i % 7);
    for (int bits = 2; bits <= 5; bits++) {
        dq_weight w = rig_packed(131, 205, 8, 48, DQ_F16, 45);
        float *x = rig_floats(205, 46);
        dq_err err = {0};
        w.format = &dq_format_trellis;
        w.bits = bits;
        w.level = level;
        w.column = column;
        dq_mat y = multiply(r.cuda, x, 1, &w, NULL, DQ_NUM_INT8);
        assert_int_equal(dq_backend_sync(r.cuda, &err), DQ_MISMATCH);
        assert_non_null(strstr(err.text, "has trellis codes, of which there are no int8 products"));
        r.cuda->ops->free(r.cuda, y.p);
        check(&r, x, 1, &w, true, DQ_NUM_BF16, 0.5);
        check_floats(&r, w, DQ_NUM_F32, 2e-3);
        rig_drop(x);
    }
    rig_close(&r);
}

/* bf16 products are those of rounded operands, with sums in f32. */
TEST(test_bf16_rounds_operands)
{
    rig r = rig_open();
    dq_weight w = rig_dense(20, 64, DQ_BF16, 39);
    float *x = rig_floats(3 * 64, 40), *rounded = rig_floats(3 * 64, 40);
    for (int i = 0; i < 3 * 64; i++) rounded[i] = dq_f32_from_bf16(dq_bf16_from_f32(x[i]));
    dq_mat want = multiply(r.cpu, rounded, 3, &w, NULL, DQ_NUM_F32);
    dq_mat got = multiply(r.cuda, x, 3, &w, NULL, DQ_NUM_BF16);
    rig_compare_mats(&r, want, got, 0, 1e-4);
    rig_drop(x);
    rig_drop(rounded);
    rig_drop_weight(&w);
    rig_close(&r);
}

/* Whether a row alone, among 300 and among 4096 has the same bits; where products are one call each. */
static void check_rows(const rig *r, const dq_weight *w, dq_num num)
{
    enum { ROWS = 4096, FEW = 300 };
    float *x = rig_floats(ROWS * w->cols, 42);
    float *all = rig_take(r->cuda, multiply(r->cuda, x, ROWS, w, NULL, num));
    float *few = rig_take(r->cuda, multiply(r->cuda, x, FEW, w, NULL, num));
    const size_t pitch = (size_t)w->rows * sizeof *all;
    assert_memory_equal(all, few, FEW * pitch);
    for (int64_t row = 0; row < ROWS; row += row < FEW ? 23 : 611) {
        float *one = rig_take(r->cuda, multiply(r->cuda, x + row * w->cols, 1, w, NULL, num));
        assert_memory_equal(all + row * w->rows, one, pitch);
        rig_drop(one);
    }
    rig_drop(few);
    rig_drop(all);
    rig_drop(x);
}

/* Odd shapes too, whose rows begin at no multiple of 16 bytes. */
TEST(test_rows_are_independent)
{
    static const dq_num nums[] = {DQ_NUM_F32, DQ_NUM_BF16, DQ_NUM_INT8};
    rig r = rig_open();
    dq_weight w[] = {rig_packed(50, 160, 4, 32, DQ_F16, 41), rig_dense(33, 45, DQ_BF16, 43)};
    for (int k = 0; k < 3; k++) {
        check_rows(&r, &w[0], nums[k]);
        if (nums[k] != DQ_NUM_INT8) check_rows(&r, &w[1], nums[k]);
    }
    for (int i = 0; i < 2; i++) rig_drop_weight(&w[i]);
    rig_close(&r);
}

#ifdef DQ_SIMT
/* Rows of the last product that a library saw: of 300 whole, in tiles of 32, or a row alone. */
static int rows_seen(int lt, int blas)
{
    dq_simt_set_lt(lt);
    dq_simt_set_blas(blas);
    rig r = rig_open();
    dq_weight w = rig_dense(24, 32, DQ_F32, 47);
    float *x = rig_floats(300 * w.cols, 42);
    float *all = rig_take(r.cuda, multiply(r.cuda, x, 300, &w, NULL, DQ_NUM_F32));
    int m, n, depth;
    dq_simt_blas_calls(&m, &n, &depth);
    assert_true(m == 24 && depth == 32);
    check_rows(&r, &w, DQ_NUM_F32);
    check_rows(&r, &w, DQ_NUM_BF16);
    rig_drop(all);
    rig_drop(x);
    rig_drop_weight(&w);
    rig_close(&r);
    dq_simt_set_lt(DQ_SIMT_LT_EVEN);
    dq_simt_set_blas(DQ_SIMT_BLAS_WHOLE);
    return n;
}

TEST(test_whole_or_tiles)
{
    assert_int_equal(rows_seen(DQ_SIMT_LT_EVEN, DQ_SIMT_BLAS_WHOLE), 300);
    assert_int_equal(rows_seen(DQ_SIMT_LT_UNEVEN, DQ_SIMT_BLAS_WHOLE), 32);
    assert_int_equal(rows_seen(DQ_SIMT_LT_NONE, DQ_SIMT_BLAS_WHOLE), 32);
    assert_int_equal(rows_seen(DQ_SIMT_LT_ONE, DQ_SIMT_BLAS_WHOLE), 32);
    assert_in_range(rows_seen(DQ_SIMT_LT_FEW, DQ_SIMT_BLAS_WHOLE), 1, 7);
    assert_int_equal(rows_seen(DQ_SIMT_LT_EVEN, DQ_SIMT_BLAS_WITHOUT_LT), 32);
    assert_int_equal(rows_seen(DQ_SIMT_LT_EVEN, DQ_SIMT_BLAS_OLD_LT), 32);
}

/* A shape is tried once, by three products. */
TEST(test_tried_once)
{
    rig r = rig_open();
    dq_weight w = rig_dense(24, 32, DQ_F32, 47);
    float *x = rig_floats(w.cols, 42);
    int m, n, depth;
    for (int i = 0; i < 3; i++) {
        const int before = dq_simt_blas_calls(&m, &n, &depth);
        rig_drop(rig_take(r.cuda, multiply(r.cuda, x, 1, &w, NULL, DQ_NUM_F32)));
        assert_int_equal(dq_simt_blas_calls(&m, &n, &depth) - before, i ? 1 : 4);
    }
    rig_drop(x);
    rig_drop_weight(&w);
    rig_close(&r);
}

/* A shape that was not tried to the end is tried again. */
TEST(test_tried_again)
{
    rig r = rig_open();
    dq_err err = {0};
    dq_weight w = rig_dense(24, 32, DQ_F32, 47);
    float *x = rig_floats(w.cols, 42);
    dq_mat src = rig_put(r.cuda, x, 1, w.cols), dst = rig_put(r.cuda, NULL, 1, w.rows);
    assert_true(r.cuda->ops->weight_acquire(r.cuda, &w));
    dq_simt_set_lt(DQ_SIMT_LT_FAILS);
    r.cuda->ops->matmul(r.cuda, dst, src, &w, NULL, DQ_NUM_F32);
    assert_int_equal(dq_backend_sync(r.cuda, &err), DQ_BUG);
    assert_non_null(strstr(err.text, "cublasLtMatmul failed: cuBLAS status 14"));
    dq_simt_set_lt(DQ_SIMT_LT_UNEVEN);
    r.cuda->ops->matmul(r.cuda, dst, src, &w, NULL, DQ_NUM_F32);
    rig_sync(r.cuda);
    int m, n, depth;
    dq_simt_blas_calls(&m, &n, &depth);
    assert_int_equal(n, 32);
    dq_simt_set_lt(DQ_SIMT_LT_EVEN);
    r.cuda->ops->weight_release(r.cuda, &w);
    r.cuda->ops->free(r.cuda, src.p);
    r.cuda->ops->free(r.cuda, dst.p);
    rig_drop(x);
    rig_drop_weight(&w);
    rig_close(&r);
}
#endif

TEST(test_refusals)
{
    rig r = rig_open();
    dq_err err = {0};
    dq_weight w = rig_dense(8, 8, DQ_F32, 43);
    float *x = rig_floats(8, 44);
    dq_mat y = multiply(r.cuda, x, 1, &w, NULL, DQ_NUM_INT8);
    assert_int_equal(dq_backend_sync(r.cuda, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "is not packed"));
    memset(&err, 0, sizeof err);
    r.cuda->ops->matmul(r.cuda, y, y, &w, NULL, DQ_NUM_F32); /* released */
    assert_int_equal(dq_backend_sync(r.cuda, &err), DQ_BUG);
    assert_non_null(strstr(err.text, "acquired"));
    r.cuda->ops->free(r.cuda, y.p);
    rig_drop(x);
    rig_drop_weight(&w);
    rig_close(&r);
}

NEEDS(rig_can_run)
