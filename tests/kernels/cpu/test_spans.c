/* Shares of classes of tokens: cases by hand, and against the f64 oracle in every head order, lambda, rounding of
 * logits and width of the cache; what may not change a bit.
 * SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* setenv under strict C17 */
#include "tests/rigs/pairings.h"
#include "tests/rigs/suite.h"

#include "engine/runner.h"
#include "tests/rigs/device.h"
#include "tests/rigs/grid.h"
#include "tests/rigs/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_Q = 8, N_KV = 4, DIM = 16, N_SEQ = 3, ROWS = 260, N_CLASSES = 5, FAR = 500, LABELS = 800 };

enum { Q, K, V, LAMBDA, OUT, N_ARRAYS };

typedef struct stage {
    dq_backend *b;
    dq_head_order map;
    dq_attn attn;
    dq_kv *kv;
    dq_oracle *oracle;
    test_array both[N_ARRAYS];
    float *absmax;
    dq_math math;
    int32_t length[N_SEQ]; /* next position of each sequence */
    int64_t cu[N_SEQ + 1];
    int32_t seq[N_SEQ], pos[ROWS];
    dq_batch batch;
    uint8_t label[N_SEQ * LABELS];
    int64_t at[N_SEQ], last[N_SEQ];
} stage;

/* Multiples of 1/8 in -2..2: products of queries and keys are exact, so that no code of a rounded logit hangs on
 * the order of a sum. */
/* Classes 0..3 without any order; no token has class 4. */
static void set_labels(stage *s)
{
    for (uint32_t i = 0; i < N_SEQ * LABELS; i++) s->label[i] = (uint8_t)(mix(i + 99) % 4);
    for (int i = 0; i < N_SEQ; i++) s->at[i] = (N_SEQ - 1 - i) * LABELS;
}

static void stage_open(stage *s, dq_pairing pairing, int n_q, int n_kv, const dq_kv_spec *spec,
                       int threads)
{
    memset(s, 0, sizeof *s);
    s->map = pairings_map(pairing, n_q, n_kv, DIM);
    s->b = given_backend(threads);
    s->kv = s->b->ops->kv_new(s->b, &s->map, 1, spec);
    s->oracle = dq_oracle_new(&s->map);
    s->oracle->spec = *spec;
    s->attn = pairings_attn(&s->map, 0.75f);
    for (int i = 0; i < N_ARRAYS; i++) s->both[i] = test_array_new(s->b, ROWS * 2 * N_Q * DIM);
    s->absmax = s->b->ops->alloc(s->b, N_SEQ * N_Q * sizeof(float));
    set_labels(s);
}

static void expect_status(stage *s, dq_status want)
{
    dq_err err = {0};
    dq_backend_sync(s->b, &err);
    if (err.code != want) print_error("%s\n", err.text);
    assert_int_equal(err.code, want);
}

static void stage_close(stage *s)
{
    expect_status(s, DQ_OK);
    for (int i = 0; i < N_ARRAYS; i++) test_array_free(s->b, &s->both[i]);
    s->b->ops->free(s->b, s->absmax);
    s->b->ops->kv_free(s->b, s->kv);
    dq_oracle_free(s->oracle);
    dq_backend_close(s->b);
}

static void begin_batch(stage *s)
{
    s->batch = (dq_batch){.cu_rows = s->cu, .seq = s->seq, .pos = s->pos};
}

/* n more rows of a sequence; what they hold depends on sequence and position alone. */
static void add_rows(stage *s, int32_t seq, int n)
{
    const int cols[] = {s->map.n_q * DIM, s->map.n_kv * DIM, s->map.n_kv * DIM, s->map.n_out};
    s->seq[s->batch.n_seq++] = seq;
    for (int i = 0; i < n; i++) {
        const int64_t row = s->batch.n_rows++;
        s->pos[row] = s->length[seq]++;
        for (uint32_t k = Q; k <= LAMBDA; k++) {
            const uint32_t seed = ((uint32_t)(s->pos[row] * N_SEQ + seq) * 4 + k) * 8191u;
            for (int c = 0; c < cols[k]; c++)
                s->both[k].host[row * cols[k] + c] = on_grid(seed + (uint32_t)c);
        }
    }
    s->cu[s->batch.n_seq] = s->batch.n_rows;
}

