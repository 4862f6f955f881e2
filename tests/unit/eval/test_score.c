/* Scoring: every way of spreading sequences over passes gives the bits of one sequence at a time;
 * sweeps, their references and their saved state.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "eval/eval.h"
#include "eval/eval_sweep.c" /* what is private there */
#include "tests/rigs/device.h"
#include "tests/rigs/given.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_ITEMS = 5,
    N_CHOICES = 3,
    N_REQ = N_ITEMS * N_CHOICES,
    MAX_IDS = 64,
    MAX_VALUES = 7 * N_REQ
};

typedef struct rig {
    dq_model *m;
    dq_backend *b;
    dq_runner *r;
    int32_t ids[N_REQ][MAX_IDS];
    dq_request req[N_REQ];
    int64_t at[N_ITEMS + 1];
    dq_requests q;
    int32_t text[4 * 12];
    dq_window win[4];
    int32_t cluster[4];
    dq_windows w;
} rig;

/* What scoring gives: per scored id its log-probability and the most likely id. */
typedef struct answers {
    double logp[MAX_VALUES];
    int32_t top1[MAX_VALUES];
} answers;

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Items with contexts of 1 to 29 tokens and choices of 1 to 7; the last item has single tokens only, and
 * one item has a choice whose context was cut. */
static void make_requests(rig *x)
{
    uint32_t seed = 5;
    for (int i = 0; i < N_ITEMS; i++) {
        int64_t n_ctx = 1 + 7 * i;
        x->at[i + 1] = x->at[i] + N_CHOICES;
        for (int c = 0; c < N_CHOICES; c++) {
            int k = i * N_CHOICES + c;
            int64_t n_cont = i == N_ITEMS - 1 ? 1 : 1 + (int64_t)(next(&seed) % 7);
            for (int j = 0; j < MAX_IDS; j++)
                x->ids[k][j] = j < n_ctx && c > 0 ? x->ids[k - c][j]
                                                  : (int32_t)(next(&seed) % (uint32_t)x->m->vocab);
            bool cut = i == 2 && c == 1;
            x->req[k] = (dq_request){.ctx = x->ids[k] + cut,
                                     .cont = x->ids[k] + n_ctx,
                                     .n_ctx = n_ctx - cut,
                                     .n_cont = n_cont,
                                     .value = x->q.n_values,
                                     .item = i,
                                     .choice = c,
                                     .truncated = cut};
            x->q.n_values += n_cont;
        }
    }
    x->q.req = x->req;
    x->q.at = x->at;
    x->q.n = N_REQ;
    x->q.n_items = N_ITEMS;
    for (int i = 0; i < 4 * 12; i++) x->text[i] = (int32_t)(next(&seed) % (uint32_t)x->m->vocab);
    for (int i = 0; i < 4; i++)
        x->win[i] = (dq_window){.ids = x->text + 12 * i, .n = 12, .first = 6, .value = 5 * i};
    for (int i = 0; i < 4; i++) x->cluster[i] = i;
    x->w = (dq_windows){.win = x->win,
                        .n = 4,
                        .n_values = 20,
                        .longest = 12,
                        .cluster = x->cluster,
                        .n_clusters = 4};
}

static void rig_open(rig *x, const char *model)
{
    memset(x, 0, sizeof *x);
    x->m = given_model(DQ_TEST_DIR "/golden/models/%s", model);
    x->b = given_backend(2);
    x->r = given_runner(x->m, x->b);
    make_requests(x);
}

static void rig_close(rig *x)
{
    dq_runner_free(x->r);
    dq_backend_close(x->b);
    dq_model_close(x->m);
}

/* The plain way: one sequence, one pass, the log-probability of each id from `first` on. */
static void one_sequence(rig *x, const dq_pass *pass, const int32_t *ids, int64_t n_fed,
                         int64_t first, int64_t n, double *logp, int32_t *top1)
{
    dq_err err = {0};
    int32_t seq = x->b->ops->kv_seq_new(x->b, dq_runner_kv(x->r)), pos[2 * MAX_IDS];
    int64_t cu[2] = {0, n_fed};
    for (int i = 0; i < n_fed; i++) pos[i] = i;
    dq_batch batch = {
        .n_seq = 1, .n_rows = n_fed, .cu_rows = cu, .seq = &seq, .ids = ids, .pos = pos};
    dq_mat h;
    dq_runner_pass(x->r, &batch, pass, &h, &err);
    assert_string_equal(err.text, "");
    for (int64_t i = 0; i < n; i++) {
        dq_mat row = {.p = h.p + (first - 1 + i) * h.cols, .rows = 1, .cols = h.cols};
        x->b->ops->logprob(x->b, &logp[i], &top1[i], row, &x->m->head, &ids[first + i], DQ_NUM_F32);
    }
    x->b->ops->kv_seq_free(x->b, dq_runner_kv(x->r), seq);
    assert_int_equal(dq_backend_sync(x->b, &err), DQ_OK);
}

/* The plain way for all requests, `prefix` before each. */
static void expect(rig *x, const dq_pass *pass, const dq_shared_prefix *prefix, answers *want)
{
    memset(want, 0, sizeof *want);
    for (int k = 0; k < N_REQ; k++) {
        const dq_request *r = &x->req[k];
        int32_t ids[2 * MAX_IDS];
        int64_t n = prefix ? prefix->n : 0;
        if (n) memcpy(ids, prefix->ids, (size_t)n * sizeof *ids);
        memcpy(ids + n, r->ctx, (size_t)r->n_ctx * sizeof *ids);
        memcpy(ids + n + r->n_ctx, r->cont, (size_t)r->n_cont * sizeof *ids);
        n += r->n_ctx;
        one_sequence(x, pass, ids, n + r->n_cont - 1, n, r->n_cont, want->logp + r->value,
                     want->top1 + r->value);
    }
}

/* All items in groups of `size`, with one scorer for all. */
static void score_all(rig *x, const dq_pass *pass, const dq_kv_spec *kv, int64_t size, answers *got,
                      dq_score_work *work)
{
    dq_scorer s;
    dq_err err = {0};
    memset(got, 0, sizeof *got);
    dq_score_begin(&s, x->r, pass, kv, &err);
    for (int64_t i = 0; i < x->q.n_items; i += size) {
        int64_t end = i + size < x->q.n_items ? i + size : x->q.n_items;
        dq_score_items(&s, &x->q, i, end, (dq_scores){got->logp, got->top1}, &err);
    }
    assert_string_equal(err.text, "");
    dq_score_work_add(work, &s.work);
    dq_score_end(&s);
}

