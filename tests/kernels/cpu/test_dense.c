/* test_dense: dense weights of files are copied after some products with few rows, give the same bits, and live as long as
 * they are acquired.
 * SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/rigs/prepacked_rig.h"
#include "tests/rigs/suite.h"

#include "kernels/cpu/linear/cpu_linear.h"

#include <string.h>

enum { ROWS = 48, COLS = 80, FEW = 16 };

static dq_weight dense_in_file(dq_dtype dtype, uint64_t seed)
{
    const size_t n = ROWS * COLS;
    float *x = random_floats((int64_t)n, seed);
    dq_weight w = {.rows = ROWS, .cols = COLS, .bits = 16, .dtype = dtype};
    uint8_t *bytes = random_bytes(n * dq_dtypes[dtype].bytes, seed);
    for (size_t i = 0; i < n; i++) {
        const uint16_t half = dtype == DQ_BF16 ? dq_bf16_from_f32(x[i]) : dq_f16_from_f32(x[i]);
        if (dtype == DQ_F32)
            memcpy(bytes + 4 * i, &x[i], 4);
        else
            memcpy(bytes + 2 * i, &half, 2);
    }
    dq_block_free(x);
    w.data = in_file(bytes, n * dq_dtypes[dtype].bytes);
    return w;
}

static bool is_copied(dq_backend *b, const dq_weight *w)
{
    return dq_cpu_dense_weight(b, w, true).data != w->data;
}

/* The sixteenth product is the first that reads the copy, of all that are acquired. */
TEST(copies_come_after_some_products)
{
    static const dq_dtype dtypes[] = {DQ_F32, DQ_BF16, DQ_F16};
    for (int k = 0; k < 3; k++) {
        const dq_weight w = dense_in_file(dtypes[k], 1), other = dense_in_file(dtypes[k], 2);
        float *x = random_floats(COLS * FEW, 4), want[ROWS], got[ROWS];
        dq_backend *b = open_isa(0, 2);
        multiply(b, want, x, 1, &w, NULL, DQ_NUM_F32);
        assert_true(b->ops->weight_acquire(b, &w));
        assert_true(b->ops->weight_acquire(b, &other));
        for (int i = 1; i <= 2 * FEW; i++) {
            memset(got, 0, sizeof got);
            multiply(b, got, x, 1, &w, NULL, DQ_NUM_F32);
            assert_true(same_bits(want, got, ROWS));
            if (i == FEW - 2) assert_false(is_copied(b, &other));
        }
        assert_true(is_copied(b, &w));
        assert_true(is_copied(b, &other));
        assert_memory_equal(dq_cpu_dense_weight(b, &other, false).data, other.data,
                            dq_weight_bytes(&other));
        b->ops->weight_release(b, &w); /* the pool stays with the other one */
        assert_false(is_copied(b, &w));
        assert_memory_equal(dq_cpu_dense_weight(b, &other, false).data, other.data,
                            dq_weight_bytes(&other));
        dq_backend_close(b);
        dq_block_free(x);
        drop_file(w.data);
        drop_file(other.data);
    }
}

/* Products with many rows, memory of our own, and memory that is short. */
TEST(what_is_not_copied)
{
    const dq_weight w = dense_in_file(DQ_F32, 1);
    dq_weight own = w;
    float *x = random_floats(COLS * FEW, 4), got[ROWS * FEW];
    dq_backend *b = open_isa(0, 1);
    own.data = random_bytes(dq_weight_bytes(&w), 3);
    assert_false(is_copied(b, &w)); /* not acquired */
    assert_true(b->ops->weight_acquire(b, &own));
    for (int i = 0; i < 2 * FEW; i++) assert_false(is_copied(b, &own));
    assert_true(b->ops->weight_acquire(b, &w));
    for (int i = 0; i < 2 * FEW; i++) multiply(b, got, x, FEW, &w, NULL, DQ_NUM_F32);
    for (int i = 0; i < FEW - 1; i++) assert_false(is_copied(b, &w));
    dq_alloc_fail_at(1);
    assert_false(is_copied(b, &w)); /* of the pool */
    dq_alloc_fail_at(0);
    assert_false(is_copied(b, &w)); /* is not tried again */
    dq_backend_close(b);
    dq_block_free(x);
    drop(own.data);
    drop_file(w.data);
}

/* No weight is acquired by half. */
TEST(short_memory)
{
    const dq_weight w = dense_in_file(DQ_F32, 1);
    dq_err err = {0};
    for (int n = 1; n <= 2; n++) { /* the table, its list */
        dq_backend *b = open_isa(0, 1);
        dq_alloc_fail_at(n);
        assert_false(b->ops->weight_acquire(b, &w));
        dq_alloc_fail_at(0);
        assert_int_equal(dq_backend_sync(b, &err), DQ_RESOURCE);
        err = (dq_err){0};
        dq_backend_close(b);
    }
    drop_file(w.data);
}
