/* Columns, measures, spans and tallies of the CUDA backend against the CPU's, on the simulated device: counts
 * and places exactly, sums up to their order.
 * SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda/pair_rig.h"
#include "tests/rigs/suite.h"

/* ------------------------------------------------------------------------------- columns, measures */

enum { N_COLUMNS = 4, MAX_SUMS = 3 * 4 * 300 };

static dq_columns columns_at(double *sums, const int64_t *offset, int64_t n, int64_t last_rows)
{
    return (dq_columns){.last_rows = last_rows,
                        .offset = offset,
                        .mass = {sums, sums + n},
                        .lambda_mass = sums + 2 * n,
                        .diff = sums + 3 * n};
}

/* f64 sums of equal f32 numbers, in another order. */
static void compare_columns(const double *a, const double *b, int64_t n)
{
    for (int c = 0; c < N_COLUMNS; c++) {
        for (int64_t i = c * n; i < (c + 1) * n; i++) {
            if (!(fabs(a[i] - b[i]) <= 1e-12 * (1e-3 + fabs(a[i]))))
                print_error("column %d: %.17g, %.17g\n", c, a[i], b[i]);
            assert_true(fabs(a[i] - b[i]) <= 1e-12 * (1e-3 + fabs(a[i])));
        }
    }
}

/* Counts are exact: both compare the same f32 numbers, and a page's sum of |D|, whose order differs, is
 * hardly ever within 2^-50 of a threshold. log is not rounded alike. */
static void compare_measures(const dq_head_measure *a, const dq_head_measure *b)
{
    assert_true(a->rows == b->rows && a->keys == b->keys && a->pages == b->pages);
    for (int m = 0; m < 2; m++) {
        assert_true(fabs(a->entropy[m] - b->entropy[m]) <= 1e-6 * (1 + a->entropy[m]));
        assert_true(fabs(a->sink_mass[m] - b->sink_mass[m]) <= 1e-12 * (1 + a->sink_mass[m]));
    }
    assert_true(fabs(a->variation - b->variation) <= 1e-12 * a->variation);
    assert_true(fabs(a->negative - b->negative) <= 1e-12 * (1 + a->negative));
    assert_memory_equal(a->near_zero, b->near_zero, sizeof a->near_zero);
    assert_memory_equal(a->skippable, b->skippable, sizeof a->skippable);
}

static void look_twice(pair *p, dq_logit_spec logit, int64_t last_rows)
{
    static double sums[2][N_COLUMNS * MAX_SUMS];
    int64_t offset[PAIR_SEQ * 8], n = 0;
    dq_head_measure of[2][PAIR_Q];
    dq_head_measure *const measure[2] = {of[CPU], of[CUDA]};
    memset(of, 0, sizeof of);
    memset(sums, 0, sizeof sums);
    for (int l = 0; l < p->batch.n_seq * p->map.n_groups; l++) {
        offset[l] = n;
        n += p->b[CPU]->ops->kv_count(p->b[CPU], p->kv[CPU], p->seq[l / p->map.n_groups], 0,
                                      l % p->map.n_groups, NULL);
    }
    assert_true(n <= MAX_SUMS);
    const dq_columns columns[2] = {columns_at(sums[CPU], offset, n, last_rows),
                                   columns_at(sums[CUDA], offset, n, last_rows)};
    for (int times = 0; times < 2; times++) { /* adds to what is there */
        attend_both(p, logit, p->attn.window ? NULL : columns, measure);
        pair_sync(p);
    }
    compare_outputs(p);
    compare_columns(sums[CPU], sums[CUDA], n);
    for (int o = 0; o < p->map.n_out; o++) compare_measures(&of[CPU][o], &of[CUDA][o]);
}

