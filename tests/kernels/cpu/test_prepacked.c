/* test_prepacked: products with packed weights that are prepacked: in int8 those of packed_int8 with weights where they
 * lie, bit for bit; in f32 within a bound of the exact ones, and the same whether a packing is kept or made by the way.
 * SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/rigs/prepacked_rig.h"
#include "tests/rigs/suite.h"

/* Results of all instruction sets are the same, and right: those in int8 are those of another kernel. */
static void check(const dq_weight *w, int64_t m, const float *x, const float *bias)
{
    const int64_t n = m * w->rows;
    float *want = new_floats(n), *got = new_floats(n), *plain[2] = {new_floats(n), new_floats(n)};
    for (int isa = 0; isa < N_ISAS; isa++) {
        dq_backend *b = open_isa(isa, 1 + (int)(m + isa) % 3);
        if (!b) continue;
        for (int int8 = 0; int8 < 2; int8++) {
            const dq_num num = int8 ? DQ_NUM_INT8 : DQ_NUM_F32;
            assert_null(dq_cpu_prepacked_of(b, w));
            assert_string_equal(b->ops->matmul_kernel(b, w, num),
                                int8 ? "packed_int8 or prepacked_int8" : "packed or prepacked");
            multiply(b, want, x, m, w, bias, num);
            assert_true(b->ops->weight_acquire(b, w));
            assert_string_equal(b->ops->matmul_kernel(b, w, num),
                                int8 ? "prepacked_int8" : "prepacked");
            multiply(b, got, x, m, w, bias, num);
            assert_non_null(dq_cpu_prepacked_of(b, w)->data);
            for (int64_t i = 0; i < n; i++)
                if (memcmp(&want[i], &got[i], sizeof *got) != 0)
                    fail_msg("%s, %s, %d bits, %lld x %lld, group %lld, %lld rows, element %lld: "
                             "%.9g, expected %.9g",
                             isas[isa], int8 ? "int8" : "f32", w->bits, (long long)w->rows,
                             (long long)w->cols, (long long)w->group_size, (long long)m,
                             (long long)i, (double)got[i], (double)want[i]);
            if (isa == 0) memcpy(plain[int8], got, (size_t)n * sizeof *got);
            if (isa == 0 && !int8) check_bound(got, w, m, x, bias, m);
            if (!same_bits(plain[int8], got, n))
                fail_msg("%s, %s, %d bits, group %lld, %lld rows: not what plain C gives",
                         isas[isa], int8 ? "int8" : "f32", w->bits, (long long)w->group_size,
                         (long long)m);
            b->ops->weight_release(b, w);
        }
        dq_backend_close(b);
    }
    dq_block_free(want);
    dq_block_free(got);
    for (int i = 0; i < 2; i++) dq_block_free(plain[i]);
}

TEST(products_are_right)
{
    static const shape shapes[] = {
        {70, 320, 32, false}, {33, 200, 32, false}, {16, 576, 64, false}, {35, 513, 128, false},
        {1, 100, 100, false}, {64, 300, 300, true}, {40, 256, 64, true},  {200, 320, 160, false}};
    static const int64_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 50};
    enum { MOST = 50, WIDEST = 576, TALLEST = 200 };
    float *x = random_floats(MOST * WIDEST, 11), *bias = random_floats(TALLEST, 12);
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

/* More columns than a panel of activations has, in whole groups, and more rows than stay near. */
TEST(many_rows_are_right)
{
    static const shape shapes[] = {{40, 2100, 32, false},
                                   {70, 2080, 160, false},
                                   {33, 2500, 1280, false},
                                   {33, 1056, 32, true}};
    static const int64_t rows[] = {5, 9, 11, 270};
    enum { MANY = 3, MOST = 270, WIDEST = 2500, TALLEST = 70 };
    float *x = random_floats(MOST * WIDEST, 31), *bias = random_floats(TALLEST, 32);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int bits = 2; bits <= 8; bits++) {
            const bool zeros = (s + (size_t)bits) % 2;
            const dq_weight w = new_weight(shapes[s], bits, zeros, zeros ? DQ_F16 : DQ_F32);
            for (size_t r = 0; r < MANY; r++)
                if (bits == 8 || (r + s + (size_t)bits) % 3 == 0)
                    check(&w, rows[r], x, r % 2 ? bias : NULL);
            if (shapes[s].one_scale && bits == 8) check(&w, rows[MANY], x, bias);
            drop_weight(&w);
        }
    dq_block_free(x);
    dq_block_free(bias);
}

/* A row does not know how many others there are, nor in how many threads. */
TEST(rows_are_alone)
{
    enum { M = 21, N = 96, K = 384 };
    const dq_weight w = new_weight((shape){N, K, 32, false}, 6, true, DQ_F16);
    float *x = random_floats(M * K, 4), *all = new_floats(M * N), *one = new_floats(N);
    for (int isa = 0; isa < N_ISAS; isa++) {
        for (int int8 = 0; int8 < 2; int8++) {
            const dq_num num = int8 ? DQ_NUM_INT8 : DQ_NUM_F32;
            for (int threads = 1; threads <= 3; threads++) {
                dq_backend *b = open_isa(isa, threads);
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

/* Sums of 16384 columns of 8 bits, one group a row. */
TEST(long_rows_are_exact)
{
    enum { K = 16384, M = 6 };
    float *x = random_floats(M * K, 21);
    for (int kind = 0; kind < 2; kind++) {
        const dq_weight w = new_weight((shape){3, K, K, false}, 8, kind == 1, DQ_F32);
        check(&w, 1, x, NULL);
        check(&w, M, x, NULL);
        drop_weight(&w);
    }
    dq_block_free(x);
}

/* Codes and activations of 8 bits at the ends of their ranges, all alike and in turns: sums of pairs at theirs. */
TEST(ends_of_ranges_fit)
{
    enum { N = 4, K = 96, M = 9 };
    static const uint8_t ends[2][N] = {{0, 255, 127, 128}, {0, 255, 128, 127}};
    float *x = new_floats(M * K);
    for (int64_t i = 0; i < M * K; i++) x[i] = (i / K + i % K * (i / K / 2)) % 2 ? -1.0f : 1.0f;
    for (int kind = 0; kind < 2; kind++) {
        dq_weight w = new_weight((shape){N, K, 32, false}, 8, kind == 1, DQ_F32);
        uint8_t *codes = random_bytes(N * K, 1);
        for (int64_t i = 0; i < N * K; i++) codes[i] = ends[i % 2][i / K];
        drop_file(w.data);
        w.data = in_file(codes, N * K);
        check(&w, M, x, NULL);
        drop_weight(&w);
    }
    dq_block_free(x);
}

/* The head's logits pass through the same products. */
TEST(a_head_is_a_weight)
{
    enum { M = 5, N = 100, K = 128 };
    const dq_weight w = new_weight((shape){N, K, 64, false}, 4, false, DQ_F16);
    float *x = random_floats(M * K, 8);
    double want[M], got[M];
    int32_t top[2][M];
    for (int isa = 0; isa < N_ISAS; isa++) {
        dq_backend *b = open_isa(isa, 2);
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
