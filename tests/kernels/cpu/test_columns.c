/* Per-key sums against the f64 oracle where rounding hurts: rows that look at one key almost alone,
 * equal maps; at every instruction set and rounding of logits.
 * SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* setenv under strict C17 */
#include "tests/rigs/device.h"
#include "tests/rigs/oracle.h"
#include "tests/rigs/pairings.h"
#include "tests/rigs/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_Q = 8, N_KV = 4, FIRST = 70, ROWS = 100, N_COLUMNS = 4 };

static const char *const column_name[] = {"mass 1", "mass 2", "lambda mass", "diff"};

typedef struct scene {
    dq_backend *b;
    dq_head_order map;
    dq_attn attn;
    dq_kv *kv;
    dq_oracle *oracle;
    int64_t cu[3];
    int32_t seq[2], pos[ROWS];
    dq_batch batch;
    float *q, *k, *v, *lambda, *out; /* on the host */
    test_array both[5];              /* the same, on both sides */
    float *absmax;
} scene;

enum { Q, K, V, LAMBDA, OUT };

/* How the numbers are made. */
typedef struct made {
    float loud; /* factor of the queries: how peaked rows are */
    bool twins; /* second query heads equal the first: both maps are equal */
    bool
        /* q and k in eighths: products are exact, so that no code of a rounded logit differs */
        grid;
} made;

static float noise(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(int32_t)(*seed ^ *seed >> 15) / 2147483648.0f;
}

static void fill(scene *s, const made *how)
{
    const int d = s->map.head_dim;
    uint32_t seed = 7;
    for (int64_t i = 0; i < ROWS * N_Q * d; i++) s->q[i] = how->loud * noise(&seed);
    for (int64_t i = 0; i < ROWS * N_KV * d; i++) s->k[i] = 2 * noise(&seed);
    for (int64_t i = 0; i < ROWS * N_KV * d; i++) s->v[i] = noise(&seed);
    for (int64_t i = 0; i < ROWS * N_Q; i++) s->lambda[i] = noise(&seed);
    for (int64_t i = 0; i < ROWS * N_Q * d && how->grid; i++) s->q[i] = rintf(8 * s->q[i]) / 8;
    for (int64_t i = 0; i < ROWS * N_KV * d && how->grid; i++) s->k[i] = rintf(8 * s->k[i]) / 8;
    for (int64_t r = 0; r < ROWS && how->twins; r++) {
        for (int o = 0; o < s->map.n_out && s->map.n_maps == 2; o++) {
            float *row = s->q + r * N_Q * d;
            memcpy(row + s->map.head[o].q[1] * d, row + s->map.head[o].q[0] * d,
                   sizeof(float) * (size_t)d);
        }
    }
}

/* Two sequences, of FIRST rows (more than a page) and of the others. */
static void scene_open(scene *s, dq_pairing pairing, int head_dim, int threads, const made *how)
{
    memset(s, 0, sizeof *s);
    s->map = pairings_map(pairing, N_Q, N_KV, head_dim);
    s->b = given_backend(threads);
    s->kv = s->b->ops->kv_new(s->b, &s->map, 1, &dq_kv_plain);
    s->oracle = dq_oracle_new(&s->map);
    s->attn = pairings_attn(&s->map, how->twins ? 1.0f : 0.7f);
    float **all[] = {&s->q, &s->k, &s->v, &s->lambda, &s->out};
    for (int i = 0; i < 5; i++)
        *all[i] = (s->both[i] = test_array_new(s->b, ROWS * 2 * N_Q * (size_t)head_dim)).host;
    fill(s, how);
    for (int i = 0; i < 5; i++) test_put(s->b, &s->both[i], ROWS * 2 * N_Q * (int64_t)head_dim);
    for (int i = 0; i < 2; i++) s->seq[i] = s->b->ops->kv_seq_new(s->b, s->kv);
    s->cu[1] = FIRST;
    s->cu[2] = ROWS;
    for (int r = 0; r < ROWS; r++) s->pos[r] = r < FIRST ? r : r - FIRST;
    s->batch = (dq_batch){2, ROWS, s->cu, s->seq, NULL, s->pos};
    const int64_t cols = (int64_t)N_KV * head_dim;
    s->b->ops->kv_append(s->b, s->kv, 0, &s->batch, (dq_mat){s->both[K].device, ROWS, cols},
                         (dq_mat){s->both[V].device, ROWS, cols}, DQ_NUM_F32);
    dq_oracle_append(s->oracle, &s->batch, s->k, s->v);
}