/* Some windows, with a scorer of their own. */
static void score_windows(rig *x, const dq_pass *pass, const dq_kv_spec *kv, int64_t begin,
                          int64_t end, dq_mat state, dq_scores out, dq_score_work *work)
{
    dq_scorer s;
    dq_err err = {0};
    dq_score_begin(&s, x->r, pass, kv, &err);
    dq_score_windows(&s, &x->w, begin, end, state, out, &err);
    assert_string_equal(err.text, "");
    dq_score_work_add(work, &s.work);
    dq_score_end(&s);
}

static const dq_logit_spec specs[] = {{16, DQ_GRANULARITY_TENSOR}, {4, DQ_GRANULARITY_ROW},
                                      {4, DQ_GRANULARITY_TENSOR},  {6, DQ_GRANULARITY_HEAD},
                                      {3, DQ_GRANULARITY_TILE},    {2, DQ_GRANULARITY_ROW}};
enum { N_SPECS = sizeof specs / sizeof specs[0] };

static void check_items(const char *model)
{
    rig x;
    rig_open(&x, model);
    for (int s = 0; s < N_SPECS; s++) {
        if (!test_runs(s, 2)) continue;
        dq_pass pass = {.logit = specs[s]};
        answers want, all, each;
        dq_score_work work = {0}, single = {0};
        expect(&x, &pass, NULL, &want);
        score_all(&x, &pass, &dq_kv_plain, N_ITEMS, &all, &work);
        score_all(&x, &pass, &dq_kv_plain, 1, &each, &single);
        assert_memory_equal(&all, &want, sizeof want);
        assert_memory_equal(&each, &want, sizeof want);
        assert_int_equal(work.tokens, single.tokens);
        assert_int_equal(work.computed, single.computed);
        if (specs[s].bits == 16 || specs[s].granularity == DQ_GRANULARITY_ROW)
            assert_true(work.computed < work.tokens);
        else
            assert_int_equal(work.computed, work.tokens);
    }
    rig_close(&x);
}

/* A shared prefix before all items gives the bits of sequences that hold it themselves, and is computed once
 * where the granularity allows. */
TEST(test_prefix)
{
    rig x;
    rig_open(&x, "diffllama-f32");
    const dq_shared_prefix prefix = {.ids = x.text, .n = 40, .end = N_ITEMS};
    for (int s = 0; s < N_SPECS; s++) {
        if (!test_runs(s, 2)) continue;
        dq_pass pass = {.logit = specs[s]};
        answers want, got;
        dq_score_work work = {0}, bare = {0};
        score_all(&x, &pass, &dq_kv_plain, 2, &got, &bare);
        x.q.shared_prefix = &prefix;
        x.q.n_shared_prefixes = 1;
        expect(&x, &pass, &prefix, &want);
        score_all(&x, &pass, &dq_kv_plain, 2, &got, &work);
        x.q.n_shared_prefixes = 0;
        assert_memory_equal(&got, &want, sizeof want);
        assert_int_equal(work.tokens, bare.tokens + N_REQ * prefix.n);
        assert_int_equal(work.computed - bare.computed,
                         dq_score_shares(&pass, &dq_kv_plain) ? prefix.n : N_REQ * prefix.n);
    }
    rig_close(&x);
}

TEST(test_items)
{
    check_items("llama-f32");
    check_items("diffllama-f32");
}

/* A continuation made of the most likely ids is greedy. */
TEST(test_greedy)
{
    rig x;
    rig_open(&x, "diffllama-f32");
    dq_pass pass = {.logit = {.bits = 16}};
    dq_score_work work = {0};
    answers got;
    for (int i = 0; i < 3; i++) { /* each id decides the next one */
        double logp;
        int32_t top1;
        one_sequence(&x, &pass, x.ids[0], 1 + i, 1 + i, 1, &logp, &top1);
        x.ids[0][1 + i] = top1;
    }
    x.req[0].n_cont = 3;
    memcpy(x.ids[1], x.ids[0], sizeof x.ids[0]);
    x.ids[1][3] = (x.ids[1][3] + 1) % x.m->vocab;
    x.req[1].n_cont = 3;
    x.req[1].value = 3;
    x.req[2].value = 6;
    x.q.n_items = 1;
    score_all(&x, &pass, &dq_kv_plain, 1, &got, &work);
    dq_eval_row row = {.logp = got.logp, .top1 = got.top1};
    assert_true(dq_eval_greedy(&row, &x.req[0]));
    assert_false(dq_eval_greedy(&row, &x.req[1]));
    assert_true(dq_eval_ll(&row, &x.req[0]) > dq_eval_ll(&row, &x.req[1]));
    rig_close(&x);
}

TEST(test_windows)
{
    rig x;
    rig_open(&x, "diffllama-f32");
    for (int s = 0; s < N_SPECS; s++) {
        if (!test_runs(s, 2)) continue;
        dq_pass pass = {.logit = specs[s]};
        dq_err err = {0};
        dq_score_work work = {0};
        double logp[20], want[20], kld[20];
        int32_t top1[20], want_top1[20];
        dq_mat st = {.rows = 20, .cols = x.m->dim};
        st.p = x.b->ops->alloc(x.b, (size_t)(st.rows * st.cols) * sizeof(float));
        for (int i = 0; i < 4; i++)
            one_sequence(&x, &pass, x.text + 12 * i, 12, 7, 5, want + 5 * i, want_top1 + 5 * i);
        score_windows(&x, &pass, &dq_kv_plain, 0, 4, st, (dq_scores){logp, top1}, &work);
        assert_memory_equal(logp, want, sizeof want);
        assert_memory_equal(top1, want_top1, sizeof top1);
        assert_int_equal(work.computed, 48);
        x.b->ops->kld(x.b, kld, st, &x.m->head, DQ_NUM_F32, st, &x.m->head, DQ_NUM_F32);
        assert_int_equal(dq_backend_sync(x.b, &err), DQ_OK);
        for (int i = 0; i < 20; i++) assert_true(fabs(kld[i]) < 1e-9);
        x.b->ops->free(x.b, st.p);
    }
    rig_close(&x);
}