static dq_mat mat(const stage *s, int array, int64_t cols)
{
    return (dq_mat){s->both[array].device, s->batch.n_rows, cols};
}

static void append(stage *s)
{
    const int64_t cols = (int64_t)s->map.n_kv * DIM;
    for (int i = K; i <= V; i++) test_put(s->b, &s->both[i], s->batch.n_rows * cols);
    s->b->ops->kv_append(s->b, s->kv, 0, &s->batch, mat(s, K, cols), mat(s, V, cols), DQ_NUM_F32);
    dq_oracle_append(s->oracle, &s->batch, s->both[K].host, s->both[V].host);
}

/* A ragged batch of 20, 70 and 6 rows: sequence 2 goes on after a fork of 0, which has kept other tokens in every
 * group; sequence 1 begins far away. */
static void build_scene(stage *s)
{
    const dq_ops *op = s->b->ops;
    for (int i = 0; i < 2; i++) assert_int_equal(op->kv_seq_new(s->b, s->kv), i);
    s->length[1] = FAR;
    begin_batch(s);
    add_rows(s, 0, 140);
    append(s);
    for (int g = 0; g < s->map.n_groups; g++) {
        int32_t kept[140], n = 0;
        for (int32_t i = 0; i < 140; i++) {
            if (i < 4 || i >= 130 - 9 * g || mix((uint32_t)(i + 1000 * g)) % 3 == 0) kept[n++] = i;
        }
        op->kv_keep(s->b, s->kv, 0, 0, g, kept, n);
        dq_oracle_keep(s->oracle, 0, g, kept, n);
    }
    assert_int_equal(op->kv_fork(s->b, s->kv, 0), 2);
    dq_oracle_fork(s->oracle, 2, 0);
    s->length[2] = s->length[0];
    begin_batch(s);
    add_rows(s, 2, 20);
    add_rows(s, 1, 70);
    add_rows(s, 0, 6);
    append(s);
    expect_status(s, DQ_OK);
}

static void attend(stage *s, dq_logit_spec logit, const dq_attention_spans *spans,
                   const dq_columns *columns)
{
    dq_attend_args a = {.attn = &s->attn,
                        .batch = &s->batch,
                        .kv = s->kv,
                        .q = mat(s, Q, (int64_t)s->map.n_q * DIM),
                        .logit = logit,
                        .math = s->math,
                        .columns = columns,
                        .spans = spans};
    test_put(s->b, &s->both[Q], a.q.rows * a.q.cols);
    test_put(s->b, &s->both[LAMBDA], s->batch.n_rows * s->map.n_out);
    if (s->attn.lambda_kind == DQ_LAMBDA_TOKEN) a.lambda = mat(s, LAMBDA, s->map.n_out);
    if (dq_logit_needs_absmax(logit)) {
        s->b->ops->attn_absmax(s->b, s->absmax, &a);
        if (logit.granularity == DQ_GRANULARITY_TENSOR)
            s->b->ops->absmax_join(s->b, s->absmax, s->batch.n_seq, s->map.n_q);
        a.absmax = s->absmax;
    }
    s->b->ops->attend(s->b, mat(s, OUT, (int64_t)s->map.n_out * s->map.n_slabs * DIM), &a);
}

static const dq_logit_spec whole = {16, DQ_GRANULARITY_TENSOR};

static dq_attention_spans spans_of(const stage *s, dq_span_share *sums)
{
    return (dq_attention_spans){N_CLASSES, s->label, s->at, s->last, sums};
}

/* -------------------------------------------------------------------------------------------- by hand */

static void expect_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) print_error("%.17g, expected %.17g\n", got, want);
    assert_true(fabs(got - want) <= tolerance);
}

