/* test_pages: products of few rows with packed KV pages, which take codes as they are stored: bit for bit those of the plain table
 * with blocks (test_kv_int8 has their definition), for widths, heads and runs of channels in every combination.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/os.h"
#include "kernels/cpu/simd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 9, DIM = 256, SLOTS = 64, APART = 16 }; /* APART: more than rows are long */

static uint64_t state_of = 1;

static uint32_t next_bits(void)
{
    state_of = state_of * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state_of >> 33);
}

/* A page, rows of queries and of D, all of them random. */
typedef struct page {
    _Alignas(64) uint8_t codes[2][DIM * SLOTS], block[DIM * SLOTS];
    float scale[DIM * SLOTS], query_scale[ROWS * DIM], d[ROWS * (SLOTS + APART)];
    int8_t query[ROWS * DIM];
    int32_t query_sum[ROWS * DIM];
    _Alignas(64) uint8_t work[1 << 18];
    dq_simd_int8_page of;
    dq_simd_int8_rows rows;
} page;

static void fill(page *p, int bits, int64_t dim, int64_t group)
{
    const int64_t n = (dim + group - 1) / group, ld = dq_simd_int8_padded(dim, group);
    for (int64_t i = 0; i < DIM * SLOTS; i++) p->codes[0][i] = (uint8_t)next_bits();
    for (int64_t i = 0; i < n * SLOTS; i++) p->scale[i] = (float)(next_bits() % 1000 + 1) * 1e-4f;
    memset(p->query, 0, sizeof p->query);
    for (int64_t r = 0; r < ROWS; r++) {
        int8_t *code = p->query + r * ld;
        for (int64_t g = 0; g < n; g++) {
            const int64_t left = dim - g * group, width = left < group ? left : group;
            p->query_scale[r * n + g] = (float)(next_bits() % 1000 + 1) * 1e-3f;
            p->query_sum[r * n + g] = 0;
            for (int64_t c = 0; c < width; c++) {
                code[c] = (int8_t)(next_bits() % 255 - 127);
                p->query_sum[r * n + g] += code[c];
            }
            code += (width + 3) / 4 * 4;
        }
    }
    for (int64_t i = 0; i < ROWS * (SLOTS + APART); i++)
        p->d[i] = ((float)next_bits() - 0x1p30f) * (i % 13 ? 0x1p-40f : 0x1p-31f);
    p->of = (dq_simd_int8_page){.block = p->block,
                                .codes = p->codes[0],
                                .next = p->codes[1],
                                .scale = p->scale,
                                .bits = bits,
                                .dim = dim,
                                .group = group,
                                .n = n,
                                .end = SLOTS};
    p->rows = (dq_simd_int8_rows){
        .code = p->query, .ld = ld, .scale = p->query_scale, .sum = p->query_sum};
}

/* Rows of D that are zero, next to nothing, too large and no number. */
static void spoil(page *p)
{
    memset(p->d, 0, SLOTS * sizeof *p->d);
    for (int t = 0; t < SLOTS; t++) p->d[SLOTS + t] *= 1e-33f;
    p->d[2 * SLOTS + 17] = NAN;
    p->d[3 * SLOTS + 63] = INFINITY;
}

static void expect_equal(const float *got, const float *want, int64_t n, const page *p, int rows)
{
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(&got[i], &want[i], sizeof *got) != 0 && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%d bits, head_dim %d, group %d, %d rows, value %d: %.9g, expected %.9g",
                     p->of.bits, (int)p->of.dim, (int)p->of.group, rows, (int)i, (double)got[i],
                     (double)want[i]);
    }
}

static void check_keys(page *p, const dq_simd_pages *table, int m)
{
    const dq_simd_pages *plain = dq_cpu_isa_of(0)->pages;
    float got[ROWS * SLOTS], want[ROWS * SLOTS];
    memset(got, 0, sizeof got);
    memset(want, 0, sizeof want);
    if (m > DQ_PAGES_FEW)
        table->key_block(p->block, p->codes[0], NULL, p->of.bits, p->of.dim, p->of.group);
    p->of.codes = m > DQ_PAGES_FEW ? NULL : p->codes[0];
    table->key_scores(got, SLOTS, &p->rows, m, &p->of);
    plain->key_block(p->block, p->codes[0], NULL, p->of.bits, p->of.dim, p->of.group);
    p->of.codes = NULL;
    plain->key_scores(want, SLOTS, &p->rows, m, &p->of);
    expect_equal(got, want, m * SLOTS, p, m);
}

static void check_values(page *p, const dq_simd_pages *table, int m)
{
    const dq_simd_pages *plain = dq_cpu_isa_of(0)->pages;
    static float got[ROWS * DIM], want[ROWS * DIM];
    const int64_t cols = (p->of.dim + 15) / 16 * 16;
    for (int64_t i = 0; i < ROWS * DIM; i++) got[i] = want[i] = (float)i;
    if (m > DQ_PAGES_FEW) table->value_block(p->block, p->codes[0], NULL, p->of.bits, cols);
    p->of.codes = m > DQ_PAGES_FEW ? NULL : p->codes[0];
    table->value_sums(got, DIM, p->d, SLOTS, m, &p->of, p->work);
    plain->value_block(p->block, p->codes[0], NULL, p->of.bits, cols);
    p->of.codes = NULL;
    plain->value_sums(want, DIM, p->d, SLOTS, m, &p->of, p->work);
    expect_equal(got, want, ROWS * DIM, p, m);
}