TEST(test_groups)
{
    rig x;
    rig_open(&x, "llama-f32");
    dq_shared_prefix prefix[2] = {{.ids = x.text, .n = 40, .end = 1},
                                  {.ids = x.text, .n = 3, .end = N_ITEMS}};
    assert_int_equal(dq_score_group(&x.q, 0, 1, true), 1); /* at least one */
    /* what contexts take is measured by group: items whose choices have one context stand apart from item 2 */
    assert_int_equal(dq_score_group(&x.q, 0, 1000000, true), 2);
    assert_int_equal(dq_score_group(&x.q, 2, 1000000, true), 3);
    assert_int_equal(dq_score_group(&x.q, 3, 1000000, true), N_ITEMS);
    assert_int_equal(dq_score_group(&x.q, N_ITEMS - 1, 1, true), N_ITEMS);
    x.q.shared_prefix = prefix;
    x.q.n_shared_prefixes = 2;
    assert_int_equal(dq_score_group(&x.q, 0, 1000000, true), 1); /* one shared prefix only */
    assert_int_equal(dq_score_group(&x.q, 3, 1000000, true), N_ITEMS);
    prefix[0].end = N_ITEMS;
    assert_int_equal(dq_score_group(&x.q, 0, 200, true), 2);
    assert_int_equal(dq_score_group(&x.q, 0, 200, false), 1); /* each with its prefix */
    rig_close(&x);
}

TEST(test_pick)
{
    const dq_choice c[] = {{.points = 10}, {.points = 25}, {.points = 0}};
    dq_item item = {.choice = c, .n_choices = 3};
    double ll[] = {-8, -15, -9}, tie[] = {-5, -3, -3};
    const dq_request r[] = {{.n_cont = 1}, {.n_cont = 1, .value = 1}, {.n_cont = 1, .value = 2}};
    dq_eval_row row = {.logp = ll}, equal = {.logp = tie};
    assert_int_equal(dq_eval_pick(&item, &row, r, false), 0);
    assert_int_equal(dq_eval_pick(&item, &row, r, true), 1); /* -0.8, -0.6; no length: never */
    assert_int_equal(dq_eval_pick(&item, &equal, r, false), 1);
}

/* After contexts of which nothing is evicted, in pieces of any size, continuations get the bits
 * of one pass; what contexts take adds up the same however items are grouped. */
TEST(test_kv_items)
{
    const int64_t every[] = {0, 1, 3};
    rig x;
    dq_err err = {0};
    rig_open(&x, "diffllama-f32");
    dq_pass pass = {.logit = {.bits = 16, .granularity = DQ_GRANULARITY_TENSOR}};
    answers want, all, each;
    expect(&x, &pass, NULL, &want);
    for (int e = 0; e < 3; e++) {
        dq_kv_spec kv = dq_kv_plain;
        kv.recent = 2;
        kv.sink = 1;
        kv.evict.policy = dq_kv_policy_find("streaming", &err);
        kv.evict.keep = 1;
        kv.evict.every = every[e];
        dq_score_work work = {0}, single = {0};
        score_all(&x, &pass, &kv, N_ITEMS, &all, &work);
        score_all(&x, &pass, &kv, 1, &each, &single);
        assert_memory_equal(&all, &want, sizeof all);
        assert_memory_equal(&each, &want, sizeof each);
        assert_memory_equal(&work.cached, &single.cached, sizeof work.cached);
        assert_int_equal(work.cached.contexts, N_ITEMS + 2); /* one item shares none */
        assert_int_equal(work.cached.tokens_cut, 0);
        assert_int_equal(work.cached.bytes.tokens, work.cached.slots);
        assert_int_equal(work.computed, single.computed);
    }
    rig_close(&x);
}

/* A shared prefix that is compressed once: with nothing evicted the bits of one pass; with something evicted the
 * same however items are grouped, and another result. */
TEST(test_kv_prefix)
{
    const int64_t every[] = {0, 4};
    rig x;
    dq_err err = {0};
    rig_open(&x, "diffllama-f32");
    const dq_shared_prefix prefix = {.ids = x.text, .n = 40, .end = N_ITEMS};
    dq_pass pass = {.logit = {.bits = 16, .granularity = DQ_GRANULARITY_TENSOR}};
    answers want, all, each;
    expect(&x, &pass, &prefix, &want);
    x.q.shared_prefix = &prefix;
    x.q.n_shared_prefixes = 1;
    for (int e = 0; e < 4; e++) {
        dq_kv_spec kv = dq_kv_plain;
        bool cut = e >= 2;
        kv.recent = 2;
        kv.sink = 1;
        kv.evict.policy = dq_kv_policy_find("h2o", &err);
        kv.evict.keep = cut ? 0.25 : 1;
        kv.evict.every = every[e % 2];
        dq_score_work work = {0}, single = {0};
        score_all(&x, &pass, &kv, N_ITEMS, &all, &work);
        score_all(&x, &pass, &kv, 1, &each, &single);
        assert_memory_equal(&all, &each, sizeof each);
        assert_int_equal(memcmp(&all, &want, sizeof all) != 0, cut);
        assert_memory_equal(&work.cached, &single.cached, sizeof work.cached);
        assert_int_equal(work.cached.contexts, 1);
        assert_int_equal(work.cached.tokens, prefix.n);
        assert_int_equal(work.cached.tokens_cut, cut ? prefix.n : 0);
        assert_int_equal(work.computed, single.computed);
    }
    rig_close(&x);
}