TEST(rows_without_a_whole_are_skipped)
{
    static const dq_span_mass cancel[2] = {{.3, .1}, {.2, .4 - 5e-4}}, zero[2] = {{0, 0}, {0, 0}},
                              negative[2] = {{0, .3}, {0, .1}}, enough[2] = {{.3, .1}, {.2, .398}},
                              bad[2] = {{(double)NAN, 0}, {0, 0}};
    dq_span_share s = {0};
    dq_attention_spans_add_row(&s, cancel, 2);
    assert_true(s.rows == 1 && s.skipped[DQ_SPAN_SUM] == 1 && s.skipped[DQ_SPAN_POSITIVE] == 0);
    assert_true(isnan(dq_attention_spans_mean(&s, DQ_SPAN_SUM, 0)));
    expect_near(dq_attention_spans_mean(&s, DQ_SPAN_POSITIVE, 1), .4, 1e-15);
    expect_near(dq_attention_spans_mean(&s, DQ_SPAN_ABSOLUTE, 0), .4 / .9995, 1e-15);
    dq_attention_spans_add_row(&s, zero, 2);
    assert_true(s.skipped[0] == 2 && s.skipped[1] == 1 && s.skipped[2] == 1);
    dq_attention_spans_add_row(&s, negative, 2); /* a sum below 0 is one */
    assert_true(s.rows == 3 && s.skipped[0] == 2 && s.skipped[1] == 2 && s.skipped[2] == 1);
    expect_near(dq_attention_spans_mean(&s, DQ_SPAN_SUM, 0), .75, 1e-15);
    dq_attention_spans_add_row(&s, enough, 2);
    assert_true(s.skipped[0] == 2);
    expect_near(s.share[DQ_SPAN_SUM][0], .75 + 100, 1e-9);
    assert_int_equal(s.small, 3); /* 5e-4, 0 and .002, not -.4 */
    dq_attention_spans_add_row(&s, bad, 2);
    assert_true(s.rows == 5 && s.skipped[0] == 2 &&
                isnan(dq_attention_spans_mean(&s, DQ_SPAN_SUM, 1)));
}

/* Two query heads on one key head, n tokens whose logits are logit[map][token]; the last row counts. */
static dq_span_share one_row(dq_pairing pairing, const double *const logit[2], int n, float lambda,
                             const uint8_t *label, int last_rows)
{
    stage s;
    dq_span_share sums[2] = {0};
    stage_open(&s, pairing, 2, 1, &dq_kv_plain, 1);
    s.attn.lambda = lambda;
    assert_int_equal(s.b->ops->kv_seq_new(s.b, s.kv), 0);
    begin_batch(&s);
    add_rows(&s, 0, n);
    for (int i = 0; i < n; i++) { /* key i is the i-th unit vector */
        for (int c = 0; c < DIM; c++) s.both[K].host[i * DIM + c] = c == i ? 1.0f : 0.0f;
        for (int c = 0; c < 2 * DIM; c++)
            s.both[Q].host[i * 2 * DIM + c] =
                c % DIM < n ? (float)(logit[c / DIM][c % DIM] / (double)s.map.scale) : 0.0f;
    }
    append(&s);
    s.last[0] = last_rows;
    memcpy(s.label + s.at[0], label, (size_t)n);
    const dq_attention_spans spans = spans_of(&s, sums);
    attend(&s, whole, &spans, NULL);
    stage_close(&s);
    return sums[0];
}

