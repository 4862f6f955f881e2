/* Contexts that are read again, and what keys say of themselves: numbers and kept tokens against kvpress (one map) and
 * against maps of transformers (two), tests/golden/press.py; and that nothing is left of a second pass.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "engine/runner.h"
#include "tests/rigs/given.h"
#include "tests/rigs/golden.h"

#include <math.h>
#include <stdlib.h>

#define FOLDER DQ_TEST_DIR "/golden/press/"

/* A model with one sequence that holds the golden's context. */
typedef struct rig {
    dq_model *m;
    dq_backend *b;
    dq_runner *r;
    dq_evictor *e;
    golden g;
    int64_t n;
    int32_t *ids, *pos;
    int n_lists;
    int32_t seq;
} rig;

static const dq_pass plain = {.logit = {.bits = 16}};

static dq_kv_spec spec_of(const char *policy, double keep, dq_kv_budget budget, int sink)
{
    dq_err err = {0};
    dq_kv_spec s = dq_kv_plain;
    s.sink = sink;
    s.recent = 0;
    s.evict.policy = dq_kv_policy_find(policy, &err);
    s.evict.keep = keep;
    s.evict.budget = budget;
    return s;
}

static void rig_open(rig *x, const char *name, const dq_kv_spec *spec)
{
    char path[1024];
    dq_err err = {0};
    *x = (rig){0};
    snprintf(path, sizeof path, FOLDER "%s", name);
    x->g = golden_open(path);
    const dq_tensor *ids = golden_find(&x->g, "ids");
    x->n = ids->shape[0];
    x->ids = calloc((size_t)x->n, sizeof *x->ids);
    x->pos = calloc((size_t)x->n, sizeof *x->pos);
    for (int64_t i = 0; i < x->n; i++) {
        x->ids[i] = golden_i32(ids, i);
        x->pos[i] = (int32_t)i;
    }
    x->m = given_model(DQ_TEST_DIR "/golden/models/%s", name);
    x->b = given_backend(2);
    assert_int_equal(dq_runner_new(&x->r, x->m, x->b, spec, &err), DQ_OK);
    dq_evictor_new(&x->e, x->r, spec, &plain, &err);
    assert_string_equal(err.text, "");
    x->n_lists = x->m->n_layers * x->m->map.n_groups;
    x->seq = x->b->ops->kv_seq_new(x->b, dq_runner_kv(x->r));
}

static void rig_close(rig *x)
{
    dq_evictor_free(x->e);
    dq_runner_free(x->r);
    dq_backend_close(x->b);
    dq_model_close(x->m);
    golden_close(&x->g);
    free(x->ids);
    free(x->pos);
}

/* The context in two passes, then what the policy does with it. */
static void read_context(rig *x, dq_evict_report *report)
{
    const int64_t cut[] = {0, 700, x->n};
    dq_err err = {0};
    dq_mat h;
    for (int i = 0; i < 2; i++) {
        const int64_t cu[2] = {0, cut[i + 1] - cut[i]};
        const dq_batch batch = {.n_seq = 1,
                                .n_rows = cu[1],
                                .cu_rows = cu,
                                .seq = &x->seq,
                                .ids = x->ids + cut[i],
                                .pos = x->pos + cut[i]};
        const int32_t prefix = (int32_t)cut[i + 1];
        dq_pass pass = plain;
        dq_evictor_watch(x->e, &batch, &pass.columns, &err);
        dq_runner_pass(x->r, &batch, &pass, &h, &err);
        if (report && i == 1) dq_evictor_run(x->e, &batch, &prefix, report, &err);
        assert_string_equal(err.text, "");
    }
}

static dq_kv_bytes held(const rig *x)
{
    return x->b->ops->kv_bytes(x->b, dq_runner_kv(x->r));
}

