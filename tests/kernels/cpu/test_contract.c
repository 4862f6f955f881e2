/* Contract of a backend's KV cache and attention, through its table of operations. The oracle is
 * naive and in f64.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/device.h"
#include "tests/rigs/grid.h"
#include "tests/rigs/oracle.h"
#include "tests/rigs/pairings.h"
#include "tests/rigs/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_Q = 8, N_KV = 4, LAYER = 1, N_LAYERS = 2, MAX_ROWS = 512, MAX_WIDTH = 8 * 2 * 80 };

/* A cache, its oracle, and one batch of rows with their data. */
typedef struct stage {
    dq_backend *b;
    dq_head_order map;
    dq_kv *kv;
    dq_oracle *oracle;
    dq_attn attn;
    float gain[160];
    int32_t length[DQ_ORACLE_SEQ]; /* next position of each sequence */
    int tag[DQ_ORACLE_SEQ];        /* seeds the data of a sequence */
    int64_t cu_rows[DQ_ORACLE_SEQ + 1];
    int32_t seq[DQ_ORACLE_SEQ], pos[MAX_ROWS], ids[MAX_ROWS];
    dq_batch batch;
    float *q, *k, *v, *lambda, *out; /* on the host */
    test_array both[5];              /* the same, on both sides */
    float *absmax;                   /* on the device */
} stage;

enum { Q, K, V, LAMBDA, OUT };

/* Multiples of 1/8 in -2..2: products and their sums are exact in f32, so that codes of rounded
 * logits do not hang on the order of a sum. */
static void open_stage(stage *s, dq_pairing pairing, int head_dim, int threads)
{
    memset(s, 0, sizeof *s);
    s->map = pairings_map(pairing, N_Q, N_KV, head_dim);
    s->b = given_backend(threads);
    s->kv = s->b->ops->kv_new(s->b, &s->map, N_LAYERS, &dq_kv_plain);
    assert_non_null(s->kv);
    s->oracle = dq_oracle_new(&s->map);
    s->attn = pairings_attn(&s->map, 0.8f);
    for (uint32_t i = 0; i < 160; i++) s->gain[i] = on_grid(i + 77) + 0.0625f;
    float **all[] = {&s->q, &s->k, &s->v, &s->lambda, &s->out};
    for (int i = 0; i < 5; i++) {
        s->both[i] = test_array_new(s->b, (size_t)MAX_ROWS * MAX_WIDTH);
        *all[i] = s->both[i].host;
    }
    s->absmax = s->b->ops->alloc(s->b, DQ_ORACLE_SEQ * N_Q * sizeof(float));
}

static void expect_no_error(stage *s)
{
    dq_err err = {0};
    if (dq_backend_sync(s->b, &err) != DQ_OK) print_error("%s\n", err.text);
    assert_int_equal(err.code, DQ_OK);
}

static void close_stage(stage *s)
{
    expect_no_error(s);
    for (int i = 0; i < 5; i++) test_array_free(s->b, &s->both[i]);
    s->b->ops->free(s->b, s->absmax);
    s->b->ops->kv_free(s->b, s->kv);
    dq_oracle_free(s->oracle);
    dq_backend_close(s->b);
}

static void begin_batch(stage *s)
{
    memset(&s->batch, 0, sizeof s->batch);
    s->batch.cu_rows = s->cu_rows;
    s->batch.seq = s->seq;
    s->batch.pos = s->pos;
    s->batch.ids = s->ids;
}

static void fill_row(float *to, int n, uint32_t seed)
{
    for (int c = 0; c < n; c++) to[c] = on_grid(seed * 8191u + (uint32_t)c);
}

/* Adds n rows of a sequence; what they hold depends on the sequence's tag and the position only. */
static void add_rows(stage *s, int32_t seq, int n)
{
    const int d = s->map.head_dim;
    dq_batch *b = &s->batch;
    s->seq[b->n_seq++] = seq;
    for (int i = 0; i < n; i++) {
        int64_t row = b->n_rows++;
        uint32_t seed = (uint32_t)(s->tag[seq] * 100000 + s->length[seq]);
        s->pos[row] = s->length[seq]++;
        fill_row(s->q + row * N_Q * d, N_Q * d, 3 * seed);
        fill_row(s->k + row * N_KV * d, N_KV * d, 3 * seed + 1);
        fill_row(s->v + row * N_KV * d, N_KV * d, 3 * seed + 2);
        fill_row(s->lambda + row * s->map.n_out, s->map.n_out, seed + 5);
    }
    s->cu_rows[b->n_seq] = b->n_rows;
}