/* One head: BOS, two of the context, two of the answer, one of the context, two of the question. */
TEST(the_worked_example)
{
    static const uint8_t label[] = {0, 2, 2, 1, 1, 2, 3, 3};
    static const double d[] = {.10, .00, .01, .20, .15, -.01, .05, .00}, even[8] = {0};
    static const double sum[] = {.2, .7, 0, .1}, positive[] = {10, 35, 1, 5},
                        size[] = {10, 35, 2, 5};
    double first[8];
    for (int i = 0; i < 8; i++) first[i] = log(d[i] + .5 / 8); /* A1 = D + lambda A2, A2 even */
    const double *const logit[] = {first, even};
    const dq_span_share s = one_row(DQ_PAIR_SHARED_KV, logit, 8, .5f, label, 1);
    assert_true(s.rows == 1 && s.skipped[0] == 0 && s.skipped[1] == 0 && s.skipped[2] == 0);
    for (int c = 0; c < 4; c++) {
        expect_near(s.share[DQ_SPAN_SUM][c], sum[c], 1e-6);
        expect_near(s.share[DQ_SPAN_POSITIVE][c], positive[c] / 51, 1e-6);
        expect_near(s.share[DQ_SPAN_ABSOLUTE][c], size[c] / 52, 1e-6);
    }
    for (int k = 0; k < DQ_N_SPAN_NORMS; k++) assert_true(s.share[k][4] == 0);
}

/* Rows t give the answer, positions 3 to 7, what they see of it over t + 1. */
TEST(even_rows_give_lengths)
{
    static const uint8_t label[12] = {0, 2, 2, 1, 1, 1, 1, 1, 2, 2, 3, 3};
    static const double even[12] = {0};
    static const double *const logit[] = {even, even};
    for (int last = 1; last <= 12; last += 11) {
        for (int i = 0; i < 2; i++) {
            const dq_span_share s =
                one_row(i ? DQ_PAIR_SHARED_KV : DQ_PAIR_NONE, logit, 12, .5f, label, last);
            double want = 0;
            for (int t = 12 - last; t < 12; t++) want += fmin(fmax(t - 2, 0), 5) / (t + 1);
            assert_int_equal(s.rows, last);
            for (int k = 0; k < DQ_N_SPAN_NORMS; k++) expect_near(s.share[k][1], want, 1e-6);
        }
    }
}

TEST(one_hot_rows_are_exact)
{
    static const uint8_t label[] = {0, 2, 2, 1, 1, 2, 3, 3};
    static const double third[8] = {[3] = 200}, last[8] = {[7] = 200};
    static const double *const same[] = {third, third}, *const apart[] = {third, last};
    for (int i = 0; i < 2; i++) {
        const dq_span_share s =
            one_row(i ? DQ_PAIR_SHARED_KV : DQ_PAIR_NONE, same, 8, .5f, label, 1);
        for (int k = 0; k < DQ_N_SPAN_NORMS; k++) {
            for (int c = 0; c < DQ_SPAN_CLASSES; c++) assert_true(s.share[k][c] == (c == 1));
        }
    }
    const dq_span_share s = one_row(DQ_PAIR_SHARED_KV, apart, 8, .5f, label, 1);
    assert_true(s.share[DQ_SPAN_SUM][1] == 2 && s.share[DQ_SPAN_SUM][3] == -1);
    assert_true(s.share[DQ_SPAN_POSITIVE][1] == 1 && s.share[DQ_SPAN_POSITIVE][3] == 0);
    expect_near(s.share[DQ_SPAN_ABSOLUTE][1], 2. / 3, 1e-15);
    expect_near(s.share[DQ_SPAN_ABSOLUTE][3], 1. / 3, 1e-15);
}

TEST(lambdas_near_one_are_skipped)
{
    static const float lambda[] = {.998f, .9995f, 1.0f, 1.0005f, 1.002f};
    static const uint8_t label[] = {0, 1, 1, 1};
    static const double a[] = {0, 1, 2, 3}, b[] = {3, 2, 1, 0};
    static const double *const apart[] = {a, b}, *const same[] = {a, a};
    for (int i = 0; i < 5; i++) {
        const dq_span_share s = one_row(DQ_PAIR_SHARED_KV, apart, 4, lambda[i], label, 1);
        assert_int_equal(s.skipped[DQ_SPAN_SUM], i > 0 && i < 4);
        assert_true(s.skipped[DQ_SPAN_POSITIVE] == 0 && s.skipped[DQ_SPAN_ABSOLUTE] == 0);
    }
    const dq_span_share s = one_row(DQ_PAIR_SHARED_KV, same, 4, 1.0f, label, 1);
    for (int k = 0; k < DQ_N_SPAN_NORMS; k++) assert_int_equal(s.skipped[k], 1);
}

