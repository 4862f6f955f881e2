/* dq_tally against a full sort: counts, largest values with places, sums, quantiles, merging.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "stat/stat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed = 1;

static double uniform(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) * 0x1p-53;
}

/* A heavy tail and a wide range of exponents. */
static void fill(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double v = (uniform() - 0.5) * pow(10.0, 6.0 * uniform() - 3.0);
        x[i] = (float)v;
    }
}

static int descending(const void *a, const void *b)
{
    float x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? 1 : x > y ? -1 : 0;
}

static float *sorted_magnitudes(const float *x, int64_t n)
{
    float *s = malloc((size_t)n * sizeof *s);
    for (int64_t i = 0; i < n; i++) s[i] = fabsf(x[i]);
    qsort(s, (size_t)n, sizeof *s, descending);
    return s;
}

static dq_tally fresh(void)
{
    dq_tally t;
    dq_err err = {0};
    assert_int_equal(dq_tally_init(&t, &err), DQ_OK);
    return t;
}

static const dq_place origin = {0, 0, 0, 0, 0};

/* The value of rank ceil(p n) from below. */
static double quantile_of(const float *sorted, int64_t n, double p)
{
    int64_t rank = (int64_t)ceil(p * (double)n);
    return (double)sorted[n - (rank < 1 ? 1 : rank)];
}

TEST(random_data_match_a_sort)
{
    enum { N = 200003 };
    static const double p[] = {0.0, 0.001, 0.25, 0.5, 0.99, 0.99999, 1.0};
    float *x = malloc(N * sizeof *x);
    fill(x, N);
    float *sorted = sorted_magnitudes(x, N);
    dq_tally t = fresh();
    dq_err err = {0};
    dq_tally_add(&t, x, N, origin);
    assert_int_equal(t.n, N);
    assert_int_equal(t.n_top, DQ_TOP);
    for (int i = 0; i < DQ_TOP; i++) {
        assert_true(t.top[i] == sorted[i]);
        assert_true(fabsf(x[t.place[i].col]) == t.top[i]);
    }
    assert_true(t.threshold == sorted[DQ_TOP - 1]);
    double sum = 0, sum2 = 0, sum4 = 0;
    for (int i = 0; i < N; i++) {
        double v = fabs((double)x[i]);
        sum += v;
        sum2 += v * v;
        sum4 += v * v * v * v;
    }
    assert_true(fabs(dq_fixed_value(&t.sum) - sum) <= 1e-12 * sum);
    assert_true(fabs(dq_fixed_value(&t.sum2) - sum2) <= 1e-12 * sum2);
    assert_true(fabs(dq_fixed_value(&t.sum4) - sum4) <= 1e-12 * sum4);
    for (int i = 0; i < 7; i++) {
        bool exact = true;
        double want = quantile_of(sorted, N, p[i]), got = dq_tally_quantile(&t, p[i], &exact);
        assert_true(fabs(got - want) <= want * 0.004 && !exact);
        assert_int_equal(dq_tally_refine(&t, p[i], &err), DQ_OK);
        assert_true(dq_tally_quantile(&t, p[i], &exact) == got && !exact); /* second pass to come */
        dq_tally_add(&t, x, N, origin);
        assert_true(dq_tally_quantile(&t, p[i], &exact) == want && exact);
        assert_int_equal(t.n, N);
        dq_block_free(t.fine);
        t.fine = NULL;
    }
    dq_tally_free(&t);
    free(sorted);
    free(x);
}

static void expect_same(const dq_tally *a, const dq_tally *b)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->n_bad, b->n_bad);
    assert_int_equal(a->n_top, b->n_top);
    assert_memory_equal(a->top, b->top, sizeof(float) * (size_t)a->n_top);
    assert_memory_equal(a->place, b->place, sizeof(dq_place) * (size_t)a->n_top);
    assert_memory_equal(a->hist, b->hist, sizeof(int64_t) * DQ_HIST_BINS);
    const double sum2 = dq_fixed_value(&a->sum2);
    assert_true(fabs(sum2 - dq_fixed_value(&b->sum2)) <= 1e-12 * sum2);
}

/* A merge by bytes; cut off anywhere they are refused. */
static void merge_bytes(dq_tally *into, dq_tally *from)
{
    dq_strbuf bytes = {0};
    dq_err err = {0}, cut = {0};
    dq_tally spare = fresh(); /* takes what is cut off */
    assert_int_equal(dq_tally_put(from, &bytes, &err), DQ_OK);
    const char *at = bytes.s;
    if (from->fine) assert_int_equal(dq_tally_refine(&spare, 0.5, &err), DQ_OK);
    assert_int_equal(dq_tally_merge_bytes(&spare, &at, bytes.s + bytes.n - 1, &cut), DQ_DAMAGED);
    at = bytes.s;
    assert_int_equal(dq_tally_merge_bytes(into, &at, bytes.s + bytes.n, &err), DQ_OK);
    assert_ptr_equal(at, bytes.s + bytes.n);
    dq_block_free(bytes.s);
    dq_tally_free(&spare);
}

