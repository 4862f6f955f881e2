/* test_levels: products with trellis codes are those with codes of 8 bits that say the same levels, bit for bit, on every
 * instruction set; factors of columns are factors of activations.
 * SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/rigs/prepacked_rig.h"
#include "tests/rigs/suite.h"

#include "kernels/cpu/simd.h"
#include "tensor/tensor.h"

/* Any rings, levels and factors. */
static dq_weight new_trellis(shape s, int bits, dq_dtype scales)
{
    dq_weight w = new_weight(s, 8, false, scales);
    const size_t bytes = (size_t)(dq_weight_strip_padded(s.rows) * s.cols * bits / 8);
    drop_file(w.data);
    w.format = &dq_format_trellis;
    w.bits = bits;
    w.data = in_file(random_bytes(bytes, (uint64_t)(s.cols + bits)), bytes);
    w.level = (const int8_t *)random_bytes(DQ_TRELLIS_LEVELS, 91);
    int8_t *column = (int8_t *)random_bytes((size_t)s.cols, 92);
    for (int64_t k = 0; k < s.cols; k++) column[k] = (int8_t)(column[k] % 24);
    w.column = column;
    return w;
}

static void drop_trellis(const dq_weight *w)
{
    drop(w->level);
    drop(w->column);
    drop_weight(w);
}

/* The same with codes of 8 bits, level + 128, and no factors. */
static dq_weight as_bytes(const dq_weight *w)
{
    dq_weight to = *w;
    dq_weight one = *w; /* its levels, as values */
    const float scale = 1;
    int8_t *column = (int8_t *)random_bytes((size_t)w->cols, 1),
           *q = (int8_t *)random_bytes((size_t)w->cols, 1);
    float *row = new_floats(w->cols);
    const size_t bytes = dq_quant_row_bytes(w->cols, 8);
    uint8_t *codes = random_bytes((size_t)w->rows * bytes, 1);
    memset(column, 0, (size_t)w->cols);
    one.column = column;
    one.group_size = w->cols;
    one.scale_rows = 1;
    one.scale = &scale;
    one.scale_dtype = DQ_F32;
    for (int64_t r = 0; r < w->rows; r++) {
        w->format->dequantize(row, &one, r, 0, w->cols);
        for (int64_t k = 0; k < w->cols; k++) q[k] = (int8_t)row[k];
        dq_quant_pack_row(codes + (size_t)r * bytes, q, w->cols, 8);
    }
    to.format = &dq_format_int;
    to.bits = 8;
    to.data = in_file(codes, (size_t)w->rows * bytes);
    to.level = to.column = NULL;
    drop(column);
    drop(q);
    dq_block_free(row);
    return to;
}

static void check(const dq_weight *w, const dq_weight *bytes, int64_t m, const float *x,
                  const float *bias)
{
    const int64_t n = m * w->rows;
    float *want = new_floats(n), *got = new_floats(n), *times = new_floats(m * w->cols),
          *first = new_floats(2 * n);
    for (int64_t i = 0; i < m * w->cols; i++)
        times[i] = x[i] * dq_weight_factor(w->column[i % w->cols]);
    for (int isa = 0; isa < N_ISAS; isa++) {
        dq_backend *b = open_isa(isa, 1 + (int)(m + isa) % 3);
        if (!b) continue;
        for (int int8 = 0; int8 < 2; int8++) {
            const dq_num num = int8 ? DQ_NUM_INT8 : DQ_NUM_F32;
            const bool fits = dq_cpu_prepacked_fits(w);
            assert_true(b->ops->weight_acquire(b, w));
            assert_null(dq_cpu_prepacked_of(b, w)); /* codes are all that is kept */
            assert_string_equal(b->ops->matmul_kernel(b, w, num), int8   ? "packed_int8"
                                                                  : fits ? "packed"
                                                                         : "gemm");
            multiply(b, got, x, m, w, bias, num);
            if (isa == 0) memcpy(first + int8 * n, got, (size_t)n * sizeof *got);
            if (!int8 && !fits) { /* f32 with values: other sums */
                check_bound(got, w, m, x, bias, m);
            } else {
                multiply(b, want, times, m, bytes, bias, num);
                if (!same_bits(want, got, n))
                    fail_msg("%s, %s, %d bits, %lld x %lld, group %lld, %lld rows: not what codes "
                             "of 8 bits give",
                             isas[isa], int8 ? "int8" : "f32", w->bits, (long long)w->rows,
                             (long long)w->cols, (long long)w->group_size, (long long)m);
                assert_true(same_bits(first + int8 * n, got, n));
            }
            b->ops->weight_release(b, w);
        }
        dq_backend_close(b);
    }
    dq_block_free(want);
    dq_block_free(got);
    dq_block_free(times);
    dq_block_free(first);
}

TEST(products_are_those_of_bytes)
{
    static const shape shapes[] = {
        {70, 320, 32, false},   {33, 200, 64, false}, {256, 96, 96, false}, {1, 100, 100, false},
        {300, 513, 128, false}, {160, 70, 20, false}, {129, 31, 31, false}, {32, 33, 33, false}};
    static const int64_t rows[] = {1, 2, 9, 20};
    enum { MOST = 20, WIDEST = 513, TALLEST = 300 };
    float *x = random_floats(MOST * WIDEST, 11), *bias = random_floats(TALLEST, 12);
    x[5] = 3000; /* what is left of its neighbours counts, too */
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int bits = DQ_TRELLIS_MIN_BITS; bits <= DQ_TRELLIS_MAX_BITS; bits++) {
            const dq_weight w = new_trellis(shapes[s], bits, bits % 2 ? DQ_F16 : DQ_F32);
            const dq_weight bytes = as_bytes(&w);
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
                check(&w, &bytes, rows[r], x, r % 2 ? bias : NULL);
            drop_file(bytes.data);
            drop_trellis(&w);
        }
    dq_block_free(x);
    dq_block_free(bias);
}

/* Both ways to the levels of chunks, for any bytes. */
TEST(instruction_sets_agree)
{
#if defined(__x86_64__)
    enum { CHUNKS = 3, COLS = 32 * CHUNKS, APART = 80, BYTES = COLS * APART + DQ_LEVELS_SPARE };
    if (!(dq_os_cpu_features(NULL) & DQ_CPU_VBMI)) skip();
    uint8_t *codes = random_bytes(BYTES, 5), *table = random_bytes(256, 6);
    uint8_t plain[1024 * CHUNKS], wide[1024 * CHUNKS];
    for (int bits = DQ_TRELLIS_MIN_BITS; bits <= DQ_TRELLIS_MAX_BITS; bits++)
        for (int block = 0; block < 4; block++) {
            const int64_t own = block * 4 * bits, next = own + 4 * bits;
            const dq_levels_rings r = {codes + own, codes + (block < 3 ? next : 0), APART, bits};
            dq_levels_plain(plain, &r, CHUNKS, table);
            dq_levels_vbmi(wide, &r, CHUNKS, table);
            assert_memory_equal(plain, wide, sizeof plain);
            for (int64_t row = 0; row < 32; row++)
                for (int64_t c = 0; c < COLS; c++) {
                    const uint8_t *ring = codes + c * APART;
                    const uint8_t u = dq_trellis_window(ring, block * 32 + row, 128, bits);
                    assert_int_equal(plain[c / 4 * 128 + row * 4 + c % 4], table[u]);
                }
        }
    dq_block_free(codes);
    dq_block_free(table);
#else
    skip();
#endif
}