/* A failure anywhere leaves no sequence behind, and the scorer goes on to the same bits. */
TEST(test_failures)
{
    rig x;
    dq_err err = {0};
    rig_open(&x, "diffllama-f32");
    const dq_shared_prefix prefix = {.ids = x.text, .n = 40, .end = N_ITEMS};
    const dq_pass pass = {.logit = {.bits = 16}};
    dq_kv_spec evicted = dq_kv_plain;
    evicted.recent = 2;
    evicted.sink = 1;
    evicted.evict.policy = dq_kv_policy_find("h2o", &err);
    evicted.evict.keep = 0.25;
    evicted.evict.every = 4;
    x.q.shared_prefix = &prefix;
    for (int c = 0; c < 4; c++) {
        const dq_kv_spec *kv = c % 2 ? &evicted : &dq_kv_plain;
        answers want, got = {0};
        const dq_scores out = {got.logp, got.top1};
        dq_score_work work = {0};
        int failed = 0;
        x.q.n_shared_prefixes = c < 2;
        score_all(&x, &pass, kv, N_ITEMS, &want, &work);
        for (int64_t at = 1;; at += 1 + at / 4) {
            dq_scorer s;
            err = (dq_err){0};
            assert_int_equal(dq_score_begin(&s, x.r, &pass, kv, &err), DQ_OK);
            assert_int_equal(dq_score_items(&s, &x.q, 0, 1, out, &err), DQ_OK);
            dq_alloc_fail_at(at);
            const dq_status status = dq_score_items(&s, &x.q, 0, N_ITEMS, out, &err);
            dq_alloc_fail_at(0);
            failed += status != DQ_OK;
            if (status != DQ_OK) {
                assert_int_equal(status, DQ_RESOURCE);
                err = (dq_err){0};
                memset(&got, 0, sizeof got);
                dq_score_items(&s, &x.q, 0, N_ITEMS, out, &err);
                assert_string_equal(err.text, "");
            }
            assert_memory_equal(&got, &want, sizeof got);
            dq_score_end(&s);
            assert_int_equal(x.b->ops->kv_bytes(x.b, dq_runner_kv(x.r)).tokens, 0);
            if (status == DQ_OK) break;
        }
        assert_true(failed > 5);
    }
    rig_close(&x);
}

/* The same for windows, and an eviction that drops something. */
TEST(test_kv_windows)
{
    enum { N = 4 * 5 };
    rig x;
    dq_err err = {0};
    rig_open(&x, "llama-f32");
    dq_pass pass = {.logit = {.bits = 16, .granularity = DQ_GRANULARITY_TENSOR}};
    double want[N], logp[N], once[N];
    int32_t top1[N];
    dq_score_work work = {0};
    dq_mat st = {.rows = N, .cols = x.m->dim};
    st.p = x.b->ops->alloc(x.b, (size_t)(st.rows * st.cols) * sizeof *st.p);
    dq_mat two = {.p = st.p, .rows = N / 2, .cols = st.cols};
    score_windows(&x, &pass, &dq_kv_plain, 0, 4, st, (dq_scores){want, top1}, &work);
    for (int64_t every = 0; every < 8; every++) {
        if (!test_runs((int)every, 3)) continue;
        dq_kv_spec kv = dq_kv_plain;
        kv.recent = 2;
        kv.sink = 1;
        kv.evict.policy = dq_kv_policy_find("streaming", &err);
        kv.evict.keep = 1;
        kv.evict.every = every;
        score_windows(&x, &pass, &kv, 0, 4, st, (dq_scores){logp, top1}, &work);
        assert_memory_equal(logp, want, sizeof logp);
        kv.evict.keep = 0.5;
        dq_score_work cut = {0}, half = {0};
        score_windows(&x, &pass, &kv, 0, 4, st, (dq_scores){logp, top1}, &cut);
        for (int64_t i = 0; i < 4; i += 2)
            score_windows(&x, &pass, &kv, i, i + 2, two, (dq_scores){once + 5 * i, top1}, &half);
        assert_memory_equal(logp, once, sizeof logp);
        assert_true(memcmp(logp, want, sizeof logp) != 0);
        assert_int_equal(cut.cached.tokens, 4 * x.win[0].first);
        assert_int_equal(cut.cached.tokens_cut, cut.cached.tokens);
        assert_int_equal(2 * cut.cached.bytes.tokens, cut.cached.slots);
        assert_memory_equal(&cut.cached.bytes, &half.cached.bytes, sizeof cut.cached.bytes);
    }
    x.b->ops->free(x.b, st.p);
    rig_close(&x);
}

/* A position at a time, by the rule's own words: codes if no sink and the page ended `recent` tokens ago. */
static void count_one_by_one(const dq_kv_spec *s, int32_t t, const bool *there, dq_kv_cached *want)
{
    for (int32_t p = 0; p <= t; p++) {
        want->reads += there[p];
        want->reads_coded +=
            there[p] && p >= s->sink &&
            DQ_PAGE_TOKENS * (p / DQ_PAGE_TOKENS) + DQ_PAGE_TOKENS - 1 <= t - s->recent;
    }
}

/* What scored rows read, whole and where a group has evicted something; plain caches count nothing. */
TEST(test_reads)
{
    enum { N = 210 };
    const int32_t requested[] = {0, 62, 78, 79, 79, 143, 200, N - 1};
    const dq_kv_spec spec = {.k_bits = 8, .v_bits = 4, .group = 32, .sink = 3, .recent = 16};
    rig x;
    dq_err err = {0};
    rig_open(&x, "diffllama-f32");
    dq_runner *r;
    int32_t ids[N], pos[N], kept[N], seq;
    bool all[N], some[N];
    int64_t n_kept = 0, cu[2] = {0, N};
    const int n_groups = x.m->map.n_groups, n_lists = x.m->n_layers * n_groups;
    assert_int_equal(dq_runner_new(&r, x.m, x.b, &spec, &err), DQ_OK);
    for (int i = 0; i < N; i++) {
        ids[i] = i % x.m->vocab;
        pos[i] = i;
        all[i] = true;
        some[i] = i % 3 == 0;
        if (some[i]) kept[n_kept++] = i;
    }
    seq = x.b->ops->kv_seq_new(x.b, dq_runner_kv(r));
    dq_batch batch = {.n_seq = 1, .n_rows = N, .cu_rows = cu, .seq = &seq, .ids = ids, .pos = pos};
    const dq_pass pass = {.logit = {.bits = 16}};
    dq_mat hidden;
    assert_int_equal(dq_runner_pass(r, &batch, &pass, &hidden, &err), DQ_OK);
    dq_kv_cached got = {0}, want = {0}, cut = {0};
    for (size_t i = 0; i < sizeof requested / sizeof *requested; i++)
        count_one_by_one(&spec, requested[i], all, &want);
    dq_kv_cached_reads(&got, r, seq, requested, sizeof requested / sizeof *requested, &err);
    assert_int_equal(got.reads, n_lists * want.reads);
    assert_int_equal(got.reads_coded, n_lists * want.reads_coded);
    assert_true(got.reads_coded > 0);
    x.b->ops->kv_keep(x.b, dq_runner_kv(r), seq, 1, 0, kept, n_kept);
    count_one_by_one(&spec, 200, some, &cut);
    want = (dq_kv_cached){0};
    count_one_by_one(&spec, 200, all, &want);
    got = (dq_kv_cached){0};
    dq_kv_cached_reads(&got, r, seq, &requested[6], 1, &err);
    assert_int_equal(got.reads, (n_lists - 1) * want.reads + cut.reads);
    assert_int_equal(got.reads_coded, (n_lists - 1) * want.reads_coded + cut.reads_coded);
    got = (dq_kv_cached){0};
    dq_kv_cached_reads(&got, x.r, seq, requested, 1, &err);
    assert_int_equal(got.reads, 0);
    assert_string_equal(err.text, "");
    x.b->ops->kv_seq_free(x.b, dq_runner_kv(r), seq);
    dq_runner_free(r);
    rig_close(&x);
}