static void scene_close(scene *s)
{
    for (int i = 0; i < 5; i++) test_array_free(s->b, &s->both[i]);
    s->b->ops->free(s->b, s->absmax);
    s->b->ops->kv_free(s->b, s->kv);
    dq_oracle_free(s->oracle);
    dq_backend_close(s->b);
}

static dq_columns columns_at(double *sums, const int64_t *offset, int64_t n, int64_t last_rows)
{
    return (dq_columns){.last_rows = last_rows,
                        .offset = offset,
                        .mass = {sums, sums + n},
                        .lambda_mass = sums + 2 * n,
                        .diff = sums + 3 * n};
}

/* Fills got and want: [N_COLUMNS][tokens], returns tokens. */
static int64_t sum_up(scene *s, dq_logit_spec logit, int64_t last_rows, double **got, double **want)
{
    dq_err err = {0};
    int64_t offset[2 * DQ_ORACLE_GROUPS], n = 0;
    for (int i = 0; i < 2 * s->map.n_groups; i++) {
        offset[i] = n;
        n += s->b->ops->kv_count(s->b, s->kv, s->seq[i / s->map.n_groups], 0, i % s->map.n_groups,
                                 NULL);
    }
    *got = dq_alloc(given_arena(), (size_t)(N_COLUMNS * n), sizeof **got, &err);
    *want = dq_alloc(given_arena(), (size_t)(N_COLUMNS * n), sizeof **want, &err);
    double *y = dq_alloc(given_arena(), ROWS * 2 * N_Q * (size_t)s->map.head_dim, sizeof *y, &err);
    const dq_columns mine = columns_at(*got, offset, n, last_rows);
    const dq_columns theirs = columns_at(*want, offset, n, last_rows);
    dq_attend_args a = {.attn = &s->attn,
                        .batch = &s->batch,
                        .kv = s->kv,
                        .q = {s->both[Q].device, ROWS, (int64_t)N_Q * s->map.head_dim},
                        .logit = logit,
                        .columns = &mine};
    dq_oracle_args o = {&s->attn, &s->batch, s->q, s->lambda, logit, &theirs};
    if (s->attn.lambda_kind == DQ_LAMBDA_TOKEN)
        a.lambda = (dq_mat){s->both[LAMBDA].device, ROWS, s->map.n_out};
    if (dq_logit_needs_absmax(logit)) {
        float *absmax = s->absmax = s->b->ops->alloc(s->b, 2 * N_Q * sizeof *absmax);
        s->b->ops->attn_absmax(s->b, absmax, &a);
        if (logit.granularity == DQ_GRANULARITY_TENSOR)
            s->b->ops->absmax_join(s->b, absmax, 2, N_Q);
        a.absmax = absmax;
    }
    s->b->ops->attend(s->b,
                      (dq_mat){s->both[OUT].device, ROWS,
                               (int64_t)s->map.n_out * s->map.n_slabs * s->map.head_dim},
                      &a);
    assert_int_equal(dq_backend_sync(s->b, &err), DQ_OK);
    dq_oracle_attend(y, s->oracle, &o);
    return n;
}

/* Every sum to `tolerance` of itself, but for what is nothing beside the column's largest. */
static void expect_sums(const double *got, const double *want, int64_t n, double tolerance)
{
    for (int c = 0; c < N_COLUMNS; c++) {
        double max = 0, worst = 0;
        for (int64_t i = 0; i < n; i++) max = fmax(max, fabs(want[c * n + i]));
        for (int64_t i = 0; i < n; i++) {
            const double off = fabs(got[c * n + i] - want[c * n + i]);
            const double of = fmax(fabs(want[c * n + i]), 1e-3 * max);
            worst = off > worst * of || off != off ? off / of : worst;
        }
        if (getenv("DQ_SHOW")) print_message("%s: %.1e\n", column_name[c], worst);
        if (!(worst <= tolerance)) print_error("%s: off by %g\n", column_name[c], worst);
        assert_true(worst <= tolerance);
    }
}