static dq_mat mat(float *p, int64_t rows, int64_t cols)
{
    return (dq_mat){.p = p, .rows = rows, .cols = cols};
}

static int64_t out_cols(const stage *s)
{
    return (int64_t)s->map.n_out * s->map.n_slabs * s->map.head_dim;
}

static void append(stage *s)
{
    const int64_t n = s->batch.n_rows, cols = (int64_t)N_KV * s->map.head_dim;
    test_put(s->b, &s->both[K], n * cols);
    test_put(s->b, &s->both[V], n * cols);
    s->b->ops->kv_append(s->b, s->kv, LAYER, &s->batch, mat(s->both[K].device, n, cols),
                         mat(s->both[V].device, n, cols), DQ_NUM_F32);
    dq_oracle_append(s->oracle, &s->batch, s->k, s->v);
}

static void keep(stage *s, int32_t seq, int group, const int32_t *kept, int64_t n)
{
    s->b->ops->kv_keep(s->b, s->kv, seq, LAYER, group, kept, n);
    dq_oracle_keep(s->oracle, seq, group, kept, n);
}

static dq_attend_args arguments(stage *s, int bits, dq_granularity granularity)
{
    dq_attend_args a = {.attn = &s->attn, .batch = &s->batch, .kv = s->kv, .layer = LAYER};
    a.q = mat(s->both[Q].device, s->batch.n_rows, (int64_t)N_Q * s->map.head_dim);
    test_put(s->b, &s->both[Q], a.q.rows * a.q.cols);
    if (s->attn.lambda_kind == DQ_LAMBDA_TOKEN) {
        a.lambda = mat(s->both[LAMBDA].device, s->batch.n_rows, s->map.n_out);
        test_put(s->b, &s->both[LAMBDA], a.lambda.rows * a.lambda.cols);
    }
    a.logit = (dq_logit_spec){.bits = bits, .granularity = granularity};
    return a;
}

static void attend(stage *s, int bits, dq_granularity granularity, const dq_columns *columns)
{
    dq_attend_args a = arguments(s, bits, granularity);
    if (dq_logit_needs_absmax(a.logit)) {
        s->b->ops->attn_absmax(s->b, s->absmax, &a);
        if (granularity == DQ_GRANULARITY_TENSOR)
            s->b->ops->absmax_join(s->b, s->absmax, a.batch->n_seq, N_Q);
        a.absmax = s->absmax;
    }
    a.columns = columns;
    s->b->ops->attend(s->b, mat(s->both[OUT].device, s->batch.n_rows, out_cols(s)), &a);
}

/* Attends and compares with the oracle: |difference| <= tolerance * largest |y|. */
static void check_attend(stage *s, int bits, dq_granularity granularity, double tolerance)
{
    const int64_t n = s->batch.n_rows * out_cols(s);
    double *want = calloc((size_t)n, sizeof *want), max = 0, worst = 0;
    float *got = calloc((size_t)n, sizeof *got);
    dq_oracle_args a = {&s->attn, &s->batch, s->q, s->lambda, {bits, granularity}, NULL};
    dq_oracle_attend(want, s->oracle, &a);
    attend(s, bits, granularity, NULL);
    s->b->ops->get(s->b, got, s->both[OUT].device, (size_t)n * sizeof *got);
    expect_no_error(s);
    for (int64_t i = 0; i < n; i++) {
        double off = fabs(want[i] - (double)got[i]);
        max = fmax(max, fabs(want[i]));
        worst = off > worst || off != off ? off : worst;
    }
    if (!(worst <= tolerance * max)) {
        print_error("bits %d, granularity %s: off by %g of %g\n", bits,
                    dq_granularity_name[granularity], worst, max);
    }
    assert_true(worst <= tolerance * max);
    free(want);
    free(got);
}

/* Three ragged sequences: A; B, forked from A at 70 tokens and gone another way; C with a different
 * kept set for every group. The batch left after holds 80, 33 and 5 rows. */