/* Windows whose last fed id is asked for its successor, after a context and after none. */
TEST(test_past)
{
    rig x;
    dq_err err = {0};
    rig_open(&x, "diffllama-f32");
    dq_pass pass = {.logit = {.bits = 16, .granularity = DQ_GRANULARITY_TENSOR}};
    for (int64_t first = 0; first < 11; first++) {
        if (!test_runs((int)first, 4)) continue;
        const int64_t scored = 11 - first;
        double want[44], logp[44], one[44];
        int32_t top1[44], want_top1[44];
        dq_score_work work = {0};
        dq_mat st = {.rows = 4 * scored, .cols = x.m->dim};
        st.p = x.b->ops->alloc(x.b, (size_t)(st.rows * st.cols) * sizeof *st.p);
        for (int i = 0; i < 4; i++)
            x.win[i] = (dq_window){
                .ids = x.text + 12 * i, .n = 11, .first = first, .past = 1, .value = scored * i};
        x.w.n_values = 4 * scored;
        for (int i = 0; i < 4; i++)
            one_sequence(&x, &pass, x.text + 12 * i, 11, first + 1, scored, one + scored * i,
                         want_top1 + scored * i);
        score_windows(&x, &pass, &dq_kv_plain, 0, 4, st, (dq_scores){want, top1}, &work);
        assert_memory_equal(want, one, (size_t)(4 * scored) * sizeof *one);
        assert_memory_equal(top1, want_top1, (size_t)(4 * scored) * sizeof *top1);
        dq_kv_spec kv = dq_kv_plain;
        kv.recent = 2;
        kv.sink = 1;
        kv.evict.policy = dq_kv_policy_find("streaming", &err);
        kv.evict.every = first % 3;
        score_windows(&x, &pass, &kv, 0, 4, st, (dq_scores){logp, top1}, &work);
        assert_memory_equal(logp, want, (size_t)(4 * scored) * sizeof *logp);
        x.b->ops->free(x.b, st.p);
    }
    rig_close(&x);
}

/* A sweep without tokenizer: its ids are put in by hand. */
static void sweep_open(dq_eval *e, rig *x)
{
    static dq_choice choice[N_CHOICES] = {{.points = 3}, {.points = 4}, {.points = 5}};
    static dq_item item[N_ITEMS];
    static const dq_task task = {.name = "made"};
    dq_err err = {0};
    memset(e, 0, sizeof *e);
    e->a = given_arena();
    e->model = dq_alloc(e->a, 1, sizeof *e->model, &err);
    e->source = dq_alloc(e->a, 2, sizeof *e->source, &err);
    e->ids = dq_alloc(e->a, 2, sizeof *e->ids, &err);
    e->model[0] = (dq_eval_model){.m = x->m, .runner = x->r, .shown = true};
    for (int i = 0; i < N_ITEMS; i++)
        item[i] = (dq_item){.choice = choice, .n_choices = N_CHOICES, .gold = i % N_CHOICES};
    e->source[0] = (dq_eval_source){.name = "made",
                                    .path = "-",
                                    .kind = &dq_eval_choices,
                                    .task = &task,
                                    .items = {.item = item, .n = N_ITEMS}};
    e->source[1] = (dq_eval_source){.name = "text", .path = "-", .kind = &dq_eval_text};
    e->ids[0] = (dq_eval_ids){.source = 0, .req = x->q};
    e->ids[1] = (dq_eval_ids){.source = 1, .win = x->w, .n_extra = 1};
    e->n_models = 1;
    e->n_sources = e->n_ids = 2;
    e->cap_ids = 2;
    for (int s = 1; s < N_SPECS; s++) { /* 16 bits come as the reference */
        assert_int_equal(dq_eval_add(e, 0, 0, specs[s], (dq_math){0}, &dq_kv_plain, &err), DQ_OK);
        assert_int_equal(dq_eval_add(e, 0, 1, specs[s], (dq_math){0}, &dq_kv_plain, &err), DQ_OK);
    }
    assert_int_equal(e->n_rows, 2 * N_SPECS);
}