TEST(looks_are_equal)
{
    static const int64_t last[] = {0, 7, 50};
    for (int i = 0; i < N_PAIRINGS; i++) {
        pair p;
        pair_open(&p, pairings[i], dims[i], i % 2 ? dq_kv_plain : spec_of(2 * i + 1));
        pair_scene(&p, i % 3 == 1);
        set_options(&p, i);
        look_twice(&p, (dq_logit_spec){i == 3 ? 4 : 16, DQ_GRANULARITY_ROW}, last[i % 3]);
        pair_close(&p);
    }
}

TEST(looks_at_uneven_groups_are_equal)
{
    for (int i = 0; i < 2; i++) {
        pair p;
        pair_open_uneven(&p, 32, i ? dq_kv_plain : spec_of(3));
        pair_scene(&p, i);
        look_twice(&p, (dq_logit_spec){16, DQ_GRANULARITY_ROW}, 7);
        pair_close(&p);
    }
}

/* ----------------------------------------------------------------------------------------- spans */

static void look_at_classes(pair *p, dq_logit_spec logit, const int64_t last[PAIR_SEQ])
{
    pair_count_spans(p, last);
    for (int times = 0; times < 2; times++) { /* adds to what is there */
        attend_both(p, logit, NULL, NULL);
        pair_sync(p);
    }
    compare_outputs(p);
    compare_spans(p, 1e-11);
}

/* Rows of 1, 50 and 21: none of a sequence, one, some, all. */
TEST(spans_are_equal)
{
    static const int64_t last[][PAIR_SEQ] = {{1, 3, 0}, {0, 1, 21}, {1, 1000, 1}, {0, 0, 3}};
    for (int i = 0; i < N_PAIRINGS; i++) {
        pair p;
        pair_open(&p, pairings[i], dims[i], i % 2 ? spec_of(2 * i + 1) : dq_kv_plain);
        pair_scene(&p, i % 3 != 1);
        set_options(&p, i + 1);
        look_at_classes(&p, (dq_logit_spec){i % 4 ? 4 : 16, (dq_granularity)(i % 4)}, last[i % 4]);
        pair_close(&p);
    }
}

TEST(spans_of_uneven_groups_are_equal)
{
    static const int64_t last[PAIR_SEQ] = {0, 1, 21};
    pair p;
    pair_open_uneven(&p, 32, spec_of(3));
    pair_scene(&p, true);
    look_at_classes(&p, (dq_logit_spec){16, DQ_GRANULARITY_ROW}, last);
    pair_close(&p);
}

/* -------------------------------------------------------------------------------------- reducers */

static void compare_tallies(const dq_tally *a, const dq_tally *b)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->n_bad, b->n_bad);
    assert_memory_equal(a->hist, b->hist, DQ_HIST_BINS * sizeof *a->hist);
    for (int i = 0; i < 3; i++) {
        const dq_fixed *x = &(&a->sum)[i], *y = &(&b->sum)[i];
        assert_true(fabs(dq_fixed_value(x) - dq_fixed_value(y)) <= 1e-12 * dq_fixed_value(x));
    }
    assert_int_equal(a->n_top, b->n_top);
    assert_memory_equal(a->top, b->top, (size_t)a->n_top * sizeof a->top[0]);
    assert_memory_equal(a->place, b->place, (size_t)a->n_top * sizeof a->place[0]);
    assert_true(a->threshold == b->threshold);
    assert_true((a->fine == NULL) == (b->fine == NULL));
    if (a->fine) assert_memory_equal(a->fine, b->fine, 65536 * sizeof *a->fine);
}

typedef void observe_fn(pair *p, int k, dq_tally *t);

static void observe_logits(pair *p, int k, dq_tally *t)
{
    const dq_attend_args a = pair_args(p, k, (dq_logit_spec){16, DQ_GRANULARITY_ROW});
    p->b[k]->ops->attn_observe(p->b[k], t, &a, 10);
}

static void observe_values(pair *p, int k, dq_tally *t)
{
    p->b[k]->ops->observe(p->b[k], t, pair_mat(p, k, A_V), &p->batch, 3, 10);
}