static void build_scene(stage *s)
{
    const dq_ops *op = s->b->ops;
    int32_t a = op->kv_seq_new(s->b, s->kv), c = op->kv_seq_new(s->b, s->kv);
    s->tag[a] = 1;
    s->tag[c] = 3;
    begin_batch(s);
    add_rows(s, a, 70);
    add_rows(s, c, 130);
    append(s);
    int32_t b = op->kv_fork(s->b, s->kv, a);
    assert_true(a >= 0 && b >= 0 && c >= 0);
    dq_oracle_fork(s->oracle, b, a);
    s->length[b] = s->length[a];
    s->tag[b] = 2;
    for (int g = 0; g < s->map.n_groups; g++) {
        int32_t kept[130];
        int64_t n = 0;
        for (int32_t i = 0; i < 130; i++) {
            if (i < 4 || i >= 120 - 9 * g || mix((uint32_t)(i + 1000 * g)) % 3 == 0) kept[n++] = i;
        }
        keep(s, c, g, kept, n);
    }
    begin_batch(s);
    add_rows(s, b, 33);
    add_rows(s, a, 80);
    add_rows(s, c, 5);
    append(s);
    expect_no_error(s);
}

/* With norms, gains and scales as well. */
static void set_lambda(stage *s, int i)
{
    static const float values[] = {-0.3f, 0.0f, 0.8f, 1.4f};
    s->attn.head_norm = i % 2 == 1;
    s->attn.gain = i % 4 == 3 ? s->gain : NULL;
    s->attn.norm_eps = 1e-5f;
    s->attn.out_scale = i % 3 == 1 ? 0.2f : 1.0f;
    if (s->map.n_maps < 2) return;
    s->attn.lambda_kind = i % 5 == 4 ? DQ_LAMBDA_TOKEN : DQ_LAMBDA_LAYER;
    s->attn.lambda = values[i % 4];
}

TEST(every_map_unrounded)
{
    static const int dims[] = {16, 20, 80};
    for (int p = 0; p < N_PAIRINGS; p++) {
        for (int d = 0; d < 3; d++) {
            stage s;
            if (!test_runs(3 * p + d, 4)) continue;
            open_stage(&s, pairings[p], dims[d], 2);
            build_scene(&s);
            for (int i = 0; i < (d == 0 ? 10 : 5); i++) {
                set_lambda(&s, i);
                check_attend(&s, 16, DQ_GRANULARITY_TENSOR, 5e-6);
            }
            close_stage(&s);
        }
    }
}

TEST(every_rounding)
{
    static const int bits[] = {8, 6, 4, 3, 2};
    for (int p = 0; p < N_PAIRINGS; p++) {
        stage s;
        if (!test_runs(p, 3)) continue;
        open_stage(&s, pairings[p], 16, 2);
        build_scene(&s);
        for (int granularity = DQ_GRANULARITY_TENSOR; granularity <= DQ_GRANULARITY_TILE;
             granularity++) {
            for (int i = 0; i < 5; i++) {
                set_lambda(&s, granularity + i + p);
                check_attend(&s, bits[i], (dq_granularity)granularity, 5e-6);
            }
        }
        close_stage(&s);
    }
}

/* All keys zero: A is 0, S' is 0, attention is uniform. */
TEST(zero_logits)
{
    for (int granularity = DQ_GRANULARITY_TENSOR; granularity <= DQ_GRANULARITY_TILE;
         granularity++) {
        stage s;
        open_stage(&s, DQ_PAIR_HALVES, 16, 1);
        s.tag[0] = s.b->ops->kv_seq_new(s.b, s.kv);
        begin_batch(&s);
        add_rows(&s, 0, 70);
        memset(s.q, 0, sizeof(float) * 70 * N_Q * 16);
        append(&s);
        check_attend(&s, 4, (dq_granularity)granularity, 5e-6);
        close_stage(&s);
    }
}