static void check_table(const dq_simd_pages *table)
{
    static const int widths[] = {8, 6, 4, 3, 2}, dims[] = {16, 24, 64, 80, 128, 144, 192, 256};
    static const int groups[] = {DIM, 32, 16, 8, 12};
    static page p;
    for (int i = 0; i < 5 * 8 * 5; i++) {
        const int dim = dims[i / 5 % 8], group = groups[i / 40];
        fill(&p, widths[i % 5], dim, group < dim ? group : dim);
        for (int m = 1; m <= ROWS; m++) {
            p.of.first = (m + i) % 5 == 4 ? 3 : 0;
            p.of.end = (m + i) % 7 == 6 ? 50 : SLOTS;
            if (widths[i % 5] > 3) check_keys(&p, table, m);
            check_values(&p, table, m);
        }
        spoil(&p);
        p.of.first = 0;
        p.of.end = SLOTS;
        for (int m = 1; m <= ROWS; m++) check_values(&p, table, m);
    }
}

/* The same of per-channel codes. */
typedef struct sets {
    float number[SLOTS * 2 * DIM], dither[SLOTS], q[ROWS * (DIM + APART)];
    dq_simd_set_page of;
} sets;

static void fill_sets(sets *t, page *p, int bits, int64_t dim)
{
    fill(p, bits, dim, dim);
    const int64_t cols = (dim + 15) / 16 * 16;
    float *step = t->number;
    memset(t->number, 0, sizeof t->number);
    for (int i = 0; i < SLOTS; i++) {
        t->dither[i] = (float)(next_bits() % 1000) * 1e-3f - 0.5f;
        for (int64_t c = 0; c < dim; c++) {
            step[2 * i * cols + c] = (float)(next_bits() % 1000) * 1e-3f; /* 0, too */
            step[(2 * i + 1) * cols + c] = (float)(next_bits() % 2001) * 1e-3f - 1.0f;
        }
    }
    for (int i = 0; i < ROWS * (DIM + APART); i++)
        t->q[i] = (float)(next_bits() % 2001) * 1e-3f - 1.0f;
    t->of = (dq_simd_set_page){.block = p->block,
                               .next = p->codes[1],
                               .sets = step,
                               .bits = bits,
                               .dim = dim,
                               .cols = cols,
                               .begins = 1,
                               .end = SLOTS,
                               .dither = t->dither};
}

/* Rows of queries that are zero, next to nothing, too large and no number; with `steps`, steps that are. */
static void spoil_sets(sets *t, page *p, bool steps)
{
    const int64_t dim = t->of.dim, cols = t->of.cols;
    spoil(p);
    memset(t->q, 0, (size_t)dim * sizeof *t->q);
    for (int64_t c = 0; c < dim; c++) t->q[dim + c] *= 1e-33f;
    t->q[2 * dim + 7] = NAN;
    t->q[3 * dim + 11] = INFINITY;
    if (!steps) return;
    memset(t->number, 0, (size_t)cols / 2 * sizeof(float));
    t->number[dim - 1] = NAN;
    t->number[cols + dim - 2] = NAN;
    t->number[dim - 3] = INFINITY;
}

static void check_sets(sets *t, page *p, const dq_simd_pages *table, int m)
{
    const dq_simd_pages *plain = dq_cpu_isa_of(0)->pages;
    enum { SCORES = SLOTS + APART, SUMS = DIM + APART, ALL = ROWS * SUMS };
    static float got[ALL], want[ALL];
    const int64_t dim = t->of.dim, cols = t->of.cols;
    const int64_t ldq = m % 2 ? dim : dim + APART, ldd = m % 2 ? SLOTS : SLOTS + APART;
    const bool few = m <= DQ_PAGES_FEW;
    for (int i = 0; i < ALL; i++) got[i] = want[i] = (float)i;
    t->of.codes = few ? p->codes[0] : NULL;
    if (!few) table->key_block(p->block, p->codes[0], NULL, t->of.bits, dim, dim);
    table->set_scores(got, SCORES, t->q, ldq, m, &t->of, p->work);
    t->of.codes = NULL;
    plain->key_block(p->block, p->codes[0], NULL, t->of.bits, dim, dim);
    plain->set_scores(want, SCORES, t->q, ldq, m, &t->of, p->work);
    expect_equal(got, want, ALL, p, m);
    for (int i = 0; i < ALL; i++) got[i] = want[i] = (float)i;
    t->of.codes = few ? p->codes[0] : NULL;
    if (!few) table->value_block(p->block, p->codes[0], NULL, t->of.bits, cols);
    table->set_sums(got, SUMS, p->d, ldd, m, &t->of, p->work);
    t->of.codes = NULL;
    plain->value_block(p->block, p->codes[0], NULL, t->of.bits, cols);
    plain->set_sums(want, SUMS, p->d, ldd, m, &t->of, p->work);
    expect_equal(got, want, ALL, p, m);
}