/* Pieces of every length, merged forward and backward, with many ties. */
TEST(merging_equals_one_stream)
{
    enum { N = 30000, PIECES = 7 };
    float *x = malloc(N * sizeof *x);
    for (int kind = 0; kind < 3; kind++) {
        fill(x, N);
        for (int i = 0; i < N && kind > 0; i++) x[i] = kind == 1 ? (float)(i % 50) : -3.5f;
        x[17] = NAN;
        x[29999] = -INFINITY;
        dq_tally whole = fresh(), forward = fresh(), backward = fresh(), bytes = fresh();
        dq_tally piece[PIECES];
        dq_tally_add(&whole, x, N, origin);
        int at = 0;
        for (int i = 0; i < PIECES; i++) {
            int n = i + 1 == PIECES ? N - at : 1 + 997 * i;
            piece[i] = fresh();
            dq_tally_add(&piece[i], x + at, n, (dq_place){0, 0, 0, 0, at});
            at += n;
        }
        for (int i = 0; i < PIECES; i++) dq_tally_merge(&forward, &piece[i]);
        for (int i = PIECES - 1; i >= 0; i--) dq_tally_merge(&backward, &piece[i]);
        assert_int_equal(whole.n_bad, 2);
        assert_int_equal(whole.n, N - 2);
        expect_same(&whole, &forward);
        expect_same(&whole, &backward);
        for (int i = 0; i < PIECES; i++) merge_bytes(&bytes, &piece[i]);
        expect_same(&forward, &bytes);
        assert_memory_equal(&forward.sum, &backward.sum, 3 * sizeof forward.sum);
        assert_memory_equal(&forward.sum, &bytes.sum, 3 * sizeof forward.sum);
        for (int i = 0; i < PIECES; i++) dq_tally_free(&piece[i]);
        dq_tally_free(&whole);
        dq_tally_free(&forward);
        dq_tally_free(&backward);
        dq_tally_free(&bytes);
    }
    free(x);
}

TEST(ties_go_to_the_smaller_place)
{
    const float x[1] = {2.0f};
    dq_tally t = fresh();
    for (int32_t i = 499; i >= 0; i--) {
        dq_tally_add(&t, x, 1, (dq_place){i / 200, i / 100 % 2, i / 50 % 2, i / 10 % 5, i % 10});
    }
    for (int32_t i = 0; i < DQ_TOP; i++) {
        const dq_place *p = &t.place[i];
        assert_int_equal((((p->seq * 2 + p->layer) * 2 + p->head) * 5 + p->row) * 10 + p->col, i);
    }
    dq_tally_free(&t);
}

TEST(bf16_values_have_one_value_per_bin)
{
    static const float x[] = {1.0f, -1.5f, 2.0f, 4.0f, 0.0f};
    dq_tally t = fresh();
    dq_err err = {0};
    bool exact;
    dq_tally_add(&t, x, 5, origin);
    assert_int_equal(dq_tally_refine(&t, 0.5, &err), DQ_OK);
    dq_tally_add(&t, x, 5, origin);
    assert_true(dq_tally_quantile(&t, 0.5, &exact) == 1.5 && exact);
    assert_int_equal(t.n, 5);
    assert_int_equal(t.n_top, 5);
    assert_true(t.top[0] == 4.0f && t.top[4] == 0.0f && t.threshold == 0.0f);
    dq_tally_free(&t);
}

TEST(merging_a_second_pass)
{
    enum { N = 5000 };
    float x[N];
    for (int i = 0; i < N; i++) x[i] = 1.0f + (float)i * 0x1p-20f;
    dq_tally a = fresh(), b = fresh(), spare = fresh();
    dq_err err = {0};
    bool exact;
    dq_tally_add(&a, x, N / 2, origin);
    dq_tally_add(&b, x + N / 2, N - N / 2, origin);
    dq_tally_merge(&a, &b);
    dq_tally_merge(&spare, &a);
    assert_int_equal(dq_tally_refine(&spare, 0.5, &err), DQ_OK);
    assert_int_equal(dq_tally_refine(&a, 0.5, &err), DQ_OK);
    dq_tally_add(&a, x, N / 2, origin);
    dq_tally_free(&b);
    b = fresh();
    b.refine_bin = a.refine_bin;
    b.fine = dq_block_new(65536, sizeof *b.fine, &err);
    dq_tally_add(&b, x + N / 2, N - N / 2, origin);
    dq_tally_merge(&a, &b);
    assert_true(dq_tally_quantile(&a, 0.5, &exact) == (double)x[N / 2 - 1] && exact);
    merge_bytes(&spare, &a);
    assert_true(dq_tally_quantile(&spare, 0.5, &exact) == (double)x[N / 2 - 1] && exact);
    dq_tally_free(&spare);
    dq_tally_free(&a);
    dq_tally_free(&b);
}