TEST(columns_match)
{
    static const int64_t last[] = {0, 7, 50};
    for (int i = 0; i < 3 * N_PAIRINGS; i++) {
        if (!test_runs(i, 2)) continue;
        stage s;
        int64_t offset[3 * DQ_ORACLE_GROUPS], n = 0;
        open_stage(&s, pairings[i / 3], 16, 1 + i % 3);
        build_scene(&s);
        set_lambda(&s, i);
        for (int k = 0; k < s.batch.n_seq * s.map.n_groups; k++) {
            offset[k] = n;
            n += s.b->ops->kv_count(s.b, s.kv, s.seq[k / s.map.n_groups], LAYER, k % s.map.n_groups,
                                    NULL);
        }
        double *sums = calloc((size_t)(8 * n), sizeof *sums);
        double *y = calloc((size_t)(s.batch.n_rows * out_cols(&s)), sizeof *y);
        dq_columns both[2]; /* more of them in test_columns.c */
        for (int k = 0; k < 2; k++) {
            double *at = sums + 4 * k * n;
            both[k] = (dq_columns){.last_rows = last[i % 3],
                                   .offset = offset,
                                   .mass = {at, at + n},
                                   .lambda_mass = at + 2 * n,
                                   .diff = at + 3 * n};
        }
        dq_oracle_args a = {&s.attn, &s.batch, s.q, s.lambda, {16, DQ_GRANULARITY_TENSOR},
                            &both[1]};
        dq_oracle_attend(y, s.oracle, &a);
        for (int times = 1; times <= 2; times++) { /* adds to what is there */
            attend(&s, 16, DQ_GRANULARITY_TENSOR, &both[0]);
            expect_no_error(&s);
            for (int64_t c = 0; c < 4 * n; c++)
                assert_true(fabs(sums[c] - times * sums[4 * n + c]) <=
                            1e-5 * times * (1 + fabs(sums[4 * n + c])));
        }
        free(sums);
        free(y);
        close_stage(&s);
    }
}

TEST(absmax_is_exact)
{
    stage s;
    open_stage(&s, DQ_PAIR_ADJACENT, 16, 2);
    build_scene(&s);
    begin_batch(&s);
    add_rows(&s, 2, 3);
    add_rows(&s, 1, 0); /* a sequence without rows: 0 */
    append(&s);
    dq_attend_args a = arguments(&s, 4, DQ_GRANULARITY_HEAD);
    dq_oracle_args oa = {&s.attn, &s.batch, s.q, NULL, {4, DQ_GRANULARITY_HEAD}, NULL};
    s.b->ops->attn_absmax(s.b, s.absmax, &a);
    float max_of_all = 0, got[2 * N_Q];
    s.b->ops->get(s.b, got, s.absmax, sizeof got);
    for (int h = 0; h < N_Q; h++) {
        float max = 0;
        for (int64_t row = 0; row < 3; row++) {
            const dq_oracle_list *l = &s.oracle->list[2][s.map.group[s.map.key[h]]];
            for (int64_t i = 0; i < l->n && l->pos[i] <= s.pos[row]; i++) {
                max = fmaxf(max, fabsf((float)dq_oracle_logit(s.oracle, &oa, row, h, i)));
            }
        }
        assert_true(got[h] == max);
        assert_true(got[N_Q + h] == 0.0f);
        max_of_all = fmaxf(max_of_all, max);
    }
    s.b->ops->absmax_join(s.b, s.absmax, 2, N_Q);
    s.b->ops->get(s.b, got, s.absmax, sizeof got);
    for (int h = 0; h < N_Q; h++) assert_true(got[h] == max_of_all);
    close_stage(&s);
}

enum { TOKENS = 200 };

/* Appends TOKENS tokens in chunks and collects the output of every row. Nothing here may change the
 * bits: the chunk, the threads, a second sequence beside it. */
static float *in_chunks(dq_pairing pairing, int head_dim, int chunk, int threads, bool company,
                        int bits)
{
    stage s;
    open_stage(&s, pairing, head_dim, threads);
    set_lambda(&s, 3);
    s.tag[0] = 1;
    s.b->ops->kv_seq_new(s.b, s.kv);
    s.tag[1] = 9;
    s.b->ops->kv_seq_new(s.b, s.kv);
    const size_t row = (size_t)out_cols(&s);
    float *out = calloc(TOKENS * row, sizeof *out);
    for (int at = 0; at < TOKENS; at += chunk) {
        int n = TOKENS - at < chunk ? TOKENS - at : chunk, before = company ? 3 : 0;
        begin_batch(&s);
        if (company) add_rows(&s, 1, before);
        add_rows(&s, 0, n);
        append(&s);
        attend(&s, bits, DQ_GRANULARITY_ROW, NULL);
        s.b->ops->get(s.b, out + (size_t)at * row, s.both[OUT].device + (size_t)before * row,
                      (size_t)n * row * sizeof *out);
    }
    close_stage(&s);
    return out;
}