/* Numbers of all tokens, and the cache as it was. */
TEST(peaks)
{
    static const char *const names[] = {"llama-f32", "diffllama-f32"};
    for (int k = 0; k < 2; k++) {
        const dq_kv_spec spec = spec_of("kvzip", 0.25, DQ_KV_BUDGET_GLOBAL, 4);
        dq_err err = {0};
        double worst = 0;
        rig x;
        rig_open(&x, names[k], &spec);
        read_context(&x, NULL);
        const size_t n = (size_t)(x.n_lists * x.n);
        int64_t *at = calloc((size_t)x.n_lists + 1, sizeof *at);
        int32_t *pos = calloc(n, sizeof *pos);
        double *peak = calloc(n, sizeof *peak);
        for (size_t i = 0; i < n; i++) pos[i] = (int32_t)(i % (size_t)x.n);
        for (int i = 0; i <= x.n_lists; i++) at[i] = i * x.n;
        const dq_kv_bytes before = held(&x);
        const dq_second_pass w = {x.r, plain, x.seq, x.ids, x.n, spec.sink, at, pos};
        dq_second_pass_peaks(peak, &w, &err);
        assert_string_equal(err.text, "");
        const dq_kv_bytes after = held(&x);
        assert_memory_equal(&before, &after, sizeof before);
        const dq_tensor *want = golden_find(&x.g, "kvzip");
        assert_int_equal(want->shape[0] * want->shape[1], x.n_lists);
        for (size_t i = 0; i < n; i++) {
            const double y = (double)golden_f32(want, (int64_t)i);
            worst = fmax(worst, fabs(peak[i] - y) / y);
        }
        assert_true(worst <= 2e-5);
        assert_int_equal(dq_second_pass_rows(x.n), x.n + DQ_SECOND_PASS_LEAD);
        assert_int_equal(dq_second_pass_end(x.n), x.n + DQ_SECOND_PASS_CHUNK);
        assert_int_equal(dq_second_pass_end(2 * DQ_SECOND_PASS_CHUNK),
                         3 * DQ_SECOND_PASS_CHUNK + DQ_SECOND_PASS_LEAD);
        free(at);
        free(pos);
        free(peak);
        rig_close(&x);
    }
}

/* Of the keys of both maps side by side too. */
TEST(leverages)
{
    static const char *const names[] = {"llama-f32", "diffllama-f32"};
    for (int k = 0; k < 2; k++) {
        const dq_kv_spec spec = spec_of("leverage", 0.25, DQ_KV_BUDGET_UNIFORM, 4);
        dq_err err = {0};
        double worst = 0;
        rig x;
        rig_open(&x, names[k], &spec);
        read_context(&x, NULL);
        double *got = calloc((size_t)x.n, sizeof *got);
        const dq_tensor *want = golden_find(&x.g, "leverage");
        assert_int_equal(want->shape[0] * want->shape[1], x.n_lists);
        for (int i = 0; i < x.n_lists; i++) {
            const int groups = x.m->map.n_groups;
            x.b->ops->kv_key_leverages(x.b, dq_runner_kv(x.r), x.seq, i / groups, i % groups,
                                       (int32_t)x.n - 1, &x.m->rope, got);
            assert_int_equal(dq_backend_sync(x.b, &err), DQ_OK);
            for (int64_t t = 0; t < x.n; t++) {
                const double y = (double)golden_f32(want, i * x.n + t);
                worst = fmax(worst, fabs(got[t] - y) / y);
            }
        }
        assert_true(worst <= 2e-4); /* the golden's own products are f32 */
        free(got);
        rig_close(&x);
    }
}

/* What is kept of a list, but for tokens whose number is within 1e-5 of the cut; no numbers: every one. */
static int compare_list(const rig *x, int list, const dq_tensor *kept, const dq_tensor *score,
                        double cut)
{
    int32_t *pos = calloc((size_t)x->n, sizeof *pos);
    const int groups = x->m->map.n_groups;
    int sure = 0;
    const int64_t n =
        x->b->ops->kv_count(x->b, dq_runner_kv(x->r), x->seq, list / groups, list % groups, pos);
    for (int64_t i = 0, k = 0; i < x->n; i++) {
        const bool got = k < n && pos[k] == i;
        k += got;
        const double s = score ? (double)golden_f32(score, list * x->n + i) : 0;
        if (score && fabs(s - cut) <= 1e-5 * fabs(cut)) continue;
        assert_int_equal(got, ((const char *)kept->data)[list * x->n + i]);
        sure++;
    }
    free(pos);
    return sure;
}