/* ----------------------------------------------------------------------------------------- the oracle */

static void expect_shares(const dq_span_share *got, const dq_span_share *want, int n,
                          double tolerance)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(got[i].rows, want[i].rows);
        for (int k = 0; k < DQ_N_SPAN_NORMS; k++) {
            assert_int_equal(got[i].skipped[k], want[i].skipped[k]);
            for (int c = 0; c < DQ_SPAN_CLASSES; c++) {
                const double size = (double)(1 + want[i].rows);
                expect_near(got[i].share[k][c], want[i].share[k][c], tolerance * size);
            }
            assert_true(got[i].share[k][4] == 0);
        }
    }
}

static const dq_kv_spec specs[] = {
    {.k_bits = 16, .v_bits = 16, .group = 32, .sink = 4, .recent = 64},
    {.k_bits = 8, .v_bits = 8, .group = 32, .sink = 4, .recent = 10},
    {.k_bits = 4, .v_bits = 2, .group = 8},
};

static void against_oracle(int i)
{
    static const int64_t last[][N_SEQ] = {{1, 0, 3}, {0, 1, ROWS}, {3, ROWS, 1}, {ROWS, 3, 0}};
    static const int bits[] = {16, 4, 16, 8, 16, 3, 6, 2};
    stage s;
    dq_span_share got[N_SEQ * N_Q] = {0}, want[N_SEQ * N_Q] = {0};
    stage_open(&s, pairings[i % N_PAIRINGS], N_Q, N_KV, &specs[i / 2 % 3], 1 + i % 2);
    build_scene(&s);
    if (s.map.n_maps == 2 && i / N_PAIRINGS % 2) s.attn.lambda_kind = DQ_LAMBDA_TOKEN;
    memcpy(s.last, last[i / 3 % 4], sizeof s.last);
    const dq_logit_spec logit = {bits[i % 8], (dq_granularity)(i / 8 % 4)};
    const dq_oracle_args o = {&s.attn, &s.batch, s.both[Q].host, s.both[LAMBDA].host, logit, NULL};
    const dq_attention_spans mine = spans_of(&s, got), theirs = spans_of(&s, want);
    for (int times = 0; times < 2; times++) { /* adds to what is there */
        attend(&s, logit, &mine, NULL);
        dq_oracle_spans(s.oracle, &o, &theirs);
    }
    expect_status(&s, DQ_OK);
    expect_shares(got, want, N_SEQ * s.map.n_out, 5e-6);
    stage_close(&s);
}

TEST(the_oracle_agrees)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512"};
    for (int i = 0; i < 96; i++) {
        if (!test_runs(i, 7)) continue;
        setenv("DQ_CPU", isas[i % 3], 1);
        against_oracle(i);
    }
    unsetenv("DQ_CPU");
}

/* One row and one output head a group: the column `diff` holds |a| of the same strips, whatever made them. */
TEST(int8_sees_its_own_maps)
{
    stage s;
    dq_span_share sums[N_SEQ * N_Q] = {0};
    double *diff = calloc(4 * 3 * ROWS, sizeof *diff), size[N_SEQ * 4][N_CLASSES + 1] = {0};
    int64_t offset[N_SEQ * 4];
    int32_t pos[ROWS];
    stage_open(&s, DQ_PAIR_SHARED_KV, N_Q, N_KV, &specs[1], 2);
    build_scene(&s);
    s.math.qk = s.math.pv = DQ_NUM_INT8;
    for (int l = 0; l < N_SEQ * 4; l++) offset[l] = l * ROWS;
    for (int i = 0; i < N_SEQ; i++) s.last[i] = 1;
    const dq_columns columns = {.last_rows = 1, .offset = offset, .diff = diff};
    const dq_attention_spans spans = spans_of(&s, sums);
    attend(&s, whole, &spans, &columns);
    expect_status(&s, DQ_OK);
    for (int l = 0; l < N_SEQ * 4; l++) {
        const int64_t n = s.b->ops->kv_count(s.b, s.kv, s.seq[l / 4], 0, l % 4, pos);
        for (int64_t k = 0; k < n; k++) {
            size[l][s.label[s.at[l / 4] + pos[k]]] += diff[offset[l] + k];
            size[l][N_CLASSES] += diff[offset[l] + k];
        }
        assert_true(size[l][N_CLASSES] > 0.1);
        for (int c = 0; c < N_CLASSES; c++)
            expect_near(sums[l].share[DQ_SPAN_ABSOLUTE][c], size[l][c] / size[l][N_CLASSES], 1e-12);
    }
    free(diff);
    stage_close(&s);
}