static void check_set_table(const dq_simd_pages *table)
{
    static const int widths[] = {8, 6, 5, 4, 3, 2}, dims[] = {16, 24, 64, 80, 128, 144, 192, 256};
    static page p;
    static sets t;
    for (int i = 0; i < 6 * 8; i++) {
        fill_sets(&t, &p, widths[i % 6], dims[i / 6]);
        for (int m = 1; m <= ROWS; m++) { /* a whole page of one set; parts; several sets */
            check_sets(&t, &p, table, m);
            t.of.first = i % 2 ? 3 : 0;
            t.of.end = i % 2 ? SLOTS : 50;
            check_sets(&t, &p, table, m);
            t.of.first = 0;
            t.of.end = SLOTS;
            t.of.begins = 1 | 1ull << (m + i);
            check_sets(&t, &p, table, m);
            t.of.begins = m % 2 ? 1u : 0u; /* slots before the first beginning are a set as well */
        }
        t.of.begins = 1;
        spoil_sets(&t, &p, false);
        for (int m = 1; m <= ROWS; m++) check_sets(&t, &p, table, m);
        spoil_sets(&t, &p, true);
        for (int m = 1; m <= ROWS; m++) check_sets(&t, &p, table, m);
    }
}

TEST(few_rows_of_sets_are_exact)
{
    static const unsigned isas[] = {0, DQ_CPU_AVX2, DQ_CPU_AVX2 | DQ_CPU_AVX512 | DQ_CPU_VNNI};
    const unsigned have = dq_os_cpu_features(NULL);
    for (int i = 0; i < 3; i++) check_set_table(dq_cpu_isa_of(have & isas[i])->pages);
}

enum { UNTOUCHED = 0xa5 };

/* Bytes of `work` before those that nothing was written to. */
static int64_t taken(const page *p, int64_t bytes)
{
    while (bytes > 0 && p->work[bytes - 1] == UNTOUCHED) bytes--;
    return bytes;
}

/* A way of its own leaves the room after its codes as it is, and the other one does not. */
static void check_way(sets *t, page *p, const dq_simd_pages *table, int m)
{
    static float out[ROWS * DIM];
    const int64_t dim = t->of.dim, bytes = dq_simd_set_work_bytes(dim);
    const bool few = table->few_of_set(&t->of, m);
    memset(p->work, UNTOUCHED, (size_t)bytes);
    table->set_scores(out, SLOTS, t->q, dim, m, &t->of, p->work);
    if ((taken(p, bytes) <= m * dim) != few)
        fail_msg("%d rows of %d bits: keys take %lld bytes", m, t->of.bits,
                 (long long)taken(p, bytes));
    memset(p->work, UNTOUCHED, (size_t)bytes);
    memset(out, 0, sizeof out);
    table->set_sums(out, dim, p->d, SLOTS, m, &t->of, p->work);
    if ((taken(p, bytes) <= 128 * m) != few)
        fail_msg("%d rows of %d bits: values take %lld bytes", m, t->of.bits,
                 (long long)taken(p, bytes));
}

/* Few rows of whole sets have a way of their own with AVX-512 VNNI, and take it; nothing else does. */
TEST(few_rows_of_sets_take_their_way)
{
    static const unsigned isas[] = {0, DQ_CPU_AVX2, DQ_CPU_AVX2 | DQ_CPU_AVX512 | DQ_CPU_VNNI};
    static const int widths[] = {8, 6, 5, 4, 3, 2}, dims[] = {64, 80, 128};
    static page p;
    static sets t;
    const unsigned have = dq_os_cpu_features(NULL);
    for (int i = 0; i < 3 * 6 * 3 * ROWS; i++) {
        const unsigned isa = have & isas[i % 3];
        const dq_simd_pages *table = dq_cpu_isa_of(isa)->pages;
        const int bits = widths[i / 3 % 6], dim = dims[i / 18 % 3], m = 1 + i / 54;
        const bool few = isa == isas[2] && (bits == 8 || bits == 4) && dim != 80 && m <= 4;
        fill_sets(&t, &p, bits, dim);
        t.of.codes = p.codes[0];
        assert_int_equal(table->few_of_set(&t.of, m), few);
        if (m <= DQ_PAGES_FEW) check_way(&t, &p, table, m);
        t.of.begins = 1 | 1ull << 40;
        assert_false(table->few_of_set(&t.of, m));
        if (m <= DQ_PAGES_FEW) check_way(&t, &p, table, m);
        t.of.begins = 1;
        t.of.first = 1;
        assert_false(table->few_of_set(&t.of, m));
    }
}

TEST(few_rows_are_exact)
{
    static const unsigned isas[] = {0, DQ_CPU_AVX2, DQ_CPU_AVX2 | DQ_CPU_AVX512 | DQ_CPU_VNNI};
    const unsigned have = dq_os_cpu_features(NULL);
    for (int i = 0; i < 3; i++) check_table(dq_cpu_isa_of(have & isas[i])->pages);
}