TEST(chunks_and_threads_give_equal_bits)
{
    static const struct {
        int chunk, threads;
        bool company;
    } ways[] = {{1, 1, false}, {7, 2, true}, {64, 3, false}, {TOKENS, 3, true}, {TOKENS, 2, false}};
    for (int p = 0; p < N_PAIRINGS; p++) {
        int d = p % 2 ? 80 : 16, bits = p % 3 ? 16 : 4;
        if (!test_runs(p, 3)) continue;
        float *want = in_chunks(pairings[p], d, TOKENS, 1, false, bits);
        const dq_head_order map = pairings_map(pairings[p], N_Q, N_KV, d);
        size_t n = (size_t)(TOKENS * map.n_out * map.n_slabs * d);
        for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
            float *got =
                in_chunks(pairings[p], d, ways[i].chunk, ways[i].threads, ways[i].company, bits);
            assert_memory_equal(got, want, n * sizeof *want);
            free(got);
        }
        free(want);
    }
}

TEST(fork_rewind_keep_continue)
{
    for (int p = 0; p < N_PAIRINGS; p++) {
        stage s;
        open_stage(&s, pairings[p], 16, 2);
        build_scene(&s);
        s.length[0] = 65; /* drop into a page that B still shares, then go another way */
        s.tag[0] = 5;
        s.b->ops->kv_rewind(s.b, s.kv, 0, 65);
        dq_oracle_rewind(s.oracle, 0, 65);
        int32_t fork = s.b->ops->kv_fork(s.b, s.kv, 1); /* a fork of kept sets */
        dq_oracle_fork(s.oracle, fork, 1);
        s.length[fork] = s.length[1];
        s.tag[fork] = 6;
        begin_batch(&s);
        add_rows(&s, fork, 70);
        add_rows(&s, 0, 9);
        add_rows(&s, 2, 64);
        append(&s);
        check_attend(&s, 16, DQ_GRANULARITY_TENSOR, 5e-6);
        for (int g = 0; g < s.map.n_groups; g++) {
            int32_t kept[100];
            int64_t n = 0;
            for (int32_t i = 0; i < 64 + g; i++) kept[n++] = i; /* a whole page stays in place */
            keep(&s, 2, g, kept, n);
            keep(&s, 2, g, kept, n);
            keep(&s, fork, g, kept, g); /* perhaps nothing at all */
        }
        begin_batch(&s);
        add_rows(&s, 1, 2);
        add_rows(&s, 2, 66);
        add_rows(&s, fork, 1);
        append(&s);
        check_attend(&s, 16, DQ_GRANULARITY_TENSOR, 5e-6);
        check_attend(&s, 6, DQ_GRANULARITY_TILE, 5e-6);
        s.b->ops->kv_seq_free(s.b, s.kv, 1);
        assert_int_equal(s.b->ops->kv_seq_new(s.b, s.kv), 1);
        assert_int_equal(s.b->ops->kv_count(s.b, s.kv, 1, LAYER, 0, NULL), 0);
        close_stage(&s);
    }
}

TEST(counts_and_positions)
{
    stage s;
    open_stage(&s, DQ_PAIR_HALVES, 16, 1);
    build_scene(&s);
    for (int i = 0; i < 3 * s.map.n_groups; i++) {
        int seq = i / s.map.n_groups, g = i % s.map.n_groups;
        int32_t pos[DQ_ORACLE_TOKENS];
        const dq_oracle_list *l = &s.oracle->list[seq][g];
        assert_int_equal(s.b->ops->kv_count(s.b, s.kv, seq, LAYER, g, pos), l->n);
        assert_memory_equal(pos, l->pos, (size_t)l->n * sizeof pos[0]);
        assert_int_equal(s.b->ops->kv_count(s.b, s.kv, seq, 0, g, NULL), 0);
    }
    close_stage(&s);
}