/* --------------------------------------------------------------------------------- what may not show */

TEST(outputs_stay_as_they_are)
{
    for (int i = 0; i < N_PAIRINGS; i++) {
        stage s;
        dq_span_share sums[N_SEQ * N_Q] = {0};
        if (!test_runs(i, 2)) continue;
        stage_open(&s, pairings[i], N_Q, N_KV, &specs[i % 3], 2);
        build_scene(&s);
        const int64_t n = s.batch.n_rows * s.map.n_out * s.map.n_slabs * DIM;
        const size_t bytes = (size_t)n * sizeof(float);
        float *before = malloc(bytes);
        const dq_attention_spans spans = spans_of(&s, sums);
        for (int k = 0; k < N_SEQ; k++) s.last[k] = k * ROWS;
        attend(&s, whole, NULL, NULL);
        test_get(s.b, &s.both[OUT], n);
        memcpy(before, s.both[OUT].host, bytes);
        attend(&s, whole, &spans, NULL);
        test_get(s.b, &s.both[OUT], n);
        assert_memory_equal(before, s.both[OUT].host, bytes);
        assert_int_equal(sums[0].rows, 0); /* none of the first sequence count */
        assert_int_equal(sums[s.map.n_out].rows, 70);
        free(before);
        stage_close(&s);
    }
}

/* A model's pass over `n` ids, cut at `cuts`; rows from `first` on count. Beside it a sequence that does not. */
static void run_model(dq_span_share *sums, const dq_model *m, int threads, const int *cuts,
                      int first, bool beside)
{
    enum { MAX = 200 };
    dq_err err = {0};
    int32_t ids[2 * MAX], pos[2 * MAX], seq[2];
    uint8_t label[MAX];
    for (uint32_t i = 0; i < MAX; i++) label[i] = (uint8_t)(mix(i) % 3);
    dq_backend *b = given_backend(threads);
    dq_runner *r = given_runner(m, b);
    for (int i = 0; i < 2; i++) seq[i] = b->ops->kv_seq_new(b, dq_runner_kv(r));
    for (int begin = 0, c = 0; cuts[c]; begin = cuts[c++]) {
        const int n = cuts[c] - begin, n_seq = beside ? 2 : 1;
        const int64_t cu[3] = {0, n, 2 * n}, at[2] = {0, 0};
        const int64_t last[2] = {cuts[c] > first ? cuts[c] - first : 0, 0};
        for (int i = 0; i < 2 * n; i++) {
            pos[i] = begin + i % n;
            ids[i] = (int32_t)(mix((uint32_t)(pos[i] + MAX * (i / n))) % (uint32_t)m->vocab);
        }
        dq_span_share unused[2][2][64] = {0}; /* [layer][sequence][output head] */
        dq_attention_spans spans[2];
        for (int l = 0; l < 2; l++) {
            memcpy(unused[l][0], sums + l * m->map.n_out, (size_t)m->map.n_out * sizeof *sums);
            spans[l] = (dq_attention_spans){3, label, at, last, unused[l][0]};
        }
        const dq_batch batch = {n_seq, n_seq * n, cu, seq, ids, pos};
        const dq_pass pass = {.logit = {.bits = 16}, .spans = spans};
        dq_mat h;
        dq_runner_pass(r, &batch, &pass, &h, &err);
        assert_string_equal(err.text, "");
        for (int l = 0; l < 2; l++)
            memcpy(sums + l * m->map.n_out, unused[l][0], (size_t)m->map.n_out * sizeof *sums);
    }
    dq_runner_free(r);
    dq_backend_close(b);
}