/* The smallest number of what is kept of a list, sinks aside. */
static double cut_of(const rig *x, int list, const dq_tensor *kept, const dq_tensor *score,
                     int sink)
{
    double cut = (double)INFINITY;
    for (int64_t i = sink; i < x->n; i++) {
        if (((const char *)kept->data)[list * x->n + i])
            cut = fmin(cut, (double)golden_f32(score, list * x->n + i));
    }
    return cut;
}

TEST(kept_sets_are_those_of_kvpress)
{
    static const struct {
        const char *policy, *kept, *score;
        int sink;
    } cases[] = {{"knorm", "knorm.kept", "knorm", 0},
                 {"keydiff", "keydiff.kept", "keydiff", 0},
                 {"leverage", "leverage.kept", "leverage", 0},
                 {"streaming", "streaming.kept", NULL, 4}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const dq_kv_spec spec = spec_of(cases[k].policy, 0.25, DQ_KV_BUDGET_UNIFORM, cases[k].sink);
        dq_evict_report report = dq_evict_report_none;
        int64_t sure = 0;
        rig x;
        rig_open(&x, "llama-f32", &spec);
        read_context(&x, &report);
        const dq_tensor *kept = golden_find(&x.g, cases[k].kept);
        const dq_tensor *score = cases[k].score ? golden_find(&x.g, cases[k].score) : NULL;
        for (int i = 0; i < x.n_lists; i++) {
            const double cut = score ? cut_of(&x, i, kept, score, cases[k].sink) : 0;
            sure += compare_list(&x, i, kept, score, cut);
        }
        assert_true(100 * sure >= 99 * x.n_lists * x.n);
        assert_int_equal(report.kept, x.n_lists * 587);
        assert_int_equal(report.second_pass, 0);
        rig_close(&x);
    }
}

/* What is kept of a list are its best by the golden's numbers. */
static void best_of_list(const rig *x, int list, const dq_tensor *score, int sink)
{
    int32_t *pos = calloc((size_t)x->n, sizeof *pos);
    const int groups = x->m->map.n_groups;
    const int64_t n =
        x->b->ops->kv_count(x->b, dq_runner_kv(x->r), x->seq, list / groups, list % groups, pos);
    double worst = (double)INFINITY, best = -(double)INFINITY;
    for (int64_t i = 0, k = 0; i < x->n; i++) {
        const bool kept = k < n && pos[k] == i;
        const double s = (double)golden_f32(score, list * x->n + i);
        k += kept;
        if (i < sink)
            assert_true(kept);
        else if (kept)
            worst = fmin(worst, s);
        else
            best = fmax(best, s);
    }
    assert_true(n == x->n || best <= worst + 1e-5 * fabs(worst));
    free(pos);
}