/* Twice the first pass, then the refining one. */
static void observe_both(pair *p, observe_fn *observe)
{
    dq_tally t[2];
    for (int k = CPU; k <= CUDA; k++) {
        dq_err err = {0};
        assert_int_equal(dq_tally_init(&t[k], &err), DQ_OK);
        observe(p, k, &t[k]);
        pair_sync(p);
        observe(p, k, &t[k]);
        pair_sync(p);
        dq_tally_refine(&t[k], 0.75, &err);
        observe(p, k, &t[k]);
    }
    pair_sync(p);
    compare_tallies(&t[CPU], &t[CUDA]);
    for (int k = CPU; k <= CUDA; k++) dq_tally_free(&t[k]);
}

TEST(tallies_are_equal)
{
    for (int i = 0; i < 4; i++) {
        pair p;
        pair_open(&p, pairings[i + 1], dims[i], i % 2 ? dq_kv_plain : spec_of(i));
        pair_scene(&p, i % 2);
        if (i == 2) { /* equal values: the first places count */
            for (int64_t c = 0; c < p.batch.n_rows * PAIR_Q * dims[i]; c++) p.host[A_Q][c] = 0;
            for (int64_t c = 0; c < p.batch.n_rows * PAIR_KV * dims[i]; c++)
                p.host[A_V][c] = c % 1000 == 77 ? -3.0f : 1.0f;
        }
        p.host[A_V][1234] = NAN;
        p.host[A_V][2345] = -INFINITY;
        for (int k = CPU; k <= CUDA; k++) {
            const dq_mat q = pair_mat(&p, k, A_Q), v = pair_mat(&p, k, A_V);
            p.b[k]->ops->put(p.b[k], q.p, p.host[A_Q], (size_t)(q.rows * q.cols) * sizeof(float));
            p.b[k]->ops->put(p.b[k], v.p, p.host[A_V], (size_t)(v.rows * v.cols) * sizeof(float));
        }
        observe_both(&p, observe_logits);
        observe_both(&p, observe_values);
        pair_close(&p);
    }
}

/* Little memory for strips: they are made in many launches, and nothing shows. */
TEST(launches_do_not_show)
{
    for (int i = 0; i < 2; i++) {
        pair p;
        pair_open(&p, i ? DQ_PAIR_GROUPED : DQ_PAIR_SHARED_KV, 32, spec_of(3));
        dq_cuda_of(p.b[CUDA])->strip_bytes = 576 << 10; /* about two units of four heads */
        pair_scene(&p, i);
        look_twice(&p, (dq_logit_spec){6, DQ_GRANULARITY_TILE}, 0);
        look_at_classes(&p, (dq_logit_spec){6, DQ_GRANULARITY_TILE},
                        (int64_t[PAIR_SEQ]){1, 40, 20});
        observe_both(&p, observe_logits);
        pair_close(&p);
    }
}

/* What rows see through windows, in one launch and in many. */
TEST(windows_are_looked_through)
{
    for (int i = 0; i < 2; i++) {
        pair p;
        pair_open(&p, i ? DQ_PAIR_GROUPED : DQ_PAIR_NONE, 32, i ? spec_of(3) : dq_kv_plain);
        p.attn.window = i ? 130 : 40;
        if (i) dq_cuda_of(p.b[CUDA])->strip_bytes = 576 << 10;
        for (int step = 0; pair_window_step(&p, step); step++) {
            if (step != 3 + i) continue;
            look_twice(&p, (dq_logit_spec){6, (dq_granularity)(2 + i)}, 0);
            look_at_classes(&p, (dq_logit_spec){.bits = 16}, (int64_t[PAIR_SEQ]){1, 40, 20});
            observe_both(&p, observe_logits);
        }
        pair_close(&p);
    }
}

/* With an argument: tests of that name. */

NEEDS(rig_can_run)