TEST(threads_chunks_and_neighbours_do_not_show)
{
    static const int one[] = {150, 0}, cut[] = {40, 64, 130, 149, 150, 0};
    dq_span_share want[2 * 64] = {0}, got[2 * 64];
    dq_err err = {0};
    dq_model *m;
    assert_int_equal(dq_model_open(&m, DQ_SOURCE_DIR "/calib/longpair/diffllama-0", &err), DQ_OK);
    assert_int_equal(m->n_layers, 2);
    const size_t n = (size_t)(2 * m->map.n_out);
    run_model(want, m, 1, one, 60, false);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(want[i].rows, 90);
        expect_near(dq_attention_spans_mean(&want[i], DQ_SPAN_ABSOLUTE, 0) +
                        dq_attention_spans_mean(&want[i], DQ_SPAN_ABSOLUTE, 1) +
                        dq_attention_spans_mean(&want[i], DQ_SPAN_ABSOLUTE, 2),
                    1, 1e-12);
    }
    for (int i = 1; i < 8; i++) {
        if (!test_runs(i, 3)) continue;
        memset(got, 0, sizeof got);
        run_model(got, m, 1 + i % 2 * 2, i / 2 % 2 ? cut : one, 60, i / 4);
        assert_memory_equal(got, want, n * sizeof *got);
    }
    dq_model_close(m);
}

/* --------------------------------------------------------------------------------------------- errors */

TEST(classes_that_do_not_exist_are_errors)
{
    for (int i = 0; i < 3; i++) {
        stage s;
        dq_span_share sums[N_SEQ * N_Q] = {0};
        stage_open(&s, DQ_PAIR_HALVES, N_Q, N_KV, &dq_kv_plain, 1);
        build_scene(&s);
        dq_attention_spans spans = spans_of(&s, sums);
        if (i == 0) s.label[s.at[1] + FAR + 30] = N_CLASSES;
        if (i == 1) spans.n_classes = 0;
        if (i == 2) spans.n_classes = DQ_SPAN_CLASSES + 1;
        s.last[0] = 1;
        attend(&s, whole, &spans, NULL);
        expect_status(&s, i ? DQ_BUG : DQ_OK); /* no row of sequence 1 counts: not looked at */
        s.last[1] = 1;
        attend(&s, whole, &spans, NULL);
        expect_status(&s, DQ_BUG);
        stage_close(&s);
    }
}

/* Memory that is short anywhere on the way is an error, and the next call is right again. */
TEST(short_memory_is_an_error)
{
    stage s;
    dq_span_share sums[N_SEQ * N_Q], want[N_SEQ * N_Q] = {0};
    int failed = 0;
    stage_open(&s, DQ_PAIR_HALVES, N_Q, N_KV, &dq_kv_plain, 1);
    build_scene(&s);
    for (int i = 0; i < N_SEQ; i++) s.last[i] = 1 + i;
    dq_attention_spans spans = spans_of(&s, want);
    attend(&s, whole, &spans, NULL);
    expect_status(&s, DQ_OK);
    for (int n = 1;; n++) {
        dq_err err = {0};
        memset(sums, 0, sizeof sums);
        spans.sums = sums;
        dq_alloc_fail_at(n);
        attend(&s, whole, &spans, NULL);
        dq_alloc_fail_at(0);
        dq_backend_sync(s.b, &err);
        if (err.code == DQ_OK) break;
        assert_int_equal(err.code, DQ_RESOURCE);
        assert_int_equal(sums[0].rows, 0);
        failed++;
    }
    assert_true(failed >= 4);
    assert_memory_equal(sums, want, sizeof sums);
    stage_close(&s);
}