TEST(test_sweep)
{
    rig x;
    dq_eval e;
    dq_err err = {0};
    rig_open(&x, "diffllama-f32");
    sweep_open(&e, &x);
    assert_int_equal(dq_eval_run(&e, &err), DQ_OK);
    for (int i = 0; i < e.n_rows; i++) {
        dq_eval_numbers n;
        dq_pass pass = {.logit = e.row[i].logit};
        assert_int_equal(dq_eval_numbers_of(&e, i, &n, &err), DQ_OK);
        assert_int_equal(e.row[e.row[i].ref].logit.bits, 16);
        assert_int_equal(e.row[i].shown, e.row[i].logit.bits < 16);
        assert_int_equal(n.is_ref, e.row[i].ref == i);
        if (n.is_task) {
            answers want;
            size_t all = (size_t)x.q.n_values;
            expect(&x, &pass, NULL, &want);
            assert_memory_equal(e.row[i].logp, want.logp, all * sizeof *want.logp);
            assert_memory_equal(e.row[i].top1, want.top1, all * sizeof *want.top1);
            assert_int_equal(n.n, N_ITEMS);
            assert_int_equal(n.n_metrics, 2);
            assert_true(!n.is_ref || n.flips[0].delta == 0);
        } else {
            assert_int_equal(n.n, 20);
            assert_true(n.is_ref
                            ? isnan(n.kld.value) && isnan(n.same.value) && isnan(n.ln_ratio.value)
                            : n.kld.value > 0);
            assert_true(n.is_ref || n.kld_at[4] <= n.kld_at[5]);
            assert_true(n.is_ref || n.kld_at[8] <= n.kld_at[DQ_KLD_POINTS - 1]);
            assert_true(fabs(n.ppl.value - exp(n.nll.value)) < 1e-9);
            assert_true(n.noise_floor > -1e-6 && n.noise_floor < 1e-6 && n.noise_floor != 0);
            for (int k = 0; n.is_ref && k < 20; k++)
                assert_true(e.row[i].top_logp[k] >= e.row[i].logp[k] && e.row[i].top_logp[k] <= 0);
        }
    }
    /* asking twice adds nothing, asking for the reference shows it */
    assert_int_equal(dq_eval_add(&e, 0, 0, specs[0], (dq_math){0}, &dq_kv_plain, &err), DQ_OK);
    assert_int_equal(e.n_rows, 2 * N_SPECS);
    assert_true(e.row[e.row[0].ref].shown);
    rig_close(&x);
}

/* The ids are the model's: a reference without a tokenizer of its own is asked for its positions too. */
TEST(references_with_fewer_positions)
{
    static const struct {
        int model, reference;
        dq_status code;
    } cases[] = {{64, 64, DQ_OK}, {64, 128, DQ_OK},      {64, 0, DQ_OK},
                 {0, 0, DQ_OK},   {64, 63, DQ_MISMATCH}, {0, 4096, DQ_MISMATCH}};
    rig x;
    rig_open(&x, "diffllama-f32");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dq_err err = {0};
        dq_model given = *x.m, reference = *x.m;
        dq_eval_model models[2] = {{.m = &given, .ref = 1}, {.m = &reference, .ref = 1}};
        dq_eval_source source = {.name = "text", .path = "-", .kind = &dq_eval_text};
        dq_eval_ids ids = {.win = x.w};
        dq_eval e = {.model = models, .source = &source, .ids = &ids};
        e.a = given_arena();
        e.n_models = 2;
        e.n_sources = e.n_ids = 1;
        e.cap_ids = 1;
        given.max_positions = cases[i].model;
        reference.max_positions = cases[i].reference;
        assert_int_equal(dq_eval_add(&e, 0, 0, specs[0], (dq_math){0}, &dq_kv_plain, &err),
                         cases[i].code);
        assert_true(err.code == DQ_OK || strstr(err.text, "has fewer positions"));
        assert_int_equal(e.n_rows, err.code == DQ_OK ? 2 : 0);
    }
    rig_close(&x);
}

static void check_same(const dq_eval *e, const dq_eval *f)
{
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *a = &e->row[i], *b = &f->row[i];
        const int64_t units = dq_eval_units(e, a);
        size_t n = (size_t)dq_eval_values(e, a, units);
        assert_int_equal(dq_eval_lacking(a, 0, units), units);
        assert_int_equal(dq_eval_lacking(b, 0, units), units);
        assert_memory_equal(a->logp, b->logp, n * sizeof *a->logp);
        assert_memory_equal(a->top1, b->top1, n * sizeof *a->top1);
        if (a->kld) assert_memory_equal(a->kld, b->kld, n * sizeof *a->kld);
        if (a->top_logp) assert_memory_equal(a->top_logp, b->top_logp, n * sizeof *a->top_logp);
        if (a->extra) assert_memory_equal(a->extra, b->extra, (size_t)units * sizeof *a->extra);
        assert_int_equal(a->work.tokens, b->work.tokens);
        assert_int_equal(a->work.computed, b->work.computed);
        assert_memory_equal(&a->work.cached, &b->work.cached, sizeof a->work.cached);
    }
}

static dq_status open_work(dq_eval *e, const char *key, const char *path, bool resume, dq_err *err)
{
    dq_work_how how = dq_eval_work(e, key, path);
    how.resume = resume;
    return dq_work_open(&e->work, &how, err);
}

/* A journal cut off anywhere goes on to the same bits; anything altered is refused. */
TEST(test_journal)
{
    rig x;
    dq_eval e, f;
    dq_err err = {0};
    char path[] = "test_score.resume", key[65], other[65], *text;
    size_t len, half;
    memset(key, 'a', 64);
    memset(other, 'b', 64);
    key[64] = other[64] = 0;
    rig_open(&x, "llama-f32");
    sweep_open(&e, &x);
    assert_int_equal(open_work(&e, key, path, false, &err), DQ_OK);
    assert_int_equal(dq_eval_run(&e, &err), DQ_OK);
    assert_int_equal(e.work.lost.code, DQ_OK);
    dq_work_close(&e.work, false);
    assert_int_equal(dq_file_read(&text, &len, path, e.a, &err), DQ_OK);
    for (int part = 0; part <= 20; part++) {
        size_t cut = part == 20 ? len : len * (size_t)part / 20;
        if (!test_runs(part, 20)) continue;
        assert_int_equal(dq_file_write(path, text, cut, &err), DQ_OK);
        sweep_open(&f, &x);
        assert_int_equal(open_work(&f, key, path, true, &err), DQ_OK);
        assert_int_equal(dq_eval_run(&f, &err), DQ_OK);
        check_same(&e, &f);
        dq_work_close(&f.work, part == 20);
    }
    text[len - 3] ^= 1; /* a last line that does not fit is dropped like one that was cut off */
    assert_int_equal(dq_file_write(path, text, len, &err), DQ_OK);
    text[len - 3] ^= 1;
    sweep_open(&f, &x);
    assert_int_equal(open_work(&f, key, path, true, &err), DQ_OK);
    assert_int_equal(dq_eval_run(&f, &err), DQ_OK);
    check_same(&e, &f);
    dq_work_close(&f.work, true);
    dq_err wrong = {0}, altered = {0}, busy = {0};
    sweep_open(&f, &x);
    assert_int_equal(dq_file_write(path, text, len, &err), DQ_OK);
    assert_int_equal(open_work(&f, other, path, true, &wrong), DQ_MISMATCH);
    for (half = len / 2; text[half] < '0' || text[half] > '8'; half++) {
    }
    text[half]++;
    assert_int_equal(dq_file_write(path, text, len, &err), DQ_OK);
    assert_int_equal(open_work(&f, key, path, true, &altered), DQ_DAMAGED);
    assert_int_equal(open_work(&e, key, path, false, &err), DQ_OK);
    assert_int_equal(open_work(&f, key, path, false, &busy), DQ_RESOURCE);
    dq_work_close(&e.work, true);
    rig_close(&x);
}

