/* test_prepacked_blocks: a prepacked weight is the one that simd.h describes, and lives as long as it is acquired,
 * where memory allows it.
 * SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/rigs/prepacked_rig.h"
#include "tests/rigs/suite.h"

#include <sys/resource.h>

/* Another weight at the same address gets a packing of its own, once the first one has gone. */
TEST(packings_end)
{
    enum { N = 32, K = 64 };
    dq_weight w = new_weight((shape){N, K, 32, false}, 4, false, DQ_F32);
    const dq_weight odd = new_weight((shape){N, 60, 20, false}, 4, false, DQ_F32);
    float *x = random_floats(K, 4), first[N], second[N], third[N];
    dq_backend *b = open_isa(0, 1);
    b->ops->weight_release(b, &w); /* never acquired */
    for (int i = 0; i < 2; i++) assert_true(b->ops->weight_acquire(b, &w));
    multiply(b, first, x, 1, &w, NULL, DQ_NUM_F32);
    const dq_simd_prepacked_weight *kept = dq_cpu_prepacked_of(b, &w);
    b->ops->weight_release(b, &w);
    assert_ptr_equal(kept, dq_cpu_prepacked_of(b, &w));
    b->ops->weight_release(b, &w);
    assert_null(dq_cpu_prepacked_of(b, &w));
    drop(w.scale);
    w.scale = random_floats(N * K / 32, 77);
    multiply(b, second, x, 1, &w, NULL, DQ_NUM_F32);
    assert_false(same_bits(first, second, N));
    assert_true(b->ops->weight_acquire(b, &w));
    multiply(b, third, x, 1, &w, NULL, DQ_NUM_F32);
    assert_true(same_bits(second, third, N));
    assert_true(b->ops->weight_acquire(b, &odd)); /* groups of 20 stay where they lie */
    assert_string_equal(b->ops->matmul_kernel(b, &odd, DQ_NUM_INT8), "packed_int8");
    assert_string_equal(b->ops->matmul_kernel(b, &odd, DQ_NUM_F32), "gemm");
    assert_null(dq_cpu_prepacked_of(b, &odd));
    b->ops->weight_release(b, &odd);
    dq_backend_close(b);
    dq_block_free(x);
    drop_weight(&w);
    drop_weight(&odd);
}

/* A weight that is not prepacked is counted, too: whoever releases it takes none from another one at its address. */
TEST(every_user_counts)
{
    dq_weight w = new_weight((shape){32, 64, 32, false}, 4, false, DQ_F32), odd = w;
    dq_backend *b = open_isa(0, 1);
    odd.group_size = 20;
    assert_true(b->ops->weight_acquire(b, &odd));
    assert_true(b->ops->weight_acquire(b, &w));
    b->ops->weight_release(b, &odd);
    assert_string_equal(b->ops->matmul_kernel(b, &w, DQ_NUM_F32), "packed");
    b->ops->weight_release(b, &w);
    assert_string_equal(b->ops->matmul_kernel(b, &w, DQ_NUM_F32), "packed or prepacked");
    assert_true(b->ops->weight_acquire(b, &w));
    assert_true(b->ops->weight_acquire(b, &odd));
    const dq_simd_prepacked_weight *kept = dq_cpu_prepacked_of(b, &w);
    assert_non_null(kept);
    b->ops->weight_release(b, &odd);
    assert_ptr_equal(kept, dq_cpu_prepacked_of(b, &w));
    b->ops->weight_release(b, &w);
    assert_null(dq_cpu_prepacked_of(b, &w));
    dq_backend_close(b);
    drop_weight(&w);
}

/* What is not of a file would take its memory twice. */
TEST(memory_of_our_own_stays)
{
    enum { N = 32, K = 64 };
    dq_weight w = new_weight((shape){N, K, 32, false}, 4, false, DQ_F32);
    const void *codes = w.data;
    dq_backend *b = open_isa(0, 1);
    w.data = random_bytes(N * K / 2, 1);
    assert_string_equal(b->ops->matmul_kernel(b, &w, DQ_NUM_INT8), "packed_int8");
    assert_true(b->ops->weight_acquire(b, &w));
    assert_null(dq_cpu_prepacked_of(b, &w));
    assert_string_equal(b->ops->matmul_kernel(b, &w, DQ_NUM_INT8), "packed_int8");
    dq_backend_close(b);
    drop(w.data);
    w.data = codes;
    drop_weight(&w);
}