static void check(dq_pairing pairing, int head_dim, const made *how, double tolerance)
{
    scene s;
    double *got, *want;
    scene_open(&s, pairing, head_dim, 2, how);
    const int64_t n = sum_up(&s, (dq_logit_spec){16, DQ_GRANULARITY_TENSOR}, 0, &got, &want);
    expect_sums(got, want, n, tolerance);
    scene_close(&s);
}

TEST(ordinary_rows)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512"};
    static const made how = {.loud = 1};
    for (int i = 0; i < 3 * N_PAIRINGS; i++) {
        if (!test_runs(i, 4)) continue;
        setenv("DQ_CPU", isas[i % 3], 1);
        check(pairings[i / 3], (int[]){16, 20, 80}[i % 3], &how, 3e-6);
    }
    unsetenv("DQ_CPU");
}

/* 1 - p from 1e-1 to far below the precision of f32. */
TEST(peaked_rows)
{
    for (int i = 0; i < 5 * N_PAIRINGS; i++) {
        if (!test_runs(i, 4)) continue;
        const made how = {.loud = (float[]){3, 8, 16, 40, 200}[i % 5]};
        check(pairings[i / 5], 16, &how, how.loud > 30 ? 2e-4 : 4e-5);
    }
}

/* Lambda 1 and equal maps: their difference is zero, up to rounding. */
TEST(maps_that_cancel)
{
    static const made how = {.loud = 2, .twins = true};
    double *got, *want;
    scene s;
    scene_open(&s, DQ_PAIR_SHARED_KV, 16, 2, &how);
    const int64_t n = sum_up(&s, (dq_logit_spec){16, DQ_GRANULARITY_TENSOR}, 0, &got, &want);
    for (int64_t i = 0; i < n; i++) assert_true(got[3 * n + i] <= 1e-5 * got[i]);
    scene_close(&s);
}

TEST(roundings_windows_and_lambdas)
{
    static const int64_t last[] = {0, 1, 7, 64};
    for (int i = 0; i < 8 * N_PAIRINGS; i++) {
        if (!test_runs(i, 5)) continue;
        const made how = {.loud = 3, .grid = true};
        const dq_logit_spec logit = {(int[]){2, 3, 4, 8}[i / 2 % 4], (dq_granularity)(i % 4)};
        scene s;
        double *got, *want;
        scene_open(&s, pairings[i / 8], 16, 1 + i % 3, &how);
        if (s.map.n_maps == 2 && i % 3 == 0) s.attn.lambda_kind = DQ_LAMBDA_TOKEN;
        const int64_t n = sum_up(&s, logit, last[(i + i / 4) % 4], &got, &want);
        expect_sums(got, want, n,
                    1e-3); /* a code at a tie may round otherwise: see test_contract */
        scene_close(&s);
    }
}

/* Bit for bit: threads, and a sequence beside it. */
TEST(sums_depend_on_the_sequence_alone)
{
    for (int p = 0; p < N_PAIRINGS; p++) {
        const made how = {.loud = 4};
        if (!test_runs(p, 2)) continue;
        scene both, one;
        double *want, *got, *unused;
        scene_open(&both, pairings[p], 20, 1, &how);
        scene_open(&one, pairings[p], 20, 2, &how);
        const dq_logit_spec logit = {16, DQ_GRANULARITY_TENSOR};
        const int64_t n = sum_up(&both, logit, 0, &want, &unused);
        one.batch.n_seq = 1; /* the second sequence stays out of the call */
        one.batch.n_rows = FIRST;
        const int64_t m = sum_up(&one, logit, 0, &got, &unused);
        assert_int_equal(n, m);
        for (int c = 0; c < N_COLUMNS; c++)
            assert_memory_equal(got + c * n, want + c * n,
                                (size_t)(FIRST * one.map.n_groups) * sizeof(double));
        scene_close(&both);
        scene_close(&one);
    }
}