/* ---- Pieces and shards ---- */

TEST(pieces_are_the_whole)
{
    rig x;
    dq_eval e;
    dq_err err = {0};
    pieces p;
    int count[2 * N_SPECS][64] = {{0}}, shard[64];
    rig_open(&x, "llama-f32");
    sweep_open(&e, &x);
    assert_int_equal(make_pieces(&p, &e, true, &err), DQ_OK);
    assert_true(p.n > 1 && p.n < 64);
    for (int64_t i = 0; i < p.n; i++) {
        assert_true(p.piece[i].work > 0);
        for (int64_t k = p.piece[i].begin; k < p.piece[i].end; k++) count[p.piece[i].row][k]++;
    }
    for (int i = 0; i < e.n_rows; i++) {
        const bool first = e.row[i].ref == i || !e.row[i].kld; /* a text's reference has all rows */
        for (int64_t k = 0; k < dq_eval_units(&e, &e.row[i]); k++)
            assert_int_equal(count[i][k], first);
    }
    for (int n = 1; n <= 5; n++) { /* no shard has more than another and one piece */
        double work[5] = {0}, most = 0, least = INFINITY, largest = 0;
        assert_int_equal(share_pieces(shard, &p, n, &err), DQ_OK);
        for (int64_t i = 0; i < p.n; i++) {
            work[shard[i]] += p.piece[i].work;
            largest = fmax(largest, p.piece[i].work);
        }
        for (int i = 0; i < n; i++) {
            most = fmax(most, work[i]);
            least = fmin(least, work[i]);
        }
        assert_true(most - least <= largest);
    }
    rig_close(&x);
}

static void run_shard(rig *x, int shard, int n, const char *key, const char *path)
{
    dq_eval f;
    dq_err err = {0};
    sweep_open(&f, x);
    f.shard = shard;
    f.n_shards = n;
    assert_int_equal(open_work(&f, key, path, false, &err), DQ_OK);
    assert_int_equal(dq_eval_run(&f, &err), DQ_OK);
    assert_int_equal(dq_work_end(&f.work, &err), DQ_OK);
    dq_work_close(&f.work, false);
}

TEST(shards_are_the_whole)
{
    rig x;
    dq_eval e, f;
    dq_err err = {0}, twice = {0}, other = {0};
    char path[64], key[65], wrong[65];
    dq_work_how how;
    memset(key, 'a', 64);
    memset(wrong, 'b', 64);
    key[64] = wrong[64] = 0;
    rig_open(&x, "llama-f32");
    sweep_open(&e, &x);
    assert_int_equal(dq_eval_run(&e, &err), DQ_OK);
    for (int n = 1; n <= 3; n++) {
        sweep_open(&f, &x);
        for (int i = 0; i < n; i++) {
            snprintf(path, sizeof path, "test_score_%d.shard", i);
            run_shard(&x, i, n, key, path);
            how = dq_eval_work(&f, key, path);
            assert_int_equal(dq_work_merge(&how, path, &err), DQ_OK);
        }
        check_same(&e, &f);
        assert_int_equal(dq_work_merge(&how, path, &twice), DQ_DAMAGED);
        how.key = wrong;
        assert_int_equal(dq_work_merge(&how, path, &other), DQ_MISMATCH);
        twice = other = (dq_err){0};
        for (int i = 0; i < n; i++) {
            snprintf(path, sizeof path, "test_score_%d.shard", i);
            remove(path);
        }
    }
    rig_close(&x);
}

/* ---- Windows are units: each row is written down for itself, some windows at a time ---- */

enum { MANY = 60 };

/* A sweep of text alone, with caches that evict and round; 720 tokens a row, so that a row takes several steps. */
static void text_sweep_open(dq_eval *e, rig *x)
{
    static dq_window win[MANY];
    static int32_t units[MANY];
    dq_err err = {0};
    dq_kv_spec kv = dq_kv_plain;
    for (int i = 0; i < MANY; i++) {
        win[i] = (dq_window){.ids = x->text + i % 36, .n = 12, .first = 6, .value = 5 * i};
        units[i] = i;
    }
    sweep_open(e, x);
    e->row = NULL;
    e->n_rows = 0;
    e->cap_rows = 0;
    e->ids[1].win = (dq_windows){.win = win,
                                 .n = MANY,
                                 .n_values = 5 * MANY,
                                 .longest = 12,
                                 .cluster = units,
                                 .n_clusters = MANY};
    kv.recent = 2;
    kv.sink = 1;
    kv.evict =
        (dq_evict_spec){.policy = dq_kv_policy_find("h2o", &err), .keep = 0.75, .window = -1};
    assert_int_equal(dq_eval_add(e, 0, 1, specs[1], (dq_math){0}, &kv, &err), DQ_OK);
    kv.k_bits = kv.v_bits = 4;
    kv.quant = DQ_KV_PER_CHANNEL;
    assert_int_equal(dq_eval_add(e, 0, 1, specs[0], (dq_math){0}, &kv, &err), DQ_OK);
    assert_int_equal(dq_eval_add(e, 0, 1, specs[2], (dq_math){0}, &dq_kv_plain, &err), DQ_OK);
    assert_int_equal(e->n_rows, 4);
}

typedef struct watcher {
    dq_eval *e;
    int64_t done, steps;
    int calls, within;
    double share;
} watcher;