/* A pool of tokens is kvpress's. Of pages: as many tokens, on fewer. */
TEST(pools_of_tokens_are_those_of_kvpress)
{
    const dq_kv_spec spec = spec_of("kvzip", 0.25, DQ_KV_BUDGET_GLOBAL, 4);
    dq_evict_report report = dq_evict_report_none;
    dq_err err = {0};
    rig x;
    rig_open(&x, "llama-f32", &spec);
    read_context(&x, &report);
    assert_int_equal(report.kept, x.n_lists * 587);
    assert_int_equal(report.second_pass, x.n + DQ_SECOND_PASS_LEAD);
    const dq_tensor *kept = golden_find(&x.g, "kvzip.global"), *score = golden_find(&x.g, "kvzip");
    double *of = calloc((size_t)(x.n_lists * x.n), sizeof *of);
    dq_pool_group *group = calloc((size_t)x.n_lists, sizeof *group);
    int64_t *share = calloc((size_t)x.n_lists, sizeof *share), pages = 0, pages_of_tokens = 0;
    double gap;
    for (int64_t i = 0; i < x.n_lists * x.n; i++) of[i] = (double)golden_f32(score, i);
    for (int64_t i = 0; i < x.n; i++) x.pos[i] = (int32_t)i;
    for (int i = 0; i < x.n_lists; i++) group[i] = (dq_pool_group){of + i * x.n, x.pos, x.n};
    const dq_pool pool = {.group = group,
                          .n_groups = x.n_lists,
                          .budget = 587,
                          .safe = {4, 0, (int32_t)x.n},
                          .common = true};
    assert_int_equal(dq_kv_budget_of_groups(share, &gap, &pool, &err), DQ_OK);
    for (int i = 0; i < x.n_lists; i++) {
        const int groups = x.m->map.n_groups;
        int64_t n = 0;
        for (int64_t t = 0; t < x.n; t++) n += ((const char *)kept->data)[i * x.n + t] != 0;
        assert_int_equal(share[i], n);
        pages_of_tokens += (n + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS;
        n = x.b->ops->kv_count(x.b, dq_runner_kv(x.r), x.seq, i / groups, i % groups, NULL);
        pages += (n + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS;
    }
    for (int i = 0; i < x.n_lists; i++) best_of_list(&x, i, score, 4);
    assert_int_equal(pages, (x.n_lists * 587 + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS);
    assert_true(pages < pages_of_tokens);
    free(of);
    free(group);
    free(share);
    rig_close(&x);
}

/* Rows after the context, ids of its beginning once more. The hidden states, for the caller to free. */
static float *go_on(rig *x, int64_t rows)
{
    const int64_t cu[2] = {0, rows};
    int32_t *pos = calloc((size_t)rows, sizeof *pos);
    for (int64_t i = 0; i < rows; i++) pos[i] = (int32_t)(x->n + i);
    const dq_batch batch = {
        .n_seq = 1, .n_rows = rows, .cu_rows = cu, .seq = &x->seq, .ids = x->ids, .pos = pos};
    dq_err err = {0};
    dq_mat h;
    dq_runner_pass(x->r, &batch, &plain, &h, &err);
    assert_string_equal(err.text, "");
    float *out = malloc((size_t)(h.rows * h.cols) * sizeof *out);
    x->b->ops->get(x->b, out, h.p, (size_t)(h.rows * h.cols) * sizeof *out);
    free(pos);
    return out;
}

/* The lists of y evict what those of x have evicted. */
static void keep_alike(const rig *x, rig *y)
{
    const int groups = x->m->map.n_groups;
    int32_t *kept = calloc((size_t)x->n, sizeof *kept);
    dq_err err = {0};
    for (int i = 0; i < x->n_lists; i++) {
        const int64_t n =
            x->b->ops->kv_count(x->b, dq_runner_kv(x->r), x->seq, i / groups, i % groups,
                                kept); /* nothing went before: index = position */
        y->b->ops->kv_keep(y->b, dq_runner_kv(y->r), y->seq, i / groups, i % groups, kept, n);
    }
    assert_int_equal(dq_backend_sync(y->b, &err), DQ_OK);
    free(kept);
}

/* Pages that only the rows of a second pass took for codes have none afterwards: what is kept of them is coded when it
 * is due, as where somebody just knew what to keep. */
TEST(a_second_reading_codes_nothing)
{
    static const dq_kv_quant code[] = {DQ_KV_PER_TOKEN, DQ_KV_PER_CHANNEL, DQ_KV_DITHER};
    for (int k = 0; k < 3; k++) {
        dq_kv_spec spec = spec_of("kvzip", 0.25, DQ_KV_BUDGET_UNIFORM, 4);
        dq_evict_report report = dq_evict_report_none;
        rig x, y;
        spec.k_bits = spec.v_bits = 4;
        spec.group = DQ_KV_GROUP;
        spec.quant = code[k];
        spec.recent = 200; /* three pages within the context are not due yet */
        rig_open(&x, "llama-f32", &spec);
        rig_open(&y, "llama-f32", &spec);
        x.n = y.n = 900;
        read_context(&x, &report);
        read_context(&y, NULL);
        keep_alike(&x, &y);
        const dq_kv_bytes a = held(&x), b = held(&y);
        assert_memory_equal(&a, &b, sizeof a);
        float *got = go_on(&x, 400), *want = go_on(&y, 400);
        assert_memory_equal(got, want, (size_t)(400 * x.m->dim) * sizeof *got);
        free(got);
        free(want);
        rig_close(&x);
        rig_close(&y);
    }
}