TEST(empty_and_bad_streams)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    dq_tally t = fresh();
    bool exact = true;
    assert_true(isnan(dq_tally_quantile(&t, 0.5, &exact)) && !exact);
    dq_tally_add(&t, bad, 3, origin);
    assert_int_equal(t.n, 0);
    assert_int_equal(t.n_bad, 3);
    assert_int_equal(t.n_top, 0);
    assert_true(dq_fixed_value(&t.sum) == 0 && isnan(dq_tally_quantile(&t, 0.5, NULL)));
    dq_tally_free(&t);
    dq_tally_free(&t);
}

/* What has the head of a tally of one value, and other bins. */
TEST(bytes_of_no_tally_are_refused)
{
    enum { HEAD = 16 + 3 * 32 + 8 + DQ_TOP * (4 + 20) };
    static const int64_t bad[][5] = {
        {16256, 2, 1, 0, 0},     /* two bins, one after them */
        {16256, 1, 2, 32768, 0}, /* more than it says */
        {32768, 1, 1, 32768, 0},  {-1, 1, 1, 32768, 0}, {16256, -1, 1, 32768, 0},
        {16256, 1, -1, 32768, 0}, {32767, 2, 1, 0, 0},  {16256, 1, 1, 16256, 1}}; /* a bin twice */
    const float one = 1.0f;
    dq_err err = {0};
    dq_strbuf bytes = {0};
    dq_tally t = fresh();
    dq_tally_add(&t, &one, 1, origin);
    assert_int_equal(dq_tally_put(&t, &bytes, &err), DQ_OK);
    assert_int_equal(bytes.n, HEAD + 5 * sizeof(int64_t));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dq_tally into = fresh();
        char *copy = malloc(bytes.n);
        const char *at = copy;
        memcpy(copy, bytes.s, HEAD);
        memcpy(copy + HEAD, bad[i], sizeof bad[i]);
        err = (dq_err){0};
        if (dq_tally_merge_bytes(&into, &at, copy + bytes.n, &err) != DQ_DAMAGED)
            fail_msg("bins %zu are taken", i);
        free(copy);
        dq_tally_free(&into);
    }
    /* counts, the length of the list, its values */
    static const struct {
        size_t at;
        int64_t value;
    } head[] = {{0, 2}, {0, -1}, {0, (int64_t)1 << 50}, {8, -1}, {112, 0}, {112, 2}, {112, 129}};
    for (size_t i = 0; i < sizeof head / sizeof *head; i++) {
        dq_tally into = fresh();
        char *copy = malloc(bytes.n);
        const char *at = copy;
        memcpy(copy, bytes.s, bytes.n);
        memcpy(copy + head[i].at, &head[i].value, sizeof head[i].value);
        err = (dq_err){0};
        if (dq_tally_merge_bytes(&into, &at, copy + bytes.n, &err) != DQ_DAMAGED)
            fail_msg("head %zu is taken", i);
        free(copy);
        dq_tally_free(&into);
    }
    const float not [] = {-1.0f, NAN, INFINITY};
    for (size_t i = 0; i < 3; i++) {
        dq_tally into = fresh();
        const char *at = bytes.s;
        memcpy(bytes.s + 120, &not [i], sizeof not [i]);
        err = (dq_err){0};
        assert_int_equal(dq_tally_merge_bytes(&into, &at, bytes.s + bytes.n, &err), DQ_DAMAGED);
        dq_tally_free(&into);
    }
    dq_block_free(bytes.s);
    dq_tally_free(&t);
}

TEST(exhausted_memory)
{
    dq_tally t;
    dq_err err = {0};
    dq_alloc_fail_at(1);
    assert_int_equal(dq_tally_init(&t, &err), DQ_RESOURCE);
    dq_tally_free(&t);
    t = fresh();
    err.code = DQ_OK;
    dq_alloc_fail_at(1);
    assert_int_equal(dq_tally_refine(&t, 0.5, &err), DQ_RESOURCE);
    dq_alloc_fail_at(0);
    dq_tally_free(&t);
}