/* What is done is in the journal whenever progress is told, and the share grows within steps. */
static void look(void *arg, double share, const char *note)
{
    watcher *w = arg;
    const dq_eval *e = w->e;
    int64_t done = 0, steps = e->work.n;
    for (int i = 0; i < e->n_rows; i++)
        done += dq_eval_values(e, &e->row[i], dq_eval_lacking(&e->row[i], 0, MANY));
    assert_non_null(note);
    assert_true(done == w->done || steps == w->steps + 1); /* a row's step at a time */
    assert_true(share >= 0 && share < 1 + 1e-9);
    w->calls++;
    w->within += done == w->done && share > w->share;
    w->share = share;
    w->done = done;
    w->steps = steps;
}

TEST(windows_are_units)
{
    rig x;
    dq_eval e, f;
    dq_err err = {0};
    char path[] = "test_score_units.resume", key[65] = "", *text;
    size_t len, lines = 0;
    memset(key, 'c', 64);
    rig_open(&x, "llama-f32");
    text_sweep_open(&e, &x);
    watcher w = {.e = &e, .steps = 1};
    e.progress = look;
    e.progress_arg = &w;
    assert_int_equal(open_work(&e, key, path, false, &err), DQ_OK);
    assert_int_equal(dq_eval_run(&e, &err), DQ_OK);
    dq_work_close(&e.work, false);
    assert_true(w.within >= e.n_rows);
    assert_int_equal(dq_file_read(&text, &len, path, e.a, &err), DQ_OK);
    for (size_t i = 0; i < len; i++) lines += text[i] == '\n';
    assert_true((int)lines >= 1 + 2 * e.n_rows); /* the head; no row in one step */
    for (size_t i = 0, n = 0; i < len; i++) {    /* killed when rows were differently far */
        if (text[i] != '\n' || n++ % 4 != 2 || !test_runs((int)n, (int)lines)) continue;
        assert_int_equal(dq_file_write(path, text, i + 1, &err), DQ_OK);
        text_sweep_open(&f, &x);
        assert_int_equal(open_work(&f, key, path, true, &err), DQ_OK);
        assert_int_equal(dq_eval_run(&f, &err), DQ_OK);
        check_same(&e, &f);
        dq_work_close(&f.work, true);
    }
    rig_close(&x);
}

/* ---- One cache under several names ---- */

typedef struct name {
    const char *policy;
    double keep;
    int every;
    dq_kv_budget budget;
    int same; /* row */
} name;

/* Windows have contexts of 6 tokens, of which sink and recent hold 3. */
TEST(same_caches_are_computed_once)
{
    static const name names[] = {
        {"h2o", 1, 0, DQ_KV_BUDGET_UNIFORM, 0}, /* the reference is row 1 */
        {"knorm", 1, 0, DQ_KV_BUDGET_UNIFORM, 0},
        {"h2o", 0.9, 0, DQ_KV_BUDGET_UNIFORM, 0}, /* 5.4: all 6 */
        {"h2o", 1, 0, DQ_KV_BUDGET_GLOBAL, 0},
        {"h2o", 1, 2, DQ_KV_BUDGET_UNIFORM, 5},   /* fed in other passes */
        {"h2o", 0.5, 0, DQ_KV_BUDGET_UNIFORM, 6}, /* 3: the least */
        {"random", 0.5, 0, DQ_KV_BUDGET_ADAPTIVE, 6},
        {"snapkv", 0.25, 0, DQ_KV_BUDGET_ADAPTIVE, 8}, /* raised to it, which is counted */
        {"diff", 0.3, 0, DQ_KV_BUDGET_GLOBAL, 8},
        {"h2o", 0.6, 0, DQ_KV_BUDGET_UNIFORM, 10}, /* 4: one to choose */
        {"knorm", 0.6, 0, DQ_KV_BUDGET_UNIFORM, 11},
        {"h2o", 0.5, 2, DQ_KV_BUDGET_UNIFORM, 12}, /* 4 of 8, later */
    };
    enum { N = sizeof names / sizeof *names };
    rig x;
    dq_eval e;
    dq_err err = {0};
    rig_open(&x, "diffllama-f32");
    for (int own = 0; own < 2;
         own++) { /* each as it is computed here, then by its own policy alone */
        dq_eval f;
        text_sweep_open(own ? &f : &e, &x);
        dq_eval *to = own ? &f : &e;
        to->row = NULL;
        to->n_rows = 0;
        to->cap_rows = 0;
        to->ids[1].win = x.w;
        for (int i = 0; i < N; i++) {
            dq_kv_spec kv = dq_kv_plain;
            kv.sink = 1;
            kv.recent = 2;
            kv.evict = (dq_evict_spec){.policy = dq_kv_policy_find(names[i].policy, &err),
                                       .keep = names[i].keep,
                                       .every = names[i].every,
                                       .window = -1,
                                       .budget = names[i].budget};
            assert_int_equal(dq_eval_add(to, 0, 1, specs[0], (dq_math){0}, &kv, &err), DQ_OK);
            dq_eval_row *row = &to->row[to->n_rows - 1 - (i == 0)];
            assert_int_equal(row->same, names[i].same);
            if (own) {
                row->run = row->kv;
                row->same = (int)(row - to->row);
                row->finished = dq_alloc(to->a, 4, sizeof *row->finished, &err);
                row->logp = dq_alloc(to->a, 20, sizeof *row->logp, &err);
                row->kld = dq_alloc(to->a, 20, sizeof *row->kld, &err);
                row->extra = dq_alloc(to->a, 4, sizeof *row->extra, &err);
            }
        }
        assert_int_equal(to->n_rows, N + 1);
        assert_int_equal(dq_eval_run(to, &err), DQ_OK);
        for (int i = 0; own && i <= N; i++) {
            const dq_eval_row *a = &e.row[i], *b = &f.row[i];
            assert_int_equal(dq_eval_lacking(a, 0, 4), 4);
            assert_memory_equal(a->logp, b->logp, 20 * sizeof *a->logp);
            assert_memory_equal(a->kld, b->kld, 20 * sizeof *a->kld);
            assert_memory_equal(&a->work.cached.bytes, &b->work.cached.bytes,
                                sizeof a->work.cached.bytes);
            assert_int_equal(a->work.cached.raised, b->work.cached.raised);
        }
    }
    rig_close(&x);
}