/* Pages of 64 tokens, keys and values in f32, per group; shared pages count once. */
static int64_t page_bytes(const stage *s)
{
    int64_t d = s->map.head_dim, padded = (d + 15) / 16 * 16;
    return DQ_PAGE_TOKENS * (d + padded) * N_KV * (int64_t)sizeof(float);
}

TEST(bytes_are_those_allocated)
{
    stage s;
    open_stage(&s, DQ_PAIR_ADJACENT, 20, 1);
    const dq_ops *op = s.b->ops;
    op->kv_seq_new(s.b, s.kv);
    begin_batch(&s);
    add_rows(&s, 0, 130);
    append(&s);
    dq_kv_bytes bytes = op->kv_bytes(s.b, s.kv);
    assert_int_equal(bytes.unquantized, 3 * page_bytes(&s));
    assert_int_equal(bytes.tokens, 130 * s.map.n_groups);
    assert_int_equal(bytes.codes + bytes.scales, 0);
    int32_t fork = op->kv_fork(s.b, s.kv, 0);
    dq_oracle_fork(s.oracle, fork, 0);
    s.length[fork] = 130;
    assert_int_equal(op->kv_bytes(s.b, s.kv).unquantized, 3 * page_bytes(&s));
    assert_int_equal(op->kv_bytes(s.b, s.kv).tokens, 260 * s.map.n_groups);
    begin_batch(&s);
    add_rows(&s, fork, 1); /* copies the tail page */
    append(&s);
    assert_int_equal(op->kv_bytes(s.b, s.kv).unquantized, 4 * page_bytes(&s));
    op->kv_rewind(s.b, s.kv, fork, 64);
    assert_int_equal(op->kv_bytes(s.b, s.kv).unquantized, 3 * page_bytes(&s));
    op->kv_seq_free(s.b, s.kv, 0);
    assert_int_equal(op->kv_bytes(s.b, s.kv).unquantized, page_bytes(&s));
    op->kv_seq_free(s.b, s.kv, fork);
    bytes = op->kv_bytes(s.b, s.kv);
    assert_int_equal(bytes.unquantized + bytes.tokens, 0);
    close_stage(&s);
}

/* Every allocation of a small scene fails once: an error each time, never a crash or a leak. */
TEST(exhausted_memory)
{
    for (int64_t n = 1; n < 400; n++) {
        stage s;
        dq_err err = {0};
        open_stage(&s, DQ_PAIR_HALVES, 16, 2);
        s.b->ops->kv_seq_new(s.b, s.kv);
        begin_batch(&s);
        add_rows(&s, 0, 70);
        dq_alloc_fail_at(n);
        append(&s);
        int32_t fork = s.b->ops->kv_fork(s.b, s.kv, 0), kept[3] = {0, 5, 9};
        s.b->ops->kv_keep(s.b, s.kv, 0, LAYER, 0, kept, 3);
        attend(&s, 4, DQ_GRANULARITY_TENSOR, NULL);
        dq_alloc_fail_at(0);
        dq_status status = dq_backend_sync(s.b, &err);
        assert_true(status == DQ_OK || status == DQ_RESOURCE);
        if (fork >= 0) s.b->ops->kv_seq_free(s.b, s.kv, fork);
        close_stage(&s);
        if (status == DQ_OK) return;
    }
    fail_msg("allocations never ended");
}

/* A damaged value must be seen after attention, whatever the rounding. */
TEST(nan_reaches_the_output)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 5 * 3; i++) {
        stage s;
        open_stage(&s, DQ_PAIR_SHARED_KV, 16, 1);
        s.b->ops->kv_seq_new(s.b, s.kv);
        begin_batch(&s);
        add_rows(&s, 0, 70);
        s.q[66 * N_Q * 16 + 3] = bad[i % 3];
        append(&s);
        attend(&s, i / 3 < 4 ? 4 : 16, (dq_granularity)(i / 3 % 4), NULL);
        expect_no_error(&s);
        test_get(s.b, &s.both[OUT], 70 * out_cols(&s));
        int n_bad = 0;
        for (int c = 0; c < 16; c++) n_bad += isfinite(s.out[66 * out_cols(&s) + c]) == 0;
        assert_true(n_bad > 0);
        close_stage(&s);
    }
}
