/* test_pages_memory: blocks of KV pages: zeroed, aligned, apart, taken again, and given back when nobody uses them.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "kernels/cpu/kv/cpu_kv.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 200, SIZES = DQ_CPU_BINS + 2 }; /* more sizes than there are bins */

/* One of them is more than a chunk holds. */
static int64_t bytes_of(int i)
{
    const int size = i % SIZES;
    return size == SIZES - 1 ? (1 << 24) + 7 : 64 * (size * size + 1) - (i / SIZES) % 64;
}

static bool is(const uint8_t *p, int64_t n, uint8_t x)
{
    for (int64_t i = 0; i < n; i++) {
        if (p[i] != x) return false;
    }
    return true;
}

/* A new block of zeros becomes one of x. */
static uint8_t *take(dq_backend *b, int i)
{
    uint8_t *p = dq_cpu_block_new(b, bytes_of(i));
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 64, 0);
    assert_true(is(p, bytes_of(i), 0));
    memset(p, i % 251 + 1, (size_t)bytes_of(i));
    return p;
}

TEST(blocks_are_their_own)
{
    uint8_t *p[BLOCKS];
    dq_backend *b = given_backend(1);
    for (int i = 0; i < BLOCKS; i++) p[i] = i % SIZES == SIZES - 1 && i > SIZES ? NULL : take(b, i);
    for (int round = 2; round < 6; round++) {
        for (int i = 0; i < BLOCKS; i += round) {
            if (p[i]) assert_true(is(p[i], bytes_of(i), (uint8_t)(i % 251 + 1)));
            dq_cpu_block_free(b, p[i]);
            p[i] = NULL;
        }
        for (int i = 0; i < BLOCKS; i += 2 * round) p[i] = take(b, i);
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (p[i]) assert_true(is(p[i], bytes_of(i), (uint8_t)(i % 251 + 1)));
    }
    for (int i = 0; i < BLOCKS; i++) dq_cpu_block_free(b, p[i]);
    dq_cpu_blocks_end(b);
    assert_int_equal(dq_cpu_of(b)->kept_bytes, 0);
    for (int i = 0; i < DQ_CPU_BINS; i++) assert_int_equal(dq_cpu_of(b)->bin[i].chunks, 0);
    dq_backend_close(b);
}

/* What one cache uses outlives the end of another; of what nobody uses 256 MiB are kept. */
TEST(some_memory_is_kept)
{
    enum { BYTES = 1 << 16, N = 5000 };
    static uint8_t *p[N];
    dq_backend *b = given_backend(1);
    for (int i = 0; i < N; i++) {
        p[i] = dq_cpu_block_new(b, BYTES);
        assert_non_null(p[i]);
    }
    assert_true(dq_cpu_of(b)->kept_bytes == 0);
    memset(p[7], 9, BYTES);
    for (int i = 0; i < N; i++) {
        if (i != 7) dq_cpu_block_free(b, p[i]);
    }
    assert_true(dq_cpu_of(b)->kept_bytes > 1 << 27);
    assert_true(dq_cpu_of(b)->kept_bytes <= 1 << 28);
    dq_cpu_blocks_end(b);
    assert_int_equal(dq_cpu_of(b)->kept_bytes, 0);
    assert_true(is(p[7], BYTES, 9));
    dq_cpu_block_free(b, p[7]);
    dq_cpu_block_free(b, NULL);
    dq_backend_close(b);
}

TEST(too_much_is_refused)
{
    dq_err err = {0};
    dq_backend *b = given_backend(1);
    dq_alloc_fail_at(1);
    assert_null(dq_cpu_block_new(b, 100));
    dq_alloc_fail_at(0);
    assert_int_equal(dq_backend_sync(b, &err), DQ_RESOURCE);
    void *p = dq_cpu_block_new(b, 100); /* the failure left nothing after */
    assert_non_null(p);
    dq_cpu_block_free(b, p);
    dq_backend_close(b);
}