/* No weight is acquired by half; a packing that is not to be had is none. */
TEST(short_memory)
{
    enum { N = 32, K = 64 };
    const dq_weight w = new_weight((shape){N, K, 32, false}, 4, false, DQ_F32);
    float *x = random_floats(K, 4), want[N], got[N];
    dq_err err = {0};
    dq_backend *b = open_isa(0, 1);
    multiply(b, want, x, 1, &w, NULL, DQ_NUM_F32);
    for (int n = 1; n <= 2; n++) { /* the table, its list */
        dq_alloc_fail_at(n);
        assert_false(b->ops->weight_acquire(b, &w));
        dq_alloc_fail_at(0);
        assert_int_equal(dq_backend_sync(b, &err), DQ_RESOURCE);
        err = (dq_err){0};
        dq_backend_close(b);
        b = open_isa(0, 1);
    }
    assert_true(b->ops->weight_acquire(b, &w));
    dq_alloc_fail_at(1);
    assert_null(dq_cpu_prepacked_of(b, &w));
    dq_alloc_fail_at(0);
    assert_string_equal(b->ops->matmul_kernel(b, &w, DQ_NUM_F32), "packed");
    multiply(b, got, x, 1, &w, NULL, DQ_NUM_F32);
    assert_true(same_bits(want, got, N));
    b->ops->weight_release(b, &w);
    assert_true(b->ops->weight_acquire(b, &w)); /* there is memory again */
    assert_non_null(dq_cpu_prepacked_of(b, &w));
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

/* All packings together: 3/4 of 2 MiB hold one of a MiB and a small one, not two. */
TEST(a_limit_holds)
{
    const shape large = {512, 4096, 4096, false};
    const dq_weight a = new_weight(large, 4, false, DQ_F32),
                    c = new_weight(large, 4, false, DQ_F32),
                    small = new_weight((shape){32, 64, 32, false}, 4, false, DQ_F32);
    dq_backend *b = open_isa(0, 1);
    struct rlimit old, less;
    if (mapped_bytes() == 0 || getrlimit(RLIMIT_AS, &old) != 0) skip();
    less = old;
    less.rlim_cur = (rlim_t)mapped_bytes() + (2 << 20);
    assert_int_equal(setrlimit(RLIMIT_AS, &less), 0);
    const bool done = b->ops->weight_acquire(b, &a) && b->ops->weight_acquire(b, &c) &&
                      b->ops->weight_acquire(b, &small);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_true(done);
    assert_string_equal(b->ops->matmul_kernel(b, &a, DQ_NUM_F32), "prepacked");
    assert_string_equal(b->ops->matmul_kernel(b, &c, DQ_NUM_F32), "packed");
    assert_string_equal(b->ops->matmul_kernel(b, &small, DQ_NUM_F32), "prepacked");
    assert_null(dq_cpu_prepacked_of(b, &c));
    assert_non_null(dq_cpu_prepacked_of(b, &a));
    b->ops->weight_release(b, &c);
    b->ops->weight_release(b, &a);
    b->ops->weight_release(b, &small);
    assert_true(b->ops->weight_acquire(b, &c)); /* the limit is taken anew */
    assert_non_null(dq_cpu_prepacked_of(b, &c));
    dq_backend_close(b);
    drop_weight(&a);
    drop_weight(&c);
    drop_weight(&small);
}

/* The code that simd.h puts at column k of row j of a block. */
static int code_in(const uint8_t *block, const dq_simd_prepacked_weight *d, int64_t j, int64_t k)
{
    const int64_t chunk = k / 32;
    const int bits = d->bits, each = 8 / bits, spare = 8 - each * bits, step = (int)(k % 32 / 4);
    const uint8_t *at = block + chunk * bits * 128 + chunk / d->group * d->scales + 4 * j + k % 4;
    int code = 0;
    for (int i = 0; i < bits; i++) {
        int line = step / each, bit = step % each * bits + i;
        if (line >= bits) { /* a stream of spare bits */
            const int nth = (step - each * bits) * bits + i;
            line = nth / spare, bit = each * bits + nth % spare;
        }
        code |= (at[line * 128] >> bit & 1) << i;
    }
    return code;
}

static float scale_in(const uint8_t *block, const dq_simd_prepacked_weight *d, int64_t j, int64_t g)
{
    const int64_t end = (g + 1) * d->group < d->chunks ? (g + 1) * d->group : d->chunks;
    float scale;
    memcpy(&scale, block + end * d->bits * 128 + g * d->scales + 4 * j, sizeof scale);
    return scale;
}

/* Every instruction set writes the block that simd.h describes, wherever codes begin and whatever stands after a row's last. */
TEST(blocks_are_as_described)
{
    enum { ROWS = 37, COLS = 1100, GROUPS = 12 };
    const unsigned isa[] = {0, DQ_CPU_AVX2, DQ_CPU_AVX2 | DQ_CPU_AVX512};
    const int64_t cols[] = {1, 31, 32, 33, 511, 512, 513, COLS};
    _Alignas(64) static uint8_t block[COLS * 64];
    static int8_t want[COLS];
    uint8_t *bytes = random_bytes(ROWS * (COLS + 4) + 4, 5);
    float *scale = random_floats(ROWS * GROUPS, 6);
    for (int n = 0; n < 3 * 7 * 8 * 4; n++) {
        const unsigned l = isa[n % 3];
        const dq_weight w = {.rows = ROWS,
                             .cols = cols[n / 3 % 8],
                             .format = &dq_format_int,
                             .bits = 2 + n / 24 % 7,
                             .data = bytes + n / 168,
                             .scale = scale,
                             .group_size = n / 168 % 2 ? 96 : COLS,
                             .scale_rows = ROWS,
                             .scale_dtype = DQ_F32};
        const dq_simd_prepacked_weight d = dq_cpu_prepacked_shape(&w);
        const size_t row = dq_quant_row_bytes(w.cols, w.bits);
        if ((dq_os_cpu_features(NULL) & l) != l) continue;
        for (int64_t j = 0; j < 64; j++) {
            if (j % 32 == 0)
                dq_cpu_prepacked_block(dq_cpu_isa_of(l)->simd, dq_cpu_isa_of(l)->levels, block, &w,
                                       &d, j / 32);
            if (j < ROWS)
                dq_quant_unpack_row(want, bytes + n / 168 + (size_t)j * row, w.cols, w.bits);
            for (int64_t k = 0; k < d.chunks * 32; k++)
                assert_int_equal(code_in(block, &d, j % 32, k),
                                 j < ROWS && k < w.cols ? want[k] + (1 << (w.bits - 1)) : 0);
            for (int64_t g = 0; g < d.groups; g++)
                assert_true(scale_in(block, &d, j % 32, g) ==
                            (j < ROWS ? scale[j * d.groups + g] : 0.0f));
        }
    }
    dq_block_free(bytes);
    dq_block_free(scale);
}
